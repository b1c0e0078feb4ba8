import warnings

import pytest

from keras_sslhsic.words import counted, warn


@pytest.mark.parametrize(
    "number, said", [(0, "0 images"), (1, "1 image"), (2, "2 images"), (2000, "2,000 images")]
)
def test_a_number_and_its_noun_agree(number, said):
    assert counted(number, "image") == said


def test_a_warning_is_of_the_line_outside_of_the_libraries():
    keras = {"__name__": "keras.src.callbacks", "warn": warn}
    exec(compile("def fit():\n    warn('over')", "callback_list.py", "exec"), keras)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for _ in range(2):
            keras["fit"]()
            globals().pop("__warningregistry__")  # as a notebook does before a cell is run
    assert [(of.filename, str(of.message)) for of in told] == [(__file__, "over")] * 2
