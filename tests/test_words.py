import pytest

from keras_sslhsic.words import counted


@pytest.mark.parametrize(
    "number, said", [(0, "0 images"), (1, "1 image"), (2, "2 images"), (2000, "2,000 images")]
)
def test_a_number_and_its_noun_agree(number, said):
    assert counted(number, "image") == said
