"""Neighbours in a collection against all similarities in float64."""

import json
import shlex
import shutil

import numpy as np
import pytest
from PIL import Image

from keras_sslhsic.cli import main
from keras_sslhsic.data import bundled
from keras_sslhsic.data.folder import list_images
from keras_sslhsic.encoders import encoder_hash
from keras_sslhsic.zoo import nearest, rows
from keras_sslhsic.zoo.extract import extract
from keras_sslhsic.zoo.rows import Origin, Row, write

faiss = pytest.importorskip("faiss", reason="an index needs faiss")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """40 images in two folders, one that is broken, and one outside."""
    (images, _), _ = bundled.load()
    root = tmp_path_factory.mktemp("collection")
    for number, image in enumerate(images[:41]):
        folder = root / ("photos" if number < 40 else "elsewhere") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / f"{number}.png")
    (root / "photos" / "a" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    return root


@pytest.fixture(scope="module")
def collection(encoder, photos):
    extract(encoder, photos / "photos", photos / "features.npz")
    return nearest.index(photos / "features.npz", photos / "index")


def by_definition(features, query, leave_out=()):
    unit = features.astype(float) / np.linalg.norm(features.astype(float), axis=1, keepdims=True)
    similarity = unit @ (query.astype(float) / np.linalg.norm(query.astype(float)))
    order = [place for place in np.argsort(-similarity, kind="stable") if place not in leave_out]
    return order, similarity


def test_an_image_of_the_collection_finds_the_others(collection, photos):
    stored = np.load(photos / "features.npz")
    names, features = stored["files"].tolist(), stored["features"]
    for query in ("a/0.png", "b/7.png"):
        own = names.index(query)
        order, similarity = by_definition(features, features[own], {own})
        found = nearest.search(collection, photos / "photos" / query, count=5)
        # Unit vectors of 8 numbers: rounding once each, and a sum of 8 products.
        np.testing.assert_allclose([f.similarity for f in found], similarity[order[:5]], atol=20 * 2**-24)
        assert [f.file for f in found] == [names[place] for place in order[:5]]


def test_another_image_is_encoded_as_the_collection_was(collection, encoder, photos):
    image = next((photos / "elsewhere").rglob("*.png"))
    extract(encoder, photos / "elsewhere", photos / "query.npz")
    query, stored = np.load(photos / "query.npz")["features"][0], np.load(photos / "features.npz")
    order, _ = by_definition(stored["features"], query)
    found = nearest.search(nearest.load(photos / "index"), image, encoder, count=3)
    assert [f.file for f in found] == [stored["files"][place] for place in order[:3]]


def test_files_that_changed_since_are_said(encoder, photos, tmp_path):
    shutil.copytree(photos / "photos", tmp_path / "photos")
    extract(encoder, tmp_path / "photos", tmp_path / "features.npz")
    built = nearest.index(tmp_path / "features.npz", tmp_path / "index")
    collection = nearest.load(tmp_path / "index")
    assert collection.stamps == built.stamps and len(collection.stamps) == 40
    changed, another = tmp_path / "photos" / "a" / "0.png", next((photos / "elsewhere").rglob("*.png"))
    before = nearest.search(collection, changed, count=3)
    changed.write_bytes(another.read_bytes())
    with pytest.warns(UserWarning, match=r"0\.png has changed since it was indexed"):
        assert nearest.search(collection, changed, count=3) == before
    names = [found.file for found in nearest.search(collection, another, encoder, count=4)]
    now = [found.file for found in nearest.search(collection, changed, encoder, count=3)]
    assert now == [name for name in names if name != "a/0.png"][:3]
    (tmp_path / "photos" / before[1].file).unlink()
    (tmp_path / "photos" / before[0].file).write_bytes(another.read_bytes())
    with pytest.warns(UserWarning) as said:
        assert nearest.search(collection, changed, count=3) == before
    assert str(said[-1].message).startswith(f"{before[0].file}: changed since the index was built")
    # An index of an earlier version knows of no changes.
    fields = json.loads((tmp_path / "index" / "images.json").read_text())
    del fields["stamps"]
    (tmp_path / "index" / "images.json").write_text(json.dumps(fields))
    assert nearest.search(nearest.load(tmp_path / "index"), changed, count=3) == before


def test_more_than_there_are_is_all_of_them(collection, photos):
    assert len(nearest.search(collection, photos / "photos" / "a" / "0.png", count=1000)) == 39


def test_a_large_collection_is_a_graph(tmp_path, monkeypatch):
    monkeypatch.setattr(nearest, "EXACT", 100)
    features = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    found = {f"{number}.png": Row((1, 1), row) for number, row in enumerate(features)}
    write(tmp_path / "features.npz", found, Origin("encoder-2-of-operations", str(tmp_path)), 16)
    monkeypatch.setattr(nearest.rows.identity, "tells_operations", lambda _: True)
    nearest.index(tmp_path / "features.npz", tmp_path / "index")
    collection = nearest.load(tmp_path / "index")
    assert isinstance(faiss.downcast_index(collection.graph), faiss.IndexHNSWFlat)
    hits = 0
    for number in range(50):
        order, _ = by_definition(features, features[number], {number})
        found = nearest.search(collection, tmp_path / f"{number}.png", count=10)
        hits += len({f.file for f in found} & {f"{place}.png" for place in order[:10]})
    assert hits > 475  # of 500


def test_what_cannot_be_searched_is_said(collection, encoder, photos, tmp_path):
    outside = next((photos / "elsewhere").rglob("*.png"))
    with pytest.raises(ValueError, match="give the encoder that made its features"):
        nearest.search(collection, outside)
    other = collection._replace(origin=collection.origin._replace(encoder="of another"))
    with pytest.raises(ValueError, match="features of another encoder"):
        nearest.search(other, outside, encoder)
    with pytest.raises(ValueError, match="count must be at least 1"):
        nearest.search(collection, outside, encoder, count=0)
    with pytest.raises(FileNotFoundError):
        nearest.search(collection, tmp_path / "missing.png", encoder)
    with pytest.raises(ValueError, match=r"broken\.png cannot be read"):
        nearest.search(collection, photos / "photos" / "a" / "broken.png", encoder)
    (tmp_path / "text.npz").write_text("nothing")
    with pytest.raises(ValueError, match=r"text\.npz was not written by keras-sslhsic extract"):
        nearest.index(tmp_path / "text.npz", tmp_path / "index")
    for taken in (photos / "photos", photos / "features.npz"):
        with pytest.raises(ValueError, match="is there already, and is no index"):
            nearest.index(photos / "features.npz", taken)
    with pytest.raises(FileNotFoundError, match="photos holds no index: make one with `keras-sslhsic index`"):
        nearest.load(photos / "photos")
    shutil.copytree(photos / "index", tmp_path / "earlier")
    stored = json.loads((tmp_path / "earlier" / "images.json").read_text())
    assert stored.pop("resized") == rows.RESIZED and stored["image_size"] == "32"
    (tmp_path / "earlier" / "images.json").write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="earlier is of an earlier version, which resized images otherwise"):
        nearest.load(tmp_path / "earlier")
    shutil.copytree(photos / "index", tmp_path / "damaged")
    for name, content in (("graph.faiss", b"nothing"), ("images.json", b"{}")):
        (tmp_path / "damaged" / name).write_bytes(content)
        with pytest.raises(ValueError, match="damaged holds a damaged index: build it again"):
            nearest.load(tmp_path / "damaged")
    assert collection.origin.encoder == encoder_hash(encoder)


def test_a_picture_is_no_image_of_the_collection(collection, photos, tmp_path):
    query = photos / "photos" / "a" / "0.png"
    found = nearest.search(collection, query, count=2)
    for name, message in (
        (photos / "photos" / "near.png", "would be one of its images"),
        (tmp_path / "near.txt", "the ending of no kind of picture: give"),
        (tmp_path / "near.bmp", "the ending of no kind of picture that can be drawn"),
    ):
        with pytest.raises(ValueError, match=message):
            nearest.draw(collection, query, found, name)
        assert not name.exists()
    own = photos / "photos" / "neighbours.png"
    nearest.draw(collection, query, found, own)
    with pytest.warns(UserWarning, match="Left out what keras_sslhsic wrote itself"):
        assert str(own) not in list_images(photos / "photos")
    own.unlink()


def test_the_commands(collection, photos, tmp_path, capsys):
    out, sheet = tmp_path / "index", tmp_path / "neighbours.png"
    words = ["index", "--features", str(photos / "features.npz"), "--out", str(out)]
    assert main(words) == 0
    capsys.readouterr()
    assert main(words) == 0  # one that is there is replaced
    assert " holds 40 images. " in capsys.readouterr().out
    query = photos / "photos" / "a" / "0.png"
    assert (
        main(["search", "--index", str(out), "--image", str(query), "--count", "3", "--sheet", str(sheet)])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:3]] == [
        f.file for f in nearest.search(collection, query, count=3)
    ]
    with Image.open(sheet) as picture:
        assert picture.width > 500
    assert main(["search", "--index", str(tmp_path / "none"), "--image", str(query)]) == 2
    assert "there is no file or folder" in capsys.readouterr().err


def test_the_command_that_is_told_can_be_pasted(encoder, photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    extract(encoder, photos / "photos", tmp_path / "features.npz")
    assert main(["index", "--features", "features.npz", "--out", "my index"]) == 0
    told = capsys.readouterr().out.partition("keras-sslhsic ")[2].partition(" FILE")[0]
    assert main([*shlex.split(told), str(photos / "photos" / "a" / "0.png")]) == 0
