"""Draws README's picture: the end screen of a recorded run, 100 columns wide.

python benchmarks/end_screen.py            # writes docs/gallery/end-screen.svg
python benchmarks/end_screen.py --check    # ends with 1 where the picture differs
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from mmrepro.reports.documents import kind_of
from mmrepro.reports.terminal import print_page
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "tests/evidence/ghost-key-eviction-0.23.0.zip"
PICTURE = ROOT / "docs/gallery/end-screen.svg"
ELSEWHERE = re.compile(r"\s*(?:@font-face \{\{.*?\}\}|<!--.*?-->)(?=\n)", re.DOTALL)
"""What names other machines: fonts of the web, and rich's own address."""


def picture() -> str:
    printed = io.StringIO()
    screen = Console(
        width=100, force_terminal=True, color_system="truecolor", file=printed
    )
    print_page(
        kind_of(RUN).compose(kind_of(RUN).load(RUN)),
        screen,
        "incidents/last/report.html",
    )
    # A terminal wraps long lines; so does the second console.
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(Text.from_ansi(printed.getvalue().rstrip()), soft_wrap=False)
    form = ELSEWHERE.sub("", CONSOLE_SVG_FORMAT)
    made = console.export_svg(
        title="mmrepro run ghost-key-eviction", code_format=form, unique_id="end"
    )
    return "\n".join(line.rstrip() for line in made.splitlines()) + "\n"


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PICTURE.write_text(picture(), encoding="utf-8")
    elif PICTURE.read_text(encoding="utf-8") != picture():
        sys.exit(
            "The picture is of another end screen: python benchmarks/end_screen.py"
        )
