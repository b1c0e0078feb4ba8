"""Runs the notebooks in colab/ from top to bottom and keeps their outputs in them.

    python tools/run_notebooks.py [NAME ...]

KERAS_SSLHSIC_FAST=1 shortens them, as for the tests.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

COLAB = Path(__file__).parents[1] / "colab"


def run(path: Path) -> None:
    """Runs one notebook in an empty folder."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook, timeout=3600, startup_timeout=600, resources={"metadata": {"path": folder}}
        ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of day
        if cell.cell_type == "code":
            # Warnings, log lines and progress bars are of this machine.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if output.output_type == "stream":
                    lines = output.text.splitlines(keepends=True)
                    output.text = "".join(x for x in lines if not x.startswith(("WARNING:", "INFO:")))
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]
    nbformat.write(notebook, path)
    print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in COLAB.glob("*.ipynb")):
        run(COLAB / f"{name}.ipynb")
