"""The training step on a CPU beside PyTorch's, by turns in one run.

    python benchmarks/peers.py --model small --batch 128 --steps 10       (needs .venv-peers: make test-peers)
    python benchmarks/peers.py --model r50 --batch 8 --steps 1

PyTorch trains BYOL without views by SGD (peers_torch.py). Ours is the step that `fit` runs of the same network and heads: that
BYOL, with the images' centres for views; and SSL-HSIC as it is trained, with LARS or AdamW (and, of the small network, online
classifier and weight average), with the centres and with its views. One round is `--steps` steps of each. Seconds are the
least of the rounds' medians, ratios the medians over the rounds of the ratio to ours without views in the same round. It
needs an idle machine: PyTorch's threads wait for each other in loops, so that beside other work its processor time grows as
its wall time does.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

# As `keras-sslhsic pretrain` has it: the networks of a step run side by side.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import peers_torch
import tensorflow as tf
import variants

HERE = Path(__file__).resolve().parent
BASE = "ours, without views"
# {name: (what is added to the model's name, the part left out)}
OURS = {"ours, with views": ("", None), BASE: ("", "views"), "ours, BYOL as PyTorch's": ("_byol", "views")}


def ours(name: str, batch_size: int, without: str | None) -> tuple[Callable[[], object], int]:
    """One step, in a graph; and how many parameters its networks have."""
    model, step, batch = variants.build(name, batch_size, without)
    compiled, data = tf.function(step, autograph=False), variants.random_batch(batch)
    trained = [v for network in model.online_networks for v in network.trainable_variables]
    return lambda: compiled(data), sum(math.prod(v.shape) for v in trained)


class Peers:
    """The process that runs PyTorch's steps when it is told to."""

    def __init__(self, python: Path, model: str, batch_size: int):
        self.process = subprocess.Popen(
            [python, HERE / "peers_torch.py", model, str(batch_size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.parameters = json.loads(self._answer())

    def _answer(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("PyTorch's process ended: look at what it printed.")
        return line

    def measure(self, name: str, steps: int) -> list[float]:
        """As `peers_torch.measure`."""
        print(name, steps, sep=";", file=self.process.stdin, flush=True)
        return json.loads(self._answer())


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=[*peers_torch.NETWORKS], default="small")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--eager", action="store_true", help="leave out torch.compile, which takes minutes")
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".venv-peers/bin/python")
    options = parser.parse_args()
    peers = Peers(options.peers, options.model, options.batch)
    steps = {}
    for name, (kind, without) in OURS.items():
        steps[name], parameters = ours(options.model + kind, options.batch, without)
        if parameters != peers.parameters:
            raise SystemExit(
                f"The networks differ: {parameters} parameters here, {peers.parameters} in PyTorch."
            )
    named = [name for name, (_, compiled) in peers_torch.VARIANTS.items() if not (compiled and options.eager)]
    rounds: list[dict[str, list[float]]] = []
    for _ in range(1 + options.rounds):  # the first traces and compiles
        found = {
            name: peers_torch.measure(step, options.steps if rounds else 1) for name, step in steps.items()
        }
        found |= {name: peers.measure(name, options.steps if rounds else 1) for name in named}
        rounds.append(found)
        print(json.dumps(found), file=sys.stderr, flush=True)
    print(f"| {options.model}, batch {options.batch} | s | processor s | wall ratio | processor ratio |")
    print("|---|---|---|---|---|")
    for name in rounds[0]:
        least = [min(found[name][clock] for found in rounds[1:]) for clock in (0, 1)]
        ratios = [
            statistics.median(found[name][clock] / found[BASE][clock] for found in rounds[1:])
            for clock in (0, 1)
        ]
        print(f"| {name} | {least[0]:.3f} | {least[1]:.3f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
