"""A nightly run as a page: what changed, what is not as expected, scenarios ×
releases."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mmrepro.base.records import Fidelity
from mmrepro.base.text.sanitize import clip, plain
from mmrepro.base.units import duration
from mmrepro.failure.documents.ledger import Attempt, Event, EventKind
from mmrepro.failure.documents.stored import replace_file
from mmrepro.history.concerns import Quarantine
from mmrepro.history.ledger import History, NightRuns, read
from mmrepro.history.nightly import NIGHT_WORDS, NightView, night_document, strips_of
from mmrepro.history.squares import (
    EVENTS,
    LOOKS,
    Square,
    Standing,
    importance,
    state_words,
)
from mmrepro.history.states import VERDICTS, State
from mmrepro.reports import blocks as b, grid as drawn, words
from mmrepro.reports.documents import Case, How, Kind, Suite, render, write

MARKDOWN_FILE: Final = "night.md"
HTML_FILE: Final = "dashboard.html"
JUNIT_FILE: Final = "junit.xml"
MARKDOWN_BYTES: Final = 900_000
"""GitHub refuses a step summary of more than 1 MiB."""
_RUNS: Final = (
    "scenario:name",
    "release:name",
    "all its runs",
    "each run:name",
    "what it reports, and its incident",
    "took:number",
    "machine",
    "key:name",
)


def load(folder: Path) -> NightView:
    """The newest nightly run of the ledger in ``folder``. Raises BadLedger."""
    history = read(folder)
    newest = history.newest or history.night("")  # raises: there is none
    return NightView(history, newest, Quarantine(), folder)


def write_night(
    history: History, night: NightRuns, folder: Path, quarantine: Quarantine
) -> list[Path]:
    """Write ``night.md``, ``junit.xml`` and ``dashboard.html``, each whole or not at
    all.

    Args:
        folder: the ledger's, so that the dashboard's squares link to the reports below
            it; in any other folder those squares are no links.

    Raises:
        UnwritableOutput: a file could not be written; one that was there before is
            untouched.
    """
    folder.mkdir(parents=True, exist_ok=True)
    view = NightView(history, night, quarantine, folder)
    replace_file(folder / JUNIT_FILE, render(KIND, view, "junit"))
    return [*write(KIND, view, folder), folder / JUNIT_FILE]


# ----------------------------------------------------------------------------- the page


def compose(night: NightView) -> b.Page:
    record = night.runs.night
    shard = f", shard {record.shard}" if record.shard else ""
    odd = [
        s for how in (Standing.SURPRISE, Standing.FLAKY) for s in night.standing(how)
    ]
    repeats = [
        (f"to repeat {s.cell.row} on {s.place}", s.deciding.command)
        for s in odd[:20]
        if s.deciding and s.deciding.command
    ]
    again = [
        block for why, text in repeats for block in (b.p(why), b.Fence(text, "sh"))
    ]
    untested = night.standing(Standing.UNTESTED)
    listed = _listed(night, untested)
    every = _listed(night, night.squares, None)
    return b.Page(
        title=f"Nightly run {record.id}: {night.changes}",
        badge=b.Badge(*night.badge),
        subject=f"nightly run {record.id}{shard}",
        warning=b.Warning(night.warning) if night.warning else None,
        card=[*_card(night, odd)],
        counts=[b.count(len(night.squares), "job"), *state_words(night.squares)],
        commands=[("to run it again, or go on with it", record.command), *repeats[:2]],
        sections=[
            b.Section("Scenarios × releases", [*_picture(night)], 90),
            b.Section("What changed", [*_changes(night)], 99),
            *_odd(night, Standing.SURPRISE, 98),
            *_odd(night, Standing.FLAKY, 97),
            b.Section(
                f"Untested ({len(untested)})",
                b.folded(
                    "Nothing was learnt of these; none counts as good",
                    listed,
                    open=len(untested) <= 20,
                )
                if untested
                else [],
                95,
            ),
            b.Section("Quarantine", _quarantine(night), 80),
            b.Section("Over the nightly runs", [*_trend(night)], 60),
            b.Section(
                "Every run",
                b.folded(b.count(len(night.runs.attempts), "run"), every),
                10,
            ),
            b.Section("Set-up", [b.Facts(_setup(night))], 70),
            b.Section("Repeat", b.folded(b.count(len(repeats), "command"), again), 65),
        ],
        footer=(
            f"Nightly run {record.id}, {record.created.wall:%Y-%m-%d %H:%M:%S} UTC, "
            f"made by mmrepro {record.mmrepro_version} from ",
            b.code("ledger.jsonl"),
            ".",
        ),
        wide=True,
    )


def _card(night: NightView, odd: Sequence[Square]) -> Iterator[b.Block]:
    yield b.p(b.strong(f"{words.capital(night.changes)}. "), night.scale)
    yield from (b.p(note, tone="unsure") for note in night.notes[:3])
    known = {event.cell for event in night.events}
    rows: list[Sequence[b.Inline]] = [
        (b.toned(*EVENTS[event.what]), event.text) for event in night.events[:6]
    ]
    rows += [
        (b.toned(s.standing.words, "bad" if s.odd else "unsure"), f"{s.title}")
        for s in odd
        if s.cell.id not in known
    ][: 6 - len(rows)]
    yield from b.table("change:name | what", rows, "the most important changes")


def events_table(
    events: Sequence[Event],
    link_of: Callable[[Event], tuple[str, str]] = lambda event: ("", ""),
) -> list[b.Block]:
    """What changed, most important first. ``link_of``: anchor and report of an event's
    job."""
    rows = []
    for event in sorted(events, key=importance):
        word, tone = EVENTS[event.what]
        anchor, report = link_of(event)
        both = (
            f"{event.before or '–'} → {event.now or '–'}"
            if event.before or event.now
            else ""
        )
        name = b.Span(word, "strong", tone, anchor)
        cells = (name, event.text, both, b.link("report", report) if report else "")
        rows.append(b.row(*cells, status=word, group=event.engine))
    heads = "change:name | what | before → now:name | report:name"
    return b.table(heads, rows, "what changed")


def _changes(night: NightView) -> Iterator[b.Block]:
    def link_of(event: Event) -> tuple[str, str]:
        square = night.by_id.get(event.cell)
        return (
            (f"#{square.anchor}", drawn.href(night, square.deciding))
            if square
            else ("", "")
        )

    yield from (b.p(note, tone="unsure") for note in night.notes[:20])
    yield from events_table(night.events, link_of)
    if night.shifts:
        text = (
            f"Otherwise than in {night.before}, and no event: "
            f"{', '.join(night.shifts)}."
        )
        yield b.p(text, tone="soft")
    elif not night.events and night.before:
        yield b.p(f"Nothing: every job came out as in {night.before}.")
    elif not night.events:
        yield b.p(
            "This is the first nightly run of this ledger: there is none to compare."
        )


def _odd(night: NightView, standing: Standing, keep: int) -> Iterator[b.Section]:
    squares = night.standing(standing)
    word = standing.words
    title = f"{words.capital(word)} ({len(squares)})"
    yield b.Section(title, _listed(night, squares), keep)


def _place(square: Square) -> tuple[b.Span, b.Span]:
    """The cells of a job's row and release."""
    return b.link(square.cell.row, f"#{square.anchor}"), b.Span(square.place)


def _came(square: Square) -> b.Span:
    look = LOOKS[square.state]
    return b.toned(f"{look.mark} {square.words}", look.tone)


def _listed(
    night: NightView, squares: Sequence[Square], most: int | None = len(_RUNS) - 2
) -> list[b.Block]:
    """Every run of these jobs; one that did not run has a row as well. ``most``:
    columns."""
    rows = []
    for square in squares:
        job = (*_place(square), (_came(square), f"; {square.expectation}"))
        ran: list[tuple[b.Inline, ...]] = [_run(night, run) for run in square.attempts]
        rows += [
            b.row(
                *(*job, *run)[:most],
                status=LOOKS[square.state].word,
                group=square.cell.engine,
            )
            for run in ran or [("", square.why, "", "", "")]
        ]
    return b.table(_RUNS[:most], rows, "runs")


def _run(night: NightView, run: Attempt) -> tuple[b.Inline, ...]:
    link = b.link(words.attempt(run, "lost"), drawn.href(night, run))
    text = run.explanation or run.error
    told: b.Inline = (text, " ", b.code(run.incident)) if run.incident else text
    where = ", ".join(filter(None, [run.machine, *run.gpus]))
    name = (f"{run.index}, {run.role}: ", link)
    return name, told, duration(run.seconds), where, b.code(run.key[:14])


def _picture(night: NightView) -> Iterator[b.Block]:
    if not night.grids:
        return
    new = {
        (event.engine, event.release)
        for event in night.events
        if event.what in (EventKind.NEW_RELEASE, EventKind.NEW_RELEASE_AFFECTED)
    }
    rows = [
        (row.fidelity, s)
        for g in night.grids
        for row in g.rows
        for s in row.squares.values()
    ]
    odd = {square.fidelity for usual, square in rows if square.fidelity is not usual}
    fidelities = []
    for f in dict.fromkeys(
        f for f in Fidelity if any(s.fidelity is f for _, s in rows)
    ):
        letters = f" ({drawn.letters(f)} in a square)" * (f in odd)
        fidelities.append((b.code(f), f"{letters}: {f.words.partition(' (')[0]}."))
    signs = ", ".join(f"{look.mark} {look.word}" for look in LOOKS.values())
    signs += ", ≈k/n flaky: k of n reproduced it; ! not as expected; q in quarantine."
    yield b.Picture(drawn.legend(night.squares), [b.p(signs)])
    instead: list[b.Block] = []
    for grid in night.grids:
        instead += [b.p(b.strong(grid.engine)), *drawn.table(grid)]
    yield b.Picture(drawn.drawing(night, new), instead)
    yield from b.folded("Fidelities: what the runs were made on", b.bullets(fidelities))


def _quarantine(night: NightView) -> list[b.Block]:
    rows = [
        (
            *_place(s),
            _came(s),
            entry.reason,
            entry.issue,
            entry.owner,
            str(entry.expires),
        )
        for s in night.squares
        if (entry := s.quarantine)
    ]
    heads = (
        "scenario:name | release:name | came out:name | reason | issue | owner "
        "| until:name"
    )
    return b.table(heads, rows, "in quarantine: these run, and turn nothing red")


def _trend(night: NightView) -> Iterator[b.Block]:
    bars = len(night.trend) > 1 and drawn.chart(night.trend)
    if not bars:
        yield b.p("There is one nightly run so far: a trend begins with the second.")
        return
    heads = "nightly run:name | jobs:number | not as expected:number | took:number"
    rows = [
        (p.night, f"{p.total}", f"{p.surprises}", duration(p.seconds))
        for p in night.trend
    ]
    caption = (
        "Jobs of each nightly run by state, oldest first; above each bar how many were "
        "not as expected, quarantined or not; below it, the time of all runs."
    )
    yield b.Picture(bars, b.table(heads, rows, "nightly runs"), caption)
    each = [
        (row.name, g.engine, row.trend[-1].text) for g in night.grids for row in g.rows
    ]
    told = b.table("scenario:name | engine:name | this nightly run", each)
    yield from b.folded("Each scenario", [b.Picture(drawn.trends(night.grids), told)])


def _setup(night: NightView) -> list[tuple[str, b.Inline]]:
    record, attempts = night.runs.night, night.runs.attempts
    took = ""
    if record.finished is not None:
        took = duration((record.finished.wall - record.created.wall).total_seconds())
    modes = Counter(a.start_mode for a in attempts if a.start_mode)
    machines = sorted({a.machine for a in attempts if a.machine} | {record.machine})
    confirm = f"an unexpected result is run {record.confirm} times more"
    return [
        ("state", NIGHT_WORDS[record.state]),
        ("began", f"{record.created.wall:%Y-%m-%d %H:%M:%S} UTC"),
        ("took", took),
        ("shard", record.shard),
        ("runs of each job", f"{record.repeat}; {confirm}"),
        (
            "starts",
            ", ".join(f"{number} {mode}" for mode, number in modes.most_common()),
        ),
        ("machines", ", ".join(filter(None, machines))),
        (
            "GPUs",
            ", ".join(sorted({gpu for a in attempts for gpu in a.gpus})) or "none",
        ),
        *words.made_on(record.host, record.mmrepro_version),
    ]


# ------------------------------------------------------------------------------- for CI


def suites(night: NightView) -> list[Suite]:
    """A suite a scenario, a case a job; never greener than the nightly run."""
    record = night.runs.night
    facts = [
        ("night", record.id),
        ("state", str(record.state)),
        ("machine", record.machine),
        ("command", record.command),
        ("mmrepro", record.mmrepro_version),
    ]
    cases: dict[str, list[Case]] = {}
    for square in night.squares:
        cases.setdefault(square.cell.scenario, []).append(_case(square))
    return [
        Suite(f"mmrepro.{name}", record.created.wall, of, facts)
        for name, of in cases.items()
    ]


def _case(square: Square) -> Case:
    cell = square.cell
    how, message = _result(square)
    output = [f"job: {cell.id}", f"came out: {square.words}; {square.expectation}"]
    output += [f"fidelity: {square.fidelity}"] if square.fidelity is not None else []
    for run in square.attempts:
        came = f"run {run.index} ({run.role}): {words.attempt(run, 'lost')}"
        key = f"key {run.key[:14]}" if run.key else ""
        facts = (
            came,
            duration(run.seconds),
            run.explanation or run.error,
            key,
            run.incident,
        )
        output.append("; ".join(filter(None, facts)))
    red = how in ("failed", "error")
    # Of two names that are cut alike or differ in what is not shown, CI would keep one.
    name = clip(plain(f"{square.place} {cell.device}: {cell.row}"), 280)
    return Case(
        f"mmrepro.{cell.scenario}.{cell.engine}",
        f"{name} [{cell.id[-8:]}]",
        how,
        message,
        text=square.why if red else "",
        kind=str(square.state) if red else "",
        output="\n".join(output if square.attempts else [*output, "no run was made"]),
        seconds=square.seconds,
    )


def _result(square: Square) -> tuple[How, str]:
    """How the case ends, and why it does not pass."""
    text = f"{square.words}; {square.expectation}"
    if square.standing is Standing.QUARANTINED and square.quarantine is not None:
        return "skipped", f"in quarantine: {square.quarantine.reason}; {text}"
    if square.standing in (Standing.SURPRISE, Standing.FLAKY):
        return "failed", text
    if square.state in (State.LOST, State.MISSING):
        return "error", f"{LOOKS[square.state].word}: {square.why}"
    if square.standing is Standing.UNTESTED:
        return "skipped", f"inconclusive: {square.why}"
    if square.standing is Standing.UNJUDGED:
        return "skipped", f"{square.words}, and no outcome was expected"
    return "passed", ""


KIND: Final = Kind(
    "a nightly run",
    (MARKDOWN_FILE, HTML_FILE),
    load,
    compose,
    night_document,
    suites,
    MARKDOWN_BYTES,
)


# -------------------------------------------------------------------- many nightly runs


def history_blocks(history: History, scenario: str = "") -> list[b.Block]:
    """Each row over the nightly runs, oldest first; of one scenario, each job of it."""
    nights = history.nights
    strips = strips_of(history, scenario, jobs=bool(scenario))
    if not strips:
        of = f" of {scenario}" if scenario else ""
        return [b.p(f"No nightly run of this ledger has a job{of}.")]
    rows: list[Sequence[b.Inline]] = []
    for engine, name, groups in strips:
        newest = next((group for group in reversed(groups) if group), [])
        odd = sum(square.standing is Standing.SURPRISE for square in newest)
        text = ", ".join(state_words(newest)) + f"; {odd} not as expected" * bool(odd)
        if len(newest) == 1:
            text = f"{newest[0].words}, {newest[0].expectation}"
        tone: b.Tone = "bad" if odd else ""
        marks = "".join(_mark(group, jobs=bool(scenario)) for group in groups)
        rows.append((engine, name, b.toned(marks, tone), text))
    signs = ", ".join(
        f"{look.mark} {look.word}"
        for s, look in LOOKS.items()
        if scenario or s not in VERDICTS
    )
    if not scenario:
        signs = f"= every release as expected, ! one of them not, else {signs}"
    span = f"{nights[0].night.id} … {nights[-1].night.id}, oldest first"
    return [
        b.p(f"{b.count(len(nights), 'nightly run')}: {span}"),
        *b.table("engine:name | scenario:name | nightly runs:name | newest", rows),
        b.p(f"{signs}; _ no job in that nightly run", tone="soft"),
    ]


def _mark(group: Sequence[Square], *, jobs: bool) -> str:
    """One sign for a nightly run: a job's state; of a row's releases, what matters
    most."""
    if not group or jobs:
        return LOOKS[group[0].state].mark if group else "_"
    if any(square.standing is Standing.SURPRISE for square in group):
        return "!"
    loud = (State.FLAKY, State.LOST, State.INCONCLUSIVE, State.MISSING)
    return next((LOOKS[s].mark for s in loud if any(q.state is s for q in group)), "=")
