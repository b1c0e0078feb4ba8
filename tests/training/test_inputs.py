"""What `fit` trains on: handles, arrays and data sets, from any epoch on, shared by workers."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic import LARS, callbacks, compat, views
from keras_sslhsic.data import from_arrays, from_folder
from keras_sslhsic.training import inputs, progress, streams

X = np.arange(24, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)


def given(x, y=None, epoch=0, strategy=None):
    """What is trained on, and the batches of it."""
    images = streams.given(x, y, batch_size=8, seed=5)
    step = 3 * epoch  # of 24 images in batches of 8
    return images, streams.to_train(images, step, strategy or tf.distribute.get_strategy())


def ids(dataset, steps):
    return [batch["image"][:, 0, 0, 0].numpy().tolist() for batch in dataset.take(steps)]


@pytest.mark.slow
def test_a_fit_goes_on_with_the_batches_that_come_next(tiny_model, images, tmp_path):
    """Four epochs, or two and then the other two: a handle starts where the checkpoint ended."""
    ends = []
    for epochs in ([4], [2, 4]):
        for last in epochs:
            model = tiny_model()
            model.compile(LARS(0.5))
            extra = [callbacks.TargetEMA(total_steps=12), callbacks.Checkpoint(tmp_path / str(len(epochs)))]
            model.fit(from_arrays(images, batch_size=8, seed=3), epochs=last, verbose=0, callbacks=extra)
        ends.append(model.get_weights())
    for expected, found in zip(*ends, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_arrays_and_handles_begin_at_the_epoch_and_are_exact():
    images = from_arrays(X, batch_size=8, seed=5)
    for x in (X, {"image": X}, images):
        data, batches = given(x, epoch=2)
        assert ids(batches, 4) == ids(images.batches(2), 4) != ids(images.batches(), 4)
        assert (data.steps_per_epoch, data.num_examples) == (3, 24)
        assert data.element_spec == images.element_spec


def test_a_foreign_dataset_is_taken_as_it_is():
    dataset = tf.data.Dataset.from_tensor_slices({"image": X}).batch(8, drop_remainder=True)
    data, batches = given(dataset, epoch=2)
    assert data is dataset and ids(batches, 3) == ids(dataset, 3)
    assert batches.element_spec == dataset.element_spec
    sharding = batches.options().experimental_distribute.auto_shard_policy
    assert sharding == tf.data.experimental.AutoShardPolicy.DATA


def test_labels_beside_a_handle_are_refused():
    with pytest.raises(ValueError, match="found y beside the ArrayImages"):
        given(from_arrays(X, batch_size=8), np.arange(24))


class Workers:
    """Several workers, each with some replicas, as far as the input pipelines know them."""

    def __init__(self, workers, replicas):
        self.contexts = [
            tf.distribute.InputContext(workers, index, workers * replicas) for index in range(workers)
        ]

    def distribute_datasets_from_function(self, function):
        return [function(context) for context in self.contexts]


@pytest.mark.parametrize("replicas", [1, 2])
def test_workers_and_their_replicas_share_each_batch(monkeypatch, replicas):
    monkeypatch.setattr(compat, "has_workers", lambda strategy: True)
    _, shares = given(X, epoch=1, strategy=Workers(2, replicas))
    assert [dataset.element_spec["image"].shape[0] for dataset in shares] == [4 // replicas] * 2
    # Each replica takes the next batch of its worker.
    parts = [ids(dataset, 3 * replicas) for dataset in shares]
    workers = [[list(chain(*p[i : i + replicas])) for i in range(0, len(p), replicas)] for p in parts]
    together = ids(from_arrays(X, batch_size=8, seed=5).batches(1), 3)
    assert [one + other for one, other in zip(*workers, strict=True)] == together


def test_images_of_unknown_size_are_named(tiny_model, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "b.png")
    model = tiny_model()
    model.compile()
    with pytest.raises(ValueError, match=r"size that is known.*\(2, None, None, 3\).*image_size"):
        model.fit(from_folder(tmp_path, batch_size=2, image_size=None), verbose=0)


def test_views_far_smaller_than_the_images_are_warned_of():
    for side, size, warned in ((256, 224, False), (110, 96, False), (256, 128, False), (256, 127, True)):
        message = inputs.aliasing(tf.TensorSpec((8, side, side + 9, 3)), views.byol(size))
        assert bool(message) is warned
    assert message.startswith("Images of 256 x 265 pixels are shrunk to views of 127 without antialiasing")
    assert "read them at about 145 pixels" in message
    smooth = views.ViewPolicy(size=32, crop=views.Crop(antialias=True))
    assert inputs.aliasing(tf.TensorSpec((8, 256, 256, 3)), smooth) is None


def test_crops_that_are_given_say_the_size_that_is_trained_at():
    policy = views.byol(224)
    batch = {f"view{i}": np.zeros((4, 20, 20, 3), np.uint8) for i in (1, 2)}
    crops = tf.data.Dataset.from_tensors(batch)
    assert inputs.of_size_given(crops, policy).size == 20
    assert inputs.of_size_given(from_arrays(X, batch_size=4), policy) is policy


def test_the_time_of_an_epoch_is_told_once_without_the_first_step(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    bar = progress.Progress()
    bar.set_params({"epochs": 2, "steps": 100})
    bar.set_model(SimpleNamespace(objective=SimpleNamespace(latest=())))
    bar.on_train_begin()
    bar.on_epoch_begin(0)
    monkeypatch.setattr(bar.bar, "write", said.append)
    for step in range(10):
        now[0] = 60 + 2.0 * step  # a minute of tracing
        bar.on_train_batch_end(step)
    bar.on_train_end()
    assert said == ["An epoch takes 3.3 min, the 194 steps that are left 6.5 min."]
    bar.on_train_begin()  # of another training
    bar.on_epoch_begin(0)
    assert bar.bar is not None and not bar.bar.disable and bar.bar.n == 0
    bar.on_train_end()
