"""A page for every known failure, their index, and the data of its search.

mkdocs reads this file as its hooks: nothing of it is committed. The pages are made of
the scenarios, of their recorded runs and of the index that ``mmrepro find`` reads."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from mmrepro.engines.folders import title as engine_title
from mmrepro.failure.signature import Outcome
from mmrepro.live.diagnose import fixing_release, setting_until_fixed
from mmrepro.scenario import Scenario
from mmrepro.scenario.parts import HARMS, SEES
from mmrepro.scenarios.data import recorded_runs
from mmrepro.tools.catalogue import (
    IndexEntry,
    Pattern,
    RecordedRun,
    RecordedScenario,
    index_entries,
    known_standings,
    load_recorded,
)
from packaging.version import Version

FOLDER = "failures"
INDEX = f"{FOLDER}/index.md"
DATA = f"{FOLDER}/find-index.js"
_STRIP = (
    (Outcome.REPRODUCED, "bad", "✗", "reproduced"),
    (Outcome.DIFFERENT_FAILURE, "other", "!", "fails in another way"),
    (Outcome.NOT_REPRODUCED, "good", "✓", "did not fail"),
    (Outcome.INCONCLUSIVE, "none", "?", "undecided"),
)
"""An outcome, its class, its sign and its words; the first that a release has counts."""
_TOUCHED = {"in": "in the declared range, not run", "out": "outside of it, not run"}


# ---------------------------------------------------------------- what is known


@cache
def runs() -> list[RecordedRun]:
    """Every recorded run."""
    return load_recorded(recorded_runs())


@cache
def failures() -> dict[str, list[RecordedScenario]]:
    """Every known failure by its name: its variants, or itself alone."""
    recorded, broken = known_standings(runs())
    assert not broken, broken
    by_name: dict[str, list[RecordedScenario]] = {}
    for failure in recorded:
        by_name.setdefault(failure.scenario.name, []).append(failure)
    return by_name


def entries() -> dict[str, IndexEntry]:
    """The entries of ``find`` that are known failures."""
    return {e.name: e for e in index_entries() if e.kind == "scenario"}


@cache
def run_releases(engine: str) -> tuple[str, ...]:
    """Releases of an engine on which anything was run, oldest first."""
    releases = {run.release for run in runs() if run.engine == engine}
    return tuple(sorted(releases, key=Version))


# ---------------------------------------------------------------- one page


def page(name: str) -> str:
    """The page of a known failure, in Markdown."""
    entry = entries()[name]
    variants = failures()[name]
    first = variants[0].scenario
    several = len(variants) > 1
    parts = [
        "---",
        f"title: {json.dumps(_plain(entry.title))}",
        f"description: {json.dumps(entry.fixed)}",
        "search: {boost: 2}",
        "---",
        f"# {entry.title}",
        "",
        _badges(entry, first),
        "",
        first.summary,
        "",
        *_remedies(entry, first),
        "",
        "## What you see",
        "",
    ]
    for failure in variants:
        if several:
            parts += [f"**`{failure.scenario.variant}`**: {failure.scenario.title}", ""]
        parts += [*_symptom(failure.scenario), ""]

    lines = log_lines(entry.patterns)
    if lines:
        parts += ["Log lines to search for:", "", "```text", *lines, "```", ""]

    parts += ["## Releases", ""]
    for failure in variants:
        if several:
            parts += [f"`{failure.scenario.variant}`: ", ""]
        parts += [_range(failure.scenario), "", strip(failure), ""]
    parts += [_legend(), ""]

    if first.explanation:
        parts += ["## Why", "", first.explanation, ""]
    parts += ["## Reproduce it", "", "```sh", *_commands(variants), "```", ""]
    if entry.planted:
        parts += [
            "This fault is planted in minivllm, mmrepro's own small engine, on purpose.",
            "",
        ]
    if entry.references:
        parts += ["## Upstream", "", *_references(entry), ""]
    parts += ["[All known failures](index.md)", ""]
    return "\n".join(parts)


def _plain(text: str) -> str:
    """A title where no Markdown is read."""
    return text.replace("`", "")


def _badges(entry: IndexEntry, scenario: Scenario) -> str:
    """Engine, class and severity, each with what the word means."""
    badges = [f'<span class="badge">{engine_title(entry.engine)}</span>']
    if scenario.failure_class is not None:
        sees = html.escape(SEES[scenario.failure_class])
        words = scenario.failure_class.words
        badges.append(f'<span class="badge" title="{sees}">{words}</span>')
    if scenario.severity is not None:
        harm = html.escape(HARMS[scenario.severity])
        severity = scenario.severity
        badges.append(
            f'<span class="badge {severity}" title="{harm}">{severity}</span>'
        )
    badges.append(f"<code>{entry.name}</code>")
    return f'<p class="badges">{" ".join(badges)}</p>'


def _remedies(entry: IndexEntry, scenario: Scenario) -> Iterator[str]:
    """UNTIL FIXED and FIX, as ``mmrepro diagnose`` ends, then the other ways."""
    setting = setting_until_fixed(scenario)
    fix = fixing_release(scenario)
    yield "| when | what to do |"
    yield "|---|---|"
    yield f"| UNTIL FIXED | {_cell(setting or 'no setting is known that helps')} |"
    yield f"| FIX | {_cell(fix or entry.fixed)} |"
    others = []
    for mitigation in scenario.mitigations:
        # A patch or another condition of a run: to try, no setting of a server.
        if mitigation.release or mitigation.server_args or mitigation.env:
            continue
        others.append(f"`{mitigation.name}`: {mitigation.description}")
    if others:
        yield f"| FOR A TEST | {_cell('; '.join(others))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _symptom(scenario: Scenario) -> Iterator[str]:
    for declared in scenario.declared():
        if declared.part == "symptom":
            yield f"- {scenario.filled(declared.statement)}"


def log_lines(patterns: Sequence[Pattern]) -> list[str]:
    """The fixed parts of its expressions, each once, the longest of each."""
    lines: dict[str, None] = {}
    for pattern in patterns:
        for text in pattern.texts:
            lines[text.strip()] = None
    return list(lines)


def _range(scenario: Scenario) -> str:
    return f"{engine_title(scenario.engine)} {html.escape(scenario.affected_where)}"


def strip(failure: RecordedScenario) -> str:
    """A box for each release on which anything of the engine was run."""
    scenario = failure.scenario
    boxes = []
    for release in run_releases(scenario.engine):
        css, sign, words = _box(failure, release)
        boxes.append(
            f'<li class="{css}" title="{release}: {words}">'
            f'<span aria-hidden="true">{sign}</span> {release}'
            f'<span class="hidden">: {words}</span></li>'
        )
    return f'<ol class="strip">{"".join(boxes)}</ol>'


def _box(failure: RecordedScenario, release: str) -> tuple[str, str, str]:
    """Class, sign and words of a release."""
    outcomes = {run.outcome for run in failure.at(release)}
    for outcome, css, sign, words in _STRIP:
        if outcome in outcomes:
            return css, sign, words
    affected = Version(release) in failure.scenario.affected_releases
    css = "in" if affected else "out"
    return css, "–" if affected else "·", _TOUCHED[css]


def _legend() -> str:
    """What the signs of a strip mean."""
    words = [f"{sign} {meaning}" for _, _, sign, meaning in _STRIP]
    return f"{', '.join(words)}, – {_TOUCHED['in']}, · {_TOUCHED['out']}."


def _commands(variants: Sequence[RecordedScenario]) -> Iterator[str]:
    for failure in variants:
        scenario = failure.scenario
        variant = f":{scenario.variant}" if scenario.variant else ""
        yield f"mmrepro run {scenario.name}{variant}"
    setting = ""
    for mitigation in variants[0].scenario.mitigations:
        if mitigation.server_args and not setting:
            setting = mitigation.name
    if setting:
        name = variants[0].scenario.name
        yield f"mmrepro run {shlex.quote(name)} --mitigation {setting}"


def _references(entry: IndexEntry) -> Iterator[str]:
    for name, text, url in entry.references:
        words = f"{name}: {text}" if text else name
        yield f"- [{words}]({url})"


# ---------------------------------------------------------------- the index


_SEARCH = """
<form class="find" id="find" hidden>
<label for="find-text">Paste a log line, a traceback or an issue's number</label>
<textarea id="find-text" rows="4" spellcheck="false"
 placeholder="AssertionError: Expected a cached item for mm_hash=…"></textarea>
<p><button class="md-button md-button--primary" type="submit">Search</button>
Nothing leaves this page.</p>
<div id="find-result" role="status"></div>
</form>
"""
_FILTER = """
<form class="filter" id="filter" hidden>
<label>Words <input type="search" id="filter-words"></label>
<label>Engine <select id="filter-engine"><option value="">all</option>{engines}</select></label>
<label>Class <select id="filter-class"><option value="">all</option>{classes}</select></label>
<span id="filter-count" role="status"></span>
</form>
"""


def index() -> str:
    """All known failures as cards, those that are planted in minivllm last."""
    ordered = sorted(entries().values(), key=lambda entry: (entry.planted, entry.name))
    engines = dict.fromkeys(entry.engine for entry in ordered)
    classes: dict[str, None] = {}
    for entry in ordered:
        classes[_class(entry)] = None
    cards = [_card(entry) for entry in ordered]
    return "\n".join(
        [
            "# Known failures",
            "",
            f"mmrepro knows {len(ordered)} failures and reproduces each of them. A page has "
            "what one sees, the releases, a fix or a workaround, and the command that "
            "reproduces it. [All in one table](../catalogue.md).",
            _SEARCH,
            _FILTER.format(
                engines=_options(engines, engine_title),
                classes=_options(sorted(classes), str),
            ),
            '<ul class="cards" id="cards">',
            *cards,
            "</ul>",
            "",
            "`mmrepro find` asks the same index, and knows failed starts and whole logs as well. ",
            "",
            '<script src="find-index.js"></script>',
            '<script src="../assets/find.js"></script>',
        ]
    )


def _class(entry: IndexEntry) -> str:
    kind = failures()[entry.name][0].scenario.failure_class
    return kind.words if kind else ""


def _options(values: Any, words: Any) -> str:
    options = []
    for value in values:
        options.append(f'<option value="{value}">{words(value)}</option>')
    return "".join(options)


def _card(entry: IndexEntry) -> str:
    first = failures()[entry.name][0].scenario
    badges = _badges(entry, first)
    planted = " Planted in minivllm." if entry.planted else ""
    fixed = html.escape(f"{entry.fixed[:1].upper()}{entry.fixed[1:]}.")
    affected = f"{engine_title(entry.engine)} {html.escape(entry.affected)}"
    return (
        f'<li data-engine="{entry.engine}" data-class="{_class(entry)}">'
        f'<a href="{entry.name}/">{html.escape(_plain(entry.title))}</a>'
        f"{badges}<p>{affected}. {fixed}{planted}</p></li>"
    )


# ---------------------------------------------------------------- data of the search


def data() -> str:
    """The index of ``find`` as a script: a page that is a file may load no JSON."""
    rows = []
    for entry in index_entries():
        patterns = []
        for pattern in entry.patterns:
            patterns.append(
                {
                    "name": pattern.name,
                    "regex": javascript(pattern.regex),
                    "texts": pattern.texts,
                    "sure": pattern.sure,
                    "rank": pattern.rank,
                }
            )
        rows.append(
            {
                "kind": entry.kind,
                "name": entry.name,
                "title": entry.title,
                "engine": entry.engine,
                "affected": entry.affected,
                "fixed": entry.fixed,
                "workarounds": entry.workarounds,
                "references": entry.references,
                "patterns": patterns,
                "frames": entry.frames,
                "words": entry.words,
                "planted": entry.planted,
                "page": _page_of(entry),
            }
        )
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return f"const FIND_INDEX = {text};\n"


def _page_of(entry: IndexEntry) -> str:
    """Its page, as seen from the index of failures."""
    if entry.kind == "scenario":
        return f"{entry.name}/"
    if entry.kind == "finding":
        return f"../found/{entry.name}/report/"
    return "../logs/#classes"


_NOT_SENSITIVE = re.compile(r"\(\?i:([^()]*)\)")


def javascript(regex: str) -> str:
    """A Python expression as JavaScript writes it.

    Browsers of 2024 refuse ``(?i:…)``, so each letter in it becomes ``[aA]``."""
    named = regex.replace("(?P<", "(?<")
    return _NOT_SENSITIVE.sub(lambda match: f"(?:{_both_cases(match[1])})", named)


def _both_cases(text: str) -> str:
    def both(match: re.Match[str]) -> str:
        letter = match[0]
        return f"[{letter.lower()}{letter.upper()}]"

    return re.sub(r"[A-Za-z]", both, text)


# ---------------------------------------------------------------- hooks of mkdocs


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    made = {INDEX: index(), DATA: data()}
    for name in failures():
        made[f"{FOLDER}/{name}.md"] = page(name)
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files
