"""A finding's report: from ``replay.json`` and the finding's own folder, which holds
its case."""

from collections.abc import Iterator
from typing import Any, Final

from mmrepro.base.errors import UsageError
from mmrepro.base.units import duration
from mmrepro.failure.documents import LoadedFinding, load_finding
from mmrepro.failure.documents.replay import Finding, Replay
from mmrepro.reports import (
    blocks as b,
    findings,
    replay_sequence as drawn,
    words,
)
from mmrepro.reports.documents import HTML_FILE, MARKDOWN_FILE, ReportKind
from mmrepro.reports.replay_script import script, upstream_test
from mmrepro.traffic.case import (
    CASE_FILE,
    SCRIPT_FILE,
    Case,
    Image,
    in_order,
    server_steps,
)


def sequence_of(loaded: LoadedFinding) -> drawn.RequestSequence | None:
    """Its requests, drawn; None: it has none."""
    finding = loaded.finding
    case = loaded.case
    if case is None or not case.operations:
        return None
    results = {}
    for operation in finding.observed:
        results[operation] = findings.request_result(finding, operation)

    return drawn.sequence(case, results, finding.operations)


def steps_of(loaded: LoadedFinding) -> list[str]:
    """What a reader types to reproduce it, one command each."""
    if loaded.case is None:
        return []
    project = _project(loaded.replay)
    steps = server_steps(loaded.case, loaded.replay.settings, project)
    if loaded.case.operations:
        return [*steps, f"python3 {SCRIPT_FILE}"]
    return steps


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
    finding = loaded.finding
    replay = loaded.replay
    when = f"{replay.created.wall:%Y-%m-%d %H:%M:%S} UTC"
    return b.Page(
        title=finding.title,
        badge=_badge(finding),
        subject=f"finding {finding.id} of {findings.source(replay)}",
        warning=b.Warning(replay.failure) if replay.failure else None,
        card=[*_card(finding)],
        counts=[findings.requests_words(finding), findings.rate_words(finding.rate)],
        commands=[*_commands(loaded)],
        sections=[*_sections(loaded)],
        footer=f"Finding {finding.id} of replay {replay.id}, {when}.",
    )


def _badge(finding: Finding) -> b.Badge:
    confirmed = "confirmed" if finding.confirmed else "not confirmed"
    return b.Badge(
        label=finding.finding_class.value.capitalize(),
        tone=findings.tone(finding),
        note=f"{findings.known_as(finding)}, {confirmed}",
    )


def _sections(loaded: LoadedFinding) -> Iterator[b.Section]:
    finding = loaded.finding
    yield b.Section("The sequence", [*_sequence(loaded)], keep=96)
    yield b.Section("Why each is needed", needed(loaded), keep=90)
    yield b.Section("Where it stands", [*_stack(finding)], keep=88)
    yield b.Section("The log", _log(finding), keep=84)
    yield b.Section("Reproduce it", [*_reproduction(loaded)], keep=92)
    yield b.Section("Known or not", [*_known(finding)], keep=86)
    yield b.Section("How often", [*_rate(finding)], keep=80)

    listed = findings.ListedFinding(finding.id, finding)
    shrinking = [*findings.shrinking([listed]), *_steps(finding)]
    yield b.Section("Shrinking", shrinking, keep=30)
    yield from findings.context(loaded.replay, [], loaded.limits)


def _log(finding: Finding) -> list[b.Block]:
    return [b.Fence("\n".join(finding.log_lines))] if finding.log_lines else []


def _card(finding: Finding) -> Iterator[b.Block]:
    yield b.p(b.strong("Observed: "), words.sentence(finding.observation))
    yield b.p(b.strong("Expected: "), f"{finding.expectation}.")
    for observation in finding.also[:3]:
        yield b.p(f"The same requests also show: {observation}")
    yield from findings.gone_without(finding)
    if finding.stack:
        yield findings.stack(finding)


def _stack(finding: Finding) -> Iterator[b.Block]:
    # The card has no room for all of them.
    if len(finding.stack) > b.FRAMES:
        yield findings.stack(finding, len(finding.stack))


def _commands(loaded: LoadedFinding) -> Iterator[tuple[str, str]]:
    if loaded.case is not None and loaded.case.operations:
        yield "to reproduce it, with its server up", f"python3 {SCRIPT_FILE}"
    if loaded.case is not None:
        yield "run again on a fresh server", f"mmrepro replay {CASE_FILE}"
    yield "to fill in the engine's bug report", "mmrepro report . --format issue"


def _sequence(loaded: LoadedFinding) -> Iterator[b.Block]:
    sequence = sequence_of(loaded)
    case = loaded.case
    if sequence is None or case is None:
        return
    order = "by their barriers, some together"
    if in_order(case):
        order = "one after another"
    legend = f"Sent {order}; lengths say nothing about time. {drawn.LEGEND}."
    if sequence.hidden:
        legend += f" {sequence.hidden} more requests are not drawn."
    yield b.p(legend, tone="soft")

    as_text = b.Fence(drawn.drawing(sequence))
    yield b.Picture(drawn.picture(sequence), [as_text])
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
    typed = steps_of(loaded)
    if not typed:
        return
    yield b.Fence("\n".join(typed), "sh")
    if loaded.case is not None and loaded.case.operations:
        needs = (
            " needs Python and nothing else, and talks to 127.0.0.1 only. Its "
            "requests are in "
        )
        script = b.link(SCRIPT_FILE, SCRIPT_FILE)
        case = b.link(CASE_FILE, CASE_FILE)
        yield b.p(script, needs, case, ".")


def _known(finding: Finding) -> Iterator[b.Block]:
    yield b.p(findings.known_words(finding))
    bucket = ("told apart from other failures by", b.code(finding.bucket))
    yield b.Facts([bucket], "bucket")


def _rate(finding: Finding) -> Iterator[b.Block]:
    yield b.p(f"{findings.rate_words(finding.rate)}. {findings.RATE_NOTE}")


def _steps(finding: Finding) -> list[b.Block]:
    rows = []
    for step in finding.steps:
        row = b.row(
            step.what,
            b.toned("yes", "good") if step.kept else b.toned("no", "soft"),
            str(step.requests),
            f"{step.failed} of {step.plays}",
            step.why,
            status="still fails" if step.kept else "passes",
        )
        rows.append(row)

    heads = "left out | still fails:name | requests:number | failed:number | why"
    shown = b.table(heads, rows, "steps of the shrinking")
    servers = f"{b.count(finding.starts, 'server')}, {duration(finding.seconds)}"
    title = f"{b.count(len(rows), 'step')}, {servers}"
    return b.folded(title, shown, open=len(rows) <= 12)


def _image_words(name: str, case: Case) -> str:
    """What an image is, by its recipe."""
    image: Image = case.images[name]
    # A recipe has the fields of its kind alone.
    fields: dict[str, Any] = image.model_dump()
    size = fields.get("size")
    pixels = f"{size[0]} × {size[1]}" if size else ""
    digest = str(fields.get("sha256", ""))[:12]
    seed = f"seed {fields.get('seed')}"
    rows = f"{fields.get('rows')} rows ×"
    columns = f"{fields.get('columns')} columns"
    of = fields.get("of")
    changed = b.count(fields.get("pixels") or 1, "pixel")
    family = f"the family {fields.get('family')}"
    descriptions = {
        "content": f"picture {digest}",
        "noise": f"noise, {seed}, {pixels}",
        "tiles": f"tiles, {seed}, {rows} {columns}",
        "solid": f"one colour {fields.get('colour')}, {pixels}",
        "near": f"{of} with {changed} changed",
        "resized": f"{of}, resized to {pixels}",
        "relayout": f"the tiles of {of} in {rows} {columns}",
        "collision": f"member {fields.get('member')} of {family}",
    }
    return descriptions[image.kind]


KIND: Final = ReportKind(
    name="a finding",
    files=(MARKDOWN_FILE, HTML_FILE),
    load=load_finding,
    compose=compose,
    stored=lambda loaded: loaded.finding,
)
