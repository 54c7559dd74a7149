"""Of a replay that tests a bug report: its verdict, what was tested, and the text for a
comment."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mmrepro.base.text import clip
from mmrepro.failure.documents import as_published
from mmrepro.failure.documents.replay import (
    Answer,
    Finding,
    Replay,
    ReportFacts,
    ReproVerdict,
)
from mmrepro.reports import blocks as b, gfm, words

COMMENT_FILE: Final = "comment.md"
_SHOWN: Final = 6
_LONGEST_COMMENT: Final = 16_384
_TONES: Final[dict[ReproVerdict, b.Tone]] = {
    ReproVerdict.REPRODUCED: "bad",
    ReproVerdict.NOT_REPRODUCED: "good",
}


def badge(report: ReportFacts) -> b.Badge | None:
    """The verdict on the report; None: there is none yet."""
    if report.verdict is None:
        return None
    label = report.verdict.value.replace("-", " ").capitalize()
    tone = _TONES.get(report.verdict, "unsure")
    return b.Badge(label, tone, note=_cut(report.said, 200))


def card(replay: Replay) -> Iterator[b.Block]:
    """What was tested: the answers of the first play, and of another release; what was
    replaced."""
    heads = "request:name | status:name | took:number | answer"
    yield from b.table(heads, _rows(replay.answers))
    report = replay.report
    if report is None:
        return
    for release in report.fixed:
        state = f"{release.state}: {_cut(release.said, 200)}"
        yield b.p(b.strong(f"On {release.release}: "), state)

    replaced = _replaced(report)
    if replaced:
        yield b.p(b.strong("Replaced: "), " ".join(replaced))


def _replaced(report: ReportFacts) -> list[str]:
    return [replacement.words for replacement in report.replaced]


def commands(replay: Replay, folder: str) -> Iterator[tuple[str, str]]:
    """Where the text for a comment lies."""
    if replay.report is not None and replay.report.verdict is not None:
        file = shlex.quote(str(Path(folder, COMMENT_FILE)))
        yield "to answer the report", f"cat {file}"


def _rows(answers: list[Answer]) -> list[tuple[str, str, str, str]]:
    """List what came of each request, the first of many."""
    rows = []
    for answer in answers[:_SHOWN]:
        took = "" if answer.seconds is None else f"{answer.seconds:.2f} s"
        request = f"{answer.operation} {answer.method} {answer.path}"
        # The answer's words begin with its status, which has a column.
        text = answer.words.removeprefix(answer.status).strip()
        rows.append((request, answer.status, took, text))

    rest = len(answers) - _SHOWN
    if rest > 0:
        rows.append(("", "", "", f"and {rest} more"))
    return rows


def sections(replay: Replay) -> Iterator[b.Section]:
    """How the report was read and run."""
    report = replay.report
    if report is None:
        return
    facts = [
        ("report", report.source),
        ("server", report.server),
        ("client", report.client),
        ("reported", report.claim.words),
        ("exceptions of the report", ", ".join(report.claim.exceptions)),
        ("client ran", report.isolation),
    ]
    blocks: list[b.Block] = [b.Facts(facts)]
    blocks += b.bullets([*_replaced(report), *report.notes])
    printed = report.output.strip().splitlines()[-30:]
    if printed:
        blocks.append(b.Fence("\n".join(printed)))
    yield b.Section("The report", blocks, keep=96)


def comment(replay: Replay) -> str:
    """What is pasted under the report; Markdown as GitHub reads it.

    Nothing that the client printed is in it, and of what engines say only what may
    leave."""
    replay = as_published(replay)
    report = replay.report
    assert report is not None
    lines = [_verdict_line(replay, report), ""]
    for request, status, _, text in _rows(replay.answers):
        answer = gfm.text(_cut(text, 160))
        lines.append(f"- {gfm.code(request)} → {status} {answer}")

    for release in report.fixed:
        why = gfm.text(_cut(release.said, 160))
        lines.append(f"- {release.release}: {release.state}. {why}")

    for finding in replay.findings[:2]:
        lines += ["", *_of_finding(finding)]

    limits = ["A tiny model with random weights, on a CPU.", *_replaced(report)]
    lines += ["", "What differs from the report: " + gfm.text(" ".join(limits))]
    lines += ["", f"Made with `mmrepro repro` {replay.mmrepro_version}."]
    return clip("\n".join(lines), _LONGEST_COMMENT) + "\n"


def _verdict_line(replay: Replay, report: ReportFacts) -> str:
    verdict = report.verdict or ReproVerdict.NOTHING_TESTED
    label = words.capital(verdict.value.replace("-", " "))
    server = gfm.text(replay.server.label)
    sentence = gfm.text(words.sentence(report.said), 600)
    return f"**{label}** on {server}: {sentence}"


def _of_finding(finding: Finding) -> Iterator[str]:
    kind = finding.finding_class.words.capitalize()
    rate = f"{finding.rate.failed} of {finding.rate.plays} replays"
    requests = f"{finding.requests} of {finding.requests_before} requests are needed"
    known = finding.known_name or "unknown"
    bucket = gfm.text(finding.bucket)
    yield f"{kind}; {rate}; {requests}; known as: {known}; bucket `{bucket}`."
    if finding.stack:
        yield gfm.fence("\n".join(finding.stack[:8]), "text", 10, 300)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
