"""A diagnosis of a live server as a page: what is wrong, which known failure it is,
what to do."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from mmrepro.base import units
from mmrepro.base.text import one_line
from mmrepro.failure.documents import (
    CLASS_WORDS,
    COULD_NOT_TELL,
    STATE_WORDS,
    Cause,
    Diagnosis,
    Fit,
    Match,
    NamedClass,
    ServerState,
    Stand,
)
from mmrepro.reports import blocks as b, words
from mmrepro.reports.actions import actions
from mmrepro.reports.documents import How, JunitCase
from mmrepro.reports.logs import class_rows, dump_rows, fact_rows

_FITS: Final[dict[Fit, b.Tone]] = {
    Fit.MATCH: "bad",
    Fit.LIKELY: "bad",
    Fit.SYMPTOM_ONLY: "unsure",
    Fit.EXPOSED: "unsure",
    Fit.NOT_THIS: "soft",
}
_SHOWN: Final = frozenset({Fit.MATCH, Fit.LIKELY, Fit.SYMPTOM_ONLY})


def compose_diagnosis(diagnosis: Diagnosis) -> b.Page:
    """The page of a diagnosis alone, as a terminal shows it."""
    target = _target_line(diagnosis)
    return b.Page(
        title=target,
        badge=_badge(diagnosis),
        subject=target,
        card=[*_card(diagnosis)],
        counts=[*_counts(diagnosis)],
        commands=[],
        actions=actions(diagnosis),
        sections=[*_sections(diagnosis)],
    )


def _badge(diagnosis: Diagnosis) -> b.Badge:
    return b.Badge(
        label=_answer(diagnosis),
        tone=_tone(diagnosis),
        note=f"exit {diagnosis.exit_code}",
    )


def _sections(diagnosis: Diagnosis) -> Iterator[b.Section]:
    unseen = b.bullets(diagnosis.unseen[:40])
    cost = b.p(effect_sentence(diagnosis))
    yield b.Section("What was observed", [*_observed(diagnosis)], keep=96)
    yield b.Section("What its log tells", [*_logged(diagnosis)], keep=95)
    yield b.Section("The stack", _stack(diagnosis), keep=97)
    yield b.Section("All ranks", [*_ranks(diagnosis)], keep=96)
    yield b.Section("Class of failure", [*_classes(diagnosis)], keep=95)
    yield b.Section("Known failures", [*_matches(diagnosis)], keep=93)
    yield b.Section("What could not be observed", unseen, keep=72)
    yield b.Section("What the diagnosis cost", [cost], keep=71)


def _tone(diagnosis: Diagnosis) -> b.Tone:
    """good, bad or unsure: the colour of the answer."""
    tones: dict[int, b.Tone] = {0: "good", 1: "bad"}
    return tones.get(diagnosis.exit_code, "unsure")


def _answer(diagnosis: Diagnosis) -> str:
    """Label of the badge: ``Frozen in Python code: ghost-key-eviction``."""
    state = STATE_WORDS[diagnosis.state].partition(":")[0]
    known = diagnosis.found
    if not known:
        return words.capital(state)
    if diagnosis.state is ServerState.HEALTHY:
        return f"Degraded: known failure {known[0].scenario}; small requests still work"
    return f"{words.capital(state)}: {known[0].scenario}"


def effect_sentence(diagnosis: Diagnosis) -> str:
    """What the diagnosis did to the server, as measured."""
    effect = diagnosis.effect
    paused = "no pause"
    if effect.paused_s:
        paused = f"a pause of at most {units.duration(effect.paused_s)}"
    requests = units.count(len(effect.requests), "HTTP request")
    completions = units.count(effect.inferences, "completion")
    samples = units.count(effect.stack_samples, "stack sample")
    took, cpu = units.duration(effect.seconds), units.duration(effect.cpu_s)
    memory = units.size(effect.peak_rss_bytes)
    return (
        f"Cost to the server: {requests} ({completions}), {samples}, {paused}. mmrepro "
        f"took {took}, {cpu} of CPU and {memory} of memory."
    )


def _target_line(diagnosis: Diagnosis) -> str:
    target = diagnosis.target
    engine = f"{target.engine or 'unknown engine'} {target.release}".strip()
    where = {
        "local": "on this machine",
        "container": "in a container",
        "remote": "elsewhere",
    }
    number = len(target.processes)
    processes = f", {number} processes" if number > 1 else ""
    return f"{target.url}: {engine}, {where[target.place]}{processes}"


def _code_of(match: Match) -> str:
    return f"{match.scenario} ({match.variant})" if match.variant else match.scenario


# --------------------------------------------------------------------- the first screen


def _card(diagnosis: Diagnosis) -> Iterator[b.Block]:
    assessment = diagnosis.assessment
    yield b.p(b.strong(words.sentence(assessment.sentence)))
    if diagnosis.since:
        head = "Stuck since" if diagnosis.exit_code == 1 else "Since"
        yield b.p(f"{head} {diagnosis.since}.")
    yield from _best_match(diagnosis)
    if diagnosis.cause is not None:
        yield _cause_line(diagnosis.cause)
    if diagnosis.dumps is not None:
        yield b.Facts([*dump_rows(diagnosis.dumps, few=True)], "what the dumps show")
    if not diagnosis.found:
        yield from _class_lines(diagnosis)
    yield from _rank_line(diagnosis)
    yield from _stack(diagnosis)


def _best_match(diagnosis: Diagnosis) -> Iterator[b.Block]:
    """The known failure that it is, or else one that looks alike."""
    alike = [match for match in diagnosis.matches if match.fit is Fit.SYMPTOM_ONLY]
    for match in (diagnosis.found or alike)[:1]:
        head = "Known failure: " if diagnosis.found else "Similar known failure: "
        sure = "" if match.fit is Fit.MATCH else f"{match.fit.value}; "
        title = match.title.rstrip(".")
        yield b.p(head, b.code(_code_of(match)), f" ({sure}{match.why}). {title}.")


def _cause_line(cause: Cause) -> b.Block:
    place = ", ".join(filter(None, [cause.process, cause.time]))
    source = f", {cause.certainty.value}, by its log ({place}): "
    return b.p("Cause ", b.code(cause.name.value), source, cause.sentence)


def _class_lines(diagnosis: Diagnosis) -> Iterator[b.Block]:
    """The first two classes, without the one that the log's cause names already."""
    named = diagnosis.cause.name.value if diagnosis.cause else ""
    others = [known for known in diagnosis.classes if known.name != named]
    for known in others[:2]:
        text = f", {known.certainty.value}: {known.sentence}"
        yield b.p("Class ", b.code(known.name.value), text)


def _counts(diagnosis: Diagnosis) -> Iterator[str]:
    if not diagnosis.found:
        # A scenario's variants are ways to one failure.
        checked = {match.scenario for match in diagnosis.matches}
        yield f"no known failure matches ({len(checked)} checked)"

    if diagnosis.unseen:
        yield f"{units.count(len(diagnosis.unseen), 'check')} could not be made"


def _stack(diagnosis: Diagnosis) -> list[b.Block]:
    assessment = diagnosis.assessment
    if not assessment.frames:
        return []
    frames = []
    for frame in assessment.frames:
        frames.append(b.Frame(frame.function, frame.file, frame.line))

    seen = f"{assessment.seen} of {assessment.samples} samples"
    title = f"{assessment.process}, thread {assessment.thread}, {seen}"
    return [b.Stack(title, frames)]


def _rank_line(diagnosis: Diagnosis) -> Iterator[b.Block]:
    """Say where the ranks are: ``Ranks: 3 in all_reduce: …; 1 stands in _wedge: …``;
    nothing where none was observed."""
    ranks = diagnosis.ranks
    if ranks is None or all(rank.stand is Stand.UNSEEN for rank in ranks.ranks):
        return
    odd = f" Odd one out: {', '.join(ranks.odd[:4])}." if ranks.odd else ""
    yield b.p("Other processes: ", "; ".join(ranks.groups[:4]), ".", odd)


# ----------------------------------------------------------------------------- sections


_STANDS: Final[dict[Stand, b.Tone]] = {
    Stand.STANDS: "bad",
    Stand.GONE: "bad",
    Stand.STOPPED: "bad",
    Stand.UNSEEN: "unsure",
    Stand.MOVES: "good",
}


def _ranks(diagnosis: Diagnosis) -> Iterator[b.Block]:
    """A row a process, with what it was at in each sample; then who waits for whom."""
    ranks = diagnosis.ranks
    if ranks is None:
        return
    rows = []
    for rank in ranks.ranks[:64]:
        row = b.row(
            b.code(rank.role),
            "" if rank.pid is None else f"{rank.pid}",
            b.toned(rank.words, _STANDS.get(rank.stand, "")),
            rank.place,
            " ".join(_runs(rank.course)),
            "" if rank.cpu_pct is None else f"{rank.cpu_pct:.0f} %",
            f"{rank.state}, {rank.call}" if rank.call else rank.state,
            status="odd" if rank.role in ranks.odd else "",
        )
        rows.append(row)

    heads = (
        "process:name | pid:number | is | in | sample by sample | CPU:number | state"
    )
    yield from b.table(heads, rows, "processes")
    if ranks.odd:
        yield b.p("The odd one out: ", b.code(", ".join(ranks.odd)), ".")
    if ranks.edges:
        yield b.p("Who waits for whom:")
        waits = []
        for edge in ranks.edges[:40]:
            waits.append(f"{edge.waiter} → {edge.awaited}: {edge.why}")

        yield from b.bullets(waits)


def _runs(course: list[str]) -> Iterator[str]:
    """Join equal samples that follow each other: ``all_reduce ×6``."""
    for name, same in groupby(course):
        count = sum(1 for _ in same)
        yield name + (f" ×{count}" if count > 1 else "")


def _observed(diagnosis: Diagnosis) -> Iterator[b.Block]:
    assessment = diagnosis.assessment
    if diagnosis.since:
        yield b.p(f"Since: {diagnosis.since}.")
    yield from b.bullets(assessment.why[:40])
    if assessment.advice:
        yield b.p("What to do:")
        yield from b.bullets([b.prose(text) for text in assessment.advice[:12]])


def _logged(diagnosis: Diagnosis) -> Iterator[b.Block]:
    cause = diagnosis.cause
    if cause is None:
        return
    rows = [*class_rows(cause)]
    if diagnosis.logged is not None:
        target = diagnosis.target
        facts = fact_rows(diagnosis.logged, target.engine, target.release)
        rows = [*facts, *rows]
    yield b.Facts(rows, "what its log tells")
    yield from b.bullets(cause.why[:8])
    if cause.advice:
        yield b.p("What to do:")
        yield from b.bullets([b.prose(text) for text in cause.advice])


def _class_title(known: NamedClass) -> str:
    """Say how sure a class is, and what it is: ``certain: steps stopped``."""
    return f"{known.certainty.value}: {CLASS_WORDS[known.name].partition(':')[0]}"


def _classes(diagnosis: Diagnosis) -> Iterator[b.Block]:
    for known in diagnosis.classes[:12]:
        yield b.Heading((b.code(known.name.value), f" {_class_title(known)}"))
        yield b.p(known.sentence)
        yield from b.bullets(known.why[:12])
        if known.advice:
            yield b.p("What to do:")
            yield from b.bullets(known.advice)

        yield from b.bullets(words.linked(known.references), "soft")


def _matches(diagnosis: Diagnosis) -> Iterator[b.Block]:
    possible: list[Match] = []
    excluded: list[Match] = []
    for match in diagnosis.matches:
        if match.fit is Fit.NOT_THIS:
            excluded.append(match)
        else:
            possible.append(match)

    yield from _match_table(possible)
    shown = [match for match in possible if match.fit in _SHOWN]
    for match in shown[:3]:
        yield from _match(match)

    title = f"{len(excluded)} others: not this"
    yield from b.folded(title, _match_table(excluded))


def _match(match: Match) -> Iterator[b.Block]:
    """A known failure with its conditions."""
    code = _code_of(match)
    yield b.Heading((b.code(code), f" {match.title}"))
    yield b.p(match.why)
    # Several failures have conditions of one name on one page.
    prefix = b.slug(code) + "-"
    yield from words.condition_tables(match.conditions[:60], prefix)
    yield from b.bullets(words.linked(match.references[:3]), "soft")


def _match_table(matches: Sequence[Match]) -> list[b.Block]:
    rows = []
    for match in matches:
        row = b.row(
            b.code(_code_of(match)),
            b.toned(match.fit.value, _FITS[match.fit]),
            str(match.met),
            str(match.not_met),
            str(match.unknown),
            match.exposed_because if match.fit is Fit.EXPOSED else match.why,
            status=match.fit.value,
        )
        rows.append(row)

    heads = (
        "known failure:name | fit:name | met:number | not met:number | "
        "unknown:number | why"
    )
    return b.table(heads, rows, "known failures")


def target_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Label and value, for the environment's table."""
    target = diagnosis.target
    processes = [f"{process.role} {process.pid}" for process in target.processes[:24]]
    logs = [one_line(log, 200) for log in target.logs]
    rows = [
        ("server", target.url),
        ("found by", target.found_by),
        ("engine", f"{target.engine} {target.release}".strip()),
        ("recognised by", "; ".join(target.engine_because)),
        ("release from", target.release_from),
        ("processes", ", ".join(processes)),
        ("log", ", ".join(logs)),
        ("asked for model", target.model),
    ]
    return [(label, value) for label, value in rows if value]


def diagnosis_cases(diagnosis: Diagnosis, name: str) -> list[JunitCase]:
    """Make test cases for CI: healthy passes; what is unknown is an error, never a
    pass."""
    cases = [_state_case(diagnosis, name)]
    for match in diagnosis.found:
        case = JunitCase(
            group=f"{name}.known-failure",
            name=f"{match.scenario} {match.variant}".strip(),
            how="failed",
            message=f"{match.title}: {match.why}",
            kind=str(match.fit),
        )
        cases.append(case)

    return cases


def _state_case(diagnosis: Diagnosis, name: str) -> JunitCase:
    assessment = diagnosis.assessment
    case = JunitCase(
        group=f"{name}.state",
        name=f"state of {diagnosis.target.url}",
        kind=str(assessment.state),
    )
    if diagnosis.state is ServerState.HEALTHY:
        return replace(case, output=assessment.sentence)
    how: How = "error" if diagnosis.state in COULD_NOT_TELL else "failed"
    why = "\n".join(assessment.why)
    return replace(case, how=how, message=assessment.sentence, text=why)
