"""The catalogue as a page: one line a failure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mmrepro.catalogue.recorded import RecordedRun
from mmrepro.catalogue.standing import Cured, Known
from mmrepro.scenario.parts import HARMS, SEES, Upstream
from mmrepro.signature import Outcome

HEAD: Final = """\
# The catalogue

Each line is one failure that mmrepro knows. `mmrepro list --markdown` prints this page from the
scenarios and from their recorded runs; `tests/evidence/record.py --table` writes both.

- **Releases**: the declared range, then the recorded runs of the unchanged scenario. Where no run
  is listed, nothing was observed.
- **Workaround**: mitigations, with the releases on which a run shows that they work. A mitigation
  that *hides* the failure keeps it from showing, and no run shows that its cause is gone.
- **Upstream**: the state in the project's tracker, and the day of the look-up.
- `mmrepro list --alive` lists the failures that are still unfixed in the newest release.
"""
COLUMNS: Final = (
    "failure",
    "engine",
    "class",
    "severity",
    "releases",
    "symptom",
    "workaround",
    "upstream",
)
SEEN: Final = (
    ("reproduced", Outcome.REPRODUCED),
    ("not", Outcome.NOT_REPRODUCED),
    ("fails otherwise", Outcome.DIFFERENT_FAILURE),
    ("inconclusive", Outcome.INCONCLUSIVE),
)


def page(failures: Sequence[Known]) -> str:
    """The whole page."""
    lines = [HEAD, table_row(COLUMNS), table_row(["---"] * len(COLUMNS))]
    lines += [table_row(_cells(one)) for one in failures]
    runs = [run for one in failures for run in one.runs]
    lines += [
        "",
        _counted(failures, runs),
        "",
        "## Words",
        "",
        "| class | what a user observes |",
        "|---|---|",
    ]
    lines += [f"| {name.words} | {told} |" for name, told in SEES.items()]
    lines += ["", "| severity | whom one such request harms |", "|---|---|"]
    lines += [f"| {name} | {told} |" for name, told in HARMS.items()]
    return "\n".join(lines) + "\n"


def _counted(failures: Sequence[Known], runs: Sequence[RecordedRun]) -> str:
    days = sorted(run.at.date().isoformat() for run in runs)
    when = f", {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    return f"{len(failures)} failures; {len(runs)} recorded runs{when}."


def _cells(one: Known) -> list[str]:
    scenario = one.scenario
    kind, severity = scenario.failure_class, scenario.severity
    return [
        f"`{scenario.name}`" + (f" ({scenario.variant})" if scenario.variant else ""),
        scenario.engine,
        kind.words if kind else "not declared",
        str(severity or "not declared"),
        releases(one),
        scenario.title,
        "; ".join(map(cure, one.cures())) or "none known",
        upstream(scenario.upstream),
    ]


def releases(one: Known) -> str:
    """``>=0.14.0, <0.24.0`` and the outcomes of its runs."""
    seen = [
        f"{words}: {', '.join(found)}"
        for words, outcome in SEEN
        if (found := one.releases(outcome))
    ]
    if one.on_gpu:
        seen.append(f"on a GPU: {', '.join(one.on_gpu)}")
    return f"{one.scenario.affected_range}<br>{'; '.join(seen) or 'not run'}"


def cure(of: Cured) -> str:
    """``patch`` and the releases on which runs show that it works, hides the failure or fails."""
    name = f"release {of.release}" if of.release else f"`{of.name}`"
    seen = [f"works on {', '.join(of.helped)}"] if of.helped else []
    seen += [f"hides it on {', '.join(of.hidden)}"] if of.hidden else []
    seen += [f"no help on {', '.join(of.failed)}"] if of.failed else []
    return f"{name} ({'; '.join(seen) or 'untested'})"


def upstream(said: Upstream) -> str:
    told = said.words
    if said.source is not None:
        told += f": [{said.source.id}]({said.source.url})"
    return f"{told}, {said.looked_up}" if said.looked_up else told


def table_row(cells: Iterable[str]) -> str:
    """A row of a Markdown table; each cell becomes one line."""
    plain = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return "| " + " | ".join(plain) + " |"
