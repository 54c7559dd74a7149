"""Do people see the pages as they are meant? Heights, contrast, script and policy, in a
browser.

Usage: uv run --with playwright --with axe-playwright-python benchmarks/pages.py
            PLACE... [--site DIR] [--only GLOB] [--out DIR] [--browser /usr/bin/chromium]

Each PLACE is a folder with a document, a bundle, or a recorded run of tests/evidence.
Its page is made again and opened in headless Chromium (Debian's package): light, dark,
and 390 pixels wide. With --site, so is each page below DIR, as `mkdocs build` wrote it,
from a server on loopback. Printed are the page's height with all folded, where its first
picture begins, the violations that axe-core finds, and whether script and style run
under the page's own policy. Exit 1: a violation, an error of the script, a page that is
wider than its window, or a picture below the first screen. With --out, a screenshot of
each is kept, as small as 64 colours make it."""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from mmrepro.reports.documents import kind_of, render

VIEWS = (("light", 1280, "light"), ("dark", 1280, "dark"), ("narrow", 390, "light"))
HEIGHT = 900
_FIGURE = """(() => { const one = document.querySelector("figure svg, .sides svg, figure table");
return one ? Math.round(one.getBoundingClientRect().top) : null; })()"""
_SIZE = "[document.documentElement.scrollHeight, document.documentElement.scrollWidth]"
_SCRIPTED = 'document.querySelectorAll(".copy").length'


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("places", nargs="*", type=Path)
    parser.add_argument("--site", type=Path)
    parser.add_argument(
        "--only", default="*", help="of the site: pages like failures/*"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    wrong = 0
    print("| page | view | height | first picture | violations | wrong |")
    print("| --- | --- | ---: | ---: | ---: | --- |")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path=asked.browser, args=["--no-sandbox", "--disable-gpu"]
        )
        for place in asked.places:
            kind = kind_of(place)
            page = Path(folder) / f"{place.stem}.html"
            page.write_text(render(kind, kind.load(place), "html"))
            wrong += _views(browser, page.stem, page.as_uri(), asked.out)
        if asked.site is not None:
            with _served(asked.site) as address:
                for path in _pages_of(asked.site, asked.only):
                    name = path.replace("/", "-") or "index"
                    wrong += _views(browser, name, f"{address}/{path}", asked.out)
        browser.close()
    return 1 if wrong else 0


def _pages_of(site: Path, only: str) -> list[str]:
    """Paths of its pages, as ``failures/ghost-key-eviction``; "" is the first one."""
    pages = []
    for file in sorted(site.rglob("index.html")):
        path = file.parent.relative_to(site).as_posix()
        if fnmatch(path, only):
            pages.append("" if path == "." else path)
    return pages


@contextmanager
def _served(site: Path) -> Iterator[str]:
    """The address of a server of the folder, on loopback."""
    handler = partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _views(browser: Any, name: str, url: str, out: Path | None) -> int:
    """Open the page in each view; what is wrong, counted."""
    wrong = 0
    for view, width, scheme in VIEWS:
        wrong += _look(browser, (name, url), view, width, scheme, out)
    return wrong


def _look(
    browser: Any,
    page: tuple[str, str],
    view: str,
    width: int,
    scheme: str,
    out: Path | None,
) -> int:
    """Open the page in one view and print its row; returns what is wrong with it,
    counted."""
    from axe_playwright_python.sync_playwright import Axe

    name, url = page
    errors: list[str] = []
    size = {"width": width, "height": HEIGHT}
    # Under the page's own policy first: axe is a script that the policy would refuse.
    context = browser.new_context(viewport=size, color_scheme=scheme)
    shown = context.new_page()
    shown.on("console", lambda message: errors.append(message.text))
    shown.on("pageerror", lambda error: errors.append(str(error)))
    shown.goto(url)
    height, wide = shown.evaluate(_SIZE)
    figure = shown.evaluate(_FIGURE)
    if not shown.evaluate(_SCRIPTED) and shown.query_selector("pre[data-copy]"):
        errors.append("the script did not run")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        _keep(shown.screenshot(), out / f"{name}-{view}.png")
    context.close()
    if wide > width:
        errors.append(f"{wide} pixels wide")
    if view == "light" and figure is not None and figure > HEIGHT:
        errors.append("the first picture is below the first screen")
    context = browser.new_context(viewport=size, color_scheme=scheme, bypass_csp=True)
    shown = context.new_page()
    shown.goto(url)
    found = Axe().run(shown).response["violations"]
    context.close()
    print(
        f"| {name} | {view} | {height} | {'–' if figure is None else figure} | "
        f"{len(found)} | {'; '.join(errors) or '–'} |",
        flush=True,
    )
    for one in found:
        first = one["nodes"][0]
        print(f"    {one['id']}: {one['help']}: {first['html'][:160]}", file=sys.stderr)
    return len(found) + len(errors)


def _keep(png: bytes, path: Path) -> None:
    from PIL import Image

    with Image.open(io.BytesIO(png)) as image:
        image.convert("RGB").quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    sys.exit(main())
