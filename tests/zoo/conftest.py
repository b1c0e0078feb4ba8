from pathlib import Path

import pytest
from tiny import encoder as encoder
from tiny import real_images as real_images

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def data_folder():
    """Folder of the golden files."""
    return DATA
