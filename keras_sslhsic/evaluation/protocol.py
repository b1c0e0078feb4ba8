"""Protocols: what each measures, what can be set of it, what data it needs. `PROTOCOLS` is the one list of them.

A protocol is registered beside its function:

    @register("nearest_mean")
    def nearest_mean(train_features, train_labels, test_features, test_labels):
        ...
        return Result(value=share, interval=metrics.wilson_interval(share, len(test_labels)), num_test=len(test_labels))

The command line, configs and reports know it from then on.
"""

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TypeVar

from keras_sslhsic.evaluation.extraction import AnyEncoder, as_encoder
from keras_sslhsic.evaluation.images import ENCODING_BATCH, Labelled, count_classes, describe, known_labels
from keras_sslhsic.evaluation.loading import FOR_FEATURES, FOR_TRAINING, Needs
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.settings import ENCODING, Setting, checked
from keras_sslhsic.evaluation.streams import features_and_labels
from keras_sslhsic.registries import Registry

Features = MutableMapping[str, tuple[Any, Any]]
Function = TypeVar("Function", bound=Callable[..., Result])


def encoding(settings: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a function that trains nothing on images: its batch is the encoder's."""
    return {"encoding_batch" if name == "batch_size" else name: value for name, value in settings.items()}


@dataclasses.dataclass(frozen=True)
class Protocol:
    """A way of measuring an encoder.

    Attributes:
        name: of the protocol.
        function: what measures: (train features, train labels, test features, test labels, **arguments) -> Result if it
            is `on_features`, else (encoder, splits, verbose=, **arguments) -> Result.
        settings: what can be set of it.
        needs: the data it needs, and how they are loaded by name.
        on_features: whether it sees features alone, which are then extracted once for all such protocols.
        network: whether the encoder must be a network, which can be trained.
        arguments: checked settings -> arguments of the function.
        ahead: (train labels, test labels, **arguments); raises ValueError for what labels alone show not to work.
    """

    name: str
    function: Callable[..., Result]
    settings: Mapping[str, Setting]
    needs: Needs
    on_features: bool
    network: bool
    arguments: Callable[[dict[str, Any]], dict[str, Any]]
    ahead: Callable[..., object] | None = None

    def arguments_of(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of the function that make these settings; its own defaults fill in what is not given.

        Raises:
            ValueError: for a setting that the protocol has not, or a value of another type or out of range.
        """
        return self.arguments(checked(self.name, self.settings, given))

    def check(self, splits: Mapping[str, Labelled], **settings: Any) -> None:
        """Raises the ValueErrors of `run` that need neither an encoder nor an image."""
        arguments = self.arguments_of(settings)
        names = set(splits) if isinstance(splits, Mapping) else {type(splits).__name__}
        if not {"train", "test"} <= names <= {"train", "test", "validation"}:
            raise ValueError(
                f'Expected splits "train" and "test", and perhaps "validation", found {", ".join(sorted(map(str, names)))}: '
                'give {"train": (images, labels), "test": (images, labels)}.'
            )
        if self.on_features:
            count_classes(splits)
            labels = [known_labels(splits[split], split) for split in ("train", "test")]
            if self.ahead and all(known is not None for known in labels):
                self.ahead(*labels, **arguments)

    def run(
        self,
        encoder: AnyEncoder,
        splits: Mapping[str, Labelled],
        *,
        features: Features | None = None,
        encoding_batch: int = ENCODING_BATCH,
        verbose: bool = False,
        **settings: Any,
    ) -> Result:
        """Measures an encoder.

        Args:
            encoder: keras.Model, or function where no network is needed, from images [B, H, W, C] in [0, 255] to features.
            splits: "train", "test" and perhaps "validation": each (images uint8 [N, H, W, C], labels int [N]), or a
                `Split`, or a finite dataset of batches (images, labels) or {"image", "label"}.
            features: what was extracted of this encoder and these splits before; kept in it for the next protocol.
            encoding_batch: images that the encoder sees at once, for features where no setting says it.
            verbose: whether to show progress bars.
            **settings: some of `settings`, as a config has them.

        Returns:
            The result, which does not say yet of which encoder and data it is.

        Raises:
            ValueError: for settings that cannot be; and as the protocol's function.
        """
        arguments, encoder = self.arguments_of(settings), as_encoder(encoder)
        self.check(splits, **settings)
        if self.on_features:
            batch = arguments.pop("encoding_batch", encoding_batch)
            features = {} if features is None else features
            for split in ("train", "test"):
                if split not in features:
                    features[split] = features_and_labels(encoder, splits[split], split, verbose, batch)
            result = self.function(*features["train"], *features["test"], **arguments)
            recipe = {**result.recipe, **describe(splits["test"])}
            return dataclasses.replace(result, protocol=self.name, recipe=recipe)
        result = self.function(encoder, splits, verbose=verbose, **arguments)
        return dataclasses.replace(result, protocol=self.name)


PROTOCOLS: Registry[Protocol] = Registry("protocol")


def register(
    name: str,
    settings: Mapping[str, Setting] = ENCODING,
    *,
    on_features: bool = True,
    network: bool = False,
    needs: Needs | None = None,
    arguments: Callable[[dict[str, Any]], dict[str, Any]] = encoding,
    ahead: Callable[..., object] | None = None,
) -> Callable[[Function], Function]:
    """Registers a function as a protocol, and leaves it as it is; see `Protocol`.

    Args:
        name: what commands and configs call it.
        settings: what can be set, by default the encoder's batch.
        on_features: whether the function takes features.
        network: whether the encoder must be a network.
        needs: the data; None: images with central crops for features, those of the paper's training otherwise.
        arguments: checked settings -> arguments of the function.
        ahead: what refuses labels and settings before features are extracted; see `Protocol`.
    """
    needs = needs or (FOR_FEATURES if on_features else FOR_TRAINING)

    def add(function: Function) -> Function:
        PROTOCOLS.add(name, Protocol(name, function, settings, needs, on_features, network, arguments, ahead))
        return function

    return add
