"""What features are like: tests, similarities and spectra of features and outputs, in float64."""

from keras_sslhsic.analysis.centred import ZTest as ZTest
from keras_sslhsic.analysis.centred import z_test as z_test
from keras_sslhsic.analysis.contrastive import InfoNCE as InfoNCE
from keras_sslhsic.analysis.contrastive import bound_gamma as bound_gamma
from keras_sslhsic.analysis.contrastive import info_nce as info_nce
from keras_sslhsic.analysis.independence import IndependenceTest as IndependenceTest
from keras_sslhsic.analysis.independence import hsic_test as hsic_test
from keras_sslhsic.analysis.matrices import kernel_matrix as kernel_matrix
from keras_sslhsic.analysis.matrices import label_matrix as label_matrix
from keras_sslhsic.analysis.matrices import median_scale as median_scale
from keras_sslhsic.analysis.similarity import cka as cka
from keras_sslhsic.analysis.similarity import kernel_target_alignment as kernel_target_alignment
from keras_sslhsic.analysis.spectrum import rankme as rankme
from keras_sslhsic.analysis.spectrum import singular_values as singular_values
from keras_sslhsic.analysis.sphere import alignment as alignment
from keras_sslhsic.analysis.sphere import mmd_to_uniform as mmd_to_uniform
from keras_sslhsic.analysis.sphere import uniformity as uniformity
from keras_sslhsic.analysis.two_sample import MMDTest as MMDTest
from keras_sslhsic.analysis.two_sample import mmd2 as mmd2
from keras_sslhsic.analysis.two_sample import mmd_test as mmd_test
