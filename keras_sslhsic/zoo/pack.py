"""Puts a finished run's encoder among the files that ship with the package.

Usage: python -m keras_sslhsic.zoo.pack runs/fashion_small r18_fashion
"""

import argparse
import os
from pathlib import Path
from typing import Any

from keras_sslhsic import files, lock
from keras_sslhsic.files import display
from keras_sslhsic.zoo import registry
from keras_sslhsic.zoo.load import load_encoder
from keras_sslhsic.zoo.registry import Entry
from keras_sslhsic.zoo.save import describe, save_entry
from keras_sslhsic.zoo.sources import ENCODER_FILE

DATA = "bundled Fashion-MNIST subset (10,000 training images, MIT licence), without labels"


def pack(run: str | os.PathLike, name: str, folder: str | os.PathLike = registry.BUNDLED) -> Entry:
    """Copies a run's encoder and its measured accuracy into a folder of bundled networks; returns the registry entry.

    Args:
        run: run folder of `keras-sslhsic pretrain`, with encoder.keras, config.json and summary.json.
        name: what `load_pretrained` is to be asked for.
        folder: where ``NAME.keras`` and ``NAME.json`` go.

    Raises:
        FileNotFoundError: if the run is not finished.
        ValueError: if its summary holds no accuracy of the pretrained encoder, or one of its files is damaged.
        OSError: if the files cannot be written.
        lock.InUseError: if another process is packing this name.
    """
    run, target = Path(run), Path(folder) / f"{name}.keras"
    facts = _facts(files.read_json(run / "config.json"), files.read_json(run / "summary.json"), run)
    encoder = load_encoder(run / ENCODER_FILE)
    fields = describe(encoder, name, facts)
    with lock.held(target):
        return save_entry(encoder, fields, target, target.with_suffix(".json"))


def _facts(config: dict[str, Any], summary: dict[str, Any], run: Path) -> dict[str, Any]:
    try:
        rows = [row for row in summary["results"] if row["features"] == "pretrained"]
        if len(rows) != 1:
            raise ValueError(
                f"{display(run)} holds {len(rows)} accuracies of the pretrained encoder, expected one."
            )
        return {
            "architecture": config["encoder"]["name"],
            "width": config["encoder"].get("width"),
            "method": "SSL-HSIC",
            "training_data": DATA,
            "recipe": f"configs/{config['name']}.py: {config['epochs']} epochs, batch {config['batch_size']}",
            "metrics": {f"Fashion-MNIST {key}": round(100 * rows[0][key], 2) for key in ("knn", "linear")},
            "metrics_source": f"measured by this project on the bundled test images, seed {summary['seed']}",
            "licence": "Apache-2.0",
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The config.json or summary.json in {display(run)} is not that of a run of `pretrain`: {error!r}."
        ) from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run folder")
    parser.add_argument("name", help="name in the zoo")
    options = parser.parse_args()
    print(pack(options.run, options.name).to_json())
