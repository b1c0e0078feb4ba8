import dataclasses

import pytest

from keras_sslhsic.encoders import ARCHITECTURES
from keras_sslhsic.encoders.resnet import architecture
from keras_sslhsic.zoo import download, registry
from keras_sslhsic.zoo.registry import Entry, list_pretrained


def test_every_promised_network_is_listed():
    names = ["r50_1x", "r50_2x", "r50_4x", "r200_2x", "byol_r50_1x", "byol_r200_2x"]
    assert set(names) <= set(list_pretrained())


@pytest.mark.parametrize("entry", list_pretrained().values(), ids=list_pretrained())
def test_entries_agree_with_their_architecture(entry):
    assert entry.architecture in ARCHITECTURES
    assert entry.feature_size == architecture(entry.architecture, entry.width).channels[-1]
    assert len(entry.mean) in (1, entry.channels)
    assert not entry.metrics or entry.metrics_source
    assert entry.licence and entry.recipe and entry.training_data
    if entry.method == "BYOL":
        assert "CC BY-NC 4.0" in entry.licence
        assert entry.url.startswith("https://")


def test_bundled_files_are_those_of_their_entry():
    for entry in list_pretrained().values():
        if entry.file:
            path = registry.BUNDLED / entry.file
            assert path.stat().st_size == entry.size
            download.check_sha256(path, entry.sha256)
    listed = {entry.file for entry in list_pretrained().values()} - {None}
    assert listed == {path.name for path in registry.BUNDLED.glob("*.keras")}


def test_json_keeps_an_entry():
    for entry in list_pretrained().values():
        assert Entry.from_json(entry.to_json()) == entry


def test_json_with_other_fields_or_a_path_is_refused():
    with pytest.raises(ValueError, match="no field colour"):
        Entry.from_json('{"name": "a", "colour": 1}')
    entry = dataclasses.replace(registry.get("r50_1x"), file="../../etc/passwd")
    with pytest.raises(ValueError, match=r"lies beside it, found '\.\./\.\./etc/passwd'"):
        Entry.from_json(entry.to_json())


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"'r50-1x'.*Did you mean 'r50_1x'\?"):
        registry.get("r50-1x")


def test_the_table_has_a_line_for_every_network():
    lines = registry.format_table().splitlines()
    assert len(lines) == 2 + len(list_pretrained())
    row = next(line for line in lines if line.startswith("r50_1x"))
    assert "23,508,032" in row and "74.8" in row and "none published" in row
