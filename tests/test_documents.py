"""The Python in README and docs runs as it stands there, block after block."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "docs/method.md"])
def test_python_blocks_run(document, tmp_path, monkeypatch):
    blocks = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    assert blocks
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{document}, block {number}", "exec"), names)


@pytest.mark.parametrize(
    "document", [path.relative_to(ROOT) for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]]
)
def test_links_lead_somewhere(document):
    text = re.sub(
        r"^```.*?^```", "", (ROOT / document).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
    missing = [target for target in targets if not ((ROOT / document).parent / target).exists()]
    assert not missing
