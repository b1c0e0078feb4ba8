"""The torchvision rows of `benchmarks/input.py`, in a process of their own: torch crashes beside TensorFlow.

    python benchmarks/input_torch.py FOLDER WORKERS BATCH

Prints one line of JSON, images a second by the name of the row, or null if torchvision is not installed.
"""

import json
import sys
import time


def rate(folder: str, workers: int, batch: int, to_tensor) -> float:
    """Images a second of the second epoch of ImageFolder + DataLoader with RandomResizedCrop(224) twice."""
    import torch
    from torchvision import datasets, transforms

    crop = transforms.Compose([transforms.RandomResizedCrop(224), to_tensor])
    images = datasets.ImageFolder(folder, lambda image: (crop(image), crop(image)))
    loader = torch.utils.data.DataLoader(
        images, batch, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True
    )
    for _ in loader:
        pass
    start = time.perf_counter()
    for _ in loader:
        pass
    return len(loader) * batch / (time.perf_counter() - start)


def main() -> None:
    folder, workers, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    try:
        from torchvision import transforms
    except ImportError:
        print(json.dumps(None))
        return
    rates = {
        "uint8": rate(folder, workers, batch, transforms.PILToTensor()),
        "float32": rate(folder, workers, batch, transforms.ToTensor()),
    }
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
