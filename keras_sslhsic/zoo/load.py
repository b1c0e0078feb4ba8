"""`load_pretrained`: one line from a name, a file or a folder to a network that reads pixels."""

import contextlib
import dataclasses
import os
import warnings
from pathlib import Path
from typing import Any

import keras

from keras_sslhsic import compat, files
from keras_sslhsic.encoders import (
    Architecture,
    Encoder,
    EncoderSpec,
    build_encoder,
    encoder_hash,
    encoder_of,
    with_preprocessing,
)
from keras_sslhsic.encoders.base import encoder_again, preprocessed
from keras_sslhsic.encoders.resnet import architecture as named_architecture
from keras_sslhsic.encoders.resnet import resnet
from keras_sslhsic.encoders.unlabelled import BareNetworkError
from keras_sslhsic.files import display
from keras_sslhsic.words import warn
from keras_sslhsic.zoo import convert, hub, model_files, registry, sources


def load_pretrained(
    name: str | os.PathLike,
    weights: str | os.PathLike | None = None,
    cache_dir: str | os.PathLike | None = None,
    trainable: bool = False,
    freeze_batch_norm: bool = False,
) -> Encoder:
    """Loads an encoder that reads pixels.

    Args:
        name: a name of `list_pretrained`; or a folder of `save_pretrained`, a run folder, a ``.keras`` file,
            or a ``.weights.h5`` file of the converter; or such a folder on the Hugging Face Hub, ``hf://OWNER/NAME``,
            perhaps with ``@REVISION``.
        weights: for a name of the zoo: a file (``.weights.h5``, ``.keras``, an official ``.npy`` or ``.pkl``), a
            folder, an https address (``#sha256=...`` at its end is checked), or ``"random"`` for the untrained network.
            By default they come from the folder or base address in the environment variable ``KERAS_SSLHSIC_WEIGHTS``,
            from the files bundled with the package, from the cache, or from where they were published, in this order.
        cache_dir: folder of downloaded weights; ``~/.cache/keras_sslhsic`` by default, for a hub its own cache.
        trainable: whether the weights may be trained. A frozen network always uses its moving statistics.
        freeze_batch_norm: in a trainable network, keep every BatchNormalization layer (statistics, scale and
            offset) as it is.

    Returns:
        `Encoder`, a keras.Model from images [B, H, W, C], uint8 or float in [0, 255] (of any size if the network resizes
        them, as those of the zoo for ImageNet do), to float32 features [B, F].

    Raises:
        ValueError: for an unknown name (the nearest is suggested), a wrong hash, a file of another architecture; for
            one that is damaged, holds code, declares more than its size allows or has weights that are not finite.
        FileNotFoundError: if the weights are nowhere; the message names the ways to get them.
        OSError: if a file cannot be read or is no regular file, or a download fails.

    Example:
        >>> encoder = load_pretrained("r18_fashion")
        >>> features = encoder(images_uint8)  # [B, F]
    """
    if not isinstance(name, (str, os.PathLike)) or not os.fspath(name):
        raise ValueError(
            f"Expected a name of the zoo or a path, found {name!r}: the names are {', '.join(registry.entries())}."
        )
    path = hub.fetch(str(name), cache_dir) if hub.is_address(name) else Path(name)
    if str(name) not in registry.entries() and path.exists():
        if weights is not None:
            raise ValueError(f"{display(path)} holds its own weights: leave out weights={str(weights)!r}.")
        file = sources.in_folder(path)
        encoder, entry = load_encoder(file), sources.entry_beside(file)
    else:
        if os.fspath(name).startswith((".", os.sep)):
            raise FileNotFoundError(f"There is no file or folder {os.fspath(name)!r}.")
        entry = registry.get(str(name))
        if weights == "random":
            shape = None, None, entry.channels
            network = build_encoder(entry.architecture, shape, entry.stem, entry.width)
            encoder = _with_entry_preprocessing(network, entry)
        else:
            encoder = _load_found(entry, weights, _cache(cache_dir))
        if weights is not None or sources.WEIGHTS_VARIABLE in os.environ:
            entry = registry.unstated(entry)  # what is known of the published weights says nothing of these
    if entry is not None and encoder.spec.trained_at is None:  # as in files of earlier versions
        encoder.spec = dataclasses.replace(encoder.spec, trained_at=entry.trained_at)
    encoder.entry = entry
    encoder.measured = encoder_hash(encoder) if entry is not None and entry.metrics else None
    compat.set_trainable(encoder, trainable)
    if trainable and freeze_batch_norm:
        for layer in compat.every_layer(encoder):
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = False
    return encoder


def _cache(cache_dir: str | os.PathLike | None) -> Path | None:
    """The folder of downloads; None for a user without a home, who may need none."""
    if cache_dir is not None:
        return Path(cache_dir)
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return None if folder.startswith("~") else Path(folder, "keras_sslhsic")


def _load_found(entry: registry.Entry, weights: str | os.PathLike | None, cache: Path | None) -> Encoder:
    path = sources.find(entry, weights, cache)
    try:
        return load_encoder(path, entry)
    except ValueError as error:
        if sources.forget(path, cache):
            raise ValueError(f"{error} It is removed from the cache, to be fetched again.") from error
        raise


def load_encoder(path: Path, entry: registry.Entry | None = None) -> Encoder:
    """Reads an encoder from any kind of file; `entry` says what it has to be, where that is known.

    Raises:
        ValueError: if it is of another kind, damaged or of another architecture.
        OSError: if it cannot be read or is no regular file.
    """
    files.open_regular(path, model_files.LARGEST).close()
    try:
        if path.suffix == ".keras":
            return _load_keras(path, entry)
        if path.suffix in (".npy", ".pkl"):
            networks = convert.networks_from_checkpoint(path)
            _check_architecture(path, networks.architecture, entry)
            return _with_entry_preprocessing(networks.encoder, entry)
        if path.name.endswith(".weights.h5"):
            return _load_weights(path, entry)
    except (ValueError, OSError):
        raise
    except Exception as error:  # of a graph of layers that nobody would draw
        raise ValueError(f"{display(path)} holds no encoder: {model_files.reason(error)}.") from error
    raise ValueError(f"{display(path)} is no model file: expected .keras, .weights.h5, .npy or .pkl.")


def _load_keras(path: Path, entry: registry.Entry | None) -> Encoder:
    shown = display(path)
    model = model_files.load(path)
    # The converter's networks with their heads; those of before read normalised images.
    has_heads = compat.is_functional(model) and isinstance(model.output, dict)
    if has_heads:
        model = model.get_layer(index=1)
    try:
        encoder = encoder_of(model) if has_heads else _with_spec(model, path)
    except BareNetworkError:
        if entry is None and not has_heads:
            _check_for_imagenet(model, path)
        encoder = _with_entry_preprocessing(model, entry)
    except ValueError as error:
        raise ValueError(f"{shown}: {error}") from None
    if entry is not None:
        found = encoder.spec.feature_size, model_files.count_parameters(encoder)
        expected = entry.feature_size, entry.parameters
        if found != expected:
            raise ValueError(
                f"{shown} is of another architecture than {entry.name}: (features, parameters) {found}, expected {expected}."
            )
    return encoder


def _with_spec(model: keras.Model, path: Path) -> Encoder:
    note = model_files.read_note(path)
    if "spec" not in note:
        return encoder_of(model)
    return encoder_again(model, EncoderSpec.from_dict(note["spec"]))


def _check_for_imagenet(network: keras.Model, path: Path) -> None:
    shown = display(path)
    if network.input_shape[1:] != (None, None, 3):
        raise ValueError(
            f"{shown} is an encoder of images {list(network.input_shape[1:])} without normalisation: save "
            "encoders.with_preprocessing(encoder, mean, std), which reads pixels."
        )
    warn(
        f"{shown} is an encoder without normalisation: that of ImageNet, and resizing to 224 pixels, are put before it. If "
        "it was trained otherwise, wrap it in encoders.with_preprocessing before saving it.",
    )


def _load_weights(path: Path, entry: registry.Entry | None) -> Encoder:
    note = model_files.read_note(path)
    if note:
        built = _noted_architecture(note, path)
        _check_architecture(path, built, entry)
    elif entry is not None:
        built = named_architecture(entry.architecture, entry.width)
        note = {"architecture": entry.architecture, "channels": entry.channels, "stem": entry.stem}
    else:
        raise ValueError(
            f"{display(path)} does not say of which network it is: give the name and weights={str(path)!r}."
        )
    name = str(note.get("architecture") or "resnet")
    problem = f"does not hold the weights of {display(name)}, as the converter and save_weights write them"
    with model_files.within_bounds(path, problem), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one warning a layer, before the error that matters
        encoder = resnet(built, (None, None, note["channels"]), note["stem"], name)
        encoder.load_weights(path)
    model_files.check_finite(encoder, path)
    if entry is not None or "spec" not in note:
        return _with_entry_preprocessing(encoder, entry)
    try:
        spec = EncoderSpec.from_dict(note["spec"])
        made = with_preprocessing(
            encoder, spec.mean, spec.std, spec.resize, spec.antialias, trained_at=spec.trained_at
        )
        return preprocessed(encoder, dataclasses.replace(made.spec, crop=spec.crop))
    except ValueError as error:
        raise ValueError(f"{display(path)}: {error}") from None


def _noted_architecture(note: dict[str, Any], path: Path) -> Architecture:
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        given = note["shape"].items()
        shape: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given}
        built = Architecture(**shape)
        counts = *built.blocks, *built.channels, built.stem_channels, note["channels"]
        if (
            all(type(count) is int and count > 0 for count in counts)
            and len(built.blocks) == len(built.channels) > 0
            and type(built.bottleneck) is bool
            and isinstance(note.get("architecture"), str | None)
        ):
            return built
    raise ValueError(f"{display(path)} has a note that names no network: convert the checkpoint again.")


def _check_architecture(path: Path, found: Architecture, entry: registry.Entry | None) -> None:
    if entry is not None and found != named_architecture(entry.architecture, entry.width):
        name = convert.architecture_name(found) or f"a network of {found}"
        raise ValueError(f"{display(path)} has another architecture: {name}, expected {entry.architecture}.")


def _with_entry_preprocessing(encoder: keras.Model, entry: registry.Entry | None) -> Encoder:
    """Puts resizing and normalisation in front; without an entry those of the ImageNet networks."""
    if entry is None:
        return with_preprocessing(encoder, registry.IMAGENET_MEAN, registry.IMAGENET_STD, size=224)
    return with_preprocessing(encoder, entry.mean, entry.std, size=entry.input_size, name=entry.name)
