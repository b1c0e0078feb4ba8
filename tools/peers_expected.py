"""What lightly's losses make of some outputs, for `make test-peers`.

Usage: .venv-peers/bin/python tools/peers_expected.py FILE.npz

Runs in an environment of its own, which knows nothing of this library; tests/peers reads the file in the other one, which
knows nothing of PyTorch. For each loss the file holds its value and its gradient with respect to the online outputs
[M, B, Q], of two views, and of four where lightly takes as many. What they are computed from is in there too: outputs of
float32, which lightly computes with in float64, a queue, prototypes, directions.
"""

import sys
from collections.abc import Callable
from unittest import mock

import numpy as np
import torch

# lightly imports it for networks and for losses of maps; the build of it that there is for a CPU is no part of the index.
for module in ("torchvision", "torchvision.ops", "torchvision.models", "torchvision.transforms"):
    sys.modules[module] = mock.MagicMock()

import lightly  # noqa: E402
from lightly import loss as losses  # noqa: E402
from lightly.loss.lejepa_loss import SIGReg, lejepa_invariance_loss  # noqa: E402

IMAGES, SIZE, KEYS, PROTOTYPES, SLICES = 16, 8, 32, 12, 24
Outputs = torch.Tensor


def unit(x: Outputs) -> Outputs:
    """Divides by the norm."""
    return torch.nn.functional.normalize(x, dim=-1)


def moco(queue: Outputs) -> Callable[[Outputs, Outputs], Outputs]:
    """The mean over both directions of a contrast with keys [K, Q]."""

    def one_way(q: Outputs, k: Outputs) -> Outputs:
        loss = losses.NTXentLoss(temperature=0.2, memory_bank_size=tuple(queue.shape))
        loss.memory_bank.bank = queue.clone()  # which the loss adds the keys to
        return loss(q, k)

    return lambda q, k: (one_way(q[0], k[1]) + one_way(q[1], k[0])) / 2


def lejepa(directions: Outputs) -> Callable[[Outputs, Outputs], Outputs]:
    """Along directions [S, Q], with the quadrature of the paper, whose points on one side are 8."""
    sigreg = SIGReg(knots=9, t_max=5.0, num_vectors=len(directions)).double()
    # Its points and weights are of float32.
    sigreg.t = torch.linspace(0, 5, 9, dtype=torch.float64)
    sigreg.phi = torch.exp(-sigreg.t.square() / 2)
    trapezoid = torch.full((9,), 1.25, dtype=torch.float64)
    trapezoid[[0, -1]] = 0.625
    sigreg.weights = trapezoid * sigreg.phi
    sigreg._generate_unit_vectors = lambda *_: directions.T

    def value(z: Outputs, _: Outputs) -> Outputs:
        return 0.95 * lejepa_invariance_loss(all_proj=z, global_proj=z) + 0.05 * sigreg(z)

    return value


def main(path: str) -> None:
    """Computes everything and writes the file."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {
        "version_lightly": np.array(lightly.__version__),
        "version_torch": np.array(torch.__version__),
    }
    for views in (2, 4):
        image = rng.normal(size=(1, IMAGES, SIZE))
        for name in ("online", "target"):
            noise = rng.normal(size=(views, IMAGES, SIZE))
            arrays[f"{name}_{views}"] = (image + 0.7 * noise).astype(np.float32)
    for name, count in (("queue", KEYS), ("prototypes", PROTOTYPES), ("directions", SLICES)):
        vectors = rng.normal(size=(count, SIZE))
        arrays[name] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    given = {
        name: torch.tensor(array, dtype=torch.float64)
        for name, array in arrays.items()
        if array.dtype == np.float32
    }
    cosine, contrast = losses.NegativeCosineSimilarity(), losses.NTXentLoss(temperature=0.1)
    barlow, vicreg, swav = losses.BarlowTwinsLoss(lambda_param=0.0051), losses.VICRegLoss(), losses.SwaVLoss()
    prototypes = given["prototypes"]
    cases: dict[str, Callable[[Outputs, Outputs], Outputs]] = {
        "byol_2": lambda q, z: 4 + 2 * (cosine(q[0], z[1]) + cosine(q[1], z[0])),
        "simsiam_2": lambda q, z: (cosine(q[0], z[1]) + cosine(q[1], z[0])) / 2,
        "nt_xent_2": lambda q, _: contrast(q[0], q[1]),
        "moco_2": moco(given["queue"]),
        "barlow_twins_2": lambda q, _: barlow(q[0], q[1]),
        "vicreg_2": lambda q, _: vicreg(q[0], q[1]),
        "swav_2": lambda q, _: swav([unit(x) @ prototypes.T for x in q], []),
        "swav_4": lambda q, _: swav([unit(x) @ prototypes.T for x in q], []),
        "lejepa_2": lejepa(given["directions"]),
        "lejepa_4": lejepa(given["directions"]),
    }
    for name, loss in cases.items():
        views = name[-1]
        online = given[f"online_{views}"].clone().requires_grad_()
        value = loss(online, given[f"target_{views}"])
        value.backward()
        arrays[f"{name}_value"] = np.array(value.item())
        arrays[f"{name}_gradient"] = online.grad.numpy()
    np.savez(path, **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
