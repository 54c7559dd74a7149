"""Findings in words, and what the reports of a replay and of a fuzzing session have in
common."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mmrepro.base.records import FindingClass
from mmrepro.base.units import duration
from mmrepro.failure.documents.replay import Finding, Fuzz, Rate, Replay
from mmrepro.reports import blocks as b, incident as runs, words
from mmrepro.reports.documents import HTML_FILE
from mmrepro.reports.svg import StepLine, steps
from mmrepro.traffic.case import SCRIPT_FILE, ServerWanted

RATE_NOTE: Final = (
    "Each attempt is on a fresh server; the interval is exact (Clopper-Pearson)."
)


@dataclass(frozen=True)
class ListedFinding:
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
        return b.Badge(
            "Interrupted", "unsure", note="what was found until then is kept"
        )
    if made.state == "failed":
        return b.Badge("Failed", "bad", note="this says nothing about the engine")
    unknown = len(_unknown(found))
    if unknown:
        note = f"{unknown} confirmed on fresh servers"
        resembling = _resembling(found)
        if resembling:
            return b.Badge("Failure", "bad", f"its words are those of {resembling}")
        return b.Badge("Unknown failure", "bad", note)

    untestable = isinstance(made, Replay) and bool(made.untestable)
    if made.exit_code == 3 and not untestable:
        note = "observed, not repeated as often as asked for"
        return b.Badge("Unproven", "unsure", note)
    if untestable and not found:
        note = "it needs what this machine does not have"
        return b.Badge("Not testable here", "unsure", note)
    if found:
        names = ", ".join(dict.fromkeys(str(finding.known) for finding in found))
        return b.Badge("Known", "good", f"only what is known: {names}")

    return b.Badge("Nothing found", "good", nothing)


def _unknown(found: Sequence[Finding]) -> list[Finding]:
    """What was confirmed and is no known failure."""
    return [finding for finding in found if finding.confirmed and finding.known is None]


def _resembling(found: Sequence[Finding]) -> str:
    """Known failures whose words all the unknown findings have; empty: one is new."""
    names: list[str] = []
    for finding in _unknown(found):
        if not finding.resembles:
            return ""
        names += finding.resembles
    return ", ".join(dict.fromkeys(names))


def counts(found: Sequence[Finding], once: int) -> Iterator[str]:
    """Findings in numbers."""
    unknown = len(_unknown(found))
    confirmed = sum(finding.confirmed for finding in found)
    known = confirmed - unknown
    rest = len(found) - confirmed
    if unknown:
        yield f"{unknown} unknown"
    if known:
        yield f"{known} known"
    if rest:
        yield f"{rest} not confirmed"
    if once:
        yield f"{once} observed once, not again"


def commands(
    made: Replay | Fuzz, found: Sequence[ListedFinding], folder: str
) -> Iterator[tuple[str, str]]:
    """What to do next, with the most serious finding. ``folder``: of the list; empty:
    this one."""
    if made.state == "interrupted" and made.resume:
        yield "to resume it", made.resume
    with_folder = [listed for listed in found if listed.folder]
    for worst in _worst_first(with_folder)[:1]:
        yield from _next_steps(made, worst, folder)

    yield "run again", made.command


def _next_steps(
    made: Replay | Fuzz, listed: ListedFinding, folder: str
) -> Iterator[tuple[str, str]]:
    finding = listed.finding
    place = shlex.quote(str(Path(folder, listed.folder)))
    # What does not start takes no requests, and some failures need none.
    starts = finding.finding_class is FindingClass.START_FAILURE
    if finding.requests and not starts:
        yield f"to reproduce {listed.id}", f"python3 {place}/{SCRIPT_FILE}"
    if finding.known:
        yield f"what is known about {listed.id}", f"mmrepro show {finding.known}"
        return

    for name in finding.resembles[:1]:
        yield f"what {listed.id} may be", f"mmrepro show {name}"

    yield f"to report {listed.id} upstream", f"mmrepro report {place} --format issue"
    if isinstance(made, Replay) and made.report is not None:
        name = f"repro-{finding.finding_class}"
        scenario = f"mmrepro new {name} --from {place}"
        # `mmrepro new` names the file so.
        bisect = f"mmrepro bisect {name.replace('-', '_')}.py"
        yield "to find the release that brought it", f"{scenario} && {bisect}"


def _worst_first(found: Sequence[ListedFinding]) -> list[ListedFinding]:
    """What is unknown and confirmed comes first, then by class."""

    def rank(listed: ListedFinding) -> tuple[bool, bool, int]:
        finding = listed.finding
        is_known = finding.known is not None
        return not finding.confirmed, is_known, finding.finding_class.place

    return sorted(found, key=rank)


def card(found: Sequence[ListedFinding]) -> Iterator[b.Block]:
    """The findings, and of the most serious one what was observed and where it
    stands."""
    if not found:
        return
    rows: list[Sequence[b.Inline]] = []
    for listed in found:
        finding = listed.finding
        row = (
            b.link(listed.id, listed.href),
            b.toned(finding.finding_class.value, tone(finding)),
            _standing(finding),
            f"{finding.requests} of {finding.requests_before}",
            short_rate(finding.rate),
            "" if listed.after is None else duration(listed.after),
        )
        rows.append(row)

    heads = "finding:name | class:name | known as:name | requests:number | rate:name"
    yield from b.table(f"{heads} | first after:number", rows, "findings")
    worst = _worst_first(found)[0]
    yield b.p(b.strong(f"{worst.id}: "), words.sentence(worst.finding.observation))
    yield b.p(f"Expected: {worst.finding.expectation}.")
    yield from gone_without(worst.finding)
    if worst.finding.stack:
        yield stack(worst.finding)


def gone_without(finding: Finding) -> Iterator[b.Block]:
    """The server's options that the failure needs."""
    options = finding.needed_options
    if options:
        yield b.p(b.strong("Gone without: "), b.code(" ".join(options)))


def findings_section(found: Sequence[ListedFinding]) -> b.Section:
    """What each finding is, in whole sentences."""
    rows = []
    for listed in found:
        finding = listed.finding
        after = ""
        if listed.after is not None:
            after = f"{duration(listed.after)}, in episode {listed.episode}"
        row = b.row(
            b.link(f"{listed.id}: {finding.finding_class.words}", listed.href),
            finding.observation,
            finding.expectation,
            b.toned(_standing(finding), tone(finding)),
            requests_words(finding),
            rate_words(finding.rate),
            after,
            status="known" if finding.known else "unknown",
        )
        rows.append(row)

    heads = "finding | observed | expected | known as | requests | rate | first after"
    shown = b.table(heads, rows, "findings")
    if rows:
        shown.append(b.p(RATE_NOTE))
    return b.Section("Findings", shown, keep=97)


def shrinking(found: Sequence[ListedFinding]) -> list[b.Block]:
    """A chart of the requests left after each step."""
    lines = []
    rows = []
    for listed in found:
        finding = listed.finding
        if finding.steps:
            lines.append(StepLine(listed.id, [*enumerate(requests_left(finding))]))
        row = (
            listed.id,
            str(finding.requests_before),
            str(finding.requests),
            str(len(finding.steps)),
            str(finding.starts),
            duration(finding.seconds),
            "yes" if finding.shrunk else "no",
        )
        rows.append(row)

    drawing = steps("Requests left", lines, "steps of the shrinking")
    if not drawing:
        return []
    heads = "finding:name | requests before:number | left:number | steps:number"
    heads += " | servers:number | took:number | nothing more to leave out:name"
    shown = b.table(heads, rows, "shrinking")
    caption = "A removed request stays removed if the failure still occurs."
    return [
        b.Picture(
            drawing=drawing,
            instead=shown,
            caption=caption,
        )
    ]


def requests_left(finding: Finding) -> list[int]:
    """Count the requests before any step, and after each."""
    left = [finding.requests_before]
    for step in finding.steps:
        left.append(step.requests if step.kept else left[-1])

    return left


def _scripts_words(server: ServerWanted) -> str:
    """What its model says, cut; "": its weights are random."""
    if server.scripts is None:
        return ""
    said = [answer.text or "".join(answer.pieces) for answer in server.scripts.script]
    return "; ".join(repr(text[:_SCRIPT_CHARS]) for text in said[:_SCRIPTS])


_SCRIPTS, _SCRIPT_CHARS = 4, 120


def context(
    made: Replay | Fuzz, own: Sequence[tuple[str, str]], limits: Sequence[str]
) -> Iterator[b.Section]:
    """Limits, stand-ins and set-up. ``own``: rows of the set-up, between server and
    host."""
    stand_ins = [(stand_in, "") for stand_in in made.stand_ins]
    yield b.Section("Limits", b.bullets(list(limits)), keep=70)
    yield b.Section("Stand-ins", words.stand_ins(stand_ins, ""), keep=60)
    rows = [*_server_rows(made), *own, *words.made_on(made.host, made.mmrepro_version)]
    setup = [b.Facts(rows), *runs.settings_table(made.settings)]
    yield b.Section("Set-up", setup, keep=40)


def _server_rows(made: Replay | Fuzz) -> list[tuple[str, str]]:
    server = made.server
    wheel = f"{made.wheel.filename}, {made.wheel.origin}" if made.wheel else ""
    variables = [f"{name}={value}" for name, value in server.env.items()]
    return [
        ("engine", server.label),
        ("wheel", wheel),
        ("model", server.model),
        ("says", _scripts_words(server)),
        ("longest prompt and answer", f"{server.max_model_len} tokens"),
        ("options of the server", shlex.join(server.args)),
        ("variables", ", ".join(variables)),
        ("kept away by", server.mitigation),
        ("fidelity", words.fidelity_words(made.fidelity)),
        ("start mode", made.start_mode),
    ]


# -------------------------------------------------------------------------------- words


def known_as(finding: Finding) -> str:
    """``ghost-key-eviction``, ``perhaps`` with its names, or ``unknown``."""
    if finding.resembles and not finding.known:
        return f"perhaps {', '.join(finding.resembles)}"
    return finding.known_name or "unknown"


def _standing(finding: Finding) -> str:
    """``ghost-key-eviction``, or ``unknown``; with a note where it is not confirmed."""
    text = known_as(finding)
    if finding.same_as:
        text += f", the same bucket as {finding.same_as}"
    return text if finding.confirmed else f"{text} (not confirmed)"


def tone(finding: Finding) -> b.Tone:
    """Choose the colour of a finding: bad where it is confirmed and unknown."""
    if not finding.confirmed:
        return "unsure"
    return "soft" if finding.known else "bad"


def known_words(finding: Finding) -> tuple[str | b.Span, ...]:
    """Which known failure it is and why, or why it is none."""
    if finding.resembles and not finding.known:
        first, *others = finding.resembles
        also = f"; also {', '.join(others)}" if others else ""
        words_of = ("It has the words of ", b.code(first), also)
        why = finding.known_why or "not every condition of its signature is met"
        return (*words_of, f": {words.sentence(why)}")
    if not finding.known:
        why = finding.known_why or "no known scenario's signature fits"
        return (words.sentence(words.capital(why)),)
    why = f": {words.sentence(finding.known_why)}" if finding.known_why else ""
    return (b.code(finding.known_name), why)


def requests_words(finding: Finding) -> str:
    """``13 of 200 requests``, and whether fewer may do."""
    text = f"{finding.requests} of {b.count(finding.requests_before, 'request')}"
    return text if finding.shrunk else f"{text}, not shrunk to the end"


def rate_words(rate: Rate) -> str:
    """Write ``3 of 3 attempts (95%: 29% to 100%)``; a rate is never called certain."""
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


def request_result(finding: Finding, operation: str) -> str:
    """What came of a request; of an error's JSON its message."""
    result = finding.observed.get(operation, "")
    status = result[:3]
    message = _MESSAGE.search(result)
    return f"{status} {message[1]}" if message and status.isdigit() else result


_MESSAGE: Final = re.compile(r'"message": ?"((?:[^"\\]|\\.)*)')


def stack(finding: Finding, most: int = b.FRAMES) -> b.Stack:
    """Show the frames of a finding, the innermost ``most`` of them."""
    frames = [b.Frame(frame) for frame in finding.stack[:most]]
    return b.Stack("Stack, innermost frame first", frames)


def times(table: dict[str, int]) -> str:
    """``18 × 200, 2 × 400``."""
    return ", ".join(f"{number} × {what}" for what, number in table.items())


def deadline(made: Replay | Fuzz) -> str:
    if made.deadline_s is None:
        return ""
    return (
        f"{duration(made.deadline_s)} without an answer is a hang (from the warm-up's "
        "latencies)"
    )


def source(replay: Replay) -> str:
    """``night.har (200 requests)``."""
    kind = {"case": "a case", "har": "a HAR", "batch": "a batch"}
    where = replay.origin.file or kind.get(replay.origin.format, replay.origin.format)
    return f"{where} ({b.count(replay.requests, 'request')})"
