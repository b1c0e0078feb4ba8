"""`save_pretrained`: an encoder with everything one has to know to use it again."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_sslhsic.zoo import files
from keras_sslhsic.zoo.encoder import encoder_of, sides_seen
from keras_sslhsic.zoo.registry import Entry
from keras_sslhsic.zoo.sources import ENCODER_FILE, ENTRY_FILE

CARD_FILE = "README.md"

_CARD = """# {name}

{parameters:,} parameters ({architecture}), trained with {method}. It maps images of {input} to
{feature_size} features.

## How to load

```python
import keras_sslhsic

encoder = keras_sslhsic.load_pretrained("{folder}")
features = encoder(images)  # [B, H, W, {channels}] uint8 or float in [0, 255] -> float32 [B, {feature_size}]
```

## Training

- Data: {training_data}
- Recipe: {recipe}
- Normalisation (inside the model): mean {mean}, standard deviation {std} of pixels in [0, 1]

## Measured

{metrics}

{metrics_source}

## Licence

{licence}

SHA-256 of {file} ({size:,} bytes): `{sha256}`
"""


def save_pretrained(
    model: keras.Model, directory: str | os.PathLike, name: str | None = None, **facts: Any
) -> Entry:
    """Saves an encoder in a folder that `load_pretrained` reads.

    The folder gets ``encoder.keras`` (structure and weights), ``pretrained.json`` (its registry entry) and
    ``README.md`` (its model card).

    Args:
        model: an encoder of pixels (`load_pretrained`, `networks.with_preprocessing`), or a trained SSLHSIC.
        directory: the folder; made if it is missing.
        name: name of the network; by default the model's.
        **facts: what else is known, fields of `Entry`: architecture, method, training_data, recipe, metrics,
            metrics_source, licence.

    Returns:
        The registry entry.

    Raises:
        ValueError: if `model` is no encoder of images, or a fact is no field of `Entry`.
        FileExistsError: if the folder holds a file of one of these names that no `save_pretrained` wrote.

    Example:
        >>> entry = save_pretrained(encoder, "my_encoder", metrics={"kNN": 83.1}, licence="MIT")
        >>> encoder = load_pretrained("my_encoder")
    """
    directory = Path(directory)
    if not (directory / ENTRY_FILE).exists():
        for name_taken in (ENCODER_FILE, CARD_FILE):
            if (directory / name_taken).exists():
                raise FileExistsError(
                    f"{directory} holds a {name_taken} of something else: choose another folder."
                )
    model = encoder_of(model)
    entry = save_entry(model, directory / ENCODER_FILE, directory / ENTRY_FILE, name or model.name, facts)
    with files.written_whole(directory / CARD_FILE) as temporary:
        temporary.write_text(format_card(entry, directory.name), "utf-8")
    return entry


def save_entry(
    model: keras.Model, target: Path, entry_file: Path, name: str, facts: Mapping[str, Any]
) -> Entry:
    """Saves an encoder of pixels, and beside it its registry entry with the hash of what was saved."""
    unknown = set(facts) - set(Entry.__dataclass_fields__)
    if unknown:
        raise ValueError(
            f"{', '.join(sorted(unknown))} is no field of a registry entry; its fields are "
            f"{', '.join(Entry.__dataclass_fields__)}."
        )
    if Path(name).name != name:
        raise ValueError(f"A name may not hold a path, found {name!r}.")
    facts = {**_measured(model), "architecture": model.name, **facts, "name": name}
    with files.written_whole(target, ".keras") as temporary:
        model.save(temporary)
    entry = Entry(**{**facts, **_identity(target)})
    with files.written_whole(entry_file) as temporary:
        temporary.write_text(entry.to_json(), "utf-8")
    return entry


def format_card(entry: Entry, folder: str) -> str:
    """Formats the model card of an entry, in Markdown."""
    side = entry.input_size
    return _CARD.format(
        **{
            key: value or "not stated"
            for key, value in vars(entry).items()
            if key not in ("metrics", "input_size")
        },
        input="any size" if side is None else f"{side}x{side} pixels (others are resized)",
        folder=folder,
        metrics="\n".join(f"- {key}: {value:.2f} %" for key, value in entry.metrics.items())
        or "Nothing yet.",
    )


def _measured(model: keras.Model) -> dict[str, Any]:
    """The fields that can be read off the model."""
    height, _, channels = sides_seen(model)
    normalize = next((layer for layer in model.layers if isinstance(layer, keras.layers.Rescaling)), None)
    if normalize is None:
        raise ValueError("The encoder has no normalisation inside: wrap it with networks.with_preprocessing.")
    scale, offset = np.asarray(normalize.scale), np.asarray(normalize.offset)
    std = 1 / (255 * scale)
    return {
        "feature_size": model.output_shape[-1],
        "parameters": files.count_parameters(model),
        "input_size": height,
        "channels": channels,
        "mean": tuple(np.round(-offset * std, 6).tolist()),
        "std": tuple(np.round(std, 6).tolist()),
        "stem": "small" if _stem_stride(model) == 1 else "imagenet",
    }


def _stem_stride(model: keras.Model) -> int | None:
    stem = next((layer for layer in model._flatten_layers() if layer.name == "stem_conv"), None)
    return None if stem is None else stem.strides[0]


def _identity(path: Path) -> dict[str, Any]:
    return {"file": path.name, "sha256": files.sha256(path), "size": path.stat().st_size}
