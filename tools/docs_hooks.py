"""Typesets formulas when mkdocs builds a page: TeX becomes MathML, which browsers draw without any script."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of $...$ and $$...$$.
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: Any) -> str:
    """Called by mkdocs with the page's HTML."""
    return _FORMULA.sub(_mathml, content)


def _mathml(found: re.Match) -> str:
    display = "block" if found[2] == "[" else "inline"
    return f'<{found[1]} class="arithmatex">{convert(html.unescape(found[3]), display=display)}</{found[1]}>'
