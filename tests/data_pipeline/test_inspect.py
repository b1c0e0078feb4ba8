"""inspect_folder: every number against what the test wrote."""

import json
import os

import crash
import numpy as np
import pytest
from PIL import Image

from keras_sslhsic import files
from keras_sslhsic.data import inspect, inspect_folder
from keras_sslhsic.data.inspect import contact_sheet


@pytest.fixture
def zoo(tmp_path):
    """Seven images of known sizes and colours in two classes, and two broken files."""
    tmp_path /= "zoo"
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 20, 30, 3), np.uint8)
    for directory in ("cat", "dog"):
        (tmp_path / directory).mkdir(parents=True)
    for number in range(5):
        Image.fromarray(pixels[number]).save(tmp_path / "cat" / f"{number}.png")
    Image.new("L", (10, 40), 51).save(tmp_path / "dog" / "gray.bmp")
    Image.new("RGB", (50, 10), (255, 0, 0)).save(tmp_path / "dog" / "red.webp", lossless=True)
    (tmp_path / "dog" / "empty.jpg").write_bytes(b"")
    (tmp_path / "dog" / "text.jpg").write_text("no image")
    images = [*pixels, np.full((40, 10, 3), 51), np.full((10, 50, 3), (255, 0, 0))]
    return tmp_path, images


def test_everything_is_counted(zoo):
    path, _ = zoo
    report = inspect_folder(path)
    assert report.num_files == 9
    assert report.num_bytes == sum(file.stat().st_size for file in path.glob("*/*"))
    assert report.classes == {"cat": 5, "dog": 2}
    assert report.formats == {"PNG": 5, "BMP": 1, "WEBP": 1}
    assert report.modes == {"RGB": 6, "L": 1}
    assert report.heights == (10, 20, 40) and report.widths == (10, 30, 50)
    assert report.broken == {
        str(path / "dog" / "empty.jpg"): "the file is empty",
        str(path / "dog" / "text.jpg"): "not a readable JPEG, PNG, WEBP, GIF or BMP image",
    }
    assert report.sample.shape == (7, 96, 96, 3)


def test_mean_and_std_are_those_of_the_pixels_with_equal_weight_for_each_image(zoo):
    path, images = zoo
    report = inspect_folder(path)
    values = [image.reshape(-1, 3) / 255 for image in images]
    mean = np.mean([value.mean(0) for value in values], 0)
    square = np.mean([(value**2).mean(0) for value in values], 0)
    np.testing.assert_allclose(report.mean, mean, atol=1e-6)
    np.testing.assert_allclose(report.std, np.sqrt(square - mean**2), atol=1e-6)


def test_the_report_reads_well_and_goes_into_json(zoo):
    path, _ = zoo
    report = inspect_folder(path)
    text = str(report)
    for part in ("files     9", "2, of 2 to 5 images", "PNG 5, BMP 1", "10 to 40, median 20", "broken    2"):
        assert part in text
    assert "empty.jpg: the file is empty" in text
    assert json.loads(json.dumps(report.to_dict()))["classes"] == {"cat": 5, "dog": 2}


@pytest.mark.parametrize("bits", [8, 12, 16])
def test_images_that_use_few_of_16_bits_are_said(bits, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 2**bits, (9, 9)).astype(np.uint16 if bits > 8 else np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    report = inspect_folder(tmp_path)
    assert report.largest == (pixels.max() >> 8 if bits > 8 else pixels.max())
    said = "dark      no pixel is above 15 of 255. Of 16 bits the high byte is read"
    assert (said in str(report)) == ("dark" in str(report)) == (bits == 12)


def test_contact_sheet(zoo, tmp_path):
    path, _ = zoo
    inspect_folder(path).save_contact_sheet(tmp_path / "sheet.png")
    assert Image.open(tmp_path / "sheet.png").size == (7 * 100 + 4, 104)
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
    sheet = np.asarray(contact_sheet(images, columns=3, gap=1))
    assert sheet.shape == (7, 13)
    for number in range(5):
        y, x = 1 + number // 3 * 3, 1 + number % 3 * 4
        np.testing.assert_array_equal(sheet[y : y + 2, x : x + 3], number)
    np.testing.assert_array_equal(sheet[:, [0, 4, 8, 12]], 128)
    assert sheet[4, 9] == 128


def test_gray_images_have_one_mean(zoo):
    path, _ = zoo
    assert len(inspect_folder(path, channels=1).mean) == 1


def test_a_folder_of_broken_files_is_an_error(tmp_path):
    (tmp_path / "text.jpg").write_text("no image")
    with pytest.raises(ValueError, match=r"All 1 image files.*not a readable"):
        inspect_folder(tmp_path)


def test_what_from_folder_leaves_out_is_said(zoo):
    path, _ = zoo
    (path / "bird").mkdir()
    (path / "fish").mkdir()
    (path / "fish" / "broken.png").write_bytes(b"")
    Image.new("L", (4, 4)).save(path / "cat" / "scan.TIFF")
    (path / "notes").write_text("notes")
    report = inspect_folder(path)
    assert report.classes == {"cat": 5, "dog": 2, "fish": 0}
    assert report.ignored == {".tiff": 1, "no extension": 1}
    assert report.empty_folders == ("bird",)
    for line in ("ignored   no extension 1, .tiff 1", "empty     bird", "3, of 0 to 5 images"):
        assert line in str(report)


def test_folders_that_links_lead_to_are_not_called_empty(zoo):
    path, _ = zoo
    (path / "kitten").symlink_to(path / "cat", target_is_directory=True)
    (path / "pets").mkdir()
    (path / "pets" / "all").symlink_to(path, target_is_directory=True)
    (path / "bird").mkdir()
    report = inspect_folder(path)
    assert report.classes == {"cat": 5, "dog": 2} and report.num_files == 9
    assert (report.empty_folders, report.repeated_folders) == (("bird",), ("kitten", "pets"))
    assert "repeated  kitten, pets: " in str(report)


def test_images_beside_the_classes_leave_no_classes(zoo):
    path, _ = zoo
    Image.new("L", (4, 4)).save(path / "loose.png")
    report = inspect_folder(path)
    assert report.classes == {} and "1 beside them" in report.no_classes
    assert "classes   none: " in str(report) and report.num_files == 10


def test_progress_is_shown_when_asked_for(zoo, capsys):
    inspect_folder(zoo[0], verbose=True)
    assert "/9 [" in capsys.readouterr().err
    inspect_folder(zoo[0])
    assert capsys.readouterr().err == ""


def test_pipes_and_devices_are_broken_files(zoo):
    path, _ = zoo
    os.mkfifo(path / "dog" / "pipe.png")
    os.mkfifo(path / "dog" / "pipe")
    (path / "dog" / "zero.jpg").symlink_to("/dev/zero")
    report = inspect_folder(path)
    reasons = {os.path.basename(name): reason for name, reason in report.broken.items()}
    assert reasons["pipe.png"] == "is a named pipe: expected a regular file."
    assert reasons["zero.jpg"] == "is a device: expected a regular file."
    assert len(reasons) == 4 and report.ignored == {"no extension": 1}


def test_files_that_may_not_be_looked_at_are_broken_files(zoo, monkeypatch):
    path, _ = zoo
    opened, looked_at = files.open_regular, os.stat

    def denied(call):  # not by chmod: root may read everything
        def refuse(file, *arguments, **options):
            if os.path.basename(os.fspath(file)) == lost.name:
                raise PermissionError(13, "Permission denied", str(file))
            return call(file, *arguments, **options)

        return refuse

    before = inspect_folder(path)
    lost = path / "dog" / "gray.bmp"
    size = lost.stat().st_size
    monkeypatch.setattr(files, "open_regular", denied(opened))
    monkeypatch.setattr(inspect.os, "stat", denied(looked_at))
    report = inspect_folder(path)
    assert report.broken == before.broken | {str(lost): "Permission denied"}
    assert report.num_bytes == before.num_bytes - size


def test_names_are_shown_escaped(zoo):
    path, _ = zoo
    for name in ("dog/new\nline\x1b[31m.png", "dog/notes.t\nt"):
        (path / name).write_bytes(b"")
    (path / "em\npty").mkdir()
    report = inspect_folder(path)
    text = str(report)
    assert r"dog/new\nline\x1b[31m.png: the file is empty" in text
    assert r"ignored   .t\nt 1" in text and r"empty     em\npty" in text
    assert "\x1b" not in text and len(text.splitlines()) == 12 + len(report.broken)


def test_a_budget_changes_nothing(zoo):
    path, _ = zoo
    Image.new("RGB", (900, 800), (1, 2, 3)).save(path / "dog" / "large.png")
    report, small = inspect_folder(path), inspect_folder(path, memory_mb=1, workers=4)
    assert report.to_dict() == small.to_dict()
    np.testing.assert_array_equal(report.sample, small.sample)


def test_a_sheet_is_no_image_of_its_folder(zoo):
    path, _ = zoo
    before = inspect_folder(path)
    before.save_contact_sheet(path / "contact_sheet.png")
    with pytest.warns(
        UserWarning, match="Left out what keras_sslhsic wrote itself, 1 pictures under .*contact_sheet"
    ):
        again = inspect_folder(path)
    assert again.to_dict() == {**before.to_dict(), "ignored": {"keras_sslhsic's own": 1}}
    for name in ("sheet.png", "cat/sheet.jpg"):
        with pytest.raises(ValueError, match=r"would be one of its images: .* name contact_sheet\.png"):
            before.save_contact_sheet(path / name)
    before.save_contact_sheet(path / "sheet.tiff")  # which is none
    Image.new("RGB", (4, 4)).save(path / "cat" / "views.png")  # has the name alone
    with pytest.warns(UserWarning, match="1 pictures"):
        assert inspect_folder(path).classes == {"cat": 6, "dog": 2}
    with pytest.raises(ValueError, match="would be one of its images"):  # it is one, and would be replaced
        before.save_contact_sheet(path / "cat" / "views.png")


def test_a_sheet_is_written_whole_and_its_kind_is_checked(zoo, tmp_path):
    report = inspect_folder(zoo[0])
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"sheet has the ending of no kind of picture: give NAME\.png\."):
        report.save_contact_sheet(tmp_path / "out" / "sheet")
    report.save_contact_sheet(tmp_path / "out" / "sheet.PNG")
    before = (tmp_path / "out" / "sheet.PNG").read_bytes()
    for point in crash.points(
        lambda: report.save_contact_sheet(tmp_path / "out" / "sheet.PNG"), tmp_path / "out"
    ):
        assert (tmp_path / "out" / "sheet.PNG").read_bytes() == before, point
        report.save_contact_sheet(tmp_path / "out" / "sheet.PNG")
        assert [file.name for file in (tmp_path / "out").iterdir()] == ["sheet.PNG"], point
