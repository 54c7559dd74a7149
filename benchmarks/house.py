"""Draws the rooms of the house from the imports: the picture in docs/architecture.md.

    python benchmarks/house.py            # writes them anew
    python benchmarks/house.py --check    # ends with 1 where the page differs

An arrow leads from a room to one that it imports. Arrows that follow from others are
left out."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/architecture.md"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS: Mapping[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
CONTRACTS = PROJECT["tool"]["importlinter"]["contracts"]
LAYERS = [line.split(" | ") for line in CONTRACTS[0]["layers"]]


def files() -> dict[str, Path]:
    """Module of each file that git knows or does not ignore."""
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(
        asked, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    packages = {folder: package for package, folder in FOLDERS.items()}
    found = {}
    for name in listed.splitlines():
        top, *below = Path(name).with_suffix("").parts
        if top in packages and below and (ROOT / name).is_file():
            found[".".join([packages[top], *below])] = ROOT / name
    return found


def room(module: str) -> str:
    return [*module.split("."), ""][1]


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif isinstance(node, ast.Import):
            yield from (one.name for one in node.names)


def picture() -> str:
    rooms = [name for layer in LAYERS for name in layer]
    arrows: dict[str, set[str]] = {name: set() for name in rooms}
    for module, file in files().items():
        if (own := room(module)) in arrows:
            found = imported(file.read_text(encoding="utf-8"))
            arrows[own] |= {room(one) for one in found if one.startswith("mmrepro.")}
    arrows = {name: (there & {*rooms}) - {name} for name, there in arrows.items()}
    reach: dict[str, set[str]] = {}
    for name in reversed(rooms):  # from below: what a room imports lies below it
        reach[name] = arrows[name].union(*(reach[one] for one in arrows[name]))
    drawn = {
        name: sorted(
            there - set().union(*(reach[one] for one in there)), key=rooms.index
        )
        for name, there in arrows.items()
    }
    edges = [f"    {name} --> {one}" for name in rooms for one in drawn[name]]
    count = f"{len(rooms)} rooms, {sum(map(len, arrows.values()))} arrows between them."
    return "\n".join(["```mermaid", "flowchart TD", *edges, "```", "", count])


def with_picture(text: str) -> str:
    head, start, rest = text.partition("<!-- rooms -->\n")
    _, end, tail = rest.partition("<!-- /rooms -->")
    if not start or not end:
        raise SystemExit(f"{PAGE.name} has no place for the picture: <!-- rooms -->")
    return f"{head}{start}{picture()}\n{end}{tail}"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    drawn = with_picture(text)
    if "--check" in sys.argv:
        if drawn != text:
            raise SystemExit(
                f"The picture is old: python benchmarks/{Path(__file__).name}"
            )
    else:
        PAGE.write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
