"""What docs/contributing.md promises: a method is one file, and nothing else is touched."""

import csv
from pathlib import Path

import keras
import pytest

from keras_sslhsic import cli

METHOD = Path(__file__).parent / "data" / "toy_method.py"
SMALL = [
    "--config.epochs=1",
    "--config.data.holdout=0.95",
    "--config.batch_size=100",
    "--config.encoder.width=0.05",
    "--config.views.size=12",
    "--config.model.projector_hidden=16",
    "--config.model.projection_dim=8",
]


@pytest.mark.slow
def test_a_method_of_ones_own_trains_from_the_command_line(tmp_path):
    folder = tmp_path / "run"
    assert not cli.main(["pretrain", "--config", str(METHOD), "--workdir", str(folder), *SMALL])
    with open(folder / "history.csv") as stream:
        (row,) = csv.DictReader(stream)
    assert float(row["loss"]) > 0 and float(row["narrow"]) > 0 and "hsic_zy" not in row
    model = keras.models.load_model(folder / "model.keras")
    assert (type(model).__name__, type(model.objective).__name__) == ("Toy", "ToySpread")
    assert model.target is False
