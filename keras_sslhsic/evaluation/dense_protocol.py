"""Dense transfer as a protocol: recipes to choose from, trainings with several seeds that go on after a stop, one record."""

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from keras_sslhsic import checks, files, pictures
from keras_sslhsic.data.python_map import as_raised
from keras_sslhsic.encoders import Encoder, encoder_hash, encoder_of
from keras_sslhsic.evaluation import dense, metrics
from keras_sslhsic.evaluation.dense import DenseRecipe, Task
from keras_sslhsic.evaluation.maps import MapSplit
from keras_sslhsic.evaluation.results import Result
from keras_sslhsic.evaluation.settings import Setting, natural, positive, text
from keras_sslhsic.evaluation.streams import select
from keras_sslhsic.evaluation.sweep import differing, planned, several_of, training_settings, warn_of_batch

_SHOWN = 4  # test images in the picture


@as_raised()
def evaluate(
    task: Task,
    encoder: keras.Model,
    splits: Mapping[str, Any],
    recipe: DenseRecipe | Sequence[DenseRecipe],
    *,
    seed: int = 0,
    seeds: int = 5,
    work_dir: str | os.PathLike | None = None,
    verbose: bool = False,
) -> Result:
    """Trains on the training images with several seeds, and measures on the test images.

    Of several recipes the best on held-out training images is taken; one alone is taken as it is.

    Args:
        task: what is predicted.
        encoder: what `encoder_of` takes; it stays as it is.
        splits: `MapSplit`s "train", "test" and perhaps "validation", which the recipe is chosen on then.
        recipe: one or several.
        seed: of the hold-out and the first training; the next has the next one.
        seeds: trainings with the best recipe.
        work_dir: folder that keeps what was trained, and the picture TASK.png; the same call goes on with it.
        verbose: whether to show progress bars.

    Returns:
        Result: means over the seeds, with intervals over the drawing of the test images.

    Raises:
        ValueError: for what is no recipe, images without maps or with maps of another kind, test maps of which nothing is
            known, or if the training diverges.
    """
    checks.integer("seeds", seeds, 1)
    if work_dir is not None:
        files.check_writable(Path(work_dir) / f"{task.name}.png")
    candidates = several_of(DenseRecipe, recipe, "recipe")
    for name, images in splits.items():
        task.check(name, images)
    encoder = encoder_of(encoder)
    known = None
    if work_dir is not None:
        known = [
            task.name,
            encoder_hash(encoder),
            seed,
            [_known_by(n, one, verbose) for n, one in splits.items()],
        ]
    run = partial(_trained, task, encoder, known, work_dir=work_dir, verbose=verbose)

    def score(fit: MapSplit, held: MapSplit) -> tuple[list[float], int]:
        found = [
            run(fit, held, one, seed)["statistics"]
            for one in tqdm(candidates, task.name, disable=not verbose)
        ]
        return [task.measures(s.sum(axis=0))[task.metric] for s in found], len(held)

    train_images, test = splits["train"], splits["test"]
    validation = splits.get("validation", min(task.held_out, len(train_images) // 5))
    best, chosen, train_images, held_out = select(
        candidates, train_images, validation, seed, score, differing(candidates)
    )
    ran = [run(train_images, test, best, seed + i) for i in range(seeds)]
    statistics = np.stack([one["statistics"] for one in ran])
    if not np.isfinite(statistics).all():
        raise ValueError(f"The network diverged: lower the learning rate ({best.learning_rate:g}).")
    num_test = statistics.shape[1]
    statistics = statistics[:, statistics.any(axis=(0, 2))]  # the others have nothing to measure on
    if not statistics.size:
        raise ValueError("No pixel of the test maps is known: give maps with classes, or with depth.")
    warn_of_batch(best.batch_size, min(best.batch_size, len(train_images)))
    if work_dir is not None:
        _picture(task, test, ran[0]["shown"], Path(work_dir) / f"{task.name}.png")

    def mean(metric: str, weights: np.ndarray) -> float:
        return float(np.mean([task.measures(weights @ one)[metric] for one in statistics]))

    found: dict[str, dict[str, Any]] = {
        metric: {
            "value": mean(metric, np.ones(statistics.shape[1])),
            "interval": metrics.bootstrap_interval(partial(mean, metric), statistics.shape[1], seed),
            **({"unit": task.units[metric], "lower_is_better": True} if metric in task.units else {}),
        }
        for metric in task.measures(statistics[0].sum(axis=0))
    }
    given = [dataclasses.asdict(one) for one in candidates]
    varied = {key: list(dict.fromkeys(one[key] for one in given)) for key in given[0]}
    return Result(
        protocol=task.name,
        metric=task.metric,
        **found.pop(task.metric),
        others=found,
        num_test=num_test,
        num_train=len(train_images),
        seed=seed,
        recipe={
            **{key: values[0] if len(values) == 1 else values for key, values in varied.items()},
            "momentum": 0.9, "seeds": seeds, "held_out": held_out, **test.recipe(),
        },
        details={
            "values": [task.measures(one.sum(axis=0))[task.metric] for one in statistics],
            **({} if test.num_classes is None else {"num_classes": test.num_classes}),
            "learning_rate": best.learning_rate, "weight_decay": best.weight_decay,
            "validation_value": chosen.value if chosen else None,
            "at_edge": chosen.at_edge if chosen else (),
        },
    )  # fmt: skip


def settings(defaults: Mapping[str, Any]) -> dict[str, Setting]:
    """What can be set of a dense protocol that trains as `defaults` says where nothing else is given."""
    found = training_settings(defaults, "steps")
    del found["epochs"]
    return found | {
        "seeds": Setting(natural, "trainings, over which the mean is taken", "5"),
        "head_width": Setting(positive, "factor on the channels of the new layers", "1"),
        "work_dir": Setting(text, "folder to go on from if it stops, which gets a picture too", parse=str),
    }


def arguments(defaults: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `evaluate` from checked settings."""
    rest = dict(given)
    width = {"head_width": rest.pop("head_width")} if "head_width" in rest else {}
    found = planned(defaults, lambda **plan: {"recipe": recipes(**plan, **width)}, rest)
    return {"recipe": recipes(**defaults, **width), **found}


def recipes(
    learning_rates: Sequence[float], weight_decays: Sequence[float] = (0.0,), **fixed: Any
) -> tuple[DenseRecipe, ...]:
    """Every combination; `fixed` are other fields of `DenseRecipe`."""
    pairs = itertools.product(learning_rates, weight_decays)
    return tuple(DenseRecipe(learning_rate=rate, weight_decay=decay, **fixed) for rate, decay in pairs)


def _trained(
    task: Task, encoder: Encoder, known: Any, train_images: MapSplit, test: MapSplit, recipe: DenseRecipe, seed: int,
    *, work_dir: str | os.PathLike | None, verbose: bool,
) -> dict[str, np.ndarray]:  # fmt: skip
    """A training and its measurement, read back if it was made before: "statistics" [N, S], "shown", the first maps."""
    outcome = state = None
    if work_dir is not None:
        named = [known, dataclasses.asdict(recipe), seed, len(train_images), len(test)]
        name = hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]
        outcome, state = (Path(work_dir) / f"{name}.{ending}.npz" for ending in ("measured", "training"))
        if outcome.exists():
            with np.load(outcome) as found:
                return dict(found)
    network = dense.train(task, encoder, train_images, recipe, seed=seed, state=state, verbose=verbose)
    infer = tf.function(lambda images: task.decode(network(tf.cast(images, tf.float32), training=False)))
    rows: list[np.ndarray] = []
    shown: list[np.ndarray] = []
    batches = test.batches(recipe.batch_size)
    for images, targets in tqdm(batches, f"{task.name}, test", unit="batch", disable=not verbose):
        predicted = infer(images).numpy()
        rows += [
            task.statistics(t, p, test.num_classes) for t, p in zip(targets.numpy(), predicted, strict=True)
        ]
        shown += list(predicted[: _SHOWN - len(shown)])
    found = {"statistics": np.stack(rows), "shown": np.stack(shown)}
    if not all(np.isfinite(np.asarray(v)).all() for v in network.trainable_variables):
        found["statistics"] = np.full_like(found["statistics"], np.nan)
    if outcome is not None and state is not None:
        dense.write(outcome, found)
        state.unlink(missing_ok=True)
    return found


def _known_by(name: str, images: MapSplit, verbose: bool) -> list[Any]:
    """What tells the images of a split from others: every pixel of them and of their maps among it."""

    def digest(number: int) -> bytes:
        found = hashlib.sha256()
        for values in (images.read(number), images.target(number)):
            found.update(
                b"" if values is None else f"{values.dtype}{values.shape}".encode() + values.tobytes()
            )
        return found.digest()

    with ThreadPoolExecutor() as pool:
        every = pool.map(digest, range(len(images)))
        all_of_them = b"".join(tqdm(every, f"{name} images", len(images), unit="image", disable=not verbose))
    content = hashlib.sha256(all_of_them).hexdigest()
    return [name, images.shape, images.short_side, images.num_classes, content]


def _picture(task: Task, images: MapSplit, predicted: np.ndarray, path: Path) -> None:
    """Test images, their maps and the predicted ones beside each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3 * len(predicted)), layout="constrained")
    rows = figure.subplots(len(predicted), 3, squeeze=False)
    pairs = images.batches(1).unbatch().take(len(predicted)).as_numpy_iterator()
    for axes, (image, target), prediction in zip(rows, pairs, predicted, strict=True):
        axes[0].imshow(image[..., 0] if image.shape[-1] == 1 else image, cmap="gray")
        task.show(axes[1], target, images.num_classes)
        task.show(axes[2], prediction, images.num_classes)
    for axis, title in zip(rows[0], ("image", "target", "prediction"), strict=True):
        axis.set_title(title)
    for axis in rows.flat:
        axis.set_axis_off()
    pictures.save(figure, path)
