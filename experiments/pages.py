"""Parts of pages that are made from records."""

from collections.abc import Iterable
from pathlib import Path

from keras_sslhsic.files import display, write_text


def rewrite(page: Path, begin: str, end: str, lines: Iterable[str]) -> None:
    """Puts lines in the place of those between two marks of a page.

    Raises:
        ValueError: unless the page has each mark once, in this order.
    """
    before, *rest = page.read_text(encoding="utf-8").split(begin)
    if len(rest) != 1 or rest[0].count(end) != 1:
        raise ValueError(f"{display(page)} must have {begin.strip()!r} and then {end.strip()!r}, once each.")
    write_text(page, before + begin + "\n".join(lines) + "\n" + end + rest[0].split(end)[1])
