"""Changes the address of the project, in CITATION.cff and wherever that of CITATION.cff stands.

python tools/address.py https://github.com/NAME/keras_sslhsic
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOLDERS = (
    "CITATION.cff",
    "mkdocs.yml",
    "docs/*.md",
    "colab/*.ipynb",
    "examples/*.py",
)  # those that can't read it when they are used


def address() -> str:
    """The address that CITATION.cff states."""
    text = (ROOT / "CITATION.cff").read_text("utf-8")
    return re.findall("^repository-code: (.+)$", text, re.MULTILINE)[0]


def change(new: str) -> None:
    """Writes another address, and its OWNER/NAME in links to Colab, in place of the present one."""
    old = address()
    names = ["/".join(url.rstrip("/").split("/")[-2:]) for url in (old, new)]
    for file in (path for pattern in HOLDERS for path in ROOT.glob(pattern)):
        text = file.read_text("utf-8").replace(old, new.rstrip("/"))
        file.write_text(text.replace(f"/github/{names[0]}/", f"/github/{names[1]}/"), "utf-8")


if __name__ == "__main__":
    change(sys.argv[1])
