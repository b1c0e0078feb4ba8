"""Methods: which networks there are, and how views become what a loss compares."""

from keras_sslhsic.methods.barlow_twins import BarlowTwins as BarlowTwins
from keras_sslhsic.methods.base import METHODS as METHODS
from keras_sslhsic.methods.base import Method as Method
from keras_sslhsic.methods.base import register as register
from keras_sslhsic.methods.byol import BYOL as BYOL
from keras_sslhsic.methods.lejepa import LeJEPA as LeJEPA
from keras_sslhsic.methods.moco import MoCo as MoCo
from keras_sslhsic.methods.simclr import SimCLR as SimCLR
from keras_sslhsic.methods.simsiam import SimSiam as SimSiam
from keras_sslhsic.methods.ssl_hsic import SSLHSIC as SSLHSIC
from keras_sslhsic.methods.swav import SwAV as SwAV
from keras_sslhsic.methods.vicreg import VICReg as VICReg
