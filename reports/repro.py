"""Of a replay that tests a bug report: its verdict, what was tested, and the text for a
comment."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mmrepro.base.text.sanitize import clip
from mmrepro.failure.documents.published import published
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
    return b.Badge(label, _TONES.get(report.verdict, "unsure"), _cut(report.said, 200))


def card(replay: Replay) -> Iterator[b.Block]:
    """What was tested: the answers of the first play, and of another release; what was
    replaced."""
    yield from b.table(
        "request:name | status:name | took:number | answer", _rows(replay.answers)
    )
    report = replay.report
    if report is None:
        return
    for one in report.fixed:
        yield b.p(
            b.strong(f"On {one.release}: "), f"{one.state}: {_cut(one.said, 200)}"
        )
    if changed := [one.words for one in report.replaced]:
        yield b.p(b.strong("Replaced: "), " ".join(changed))


def commands(replay: Replay, folder: str) -> Iterator[tuple[str, str]]:
    """Where the text for a comment lies."""
    if replay.report is not None and replay.report.verdict is not None:
        yield (
            "to answer the report",
            f"cat {shlex.quote(str(Path(folder, COMMENT_FILE)))}",
        )


def _rows(answers: list[Answer]) -> list[tuple[str, str, str, str]]:
    """Of each request what came of it, the first of many."""
    made = []
    for one in answers[:_SHOWN]:
        took = "" if one.seconds is None else f"{one.seconds:.2f} s"
        said = one.words.removeprefix(one.status).strip()
        made.append(
            (f"{one.operation} {one.method} {one.path}", one.status, took, said)
        )
    if rest := len(answers) - _SHOWN:
        made += [("", "", "", f"and {rest} more")] * (rest > 0)
    return made


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
    printed = report.output.strip().splitlines()[-30:]
    output: list[b.Block] = [b.Fence("\n".join(printed))] if printed else []
    changed = [one.words for one in report.replaced]
    blocks = [b.Facts(facts), *b.bullets([*changed, *report.notes]), *output]
    yield b.Section("The report", blocks, 96)


def comment(replay: Replay) -> str:
    """What is pasted under the report; Markdown as GitHub reads it.

    Nothing that the client printed is in it, and of what engines say only what may
    leave."""
    replay = published(replay)
    report = replay.report
    assert report is not None
    verdict = (report.verdict or ReproVerdict.NOTHING_TESTED).value.replace("-", " ")
    lines = [
        f"**{words.capital(verdict)}** on {gfm.text(replay.server.label)}: "
        + gfm.text(words.sentence(report.said), 600),
        "",
    ]
    lines += [
        f"- {gfm.code(a)} → {s} {gfm.text(_cut(said, 160))}"
        for a, s, _, said in _rows(replay.answers)
    ]
    for one in report.fixed:
        lines.append(f"- {one.release}: {one.state}. {gfm.text(_cut(one.said, 160))}")
    for finding in replay.findings[:2]:
        lines += ["", *_of_finding(finding)]
    changed = [one.words for one in report.replaced]
    limits = ["A tiny model with random weights, on a CPU.", *changed]
    lines += ["", "What differs from the report: " + gfm.text(" ".join(limits))]
    lines += ["", f"Made with `mmrepro repro` {replay.mmrepro_version}."]
    return clip("\n".join(lines), _LONGEST_COMMENT) + "\n"


def _of_finding(finding: Finding) -> Iterator[str]:
    known = finding.known_name or "unknown"
    yield (
        f"{finding.finding_class.words.capitalize()}; {finding.rate.failed} of "
        f"{finding.rate.plays} replays; {finding.requests} of "
        f"{finding.requests_before} requests "
        f"are needed; known as: {known}; bucket `{gfm.text(finding.bucket)}`."
    )
    if finding.stack:
        yield gfm.fence("\n".join(finding.stack[:8]), "text", 10, 300)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
