"""What starting costs, in processor seconds.

    python benchmarks/startup.py

Each row is a process of its own, user and system time of all its threads, the least of several: other work on a
machine makes it longer, and none makes it shorter. The first step is that of the default run, which traces the step;
the fourth is beside it.
"""

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = {
    "import tensorflow, keras": ["-c", "import tensorflow, keras"],
    "import keras_sslhsic": ["-c", "import keras_sslhsic"],
    "keras-sslhsic --help": ["keras_sslhsic_command.py", "--help"],
}
STEPS = """
import time
import keras, numpy as np
import keras_sslhsic
from keras_sslhsic.runs import build, config
import tensorflow as tf

class Clock(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.last = time.process_time()
    def on_train_batch_end(self, batch, logs=None):
        now = time.process_time()
        print(now - self.last, flush=True)
        self.last = now

model = build.build_model(config.completed(config.read("configs/fashion_small.py")), 78, tf.distribute.get_strategy())
images = np.random.default_rng(0).integers(0, 256, (512, 28, 28, 1), np.uint8)
model.fit({"image": images, "label": np.arange(512) % 10}, batch_size=128, verbose=0, callbacks=[Clock()])
"""


def processor_seconds(command: list[str]) -> tuple[float, str]:
    """What a process takes, and what it prints."""
    settings = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | settings,
        check=True,
        text=True,
        stdout=subprocess.PIPE,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| what | processor s |\n|---|---|")
    for name, command in COMMANDS.items():
        print(
            f"| {name} | {min(processor_seconds(command)[0] for _ in range(options.rounds)):.2f} |",
            flush=True,
        )
    steps = [
        [float(line) for line in processor_seconds(["-c", STEPS])[1].split()] for _ in range(options.rounds)
    ]
    for number in (1, 4):
        print(
            f"| step {number} of the default run | {min(step[number - 1] for step in steps):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
