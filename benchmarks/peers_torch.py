"""BYOL's training step in PyTorch, for peers.py, whose process tells this one what to run.

Networks are those of `keras_sslhsic.build_encoder`, with PyTorch's own padding and initial values: they cost the same.
"""

import copy
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

# blocks, channels, bottleneck, stem's channels, (channels, size) of the views, hidden size of the heads
NETWORKS: dict[str, tuple] = {
    "small": ((2, 2, 2, 2), (32, 64, 128, 256), False, 32, (1, 28), 1024),
    "r50": ((3, 4, 6, 3), (256, 512, 1024, 2048), True, 64, (3, 224), 4096),
}
# {name: (channels_last, compiled)}
VARIANTS = {
    "PyTorch, eager": (False, False),
    "PyTorch, eager, channels_last": (True, False),
    "PyTorch, compiled": (False, True),
    "PyTorch, compiled, channels_last": (True, True),
}


def measure(step: Callable[[], Any], steps: int) -> list[float]:
    """[seconds, processor seconds of all threads] of a step, medians."""
    wall, processor = [], []
    for _ in range(steps):
        started, used = time.perf_counter(), time.process_time()
        step()
        wall.append(time.perf_counter() - started)
        processor.append(time.process_time() - used)
    return [statistics.median(wall), statistics.median(processor)]


def make_networks(name: str) -> tuple[Any, Any]:
    """(encoder with projector, predictor)."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    blocks, channels, bottleneck, stem, (depth, _), hidden = NETWORKS[name]

    def convolution(inputs: int, outputs: int, taps: int, stride: int = 1) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, taps, stride, taps // 2, bias=False),
            nn.BatchNorm2d(outputs),
        ]

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int, project: bool):
            super().__init__()
            inner = outputs // 4
            layers = (
                [
                    *convolution(inputs, inner, 1),
                    nn.ReLU(True),
                    *convolution(inner, inner, 3, stride),
                    nn.ReLU(True),
                ]
                + convolution(inner, outputs, 1)
                if bottleneck
                else [
                    *convolution(inputs, outputs, 3, stride),
                    nn.ReLU(True),
                    *convolution(outputs, outputs, 3),
                ]
            )
            self.residual = nn.Sequential(*layers)
            self.shortcut = nn.Sequential(*(convolution(inputs, outputs, 1, stride) if project else []))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.relu(self.residual(x) + self.shortcut(x), inplace=True)

    def encoder() -> Sequence[nn.Module]:
        layers = [*convolution(depth, stem, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
        inputs = stem
        for group, (count, outputs) in enumerate(zip(blocks, channels, strict=True)):
            for block in range(count):
                layers.append(Block(inputs, outputs, 2 if group and not block else 1, not block))
                inputs = outputs
        return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()]

    def head(inputs: int) -> Sequence[nn.Module]:
        hidden_layer = [nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(True)]
        return [*hidden_layer, nn.Linear(hidden, 256, bias=False)]

    return nn.Sequential(*encoder(), *head(channels[-1])), nn.Sequential(*head(256))


def parameters(name: str) -> int:
    """How many numbers gradients train."""
    return sum(p.numel() for network in make_networks(name) for p in network.parameters())


def make_step(name: str, batch_size: int, channels_last: bool, compiled: bool) -> Callable[[], None]:
    """One step: forward and backward of two views, SGD, and the target's moving average."""
    import torch

    depth, size = NETWORKS[name][4]
    memory = torch.channels_last if channels_last else torch.contiguous_format
    online, predictor = make_networks(name)
    target = copy.deepcopy(online.to(memory_format=memory)).requires_grad_(False)
    optimizer = torch.optim.SGD([*online.parameters(), *predictor.parameters()], 0.01, 0.9, weight_decay=1e-6)
    views = [torch.randn(batch_size, depth, size, size).to(memory_format=memory) for _ in range(2)]

    def objective(one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        predictions = [predictor(online(x)) for x in (one, two)]
        with torch.no_grad():
            targets = [target(x) for x in (two, one)]
        return -sum(
            torch.nn.functional.cosine_similarity(p, t).mean()
            for p, t in zip(predictions, targets, strict=True)
        )

    loss = torch.compile(objective) if compiled else objective

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(*views).backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_([*target.parameters()], [*online.parameters()], 0.01)

    return step


def main() -> None:
    """Prints how many parameters there are; then answers lines NAME;STEPS with [seconds, processor seconds] of a step."""
    name, batch_size, made = sys.argv[1], int(sys.argv[2]), {}
    print(parameters(name), flush=True)
    for line in sys.stdin:
        variant, steps = line.strip().split(";")
        if variant not in made:
            made[variant] = make_step(name, batch_size, *VARIANTS[variant])
        print(json.dumps(measure(made[variant], int(steps))), flush=True)


if __name__ == "__main__":
    main()
