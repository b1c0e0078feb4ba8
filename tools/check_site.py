"""Looks at the built site in a real browser: `make test-docs`.

    python tools/check_site.py [FOLDER FOR SCREENSHOTS]

Every page, on a desktop and on a phone: no error in the console, no request to another host, every picture there, nothing
wider than the page, code and signatures wrapped, formulas drawn. Search finds what there is.
"""

import functools
import http.server
import os
import shutil
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright
from readme_renderer import markdown

ROOT = Path(__file__).parents[1]
SITE = ROOT / "site"
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SEARCHES = {"collapse": "Reading curves", "from_folder": "from_folder", "hub": "on a hub of models"}

# What is wrong with the page that is open; each line is one complaint.
LOOK = r"""() => {
  const wrong = [], shown = e => e.offsetParent !== null, text = e => e.textContent.trim().slice(0, 60);
  const article = document.querySelector('article');
  if (document.documentElement.scrollWidth > innerWidth + 1) wrong.push('the page is wider than the window');
  for (const image of article.querySelectorAll('img'))
    if (!image.naturalWidth) wrong.push('no picture at ' + image.src);
  for (const code of article.querySelectorAll('pre > code')) {
    if (shown(code) && code.scrollWidth > code.clientWidth + 1) wrong.push('code is not wrapped: ' + text(code));
  }
  for (const table of article.querySelectorAll('table'))
    if (table.scrollWidth > innerWidth && !table.closest('.md-typeset__scrollwrap'))
      wrong.push('a table is cut off: ' + text(table));
  for (const math of article.querySelectorAll('math')) {
    const box = math.getBoundingClientRect();
    if (shown(math.parentElement) && (box.width < 3 || box.height < 3)) wrong.push('a formula is not drawn: ' + text(math));
    if (math.querySelector('merror')) wrong.push('a formula has an error: ' + text(math));
  }
  const walk = document.createTreeWalker(article, NodeFilter.SHOW_TEXT);
  while (walk.nextNode())
    if (!walk.currentNode.parentElement.closest('code, annotation') && /\$[^$]+\$|\\\(|\\\[|\\frac/.test(walk.currentNode.data))
      wrong.push('a formula is raw: ' + walk.currentNode.data.trim().slice(0, 60));
  return wrong;
}"""


def pages() -> list[str]:
    """The addresses of all pages below the site."""
    found = (path.relative_to(SITE).as_posix() for path in SITE.rglob("index.html"))
    return sorted(path.removesuffix("index.html") for path in found)


def serve() -> http.server.ThreadingHTTPServer:
    """The site on a free port of this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def look(browser: Browser, base: str, size: str, pictures: Path | None) -> Iterator[str]:
    """What is wrong with every page at a size of the window."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height})
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on(
        "request", lambda request: None if _own(request.url, base) else errors.append(f"asks {request.url}")
    )
    page.on("requestfailed", lambda request: errors.append(f"failed: {request.url}"))
    for name in pages():
        errors.clear()
        page.goto(base + name, wait_until="load")
        # A picture that is not needed yet is loaded when it comes into view.
        page.evaluate("() => document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })")
        page.wait_for_load_state("networkidle")
        for complaint in (*page.evaluate(LOOK), *errors):
            yield f"{size}, /{name}: {complaint}"
        if pictures is not None:
            page.screenshot(path=pictures / f"{size}_{name.strip('/').replace('/', '_') or 'index'}.png")
    page.close()


def _own(url: str, base: str) -> bool:
    return url.startswith((base, "data:", "blob:"))


def search(page: Page, base: str) -> Iterator[str]:
    """What is wrong with the search."""
    for query, expected in SEARCHES.items():
        page.goto(f"{base}?q={urllib.parse.quote(query)}")
        found = "() => (document.querySelector('.md-search-result__list') || {innerText: ''}).innerText.toLowerCase()"
        try:
            page.wait_for_function(
                f"expected => ({found})().includes(expected)", arg=expected.lower(), timeout=60_000
            )
        except TimeoutError:
            yield f"search for {query!r} does not find {expected!r}: {page.evaluate(found)[:200]!r}"


def readme() -> Iterator[str]:
    """Whether the package index would show README.md as it is meant."""
    shown = markdown.render((ROOT / "README.md").read_text("utf-8"))
    if not shown:
        yield "README.md cannot be rendered"
    elif "<table" not in shown or "<img" not in shown or "&lt;!--" in shown:
        yield "README.md loses its tables or pictures, or shows its comments"


def main() -> int:
    """Prints what is wrong, a line each; the exit status says whether anything is."""
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if pictures:
        pictures.mkdir(parents=True, exist_ok=True)
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        raise SystemExit("A browser is needed: apt-get install chromium, or CHROMIUM=/path/of/one.")
    server = serve()
    base = f"http://127.0.0.1:{server.server_port}/"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        wrong = [complaint for size in SIZES for complaint in look(browser, base, size, pictures)]
        wrong += [*search(browser.new_page(), base), *readme()]
        browser.close()
    server.shutdown()
    print(
        "\n".join(wrong)
        or f"{len(pages())} pages on {' and '.join(SIZES)}, the search and README.md are as they should be."
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
