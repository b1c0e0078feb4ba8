"""The notebooks run from top to bottom in fast mode, offline, and are committed with what they print and draw."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

COLAB = Path(__file__).parents[1] / "colab"

# Run as a notebook's last cell, on its variables.
CHECKS = {
    "method": """
assert abs(best_scale - expected_scale) < 0.1
assert -0.65 < slope < -0.35
assert np.mean(error[True]) < np.mean(error[False])
assert distance < 0.04 and 0.10 < lost < 0.14
assert (abs(means[:, 1] - truth) < 2 * errors[:, 1]).all(), "four standard errors"
assert means[0, 0] < means[-1, 0] < truth
assert all(abs(row["mutual information"] - math.log(2)) < 1e-3 for row in table.values())
assert table[2]["HSIC(Z, Y)"] > 5 * table[8]["HSIC(Z, Y)"]
assert table[2]["linear accuracy"] > 0.95 and table[32]["linear accuracy"] < 0.65
assert abs(terms[0, 0]) < 1e-3 and terms[-1, 0] < -0.1, "collapse has loss 0"
assert spread["SSL-HSIC"] > 3 * spread["agreement alone"]
""",
    "features": """
assert agreement > 0.6
assert all(0.5 < value < 1.0 for value in accuracy.values())
assert accuracy[1000, "features"] > accuracy[100, "features"]
assert largest < 1e-3 and difference < 1e-3
""",
    "pretrain": """
assert len(history["loss"]) == epochs and np.isfinite(history["loss"]).all()
assert history["effective_rank"][-1] > 2 and history["feature_std"][-1] > 0.1
assert history["kernel_scale"][-1] != 1.0
assert all(0.3 < value < 1.0 for values in accuracy.values() for value in values), "chance is 0.1"
assert difference < 1e-3 and same
""",
}


def read(name):
    return nbformat.read(COLAB / f"{name}.ipynb", as_version=4)


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("name", CHECKS)
def test_committed_with_outputs_and_a_badge(name):
    notebook = read(name)
    first = notebook.cells[0].source
    assert "colab-badge.svg)](https://colab.research.google.com/github/" in first
    assert f"/colab/{name}.ipynb)" in first
    assert "**Cost:**" in first
    assert (COLAB / f"{name}.ipynb").stat().st_size < 1_000_000
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "every cell was run, in order"
    assert not [output for output in outputs(notebook) if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_SSLHSIC_FAST", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = read(name)
    # Cells are run again by who changes something in them: of those that write files, the folders are there then.
    code = (cell for cell in read(name).cells if cell.cell_type == "code")
    notebook.cells += [cell for cell in code if "mkdir" in cell.source]
    notebook.cells.append(nbformat.v4.new_code_cell(CHECKS[name]))
    client = NotebookClient(
        notebook,
        timeout=1200,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    # TensorFlow's lines too: a reader takes a traceback for a failure, though the cell goes on.
    assert not [output.text for output in outputs(notebook) if "Traceback" in output.get("text", "")]
    pictures = [output for output in outputs(notebook) if "image/png" in output.get("data", {})]
    assert len(pictures) == len([o for o in outputs(read(name)) if "image/png" in o.get("data", {})])


def test_the_one_that_trains_asks_for_an_accelerator_and_says_what_it_found():
    notebook = read("pretrain")
    assert notebook.metadata.accelerator == "GPU"
    (said,) = [output.text for output in outputs(notebook) if output.get("text", "").startswith("Found ")]
    assert "Change runtime type" in said
