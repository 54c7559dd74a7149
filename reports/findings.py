"""Findings in words, and what the reports of a replay and of a fuzzing session have in common."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mmrepro.base.units import duration
from mmrepro.failure.documents.replay import Finding, FindingClass, Fuzz, Rate, Replay
from mmrepro.reports import blocks as b, incident as runs, words
from mmrepro.reports.documents import HTML_FILE
from mmrepro.reports.svg import Line, steps
from mmrepro.traffic.case.model import ServerWanted

SCRIPT_FILE: Final = "reproduce.py"
CLASS_WORDS: Final[dict[FindingClass, str]] = {
    FindingClass.START_FAILURE: "the server does not start",
    FindingClass.DEATH: "the server dies",
    FindingClass.HANG: "a request is never answered",
    FindingClass.FAILING: "the server lives on and fails every request",
    FindingClass.SERVER_ERROR: "a request fails in the server",
    FindingClass.CROSS_TALK: "an answer depends on the content of other requests",
    FindingClass.CACHE_BOUND: "more of a prompt is taken from the cache than was sent before",
    FindingClass.WRONG_ANSWER: "an answer is not the one of the same server without caches",
    FindingClass.CANARY: "the canary is answered otherwise after the traffic",
    FindingClass.PROTOCOL: "an answer breaks the protocol",
    FindingClass.METRICS: "the server's counters contradict its answers",
    FindingClass.RESIDUE: "the idle server does not return to where it was",
}
EXPECTED: Final[dict[FindingClass, str]] = {
    FindingClass.START_FAILURE: "the server becomes ready",
    FindingClass.DEATH: "the server lives on, whatever a client sends",
    FindingClass.HANG: "every request is answered or refused",
    FindingClass.FAILING: "what was answered once is answered again, whatever came between",
    FindingClass.SERVER_ERROR: "every request is answered, or refused with a 4xx",
    FindingClass.CROSS_TALK: "an answer depends on its own request only",
    FindingClass.CACHE_BOUND: "cached tokens are at most the longest prefix that an earlier "
    "request shares",
    FindingClass.WRONG_ANSWER: "caches and batching do not change a greedy answer",
    FindingClass.CANARY: "the same request has the same answer, before and after",
    FindingClass.PROTOCOL: "the answer is whole and agrees with itself",
    FindingClass.METRICS: "the counters agree with what the client sent and received",
    FindingClass.RESIDUE: "running, waiting, memory, threads and files return to the baseline",
}
RATE_NOTE: Final = "Each attempt is on a fresh server; the interval is exact (Clopper-Pearson)."


@dataclass(frozen=True)
class Listed:
    """A finding in the list of a replay or of a session.

    Attributes:
        id: in that list.
        folder: of the finding, below the list's; empty: there is none.
        after: seconds of fuzzing before it was first observed.
        episode: that showed it first.
    """

    id: str
    finding: Finding
    folder: str = ""
    after: float | None = None
    episode: int = 0

    @property
    def href(self) -> str:
        return f"{self.folder}/{HTML_FILE}" if self.folder else ""


def badge(made: Replay | Fuzz, found: Sequence[Finding], nothing: str) -> b.Badge:
    """The verdict. ``nothing``: its note where there is no finding."""
    if made.state == "interrupted":
        return b.Badge("Interrupted", "unsure", "what was found until then is kept")
    if made.state == "failed":
        return b.Badge("Failed", "bad", "this says nothing about the engine")
    unknown = sum(f.confirmed and f.known is None for f in found)
    if unknown:
        return b.Badge("Unknown failure", "bad", f"{unknown} confirmed on fresh servers")
    if made.exit_code == 3:
        return b.Badge("Unproven", "unsure", "observed, not repeated as often as asked for")
    if found:
        names = ", ".join(dict.fromkeys(str(f.known) for f in found))
        return b.Badge("Known", "good", f"only what is known: {names}")
    return b.Badge("Nothing found", "good", nothing)


def counts(found: Sequence[Finding], once: int) -> Iterator[str]:
    """Findings in numbers."""
    unknown = sum(f.confirmed and f.known is None for f in found)
    known = sum(f.confirmed and f.known is not None for f in found)
    if unknown:
        yield f"{unknown} unknown"
    if known:
        yield f"{known} known"
    if rest := len(found) - unknown - known:
        yield f"{rest} not confirmed"
    if once:
        yield f"{once} observed once, not again"


def commands(
    made: Replay | Fuzz, found: Sequence[Listed], folder: str
) -> Iterator[tuple[str, str]]:
    """What to do next, with the most serious finding. ``folder``: of the list; empty: this one."""
    if made.state == "interrupted" and made.resume:
        yield "to resume it", made.resume
    for one in worst_first([one for one in found if one.folder])[:1]:
        place = shlex.quote(str(Path(folder, one.folder)))
        if one.finding.finding_class is not FindingClass.START_FAILURE:
            yield f"to reproduce {one.id}", f"python3 {place}/{SCRIPT_FILE}"
        if one.finding.known:
            yield f"what is known about {one.id}", f"mmrepro show {one.finding.known}"
        else:
            yield f"to report {one.id} upstream", f"mmrepro report {place} --format issue"
    yield "to repeat it", made.command


def worst_first(found: Sequence[Listed]) -> list[Listed]:
    """What is unknown and confirmed comes first, then by class."""

    def rank(one: Listed) -> tuple[bool, bool, int]:
        finding = one.finding
        return not finding.confirmed, finding.known is not None, finding.finding_class.place

    return sorted(found, key=rank)


def card(found: Sequence[Listed]) -> Iterator[b.Block]:
    """The findings, and of the most serious one what was observed and where it stands."""
    if not found:
        return
    heads = ("finding:name", "class:name", "known as:name", "requests:number", "rate:name")
    rows = [
        b.row(
            b.link(one.id, one.href),
            b.toned(one.finding.finding_class.value, tone(one.finding)),
            standing(one.finding),
            f"{one.finding.requests} of {one.finding.requests_before}",
            short_rate(one.finding.rate),
            "" if one.after is None else duration(one.after),
        )
        for one in found
    ]
    yield from b.table([*heads, "first after:number"], rows, "findings")
    worst = worst_first(found)[0]
    yield b.p(b.strong(f"{worst.id}: "), words.sentence(observation(worst.finding)))
    yield b.p(f"Expected: {expected(worst.finding)}.")
    if worst.finding.stack:
        yield stack(worst.finding)


def findings_section(found: Sequence[Listed]) -> b.Section:
    """What each finding is, in whole sentences."""
    rows = [
        b.row(
            b.link(f"{one.id}: {CLASS_WORDS[one.finding.finding_class]}", one.href),
            observation(one.finding),
            expected(one.finding),
            b.toned(standing(one.finding), tone(one.finding)),
            requests_words(one.finding),
            rate_words(one.finding.rate),
            f"{duration(one.after)}, in episode {one.episode}" if one.after is not None else "",
            status="known" if one.finding.known else "unknown",
        )
        for one in found
    ]
    heads = ("finding", "observed", "expected", "known as", "requests", "rate", "first after")
    shown = b.table(heads, rows, "findings")
    return b.Section("Findings", [*shown, *[b.p(RATE_NOTE)] * bool(rows)], 97)


def shrinking(found: Sequence[Listed]) -> list[b.Block]:
    """A chart of the requests left after each step."""
    lines = [
        Line(one.id, [*enumerate(requests_left(one.finding))]) for one in found if one.finding.steps
    ]
    rows = [
        (
            one.id,
            f"{one.finding.requests_before}",
            f"{one.finding.requests}",
            f"{len(one.finding.steps)}",
            f"{one.finding.starts}",
            duration(one.finding.seconds),
            "yes" if one.finding.shrunk else "no",
        )
        for one in found
    ]
    heads = (
        *("finding:name", "requests before:number", "left:number", "steps:number"),
        *("servers:number", "took:number", "nothing more to leave out:name"),
    )
    drawing = steps("Requests left", lines, "steps of the shrinking")
    shown = b.table(heads, rows, "shrinking")
    return [b.Picture(drawing, shown, "What a step left out stays out if the rest fails likewise.")
            ] if drawing else []  # fmt: skip


def requests_left(finding: Finding) -> list[int]:
    """Before any step, and after each."""
    left = [finding.requests_before]
    for step in finding.steps:
        left.append(step.requests if step.kept else left[-1])
    return left


def context(
    made: Replay | Fuzz, own: Sequence[tuple[str, str]], limits: Sequence[str]
) -> Iterator[b.Section]:
    """Limits, stand-ins and set-up. ``own``: rows of the set-up, between server and host."""
    yield b.Section("Limits", b.bullets(list(limits)), 70)
    stand_ins = ((one, "") for one in made.stand_ins)
    yield b.Section("Stand-ins", words.stand_ins(stand_ins, ""), 60)
    rows = [
        ("engine", server_name(made.server)),
        ("wheel", f"{made.wheel.filename}, {made.wheel.origin}" if made.wheel else ""),
        ("model", made.server.model),
        ("longest prompt and answer", f"{made.server.max_model_len} tokens"),
        ("options of the server", shlex.join(made.server.args)),
        ("variables", ", ".join(f"{k}={v}" for k, v in made.server.env.items())),
        ("kept away by", made.server.mitigation),
        ("fidelity", words.fidelity_words(made.fidelity)),
        ("start mode", made.start_mode),
        *own,
        *words.made_on(made.host, made.mmrepro_version),
    ]
    yield b.Section("Set-up", [b.Facts(rows), *runs.settings_table(made.settings)], 40)


# ------------------------------------------------------------------------------------- words


def server_name(server: ServerWanted) -> str:
    return f"{server.engine} {server.release}".strip()


def finding_title(finding: Finding) -> str:
    return f"{server_name(finding.server)}: {CLASS_WORDS[finding.finding_class]}"


def standing(finding: Finding) -> str:
    """``ghost-key-eviction``, or ``unknown``; with a note where it is not confirmed."""
    return (known_name(finding) or "unknown") + " (not confirmed)" * (not finding.confirmed)


def tone(finding: Finding) -> b.Tone:
    if not finding.confirmed:
        return "unsure"
    return "soft" if finding.known else "bad"


def known_name(finding: Finding) -> str:
    """The scenario and its variant, as ``mmrepro show`` takes them; empty: unknown."""
    if not finding.known:
        return ""
    return f"{finding.known} ({finding.known_variant})" if finding.known_variant else finding.known


def known_words(finding: Finding) -> tuple[str | b.Span, ...]:
    """Which known failure it is and why, or why it is none."""
    if not finding.known:
        why = finding.known_why or "no known scenario's signature fits"
        return (words.sentence(words.capital(why)),)
    why = f": {words.sentence(finding.known_why)}" if finding.known_why else ""
    return (b.code(known_name(finding)), why)


def requests_words(finding: Finding) -> str:
    """``13 of 200 requests``, and whether fewer may do."""
    text = f"{finding.requests} of {b.count(finding.requests_before, 'request')}"
    return text if finding.shrunk else f"{text}, not shrunk to the end"


def rate_words(rate: Rate) -> str:
    """``3 of 3 attempts (95%: 29% to 100%)``; a rate is never called certain."""
    if not rate.plays:
        return "not measured"
    return (
        f"{rate.failed} of {b.count(rate.plays, 'attempt')} "
        f"({rate.confidence:.0%}: {rate.low:.0%} to {rate.high:.0%})"
    )


def short_rate(rate: Rate) -> str:
    """``3 of 3 (29–100%)``."""
    if not rate.plays:
        return "not measured"
    return f"{rate.failed} of {rate.plays} ({100 * rate.low:.0f}–{rate.high:.0%})"


def observation(finding: Finding) -> str:
    """What was observed, without a full stop."""
    return finding.said.rstrip(".")


def expected(finding: Finding) -> str:
    """What a sound engine does, without a full stop."""
    return (finding.expected or EXPECTED[finding.finding_class]).rstrip(".")


def request_result(finding: Finding, operation: str) -> str:
    """What came of a request; of an error's JSON its message."""
    result = finding.observed.get(operation, "")
    named = _MESSAGE.search(result)
    return f"{result[:3]} {named[1]}" if named and result[:3].isdigit() else result


_MESSAGE: Final = re.compile(r'"message": ?"((?:[^"\\]|\\.)*)')


def stack(finding: Finding, most: int = b.FRAMES) -> b.Stack:
    frames = [b.Frame(frame) for frame in finding.stack[:most]]
    return b.Stack("where it stands, innermost first", frames)


def times(table: dict[str, int]) -> str:
    """``18 × 200, 2 × 400``."""
    return ", ".join(f"{number} × {what}" for what, number in table.items())


def deadline(made: Replay | Fuzz) -> str:
    if made.deadline_s is None:
        return ""
    return f"{duration(made.deadline_s)} without an answer is a hang (from the warm-up's latencies)"
