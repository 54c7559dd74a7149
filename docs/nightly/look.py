"""Pictures of a dashboard as a browser shows it: light, dark, narrow. Needs Chromium.

usage: uv run python docs/nightly/look.py --out DIR [DASHBOARD.html …]

Without a file, made-up nights are drawn: of everything that can happen, of one cell, of 60
scenarios on 60 releases.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHOTS = {"light": (1280, 2400, 1), "dark": (1280, 2400, 0), "narrow": (390, 3200, 1)}
"""Width and height in pixels; Chromium's preferred colour scheme: 0 dark, 1 light."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser() -> str:
    found = next((path for path in map(shutil.which, NAMES) if path), None)
    if found is None:
        sys.exit("there is no Chromium here; in Debian: apt-get install chromium")
    return found


def look(page: Path, out: Path, name: str) -> list[Path]:
    """One picture a way of looking; the page gets no network."""
    made = []
    for kind, (width, height, scheme) in SHOTS.items():
        target = out / f"{name}-{kind}.png"
        target.unlink(missing_ok=True)
        subprocess.run(
            [
                browser(),
                "--headless",
                "--no-sandbox",
                "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND",
                f"--blink-settings=preferredColorScheme={scheme}",
                f"--window-size={width},{height}",
                f"--screenshot={target.resolve()}",
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
        made.append(target)
    return made


def made_up(out: Path) -> list[tuple[str, Path]]:
    """Dashboards of made-up nights, as the tests make them, below ``out``."""
    sys.path.insert(0, str(ROOT / "tests/unit/reports"))
    from datetime import date

    from mmrepro.history.quarantine import Entry, Quarantine
    from mmrepro.reports.night import write_night
    from night_samples import SUBJECTS, Subject, realistic

    known = Entry(
        scenario="shape-alias",
        releases="==0.5.17",
        reason="known drift",
        issue="#41",
        owner="us",
        expires=date(2030, 1, 1),
    )
    many = [
        Subject(f"scenario-{n:02}", "vllm", f">=0.{n % 30}.0,<0.{n % 30 + 20}.0", "It fails")
        for n in range(60)
    ]
    releases = {"vllm": [f"0.{n}.{patch}" for n in range(1, 31) for patch in (0, 1)]}
    nights = {
        "everything": (realistic(), Quarantine((known,))),
        "one-cell": (realistic(1, SUBJECTS[2:3], {"vllm": ("0.14.0",)}), Quarantine()),
        "big": (realistic(3, many, releases), Quarantine()),
    }
    pages = []
    for name, (history, quarantine) in nights.items():
        folder = out / name
        write_night(history, history.nights[-1], folder, quarantine)
        pages.append((name, folder / "dashboard.html"))
    return pages


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pages", nargs="*", type=Path, metavar="DASHBOARD.html")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    pages = [(page.parent.name or "page", page) for page in arguments.pages]
    for name, page in pages or made_up(arguments.out):
        for picture in look(page, arguments.out, name):
            print(picture)


if __name__ == "__main__":
    main()
