from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def data():
    """Loads a golden file by name."""
    return lambda name: np.load(Path(__file__).parents[1] / "data" / name)
