"""The training of an encoder without labels, whatever the method and the loss."""

import contextlib
import dataclasses
import functools
import reprlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_sslhsic import checks, compat
from keras_sslhsic.data.images import Images, unpack
from keras_sslhsic.data.python_map import as_raised
from keras_sslhsic.encoders import copying
from keras_sslhsic.hsic import replicas
from keras_sslhsic.losses import Hiddens, Objective
from keras_sslhsic.training import (
    classifier,
    diagnostics,
    inputs,
    lars,
    older_files,
    penalties,
    state,
    streams,
)
from keras_sslhsic.training.callbacks import StopOnFault, ViewSizes, WatchCollapse, WatchRate, WeightEMA
from keras_sslhsic.training.checkpoint import Checkpoint
from keras_sslhsic.training.chunks import Encoded, of_batch
from keras_sslhsic.training.encoding import EncodingModel, unit_range
from keras_sslhsic.training.monitor import Monitor
from keras_sslhsic.training.strategy import check_scope, warn_of_own_statistics
from keras_sslhsic.views import policy
from keras_sslhsic.views.draws import ALL, Share
from keras_sslhsic.words import warn


class Trainer(EncodingModel):
    """Trains an encoder on views of images: the base of all methods, which say what networks follow it.

    A step draws views, has the method make hiddens of them and the loss (an `Objective`) terms of the hiddens, descends the
    loss, and moves what else there is: the loss's state, a target, the average of the weights. Every random number is a
    function of (`seed`, step), so that equal seeds give equal runs and no two steps see the same views.

    `fit` takes batches {"image": [B, H, W, C], "label": int [B] (optional)}, bare image batches, or (image, label); or crops
    already made, {"view1", "view2"} (uint8, or float in [0, 1]). Images are uint8, or other numbers in [0, 255], everywhere.
    Calling the model on them gives features, float32 [B, F]. That, `predict`, `evaluate`, probes, saving and exports use
    `evaluation_encoder`: the moving average of `encoder` if one is kept (`weight_ema`), else `encoder` itself.

    A method sets the attributes below, and defines `hiddens` and `online_networks`; see `methods.Method`.

    Args:
        encoder: keras.Model from normalised float images [B, S, S, C] to features [B, F].
        views: "byol", "simclr", a `views.ViewPolicy` or its config; None takes the given views as they are and only
            normalises them.
        seed: any integer; it counts modulo 2^32.

    Raises:
        ValueError: for values outside of these ranges, or of another type.
    """

    default_loss: type[Objective]  # where `compile` is given none
    projection_dim: int  # Q, the size of the outputs that the loss sees
    target = False  # whether a target network follows
    predictor: Any = None  # what the online network ends in
    latest: Sequence[str] = ("learning_rate",)  # metrics that are shown as they are at a step

    num_classes: int | None = None
    classifier: Any = None
    chunks = 1
    steps_per_execution: int  # of one call of the device program
    view_size: int | None = None  # in training, where it is not that of the policy

    def __init__(self, encoder: keras.Model, views: Any = "byol", seed: int = 0, **kwargs: Any):
        checks.integer("seed", seed, -(2**63), most=2**63 - 1)
        older_files.refuse_moved(kwargs)
        super().__init__(encoder, views, **kwargs)
        self.seed = seed
        counter = {"dtype": "int64", "trainable": False, "aggregation": "only_first_replica"}
        self.step = self.add_weight(shape=(), initializer="zeros", name="step", **counter)
        # First step with a loss that is not finite, first step with a label outside of the classes; -1 for none.
        self.first_faults = self.add_weight(
            shape=(2,), initializer=keras.initializers.Constant(-1), name="first_faults", **counter
        )
        self._monitor = Monitor()
        # Of the batches that the functions of training and evaluation were traced for.
        self._spec: Any = None
        self._test_spec: Any = None
        self.built = True

    def add_classifier(self, num_classes: int | None) -> None:
        """Adds the online linear classifier, which is trained where batches hold labels; None adds none."""
        checks.integer("num_classes", num_classes, 2, optional=True)
        if num_classes is not None:
            self.num_classes = int(num_classes)
            self.classifier = classifier.linear_classifier(self.encoder.output_shape[-1], self.num_classes)

    # What a method defines --------------------------------------------------------------------------------------

    def hiddens(self, views: Sequence[tf.Tensor], training: bool) -> tuple[Hiddens, tf.Tensor]:
        """What the networks make of the views: what the loss compares, and features [B, F] of the first view.

        Args:
            views: normalised images [B, S, S, C], one batch a view.
            training: whether this is a step of training, of `encoder`; else `evaluation_encoder` is looked at.
        """
        raise NotImplementedError

    def prepare(self) -> None:
        """Does what `compile` has to do with the method's networks, before it reads what is trainable."""

    def copies(self) -> list[tuple[keras.Model, keras.Model]]:
        """The networks that follow another one, each as (the other one, its copy)."""
        return [] if self.ema_encoder is None else [(self.encoder, self.ema_encoder)]

    def follow(self, moved: tf.Tensor) -> dict[str, tf.Tensor]:
        """Moves what follows the online networks, after the optimizer's step; returns scalars for the logs.

        Args:
            moved: whether that step moved the weights; one that only accumulates gradients does not.
        """
        return {}

    def default_callbacks(self) -> list[keras.callbacks.Callback]:
        """What `fit` adds, unless one of its kind is given."""
        return [StopOnFault(), WatchCollapse(), WatchRate()]

    @property
    def online_networks(self) -> list[keras.Model]:
        """What the optimizer trains, in one fixed order."""
        raise NotImplementedError

    # Compiling --------------------------------------------------------------------------------------------------

    def compile(
        self,
        optimizer: Any = "lars",
        loss: Objective | None = None,
        jit_compile: bool | str = "auto",
        steps_per_execution: int = 1,
        run_eagerly: bool = False,
        chunks: int = 1,
        auto_scale_loss: bool = True,
        **others: Any,
    ) -> None:
        """Chooses what the training step optimises, and how; which layers are `trainable` is read now.

        Args:
            optimizer: for the networks and the online classifier; any Keras optimizer. `LARS()` by default. Where it
                accumulates gradients, target and averages follow its updates; the loss's own state moves with each batch.
            loss: one of `losses`; the method's own by default. It belongs to this model from now on.
            jit_compile: compile the step with XLA. "auto" does so on a single accelerator.
            steps_per_execution: training steps in one call of the device program; `fit` takes the most up to it that divide
                the steps of an epoch.
            run_eagerly: run without a graph, for debugging.
            chunks: parts of the batch, or of each replica's share, that go through the networks one after the other; the loss
                is that of the whole batch: its gradient in the memory of a part, for one more forward pass. The statistics of
                BatchNorm are then those of a part. See `training.chunks`.
            auto_scale_loss: whether the loss is scaled where a network computes in float16 (mixed_float16), as in Keras.
            **others: of Keras, with the value that stands for nothing there.

        The state of the loss (the kernel's scale, prototypes) begins anew, as that of the optimizer does: to change the rate
        of learning alone, set `model.optimizer.learning_rate`.

        Raises:
            ValueError: if XLA is asked for under a distribution strategy, or the loss does not suit the method; for metrics
                and whatever else of Keras's `compile` this one does not take; in the scope of a strategy that the model was
                not made in.

        Warns:
            UserWarning: of BatchNormalization layers that are not synchronised over the replicas there are.
        """
        older_files.refuse_moved(others)
        if foreign := [name for name, value in others.items() if value not in (None, [], (), {}, False)]:
            raise ValueError(
                "Expected optimizer, loss, jit_compile, steps_per_execution, run_eagerly, chunks or auto_scale_loss, found "
                f"{', '.join(foreign)}: what is measured without labels is named by the loss (the terms of a "
                "losses.Objective), the rest has no use here."
            )
        checks.integer("steps_per_execution", steps_per_execution, 1)
        checks.integer("chunks", chunks, 1)
        check_scope(self._distribute_strategy, self.variables)
        distributed = self._distribute_strategy is not None
        if jit_compile is True and distributed:
            raise ValueError(
                f"jit_compile=True cannot be used under {type(self._distribute_strategy).__name__}: a strategy compiles its "
                "replicas by itself, and XLA has no device for the host's part of the step. Leave jit_compile='auto'."
            )
        loss = self.default_loss() if loss is None else loss
        if not isinstance(loss, Objective):
            raise ValueError(
                f"loss must be one of keras_sslhsic.losses, such as SSLHSICLoss() (a losses.Objective), found {loss!r}."
            )
        optimizer = lars.LARS() if optimizer == "lars" else keras.optimizers.get(optimizer)
        if optimizer is None:
            raise ValueError("optimizer must be a Keras optimizer, found None: leave it out for LARS.")
        self._begin()
        self.prepare()
        if auto_scale_loss:
            optimizer = compat.loss_scaled(optimizer, self.online_networks)
        warn_of_own_statistics(self.online_networks, self.distribute_strategy)
        with self.distribute_strategy.scope():
            loss.build_for(self, self.projection_dim)
        self.objective = loss
        # Keras keeps what is its own, and tf.train.Checkpoint what it finds in attributes.
        self._loss_state = tf.train.Checkpoint(variables=[v.value for v in loss.variables])
        self.chunks = int(chunks)
        super().compile(
            optimizer=optimizer,
            jit_compile=False if distributed else jit_compile,
            steps_per_execution=steps_per_execution,
            run_eagerly=run_eagerly,
            auto_scale_loss=False,
        )
        compat.prepare_optimizer(self.optimizer, self.trained_variables)

    def get_compile_config(self) -> dict[str, Any] | None:
        """What `compile_from_config` needs; None before `compile`."""
        if not self.compiled:
            return None
        return {
            "optimizer": keras.optimizers.serialize(self.optimizer),
            "loss": keras.saving.serialize_keras_object(self.objective),
            "steps_per_execution": self.steps_per_execution,
            "run_eagerly": self.run_eagerly,
            "chunks": self.chunks,
        }

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compiles as the model of the config was, whose optimizer scales the loss already, or was not to."""
        self.compile(**keras.saving.deserialize_keras_object(config), auto_scale_loss=False)

    @property
    def online_variables(self) -> list[keras.Variable]:
        """What the optimizer trains of the networks and the classifier."""
        networks = [*self.online_networks, self.classifier]
        return [v for network in networks if network is not None for v in network.trainable_variables]

    @property
    def trained_variables(self) -> list[keras.Variable]:
        """Everything that the optimizer trains: `online_variables`, and those of the loss that are trainable."""
        return self.online_variables + [v for v in self.objective.variables if v.trainable]

    @property
    def weights(self) -> list[keras.Variable]:
        """As in Keras, and after them the state of the loss: who keeps weights and puts them back means both."""
        return super().weights + state.of_objective(self)

    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """As in Keras; between a model that is compiled and one that is not, without the state of the loss."""
        of_networks = len(super().weights)
        if len(weights) == of_networks:
            weights = [*weights, *self.get_weights()[of_networks:]]
        super().set_weights(weights if self.compiled else weights[:of_networks])

    @as_raised()
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: str | int = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The metrics of images without training on them, as `keras.Model.evaluate`.

        Batches count by their sizes. Left out is what cannot be measured: a last batch of one image, and what several
        replicas cannot share evenly.

        Args:
            x: as in `fit`; the batches need not be of one size. Of a data set of `keras_sslhsic.data` all images, once.
            y: labels of arrays, int [N]; optional.
            batch_size: of arrays, 32 by default.
            verbose: as in Keras.
            sample_weight: None; training without labels weighs no images.
            steps: batches to read; None reads all.
            callbacks: as in Keras.
            return_dict: values by name, or a list in the order of `metrics_names`.
            **kwargs: of Keras.

        Raises:
            ValueError: as `fit`, and for batches without end if `steps` is None.
        """
        if not kwargs.get(
            "_use_cached_eval_dataset"
        ):  # what `fit` validates on is looked at before it begins
            self._refuse(sample_weight=sample_weight)
            x = self._to_evaluate(x, y, batch_size, steps)
        with warnings.catch_warnings():
            if steps is None:  # to the end of the batches, and it is no surprise
                warnings.filterwarnings("ignore", message="Your input ran out of data")
            results = super().evaluate(
                x, verbose=verbose, steps=steps, callbacks=callbacks, return_dict=True, **kwargs
            )
        return self._in_order(results, return_dict)

    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """One step of training on the arrays of a batch, looked at as `fit` does; see `keras.Model.train_on_batch`.

        Raises:
            ValueError: as `fit`, and over several replicas, of which each would be given the whole batch.
        """
        self._refuse(class_weight=class_weight, sample_weight=sample_weight)
        if (count := self.distribute_strategy.num_replicas_in_sync) > 1:
            raise ValueError(
                f"Expected one replica, found {count}, and train_on_batch would give each the whole batch: use fit."
            )
        batch = streams.one_batch(x, y)
        self._check(batch)
        self._begin()
        self._trace_for(batch.element_spec)
        results = super().train_on_batch(next(iter(batch.batches(epochs=1))), return_dict=True)
        return self._in_order(results, return_dict)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False
    ) -> Any:
        """`evaluate` of the arrays of a batch."""
        self._refuse(sample_weight=sample_weight)
        return self.evaluate(streams.one_batch(x, y), verbose=0, return_dict=return_dict)

    def _in_order(self, results: Mapping[str, Any], return_dict: bool) -> Any:
        results = {name: float(value) for name, value in results.items()}  # Keras before 3.14 gives tensors
        return results if return_dict else [results[name] for name in self.metrics_names]

    def _check(self, given: streams.Given) -> None:
        """Raises a ValueError for what cannot be trained, or trained on."""
        if (name := compat.quantized_layer(self.online_networks)) is not None:
            raise ValueError(
                f"The layer {name!r} is quantized, and its weights do not train: train first, then quantize the "
                "serving_encoder()."
            )
        if not self.online_variables:
            raise ValueError(
                "No weight of the networks is trainable, and training would change nothing: set trainable = True before "
                "compile()."
            )
        check_scope(self._distribute_strategy)
        count = self.distribute_strategy.num_replicas_in_sync
        inputs.check(given, count, self.encoder.input_shape[1:], self.policy, chunks=self.chunks)
        inputs.look(given, num_classes=self.num_classes)

    def _begin(self) -> None:
        """Before the first step copies begin anew, where their networks were given other weights since, and they were not."""
        if int(self.step.numpy()) == 0:
            for network, twin in self.copies():
                copying.copy_again(network, twin)

    def _trace_for(self, spec: Any) -> None:
        """Has the step traced anew for other batches: TensorFlow would make general in size whatever differs, and the views
        need static shapes."""
        if self._spec != spec:
            self._spec, self.train_function = spec, None

    def _execute(self, steps: int) -> None:
        """Has one call of the device program make so many steps."""
        self.steps_per_execution = steps
        self.train_function = self.test_function = self.predict_function = None

    def _dividing(self, steps: int) -> int:
        """The most steps of a call, up to those that were asked for, that divide an epoch: Keras would run past its end, into
        the images of the next one."""
        most = min(self.steps_per_execution, steps)
        found = next(n for n in range(most, 0, -1) if steps % n == 0)
        if found < most:
            warn(
                f"The {steps} steps of an epoch are no multiple of steps_per_execution, {most}: a call makes {found}, the most "
                "that divide them.",
            )
        return found

    def _to_evaluate(self, x: Any, y: Any, batch_size: int | None, steps: int | None) -> Any:
        """What Keras evaluates, looked at."""
        count = self.distribute_strategy.num_replicas_in_sync
        x = streams.given(x, y, steps, batch_size=batch_size or 32, shuffle=False, drop_remainder=False)
        inputs.check(x, count, self.encoder.input_shape[1:], self.policy, training=False)
        inputs.look(x, least=max(2, count), num_classes=self.num_classes)
        data = streams.to_evaluate(x, count)
        if self._test_spec != data.element_spec:
            self._test_spec, self.test_function = data.element_spec, None
        return data

    def _refuse(self, **given: Any) -> None:
        """Raises a ValueError before compilation, and for arguments of Keras that have no meaning without labels."""
        if not self.compiled:
            raise ValueError("The model is not compiled: call compile() before.")
        advice = {
            "validation_split": "hold images back yourself, and give them as validation_data, a dataset",
            "class_weight": "training without labels weighs no classes",
            "sample_weight": "training without labels weighs no images",
        }
        for name, value in given.items():
            if np.ndim(value) or value:
                raise ValueError(f"{name} is not supported: {advice[name]}.")

    # Steps ------------------------------------------------------------------------------------------------------

    def set_view_size(self, size: int) -> None:
        """Has the step of training, which is traced anew then, make views of another side in pixels."""
        if size != (self.view_size or self.policy.size):
            self.view_size = size
            self.train_function = None
            self.make_train_function()

    def _views(
        self, images: Any, seed: tf.Tensor, share: Share = ALL, size: int | None = None
    ) -> tuple[tf.Tensor, ...]:
        """The views that images have in the whole batch, of which they are a replica's, or a share of those."""
        context = tf.distribute.get_replica_context()
        number, parts = share
        share = context.replica_id_in_sync_group * parts + number, context.num_replicas_in_sync * parts
        # As the views of the first replica began, when each had a seed of its own.
        seed = tf.random.fold_in(seed, 0, alg="philox")
        if isinstance(images, tuple):
            return policy.finish_views(images, self.policy, seed, share)
        how = dataclasses.replace(self.policy, size=size or self.policy.size)
        return policy.make_views(unit_range(images), how, seed, share)

    def _seeds(self) -> list[tf.Tensor]:
        """(seed of the views, seed of the loss), int32 [2] each, of the current step."""
        seed = tf.stack([tf.constant(self.seed, tf.int32), tf.cast(self.step.value, tf.int32)])
        return tf.unstack(tf.random.split(seed, 2, alg="philox"))

    def _labels(self, labels: Any) -> tf.Tensor | None:
        """The labels of a batch that the online classifier learns from, int32 [B]; None for none."""
        if self.classifier is None or labels is None:
            return None
        return tf.cast(tf.reshape(labels, [-1]), tf.int32)

    def _encode(self, images: Any, share: Share, seed: tf.Tensor, training: bool) -> Encoded:
        """What the networks make of views of images, a share of the batch."""
        with compat.losses_of_layers(self):
            views = self._views(images, seed, share, self.view_size if training else None)
            hiddens, features = self.hiddens(views, training)
            of_layers = penalties.added([*self.online_networks, self.ema_encoder])
        return Encoded(hiddens, features, tf.convert_to_tensor(of_layers))

    def _measure(
        self, encoded: Encoded, labels: tf.Tensor | None, seed: tf.Tensor
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Loss (its mean over the replicas is the total) and metrics of one batch."""
        terms = dict(self.objective.terms(encoded.hiddens, seed))
        if "loss" not in terms:
            raise ValueError(
                f'The terms of {type(self.objective).__name__} must have a "loss", found {", ".join(terms) or "none"}.'
            )
        loss = terms["loss"] = terms["loss"] + encoded.of_layers
        if labels is not None:
            terms |= classifier.classify(self.classifier, encoded.features, labels)
            loss += terms["classifier_loss"]
        terms |= diagnostics.of_outputs(encoded.hiddens.online)
        return loss, terms

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One step of training on a batch; returns the metrics so far."""
        variables = self.trained_variables
        images, labels = unpack(data)
        labels = self._labels(labels)
        view_seed, loss_seed = self._seeds()
        measured: list[Any] = []

        def scaled_loss(encoded: Encoded) -> tf.Tensor:
            measured[:] = self._measure(encoded, labels, loss_seed)
            # Every replica holds the loss of the global batch, and the gradients are summed over the replicas.
            return self.optimizer.scale_loss(measured[0] / replicas.num_replicas())

        encode = functools.partial(self._encode, seed=view_seed, training=True)
        gradients, encoded = of_batch(self, encode, scaled_loss, images, variables, self.chunks)
        loss, terms = measured
        # Batches without labels leave the classifier out.
        gradients = [
            tf.zeros(v.shape, v.dtype) if g is None else g for g, v in zip(gradients, variables, strict=True)
        ]
        gradients = compat.sum_over_replicas(gradients)
        terms["grad_norm"] = tf.linalg.global_norm(
            [tf.cast(gradient, tf.float32) for gradient in gradients]
        ) / compat.loss_scale(self.optimizer)
        terms["learning_rate"] = compat.learning_rate(self.optimizer)

        before = compat.updates(self.optimizer)
        self.optimizer.apply(gradients, variables)
        moved = compat.updates(self.optimizer) > before
        terms |= self.objective.update(encoded.hiddens) | self.follow(moved)
        if self.ema_encoder is not None:
            self.update_weight_ema(moved)
        self._note_faults(loss, labels)
        self.step.assign_add(1)
        return self._report(terms)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """The metrics of a batch, of the evaluation encoder."""
        images, labels = unpack(data)
        labels, (view_seed, loss_seed) = self._labels(labels), self._seeds()
        encoded = self._encode(images, ALL, view_seed, training=False)
        _, terms = self._measure(encoded, labels, loss_seed)
        if self.num_classes is not None and labels is not None:
            outside = classifier.any_outside(labels, self.num_classes)
            own = ("classifier_loss", "online_accuracy")
            terms |= {name: tf.where(outside, np.nan, terms[name]) for name in own}
        return self._report(terms, tf.shape(encoded.hiddens.online)[0])

    def _report(self, terms: Mapping[str, tf.Tensor], weight: Any = 1.0) -> dict[str, tf.Tensor]:
        self._monitor.update_state(terms, (*self.latest, *self.objective.latest), weight)
        results = self._monitor.result()
        return compat.step_results(self, {name: results[name] for name in terms})

    def _note_faults(self, loss: tf.Tensor, labels: tf.Tensor | None) -> None:
        outside = tf.constant(False)
        if self.num_classes is not None and labels is not None:
            outside = classifier.any_outside(labels, self.num_classes)
        faults = tf.stack([~tf.math.is_finite(loss), outside])
        first = self.first_faults.value
        self.first_faults.assign(tf.where(faults & (first < 0), self.step.value, first))

    @property
    def metrics_names(self) -> list[str]:
        """Names of what `evaluate` returned last, in its order."""
        return list(self.get_metrics_result())

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """The one metric, which holds what steps report."""
        return [self._monitor] if hasattr(self, "_monitor") else []

    def get_metrics_result(self) -> dict[str, tf.Tensor]:
        """What has a value: validation has no learning rate, and steps without labels no accuracy."""
        return self._monitor.reported()

    # Fitting ----------------------------------------------------------------------------------------------------

    @as_raised()
    @streams.refusing()
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: str | int = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = None,
        class_weight: Any = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
    ) -> keras.callbacks.History:
        """Trains; see `keras.Model.fit`.

        Args:
            x: a data set of `keras_sslhsic.data`; arrays [N, H, W, C], or a dict of them; or batches (see the class) in a
                `tf.data.Dataset`, a `keras.utils.PyDataset` or a generator.
            y: integer labels [N] when x is an array; optional.
            batch_size: for arrays; 256 by default.
            epochs: index of the last epoch. Each `fit` is a training of its own: the target's schedule begins anew, while
                one of the learning rate goes on with its optimizer.
            verbose: as in Keras.
            callbacks: as in Keras. Those of `default_callbacks` are added if they are missing.
            validation_split: 0; give `validation_data`.
            validation_data: what `evaluate` takes, or (x, y); evaluated after every epoch.
            shuffle: of arrays; False leaves them in their order, else they are shuffled in every epoch by `seed`. Data sets
                shuffle by themselves.
            class_weight: None; training without labels weighs no classes.
            sample_weight: None, likewise.
            initial_epoch: where to start; the epochs before it count as trained already. With `callbacks.Checkpoint`,
                training goes on from the last checkpoint, as if it had not stopped.
            steps_per_epoch: batches in an epoch; None takes all there are.
            validation_steps: batches to evaluate; None takes all there are.
            validation_batch_size: of arrays; `batch_size` by default, or 32.
            validation_freq: as in Keras.

        Raises:
            ValueError: for a data set smaller than the batch, or without end and `steps_per_epoch`; images out of range, or
                that do not suit the encoder or the views; a batch of one image, or one that the replicas cannot share; and, in
                any batch, for NaN or infinite values.
            lock.InUseError: if another process trains into the directory of a `callbacks.Checkpoint`.
        """
        checks.integer("epochs", epochs, 1)
        checks.integer("initial_epoch", initial_epoch, 0)
        checks.integer("steps_per_epoch", steps_per_epoch, 1, optional=True)
        self._refuse(
            validation_split=validation_split, class_weight=class_weight, sample_weight=sample_weight
        )
        callbacks = self._with_defaults(callbacks)
        validation = None
        if validation_data is not None:
            pair = validation_data if isinstance(validation_data, tuple) else (validation_data,)
            held_out, labels, weights = (*pair, None, None)[:3]
            self._refuse(sample_weight=weights)
            validation = self._to_evaluate(
                held_out, labels, validation_batch_size or batch_size, validation_steps
            )
        batch_size = 256 if batch_size is None else batch_size
        arrays = {"batch_size": batch_size, "seed": self.seed % 2**32, "shuffle": shuffle is not False}
        given = streams.given(x, y, steps_per_epoch, epochs, **arrays)
        if isinstance(given, compat.Batches):
            given = streams.of_one_size(given)
        self._check(given)
        self._begin()
        self.policy = inputs.of_size_given(given, self.policy)
        sizes = [size for callback in callbacks if isinstance(callback, ViewSizes) for size in callback.sizes]
        if sizes:
            inputs.check_growing(given, self.encoder.input_shape[1:], self.policy, sizes, epochs)
        for callback in callbacks:
            if isinstance(callback, WeightEMA):  # before a checkpoint, which may hold the average
                callback.set_model(self)
        checkpoints = [callback for callback in callbacks if isinstance(callback, Checkpoint)]
        with contextlib.ExitStack() as stack:
            for checkpoint in checkpoints:
                stack.enter_context(checkpoint.alone(self))
            # The newest last, which stays.
            in_turn = sorted(checkpoints, key=lambda checkpoint: checkpoint.epoch)
            restored = max((checkpoint.restore(self) for checkpoint in in_turn), default=0)
            initial_epoch = max(initial_epoch, restored)
            for checkpoint in checkpoints:
                checkpoint.train_on(given if isinstance(given, Images) else None)
            self._warn(given, restored, min([self.policy.size, *sizes]))
            if steps_per_epoch is None and isinstance(given, Images):
                steps_per_epoch = given.steps_per_epoch
            stack.callback(self.set_view_size, self.policy.size)
            if steps_per_epoch is not None and steps_per_epoch % self.steps_per_execution:
                stack.callback(self._execute, self.steps_per_execution)
                self._execute(self._dividing(steps_per_epoch))
            self._trace_for(
                None if isinstance(given, tf.distribute.DistributedDataset) else given.element_spec
            )
            return super().fit(
                streams.to_train(given, initial_epoch * (steps_per_epoch or 0), self.distribute_strategy),
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_data=validation,
                shuffle=False,  # datasets shuffle by themselves
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_freq=validation_freq,
            )

    def _with_defaults(self, callbacks: Any) -> list[keras.callbacks.Callback]:
        """The callbacks of `fit` in a list, and the default ones that are missing among them."""
        given = keras.tree.flatten(callbacks or [])
        if wrong := [one for one in given if not isinstance(one, keras.callbacks.Callback)]:
            raise ValueError(f"callbacks must be objects of keras.callbacks.Callback, found {wrong[0]!r}.")
        if any(isinstance(one, keras.callbacks.BackupAndRestore) for one in given):
            warn(
                "keras.callbacks.BackupAndRestore goes on with the order of images that the first epoch had: use "
                "keras_sslhsic.callbacks.Checkpoint, which goes on as if nothing had stopped.",
            )
        for callback in given:
            if isinstance(callback, keras.callbacks.ModelCheckpoint) and not callback.save_weights_only:
                self._refuse_hdf5(callback.filepath)  # now, not after an epoch
        return given + [
            own for own in self.default_callbacks() if not any(isinstance(one, type(own)) for one in given)
        ]

    def _warn(self, data: streams.Given, restored: int, smallest: int) -> None:
        """Warns of batches that training, on views of this size at least, will not go well on."""
        if restored and not isinstance(data, Images):
            warn(
                f"The checkpoint is of epoch {restored}, and the data set starts again at its own beginning, so that the "
                "weights will not be those of an uninterrupted run: give arrays, or a data set of keras_sslhsic.data "
                "(data.from_arrays, from_folder, from_tfds).",
            )
        if not isinstance(data, tf.distribute.DistributedDataset):
            images, labels = unpack(data.element_spec)
            crops = images if isinstance(images, tuple) else (images,) * self.policy.num_views
            views = dataclasses.replace(self.policy, size=smallest)
            if crops is not images and (message := inputs.aliasing(images, views)):
                warn(message)
            if self.num_classes is not None and labels is None:
                warn(
                    f"No labels came with the images, and the online classifier of {self.num_classes} classes is not trained: "
                    "give labels, or leave num_classes out."
                )
            if message := self.objective.warning(crops[0].shape[0], len(crops), self.target):
                warn(message)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Nothing: every variable is there already, and Keras' way cannot average a dict over several workers."""

    # Saving -----------------------------------------------------------------------------------------------------

    def save_own_variables(self, store: Any) -> None:
        """What the model file has beside the networks and the optimizer: the counters, and the state of the loss."""
        for name, variable in state.own(self).items():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """The inverse of `save_own_variables`; a model that is not compiled has no loss to give a state to."""
        own = state.own(self)
        values = older_files.own_values(store, own)
        if not self.compiled:
            values = {name: value for name, value in values.items() if not name.startswith(state.OBJECTIVE)}
        state.assign(own, values)

    def get_config(self) -> dict[str, Any]:
        """The arguments of `__init__`, and `weight_ema`."""
        return super().get_config() | {
            "encoder": compat.for_older_keras(keras.saving.serialize_keras_object(self.encoder)),
            "views": self.policy.to_dict(),
            "num_classes": self.num_classes,
            "weight_ema": self.weight_ema,
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Trainer":
        """The model of a config.

        Raises:
            ValueError: for what `get_config` does not give.
        """
        cls.check_config(config)
        encoder = keras.saving.deserialize_keras_object(config["encoder"])
        with _dtype_policy(config.get("dtype")):  # what a method builds takes that of the moment
            return cls(**{**config, "encoder": encoder})

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Raises ValueError for the config of something else."""
        if not isinstance(config, Mapping) or "encoder" not in config:
            raise ValueError(
                f"Expected the config of a {cls.__name__}, a mapping with its encoder, as get_config gives it, found "
                f"{reprlib.repr(config)}."
            )


@contextlib.contextmanager
def _dtype_policy(policy: Any) -> Iterator[None]:
    """Layers that are made meanwhile are of this policy."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(keras.dtype_policies.get(policy))
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
