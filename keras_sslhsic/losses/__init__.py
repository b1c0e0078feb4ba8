"""Losses of self-supervised learning.

Each is an `Objective`: it makes a loss of the outputs that a method's networks have for the views of a batch, and keeps what
state it needs for that. Those of this package are plain Keras losses too, with image identities as `y_true`.
"""

from keras_sslhsic.losses.barlow_twins import BarlowTwinsLoss as BarlowTwinsLoss
from keras_sslhsic.losses.base import LOSSES as LOSSES
from keras_sslhsic.losses.base import Hiddens as Hiddens
from keras_sslhsic.losses.base import Objective as Objective
from keras_sslhsic.losses.base import get as get
from keras_sslhsic.losses.base import register as register
from keras_sslhsic.losses.base import unit_norm as unit_norm
from keras_sslhsic.losses.base import unit_views as unit_views
from keras_sslhsic.losses.byol import BYOLLoss as BYOLLoss
from keras_sslhsic.losses.info_nce import InfoNCELoss as InfoNCELoss
from keras_sslhsic.losses.lejepa import LeJEPALoss as LeJEPALoss
from keras_sslhsic.losses.moco import MoCoLoss as MoCoLoss
from keras_sslhsic.losses.nt_xent import NTXentLoss as NTXentLoss
from keras_sslhsic.losses.simsiam import SimSiamLoss as SimSiamLoss
from keras_sslhsic.losses.ssl_hsic import SSLHSICLoss as SSLHSICLoss
from keras_sslhsic.losses.swav import SwAVLoss as SwAVLoss
from keras_sslhsic.losses.vicreg import VICRegLoss as VICRegLoss
