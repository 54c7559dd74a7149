"""The pages of the documentation that are made from the program, and the site's links.

    python .ci/site.py            # writes docs/commands.md
    python .ci/site.py --check    # ends with 1 where it differs

mkdocs reads this file as its hooks: the site gets each command's help as a page, and
links that leave docs/ become plain names, since the site does not hold the checkout.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from mmrepro.cli.app import app
from mmrepro.cli.commands import COMMANDS, GROUPS, PAGES
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGE = DOCS / "commands.md"
TITLE = """# Commands

Each of them has `--help` with an example. [Exit codes](exit-codes.md) and
[options of many commands](options.md) are the same everywhere.
"""


def commands() -> str:
    lines = [TITLE]
    for group, names in GROUPS.items():
        lines += [
            f"## {group}",
            "",
            "| command | what it does | page |",
            "|---|---|---|",
        ]
        for name in names:
            own = PAGES.get(name, f"{name}.md")
            group = typer.main.get_command(app).get_command(None, name)
            inner = getattr(group, "commands", {})
            said = f"mmrepro {name}" + (" " + r"\|".join(inner) if inner else "")
            lines.append(f"| `{said}` | {COMMANDS[name][1]} | [{own[:-3]}]({own}) |")
        lines.append("")
    return "\n".join(lines)


# ---------------------------------------------------------------- hooks of mkdocs


def helps() -> Iterator[tuple[list[str], str]]:
    """The words of each command, and what its ``--help`` prints."""
    os.environ["COLUMNS"] = "100"
    for name in sorted(COMMANDS):
        command: Any = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
        for words in below([name], command):
            printed = CliRunner().invoke(app, [*words, "--help"], prog_name="mmrepro")
            yield words, printed.output.strip()


def below(words: list[str], command: Any) -> Iterator[list[str]]:
    """The words of a command, and those of its subcommands, such as env warm start."""
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from below([*words, name], inner)


def reference() -> str:
    parts = ["# Reference of commands\n"]
    parts += [
        f"## {' '.join(words)}\n\n```text\n{text}\n```\n" for words, text in helps()
    ]
    return "\n".join(parts)


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    made = {
        "reference.md": reference(),
        "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        "CHANGELOG.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    }
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


_REPOSITORY_ONLY = "<!-- not in the site -->"
"""What follows it in docs/index.md lists records of the repository."""
_REFERENCE_OF_THE_LAB = ("gpu-facts.md", "log-lines.md")
_SEARCH_MARK = "<!-- search -->"
_SEARCH = """
<form class="find" action="failures/" method="get">
<label for="find-text">Paste a log line, a traceback or an issue's number</label>
<textarea id="find-text" name="line" rows="2" spellcheck="false"></textarea>
<p><button class="md-button md-button--primary" type="submit">Search</button>
<a href="failures/">All known failures</a></p>
</form>
"""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links within docs/ stay, those to the two pages above it are kept, others are
    names, as are those to the lab's diaries."""
    markdown = markdown.partition(_REPOSITORY_ONLY)[0].replace(_SEARCH_MARK, _SEARCH)
    made = page.file.src_uri in ("CONTRIBUTING.md", "CHANGELOG.md")
    here = (ROOT if made else (DOCS / page.file.src_uri).parent).resolve()
    level = "../" * page.file.src_uri.count("/")

    def kept(match: re.Match[str]) -> str:
        text, target = match[1], match[2]
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"<?[a-z]+:", target):
            return match[0]
        there = (here / path).resolve()
        if there.parent == DOCS / "lab" and there.name not in _REFERENCE_OF_THE_LAB:
            return text  # mkdocs.yml leaves these pages out
        if there.is_relative_to(DOCS) and (there.is_file() or not there.exists()):
            return f"[{text}]({level}{there.relative_to(DOCS)}{hash_}{anchor})"
        if there.parent == ROOT and there.name in ("CONTRIBUTING.md", "CHANGELOG.md"):
            return f"[{text}]({level}{there.name}{hash_}{anchor})"
        if there == ROOT / "README.md":
            return f"[{text}]({level}index.md)"
        return text

    return LINK.sub(kept, markdown)


UNNAMED = (
    # The theme's search is a dialog without a name.
    ('role="dialog"', 'role="dialog" aria-label="Search"'),
    # Its choice of colours follows the system: nobody has to reach it.
    ('<input class="md-option"', '<input class="md-option" tabindex="-1"'),
)


def on_post_page(output: str, **_: Any) -> str:
    """What the theme leaves without a name gets one."""
    for unnamed, named in UNNAMED:
        output = output.replace(unnamed, named)
    return output


if __name__ == "__main__":
    if "--check" not in sys.argv:
        PAGE.write_text(commands(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != commands():
        sys.exit("docs/commands.md differs from the program: python .ci/site.py")
