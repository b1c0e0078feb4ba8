"""Mask R-CNN with a feature pyramid, by TensorFlow Model Garden: the engine of `detection`.

    python -I mask_rcnn.py FOLDER/job.json

runs in an environment of its own, which has tf-models-official 2.20 and pycocotools, and needs nothing of this package. The job
says what is trained on and how; weights.npz beside it holds the encoder's, result.json gets what was measured. A stopped job
goes on. It ends where its standard input does, with the process that has started it.
"""

import io
import json
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

EPSILON = 1e-5  # of batch normalisation, the encoders'
_SHARD = 1000  # images in a file
_DRAWS = 200  # of the test images, for an interval
# Layers of a block of Model Garden -> of `encoders.resnet`.
_PARTS = {
    "_shortcut": "shortcut_conv", "_norm0": "shortcut_bn", "_conv1": "conv0", "_norm1": "bn0", "_conv2": "conv1",
    "_norm2": "bn1", "_conv3": "conv2", "_norm3": "bn2",
}  # fmt: skip


def backbone_of(config: Any, weights: Mapping[str, np.ndarray]) -> Any:
    """The ResNet of Model Garden with an encoder's weights.

    Args:
        config: of its Mask R-CNN.
        weights: name of a layer -> kernel, or [4, C]: gamma, beta, mean and variance of a batch normalisation.

    Raises:
        ValueError: if they are of another network.
    """
    import tf_keras
    from official.vision.modeling import backbones

    backbone = backbones.factory.build_backbone(
        input_specs=tf_keras.layers.InputSpec(shape=[None, None, None, 3]),
        backbone_config=config.backbone,
        norm_activation_config=config.norm_activation,
    )
    stem = {"stem_conv": tf_keras.layers.Conv2D, "stem_bn": tf_keras.layers.BatchNormalization}
    layers = {
        name: next(layer for layer in backbone.layers if isinstance(layer, kind))
        for name, kind in stem.items()
    }
    blocks = [layer for layer in backbone.layers if hasattr(layer, "_conv1")]
    names = dict.fromkeys(found[0] for name in weights if (found := re.match(r"group\d+_block\d+", name)))
    for block, name in zip(blocks, names, strict=True):
        layers |= {
            f"{name}_{part}": getattr(block, own) for own, part in _PARTS.items() if hasattr(block, own)
        }
    if layers.keys() != weights.keys():
        raise ValueError(f"Weights of other layers: {sorted(layers.keys() ^ weights.keys())}.")
    for name, layer in layers.items():
        layer.set_weights(list(weights[name]) if weights[name].ndim == 2 else [weights[name]])
    return backbone


def configured(job: Mapping[str, Any], folder: Path, accelerators: int) -> Any:
    """The experiment maskrcnn_resnetfpn_coco, without masks fasterrcnn_resnetfpn_coco, with what the job says instead."""
    from official.core import exp_factory
    from official.vision.tasks import maskrcnn  # noqa: F401, registers both

    steps, masks = job["steps"], job["masks"]

    def channels(number: int) -> int:
        return max(1, round(number * job["head_width"]))

    heads = {"num_filters": channels(256)}
    precision = "bfloat16" if accelerators else "float32"
    config = exp_factory.get_exp_config(f"{'mask' if masks else 'faster'}rcnn_resnetfpn_coco")
    config.override(
        {
            "runtime": {
                "distribution_strategy": "mirrored" if accelerators else "one_device",
                "num_gpus": accelerators,
                "mixed_precision_dtype": precision,
                "enable_xla": bool(accelerators),
            },
            "task": {
                "init_checkpoint": str(folder / "encoder"),
                "annotation_file": job["test"]["annotations"],
                "model": {
                    "num_classes": job["num_classes"],
                    "input_size": [job["image_size"], job["image_size"], 3],
                    "backbone": {"resnet": job["resnet"]},
                    # Averages over the last tenth of a short training, which would hold much of their start otherwise.
                    "norm_activation": {
                        "norm_epsilon": EPSILON,
                        "norm_momentum": max(0.9, min(0.997, 1 - 10 / steps)),
                    },
                    "decoder": {"fpn": heads},
                    "rpn_head": heads,
                    "detection_head": heads | {"fc_dims": channels(1024)},
                    **({"mask_head": heads} if masks else {}),
                },
                "train_data": {
                    "input_path": str(folder / "records/train*"),
                    "global_batch_size": job["batch_size"],
                    "dtype": precision,
                    "seed": job["seed"],
                },
                "validation_data": {
                    "input_path": str(folder / "records/test*"),
                    "global_batch_size": min(8, job["batch_size"]),
                    "dtype": precision,
                },
            },
            "trainer": {
                "train_steps": steps,
                "steps_per_loop": min(100, steps),
                "summary_interval": min(100, steps),
                "checkpoint_interval": 500,
                "max_to_keep": 1,
                "optimizer_config": {
                    "learning_rate": {
                        "stepwise": {
                            "boundaries": [round(steps * 2 / 3), round(steps * 8 / 9)],
                            "values": [job["learning_rate"] / 10**k for k in range(3)],
                        }
                    },
                    "warmup": {"linear": {"warmup_steps": round(steps / 45)}},
                },
            },
        }
    )
    return config


def numbered(annotations: Mapping[str, Any]) -> Any:
    """What pycocotools takes, with annotations that count from 1: it would miss one whose id is 0, or another's."""
    from pycocotools.coco import COCO

    truth = COCO()
    rows = [one | {"id": number} for number, one in enumerate(annotations["annotations"], start=1)]
    truth.dataset = {**annotations, "annotations": rows}
    truth.createIndex()
    return truth


def write_records(images: Path, annotations: Mapping[str, Any], prefix: Path, masks: bool) -> None:
    """Writes the images of a split with their boxes and masks as files of records, if they are not there."""
    truth, own = numbered(annotations), defaultdict(list)
    for annotation in annotations["annotations"]:
        own[annotation["image_id"]].append(annotation)
    entries = annotations["images"]
    shards = [entries[i : i + _SHARD] for i in range(0, len(entries), _SHARD)]
    paths = [prefix.with_name(f"{prefix.name}-{n:05d}-of-{len(shards):05d}") for n in range(len(shards))]
    if all(path.exists() for path in paths):
        return
    prefix.parent.mkdir(parents=True, exist_ok=True)

    def write(path: Path, shard: list[dict[str, Any]]) -> None:
        import tensorflow as tf

        with tf.io.TFRecordWriter(str(path.with_name(f".{path.name}"))) as writer:
            for entry in shard:
                content = (images / entry["file_name"]).read_bytes()
                draw = truth.annToMask if masks else None
                writer.write(example(entry, content, own[entry["id"]], draw))
        path.with_name(f".{path.name}").rename(path)

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, paths, shards))


def example(entry: Mapping[str, Any], content: bytes, annotations: list[dict[str, Any]], draw: Any) -> bytes:
    """The record of an image: its file, its boxes within it, and as PNG the masks that `draw` gives, if it is not None.

    Raises:
        ValueError: if the file is no image, or not of the size that its entry says, by which boxes are placed.
    """
    import tensorflow as tf
    from PIL import Image

    width, height = entry["width"], entry["height"]
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
    except (OSError, ValueError, SyntaxError) as error:
        raise ValueError(f"{entry['file_name']} is no image that can be read.") from error
    if image.size != (width, height):
        found = "{} x {}".format(*image.size)
        raise ValueError(
            f"{entry['file_name']} is {found} pixels (width x height), and the annotations say {width} x {height}."
        )
    columns: dict[str, list[Any]] = defaultdict(list)
    for annotation in annotations:
        x, y, w, h = annotation["bbox"]
        left, right = (min(max(value / width, 0.0), 1.0) for value in (x, x + w))
        top, bottom = (min(max(value / height, 0.0), 1.0) for value in (y, y + h))
        if left >= right or top >= bottom:
            continue
        row = {
            "bbox/xmin": left, "bbox/xmax": right, "bbox/ymin": top, "bbox/ymax": bottom,
            "class/label": annotation["category_id"], "area": float(annotation["area"]),
            "is_crowd": annotation["iscrowd"],
        }  # fmt: skip
        if draw is not None:
            png = io.BytesIO()
            Image.fromarray(draw(annotation)).save(png, "PNG")
            row["mask"] = png.getvalue()
        for name, value in row.items():
            columns[f"image/object/{name}"].append(value)
    columns |= {
        "image/encoded": [content], "image/height": [height], "image/width": [width],
        "image/source_id": [str(entry["id"]).encode()],
    }  # fmt: skip

    def feature(values: list[Any]) -> Any:
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    features = {name: feature(values) for name, values in columns.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def detections(model: Any, dataset: Any) -> Iterator[dict[str, Any]]:
    """What a trained network finds on images, as COCO writes results: image_id, category_id, bbox, score, segmentation."""
    import tensorflow as tf
    from official.vision.evaluation import coco_utils

    @tf.function
    def infer(images: Any, labels: Any) -> Any:
        found = model(
            images,
            anchor_boxes=labels["anchor_boxes"],
            image_shape=labels["image_info"][:, 1, :],
            training=False,
        )
        return {key: value for key, value in found.items() if key.startswith("detection_")}

    for images, labels in dataset:
        found = {key: np.array(value, np.float32) for key, value in infer(images, labels).items()}
        found["detection_classes"] = found["detection_classes"].astype(int)
        found["image_info"] = labels["image_info"].numpy()
        found["detection_boxes"] /= np.tile(found["image_info"][:, 2:3], (1, 1, 2))
        found["source_id"] = labels["groundtruths"]["source_id"].numpy()
        for one in coco_utils.convert_predictions_to_coco_annotations({k: [v] for k, v in found.items()}):
            if one["score"] > 0:  # the others fill up the hundred of an image
                one |= {"image_id": int(one["image_id"]), "category_id": int(one["category_id"])}
                yield one | {"bbox": [float(v) for v in one["bbox"]], "score": float(one["score"])}


def average_precision(truth: Any, found: list[dict[str, Any]], kind: str, seed: int) -> dict[str, Any]:
    """The numbers of COCO, by pycocotools.

    Args:
        truth: pycocotools.coco.COCO.
        found: as `detections` gives them.
        kind: "bbox" or "segm".
        seed: of the interval's draws.

    Returns:
        "AP" and its 95 % "interval" over the drawing of the test images, "AP50", "AP75", "APs", "APm", "APl".
    """
    from pycocotools.cocoeval import COCOeval

    keys = ("image_id", "category_id", "score", "bbox" if kind == "bbox" else "segmentation")
    given = [{key: one[key] for key in keys} for one in found]
    if not given:  # pycocotools takes no less than one
        image, category = (truth.dataset[name][0]["id"] for name in ("images", "categories"))
        nothing = {"image_id": image, "category_id": category, "score": 0.0, "bbox": [0.0, 0.0, 0.0, 0.0]}
        given, kind = [nothing], "bbox"
    measured = COCOeval(truth, truth.loadRes(given), kind)
    measured.evaluate()
    measured.accumulate()
    measured.summarize()
    numbers = dict(
        zip(("AP", "AP50", "AP75", "APs", "APm", "APl"), map(float, measured.stats[:6]), strict=True)
    )
    # Of all areas alone, what was found on each image: [classes, images].
    areas, images = len(measured.params.areaRng), len(measured.params.imgIds)
    each = np.empty(len(measured.evalImgs), object)
    each[:] = measured.evalImgs
    each = each.reshape(-1, areas, images)[:, 0]
    measured.params.areaRng, measured.params.maxDets = measured.params.areaRng[:1], [100]
    measured._paramsEval.areaRng, measured._paramsEval.maxDets = (
        measured.params.areaRng,
        measured.params.maxDets,
    )
    rng, values = np.random.default_rng(seed), []
    for _ in range(_DRAWS):
        measured.evalImgs = list(each[:, rng.integers(images, size=images)].ravel())
        measured.accumulate()
        precision = measured.eval["precision"]
        if (precision > -1).any():
            values.append(precision[precision > -1].mean())
    return numbers | {"interval": np.percentile(values, [2.5, 97.5]).tolist()}


def run(folder: Path) -> None:
    """Trains and measures as FOLDER/job.json says; writes FOLDER/result.json."""
    import tensorflow as tf
    from official.common import distribute_utils
    from official.core import task_factory, train_lib
    from official.modeling import performance
    from official.vision.ops import preprocess_ops

    job = json.loads((folder / "job.json").read_text())
    tf.keras.utils.set_random_seed(job["seed"])
    # The parser has no setting for it.
    preprocess_ops.normalize_image = partial(
        preprocess_ops.normalize_image, offset=job["mean"], scale=job["std"]
    )
    annotations = {
        split: json.loads(Path(job[split]["annotations"]).read_text()) for split in ("train", "test")
    }
    for split, given in annotations.items():
        print(f"engine: {split}, {len(given['images'])} images", flush=True)
        write_records(Path(job[split]["images"]), given, folder / "records" / split, job["masks"])
    config = configured(job, folder, len(tf.config.list_physical_devices("GPU")))
    performance.set_mixed_precision_policy(config.runtime.mixed_precision_dtype)
    with np.load(folder / "weights.npz") as weights:
        backbone = backbone_of(config.task.model, dict(weights))
    tf.train.Checkpoint(backbone=backbone).write(config.task.init_checkpoint)
    strategy = distribute_utils.get_distribution_strategy(
        config.runtime.distribution_strategy, num_gpus=config.runtime.num_gpus
    )
    with strategy.scope():
        task = task_factory.get_task(config.task, logging_dir=str(folder))
    print(f"engine: trains {job['steps']} steps of {job['batch_size']} images", flush=True)
    model, _ = train_lib.run_experiment(
        strategy, task, "train", config, str(folder / "training"), save_summary=False
    )
    print("engine: measures", flush=True)
    found = list(detections(model, task.build_inputs(config.task.validation_data)))
    truth = numbered(annotations["test"])
    kinds = {"box": "bbox", **({"mask": "segm"} if job["masks"] else {})}
    result: dict[str, Any] = {
        name: average_precision(truth, found, kind, job["seed"]) for name, kind in kinds.items()
    }
    result["finite"] = all(np.isfinite(v.numpy()).all() for v in model.trainable_variables)
    result["engine"] = f"tf-models-official {version('tf-models-official')}"
    written = folder / ".result.json"
    written.write_text(json.dumps(result))
    written.replace(folder / "result.json")  # there, it is whole


def end_with_input() -> None:
    """Ends this process as soon as its standard input does: whoever holds it may be killed, and another begin the same job."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_input()
    run(Path(sys.argv[1]).parent)
