"""The pictures that commands write, which are told from images to learn from where they lie among them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from keras_sslhsic.files import display, open_regular, written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHEET, VIEWS, CURVES, FEATURES, NEIGHBOURS, REPORT, SEGMENTATION, DEPTH = _ALL = tuple(
    f"{name}.png"
    for name in (
        "contact_sheet", "views", "curves", "features", "neighbours", "report", "segmentation", "depth",
    )
)  # fmt: skip
# Listing a folder opens files of these names alone.
NAMES = frozenset(_ALL)
_MOST_POINTS = 2**16 - 1  # of a side that matplotlib draws
SOFTWARE = "keras_sslhsic"
# Earlier versions left the second.
_MARKS = f"Software\0{SOFTWARE}".encode(), b"Software\0Matplotlib"


def is_own(file: str | os.PathLike) -> bool:
    """Whether a file is a picture that a command wrote: it has the name of one, and says so at its beginning."""
    if os.path.basename(file) not in NAMES:
        return False
    try:
        with open_regular(file) as stream:
            start = stream.read(1024)
    except OSError:
        return False
    return any(mark in start for mark in _MARKS)


def save(figure: "Figure", path: str | Path, dpi: int = 110) -> None:
    """Writes a figure, whole or not at all, in the format of the path's suffix.

    Raises:
        ValueError: for an ending of no kind of picture that matplotlib writes.
        OSError: if it cannot be written.
    """
    suffix = Path(path).suffix
    if suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise ValueError(
            f"{display(path)} has the ending of no kind of picture that can be drawn: give NAME.png."
        )
    metadata = {"Software": SOFTWARE} if suffix.lower() == ".png" else None
    dpi = min(dpi, int(_MOST_POINTS / max(figure.get_size_inches())))
    with written_whole(path, suffix) as temporary:
        figure.savefig(temporary, dpi=dpi, metadata=metadata)
