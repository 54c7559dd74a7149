"""A diagnosis of a live server as a page: what is wrong, which known failure it is,
what to do."""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from mmrepro.base import units
from mmrepro.base.text.sanitize import one_line
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.diagnosis import (
    CLASS_WORDS,
    COULD_NOT_TELL,
    FIT_WORDS,
    STATE_WORDS,
    Diagnosis,
    Fit,
    Match,
    NamedClass,
    ServerState,
    Stand,
)
from mmrepro.reports import blocks as b, incident as runs, words
from mmrepro.reports.documents import Case, How
from mmrepro.reports.logs import cause_rows, dump_rows

_FITS: Final[dict[Fit, b.Tone]] = {
    Fit.MATCH: "bad",
    Fit.LIKELY: "bad",
    Fit.SYMPTOM_ONLY: "unsure",
    Fit.EXPOSED: "unsure",
    Fit.NOT_THIS: "soft",
}
_SHOWN: Final = frozenset({Fit.MATCH, Fit.LIKELY, Fit.SYMPTOM_ONLY})


def compose_diagnosis(incident: Incident | None, diagnosis: Diagnosis) -> b.Page:
    """The page. Without an ``incident`` it has the diagnosis alone, as a terminal shows
    it."""
    sections = [
        b.Section("What was observed", [*_observed(diagnosis)], 96),
        b.Section("What its log tells", [*_logged(diagnosis)], 95),
        b.Section("The stack", _stack(diagnosis), 97),
        b.Section("All ranks", [*_ranks(diagnosis)], 96),
        b.Section("Class of failure", [*_classes(diagnosis)], 95),
        b.Section("Known failures", [*_matches(diagnosis)], 93),
        b.Section("What could not be observed", b.bullets(diagnosis.unseen[:40]), 72),
        b.Section("What the diagnosis cost", [b.p(effect_sentence(diagnosis))], 71),
    ]
    if incident is not None:
        # The timeline of a few seconds says less than the rest.
        happened = [s for s in runs.what_happened(incident) if s.title != "Conditions"]
        sections += [*happened, *runs.context(incident)]
    known = f", {_code_of(diagnosis.found[0])}" if diagnosis.found else ""
    return b.Page(
        title=runs.title(incident) if incident else _target_line(diagnosis),
        badge=b.Badge(
            _answer(diagnosis), _tone(diagnosis), f"exit {diagnosis.exit_code}"
        ),
        subject=_target_line(diagnosis) + known,
        warning=runs.warning(incident) if incident else None,
        card=[*_card(diagnosis)],
        counts=[*_counts(diagnosis)],
        commands=[("to repeat it", incident.command)] if incident else [],
        sections=sections,
        footer=runs.footer(incident) if incident else "",
    )


def _tone(diagnosis: Diagnosis) -> b.Tone:
    """good, bad or unsure: the colour of the answer."""
    tones: dict[int, b.Tone] = {0: "good", 1: "bad"}
    return tones.get(diagnosis.exit_code, "unsure")


def _answer(diagnosis: Diagnosis) -> str:
    """``Frozen in Python code: ghost-key-eviction``: the badge."""
    told = STATE_WORDS[diagnosis.state].partition(":")[0]
    known = diagnosis.found
    if known and diagnosis.state is ServerState.HEALTHY:
        told = "small requests work, a known failure is there"
    return words.capital(told) + (f": {known[0].scenario}" if known else "")


def effect_sentence(diagnosis: Diagnosis) -> str:
    """What the diagnosis did to the server, as measured."""
    effect = diagnosis.effect
    paused = (
        f"paused it for at most {units.duration(effect.paused_s)}"
        if effect.paused_s
        else "never paused it"
    )
    return (
        f"In {units.duration(effect.seconds)} mmrepro sent {len(effect.requests)} HTTP "
        f"requests ({effect.inferences} of them a completion), took "
        f"{effect.stack_samples} stack samples, {paused}, and used "
        f"{units.duration(effect.cpu_s)} of CPU and "
        f"{units.size(effect.peak_rss_bytes)} of memory."
    )


def _target_line(diagnosis: Diagnosis) -> str:
    target = diagnosis.target
    engine = f"{target.engine or 'unknown engine'} {target.release}".strip()
    where = {
        "local": "on this machine",
        "container": "in a container",
        "remote": "elsewhere",
    }
    count = len(target.processes)
    processes = f", {count} processes" if count else ""
    return f"{target.url}: {engine}, {where[target.place]}{processes}"


def _code_of(match: Match) -> str:
    return f"{match.scenario} ({match.variant})" if match.variant else match.scenario


# --------------------------------------------------------------------- the first screen


def _card(diagnosis: Diagnosis) -> Iterator[b.Block]:
    assessment = diagnosis.assessment
    since = f" Since: {diagnosis.since}." if diagnosis.since else ""
    yield b.p(b.strong(words.sentence(assessment.sentence)), since)
    alike = [match for match in diagnosis.matches if match.fit is Fit.SYMPTOM_ONLY]
    for match in (diagnosis.found or alike)[:1]:
        fit = FIT_WORDS[match.fit].partition(":")[0].capitalize()
        why = f": {match.title}. {words.sentence(match.why)}"
        yield b.p(f"{fit} ", b.code(_code_of(match)), why)
    if diagnosis.cause is not None:
        at = ", ".join(filter(None, [diagnosis.cause.process, diagnosis.cause.time]))
        why = f", {diagnosis.cause.certainty.value}, by its log ({at}): "
        yield b.p(
            "Cause ", b.code(diagnosis.cause.name.value), why, diagnosis.cause.sentence
        )
    if diagnosis.dumps is not None:
        yield b.Facts([*dump_rows(diagnosis.dumps, few=True)], "what the dumps show")
    told = diagnosis.cause.name.value if diagnosis.cause else ""
    for one in (
        [c for c in diagnosis.classes if c.name != told][:2]
        if not diagnosis.found
        else []
    ):
        sure = f", {one.certainty.value}: {one.sentence}"
        yield b.p("Class ", b.code(one.name.value), sure)
    yield from _rank_line(diagnosis)
    yield from _stack(diagnosis)
    if diagnosis.state is not ServerState.HEALTHY:
        remedies = [text for match in diagnosis.found[:1] for text in match.remedies]
        logged = diagnosis.cause.advice if diagnosis.cause else []
        advice = [*remedies, *logged, *diagnosis.assessment.advice]
        yield from (b.p("To do: ", b.prose(text)) for text in advice[:2])


def _counts(diagnosis: Diagnosis) -> Iterator[str]:
    for match in diagnosis.found[:1]:
        yield (
            f"{match.met} of {match.met + match.not_met + match.unknown} conditions met"
        )
    if not diagnosis.found:
        yield f"none of {len(diagnosis.matches)} known failures is found"
    if diagnosis.unseen:
        yield f"{len(diagnosis.unseen)} things could not be observed"


def _stack(diagnosis: Diagnosis) -> list[b.Block]:
    found = diagnosis.assessment
    if not found.frames:
        return []
    frames = [b.Frame(f.function, f.file, f.line) for f in found.frames]
    seen = f"{found.seen} of {found.samples} samples"
    return [b.Stack(f"{found.process}, thread {found.thread}, {seen}", frames)]


def _rank_line(diagnosis: Diagnosis) -> Iterator[b.Block]:
    """``Ranks: 3 in all_reduce: …; 1 stands in _wedge: …``, where something was
    observed."""
    ranks = diagnosis.ranks
    if ranks is None or all(rank.stand is Stand.UNSEEN for rank in ranks.ranks):
        return
    odd = f" Odd one out: {', '.join(ranks.odd[:4])}." if ranks.odd else ""
    yield b.p("Ranks: ", "; ".join(ranks.groups[:4]), ".", odd)


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
    rows = [
        b.row(
            b.code(rank.role),
            "" if rank.pid is None else f"{rank.pid}",
            b.toned(rank.words, _STANDS.get(rank.stand, "")),
            rank.place,
            " ".join(_runs(rank.course)),
            "" if rank.cpu_pct is None else f"{rank.cpu_pct:.0f} %",
            rank.state + (f", {rank.call}" if rank.call else ""),
            status="odd" if rank.role in ranks.odd else "",
        )
        for rank in ranks.ranks[:64]
    ]
    heads = (
        "process:name",
        "pid:number",
        "is",
        "in",
        "sample by sample",
        "CPU:number",
        "state",
    )
    yield from b.table(heads, rows, "processes")
    if ranks.odd:
        yield b.p("The odd one out: ", b.code(", ".join(ranks.odd)), ".")
    if ranks.edges:
        yield b.p("Who waits for whom:")
        yield from b.bullets(
            [f"{e.waiter} → {e.awaited}: {e.why}" for e in ranks.edges[:40]]
        )


def _runs(course: list[str]) -> Iterator[str]:
    """``all_reduce ×6``: equal samples that follow each other are one."""
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
    yield b.Facts(cause_rows(cause), "what its log tells")
    yield from b.bullets(cause.why[:8])
    if cause.advice:
        yield b.p("What to do:")
        yield from b.bullets([b.prose(text) for text in cause.advice])


def _class_title(one: NamedClass) -> str:
    """``certain: steps stopped``: how sure it is, and the class in words."""
    return f"{one.certainty.value}: {CLASS_WORDS[one.name].partition(':')[0]}"


def _classes(diagnosis: Diagnosis) -> Iterator[b.Block]:
    for one in diagnosis.classes[:12]:
        yield b.Heading((b.code(one.name.value), f" {_class_title(one)}"))
        yield b.p(one.sentence)
        yield from b.bullets(one.why[:12])
        if one.advice:
            yield b.p("What to do:")
            yield from b.bullets(one.advice)
        yield from b.bullets(one.references, "soft")


def _matches(diagnosis: Diagnosis) -> Iterator[b.Block]:
    for excluded in (False, True):
        some = [m for m in diagnosis.matches if (m.fit is Fit.NOT_THIS) is excluded]
        rows = []
        for m in some:
            name, fit = b.code(_code_of(m)), b.toned(m.fit.value, _FITS[m.fit])
            why = m.exposed_because if m.fit is Fit.EXPOSED else m.why
            numbers = map(str, (m.met, m.not_met, m.unknown))
            rows.append(b.row(name, fit, *numbers, why, status=m.fit.value))
        heads = (
            "known failure:name | fit:name | met:number | not met:number | "
            "unknown:number | why"
        )
        shown = b.table(heads, rows, "known failures")
        yield from (
            b.folded(f"{len(rows)} others: not this", shown) if excluded else shown
        )
        if excluded:
            continue
        for match in [m for m in some if m.fit in _SHOWN][:3]:
            yield b.Heading((b.code(_code_of(match)), f" {match.title}"))
            yield b.p(match.why)
            yield from runs.condition_tables(
                match.conditions[:60], b.slug(_code_of(match)) + "-"
            )
            yield from b.bullets(match.references[:3], "soft")


def target_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Label and value, for the environment's table."""
    target = diagnosis.target
    rows = [
        ("server", target.url),
        ("found by", target.found_by),
        ("engine", f"{target.engine} {target.release}".strip()),
        ("recognised by", "; ".join(target.engine_because)),
        ("release from", target.release_from),
        ("processes", ", ".join(f"{p.role} {p.pid}" for p in target.processes[:24])),
        ("log", ", ".join(one_line(log, 200) for log in target.logs)),
        ("asked for model", target.model),
    ]
    return [(label, value) for label, value in rows if value]


def diagnosis_cases(diagnosis: Diagnosis, name: str) -> list[Case]:
    """For CI: healthy passes; what is unknown is an error, never a pass."""
    assessment = diagnosis.assessment
    how: How = "failed"
    if diagnosis.state is ServerState.HEALTHY:
        how = "passed"
    elif diagnosis.state in COULD_NOT_TELL:
        how = "error"
    told = ("", "", str(assessment.state), assessment.sentence)
    if how != "passed":
        told = (
            assessment.sentence,
            "\n".join(assessment.why),
            str(assessment.state),
            "",
        )
    cases = [Case(f"{name}.state", f"state of {diagnosis.target.url}", how, *told)]
    for match in diagnosis.found:
        known, why = (
            f"{match.scenario} {match.variant}".strip(),
            f"{match.title}: {match.why}",
        )
        group = f"{name}.known-failure"
        cases.append(Case(group, known, "failed", why, kind=str(match.fit)))
    return cases
