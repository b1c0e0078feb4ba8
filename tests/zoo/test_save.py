import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_sslhsic import files
from keras_sslhsic.encoders import build_encoder, with_preprocessing
from keras_sslhsic.zoo import pack, registry
from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.registry import Entry
from keras_sslhsic.zoo.save import FACTS, save_pretrained


def test_the_folder_holds_all_there_is_to_know(encoder, real_images, tmp_path):
    entry = save_pretrained(
        encoder,
        tmp_path / "mine",
        name="mine",
        recipe="ten epochs",
        training_data="shoes",
        metrics={"kNN": 83.125},
        metrics_source="this test",
        licence="MIT",
    )
    assert sorted(p.name for p in (tmp_path / "mine").iterdir()) == [
        "README.md",
        "encoder.keras",
        "pretrained.json",
    ]
    assert Entry.from_json((tmp_path / "mine" / "pretrained.json").read_text()) == entry
    assert entry.sha256 == files.sha256(tmp_path / "mine" / "encoder.keras")
    assert (entry.feature_size, entry.input_size, entry.channels) == (8, 32, 3)
    assert entry.mean == (0.485, 0.456, 0.406)
    assert entry.std == (0.229, 0.224, 0.225)
    assert entry.parameters == sum(int(np.prod(w.shape)) for w in encoder.trainable_variables)
    card = (tmp_path / "mine" / "README.md").read_text()
    for text in (
        "# mine",
        "ten epochs",
        "shoes",
        "kNN: 83.12 %",
        "this test",
        "MIT",
        entry.sha256,
        "load_pretrained(",
    ):
        assert text in card
    loaded = load_pretrained(tmp_path / "mine")
    np.testing.assert_allclose(loaded(real_images[1]), encoder(real_images[1]), atol=1e-6)


def test_a_file_is_not_replaced_by_a_folder(encoder, tmp_path):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(OSError, match="notes is a file: give the name of a folder"):
        save_pretrained(encoder, tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"


def test_the_card_says_what_is_not_known(encoder, tmp_path):
    save_pretrained(encoder, tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "- Recipe: not stated" in card
    assert "Nothing yet." in card


def test_bad_facts_are_refused_before_anything_is_written(encoder, tmp_path):
    with pytest.raises(ValueError, match="colour is no fact to state; those are architecture, width"):
        save_pretrained(encoder, tmp_path / "a", colour=3)
    with pytest.raises(ValueError, match=r"may not hold a path, found '\.\./b'"):
        save_pretrained(encoder, tmp_path / "a", name="../b")
    with pytest.raises(ValueError, match="no normalisation inside"):
        save_pretrained(encoder.get_layer("tiny"), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_files_of_something_else_are_not_replaced(encoder, tmp_path):
    (tmp_path / "README.md").write_text("my project")
    with pytest.raises(FileExistsError, match=r"holds a README\.md of something else"):
        save_pretrained(encoder, tmp_path)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("README.md", "my project")]
    for _ in range(2):  # its own folder is written anew
        save_pretrained(encoder, tmp_path / "mine")


@pytest.mark.parametrize(
    "facts",
    [
        {"metrics": {"kNN": "high"}},
        {"metrics": "82"},
        {"metrics": None},
        {"metrics": {"a": {"b": 1.0}}},
        {"metrics": {"a": float("nan")}},
        {"licence": 3},
        {"width": "wide"},
        {"mean": 5},
        {"parameters": 1},
    ],
)
def test_a_save_that_fails_leaves_the_one_before(facts, encoder, tmp_path):
    save_pretrained(encoder, tmp_path / "mine", metrics={"kNN": np.float32(1)}, licence="MIT")
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    other = with_preprocessing(build_encoder("r18_1x", width=0.0625), 0.5, 0.25)
    with pytest.raises(ValueError, match=next(iter(facts))):
        save_pretrained(other, tmp_path / "mine", **facts)
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before


def test_an_edited_card_is_not_replaced(encoder, tmp_path):
    save_pretrained(encoder, tmp_path / "mine")
    card = tmp_path / "mine" / "README.md"
    card.write_text(card.read_text() + "Used by the shop.\n")
    before = card.read_text()
    with pytest.raises(FileExistsError, match=r"README\.md was edited"):
        save_pretrained(encoder, tmp_path / "mine", recipe="another")
    assert card.read_text() == before


def test_a_folder_may_be_renamed(encoder, tmp_path):
    save_pretrained(encoder, tmp_path / "a", recipe="one\r\ntwo")
    (tmp_path / "a").rename(tmp_path / "b")
    save_pretrained(load_pretrained(tmp_path / "b"), tmp_path / "b")


def test_an_encoder_of_the_user_is_not_replaced(encoder, tmp_path):
    save_pretrained(encoder, tmp_path)
    own = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    own.save(tmp_path / "encoder.keras")
    before = (tmp_path / "encoder.keras").read_bytes()
    with pytest.raises(FileExistsError, match=r"holds a encoder\.keras of something else"):
        save_pretrained(encoder, tmp_path)
    assert (tmp_path / "encoder.keras").read_bytes() == before


def test_metrics_belong_to_the_weights_they_were_measured_with(tmp_path):
    bundled = load_pretrained("r18_fashion")
    bundled.save_weights(tmp_path / "any.weights.h5")
    untrained = save_pretrained(load_pretrained("r18_fashion", weights="random"), tmp_path / "random")
    for fact in ("method", "training_data", "recipe", "metrics_source", "licence"):
        assert not getattr(untrained, fact), fact
    assert not untrained.metrics and untrained.mean == registry.get("r18_fashion").mean
    trained = load_pretrained("r18_fashion", trainable=True)
    assert save_pretrained(trained, tmp_path / "same").metrics == bundled.entry.metrics
    trained.set_weights([0.9 * weight for weight in trained.get_weights()])
    trained.trainable = False
    entry = save_pretrained(trained, tmp_path / "trained")
    assert (entry.metrics, entry.metrics_source, entry.licence) == ({}, "", bundled.entry.licence)


def test_facts_go_with_the_encoder(tmp_path):
    bundled = registry.get("r18_fashion")
    entry = save_pretrained(load_pretrained("r18_fashion"), tmp_path / "a", recipe="mine")
    for fact in (*FACTS, "name", "mean", "std", "input_size", "parameters"):
        if fact != "recipe":
            assert getattr(entry, fact) == getattr(bundled, fact), fact
    assert entry.recipe == "mine"
    again = save_pretrained(load_pretrained(tmp_path / "a"), tmp_path / "b")
    assert again == dataclasses.replace(entry, sha256=again.sha256, size=again.size)


@pytest.mark.parametrize("normalise", [lambda x: x / 255.0, keras.layers.Rescaling(1 / 255)])
def test_encoders_of_other_builders_are_saved(normalise, tmp_path):
    images = keras.Input((8, 8, 3))
    features = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3)(normalise(images)))
    encoder = keras.Model(images, features)
    entry = save_pretrained(encoder, tmp_path / "mine")
    assert (entry.mean, entry.std) in {((), ()), ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))}
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), np.uint8)
    expected = encoder(pixels.astype(np.float32))
    np.testing.assert_allclose(load_pretrained(tmp_path / "mine")(pixels), expected, atol=1e-6)


def test_an_altered_folder_is_refused(encoder, tmp_path):
    save_pretrained(encoder, tmp_path / "mine")
    load_pretrained(tmp_path / "mine")
    keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()]).save(
        tmp_path / "mine" / "encoder.keras"
    )
    for path in (tmp_path / "mine", tmp_path / "mine" / "encoder.keras"):
        with pytest.raises(ValueError, match=r"encoder\.keras has SHA-256 .*altered or damaged"):
            load_pretrained(path)
    for text in ("{", "[]", '{"name": "mine"}'):
        (tmp_path / "mine" / "pretrained.json").write_text(text)
        with pytest.raises(ValueError, match=r"pretrained\.json is damaged"):
            load_pretrained(tmp_path / "mine")


def test_a_run_is_packed_for_the_wheel(tmp_path, monkeypatch):
    run, bundled = tmp_path / "run", tmp_path / "bundled"
    run.mkdir()
    encoder = with_preprocessing(
        build_encoder("r18_1x", (None, None, 1), "small", width=0.0625), 0.286, 0.353
    )
    encoder.save(run / "encoder.keras")
    config = {
        "name": "fashion_small",
        "epochs": 3,
        "batch_size": 128,
        "encoder": {"name": "r18_1x", "width": 0.0625},
    }
    rows = [
        {"features": "pretrained", "knn": 0.8312, "linear": 0.8467},
        {"features": "raw pixels", "knn": 0.8, "linear": 0.8},
    ]
    (run / "config.json").write_text(json.dumps(config))
    (run / "summary.json").write_text(json.dumps({"seed": 0, "results": rows}))

    entry = pack.pack(run, "r18_test", bundled)
    assert entry.metrics == {"Fashion-MNIST knn": 83.12, "Fashion-MNIST linear": 84.67}
    assert (entry.stem, entry.channels, entry.input_size, entry.width) == ("small", 1, None, 0.0625)
    monkeypatch.setattr(registry, "BUNDLED", bundled)
    assert registry.get("r18_test") == entry
    images = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1), np.uint8)
    np.testing.assert_allclose(load_pretrained("r18_test")(images), encoder(images), atol=1e-6)
    untrained = load_pretrained("r18_test", weights="random")
    assert untrained.count_params() == encoder.count_params()


def test_an_unfinished_run_is_not_packed(tmp_path):
    with pytest.raises(FileNotFoundError):
        pack.pack(tmp_path, "a", tmp_path / "bundled")
    assert list(tmp_path.iterdir()) == []


def test_a_trained_model_is_saved_as_its_encoder(tmp_path):
    import keras_sslhsic

    network = build_encoder("r18_1x", (16, 16, 1), width=0.0625)
    model = keras_sslhsic.SSLHSIC(network, 8, 4, views=keras_sslhsic.views.grayscale(16))
    save_pretrained(model, tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 1), np.uint8)
    np.testing.assert_allclose(load_pretrained(tmp_path)(images), model(images), atol=1e-5)
    assert isinstance(load_pretrained(tmp_path), keras.Model)
