"""Of a replay that tests a bug report: its verdict, what was tested, and the text for a
comment."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mmrepro.base.text import clip
from mmrepro.failure.documents import as_public, as_published, finding_of
from mmrepro.failure.documents.replay import (
    Answer,
    Finding,
    Replay,
    ReportFacts,
    ReproVerdict,
)
from mmrepro.reports import blocks as b, findings, gfm, words
from mmrepro.reports.finding import script_of, steps_of
from mmrepro.traffic.case import SCRIPT_FILE

COMMENT_FILE: Final = "comment.md"
_SHOWN: Final = 6
_LONGEST_COMMENT: Final = 48_000
_LONGEST_SCRIPT: Final = 40_000
"""Of a script within a comment; a longer one is left out, since a part is none."""
_TONES: Final[dict[ReproVerdict, b.Tone]] = {
    ReproVerdict.REPRODUCED: "bad",
    ReproVerdict.NOT_REPRODUCED: "good",
}


def badge(replay: Replay) -> b.Badge | None:
    """The verdict on the report; None: there is none yet."""
    report = replay.report
    if report is None or report.verdict is None:
        return None
    label = report.verdict.value.replace("-", " ").capitalize()
    tone = _TONES.get(report.verdict, "unsure")
    note = _cut(report.said, 200)
    if known := _known_words(replay):
        note = f"known: {known}"
    return b.Badge(label, tone, note=note)


def _known(replay: Replay) -> Finding | None:
    """The finding that is the report's, and a known failure; None: there is none."""
    report = replay.report
    if report is None or report.verdict is not ReproVerdict.REPRODUCED:
        return None
    for finding in replay.findings:
        if finding.known and finding.confirmed:
            return finding
    return None


def _known_words(replay: Replay) -> str:
    """``stop-token-oov, vllm#54195, fixed in 0.29.0``; empty: it is not known."""
    finding = _known(replay)
    if finding is None:
        return ""
    upstream = finding.upstream.words if finding.upstream else ""
    return ", ".join(filter(None, (finding.known_name, upstream)))


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


def comment(replay: Replay, folder: Path | None = None) -> str:
    """What is pasted under the report; Markdown as GitHub reads it.

    Nothing that the client printed is in it, and of what engines say only what may
    leave. ``folder``: the replay's, whose case becomes the script."""
    whole = replay
    replay = as_published(replay)
    report = replay.report
    assert report is not None
    lines = [_verdict_line(replay, report), ""]
    for request, status, _, text in _rows(replay.answers):
        answer = gfm.text(_cut(text, 160))
        lines.append(f"- {gfm.code(request)} → {status} {answer}".rstrip())

    for release in report.fixed:
        why = gfm.text(_cut(release.said, 160))
        lines.append(f"- {release.release}: {release.state}. {why}")

    for finding in replay.findings[:2]:
        lines += ["", *_of_finding(finding)]

    limits = ["A tiny model with random weights, on a CPU.", *_replaced(report)]
    lines += ["", "What differs from the report: " + gfm.text(" ".join(limits))]
    if folder is not None and whole.findings:
        lines += _script_lines(whole, folder)
    lines += ["", f"Made with `mmrepro repro` {replay.mmrepro_version}."]
    return clip("\n".join(lines), _LONGEST_COMMENT) + "\n"


def _script_lines(replay: Replay, folder: Path) -> Iterator[str]:
    """The commands that reproduce the first finding, and its script, as far as they may
    leave the machine."""
    loaded = finding_of(replay, replay.findings[0], folder)
    if loaded.case is None or not loaded.case.operations:
        return
    with as_public(loaded) as shown:
        script = script_of(shown)
        typed = "\n".join(steps_of(shown))

    yield from ("", "To reproduce it without mmrepro:", "", gfm.fence(typed, "sh"))
    if len(script) <= _LONGEST_SCRIPT:
        rows = len(script.splitlines())
        fenced = gfm.fence(script, "python", rows, _LONGEST_SCRIPT)
        yield from ("", gfm.details(SCRIPT_FILE, fenced))


def _verdict_line(replay: Replay, report: ReportFacts) -> str:
    verdict = report.verdict or ReproVerdict.NOTHING_TESTED
    label = words.capital(verdict.value.replace("-", " "))
    server = gfm.text(words.product(replay.server.engine, replay.server.release))
    sentence = gfm.text(words.capital(words.sentence(report.said)), 600)
    known = _known(replay)
    if known is None:
        return f"**{label}** on {server}. {sentence}"
    return f"**{label}** on {server}; known: {_linked(known)}. {sentence}"


def _linked(finding: Finding) -> str:
    """The known failure, its issue as a link, and the release with the fix."""
    parts = [gfm.code(finding.known_name)]
    upstream = finding.upstream
    if upstream is not None and upstream.issue and upstream.url:
        parts.append(f"[{gfm.text(upstream.issue)}]({upstream.url})")
    if upstream is not None and upstream.fixed:
        parts.append(gfm.text(upstream.fixed))
    return ", ".join(parts)


def _of_finding(finding: Finding) -> Iterator[str]:
    kind = finding.finding_class.words.capitalize()
    rate = f"{finding.rate.failed} of {finding.rate.plays} replays"
    needed = f"{finding.requests} of {finding.requests_before} requests are needed"
    known = findings.known_as(finding)
    bucket = gfm.code(finding.bucket)
    yield f"{kind}; {rate}; {needed}; known as: {known}; bucket {bucket}."
    if finding.stack:
        yield gfm.fence("\n".join(finding.stack[:8]), "text", 10, 300)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
