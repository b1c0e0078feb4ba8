"""The tables of the paper as runs: their configs, their records, and what is said of them."""

import sys
from pathlib import Path

import pytest

from keras_sslhsic import cli
from keras_sslhsic.evaluation import paper
from keras_sslhsic.runs import claims, config, pretrain, reproduce, tables, trials
from keras_sslhsic.runs.reproduce import HELD_OUT, SMALL, Trend
from keras_sslhsic.runs.tables import TABLES

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch):
    monkeypatch.chdir(ROOT)


def record(file, changes, seed, holdout, accuracy, num_test=2000):
    """Adds what a training of that accuracy would leave."""
    settings = reproduce.settings_of(
        SMALL, {**reproduce._SMALL, **changes, "seed": seed, "data.holdout": holdout}
    )
    results = [{"label": label, "value": accuracy, "num_test": num_test} for label in reproduce.LABELS]
    trials.add(file, {"seed": seed, "results": results, "settings": trials.plain(settings)})


def test_every_row_is_a_config_at_both_scales():
    for of in TABLES:
        for row in of.rows:
            large = reproduce.settings_of(row.base, row.large)
            config.check(large)
            if row.base == tables.LARGE:
                assert large.data.name == "imagenet2012" and large.epochs in (100, 1000)
            for choice in row.choices if row.small is not None else ():
                small = reproduce.settings_of(SMALL, {**reproduce._SMALL, **row.small, **choice, "seed": 1})
                config.check(small)
                assert (small.data.source, small.epochs) == ("bundled", 8)
    # The ablations' conditions: neither target network nor, of kernels, random features.
    for row in tables.table("kernels").rows:
        settings = reproduce.settings_of(row.base, row.large)
        assert (settings.model.target, settings.loss.num_features, settings.epochs) == (False, None, 100)
    info_nce = reproduce.settings_of(SMALL, {**reproduce._SMALL, **tables.table("regulariser").rows[1].small})
    assert (info_nce.loss.name, info_nce.model.target) == ("info_nce", False)


def test_the_rows_are_those_of_the_paper():
    for number, name in (("8a", "regulariser"), ("8b", "features"), ("8c", "batch"), ("8d", "outputs")):
        of = tables.table(name)
        [printed] = [one for one in paper.TABLES if one.number == number]
        assert [row.name for row in of.rows] == list(printed.rows) and of.number == number
    assert [of.name for of in TABLES] == [*cli.training.TABLES]
    assert reproduce.of_paper(tables.table("kernels"))["SSL-HSIC, linear kernel"] == 65.27
    for of in TABLES:
        names = {row.name for row in of.rows}
        if of.number:
            # What this package does not train: with labels, or not at all.
            others = ("supervised", "random init")
            assert names == {name for name in reproduce.of_paper(of) if not name.startswith(others)}, of.name
        assert all({better, worse} <= names for better, worse in of.trends)


def test_a_choice_is_made_on_held_out_images_and_trends_are_paired(tmp_path):
    file, of = tmp_path / "records.jsonl", tables.table("fixed")
    anew, once = of.rows[:2]
    assert reproduce.chosen(file, anew) is None and reproduce.records_of(file, anew) == {}
    for choice, accuracy in zip(anew.choices, (0.6, 0.8, 0.7, 0.5), strict=True):
        record(file, {**anew.chosen_for, **choice}, 0, HELD_OUT, accuracy)
    assert reproduce.chosen(file, anew) == reproduce.chosen(file, once) == {"loss.gamma": 1.0}
    for seed, ours, theirs in ((1, 0.80, 0.70), (2, 0.70, 0.61), (3, 0.75, None)):
        record(file, {**anew.small, "loss.gamma": 1.0}, seed, 0.0, ours)
        if theirs is not None:
            record(file, {**once.small, "loss.gamma": 1.0}, seed, 0.0, theirs)
    # Not a pair: measured on other test images.
    record(file, {**once.small, "loss.gamma": 1.0}, 3, 0.0, 0.5, num_test=10_000)
    assert set(reproduce.records_of(file, anew)) == {1, 2, 3} == set(reproduce.records_of(file, once))
    assert reproduce.progress(file)[0] == 6
    record(file, {**anew.small, "loss.gamma": 1.0}, 17, 0.0, 0.75)  # of no default seed, and in the table too
    assert set(reproduce.records_of(file, anew)) == {1, 2, 3, 17}
    assert reproduce.progress(file)[0] == 6
    trend = next(reproduce.trends(of, file))
    assert trend.differences == pytest.approx((10.0, 9.0))
    mean, half = trials.interval(trend.differences)
    assert (mean, half) == (pytest.approx(9.5), pytest.approx(12.706 * 0.5, rel=1e-3))
    assert trend.verdict == "shown"
    lines = list(reproduce.small_lines(of, file))
    assert any(line.startswith("| drawn anew, 64 features | ") and "| 4 | 2,000 |" in line for line in lines)
    assert any(
        line.startswith("| drawn once, 64 features | ") and "| 2,000 and 10,000 |" in line for line in lines
    )
    # One process goes on with what another has written.
    assert len(trials.load(file)) == 11


def test_a_record_that_was_cut_short_loses_itself_alone(tmp_path):
    file = tmp_path / "records.jsonl"
    record(file, {}, 1, 0.0, 0.5)
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])  # of one that did not fit on the disk
    record(file, {}, 2, 0.0, 0.5)
    with pytest.warns(UserWarning, match=r"Line 2 of .*records\.jsonl is no whole record; it is left out\."):
        assert [found["seed"] for found in trials.load(file)] == [1, 2]
    file.write_bytes(whole + b"no record\n")
    with pytest.raises(ValueError, match=r"Line 2 of .*records\.jsonl is no record of a training"):
        trials.load(file)
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match=r"^/dev/full cannot be written: No space left on device\.$"):
            trials.add(Path("/dev/full"), {"seed": 1})


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ((1.0, 1.1), "shown"),
        ((-1.0, -1.1), "contradicted"),
        ((-1.0, 1.1), "not shown"),
        ((5.0,), "not yet run"),
        ((), "not yet run"),
    ],
)
def test_verdicts(differences, verdict):
    trend = Trend("a", "b", differences)
    assert trend.verdict == verdict and str(trend).startswith(verdict)


@pytest.mark.slow
def test_the_document_is_what_the_records_say(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    import reproduction

    page = tmp_path / "reproduction.md"
    page.write_text(reproduction.PAGE.read_text())
    monkeypatch.setattr(reproduction, "PAGE", page)
    monkeypatch.setattr(reproduction, "CHART", tmp_path / "reproduction.png")
    reproduction.plot()
    assert page.read_text() == (ROOT / "docs" / "reproduction.md").read_text()
    sys.modules.pop("reproduction")


def test_the_paper_scale_is_listed_and_what_cannot_be_is_a_sentence(capsys, tmp_path):
    assert cli.main(["reproduce", "features", "--scale", "paper"]) == 0
    text = capsys.readouterr().out
    assert '--row "SSL-HSIC, 64 features"' in text and "31,200 steps of 4096 images" in text
    for of in TABLES:
        text = "\n".join(reproduce.large_lines(of))
        measured = [line for line in text.splitlines() if line.startswith("  keras-sslhsic evaluate")]
        assert all("--data-dir DATA" in line for line in measured)
        # The Z-test of appendix B.3 is in a run's own logs, and no evaluation.
        assert (
            bool(measured)
            == ("Each run is measured by:" in text)
            == ("off_centre" not in text)
            == (not of.centred)
        )
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "tables"])
    assert "invalid choice: 'tables' (choose from" in capsys.readouterr().err
    for words, message in (
        (
            ["reproduce", "features", "--row", "x"],
            "--scale small takes no --row; it takes --records, --scale, --seeds.",
        ),
        (["reproduce", "features", "--scale", "paper", "--workdir", "x"], "without --row takes no --workdir"),
        (
            ["reproduce", "features", "--scale", "paper", "--row", "x", "--seeds", "1"],
            "with --row takes no --seeds",
        ),
        (["reproduce", "claims", "--config.epochs=1"], "claims takes no --config.FIELD; it takes --records."),
        (["reproduce", "features", "--scale", "paper", "--row", "x"], "give --workdir"),
        (
            ["reproduce", "features", "--scale", "paper", "--row", "x", "--workdir", str(tmp_path / "a")],
            "Unknown row",
        ),
        (["reproduce", "linear", "--seeds", "one"], "integers"),
    ):
        assert cli.main(words) == 2
        assert message in capsys.readouterr().err


def test_what_is_saved_of_what_ctrl_c_stops_is_said(tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(trials, "train", stop)
    monkeypatch.setattr(pretrain, "run", stop)
    records = tmp_path / "records.jsonl"
    assert cli.main(["reproduce", "features", "--records", str(records)]) == 130
    assert (
        capsys.readouterr().err
        == f"\nThe trainings that were finished are in {records}; the same command goes on.\n\nStopped.\n"
    )
    row = ["--row", "SSL-HSIC, 64 features", "--workdir", str(tmp_path / "run")]
    assert cli.main(["reproduce", "features", "--scale", "paper", *row]) == 130
    assert capsys.readouterr().err == "\nNo epoch is saved yet; the same command begins anew.\n\nStopped.\n"


@pytest.mark.slow
def test_claims_are_as_recorded(tmp_path):
    recorded = {
        claim.statement: claim.verdict
        for claim in claims.recorded(ROOT / "experiments" / "reproduction.jsonl")
    }
    file = tmp_path / "records.jsonl"
    found = claims.recorded(file, run=True)
    assert {claim.statement: claim.verdict for claim in found} == recorded
    assert set(recorded.values()) == {"shown"}
    assert claims.recorded(file) == found and len(trials.load(file)) == len(claims.ALL)


@pytest.mark.slow
def test_a_small_training_is_made_once(tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    changes = {"epochs": 1, "batch_size": 500, "encoder.width": 0.05, "loss.redraw": False}
    made = reproduce.trained(file, changes, 1, 0.0, run=True)
    assert all(trials.value(made, label) > 0 for label in reproduce.LABELS)
    assert set(made["z_test"]) == {"online", "target"} and made["last"]["mmd_to_uniform"] > 0
    assert "knn" in capsys.readouterr().out
    assert reproduce.trained(file, changes, 1, 0.0, run=True)["results"] == made["results"]
    assert len(file.read_text().splitlines()) == 1
    reproduce.trained(file, changes, 1, 0.2, run=True)
    said = capsys.readouterr().out
    assert "held out" in said and "knn" in said and "linear" not in said  # which is not measured there
