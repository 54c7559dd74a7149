"""A replay's reports, from its folder alone: Markdown and HTML for it and for each finding."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from mmrepro.base.units import duration
from mmrepro.case.files import read_case
from mmrepro.case.model import CASE_FILE, Case
from mmrepro.errors import BadIncident, UsageError
from mmrepro.incident import StandIn
from mmrepro.incident.replay import REPLAY_FILE, REPLAY_VERSION, Finding, Needed, Replay
from mmrepro.machine.files import is_file, is_folder
from mmrepro.reports import gfm, replay_sequence as drawn, replay_view as view
from mmrepro.reports.bundle_file import holds, is_bundle, read_listed
from mmrepro.reports.document import document_json, load_document, read_document
from mmrepro.reports.html import page
from mmrepro.reports.replay_script import SCRIPT_FILE, in_order, script, server_steps
from mmrepro.reports.writing import HTML_FILE, MARKDOWN_FILE, replace_file

REPLAY_MARKDOWN: Final = "replay.md"
REPLAY_HTML: Final = "replay.html"


@dataclass(frozen=True)
class Told:
    """A finding with all that is told of it: the replay it is of, and its case if that is there."""

    replay: Replay
    finding: Finding
    case: Case | None
    folder: Path | None = None

    @cached_property
    def sequence(self) -> drawn.Sequence | None:
        if self.case is None or not self.case.operations:
            return None
        return drawn.sequence(self.case, self.observed, self.finding.operations)

    @property
    def observed(self) -> dict[str, str]:
        return {id: view.observed(self.finding, id) for id in self.finding.observed}

    @property
    def needed(self) -> list[Needed]:
        """What the finding needs: the requests in their order, then the rest."""
        order = [op.id for op in self.case.operations] if self.case else []
        place = {id: number for number, id in enumerate(order)}
        return sorted(self.finding.needed, key=lambda one: place.get(one.what, len(place)))

    @property
    def images(self) -> list[tuple[str, str, str]]:
        """Letter, name and recipe of each image."""
        if self.case is None or self.sequence is None:
            return []
        return [(s, n, view.image_words(n, self.case)) for n, s in self.sequence.letters.items()]

    @property
    def steps(self) -> list[str]:
        """What a reader types, one command each."""
        if self.case is None:
            return []
        steps = server_steps(self.case, self.replay.settings, project(self.replay))
        return [*steps, f"python3 {SCRIPT_FILE}"] if self.case.operations else steps

    @property
    def how_sent(self) -> str:
        if self.case is None:
            return ""
        return "one after another" if in_order(self.case) else "by their barriers, some together"


# ---------------------------------------------------------------------- reading and writing


def load_replay(directory: Path) -> Replay:
    """The replay kept in ``directory``, or in a bundle. Raises BadIncident and says why."""
    if is_bundle(directory):
        return read_document(
            read_listed(directory, REPLAY_FILE), directory, Replay, "replay", REPLAY_VERSION
        )
    return load_document(directory, REPLAY_FILE, Replay, "replay", REPLAY_VERSION)


def load_finding(folder: Path) -> Told:
    """The finding in ``folder``, a finding's own. Raises BadIncident: there is none."""
    whole = Path(os.path.realpath(folder))  # Path.resolve raises where links go in a circle
    folder = whole if is_folder(whole) else whole.parent
    for above in folder.parents:
        if is_file(above / REPLAY_FILE):
            replay = load_replay(above)
            for finding in replay.findings:
                if finding.folder and (above / finding.folder).resolve() == folder:
                    return told_of(replay, finding, above)
            break
    raise BadIncident(
        f"{folder} is no finding of a replay: no {REPLAY_FILE} above it names it",
        hint="give the folder of a finding, e.g. replays/…/f1",
    )


def is_replay(place: Path) -> bool:
    """A replay's folder, its ``replay.json``, or a bundle of it."""
    kept = place.name == REPLAY_FILE or is_file(place / REPLAY_FILE)
    return kept or holds(place, REPLAY_FILE)


def is_finding(folder: Path) -> bool:
    """A folder with a case, directly below that of a replay."""
    return is_file(folder / CASE_FILE) and is_file(folder.resolve().parent / REPLAY_FILE)


def told_of(replay: Replay, finding: Finding, directory: Path) -> Told:
    folder = directory / finding.folder
    if not finding.folder or folder.is_symlink():  # a link leads out of the replay
        return Told(replay, finding, None)
    try:
        case, _ = read_case(folder)
    except UsageError:  # a replay that was cut short has none yet
        return Told(replay, finding, None, folder)
    return Told(replay, finding, case, folder)


def write_replay(replay: Replay, directory: Path) -> None:
    """``replay.json``, ``.md`` and ``.html``, and of each finding its script and its reports,
    each file whole or not at all."""
    replace_file(directory / REPLAY_FILE, document_json(replay))
    for finding in replay.findings:
        told = told_of(replay, finding, directory)
        if told.folder is None or not told.folder.is_dir():
            continue
        if told.case is not None and told.case.operations:
            replace_file(told.folder / SCRIPT_FILE, script_of(told))
        replace_file(told.folder / MARKDOWN_FILE, finding_markdown(told))
        replace_file(told.folder / HTML_FILE, finding_html(told))
    replace_file(directory / REPLAY_MARKDOWN, replay_markdown(replay))
    replace_file(directory / REPLAY_HTML, replay_html(replay))


def script_of(told: Told) -> str:
    """Raises UsageError: a picture of the case is missing."""
    assert told.case is not None
    return script(
        told.finding,
        told.case,
        told.folder,
        settings=told.replay.settings,
        deadline_s=told.replay.deadline_s,
        project=project(told.replay),
    )


def project(replay: Replay) -> str:
    """The engine's name on the package index; empty: its own."""
    return replay.wheel.project if replay.wheel else ""


# ---------------------------------------------------------------------- the whole replay


def replay_html(replay: Replay) -> str:
    return page("replay.html.j2", replay=replay, view=view, head=view.headline(replay))


def replay_markdown(replay: Replay) -> str:
    sections = [
        ("", _head(replay)),
        ("What was found", finding_rows(view.rows(replay))),
        ("Seen once, not again", _unconfirmed(replay)),
        ("Counted, not reported", gfm.paragraph(view.counts(replay.counted))),
        ("What could not be judged", lines(replay.unseen)),
        ("The traffic", lines(view.origin(replay))),
        ("Plays", _plays(replay)),
        ("Limits", lines(replay.limits)),
        ("Stand-ins", stand_ins(replay.stand_ins)),
        ("Repeat it", gfm.fence(replay.command, "sh", 4, 4000)),
        ("Set-up", labelled(view.setup(replay))),
    ]
    return document(sections)


def document(sections: list[tuple[str, str]]) -> str:
    parts = [f"## {title}\n\n{body}" if title else body for title, body in sections if body]
    return "\n\n".join(parts) + "\n"


def _head(replay: Replay) -> str:
    return opening(view.title(replay), view.headline(replay), replay.failure)


def opening(title: str, head: view.Headline, failure: str) -> str:
    parts = [f"# {gfm.text(title, 300)}"]
    if failure:
        parts.append(f"> [!WARNING]\n> Partial: {gfm.text(failure, 600)}")
    parts.append(f"**{head.label}**: {gfm.text(head.said)}.")
    return "\n\n".join(parts)


def finding_rows(told: list[view.Row]) -> str:
    """The table of findings; those of a fuzzing session have a column more."""
    after = any(row.after for row in told)
    rows = []
    for row in told:
        name = f"{row.id}: {row.name}"
        rows.append(
            [
                f"[{gfm.text(name)}]({row.folder}/{MARKDOWN_FILE})"
                if row.folder
                else gfm.cell(name),
                gfm.cell(view.said(row.finding)),
                gfm.cell(row.known),
                row.state,
                gfm.cell(row.requests),
                gfm.cell(row.rate),
                *[gfm.cell(row.after)] * after,
            ]
        )
    head = ["finding", "observed", "known", "", "requests", "rate", *["first seen"] * after]
    return gfm.table(head, rows) if rows else ""


def labelled(told: list[tuple[str, str]]) -> str:
    return gfm.table(["", ""], [[label, gfm.cell(value)] for label, value in told])


def _unconfirmed(replay: Replay) -> str:
    rows = [
        [s.finding_class.value, gfm.cell(s.said), gfm.cell(s.expected)] for s in replay.unconfirmed
    ]
    return gfm.table(["class", "observed", "expected"], rows) if rows else ""


def _plays(replay: Replay) -> str:
    rows = [
        [
            str(play.number),
            gfm.cell(play.what),
            str(play.requests),
            gfm.cell(play.error or play.state),
            gfm.cell(view.shown(play.buckets)),
            duration(play.start_s),
            duration(play.seconds),
        ]
        for play in replay.plays
    ]
    head = ["", "for", "requests", "ended", "showed", "start", "took"]
    return gfm.table(head, rows) if rows else ""


def lines(texts: list[str]) -> str:
    return "\n".join(f"- {gfm.paragraph(text.rstrip('.'))}." for text in texts)


def stand_ins(told: list[StandIn]) -> str:
    rows = [[gfm.cell(s.name), gfm.cell(s.replaces), gfm.cell(s.why)] for s in told]
    return gfm.table(["stand-in", "replaces", "why"], rows) if rows else ""


# ---------------------------------------------------------------------- one finding


def finding_html(told: Told) -> str:
    return page(
        "replay_finding.html.j2",
        told=told,
        finding=told.finding,
        replay=told.replay,
        view=view,
        head=view.finding_headline(told.finding),
        picture=drawn.picture(told.sequence) if told.sequence else "",
        thumbnails=drawn.thumbnails(told.sequence) if told.sequence else {},
        legend=drawn.LEGEND,
        shape=drawn.request_shape,
        script=SCRIPT_FILE,
    )


def finding_markdown(told: Told) -> str:
    finding, replay = told.finding, told.replay
    sections = [
        ("", _finding_head(told)),
        ("The sequence", sequence_markdown(told)),
        ("Why each is needed", needed(told)),
        ("How often", rate(finding)),
        ("Known or not", known(finding)),
        ("Where it stands", gfm.fence("\n".join(finding.stack), "text", 40) * bool(finding.stack)),
        ("The log", gfm.fence("\n".join(finding.log_lines), "text", 30) * bool(finding.log_lines)),
        ("Reproduce it", reproduction(told)),
        ("What was tried", steps(finding)),
        ("Limits", lines(list(dict.fromkeys([*finding.limits, *replay.limits])))),
        ("Stand-ins", stand_ins(replay.stand_ins)),
        ("Set-up", labelled(view.setup(replay))),
    ]
    return document(sections)


def _finding_head(told: Told) -> str:
    finding = told.finding
    rows = [
        ["observed", gfm.cell(view.said(finding))],
        ["expected", gfm.cell(view.expected(finding))],
        *(["also", gfm.cell(one)] for one in finding.also),
        ["known", gfm.cell(view.known_name(finding) or "no")],
        ["requests", gfm.cell(view.requests_words(finding))],
        ["rate", gfm.cell(view.rate_words(finding.rate))],
        ["bucket", gfm.code(finding.bucket)],
    ]
    title = f"# {gfm.text(view.finding_title(finding), 300)}"
    return f"{title}\n\n**{finding.finding_class}**, {view.standing(finding)}.\n\n" + gfm.table(
        ["", ""], rows
    )


def sequence_markdown(told: Told) -> str:
    if told.sequence is None:
        return ""
    parts = [
        f"Sent {told.how_sent}; lengths say nothing of time. {drawn.LEGEND}.",
        gfm.fence(drawn.drawing(told.sequence), "text", drawn.MAX_LANES + 2, 240),
    ]
    assert told.case is not None
    rows = [
        [
            gfm.code(lane.operation.id),
            gfm.cell(lane.shape),
            gfm.cell(", ".join(lane.operation.after) or "at once"),
            gfm.cell(f"at {lane.operation.leave}" if lane.operation.leave else ""),
            gfm.cell(lane.told),
        ]
        for lane in told.sequence.lanes
    ]
    parts.append(gfm.table(["request", "what", "sent after", "client leaves", "observed"], rows))
    if told.images:
        rows = [[gfm.code(s), gfm.cell(what)] for s, _, what in told.images]
        parts.append(gfm.table(["image", "what"], rows))
    return "\n\n".join(parts)


def needed(told: Told) -> str:
    rows = [[gfm.code(n.what), gfm.cell(n.why), gfm.code(n.by) or "itself"] for n in told.needed]
    return gfm.table(["needed", "without it", "argued by"], rows) if rows else ""


def rate(finding: Finding) -> str:
    return f"{gfm.paragraph(view.rate_words(finding.rate))}; {view.RATE_NOTE}."


def known(finding: Finding) -> str:
    if not finding.known:
        return f"{gfm.paragraph(view.unknown_why(finding))}."
    name = gfm.code(view.known_name(finding))
    return f"{name}: {gfm.text(finding.known_why.rstrip('.'))}." if finding.known_why else name


def reproduction(told: Told) -> str:
    return gfm.fence("\n".join(told.steps), "sh", 12, 4000) if told.steps else ""


def steps(finding: Finding) -> str:
    rows = [
        [
            gfm.cell(step.what),
            "yes" if step.kept else "no",
            str(step.requests),
            f"{step.failed} of {step.plays}",
            gfm.cell(step.why),
        ]
        for step in finding.steps
    ]
    head = ["left out", "still fails", "requests", "failed", "why"]
    return gfm.table(head, rows) if rows else ""
