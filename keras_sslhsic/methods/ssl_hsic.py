"""SSLHSIC: the Keras model that trains an encoder without labels."""

import contextlib
import math
import warnings
from typing import Any

import keras
import tensorflow as tf

from keras_sslhsic import checks, compat, losses
from keras_sslhsic.encoders import heads, small_maps
from keras_sslhsic.hsic import kernels, replicas
from keras_sslhsic.methods.base import METHODS
from keras_sslhsic.training import diagnostics, ema, inputs, lars
from keras_sslhsic.training.callbacks import StopOnFault, TargetEMA, WatchCollapse
from keras_sslhsic.training.checkpoint import Checkpoint
from keras_sslhsic.training.monitor import Monitor
from keras_sslhsic.training.schedules import TargetDecay
from keras_sslhsic.views import policy


@METHODS.register("ssl_hsic")
@keras.saving.register_keras_serializable(package="keras_sslhsic")
class SSLHSIC(keras.Model):
    """Self-supervised learning with the Hilbert-Schmidt independence criterion.

    One training step draws augmented views of every image, encodes and projects them to unit vectors z, and descends

        loss = -HSIC(Z, Y) + gamma sqrt(HSIC(Z, Z)),        Y the identity of the image

    (SSL-HSIC, equation 4; the loss is `losses.SSLHSICLoss` unless `compile` is given another). With a target network,
    z holds the online predictions of every view and the target's projections of every view, the latter under
    stop-gradient, and the target follows the online network as a moving average (section 4.1). The scale of the
    kernel is learnt by an optimizer of its own, which maximises `hsic.kernels.scale_entropy` (sections 4.1, D.1.2).

    Without a target network the outputs may collapse into one point: they do as long as hsic_zy / sqrt(hsic_zz), which
    the logs have as `dependence_ratio`, is below gamma. docs/method.md says how to choose gamma then.

    Every random number is a function of (`seed`, step), so that equal seeds give equal runs and no two steps see the
    same views.

    `fit` takes batches {"image": uint8 [B, H, W, C], "label": int [B] (optional)}, bare image batches, or
    (image, label); or crops already made, {"view1", "view2"} (uint8, or float in [0, 1]). Calling the model on images
    gives the encoder's features, float32 [B, F].

    Args:
        encoder: keras.Model from normalised float images [B, S, S, C] to features [B, F].
        projector_hidden: hidden size of projector and predictor.
        projection_dim: Q, the size of z.
        target: whether to train with a target network and predictor.
        views: "byol", "simclr", a `views.ViewPolicy` or its config; None takes the given views as they are and only
            normalises them.
        num_classes: classes of the online linear classifier, which is trained on stopped gradients when batches hold
            labels, for watching only. None: no classifier.
        kernel_scale: initial scale c of the kernel, at least `hsic.kernels.MIN_SCALE`.
        learn_kernel_scale: whether c is learnt, where the kernel has a best one (the linear kernel has none). It is
            then held at `MIN_SCALE` or above.
        batch_norm_output: normalise the outputs of projector and predictor over the batch (the paper's section 4.1
            says so, the released code does not).
        weight_ema: decay of the evaluation weights' moving average, in [0, 1); None keeps none.
            `callbacks.WeightEMA` sets it too.
        seed: any integer.

    Raises:
        ValueError: for values outside of these ranges, or of another type.

    Example:
        >>> import keras_sslhsic
        >>> encoder = keras_sslhsic.build_encoder("r18_1x", input_shape=(28, 28, 1), width=0.25)
        >>> model = keras_sslhsic.SSLHSIC(encoder, 512, 64, views="grayscale")
        >>> model.compile(keras_sslhsic.LARS(0.4))
    """

    def __init__(
        self,
        encoder: keras.Model,
        projector_hidden: int = 4096,
        projection_dim: int = 256,
        target: bool = True,
        views: Any = "byol",
        num_classes: int | None = None,
        kernel_scale: float = 1.0,
        learn_kernel_scale: bool = True,
        batch_norm_output: bool = False,
        weight_ema: float | None = None,
        seed: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(encoder, keras.Model):
            raise ValueError(
                f'encoder must be a keras.Model, got {encoder!r}: make one with keras_sslhsic.build_encoder("r50_1x").'
            )
        checks.integer("projector_hidden", projector_hidden, 1)
        checks.integer("projection_dim", projection_dim, 1)
        checks.integer("num_classes", num_classes, 2, optional=True)
        checks.integer("seed", seed, -(2**31))
        checks.flag("target", target)
        checks.flag("learn_kernel_scale", learn_kernel_scale)
        checks.flag("batch_norm_output", batch_norm_output)
        if not kernels.MIN_SCALE <= kernel_scale < math.inf:
            raise ValueError(
                f"kernel_scale must be at least {kernels.MIN_SCALE} and finite, got {kernel_scale}: float32 does not tell "
                "the distances apart that a smaller scale is for."
            )
        if weight_ema is not None and not 0.0 <= weight_ema < 1.0:
            raise ValueError(f"weight_ema must be None or in [0, 1), got {weight_ema}.")
        self.projector_hidden = projector_hidden
        self.projection_dim = projection_dim
        self.target = target
        self.num_classes = num_classes
        self.initial_kernel_scale = kernel_scale
        self.learn_kernel_scale = learn_kernel_scale
        self.batch_norm_output = batch_norm_output
        self.weight_ema: float | None = None
        self.seed = seed
        self.policy = policy.get(views)

        self.encoder = encoder
        features = encoder.output_shape[-1]
        head: dict[str, Any] = {
            "hidden": projector_hidden,
            "output": projection_dim,
            "batch_norm_output": batch_norm_output,
        }
        self.projector = heads.projector(features, **head)
        self.predictor: Any = heads.predictor(projection_dim, **head) if target else None
        self.classifier: Any = (
            keras.Sequential(
                [keras.Input((features,)), keras.layers.Dense(num_classes, dtype="float32")],
                name="classifier",
            )
            if num_classes
            else None
        )
        # Everything trained by the network's optimizer, in one fixed order.
        self.online_variables = [
            v
            for network in (encoder, self.projector, self.predictor, self.classifier)
            if network is not None
            for v in network.trainable_variables
        ]
        self.target_encoder: Any = None
        self.target_projector: Any = None
        if target:
            self.target_encoder = ema.copy_of(encoder, "target_encoder")
            self.target_projector = ema.copy_of(self.projector, "target_projector")
            for network in (self.target_encoder, self.target_projector):
                compat.freeze_but_keep_batch_statistics(network)
            small_maps.multiply_on_small_maps(self.target_encoder)
        small_maps.multiply_on_small_maps(encoder)
        self.target_decay = TargetDecay()
        self.ema_encoder: keras.Model | None = None
        if weight_ema is not None:
            self.keep_weight_ema(weight_ema)

        counter = {"dtype": "int64", "trainable": False, "aggregation": "only_first_replica"}
        self.kernel_scale = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(kernel_scale),
            trainable=False,
            dtype="float32",
            # The same on all replicas: the sum of their gradients moves it.
            aggregation="only_first_replica",
            constraint=lambda scale: tf.maximum(scale, kernels.MIN_SCALE),
            name="kernel_scale",
        )
        self.step = self.add_weight(shape=(), initializer="zeros", name="step", **counter)
        # First step with a loss that is not finite, first step with a label outside of the classes; -1 for none.
        self.first_faults = self.add_weight(
            shape=(2,), initializer=keras.initializers.Constant(-1), name="first_faults", **counter
        )
        self._monitor = Monitor()
        self._spec: Any = None  # of the batches that the training function was traced for
        self.built = True

    # Compiling --------------------------------------------------------------------------------------------------

    def compile(
        self,
        optimizer="lars",
        loss: keras.losses.Loss | None = None,
        kernel_optimizer="adam",
        jit_compile: bool | str = "auto",
        steps_per_execution: int = 1,
        run_eagerly: bool = False,
    ) -> None:
        """Chooses what the training step optimises, and how.

        Args:
            optimizer: for the networks and the online classifier; any Keras optimizer. `LARS()` by default.
            loss: `losses.SSLHSICLoss` (by default) or `losses.InfoNCELoss`.
            kernel_optimizer: for the kernel scale; "adam" is Adam with the released code's 3e-4.
            jit_compile: compile the step with XLA. "auto" does so on a single accelerator.
            steps_per_execution: training steps in one call of the device program.
            run_eagerly: run without a graph, for debugging.

        Raises:
            ValueError: if XLA is asked for under a distribution strategy.
        """
        distributed = self._distribute_strategy is not None
        if jit_compile is True and distributed:
            raise ValueError(
                f"jit_compile=True cannot be used under {type(self._distribute_strategy).__name__}: a strategy compiles its "
                "replicas by itself, and XLA has no device for the host's part of the step. Leave jit_compile='auto'."
            )
        loss = losses.SSLHSICLoss() if loss is None else loss
        if not hasattr(loss, "terms"):
            raise ValueError(
                f"loss must be keras_sslhsic.losses.SSLHSICLoss or InfoNCELoss (an object with a method `terms`), got {loss!r}."
            )
        self.objective = loss
        if optimizer == "lars":
            optimizer = lars.LARS()
        self.kernel_optimizer = (
            keras.optimizers.Adam(3e-4) if kernel_optimizer == "adam" else kernel_optimizer
        )
        super().compile(
            optimizer=optimizer,
            jit_compile=False if distributed else jit_compile,
            steps_per_execution=steps_per_execution,
            run_eagerly=run_eagerly,
        )
        compat.prepare_optimizer(self.optimizer, self.online_variables)
        compat.prepare_optimizer(self.kernel_optimizer, [self.kernel_scale])

    def get_compile_config(self):
        return {
            "optimizer": keras.optimizers.serialize(
                getattr(self.optimizer, "inner_optimizer", self.optimizer)
            ),
            "kernel_optimizer": keras.optimizers.serialize(self.kernel_optimizer),
            "loss": keras.saving.serialize_keras_object(self.objective),
            "steps_per_execution": self.steps_per_execution,
            "run_eagerly": self.run_eagerly,
        }

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    # Networks ---------------------------------------------------------------------------------------------------

    def __call__(self, images, *args, **kwargs):
        if tf.executing_eagerly() and not keras.utils.is_keras_tensor(images):
            inputs.check_call(images, self.encoder.input_shape[1:])
        return super().__call__(images, *args, **kwargs)

    def predict(self, x, *args, **kwargs):
        """Features of images, as `keras.Model.predict`.

        Args:
            x: uint8 [N, H, W, C], or float in [0, 1]; a dict with such an array; or a finite dataset of batches.
            *args: as in `keras.Model.predict`.
            **kwargs: likewise.
        """
        inputs.check_given(x, self.encoder.input_shape[1:])
        return super().predict(x, *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        """The metrics of images without training on them, as `keras.Model.evaluate`.

        Args:
            x: as in `predict`. The last batch counts as much as the others, however small it is.
            *args: as in `keras.Model.evaluate`.
            **kwargs: likewise.
        """
        inputs.check_given(x, (None, None, self.encoder.input_shape[-1]), least=2, crops=True)
        return super().evaluate(x, *args, **kwargs)

    def call(self, images, training=False):
        """Features of the encoder, float32 [B, F], for uint8 images or float images in [0, 1], or a dict of them."""
        if isinstance(images, dict):
            images, _ = inputs.unpack(images)
        return self.encoder(policy.prepare(images, self.policy), training=training)

    def keep_weight_ema(self, decay: float) -> None:
        """Keeps a moving average of the encoder's weights in `ema_encoder` from now on."""
        if self.ema_encoder is None:
            self.ema_encoder = ema.copy_of(self.encoder, "ema_encoder")
            self.ema_encoder.trainable = False
        self.weight_ema = decay

    @property
    def evaluation_encoder(self) -> keras.Model:
        """The encoder to evaluate and keep: the moving average if there is one, else the online encoder."""
        return self.encoder if self.ema_encoder is None else self.ema_encoder

    def _project(self, encoder, projector, images, training):
        """(features [B, F], projections [B, Q]) of one view; one pass a view keeps its batch statistics apart."""
        features = encoder(images, training=training)
        return features, projector(features, training=training)

    def _hiddens(self, image_views, training):
        """(z [B, M, Q] of unit norm, features of the first view [B, F])."""
        online = [self._project(self.encoder, self.projector, x, training) for x in image_views]
        outputs = [projection for _, projection in online]
        if self.target:
            outputs = [self.predictor(x, training=training) for x in outputs]
            outputs += self._target_projections(image_views, training)
        z = losses.unit_norm(tf.stack([tf.cast(x, tf.float32) for x in outputs], axis=1))
        return z, online[0][0]

    def _target_projections(self, image_views, training):
        return [
            tf.stop_gradient(self._project(self.target_encoder, self.target_projector, x, training)[1])
            for x in image_views
        ]

    # Steps ------------------------------------------------------------------------------------------------------

    def _views(self, images, seed):
        """The views of a batch; each replica draws its own."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = tf.random.fold_in(seed, replica, alg="philox")
        if isinstance(images, tuple):
            return policy.finish_views(images, self.policy, seed)
        return policy.make_views(images, self.policy, seed)

    def _seeds(self):
        """(seed of the views, seed of the loss), int32 [2] each, of the current step."""
        seed = tf.stack([tf.constant(self.seed, tf.int32), tf.cast(compat.tensor(self.step), tf.int32)])
        return tf.unstack(tf.random.split(seed, 2, alg="philox"))

    def _classify(self, features, labels):
        """(mean cross-entropy, accuracy) of the online classifier on one view of the local batch."""
        logits = self.classifier(tf.stop_gradient(features))
        last = logits.shape[-1] - 1
        cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.clip_by_value(labels, 0, last), logits=logits
        )
        correct = tf.cast(tf.equal(tf.argmax(logits, -1, output_type=labels.dtype), labels), tf.float32)
        return tf.reduce_mean(cross_entropy), tf.reduce_mean(correct)

    def _evaluate_batch(self, data, training):
        """Loss (its mean over the replicas is the total), loss terms, z and labels of one batch."""
        images, labels = inputs.unpack(data)
        labels = None if labels is None else tf.cast(tf.reshape(labels, [-1]), tf.int32)
        view_seed, loss_seed = self._seeds()
        z, features = self._hiddens(self._views(images, view_seed), training)
        if z.shape[1] < 2:
            raise ValueError(
                f"The loss needs at least two views of every image, found {z.shape[1]}: give more views, or train with a "
                "target network."
            )
        terms = dict(self.objective.terms(z, loss_seed, tf.stop_gradient(compat.tensor(self.kernel_scale))))
        loss = terms["loss"]
        if self.classifier is not None and labels is not None:
            terms["classifier_loss"], terms["online_accuracy"] = self._classify(features, labels)
            loss += terms["classifier_loss"]
        return loss, terms, z, labels

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss, terms, z, labels = self._evaluate_batch(data, training=True)
            # Every replica holds the loss of the global batch, and the gradients are summed over the replicas.
            scaled = self.optimizer.scale_loss(loss / replicas.num_replicas())
        gradients = tape.gradient(scaled, self.online_variables)
        # Batches without labels leave the classifier out.
        gradients = [
            tf.zeros(v.shape) if g is None else g
            for g, v in zip(gradients, self.online_variables, strict=True)
        ]
        gradients = compat.sum_over_replicas(gradients)
        terms["grad_norm"] = tf.linalg.global_norm(gradients) / compat.loss_scale(self.optimizer)
        terms["feature_std"], terms["effective_rank"] = diagnostics.feature_spread(z[:, 0])
        terms["learning_rate"] = compat.learning_rate(self.optimizer)

        self.optimizer.apply(gradients)
        self._learn_kernel_scale(z)
        step = compat.tensor(self.step)
        if self.target:
            terms["tau"] = self.target_decay(step)
            ema.update(self.target_variables, self.target_sources, terms["tau"])
        if self.ema_encoder is not None:
            self._update_weight_ema()
        if self._has_kernel:
            terms["kernel_scale"] = tf.convert_to_tensor(compat.tensor(self.kernel_scale))
        self._note_faults(loss, labels)
        self.step.assign_add(1)
        return compat.step_results(self, self._monitor.update(terms))

    def test_step(self, data):
        _, terms, z, _ = self._evaluate_batch(data, training=False)
        terms["feature_std"], terms["effective_rank"] = diagnostics.feature_spread(z[:, 0])
        return compat.step_results(self, self._monitor.update(terms))

    def _learn_kernel_scale(self, z):
        """One step of the kernel's optimizer; both tapes are apart, so a loss scale does not touch this one."""
        if not (self.learn_kernel_scale and self._has_kernel and self.objective.kernel.learnable_scale):
            return
        scale = tf.convert_to_tensor(compat.tensor(self.kernel_scale))
        with tf.GradientTape() as tape:
            tape.watch(scale)
            entropy = kernels.scale_entropy(self.objective.kernel.with_scale(scale), z)
        gradients = compat.sum_over_replicas([-tape.gradient(entropy, scale) / replicas.num_replicas()])
        self.kernel_optimizer.apply(gradients)

    @property
    def _has_kernel(self):
        return getattr(self.objective, "kernel", None) is not None

    @property
    def target_variables(self):
        """Variables of the target that follow the online network; its batch statistics are its own."""
        return ema.parameters(self.target_encoder) + ema.parameters(self.target_projector)

    @property
    def target_sources(self):
        """Variables that `target_variables` follow, in the same order."""
        return ema.parameters(self.encoder) + ema.parameters(self.projector)

    def _update_weight_ema(self):
        ema.update(ema.parameters(self.ema_encoder), ema.parameters(self.encoder), self.weight_ema)
        # The batch statistics are averages already.
        ema.update(ema.statistics(self.ema_encoder), ema.statistics(self.encoder), 0.0)

    def _note_faults(self, loss, labels):
        faults = [~tf.math.is_finite(loss)]
        outside = False
        if self.classifier is not None and labels is not None:
            outside = tf.reduce_any((labels < 0) | (labels >= self.num_classes))
            outside = replicas.all_sum(tf.cast(outside, tf.float32)) > 0.0
        faults = tf.stack([faults[0], tf.convert_to_tensor(outside)])
        first = compat.tensor(self.first_faults)
        self.first_faults.assign(tf.where(faults & (first < 0), compat.tensor(self.step), first))

    @property
    def metrics_names(self):
        """Names of what `evaluate` returned last, in its order."""
        return list(self.get_metrics_result())

    @property
    def metrics(self):
        return list(self._monitor.metrics.values()) if hasattr(self, "_monitor") else []

    def get_metrics_result(self):
        """What has a value: validation has no learning rate, and steps without labels no accuracy."""
        return self._monitor.results()

    # Fitting ----------------------------------------------------------------------------------------------------

    def fit(self, x=None, y=None, batch_size=None, epochs=1, initial_epoch=0, callbacks=None, **kwargs):
        """Trains; see `keras.Model.fit`.

        Args:
            x: `data.Images`, a `tf.data.Dataset` (see the class), or a uint8 array [N, H, W, C], or a dict of arrays.
            y: integer labels [N] when x is an array; optional.
            batch_size: for arrays; 256 by default.
            epochs: index of the last epoch.
            initial_epoch: where to start. With `callbacks.Checkpoint`, training goes on from the last checkpoint.
            callbacks: as in Keras. `callbacks.TargetEMA`, `StopOnFault` and `WatchCollapse` are added if they are missing.
            **kwargs: passed on to `keras.Model.fit`.

        Raises:
            ValueError: for a data set smaller than the batch, float images, images that do not suit the encoder or the views, a
                batch of one image, or one that the replicas cannot share.
            lock.InUseError: if another process trains into the directory of a `callbacks.Checkpoint`.
        """
        checks.integer("epochs", epochs, 1)
        if kwargs.get("validation_split"):
            raise ValueError(
                "validation_split is not supported: hold images back yourself, and give them as validation_data, a dataset."
            )
        callbacks = list(callbacks or [])
        with contextlib.ExitStack() as stack:
            for callback in callbacks:
                if isinstance(callback, Checkpoint):
                    stack.enter_context(callback.alone(self))
            return self._fit(x, y, batch_size, epochs, initial_epoch, callbacks, **kwargs)

    def _fit(self, x, y, batch_size, epochs, initial_epoch, callbacks, **kwargs):
        """`fit`, when no other process writes to its checkpoints."""
        checkpoints = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
        for checkpoint in checkpoints:
            initial_epoch = max(initial_epoch, checkpoint.restore(self))
        batch_size = 256 if batch_size is None else batch_size
        data = inputs.training_data(x, y, batch_size, self.seed, initial_epoch, self.distribute_strategy)
        for checkpoint in checkpoints:
            checkpoint.train_on(data.num_images)
        inputs.check(
            data,
            self.distribute_strategy.num_replicas_in_sync,
            self.encoder.input_shape[1:],
            self.policy,
        )
        self._warn_of_gamma(data)
        if data.steps_per_epoch is not None:
            kwargs.setdefault("steps_per_epoch", data.steps_per_epoch)
        kwargs["shuffle"] = False  # datasets shuffle by themselves
        for kind in (StopOnFault, WatchCollapse) + ((TargetEMA,) if self.target else ()):
            if not any(isinstance(callback, kind) for callback in callbacks):
                callbacks.append(kind())
        if self._spec != data.element_spec:
            # Traced anew: TensorFlow would make general in size whatever differs, and the views need static shapes.
            self._spec, self.train_function = data.element_spec, None
        return super().fit(
            data.dataset, epochs=epochs, initial_epoch=initial_epoch, callbacks=callbacks, **kwargs
        )

    def _warn_of_gamma(self, dataset):
        """Warns where the loss is least for collapsed outputs, since batches are so small."""
        spec = getattr(dataset, "element_spec", None)
        if self.target or spec is None or not isinstance(self.objective, losses.SSLHSICLoss):
            return
        images, _ = inputs.unpack(spec)
        crops = images if isinstance(images, tuple) else (images,) * self.policy.num_views
        size, views, gamma = crops[0].shape[0], len(crops), self.objective.gamma
        if views > 1 and gamma > (bound := self.objective.largest_ratio(size, views)):
            warnings.warn(
                f"gamma is {gamma:g}, but hsic_zy / sqrt(hsic_zz) of {size} images in {views} views is never above "
                f"{bound:.3g}: the loss is least where all outputs are equal. Give a smaller gamma or a larger batch, or train "
                "with a target network.",
                stacklevel=4,
            )

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Nothing: every variable is there already, and Keras' way cannot average a dict over several workers."""

    # Configuration ----------------------------------------------------------------------------------------------

    def get_config(self):
        config = super().get_config()
        config.update(
            encoder=keras.saving.serialize_keras_object(self.encoder),
            projector_hidden=self.projector_hidden,
            projection_dim=self.projection_dim,
            target=self.target,
            views=self.policy.to_dict(),
            num_classes=self.num_classes,
            kernel_scale=self.initial_kernel_scale,
            learn_kernel_scale=self.learn_kernel_scale,
            batch_norm_output=self.batch_norm_output,
            weight_ema=self.weight_ema,
            seed=self.seed,
        )
        return config

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        config["encoder"] = keras.saving.deserialize_keras_object(config["encoder"])
        # Earlier versions took smaller initial scales; the scale that was reached is among the weights.
        config["kernel_scale"] = max(config.get("kernel_scale", 1.0), kernels.MIN_SCALE)
        return cls(**config)
