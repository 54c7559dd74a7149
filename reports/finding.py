"""A finding's report: from ``replay.json`` and the finding's own folder, which holds
its case."""

from collections.abc import Iterator
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.base.units import duration
from mmrepro.failure.documents.finding import LoadedFinding, load
from mmrepro.failure.documents.replay import Finding, Replay
from mmrepro.reports import (
    blocks as b,
    findings,
    replay_sequence as drawn,
    words,
)
from mmrepro.reports.documents import HTML_FILE, MARKDOWN_FILE, ReportKind
from mmrepro.reports.replay_script import script, upstream_test
from mmrepro.traffic.case.model import CASE_FILE, SCRIPT_FILE, Case, Image
from mmrepro.traffic.case.typed import in_order, server_steps


def sequence_of(loaded: LoadedFinding) -> drawn.RequestSequence | None:
    """Its requests, drawn; None: it has none."""
    finding, case = loaded.finding, loaded.case
    if case is None or not case.operations:
        return None
    results = {id: findings.request_result(finding, id) for id in finding.observed}
    return drawn.sequence(case, results, finding.operations)


def steps_of(loaded: LoadedFinding) -> list[str]:
    """What a reader types to reproduce it, one command each."""
    if loaded.case is None:
        return []
    steps = server_steps(loaded.case, loaded.replay.settings, _project(loaded.replay))
    return [*steps, f"python3 {SCRIPT_FILE}"] if loaded.case.operations else steps


def script_of(loaded: LoadedFinding) -> str:
    """The text of ``reproduce.py``. Raises UsageError: a picture of the case is
    missing."""
    assert loaded.case is not None
    return script(
        loaded.finding,
        loaded.case,
        loaded.folder,
        settings=loaded.replay.settings,
        deadline_s=loaded.replay.deadline_s,
        project=_project(loaded.replay),
        stand_ins=loaded.replay.stand_ins,
    )


def upstream_test_of(loaded: LoadedFinding, checked: str = "") -> str:
    """The text of a test for the engine's own tree. Raises as ``upstream_test``, and
    UsageError: the finding has no case."""
    if loaded.case is None:
        raise UsageError(f"{loaded.finding.id} has no case that a test could send.")
    return upstream_test(
        loaded.finding,
        loaded.case,
        loaded.folder,
        settings=loaded.replay.settings,
        deadline_s=loaded.replay.deadline_s,
        checked=checked,
    )


def _project(replay: Replay) -> str:
    """The engine's name on the package index; empty: its own."""
    return replay.wheel.project if replay.wheel else ""


def compose(loaded: LoadedFinding) -> b.Page:
    """The page of one finding."""
    finding, replay = loaded.finding, loaded.replay
    confirmed = "confirmed" if finding.confirmed else "not confirmed"
    badge = b.Badge(
        finding.finding_class.value.capitalize(),
        findings.tone(finding),
        f"{finding.known_name or 'unknown'}, {confirmed}",
    )
    return b.Page(
        title=finding.title,
        badge=badge,
        subject=f"finding {finding.id} of {findings.source(replay)}",
        warning=b.Warning(replay.failure) if replay.failure else None,
        card=[*_card(finding)],
        counts=[findings.requests_words(finding), findings.rate_words(finding.rate)],
        commands=[*_commands(loaded)],
        sections=[*_sections(loaded)],
        footer=f"Finding {finding.id} of replay {replay.id}, "
        f"{replay.created.wall:%Y-%m-%d %H:%M:%S} UTC.",
    )


def _sections(loaded: LoadedFinding) -> Iterator[b.Section]:
    finding = loaded.finding
    yield b.Section("The sequence", [*_sequence(loaded)], 96)
    yield b.Section("Why each is needed", needed(loaded), 90)
    yield b.Section("Where it stands", [*_stack(finding)], 88)
    log = "\n".join(finding.log_lines)
    yield b.Section("The log", [b.Fence(log)] if finding.log_lines else [], 84)
    yield b.Section("Reproduce it", [*_reproduction(loaded)], 92)
    yield b.Section("Known or not", [*_known(finding)], 86)
    yield b.Section("How often", [*_rate(finding)], 80)
    listed = findings.ListedFinding(finding.id, finding)
    shrinking = [*findings.shrinking([listed]), *_steps(finding)]
    yield b.Section("Shrinking", shrinking, 30)
    yield from findings.context(loaded.replay, [], loaded.limits)


def _card(finding: Finding) -> Iterator[b.Block]:
    yield b.p(b.strong("Observed: "), words.sentence(finding.observation))
    yield b.p(b.strong("Expected: "), f"{finding.expectation}.")
    yield from (b.p(f"The same requests also show: {one}") for one in finding.also[:3])
    if finding.stack:
        yield findings.stack(finding)


def _stack(finding: Finding) -> Iterator[b.Block]:
    if len(finding.stack) > b.FRAMES:  # the card has no room for all of them
        yield findings.stack(finding, len(finding.stack))


def _commands(loaded: LoadedFinding) -> Iterator[tuple[str, str]]:
    if loaded.case is not None and loaded.case.operations:
        yield "to reproduce it, with its server up", f"python3 {SCRIPT_FILE}"
    if loaded.case is not None:
        yield "to repeat it on a fresh server", f"mmrepro replay {CASE_FILE}"
    yield "to fill in the engine's bug report", "mmrepro report . --format issue"


def _sequence(loaded: LoadedFinding) -> Iterator[b.Block]:
    sequence, case = sequence_of(loaded), loaded.case
    if sequence is None or case is None:
        return
    order = "by their barriers, some together"
    if in_order(case):
        order = "one after another"
    legend = f"Sent {order}; lengths say nothing about time. {drawn.LEGEND}."
    if sequence.hidden:
        legend += f" {sequence.hidden} more requests are not drawn."
    yield b.p(legend, tone="soft")
    yield b.Picture(drawn.picture(sequence), [b.Fence(drawn.drawing(sequence))])
    rows = []
    for lane in sequence.lanes:
        op = lane.operation
        row = b.row(
            b.code(op.id),
            lane.result,
            lane.shape,
            ", ".join(op.after) or "at once",
            f"at {op.leave}" if op.leave else "",
            tone="bad" if lane.fails else "",
            status=lane.kind,
        )
        rows.append(row)

    heads = "request:name | observed | what | sent after | client leaves"
    yield from b.counted("request", heads, rows)
    yield from _images(sequence, case)


def _images(sequence: drawn.RequestSequence, case: Case) -> list[b.Block]:
    """The mark of each image, and what it is; nothing where no request has one."""
    recipes = {name: _image_words(name, case) for name in sequence.letters}
    if not recipes:
        return []
    rows = []
    for name, letter in sequence.letters.items():
        rows.append((b.code(letter), recipes[name]))
    table = b.table("image:name | what", rows, "images")
    picture = b.Picture(drawn.images_picture(sequence, recipes), table)
    count = b.count(len(recipes), "image")
    return b.folded(count, [picture], open=len(recipes) <= 12)


def needed(loaded: LoadedFinding) -> list[b.Block]:
    """What the finding needs: the requests in their order, then the rest."""
    places = {}
    if loaded.case:
        for number, op in enumerate(loaded.case.operations):
            places[op.id] = number
    rest = len(places)
    parts = sorted(loaded.finding.needed, key=lambda part: places.get(part.what, rest))
    rows = []
    for part in parts:
        by = b.code(part.by) if part.by else "itself"
        rows.append((b.code(part.what), part.why, by))
    return b.table("needed:name | without it | argued by:name", rows, "what is needed")


def _reproduction(loaded: LoadedFinding) -> Iterator[b.Block]:
    if not (typed := steps_of(loaded)):
        return
    yield b.Fence("\n".join(typed), "sh")
    if loaded.case is not None and loaded.case.operations:
        needs = (
            " needs Python and nothing else, and talks to 127.0.0.1 only. Its "
            "requests are in "
        )
        yield b.p(
            b.link(SCRIPT_FILE, SCRIPT_FILE), needs, b.link(CASE_FILE, CASE_FILE), "."
        )


def _known(finding: Finding) -> Iterator[b.Block]:
    yield b.p(findings.known_words(finding))
    yield b.Facts(
        [("told apart from other failures by", b.code(finding.bucket))], "bucket"
    )


def _rate(finding: Finding) -> Iterator[b.Block]:
    yield b.p(f"{findings.rate_words(finding.rate)}. {findings.RATE_NOTE}")


def _steps(finding: Finding) -> list[b.Block]:
    rows = []
    for step in finding.steps:
        fails = b.toned("yes", "good") if step.kept else b.toned("no", "soft")
        cells = (
            step.what,
            fails,
            str(step.requests),
            f"{step.failed} of {step.plays}",
            step.why,
        )
        rows.append(b.row(*cells, status="still fails" if step.kept else "passes"))

    heads = "left out | still fails:name | requests:number | failed:number | why"
    shown = b.table(heads, rows, "steps of the shrinking")
    servers = f"{b.count(finding.starts, 'server')}, {duration(finding.seconds)}"
    return b.folded(
        f"{b.count(len(rows), 'step')}, {servers}", shown, open=len(rows) <= 12
    )


def _image_words(name: str, case: Case) -> str:
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
        "near": (
            f"{fields.get('of')} with "
            f"{b.count(fields.get('pixels') or 1, 'pixel')} changed"
        ),
        "resized": f"{fields.get('of')}, resized to {pixels}",
        "relayout": f"the tiles of {fields.get('of')} in {fields.get('rows')} rows × "
        f"{fields.get('columns')} columns",
        "collision": (
            f"member {fields.get('member')} of the family {fields.get('family')}"
        ),
    }
    return told[image.kind]


KIND: Final = ReportKind(
    "a finding",
    (MARKDOWN_FILE, HTML_FILE),
    load,
    compose,
    lambda loaded: loaded.finding,
)
