"""`save_pretrained`: an encoder with everything one has to know to use it again."""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_sslhsic import files, lock
from keras_sslhsic.encoders import Encoder, encoder_hash, encoder_of
from keras_sslhsic.files import display
from keras_sslhsic.zoo import model_files, registry
from keras_sslhsic.zoo.registry import Entry
from keras_sslhsic.zoo.sources import ENCODER_FILE, ENTRY_FILE, entry_beside

CARD_FILE = "README.md"

_CARD = """# {name}

{parameters:,} parameters ({architecture}). It maps images of {input} to {feature_size} features.

## How to load

```python
import keras_sslhsic

encoder = keras_sslhsic.load_pretrained("{name}")  # the path of this folder
features = encoder(images)  # [B, H, W, {channels}] uint8 or float in [0, 255] -> float32 [B, {feature_size}]
```

## Training

- Method: {method}
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

# Of which hubs know the name.
_LICENCES = (
    *(
        "apache-2.0",
        "mit",
        "bsd-2-clause",
        "bsd-3-clause",
        "cc0-1.0",
        "cc-by-4.0",
        "cc-by-sa-4.0",
        "cc-by-nc-4.0",
    ),
    *("cc-by-nc-sa-4.0", "gpl-3.0", "lgpl-3.0", "agpl-3.0", "mpl-2.0", "openrail", "unlicense"),
)

# What cannot be read off a model.
FACTS = ("architecture", "width", "method", "training_data", "recipe", "metrics", "metrics_source", "licence")


def save_pretrained(
    model: keras.Model, directory: str | os.PathLike, name: str | None = None, **facts: Any
) -> Entry:
    """Saves an encoder in a folder that `load_pretrained` reads.

    The folder gets ``encoder.keras`` (structure and weights), ``pretrained.json`` (its registry entry) and
    ``README.md`` (its model card, with the front matter that hubs read: the folder can be uploaded to one as it is). An
    encoder of `load_pretrained` brings its facts with it, those that are not stated anew; the metrics only with the
    weights that they were measured with.

    Args:
        model: what `encoders.encoder_of` takes: an encoder, or a model that trains one.
        directory: the folder; made if it is missing. What an earlier save wrote is replaced, all else stays. The change
            is one renaming of folders: stopped at any moment, the folder holds the earlier save or the new one.
        name: name of the network; by default that of its entry, or the model's.
        **facts: what else is known: architecture, method, training_data, recipe, metrics_source and licence, text;
            width, a number; metrics, numbers in percent by their names.

    Returns:
        The registry entry.

    Raises:
        ValueError: if `model` is no encoder of images, or a fact is none of these; nothing is written then.
        FileExistsError: if the folder holds a file of one of these names that no `save_pretrained` wrote, or a
            README.md that was edited since.
        OSError: if it cannot be written; the message names it.
        lock.InUseError: if another process is writing it.

    Example:
        >>> entry = save_pretrained(encoder, "my_encoder", metrics={"kNN": 83.1}, licence="MIT")
        >>> encoder = load_pretrained("my_encoder")
    """
    directory = Path(directory)
    encoder = encoder_of(model)
    known: Entry | None = encoder.entry
    if known is not None:
        name = name or known.name
        facts = {fact: getattr(known, fact) for fact in _carried(encoder)} | facts
    fields = describe(encoder, name or encoder.name, facts)
    with lock.held(directory):
        files.remove_leftovers(directory.resolve())
        _check_replaceable(directory)
        with files.replaced_folder(directory, keep=True) as folder:
            entry = save_entry(encoder, fields, folder / ENCODER_FILE, folder / ENTRY_FILE)
            files.write_text(folder / CARD_FILE, format_card(entry))
    return entry


def _carried(encoder: Encoder) -> list[str]:
    measured = () if encoder.measured == encoder_hash(encoder) else ("metrics", "metrics_source")
    return [fact for fact in FACTS if fact not in measured]


def _check_replaceable(directory: Path) -> None:
    encoder, card = directory / ENCODER_FILE, directory / CARD_FILE
    previous = entry_beside(encoder)
    for file in filter(Path.exists, (encoder, card)):
        if previous is None or (file == encoder and previous.sha256 != files.sha256(file)):
            raise FileExistsError(
                f"{display(directory)} holds a {file.name} of something else: choose another folder."
            )
        # Cards of version 0.1.0 have no front matter.
        own = (format_card(previous).encode(), _body(previous).encode())
        if file == card and files.read_regular(card, 2**20) not in own:
            raise FileExistsError(
                f"{display(card)} was edited since it was written: move it away to have it written anew."
            )


def describe(encoder: Encoder, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an entry that do not depend on its file; raises ValueError as `save_pretrained`."""
    if Path(name).name != name:
        raise ValueError(f"A name may not hold a path, found {name!r}.")
    spec = encoder.spec
    return {
        "architecture": spec.network or encoder.name,
        "feature_size": spec.feature_size,
        "parameters": model_files.count_parameters(encoder),
        "input_size": spec.shape_seen[0],
        "trained_at": spec.trained_at,
        "channels": spec.channels,
        "mean": spec.mean,
        "std": spec.std,
        "stem": "small" if "P0" in spec.stages else "imagenet",
        **_checked(facts),
        "name": name,
    }


def save_entry(encoder: Encoder, fields: Mapping[str, Any], target: Path, entry_file: Path) -> Entry:
    """Saves an encoder to ``NAME.keras``, and then its entry, what `describe` says and the hash, which makes it valid."""
    content = encoder.archive()
    entry = Entry(**fields, file=target.name, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    files.write_bytes(target, content)
    files.write_text(entry_file, entry.to_json())
    return entry


def _checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts, with plain numbers, as they can be written to JSON."""
    if unknown := set(facts) - set(FACTS):
        raise ValueError(f"{', '.join(sorted(unknown))} is no fact to state; those are {', '.join(FACTS)}.")
    plain = json.loads(json.dumps(dict(facts), default=_as_json))
    registry.check_fields(plain)
    return plain


def _as_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return dict(value) if isinstance(value, Mapping) else None  # which is no fact


def format_card(entry: Entry) -> str:
    """Formats the model card of an entry, in Markdown, with the front matter that hubs of models read."""
    words = re.match(r"[\w.+-]+(?: [\w.+-]+){0,2}(?= \(|$)", entry.licence)
    licence = re.sub(" ", "-", words[0].lower()) if words else "other"
    fields: dict[str, Any] = {
        "library_name": "keras_sslhsic",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["self-supervised-learning", "keras", "tensorflow"],
        "license": licence if licence in _LICENCES else "other" if entry.licence else None,
    }
    # A value in JSON is one in YAML.
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items() if value is not None]
    return "\n".join(["---", *lines, "---", "", _body(entry)])


def _body(entry: Entry) -> str:
    def shown(value: Any) -> Any:
        lines = map(display, value.split("\n")) if isinstance(value, str) else ()
        return "\n".join(lines) or value or "not stated"

    side = entry.input_size
    metrics = [f"- {display(key)}: {value:.2f} %" for key, value in entry.metrics.items()]
    trained = f", trained at {entry.trained_at}x{entry.trained_at} pixels" if entry.trained_at else ""
    fields = {key: shown(value) for key, value in vars(entry).items()} | {
        "name": display(entry.name),
        "input": f"any size{trained}" if side is None else f"{side}x{side} pixels (others are resized)",
        "metrics": "\n".join(metrics) or "Nothing yet.",
    }
    return _CARD.format(**fields)
