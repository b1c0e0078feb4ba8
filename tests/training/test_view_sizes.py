"""Training on small views first, whose size grows over the epochs."""

import keras
import numpy as np
import pytest

from keras_sslhsic import LARS, SSLHSIC, callbacks, views
from keras_sslhsic.training import state, streams
from keras_sslhsic.training.callbacks import ViewSizes
from keras_sslhsic.views import policy


def test_epochs_have_the_sizes_in_equal_parts():
    assert [ViewSizes([20, 24, 28]).at(epoch, 8) for epoch in range(8)] == [20, 20, 20, 24, 24, 24, 28, 28]
    assert ViewSizes(np.array([20, 28])).sizes == (20, 28)
    assert [ViewSizes([20, 28]).at(epoch, 2) for epoch in range(3)] == [20, 28, 28]
    for sizes in ([], [28, 20], [20, 20]):
        with pytest.raises(ValueError, match=r"from small to large, each once, found \["):
            ViewSizes(sizes)
    with pytest.raises(ValueError, match="a size of views"):
        ViewSizes([0, 28])


def test_views_that_cannot_grow_are_refused(tiny_model, images):
    model = tiny_model()
    model.compile(LARS(0.5))
    crops = {"view1": images[:, 1:9, 1:9], "view2": images[:, 2:, 2:]}
    local = views.multi_crop(8, local_size=4, num_local=1)
    fixed = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(4)])

    def of(encoder, how):
        other = SSLHSIC(encoder, 12, 8, views=how)
        other.compile(LARS(0.5))
        return other

    refused = {
        "crops that are ready-made. Leave out host_crops": (model, crops, [4, 8]),
        "they have two sizes, 8 and 4 pixels": (of(model.encoder, local), images, [4, 8]),
        "the encoder reads 8 x 8 alone. Build it with": (of(fixed, views.small_image(8)), images, [4, 8]),
        "the last has to be the size of the views, 8": (model, images, [4, 6]),
        "each wants an epoch, and there are 2": (model, images, [4, 6, 8]),
    }
    for message, (trainer, data, sizes) in refused.items():
        with pytest.raises(ValueError, match=message):
            trainer.fit(data, batch_size=8, epochs=2, verbose=0, callbacks=[ViewSizes(sizes)])
    with pytest.warns(UserWarning, match="shrunk to views of 4 without antialiasing"):
        model._warn(streams.given(images, batch_size=8, seed=0), 0, 4)


@pytest.mark.slow
def test_each_size_is_traced_once_and_a_run_goes_on_with_that_of_its_epoch(
    tiny_model, images, tmp_path, monkeypatch
):
    made, make_views = [], policy.make_views

    def seen(batch, how, *arguments):
        made.append(how.size)
        return make_views(batch, how, *arguments)

    monkeypatch.setattr(policy, "make_views", seen)

    def fit(others, directory=None):
        model = tiny_model()
        model.compile(LARS(0.5))
        each = [callbacks.TargetEMA(total_steps=12), callbacks.ViewSizes([6, 8])]
        each += [callbacks.Checkpoint(directory)] if directory else []
        made.clear()
        model.fit(images, batch_size=8, epochs=4, verbose=0, callbacks=[*each, *others])
        assert model.policy.size == 8 and model.view_size in (None, 8)
        return state.arrays(state.variables(model)), list(made)

    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = epoch == 0

    whole, sizes = fit([])
    assert sizes == [6, 8]
    assert fit([Stops()], tmp_path)[1] == [6]
    gone_on, sizes = fit([], tmp_path)
    assert sizes == [6, 8]
    for name, value in whole.items():
        np.testing.assert_array_equal(gone_on[name], value, err_msg=name)
    assert fit([], tmp_path)[1] == []  # all is trained, and nothing is traced
