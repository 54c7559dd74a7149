"""What every format says alike of a replay: words, the headline, the table's rows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from mmrepro.base.units import duration
from mmrepro.case.model import Case, Image, ServerWanted
from mmrepro.incident.replay import Finding, FindingClass, Fuzz, Rate, Replay, bucket_words
from mmrepro.reports.words import FIDELITY_WORDS

PAGE: Final = "docs/replay.md"
shown = bucket_words
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
RATE_NOTE: Final = "the interval is exact (Clopper-Pearson)"


@dataclass(frozen=True)
class Headline:
    label: str
    tone: str
    said: str


@dataclass(frozen=True)
class Row:
    """A finding in the table of a replay, or of a fuzzing session.

    ``folder``: of its reports, below; empty unless it plainly lies there.
    """

    finding: Finding
    id: str
    folder: str
    name: str
    state: str
    tone: str
    known: str
    requests: str
    rate: str
    after: str = ""


def headline(replay: Replay) -> Headline:
    nothing = "no oracle holds anything against this traffic"
    return headline_of(replay, replay.findings, nothing)


def headline_of(made: Replay | Fuzz, findings: Sequence[Finding], nothing: str) -> Headline:
    """``nothing``: what is said where there is no finding."""
    if made.state == "interrupted":
        return Headline("Interrupted", "unsure", "what was found until then is kept")
    if made.state == "failed":
        return Headline("Failed", "bad", "it says nothing of the engine")
    unknown = [f for f in findings if f.confirmed and f.known is None]
    if unknown:
        what = f"{len(unknown)} unknown " + ("failure" if len(unknown) == 1 else "failures")
        return Headline("Unknown failure", "bad", f"{what}, confirmed on fresh servers")
    if made.exit_code == 3:
        return Headline("Unproven", "unsure", "seen, and not again as often as was asked for")
    if findings:
        names = ", ".join(dict.fromkeys(str(f.known) for f in findings))
        return Headline("Known", "good", f"nothing but what is known: {names}")
    return Headline("Nothing found", "good", nothing)


def title(replay: Replay) -> str:
    return f"Replay of {source(replay)} on {server_name(replay.server)}"


def source(replay: Replay) -> str:
    kind = {"case": "a case", "har": "a HAR", "batch": "a batch"}
    where = replay.origin.file or kind.get(replay.origin.format, replay.origin.format)
    return f"{where} ({count(replay.requests, 'request')})"


def server_name(server: ServerWanted) -> str:
    return f"{server.engine} {server.release}".strip()


def finding_title(finding: Finding) -> str:
    return f"{server_name(finding.server)}: {CLASS_WORDS[finding.finding_class]}"


def finding_headline(finding: Finding) -> Headline:
    return Headline(finding.finding_class.value, _tone(finding), standing(finding))


def standing(finding: Finding) -> str:
    """``unknown, confirmed``."""
    known = f"known: {finding.known}" if finding.known else "unknown"
    return f"{known}, {'confirmed' if finding.confirmed else 'not confirmed'}"


def _tone(finding: Finding) -> str:
    if not finding.confirmed:
        return "unsure"
    return "soft" if finding.known else "bad"


def rows(replay: Replay) -> list[Row]:
    return [
        row(finding, finding.id, finding.folder if finding.folder.isalnum() else "")
        for finding in replay.findings
    ]


def row(finding: Finding, id: str, folder: str, after: str = "") -> Row:
    return Row(
        finding=finding,
        id=id,
        folder=folder,
        name=CLASS_WORDS[finding.finding_class],
        state="confirmed" if finding.confirmed else "not confirmed",
        tone=_tone(finding),
        known=known_name(finding) or "unknown",
        requests=requests_words(finding),
        rate=rate_words(finding.rate),
        after=after,
    )


def known_name(finding: Finding) -> str:
    """The scenario and its variant, as ``mmrepro show`` takes them; empty: unknown."""
    if not finding.known:
        return ""
    return f"{finding.known} ({finding.known_variant})" if finding.known_variant else finding.known


def unknown_why(finding: Finding) -> str:
    """Why it counts as unknown, without a full stop."""
    told = finding.known_why.rstrip(".") or "no known scenario's signature fits"
    return told[:1].upper() + told[1:]


def requests_words(finding: Finding) -> str:
    """``13 of 200 requests``, and whether fewer may do."""
    told = f"{finding.requests} of {count(finding.requests_before, 'request')}"
    return told if finding.shrunk else f"{told}, not shrunk to the end"


def observed(finding: Finding, operation: str) -> str:
    """What came of a request; of an error's JSON its message."""
    told = finding.observed.get(operation, "")
    named = _MESSAGE.search(told)
    return f"{told[:3]} {named[1]}" if named and told[:3].isdigit() else told


_MESSAGE: Final = re.compile(r'"message": ?"((?:[^"\\]|\\.)*)')


def rate_words(rate: Rate) -> str:
    """``3 of 3 plays (95 %: 29 % to 100 %)``; a rate is never called certain."""
    if not rate.plays:
        return "not measured"
    return (
        f"{rate.failed} of {count(rate.plays, 'play')} "
        f"({rate.confidence:.0%}: {rate.low:.0%} to {rate.high:.0%})"
    )


def count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def expected(finding: Finding) -> str:
    told = finding.expected or EXPECTED[finding.finding_class]
    return told.rstrip(".")


def said(finding: Finding) -> str:
    """What was observed, without a full stop."""
    return finding.said.rstrip(".")


def starts(replay: Replay) -> int:
    """Servers that were started; a play that counts for nothing may have had one as well."""
    return len(replay.plays)


def seconds(replay: Replay) -> float:
    """That it took, with those of the plays that an earlier call had made."""
    if replay.finished is None:
        return sum(play.seconds for play in replay.plays)
    return replay.kept_s + max(0.0, (replay.finished.wall - replay.created.wall).total_seconds())


def setup(replay: Replay) -> list[tuple[str, str]]:
    """Label and value of what a second person needs to have the same."""
    own = [
        ("time", TIME_WORDS[replay.time]),
        ("deadline", deadline(replay)),
        ("servers started", f"{starts(replay)} of at most {replay.budget}"),
        ("took", duration(seconds(replay))),
    ]
    return setup_of(replay, own)


def setup_of(made: Replay | Fuzz, own: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The server and the host, with its ``own`` lines between them; none is empty."""
    host = made.host
    told = [
        ("engine", server_name(made.server)),
        ("wheel", f"{made.wheel.filename}, {made.wheel.origin}" if made.wheel else ""),
        ("model", made.server.model),
        ("longest prompt and answer", f"{made.server.max_model_len} tokens"),
        ("options of the server", shlex.join(made.server.args)),
        ("variables", ", ".join(f"{k}={v}" for k, v in made.server.env.items())),
        ("kept away by", made.server.mitigation),
        ("fidelity", f"{made.fidelity}: {FIDELITY_WORDS[made.fidelity]}"),
        ("start mode", made.start_mode),
        *own,
        ("host", f"{host.cpu}, {host.cores} cores, {host.os}"),
        ("made by", f"mmrepro {made.mmrepro_version}"),
    ]
    return [(label, value) for label, value in told if value]


TIME_WORDS: Final = {
    "fast": "as fast as the barriers allow",
    "real": "at the recording's own times",
    "order": "one after another",
}


def deadline(made: Replay | Fuzz) -> str:
    if made.deadline_s is None:
        return ""
    return f"{duration(made.deadline_s)} without an answer is a hang (from the gate's latencies)"


def origin(replay: Replay) -> list[str]:
    """Sentences on what was read, left out and changed; none ends with a full stop."""
    found = replay.origin
    read = "1 entry" if found.read == 1 else f"{found.read} entries"
    told = [f"{read} read from {found.format}"] if found.read else []
    if found.left_out:
        told.append(f"left out: {counts(found.left_out)}")
    if found.dropped:
        told.append(f"never kept: {counts(found.dropped)}")
    if found.anonymised:
        told.append("texts and images are random ones of the same lengths and the same sharing")
    if found.scaled:
        told.append("lengths are scaled to the model's limits")
    return told + [note.removesuffix(".") for note in found.notes]


def counts(table: dict[str, int]) -> str:
    return ", ".join(f"{number} × {what}" for what, number in table.items())


def image_words(name: str, case: Case) -> str:
    """What an image is, by its recipe."""
    image: Image = case.images[name]
    fields: dict[str, Any] = image.model_dump()
    size = fields.get("size")
    pixels = f"{size[0]} × {size[1]}" if size else ""
    told = {
        "content": f"picture {str(fields.get('sha256', ''))[:12]}",
        "noise": f"noise, seed {fields.get('seed')}, {pixels}",
        "tiles": f"tiles, seed {fields.get('seed')}, {fields.get('rows')} rows × "
        f"{fields.get('columns')} columns",
        "solid": f"one colour {fields.get('colour')}, {pixels}",
        "near": f"{fields.get('of')} with {count(fields.get('pixels') or 1, 'pixel')} changed",
        "resized": f"{fields.get('of')}, resized to {pixels}",
        "relayout": f"the tiles of {fields.get('of')} in {fields.get('rows')} rows × "
        f"{fields.get('columns')} columns",
        "collision": f"member {fields.get('member')} of the family {fields.get('family')}",
    }
    return told[image.kind]
