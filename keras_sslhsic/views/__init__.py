"""Views of images, made on the device: what a policy says, one set of random numbers an image."""

from keras_sslhsic.views.crop import resize_crops as resize_crops
from keras_sslhsic.views.crop import sample_crop_boxes as sample_crop_boxes
from keras_sslhsic.views.plot import show as show
from keras_sslhsic.views.policy import Blur as Blur
from keras_sslhsic.views.policy import ColorJitter as ColorJitter
from keras_sslhsic.views.policy import Crop as Crop
from keras_sslhsic.views.policy import Local as Local
from keras_sslhsic.views.policy import Solarize as Solarize
from keras_sslhsic.views.policy import ViewPolicy as ViewPolicy
from keras_sslhsic.views.policy import byol as byol
from keras_sslhsic.views.policy import finish_views as finish_views
from keras_sslhsic.views.policy import get as get
from keras_sslhsic.views.policy import grayscale as grayscale
from keras_sslhsic.views.policy import make_views as make_views
from keras_sslhsic.views.policy import multi_crop as multi_crop
from keras_sslhsic.views.policy import multispectral as multispectral
from keras_sslhsic.views.policy import prepare as prepare
from keras_sslhsic.views.policy import simclr as simclr
from keras_sslhsic.views.policy import small_image as small_image
