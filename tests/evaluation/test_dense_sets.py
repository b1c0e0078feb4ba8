"""Images with maps from files: as VOC2012 and NYUv2 are published, and folders of one's own."""

import warnings

import h5py
import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from scipy.io import savemat

from keras_sslhsic.evaluation import dense_sets
from keras_sslhsic.evaluation.dense_sets import class_map, depth_map, load_depths, load_masks
from keras_sslhsic.evaluation.maps import VOID

RNG = np.random.default_rng(0)


def save(file, values, palette=False):
    file.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(values)
    if palette:
        image.putpalette(RNG.integers(0, 256, 768).astype(np.uint8).tobytes())
        assert image.mode == "P"
    image.save(file)


def photograph(height=20, width=24):
    return RNG.integers(0, 256, (height, width, 3), np.uint8)


def mask_of(number, height=20, width=24):
    mask = np.full((height, width), number, np.uint8)
    mask[0] = VOID
    return mask


@pytest.fixture
def voc(tmp_path):
    """Two images to train on, two to validate, and of the boundaries four more, one of which is a validation image."""
    root = tmp_path / "VOCdevkit/VOC2012"
    lists = {"train": ["a1", "a2"], "val": ["b1", "b2"]}
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    for name, own in lists.items():
        (root / f"ImageSets/Segmentation/{name}.txt").write_text("\n".join(own) + "\n")
        for number, image in enumerate(own):
            save(root / f"SegmentationClass/{image}.png", mask_of(number + 1), palette=True)
    for image in ("a1", "a2", "b1", "b2", "c1", "c2"):
        save(root / f"JPEGImages/{image}.jpg", photograph())
    boundaries = tmp_path / "benchmark_RELEASE/dataset"
    (boundaries / "cls").mkdir(parents=True)
    (boundaries / "train.txt").write_text("a1\nc1\n")
    (boundaries / "val.txt").write_text("c2\nb2\n")
    for number, image in enumerate(("a1", "c1", "c2", "b2")):
        segmentation = {"GTcls": {"Segmentation": mask_of(10 + number), "Boundaries": 0}}
        savemat(boundaries / f"cls/{image}.mat", segmentation)
    return tmp_path


def test_voc_is_trained_on_its_augmented_set(voc):
    found = load_masks("voc2012", data_dir=voc, crop_size=16)
    train, test = found["train"], found["test"]
    assert (len(train), len(test), train.num_classes) == (4, 2, 21)
    # a1 and a2 have VOC's own masks; no validation image is trained on.
    assert [int(train.target(i)[5, 5]) for i in range(4)] == [1, 2, 11, 12]
    assert [int(test.target(i)[5, 5]) for i in range(2)] == [1, 2]
    [(images, maps)] = test.batches(2).as_numpy_iterator()
    assert images.shape == (2, 16, 16, 3) and maps.shape == (2, 16, 16)
    # The same set as PNG files.
    for name, number in (("a1", 1), ("c1", 11), ("c2", 12), ("b2", 13)):
        save(voc / f"VOCdevkit/VOC2012/SegmentationClassAug/{name}.png", mask_of(number))
    again = load_masks("voc2012", data_dir=voc, crop_size=np.int64(16))["train"]
    assert [int(again.target(i)[5, 5]) for i in range(4)] == [1, 2, 11, 12]


def test_what_voc_lacks_is_named_with_its_archive(voc, tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"has no VOCdevkit/VOC2012. Get VOCtrainval_11-May-2012.tar .* unpack it in"
    ):
        load_masks("voc2012", data_dir=tmp_path / "none")
    (voc / "benchmark_RELEASE/dataset/cls/c2.mat").rename(tmp_path / "c2.mat")
    with pytest.raises(FileNotFoundError, match=r"1 files are missing, such as .*c2.mat. Get benchmark.tgz"):
        load_masks("voc2012", data_dir=voc)
    (tmp_path / "c2.mat").rename(voc / "benchmark_RELEASE/dataset/cls/c2.mat")
    (voc / "VOCdevkit/VOC2012/JPEGImages/c1.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 files are missing, such as .*c1.jpg"):
        load_masks("voc2012", data_dir=voc)
    (voc / "benchmark_RELEASE").rename(tmp_path / "elsewhere")
    with pytest.raises(
        FileNotFoundError, match=r"augmented set of VOC2012, .* is missing. Get benchmark.tgz"
    ):
        load_masks("voc2012", data_dir=voc)


@pytest.fixture
def labelled(tmp_path):
    """Five labelled images as nyu_depth_v2_labeled.mat has them: [N, C, W, H]."""
    images = RNG.integers(0, 256, (5, 3, 64, 48), np.uint8)
    depths = RNG.uniform(1, 9, (5, 64, 48)).astype(np.float32)
    with h5py.File(tmp_path / "nyu_depth_v2_labeled.mat", "w") as file:
        file["images"], file["depths"] = images, depths
    savemat(tmp_path / "splits.mat", {"trainNdxs": [[1], [4]], "testNdxs": [[2], [3], [5]]})
    return tmp_path, images, depths


def test_nyu_labelled(labelled):
    where, images, depths = labelled
    found = load_depths("nyu_depth_v2", data_dir=where, crop_size=(20, 28), short_side=24)
    assert [len(part) for part in found.values()] == [2, 3]
    np.testing.assert_array_equal(found["train"].read(1), images[3].transpose(2, 1, 0))
    np.testing.assert_array_equal(found["test"].target(2), depths[4].T)
    [(pixels, maps)] = found["test"].batches(3).as_numpy_iterator()
    assert pixels.shape == (3, 20, 28, 3) and maps.dtype == np.float32
    # Halved: each depth is that of a pixel of the four.
    four = depths[1].T.reshape(24, 2, 32, 2)[2:22, :, 2:30]
    assert (np.abs(maps[0][:, None, :, None] - four).min(axis=(1, 3)) == 0).all()
    (where / "splits.mat").unlink()
    with pytest.raises(FileNotFoundError, match=r"There is no .*splits.mat beside nyu_depth_v2_labeled.mat"):
        load_depths("nyu_depth_v2", data_dir=where)


class NyuDepthV2(tfds.core.GeneratorBasedBuilder):
    """As TensorFlow Datasets has it, smaller."""

    VERSION = tfds.core.Version("0.0.1")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(48, 64, 3), dtype=np.uint8),
            "depth": tfds.features.Tensor(shape=(48, 64), dtype=np.float16),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._examples(4), "validation": self._examples(2)}

    def _generate_examples(self):
        raise NotImplementedError

    def _examples(self, count):
        for i in range(count):
            yield (
                i,
                {
                    "image": np.full((48, 64, 3), 50 * i, np.uint8),
                    "depth": np.full((48, 64), i + 0.5, np.float16),
                },
            )


def test_nyu_of_tfds(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"nyu_depth_v2 is not prepared .*Put nyu_depth_v2_labeled.mat and splits.mat"
    ):
        load_depths("nyu_depth_v2", data_dir=tmp_path)
    config = tfds.download.DownloadConfig(num_shards=1, try_download_gcs=False)
    NyuDepthV2(data_dir=tmp_path).download_and_prepare(download_config=config)
    found = load_depths("nyu_depth_v2", data_dir=tmp_path, crop_size=np.array([20, 28]))
    assert [len(part) for part in found.values()] == [4, 2]
    for part in found.values():
        for i in range(len(part)):
            assert part.read(i).dtype == np.uint8 and part.target(i).dtype == np.float32
            assert part.target(i)[0, 0] == part.read(i)[0, 0, 0] / 50 + 0.5
    with pytest.raises(ValueError, match="have 3 channels, and the encoder reads 1"):
        load_depths("nyu_depth_v2", data_dir=tmp_path, channels=1)


def test_folders_of_masks(tmp_path):
    for i in range(10):
        save(tmp_path / f"images/{i}.jpg", photograph())
        save(tmp_path / f"masks/{i}.png", mask_of(i % 4), palette=i % 2 == 0)
    found = load_masks(str(tmp_path), crop_size=(16, 24), channels=1)
    assert {name: len(part) for name, part in found.items()} == {"train": 8, "test": 2}
    assert found["train"].num_classes == 4 and found["test"].recipe()["folder_held_out"] == 0.2
    [(images, maps)] = found["train"].batches(8).as_numpy_iterator()
    assert images.shape == (8, 16, 24, 1) and set(np.unique(maps)) <= {0, 1, 2, 3}
    with pytest.raises(
        ValueError, match=r"A mask has the class 3, where there are 3 .*--num-classes.* to 4 or more"
    ):
        for part in load_masks(str(tmp_path), crop_size=16, num_classes=3).values():
            [part.target(i) for i in range(len(part))]
    (tmp_path / "masks/7.png").unlink()
    with pytest.raises(
        ValueError, match=r"1 of 10 images have no map of their name in .*masks, such as .*7.jpg"
    ):
        load_masks(str(tmp_path))


def test_folders_of_depth(tmp_path):
    for split, count in (("train", 3), ("test", 2)):
        for i in range(count):
            save(tmp_path / split / f"images/sub/{i}.png", photograph())
            depth = np.full((20, 24), 1500 + i, np.uint16)
            depth[0] = 0
            save(tmp_path / split / f"depth/sub/{i}.png", depth)
    np.save(tmp_path / "test/depth/sub/1.npy", np.full((20, 24), np.nan))
    (tmp_path / "test/depth/sub/1.png").unlink()
    found = load_depths(str(tmp_path), crop_size=16, short_side=20)
    assert [len(part) for part in found.values()] == [3, 2]
    assert found["train"].target(2)[1, 0] == np.float32(1.502) and found["train"].target(2)[0, 0] == 0
    assert (found["test"].target(1) == 0).all()
    assert load_depths(str(tmp_path), depth_scale=500)["train"].target(0)[1, 0] == 3.0


def test_files_that_are_no_maps(tmp_path):
    save(tmp_path / "colours.png", photograph())
    save(tmp_path / "deep.png", np.full((4, 4), 300, np.uint16))
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    for file, read, message in (
        ("colours.png", class_map, "colours.png is no mask: expected a PNG of 8 bits"),
        ("deep.png", class_map, "deep.png is no mask"),
        ("colours.png", depth_map, "colours.png is no map of depth: expected a PNG of 16 bits"),
        ("broken.png", depth_map, "broken.png cannot be read as PNG or .npy"),
    ):
        with pytest.raises(ValueError, match=message):
            read(tmp_path / file)
    assert (depth_map(tmp_path / "deep.png") == np.float32(0.3)).all()


@pytest.mark.parametrize(
    ("source", "settings", "message"),
    [
        ("nowhere", {}, "nowhere is no folder: give voc2012, or a folder with images and masks in it"),
        ("voc2012", {"crop_size": 0}, "crop_size must be at least 1"),
        ("voc2012", {"crop_size": (1, 2, 3)}, "crop_size must be an integer"),
        ("voc2012", {"num_classes": 1}, "num_classes"),
    ],
)
def test_what_cannot_be_loaded(source, settings, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_masks(source, **settings)


def test_a_folder_without_maps(tmp_path):
    save(tmp_path / "images/a.png", photograph())
    with pytest.raises(
        FileNotFoundError, match=r"has no folder masks: expected .*images with the images, and .*masks"
    ):
        load_masks(str(tmp_path))


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ((0, VOID), "have the class 0 alone apart from 255, .* binary masks 0 and 1, not 0 and 255"),
        ((VOID, VOID), "have no class apart from 255"),
        ((0, 1), None),
    ],
)
def test_masks_of_less_than_two_classes(tmp_path, levels, message):
    for name in "abc":
        save(tmp_path / f"images/{name}.png", photograph())
        save(tmp_path / f"masks/{name}.png", np.repeat(np.uint8([*levels, VOID]), 160).reshape(20, 24))
    if message is None:
        assert load_masks(str(tmp_path))["train"].num_classes == 2
        return
    for given in (None, 2):
        with pytest.raises(ValueError, match=message):
            load_masks(str(tmp_path), num_classes=given)


def test_levels_of_gray_are_not_taken_for_many_classes_silently(tmp_path):
    for name in "abc":
        save(tmp_path / f"images/{name}.png", photograph())
        save(tmp_path / f"masks/{name}.png", np.repeat(np.uint8([0, 50, 100]), 160).reshape(20, 24))
    with pytest.warns(UserWarning, match="have 3 classes with numbers up to 100, of which a network of 101"):
        assert load_masks(str(tmp_path))["train"].num_classes == 101
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_masks(str(tmp_path), num_classes=101)["train"].num_classes == 101


@pytest.mark.parametrize(("load", "kind"), [(load_masks, "masks"), (load_depths, "depth")])
def test_maps_have_the_aspect_of_their_images(tmp_path, load, kind):
    rng = np.random.default_rng(0)

    def write(*size):
        values = rng.integers(0, 2, size)
        save(tmp_path / f"{kind}/a.png", values.astype(np.uint8 if kind == "masks" else np.uint16))

    save(tmp_path / "images/b.png", photograph(45, 50))
    save(tmp_path / f"{kind}/b.png", np.eye(45, 50).astype(np.uint8 if kind == "masks" else np.uint16))
    for size in (
        (45, 50),
        (90, 100),
        (22, 25),
        (23, 25),
        (12, 13),
        (45, 51),
    ):  # of other resolutions, rounded
        save(tmp_path / "images/a.png", photograph(45, 50))
        write(*size)
        assert len(load(str(tmp_path))["train"]) == 1
    for size in ((90, 20), (50, 45), (20, 20)):
        write(*size)
        message = (
            rf"{kind}.a.png has {size[0]} x {size[1]} pixels, and its image .*images.a.png 45 x 50, upright"
        )
        with pytest.raises(ValueError, match=message):
            load(str(tmp_path))
    # The image is turned by its EXIF orientation, and the map is not.
    write(45, 50)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photograph(45, 50)).save(tmp_path / "images/a.png", exif=exif)
    with pytest.raises(ValueError, match=r"45 x 50 pixels, and its image .* 50 x 45, upright"):
        load(str(tmp_path))
    write(50, 45)
    assert len(load(str(tmp_path))["train"]) == 1
    (tmp_path / "images/a.png").write_bytes(b"broken")
    assert len(load(str(tmp_path))["train"]) == 1


def test_one_image_is_too_few(tmp_path):
    save(tmp_path / "images/a.png", photograph())
    save(tmp_path / "masks/a.png", np.eye(20, 24).astype(np.uint8))
    with pytest.raises(ValueError, match=r"^Holding out 0.2 of 1 image leaves none: give more of them"):
        load_masks(str(tmp_path))


def test_the_settings_are_the_loaders():
    for needs in (dense_sets.FOR_SEGMENTATION, dense_sets.FOR_DEPTH):
        arguments = set(needs.load.__kwdefaults__) - {"channels"}
        assert set(needs.settings) == arguments
