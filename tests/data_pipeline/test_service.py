"""Images that other processes read, by the service of tf.data: here two workers on 127.0.0.1."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_sslhsic import LARS, SSLHSIC, views

service = tf.data.experimental.service


@pytest.mark.slow
def test_a_trainer_reads_what_workers_of_a_service_decode(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (32, 12, 12, 3), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(32)  # by which each is known
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / f"{number:02}.png")
    dispatcher = service.DispatchServer(service.DispatcherConfig(port=0))
    address = dispatcher.target.partition("://")[2]
    workers = [
        service.WorkerServer(service.WorkerConfig(address, heartbeat_interval_ms=100)) for _ in range(2)
    ]
    assert address.partition(":")[0] in ("localhost", "127.0.0.1") and len(workers) == 2

    def decoded(file):
        return tf.ensure_shape(tf.io.decode_png(tf.io.read_file(file), 3), [12, 12, 3])

    files = sorted(map(str, tmp_path.glob("*.png")))
    images = tf.data.Dataset.from_tensor_slices(files).shuffle(32, seed=0).map(decoded).batch(4)
    images = images.apply(service.distribute(service.ShardingPolicy.DYNAMIC, dispatcher.target))
    images = images.rebatch(8, drop_remainder=True)
    assert images.element_spec.shape == (8, 12, 12, 3)
    seen = np.concatenate([batch[:, 0, 0, 0] for batch in images.as_numpy_iterator()])
    assert sorted(seen) == list(range(32))  # each image once in an epoch, whichever worker has it

    pixels = keras.Input((None, None, 3))
    encoder = keras.Model(pixels, keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(pixels)))
    model = SSLHSIC(encoder, 8, 4, views=views.small_image(8))
    model.compile(LARS(0.1))
    images = images.apply(tf.data.experimental.assert_cardinality(4))
    history = model.fit(images, epochs=2, verbose=0).history
    assert np.isfinite(history["loss"]).all() and int(model.step.numpy()) == 2 * 4
