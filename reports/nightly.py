"""A nightly run as a page: what changed, what is not as expected, scenarios ×
releases."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from mmrepro.base.records import Fidelity
from mmrepro.base.text import clip, plain
from mmrepro.base.units import duration
from mmrepro.failure.documents import Attempt, Event, EventKind, replace_file
from mmrepro.history import (
    NIGHT_WORDS,
    SQUARE_EVENTS,
    SQUARE_LOOKS,
    VERDICTS,
    History,
    JobState,
    NightRuns,
    NightView,
    Quarantine,
    Square,
    SquareStanding,
    importance,
    night_document,
    read_history,
    state_words,
    strips_of,
)
from mmrepro.reports import blocks as b, grid as drawn, words
from mmrepro.reports.documents import How, JunitCase, ReportKind, Suite, render, write

_MARKDOWN_FILE: Final = "night.md"
HTML_FILE: Final = "dashboard.html"
_JUNIT_FILE: Final = "junit.xml"
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
    history = read_history(folder)
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
    replace_file(folder / _JUNIT_FILE, render(KIND, view, "junit"))
    return [*write(KIND, view, folder), folder / _JUNIT_FILE]


# ----------------------------------------------------------------------------- the page


def compose(night: NightView) -> b.Page:
    """The page of a nightly run."""
    record = night.runs.night
    shard = f", shard {record.shard}" if record.shard else ""
    odd = night.standing(SquareStanding.SURPRISE) + night.standing(SquareStanding.FLAKY)
    repeats = _repeats(odd)
    made = f"{_when(night)}, made by mmrepro {record.mmrepro_version} from "
    return b.Page(
        title=f"Nightly run {record.id}: {night.changes}",
        badge=b.Badge(*night.badge),
        subject=f"nightly run {record.id}{shard}",
        warning=b.Warning(night.warning) if night.warning else None,
        card=[*_card(night, odd)],
        counts=[b.count(len(night.squares), "job"), *state_words(night.squares)],
        commands=[("run again or resume", record.command), *repeats[:2]],
        sections=[*_sections(night, repeats)],
        footer=(f"Nightly run {record.id}, {made}", b.code("ledger.jsonl"), "."),
        wide=True,
    )


def _when(night: NightView) -> str:
    return f"{night.runs.night.created.wall:%Y-%m-%d %H:%M:%S} UTC"


def _repeats(squares: Sequence[Square]) -> list[tuple[str, str]]:
    """What repeats each of the first squares, and its command."""
    repeats = []
    for square in squares[:20]:
        if square.deciding and square.deciding.command:
            why = f"to repeat {square.cell.row} on {square.place}"
            repeats.append((why, square.deciding.command))

    return repeats


def _sections(
    night: NightView, repeats: Sequence[tuple[str, str]]
) -> Iterator[b.Section]:
    yield b.Section("Scenarios × releases", [*_picture(night)], keep=90)
    yield b.Section("What changed", [*_changes(night)], keep=99)
    yield _odd(night, SquareStanding.SURPRISE, 98)
    yield _odd(night, SquareStanding.FLAKY, 97)
    untested = night.standing(SquareStanding.UNTESTED)
    title = f"Untested ({len(untested)})"
    yield b.Section(title, _untested(night, untested), keep=95)
    yield b.Section("Quarantine", _quarantine(night), keep=80)
    yield b.Section("Over the nightly runs", [*_trend(night)], keep=60)

    runs = b.count(len(night.runs.attempts), "run")
    every = _listed(night, night.squares, None)
    yield b.Section("Every run", b.folded(runs, every), keep=10)
    yield b.Section("Set-up", [b.Facts(_setup(night))], keep=70)

    commands: list[b.Block] = []
    for why, command in repeats:
        commands.append(b.p(why))
        commands.append(b.Fence(command, "sh"))

    count = b.count(len(repeats), "command")
    yield b.Section("Repeat", b.folded(count, commands), keep=65)


def _untested(night: NightView, squares: Sequence[Square]) -> list[b.Block]:
    if not squares:
        return []
    title = "Nothing was learnt of these; none counts as good"
    return b.folded(title, _listed(night, squares), open=len(squares) <= 20)


def _card(night: NightView, odd: Sequence[Square]) -> Iterator[b.Block]:
    yield b.p(b.strong(f"{words.capital(night.changes)}. "), night.scale)
    for note in night.notes[:3]:
        yield b.p(note, tone="unsure")

    rows: list[Sequence[b.Inline]] = []
    known = set()
    for event in night.events:
        word, tone = SQUARE_EVENTS[event.what]
        known.add(event.cell)
        rows.append((b.toned(word, tone), event.text))

    # A job that an event is of is told of already.
    for square in odd:
        if square.cell.id not in known:
            tone = "bad" if square.odd else "unsure"
            rows.append((b.toned(square.standing.words, tone), square.title))

    yield from b.table("change:name | what", rows[:6], "the most important changes")


_LinkOf = Callable[[Event], tuple[str, str]]


def events_table(
    events: Sequence[Event], link_of: _LinkOf | None = None
) -> list[b.Block]:
    """What changed, most important first. ``link_of``: anchor and report of an event's
    job."""
    rows = []
    for event in sorted(events, key=importance):
        word, tone = SQUARE_EVENTS[event.what]
        anchor, report = link_of(event) if link_of else ("", "")
        change = ""
        if event.before or event.now:
            change = f"{event.before or '–'} → {event.now or '–'}"
        row = b.row(
            b.Span(
                text=word,
                style="strong",
                tone=tone,
                href=anchor,
            ),
            event.text,
            change,
            b.link("report", report) if report else "",
            status=word,
            group=event.engine,
        )
        rows.append(row)

    heads = "change:name | what | before → now:name | report:name"
    return b.table(heads, rows, "what changed")


def _changes(night: NightView) -> Iterator[b.Block]:
    def link_of(event: Event) -> tuple[str, str]:
        square = night.by_id.get(event.cell)
        if square is None:
            return "", ""
        return f"#{square.anchor}", drawn.href(night, square.deciding)

    for note in night.notes[:20]:
        yield b.p(note, tone="unsure")

    yield from events_table(night.events, link_of)
    if night.shifts:
        shifts = ", ".join(night.shifts)
        text = f"Otherwise than in {night.before}, and no event: {shifts}."
        yield b.p(text, tone="soft")
    elif not night.events and night.before:
        yield b.p(f"Nothing: every job came out as in {night.before}.")
    elif not night.events:
        yield b.p(
            "This is the first nightly run of this ledger: there is none to compare."
        )


def _odd(night: NightView, standing: SquareStanding, keep: int) -> b.Section:
    squares = night.standing(standing)
    title = f"{words.capital(standing.words)} ({len(squares)})"
    return b.Section(title, _listed(night, squares), keep=keep)


def _place(square: Square) -> tuple[b.Span, b.Span]:
    """The cells of a job's row and release."""
    return b.link(square.cell.row, f"#{square.anchor}"), b.Span(square.place)


def _came(square: Square) -> b.Span:
    look = SQUARE_LOOKS[square.state]
    return b.toned(f"{look.mark} {square.words}", look.tone)


def _listed(
    night: NightView, squares: Sequence[Square], most: int | None = len(_RUNS) - 2
) -> list[b.Block]:
    """Every run of these jobs; one that did not run has a row as well. ``most``:
    columns."""
    rows = []
    for square in squares:
        job = (*_place(square), (_came(square), f"; {square.expectation}"))
        runs: list[tuple[b.Inline, ...]] = []
        for attempt in square.attempts:
            runs.append(_run(night, attempt))

        if not runs:
            runs.append(("", square.why, "", "", ""))
        for run in runs:
            cells = (*job, *run)[:most]
            status = SQUARE_LOOKS[square.state].word
            rows.append(b.row(*cells, status=status, group=square.cell.engine))

    return b.table(_RUNS[:most], rows, "runs")


def _run(night: NightView, run: Attempt) -> tuple[b.Inline, ...]:
    """The cells of one run: its name, what it reports, its time, its machine, its
    key."""
    link = b.link(words.attempt(run, "lost"), drawn.href(night, run))
    report: b.Inline = run.explanation or run.error
    if run.incident:
        report = (run.explanation or run.error, " ", b.code(run.incident))
    return (
        (f"{run.index}, {run.role}: ", link),
        report,
        duration(run.seconds),
        ", ".join(filter(None, [run.machine, *run.gpus])),
        b.code(run.key[:14]),
    )


def _picture(night: NightView) -> Iterator[b.Block]:
    if not night.grids:
        return
    signs = ", ".join(f"{look.mark} {look.word}" for look in SQUARE_LOOKS.values())
    signs += ", ≈k/n flaky: k of n reproduced it; ! not as expected; q in quarantine."
    yield b.Picture(drawn.legend(night.squares), [b.p(signs)])

    instead: list[b.Block] = []
    for grid in night.grids:
        instead.append(b.p(b.strong(grid.engine)))
        instead += drawn.table(grid)

    yield b.Picture(drawn.drawing(night, _new_releases(night)), instead)
    fidelities = b.bullets([*_fidelities(night)])
    yield from b.folded("Fidelities: what the runs were made on", fidelities)


def _new_releases(night: NightView) -> set[tuple[str, str]]:
    """Engine and release of what was run for the first time."""
    new = set()
    for event in night.events:
        if event.what in (EventKind.NEW_RELEASE, EventKind.NEW_RELEASE_AFFECTED):
            new.add((event.engine, event.release))

    return new


def _fidelities(night: NightView) -> Iterator[b.Inline]:
    """What each fidelity of the squares is, with its letters where a square has
    them."""
    seen: set[Fidelity] = set()
    unusual: set[Fidelity] = set()
    for grid in night.grids:
        for row in grid.rows:
            for square in row.squares.values():
                if square.fidelity is None:
                    continue
                seen.add(square.fidelity)
                if square.fidelity is not row.fidelity:
                    unusual.add(square.fidelity)

    for fidelity in Fidelity:
        if fidelity not in seen:
            continue
        letters = ""
        if fidelity in unusual:
            letters = f" ({drawn.letters(fidelity)} in a square)"
        meaning = fidelity.words.partition(" (")[0]
        yield b.code(fidelity), f"{letters}: {meaning}."


def _quarantine(night: NightView) -> list[b.Block]:
    rows = []
    for square in night.squares:
        entry = square.quarantine
        if entry:
            why = (entry.reason, entry.issue, entry.owner, str(entry.expires))
            rows.append((*_place(square), _came(square), *why))

    heads = (
        "scenario:name | release:name | came out:name | reason | issue | owner "
        "| until:name"
    )
    return b.table(heads, rows, "in quarantine: these run, and turn nothing red")


def _trend(night: NightView) -> Iterator[b.Block]:
    bars = drawn.chart(night.trend) if len(night.trend) > 1 else None
    if not bars:
        yield b.p("There is one nightly run so far: a trend begins with the second.")
        return

    nights = []
    for point in night.trend:
        counts = (f"{point.total}", f"{point.surprises}")
        nights.append((point.night, *counts, duration(point.seconds)))

    caption = (
        "Jobs of each nightly run by state, oldest first; above each bar how many were "
        "not as expected, quarantined or not; below it, the time of all runs."
    )
    heads = "nightly run:name | jobs:number | not as expected:number | took:number"
    yield b.Picture(
        drawing=bars,
        instead=b.table(heads, nights, "nightly runs"),
        caption=caption,
    )

    newest = []
    for grid in night.grids:
        for row in grid.rows:
            newest.append((row.name, grid.engine, row.trend[-1].text))

    instead = b.table("scenario:name | engine:name | this nightly run", newest)
    picture = b.Picture(drawn.trends(night.grids), instead)
    yield from b.folded("Each scenario", [picture])


def _setup(night: NightView) -> list[tuple[str, b.Inline]]:
    record = night.runs.night
    took = ""
    if record.finished is not None:
        took = duration((record.finished.wall - record.created.wall).total_seconds())
    modes: Counter[str] = Counter()
    machines = {record.machine}
    gpus: set[str] = set()
    for attempt in night.runs.attempts:
        if attempt.start_mode:
            modes[attempt.start_mode] += 1
        machines.add(attempt.machine)
        gpus.update(attempt.gpus)

    starts = [f"{number} {mode}" for mode, number in modes.most_common()]
    confirm = f"an unexpected result is run {record.confirm} times more"
    return [
        ("state", NIGHT_WORDS[record.state]),
        ("began", _when(night)),
        ("took", took),
        ("shard", record.shard),
        ("runs of each job", f"{record.repeat}; {confirm}"),
        ("starts", ", ".join(starts)),
        ("machines", ", ".join(filter(None, sorted(machines)))),
        ("GPUs", ", ".join(sorted(gpus)) or "none"),
        *words.made_on(record.host, record.mmrepro_version),
    ]


# ------------------------------------------------------------------------------- for CI


def _suites(night: NightView) -> list[Suite]:
    """A suite a scenario, a case a job; never greener than the nightly run."""
    record = night.runs.night
    facts = [
        ("night", record.id),
        ("state", str(record.state)),
        ("machine", record.machine),
        ("command", record.command),
        ("mmrepro", record.mmrepro_version),
    ]
    cases: dict[str, list[JunitCase]] = {}
    for square in night.squares:
        cases.setdefault(square.cell.scenario, []).append(_case(square))

    suites = []
    for scenario, of_scenario in cases.items():
        name = f"mmrepro.{scenario}"
        suites.append(
            Suite(
                name=name,
                when=record.created.wall,
                cases=of_scenario,
                properties=facts,
            )
        )

    return suites


def _case(square: Square) -> JunitCase:
    cell = square.cell
    how, message = _result(square)
    red = how in ("failed", "error")
    # Of two names that are cut alike or differ in what is not shown, CI would keep one.
    name = clip(plain(f"{square.place} {cell.device}: {cell.row}"), 280)
    return JunitCase(
        group=f"mmrepro.{cell.scenario}.{cell.engine}",
        name=f"{name} [{cell.id[-8:]}]",
        how=how,
        message=message,
        text=square.why if red else "",
        kind=str(square.state) if red else "",
        output="\n".join(_output(square)),
        seconds=square.seconds,
    )


def _output(square: Square) -> Iterator[str]:
    """What CI shows as printed by the case: the job and each of its runs."""
    yield f"job: {square.cell.id}"
    yield f"came out: {square.words}; {square.expectation}"
    if square.fidelity is not None:
        yield f"fidelity: {square.fidelity}"
    if not square.attempts:
        yield "no run was made"
    for run in square.attempts:
        facts = (
            f"run {run.index} ({run.role}): {words.attempt(run, 'lost')}",
            duration(run.seconds),
            run.explanation or run.error,
            f"key {run.key[:14]}" if run.key else "",
            run.incident,
        )
        yield "; ".join(filter(None, facts))


def _result(square: Square) -> tuple[How, str]:
    """How the case ends, and why it does not pass."""
    text = f"{square.words}; {square.expectation}"
    if square.standing is SquareStanding.QUARANTINED and square.quarantine is not None:
        return "skipped", f"in quarantine: {square.quarantine.reason}; {text}"
    if square.standing in (SquareStanding.SURPRISE, SquareStanding.FLAKY):
        return "failed", text
    if square.state in (JobState.LOST, JobState.MISSING):
        return "error", f"{SQUARE_LOOKS[square.state].word}: {square.why}"
    if square.standing is SquareStanding.UNTESTED:
        return "skipped", f"inconclusive: {square.why}"
    if square.standing is SquareStanding.UNJUDGED:
        return "skipped", f"{square.words}, and no outcome was expected"
    return "passed", ""


KIND: Final = ReportKind(
    name="a nightly run",
    files=(_MARKDOWN_FILE, HTML_FILE),
    load=load,
    compose=compose,
    stored=night_document,
    junit=_suites,
    markdown_bytes=MARKDOWN_BYTES,
)


# -------------------------------------------------------------------- many nightly runs


def history_blocks(history: History, scenario: str = "") -> list[b.Block]:
    """Each row over the nightly runs, oldest first; of one scenario, each job of it."""
    jobs = bool(scenario)
    strips = strips_of(history, scenario, jobs=jobs)
    if not strips:
        of = f" of {scenario}" if scenario else ""
        return [b.p(f"No nightly run of this ledger has a job{of}.")]

    rows: list[Sequence[b.Inline]] = []
    for engine, name, groups in strips:
        odd, text = _newest(groups)
        marks = "".join(_mark(group, jobs=jobs) for group in groups)
        rows.append((engine, name, b.toned(marks, "bad" if odd else ""), text))

    nights = history.nights
    count = b.count(len(nights), "nightly run")
    span = f"{nights[0].night.id} … {nights[-1].night.id}, oldest first"
    return [
        b.p(f"{count}: {span}"),
        *b.table("engine:name | scenario:name | nightly runs:name | newest", rows),
        b.p(f"{_signs(scenario)}; _ no job in that nightly run", tone="soft"),
    ]


def _newest(groups: Sequence[Sequence[Square]]) -> tuple[bool, str]:
    """Whether a job of the newest nightly run that has any is not as expected, and
    what came out."""
    newest: Sequence[Square] = []
    for group in groups:
        newest = group or newest

    odd = sum(square.standing is SquareStanding.SURPRISE for square in newest)
    if len(newest) == 1:
        return bool(odd), f"{newest[0].words}, {newest[0].expectation}"
    text = ", ".join(state_words(newest))
    return bool(odd), f"{text}; {odd} not as expected" if odd else text


def _signs(scenario: str) -> str:
    signs = []
    for state, look in SQUARE_LOOKS.items():
        # A row of many releases has a sign for a verdict only where it is odd.
        if scenario or state not in VERDICTS:
            signs.append(f"{look.mark} {look.word}")

    text = ", ".join(signs)
    if scenario:
        return text
    return f"= every release as expected, ! one of them not, else {text}"


def _mark(group: Sequence[Square], *, jobs: bool) -> str:
    """One sign for a nightly run: a job's state; of a row's releases, what matters
    most."""
    if not group:
        return "_"
    if jobs:
        return SQUARE_LOOKS[group[0].state].mark
    if any(square.standing is SquareStanding.SURPRISE for square in group):
        return "!"
    states = {square.state for square in group}
    for loud in (
        JobState.FLAKY,
        JobState.LOST,
        JobState.INCONCLUSIVE,
        JobState.MISSING,
    ):
        if loud in states:
            return SQUARE_LOOKS[loud].mark

    return "="
