"""A replay's report: ``replay.json`` as a page, and all files of its folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from mmrepro.base.units import duration
from mmrepro.failure.documents import document_json, replace_file
from mmrepro.failure.documents.replay import REPLAY_FILE, Replay, bucket_words
from mmrepro.reports import blocks as b, documents, findings, repro, words
from mmrepro.reports.documents import kind
from mmrepro.traffic.case import SCRIPT_FILE, Origin

_TIME_WORDS: Final = {
    "fast": "as fast as the barriers allow",
    "real": "at the recording's own times",
    "order": "one after another",
}


def write_replay(replay: Replay, directory: Path) -> None:
    """``replay.json``, ``.md`` and ``.html``, and of each finding its script and its
    reports, each file whole or not at all."""
    from mmrepro.failure.documents import finding_of
    from mmrepro.reports import finding as of_finding

    replace_file(directory / REPLAY_FILE, document_json(replay))
    for finding in replay.findings:
        loaded = finding_of(replay, finding, directory)
        if loaded.folder is None or not loaded.folder.is_dir():
            continue
        if loaded.case is not None and loaded.case.operations:
            script = of_finding.script_of(loaded)
            replace_file(loaded.folder / SCRIPT_FILE, script)
        documents.write(of_finding.KIND, loaded, loaded.folder)

    documents.write(KIND, replay, directory)
    if replay.report is not None and replay.report.verdict is not None:
        replace_file(directory / repro.COMMENT_FILE, repro.comment(replay, directory))


def compose(replay: Replay, folder: str = "") -> b.Page:
    """The page. ``folder``: the replay's, for its commands; empty: they are typed in
    it."""
    listed = _listed(replay)
    where = f"{findings.source(replay)} on {replay.server.label}"
    return b.Page(
        title=f"Replay of {where}",
        badge=_badge(replay),
        subject=where,
        warning=b.broken_off(replay.failure, began=bool(replay.plays)),
        card=[*_untestable(replay), *findings.card(listed), *repro.card(replay)],
        counts=[
            *findings.counts(replay.findings, len(replay.unconfirmed)),
            f"{_starts(replay)} of at most {replay.budget} servers started",
            duration(seconds(replay)),
        ],
        commands=[
            *repro.commands(replay, folder),
            *findings.commands(replay, listed, folder),
        ],
        sections=[*_sections(replay, listed)],
        footer=words.footer(
            f"Replay {replay.id}",
            replay.created,
            REPLAY_FILE,
            "each finding has a folder of its own",
        ),
    )


def _badge(replay: Replay) -> b.Badge:
    """The verdict on the bug report, where it is one that was replayed; else what was
    found."""
    if replay.report and replay.finished:
        of_report = repro.badge(replay)
        if of_report:
            return of_report
    if replay.nothing_tested and replay.state == "complete":
        return b.Badge("Nothing tested", "unsure", note=replay.nothing_tested)
    nothing = "every check passed"
    return findings.badge(replay, replay.findings, nothing)


def _sections(
    replay: Replay, listed: Sequence[findings.ListedFinding]
) -> Iterator[b.Section]:
    once = []
    for sighting in replay.unconfirmed[:100]:
        expected = sighting.expected or sighting.finding_class.expected
        once.append((sighting.finding_class.value, sighting.said, expected))

    unconfirmed = b.table("class:name | observed | expected", once, "observed once")
    counted = findings.times(replay.counted)
    yield from repro.sections(replay)
    yield b.Section("Shrinking", findings.shrinking(listed), keep=80)
    yield findings.findings_section(listed)
    yield b.Section("Observed once, not again", unconfirmed, keep=85)
    yield b.Section("Counted, not reported", [b.p(counted)] if counted else [], keep=50)
    yield b.Section("Not testable here", b.bullets(replay.untestable), keep=95)
    yield b.Section("What could not be judged", b.bullets(replay.unseen), keep=75)
    yield b.Section("The traffic", b.bullets(origin(replay.origin)), keep=55)
    yield b.Section("Attempts", _attempts(replay), keep=30)
    yield from findings.context(replay, _setup(replay), replay.limits)


def _untestable(replay: Replay) -> list[b.Block]:
    """What failed for this machine's limits; a report's verdict says it itself."""
    if replay.report:
        return []
    return [b.p(text) for text in replay.untestable[:3]]


def _listed(replay: Replay) -> list[findings.ListedFinding]:
    listed = []
    for finding in replay.findings:
        listed.append(findings.ListedFinding(finding.id, finding, finding.folder))

    return listed


def _starts(replay: Replay) -> int:
    """Servers that were started; an attempt that counts for nothing may have had one as
    well."""
    return len(replay.plays)


def seconds(replay: Replay) -> float:
    """Seconds that it took, with those of the attempts that an earlier call had
    made."""
    if replay.finished is None:
        return sum(play.seconds for play in replay.plays)
    took = (replay.finished.wall - replay.created.wall).total_seconds()
    # A clock that was set back must not shorten what was kept.
    return replay.kept_s + max(0.0, took)


def origin(found: Origin, *, changed: bool = False) -> list[str]:
    """Sentences on what was read, left out and changed; ``changed``: on the latter two
    alone."""
    sentences = []
    if found.read and not changed:
        read = "1 entry" if found.read == 1 else f"{found.read} entries"
        sentences.append(f"{read} read from {found.format}.")

    if found.left_out:
        sentences.append(f"Left out: {findings.times(found.left_out)}.")
    if found.dropped:
        sentences.append(f"Never kept: {findings.times(found.dropped)}.")
    if found.anonymised:
        sentences.append(
            "Texts and images are random ones of the same lengths and the same sharing."
        )

    if found.scaled:
        sentences.append("Lengths are scaled to the model's limits.")
    return sentences + list(found.notes)


def _attempts(replay: Replay) -> list[b.Block]:
    rows = []
    for play in replay.plays:
        row = b.row(
            str(play.number),
            play.what,
            str(play.requests),
            play.error or play.state,
            bucket_words(play.buckets),
            duration(play.start_s),
            duration(play.seconds),
            status="error" if play.error else play.state,
        )
        rows.append(row)

    heads = (
        "attempt:number | for | requests:number | ended | showed | "
        "start:number | took:number"
    )
    return b.counted("attempt", heads, rows)


def _setup(replay: Replay) -> list[tuple[str, str]]:
    return [
        ("time", _TIME_WORDS[replay.time]),
        ("deadline", findings.deadline(replay)),
        ("servers started", f"{_starts(replay)} of at most {replay.budget}"),
        ("took", duration(seconds(replay))),
    ]


KIND: Final = kind(Replay, REPLAY_FILE, compose, compose_at=compose)
