"""A night as one self-contained HTML file: what changed, then scenarios × releases as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mmrepro.base.units import duration
from mmrepro.history.states import State
from mmrepro.incident.ledger import Attempt, EventKind
from mmrepro.records import Fidelity
from mmrepro.reports import night_words as words
from mmrepro.reports.html import make_environment, page
from mmrepro.reports.night_square import Square, outcome_words, report_href
from mmrepro.reports.night_view import NightView, Point
from mmrepro.reports.words import FIDELITY_WORDS
from mmrepro.text.sanitize import one_line

if TYPE_CHECKING:
    from markupsafe import Markup

HTML_FILE: Final = "dashboard.html"
MAX_RUNS: Final = 3000
"""Rows of the table of all runs; the picture has every cell."""
MAX_ROWS: Final = 300
"""Of each list above the picture."""
BAR, STRIP = 62, 12
STACK: Final = (
    State.REPRODUCED,
    State.DIFFERENT_FAILURE,
    State.FLAKY,
    State.INCONCLUSIVE,
    State.LOST,
    State.MISSING,
    State.NOT_REPRODUCED,
)
"""Of a night's bar, from its top: what is good is its ground."""


def linked(folder: Path) -> Callable[[Attempt | None], str]:
    """The addresses of reports that are there, seen from ``folder``; "" for all others."""

    def href(attempt: Attempt | None) -> str:
        address = report_href(attempt)
        return address if address and (folder / address).is_file() else ""

    return href


def render_dashboard(night: NightView, href: Callable[[Attempt | None], str]) -> str:
    """The page.

    Args:
        href: relative address of a run's report, or nothing where there is none.
    """
    return page(
        "dashboard.html.j2",
        dashboard_style(),
        night=night,
        record=night.runs.night,
        words=words,
        href=href,
        legend=[s for s in State if night.states[s]],
        fidelities=_fidelities(night),
        new_columns=_new(night),
        square_class=square_class,
        outcome_words=outcome_words,
        bars=bars(night.trend),
        strip=strip,
        pace=pace,
        max_rows=MAX_ROWS,
        max_runs=MAX_RUNS,
    )


def dashboard_style() -> str:
    environment = make_environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, "dashboard.css")[0].strip()


def square_class(square: Square, ring: bool = True) -> str:
    """State by colour, letter and shape; solid: not as expected; hatched: in quarantine."""
    names = ["sq", square.state.value]
    if square.standing in (words.Standing.SURPRISE, words.Standing.FLAKY):
        names.append("loud")
    if square.quarantine is not None:
        names.append("hatched")
    if square.events and ring:
        names.append("changed")
    return " ".join(names)


def _fidelities(night: NightView) -> list[tuple[Fidelity, str, str]]:
    """Those of this night: the letter where a square has it and its row another, the meaning."""
    rows = [(row.fidelity, s) for g in night.grids for row in g.rows for s in row.squares.values()]
    used = {s.fidelity for _, s in rows}
    odd = {s.fidelity for usual, s in rows if s.fidelity is not usual}
    return [
        (f, words.FIDELITY_LETTERS[f] if f in odd else "", meaning.replace(" (listed below)", ""))
        for f, meaning in FIDELITY_WORDS.items()
        if f in used
    ]


def _new(night: NightView) -> set[tuple[str, str]]:
    kinds = (EventKind.NEW_RELEASE, EventKind.NEW_RELEASE_AFFECTED)
    return {(e.engine, e.release) for e in night.events if e.what in kinds}


# ------------------------------------------------------------------ trends


def bars(trend: list[Point]) -> Markup:
    """All cells of each night, one bar a night: states stacked, what surprised written above."""
    from markupsafe import Markup

    top = max((p.total for p in trend), default=0)
    if len(trend) < 2 or not top:
        return Markup("")
    height, step = 110, BAR + 10
    body = []
    for number, point in enumerate(trend):
        x = 4 + number * step
        body.append(Markup("<g><title>{}</title>").format(one_line(point.words)))
        body.append(_stack(point, x, BAR, 22, height, top))
        odd = f"{point.surprises} !" if point.surprises else ""
        body.append(_text(x + BAR / 2, 14, odd or "–", "odd" if odd else "tick"))
        body.append(_text(x + BAR / 2, height + 38, one_line(point.night, 60)[-10:], "tick"))
        body.append(_text(x + BAR / 2, height + 54, duration(point.seconds), "tick"))
        body.append(Markup("</g>"))
    width = 8 + len(trend) * step
    return Markup(
        '<svg class="bars" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
        'aria-label="{label}">{body}</svg>'
    ).format(
        w=width,
        h=height + 62,
        label=_spoken(trend),
        body=Markup("").join(body),
    )


def strip(trend: list[Point]) -> Markup:
    """The same of one row, small."""
    from markupsafe import Markup

    top = max((p.total for p in trend), default=0) or 1
    body = []
    for number, point in enumerate(trend):
        x = number * (STRIP + 2)
        body.append(Markup("<g><title>{}</title>").format(one_line(point.words)))
        body.append(_stack(point, x, STRIP, 6, 22, top))
        if not point.total:
            body.append(
                Markup('<rect class="none" x="{}" y="26" width="12" height="2"/>').format(x)
            )
        if point.surprises:
            body.append(
                Markup('<circle class="dot" cx="{}" cy="3" r="2.5"/>').format(x + STRIP / 2)
            )
        body.append(Markup("</g>"))
    width = max(len(trend) * (STRIP + 2), 1)
    return Markup(
        '<svg class="strip" width="{w}" height="28" viewBox="0 0 {w} 28" role="img" '
        'aria-label="{label}">{body}</svg>'
    ).format(w=width, label=_spoken(trend), body=Markup("").join(body))


def pace(trend: list[Point]) -> Markup:
    """How long a row's runs took, night after night."""
    from markupsafe import Markup

    known = [(n, p.seconds) for n, p in enumerate(trend) if p.total and p.seconds > 0]
    if len(known) < 2:
        return Markup("")
    top = max(seconds for _, seconds in known)
    step = STRIP + 2
    spots = [(n * step + STRIP / 2, 25 - 21 * seconds / top) for n, seconds in known]
    path = "M" + "L".join(f"{x:.0f} {y:.1f}" for x, y in spots)
    return Markup(
        '<svg class="strip" width="{w}" height="28" viewBox="0 0 {w} 28" role="img" '
        'aria-label="durations"><path class="pace" d="{path}"/>'
        '<circle class="end" cx="{x:.0f}" cy="{y:.1f}" r="2.5"/></svg>'
    ).format(w=len(trend) * step, path=path, x=spots[-1][0], y=spots[-1][1])


def _spoken(trend: list[Point]) -> str:
    return "Oldest first. " + ". ".join(one_line(p.words) for p in trend)


def _stack(point: Point, x: float, width: float, y: float, height: float, top: int) -> Markup:
    from markupsafe import Markup

    parts, at = [], y + height * (1 - point.total / top)
    for state in STACK:
        tall = height * point.counts[state] / top
        if tall > 0:
            parts.append(
                Markup(
                    '<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>'
                ).format(state.value, x, at, width, max(tall - 0.7, 0.4))
            )
            # A letter where it fits: colour alone says nothing to some.
            if width > 20 and tall >= 15:
                label = f"{words.MARKS[state]} {point.counts[state]}"
                parts.append(_text(x + width / 2, at + tall / 2 + 4, label, f"in {state.value}"))
        at += tall
    return Markup("").join(parts)


def _text(x: float, y: float, text: str, classes: str) -> Markup:
    from markupsafe import Markup

    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(classes, x, y, text)
