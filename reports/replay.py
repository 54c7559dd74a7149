"""A replay's report: ``replay.json`` as a page, and all files of its folder."""

from pathlib import Path
from typing import Final

from mmrepro.base.units import duration
from mmrepro.failure.documents.replay import REPLAY_FILE, Replay, bucket_words
from mmrepro.failure.documents.stored import document_json, replace_file
from mmrepro.reports import blocks as b, documents, findings, repro, words
from mmrepro.reports.documents import kind
from mmrepro.traffic.case.model import SCRIPT_FILE, Origin

_TIME_WORDS: Final = {
    "fast": "as fast as the barriers allow",
    "real": "at the recording's own times",
    "order": "one after another",
}


def write_replay(replay: Replay, directory: Path) -> None:
    """``replay.json``, ``.md`` and ``.html``, and of each finding its script and its
    reports, each file whole or not at all."""
    from mmrepro.failure.documents.finding import finding_of
    from mmrepro.reports import finding as one

    replace_file(directory / REPLAY_FILE, document_json(replay))
    for found in replay.findings:
        loaded = finding_of(replay, found, directory)
        if loaded.folder is None or not loaded.folder.is_dir():
            continue
        if loaded.case is not None and loaded.case.operations:
            replace_file(loaded.folder / SCRIPT_FILE, one.script_of(loaded))
        documents.write(one.KIND, loaded, loaded.folder)

    documents.write(KIND, replay, directory)
    if replay.report is not None and replay.report.verdict is not None:
        replace_file(directory / repro.COMMENT_FILE, repro.comment(replay))


def compose(replay: Replay, folder: str = "") -> b.Page:
    """The page. ``folder``: the replay's, for its commands; empty: they are typed in
    it."""
    found = _listed(replay)
    nothing = "no oracle objects to this traffic"
    where = f"{findings.source(replay)} on {replay.server.label}"
    once = [
        (s.finding_class.value, s.said, s.expected or s.finding_class.expected)
        for s in replay.unconfirmed[:100]
    ]
    counted = findings.times(replay.counted)
    of_report = (
        repro.badge(replay.report) if replay.report and replay.finished else None
    )
    refused = b.Badge("Nothing tested", "unsure", replay.nothing_tested)
    plain = findings.badge(replay, replay.findings, nothing)
    if replay.nothing_tested and replay.state == "complete":
        plain = refused
    return b.Page(
        title=f"Replay of {where}",
        badge=of_report or plain,
        subject=where,
        warning=b.broken_off(replay.failure, began=bool(replay.plays)),
        card=[*_untestable(replay), *findings.card(found), *repro.card(replay)],
        counts=[
            *findings.counts(replay.findings, len(replay.unconfirmed)),
            f"{_starts(replay)} of at most {replay.budget} servers started",
            duration(seconds(replay)),
        ],
        commands=[
            *repro.commands(replay, folder),
            *findings.commands(replay, found, folder),
        ],
        sections=[
            *repro.sections(replay),
            b.Section("Shrinking", findings.shrinking(found), 80),
            findings.findings_section(found),
            b.Section(
                "Observed once, not again",
                b.table("class:name | observed | expected", once, "observed once"),
                85,
            ),
            b.Section("Counted, not reported", [b.p(counted)] if counted else [], 50),
            b.Section("Not testable here", b.bullets(replay.untestable), 95),
            b.Section("What could not be judged", b.bullets(replay.unseen), 75),
            b.Section("The traffic", b.bullets(origin(replay.origin)), 55),
            b.Section("Attempts", _attempts(replay), 30),
            *findings.context(replay, _setup(replay), replay.limits),
        ],
        footer=words.footer(
            f"Replay {replay.id}",
            replay.created,
            REPLAY_FILE,
            "each finding has a folder of its own",
        ),
    )


def _untestable(replay: Replay) -> list[b.Block]:
    """What failed for this machine's limits; a report's verdict says it itself."""
    return [] if replay.report else [b.p(one) for one in replay.untestable[:3]]


def _listed(replay: Replay) -> list[findings.ListedFinding]:
    return [findings.ListedFinding(one.id, one, one.folder) for one in replay.findings]


def _starts(replay: Replay) -> int:
    """Servers that were started; an attempt that counts for nothing may have had one as
    well."""
    return len(replay.plays)


def seconds(replay: Replay) -> float:
    """That it took, with those of the attempts that an earlier call had made."""
    if replay.finished is None:
        return sum(play.seconds for play in replay.plays)
    return replay.kept_s + max(
        0.0, (replay.finished.wall - replay.created.wall).total_seconds()
    )


def origin(found: Origin, *, changed: bool = False) -> list[str]:
    """Sentences on what was read, left out and changed; ``changed``: on the latter two
    alone."""
    told = []
    if found.read and not changed:
        read = "1 entry" if found.read == 1 else f"{found.read} entries"
        told.append(f"{read} read from {found.format}.")

    if found.left_out:
        told.append(f"Left out: {findings.times(found.left_out)}.")
    if found.dropped:
        told.append(f"Never kept: {findings.times(found.dropped)}.")
    if found.anonymised:
        told.append(
            "Texts and images are random ones of the same lengths and the same sharing."
        )

    if found.scaled:
        told.append("Lengths are scaled to the model's limits.")
    return told + list(found.notes)


def _attempts(replay: Replay) -> list[b.Block]:
    rows = []
    for play in replay.plays:
        what = (
            str(play.number),
            play.what,
            str(play.requests),
            play.error or play.state,
        )
        took = (duration(play.start_s), duration(play.seconds))
        status = "error" if play.error else play.state
        rows.append(b.row(*what, bucket_words(play.buckets), *took, status=status))

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
