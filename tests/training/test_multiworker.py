"""Two workers, each a process of its own, against one: half of the images, the same weights; what happens when one dies."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow

EPOCHS = 2
TIME_LIMIT = 600  # seconds, for a busy machine; the processes take about 25 seconds each of an idle one
# Two epochs of three steps on images whose halves differ. A victim gets its signal after the fourth step.
PROGRAM = """
    import os, sys
    import keras, numpy as np
    from keras_sslhsic import LARS, SSLHSIC, callbacks, data, losses, strategy, views

    name, epochs, folder, directory, result, victim = sys.argv[1:]
    plain = views.ViewPolicy(
        size=8, crop=views.Crop(area=(1.0, 1.0)), flip=1.0, jitter=views.ColorJitter(probability=0.0), grayscale=0.0,
        blur=views.Blur(probability=(0.0, 0.0)), solarize=views.Solarize(probability=(0.0, 0.0)),
        mean=(0.5,) * 3, std=(0.5,) * 3,
    )
    with strategy(name).scope():
        keras.utils.set_random_seed(1)
        images = keras.Input((8, 8, 3))
        x = keras.layers.Conv2D(6, 3, padding="same", use_bias=False)(images)
        x = keras.layers.BatchNormalization(momentum=0.9, synchronized=True)(x)
        encoder = keras.Model(images, keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x)))
        model = SSLHSIC(encoder, 12, 8, views=plain, num_classes=3, weight_ema=0.9)
        model.compile(LARS(0.2), loss=losses.SSLHSICLoss(num_features=32))

    class Dies(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if victim and int(model.step.value.numpy()) == 4:
                os.kill(os.getpid(), int(victim))

    listed = data.folder.list_images
    data.folder.list_images = lambda path: sorted(listed(path), key=os.path.basename)  # in the order of their numbers
    decoded, decode = [], data.folder.FolderImages._arrays

    def counted(self, number, decoding, seed):
        decoded.append(seed[1])
        return decode(self, number, decoding, seed)

    data.folder.FolderImages._arrays = counted
    model.fit(
        data.from_folder(folder, batch_size=8, image_size=8), epochs=int(epochs), verbose=0,
        callbacks=[callbacks.TargetEMA(0.9), callbacks.Checkpoint(directory), Dies()],
    )
    np.savez(result, *[v.numpy() for v in [*model.weights, *model.optimizer.variables, *model.objective.variables]])
    print("decoded", sum(epoch < int(epochs) for epoch in decoded))  # more are read ahead
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """A folder of 24 images in three classes, whose halves differ."""
    folder = tmp_path_factory.mktemp("images")
    pixels = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 3))
    pixels[:12] //= 4
    for number, image in enumerate(pixels.astype(np.uint8)):
        (folder / str(number % 3)).mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / str(number % 3) / f"{number:02}.png")
    return folder


def program(strategy, images, directory, result, victim=""):
    words = [
        sys.executable,
        "-c",
        textwrap.dedent(PROGRAM),
        strategy,
        EPOCHS,
        images,
        directory,
        result,
        victim,
    ]
    return [str(word) for word in words]


def start(command, **environment):
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_workers(*commands):
    """One process a command, together a cluster on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in commands]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return [
        start(
            command,
            TF_CONFIG=json.dumps(
                {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            ),
        )
        for index, command in enumerate(commands)
    ]


def two_programs(images, directory, tag, victim=None, signal_number=""):
    results = [directory / f"{tag}{index}.npz" for index in range(2)]
    signals = [signal_number if index == victim else "" for index in range(2)]
    return start_workers(
        *(program("multiworker", images, directory, *own) for own in zip(results, signals, strict=True))
    )


def finish(processes):
    """Waits until all have ended well; returns how many images each has decoded in the epochs that it trained."""
    try:
        said = [process.communicate(timeout=TIME_LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, error) in zip(processes, said, strict=True):
        assert process.returncode == 0, error[-4000:]
    return [int(output.split("decoded ")[-1]) for output, _ in said]


def arrays(file):
    with np.load(file) as archive:
        return {name: archive[name] for name in archive.files if name != "meta.json"}


@pytest.fixture(scope="module")
def uninterrupted(images, tmp_path_factory):
    """The folder of an uninterrupted run of two workers, and how many images each has decoded."""
    folder = tmp_path_factory.mktemp("workers")
    folder.joinpath("run").mkdir()
    return folder / "run", finish(two_programs(images, folder / "run", "worker"))


def test_two_workers_decode_half_each_and_equal_one_process(uninterrupted, images, tmp_path):
    whole, decoded = uninterrupted
    assert finish([start(program("one", images, tmp_path, tmp_path / "one.npz"))]) == [EPOCHS * 24]
    assert decoded == [EPOCHS * 12] * 2
    # The chief alone has written, and left nothing half done.
    checkpoints = [f"checkpoint-{epoch:06d}.npz" for epoch in (1, 2)]
    assert sorted(p.name for p in whole.iterdir()) == [*checkpoints, "worker0.npz", "worker1.npz"]
    found, expected = ([arrays(folder / name) for name in checkpoints] for folder in (whole, tmp_path))
    assert found[0].keys() == expected[0].keys()
    for variable, value in expected[0].items():
        # A wrong sum would change how far the second epoch moves a variable by tenths, rounding by less than a
        # ten-thousandth. A bias before a batch normalisation is moved by rounding alone.
        atol = 1e-4 * np.max(np.abs(expected[1][variable] - value), initial=0.0) + 1e-5
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one[variable], other[variable], rtol=0, atol=atol, err_msg=variable)
    first, second = (arrays(whole / f"worker{index}.npz") for index in range(2))
    for variable, value in first.items():
        np.testing.assert_array_equal(second[variable], value)


@pytest.mark.parametrize("victim, number", [(0, signal.SIGKILL), (1, signal.SIGTERM)])
def test_a_killed_worker_ends_the_other_and_both_go_on(uninterrupted, images, tmp_path, victim, number):
    whole, _ = uninterrupted
    processes = two_programs(images, tmp_path, "killed", victim, int(number))
    try:
        assert processes[victim].wait(TIME_LIMIT) == -number
        # From here on time counts: TensorFlow notices a worker that is gone by its heartbeats, after 10 seconds.
        error = processes[1 - victim].communicate(timeout=120)[1]
    finally:
        for process in processes:
            process.kill()
    # An exception where TensorFlow can raise one; it aborts the process where its coordinator was the victim.
    assert processes[1 - victim].returncode not in (0, -9)
    assert "Unavailable" in error or "UNAVAILABLE" in error, error[-4000:]
    assert not list(tmp_path.glob("killed*.npz"))

    finish(two_programs(images, tmp_path, "resumed"))
    for index in range(2):
        expected, found = arrays(whole / f"worker{index}.npz"), arrays(tmp_path / f"resumed{index}.npz")
        for variable, value in expected.items():
            np.testing.assert_array_equal(found[variable], value)
