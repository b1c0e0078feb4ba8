"""The loss of SSL-HSIC."""

import math
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import checks
from keras_sslhsic.hsic import features, kernels
from keras_sslhsic.hsic.checks import check_views
from keras_sslhsic.hsic.estimators import hsic_zy_features, hsic_zz_features, objective, ssl_hsic
from keras_sslhsic.hsic.exact import exact_mean, exact_sums, exact_zy, exact_zz
from keras_sslhsic.hsic.groups import finite_population
from keras_sslhsic.hsic.moments import cosine_moments, feature_moments, moments_zy, moments_zz
from keras_sslhsic.hsic.ratio import dependence_ratio, largest_ratio
from keras_sslhsic.hsic.uniform import uniform_mean
from keras_sslhsic.losses.base import Hiddens, Objective, identified, register, unit_views
from keras_sslhsic.losses.learnt_scale import LearntScale


@register("ssl_hsic")
class SSLHSICLoss(Objective):
    """The SSL-HSIC loss (Li et al. 2021, section 3): dependence on the image identity, less kernelised variance.

        loss = -hsic_zy + gamma sqrt(hsic_zz)

    All of it is computed in float32, whatever the dtype policy. Where hsic_zz is 0, its square root has gradient 0.

    A trainer gives it the outputs of all views, with those of the target network where there is one, which it divides by
    their norms. It then learns the scale of the kernel too, beside the networks (sections 4.1, D.1.2).

    As `loss(y_true, y_pred)`, y_true holds the integer identity of the image (or a class) of each row, [n] or [n, 1],
    below 2^24 in magnitude (Keras turns it into float32), and y_pred [n, Q] its representation, which is divided by its
    norm. Rows of one identity may come in any order and number, one image two times or more; groups count equally. Each
    call draws new features, from `seed` and a counter that the loss keeps in a variable; so create it inside the scope
    of a distribution strategy, as the model is. The counter is not part of the configuration.

    Args:
        kernel: "imq", "gaussian", "linear", a `hsic.kernels.Kernel` or its config. A learnt scale begins with its own.
        gamma: weight of sqrt(hsic_zz), at least 0. Without a target network the outputs collapse if hsic_zy /
            sqrt(hsic_zz) does not come to exceed it; docs/method.md says how to choose it.
        num_features: number D of random features of each draw (cost linear in the batch), or None for the exact kernel
            (quadratic in time, but not in memory). The linear kernel needs none: its features are the representations.
        estimator: "biased" or "unbiased". The unbiased hsic_zy is exact in expectation for B images out of
            `dataset_size`; hsic_zz is then that of Song et al. 2012 for the exact kernel; with features, it
            stays the biased one, of two independent draws.
        dataset_size: number N of images, for the unbiased estimator; by default infinite.
        convention: "paper" divides hsic_zz by (n - 1)^2 and subtracts 1/(M - 1) in hsic_zy, so that
            independence reads 0. "released" does as the authors' code: it divides by n^2 and leaves the
            constant out. The gradients differ by the factor of hsic_zz alone.
        shared_draw: whether hsic_zy uses the first of the two draws of hsic_zz, as in the authors' code
            (each term has the same expectation, at two thirds of the cost), or a third one.
        low_variance: whether to draw the features with less variance, as `hsic.features.draw` does on request.
        learn_kernel_scale: whether a trainer learns the scale, where the kernel has a best one (the linear kernel has
            none). It is then held at `hsic.kernels.MIN_SCALE` or above.
        kernel_optimizer: for the scale, a Keras optimizer or its config; None is Adam with the released code's 3e-4.
        seed: integer, for the draws of `loss(y_true, y_pred)`, and for features that are drawn once.
        redraw: whether features are drawn anew at every step, or once, for comparison: that does badly (section 5).
        name: name of the loss.
        **kwargs: `reduction` and `dtype` of `keras.losses.Loss`.

    Raises:
        ValueError: if gamma is negative, num_features below 1, or a name unknown.

    Example:
        >>> loss = SSLHSICLoss("imq", gamma=3.0, num_features=512)
        >>> identities = tf.constant([0, 1, 2, 0, 1, 2])
        >>> value = loss(identities, tf.random.normal([6, 16]))
    """

    needs_target = None
    needs_predictor = None
    latest = ("kernel_scale",)
    arguments = (
        *("gamma", "num_features", "estimator", "dataset_size", "convention", "shared_draw", "low_variance"),
        *("learn_kernel_scale", "kernel_optimizer", "seed", "redraw"),
    )

    def __init__(
        self,
        kernel: Any = "imq",
        gamma: float = 3.0,
        num_features: int | None = 512,
        estimator: str = "biased",
        dataset_size: int | None = None,
        convention: str = "paper",
        shared_draw: bool = True,
        low_variance: bool = False,
        learn_kernel_scale: bool = True,
        kernel_optimizer: Any = None,
        seed: int = 0,
        redraw: bool = True,
        name: str = "ssl_hsic",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        checks.number("gamma", gamma)
        checks.integer("num_features", num_features, 1, optional=True)
        checks.choice("estimator", estimator, ("biased", "unbiased"))
        checks.choice("convention", convention, ("paper", "released"))
        checks.flag("redraw", redraw)
        checks.flag("learn_kernel_scale", learn_kernel_scale)
        self.kernel, self.gamma = kernels.get(kernel), float(gamma)
        self.num_features, self.shared_draw, self.low_variance = num_features, shared_draw, low_variance
        self.redraw = redraw
        self.estimator, self.dataset_size, self.convention = estimator, dataset_size, convention
        self.learn_kernel_scale, self.seed = learn_kernel_scale, seed
        # As a config: the optimizer itself is made in the scope of the trainer's strategy.
        self.kernel_optimizer = kernel_optimizer and keras.optimizers.serialize(
            keras.optimizers.get(kernel_optimizer)
        )
        self.learnt_scale: LearntScale | None = None
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self._calls = tf.Variable(0, trainable=False, dtype=tf.int32, aggregation=first, name="calls")

    def build(self, size: int) -> None:
        """Makes the learnt scale, where there is one."""
        if self.learn_kernel_scale and self.kernel.learnable_scale:
            self.learnt_scale = LearntScale(self.kernel, self.kernel_optimizer)

    @property
    def variables(self) -> list[keras.Variable]:
        """The learnt scale and what its optimizer holds."""
        return [] if self.learnt_scale is None else self.learnt_scale.variables

    @property
    def kernel_scale(self) -> tf.Tensor:
        """The scale as it is now, float32 []."""
        learnt = self.learnt_scale
        return self.kernel.scale_as(tf.float32) if learnt is None else tf.identity(learnt.variable.value)

    def terms(self, hiddens: Hiddens, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """The "loss" and its terms, of all outputs of each image, those of the target among them; see `Objective.terms`.

        They are "hsic_zy", "hsic_zz", and "dependence_ratio", which is hsic_zy / sqrt(hsic_zz) with 0 for independence in every
        convention. Outputs that lie near each other are drawn together while it is below gamma, and spread where it is above.
        "mmd_to_uniform" is the squared MMD between the outputs and the uniform distribution on the sphere: the mean of the
        kernel, less what that is for the latter; so -hsic_zy = -(mean over views of one image) + mmd_to_uniform + constant.
        """
        return self.terms_of_unit_vectors(unit_views(hiddens), seed)

    def terms_of_unit_vectors(self, z: tf.Tensor, seed: tf.Tensor) -> dict[str, tf.Tensor]:
        """`terms` of z [B, M, Q] of unit norm already, float."""
        z = tf.cast(tf.convert_to_tensor(z), tf.float32)
        check_views(z, self.estimator == "unbiased")
        kernel = self._constant_kernel()
        if self.num_features is None:
            sums, unbiased = exact_sums(z, None, kernel, None), self.estimator == "unbiased"
            zy, zz = exact_zy(sums, **self._zy_options()), exact_zz(sums, unbiased, self._ddof())
            return self._named(zy, zz, exact_mean(sums) - uniform_mean(kernel, z.shape[2]), z.shape[1])
        if isinstance(kernel, kernels.Linear):
            kernel = kernels.Linear()  # its features are the vectors, whatever its scale
            moments = zy_moments = feature_moments(z, z)
        else:
            first, second, *third = self.draws(kernel, z.shape[-1], seed)
            moments = zy_moments = cosine_moments(z, first, second)
            if third:
                r = features.random_fourier_features(z, *third[0])
                zy_moments = feature_moments(r, r)
        zy = moments_zy(zy_moments, **self._zy_options())
        mmd = zy_moments.norm - uniform_mean(kernel, z.shape[2])
        return self._named(zy, moments_zz(moments, self._ddof()), mmd, z.shape[1])

    def update(self, hiddens: Hiddens) -> dict[str, tf.Tensor]:
        """One step of the kernel's scale; returns it as "kernel_scale"."""
        if self.learnt_scale is not None:
            self.learnt_scale.update(self.kernel, unit_views(hiddens))
        return {"kernel_scale": self.kernel_scale}

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """The loss of the whole batch, repeated for each row [n], so that Keras' mean over the rows is the loss."""
        z, labels = identified(y_true, y_pred)
        kernel = self._constant_kernel()
        if self.num_features is None:
            terms = ssl_hsic(z, kernel, self.gamma, labels=labels, ddof=self._ddof(), **self._zy_options())
        else:
            terms = self._features_with_labels(z, labels, kernel)
        return tf.fill(tf.shape(z)[:1], terms[0])

    def draws(self, kernel: kernels.Kernel, dim: int, seed: tf.Tensor) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """The (frequencies [D, Q], phases [D]) of a step: both draws of hsic_zz, the first one hsic_zy's too, unless it has
        a third of its own. Those of a set that stays are given by the loss's own seed; their frequencies follow the scale.
        """
        seed = seed if self.redraw else tf.constant([self.seed, 0])
        seeds = tf.unstack(tf.random.split(seed, 2 if self.shared_draw else 3, alg="philox"))
        assert self.num_features is not None
        return [features.draw(kernel, dim, self.num_features, s, self.low_variance) for s in seeds]

    def largest_ratio(self, images: int, views: int) -> float:
        """The largest `dependence_ratio` of B images in M views, see `hsic.ratio.largest_ratio`; none if unbiased."""
        return math.inf if self.estimator == "unbiased" else largest_ratio(images, views, self._ddof())

    def warning(self, images: int, views: int, target: bool) -> str | None:
        """Says so where the loss is least for collapsed outputs, since the batches are so small."""
        if target or views < 2 or self.gamma <= (bound := self.largest_ratio(images, views)):
            return None
        return (
            f"gamma is {self.gamma:g}, but hsic_zy / sqrt(hsic_zz) of {images} images in {views} views is never above "
            f"{bound:.3g}: the loss is least where all outputs are equal. Give a smaller gamma or a larger batch, or train "
            "with a target network."
        )

    def advice_on_collapse(self, means: Mapping[str, float]) -> str | None:
        """Near collapse, outputs spread again where dependence_ratio is above gamma."""
        ratio = means["dependence_ratio"]
        if ratio > self.gamma:
            return None
        return (
            f"They are drawn together while dependence_ratio, {ratio:.2g} now, is below gamma, {self.gamma:g}. Give a smaller "
            "gamma or a larger batch, or train with a target network."
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`."""
        return super().get_config() | {"kernel": kernels.serialize(self.kernel)}

    def _features_with_labels(
        self, z: tf.Tensor, labels: tf.Tensor, kernel: kernels.Kernel
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        if isinstance(kernel, kernels.Linear):
            r, r2, *third = z, z
        else:
            seed = tf.random.fold_in(
                tf.constant([self.seed, 0], tf.int32), self._calls.assign_add(1), alg="philox"
            )
            draws = self.draws(kernel, z.shape[-1], seed)
            r, r2, *third = [features.random_fourier_features(z, *draw) for draw in draws]
        zy = hsic_zy_features(third[0] if third else r, labels=labels, **self._zy_options())
        return objective(zy, hsic_zz_features(r, r2, ddof=self._ddof()), self.gamma)

    def _constant_kernel(self) -> kernels.Kernel:
        return self.kernel.with_scale(tf.stop_gradient(self.kernel_scale))

    def _zy_options(self) -> dict[str, Any]:
        return {
            "unbiased": self.estimator == "unbiased",
            "dataset_size": self.dataset_size,
            "constant": self.convention == "paper",
        }

    def _ddof(self) -> int:
        return 1 if self.convention == "paper" else 0

    def _named(self, zy: tf.Tensor, zz: tf.Tensor, mmd: tf.Tensor, views: int) -> dict[str, tf.Tensor]:
        loss, _, _ = objective(zy, zz, self.gamma)
        independent = 0.0
        if self.convention == "released":
            unbiased = self.estimator == "unbiased"
            independent = (finite_population(self.dataset_size) if unbiased else 1.0) / (views - 1)
        ratio = dependence_ratio(zy - independent, zz)
        mmd = tf.stop_gradient(mmd)
        return {"loss": loss, "hsic_zy": zy, "hsic_zz": zz, "dependence_ratio": ratio, "mmd_to_uniform": mmd}
