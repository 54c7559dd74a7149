"""An acceptance's report: ``summary.json`` as a page. It is published: no path of the
machine."""

from collections.abc import Iterator
from typing import Final

from mmrepro.base.records import GpuFacts
from mmrepro.base.units import duration, size
from mmrepro.failure.documents.acceptance import (
    SUMMARY_FILE,
    Acceptance,
    PartRecord,
    Row as Asked,
    Status,
    StepRecord,
    counts,
)
from mmrepro.reports import blocks as b, words
from mmrepro.reports.documents import kind

_WORDS: Final[dict[Status, tuple[str, b.Tone]]] = {
    Status.PASSED: ("✔ passed", "good"),
    Status.FAILED: ("✘ failed", "bad"),
    Status.NOT_TESTED: ("– not tested", "soft"),
    Status.BROKEN_OFF: ("? broken off", "unsure"),
}
_TROUBLE: Final = 4
"""Failed rows on the first screen."""


def compose(acceptance: Acceptance) -> b.Page:
    """The page of an acceptance."""
    rows = [row for part in acceptance.parts for row in part.rows]
    machine = "a CPU"
    if acceptance.device == "cuda":
        machine = ", ".join(acceptance.host.gpus) or "no GPU"
    commands = [("to repeat it", acceptance.command)]
    warning = None
    left = _left(acceptance)
    if left:
        commands.append(("to try what was not run to its end", acceptance.resume))
        warning = b.Warning(f"{b.count(left, 'step')} did not come to an end.")

    parts = b.count(len(acceptance.parts), "part")
    when = f"{acceptance.created.wall:%Y-%m-%d %H:%M:%S} UTC"
    made = f"{when}, made by mmrepro {acceptance.mmrepro_version} from "
    beside = "; each part has its own folder beside it."
    return b.Page(
        title=f"Acceptance on {machine}",
        badge=_badge(rows),
        subject=f"{parts} on {machine}: {counts(rows)}",
        warning=warning,
        card=[*_card(acceptance)],
        counts=[f"{duration(_seconds(acceptance))} in child processes"],
        commands=commands,
        sections=[
            *(b.Section(part.part, [*_part(part)], 90) for part in acceptance.parts),
            b.Section("Set-up", [b.Facts(_setup(acceptance))], 50),
        ],
        footer=(made, b.code(SUMMARY_FILE), beside),
    )


def _left(acceptance: Acceptance) -> int:
    """How many steps did not come to an end; a part without any counts as one."""
    left = 0
    for part in acceptance.parts:
        left += sum(not step.whole for step in part.steps)
        if not part.steps:
            left += 1
    return left


def _seconds(acceptance: Acceptance) -> float:
    return sum(part.seconds for part in acceptance.parts)


def _badge(rows: list[Asked]) -> b.Badge:
    statuses = {row.status for row in rows}
    if Status.FAILED in statuses:
        return b.Badge("Failed", "bad")
    if Status.PASSED not in statuses:
        return b.Badge("Not tested", "unsure")
    if Status.BROKEN_OFF in statuses:
        return b.Badge("Not whole", "unsure")
    return b.Badge("Passed", "good")


def _status(status: Status) -> b.Span:
    return b.toned(*_WORDS[status])


# --------------------------------------------------------------------- the first screen


def _card(acceptance: Acceptance) -> Iterator[b.Block]:
    failed = []
    broken_off = []
    parts = []
    for part in acceptance.parts:
        failed += [row for row in part.rows if row.status is Status.FAILED]
        broken_off += [row for row in part.rows if row.status is Status.BROKEN_OFF]
        name = b.link(part.part, f"#{b.slug(part.part)}")
        took = duration(part.seconds)
        parts.append((name, _status(part.status), counts(part.rows), took, part.title))
    trouble = []
    for row in (failed + broken_off)[:_TROUBLE]:
        trouble.append((b.toned(f"{row.asked}: ", "bad"), row.seen))
    yield from b.bullets(trouble)
    heads = "part:name | status:name | rows:name | time:number | shows that"
    yield from b.table(heads, parts, "parts")


# ----------------------------------------------------------------------------- sections


def _part(part: PartRecord) -> Iterator[b.Block]:
    """What did not pass, what passed, the GPUs' use and the commands."""
    yield b.p(f"Shows that {words.sentence(part.title)}")
    passed: list[b.Row] = []
    others: list[b.Row] = []
    commands = []
    for step in part.steps:
        for asked in step.rows:
            rows = passed if asked.status is Status.PASSED else others
            rows.append(_row(asked, step))
        if step.exit_code is not None:
            commands.append(_ran(step))

    heads = "status:name | observed | asked | expected | source | seconds:number"
    yield from b.table(heads, others, part.part)
    shown = b.table(heads, passed, part.part)
    yield from b.folded(f"{b.count(len(passed), 'row')} passed", shown)
    yield from b.folded("Use of the GPUs", _gpu_use(part))
    yield from b.bullets(commands)


def _gpu_use(part: PartRecord) -> list[b.Block]:
    rows = []
    for use in part.gpu:
        busy, held = use.utilisation_pct, use.memory_bytes
        share = f"{busy.least:.0f} to {busy.most:.0f} %" if busy else "unknown"
        memory = f"{size(held.least, 2)} to {size(held.most, 2)}" if held else "unknown"
        rows.append((use.step, str(use.gpu), str(use.readings), share, memory))
    heads = "step:name | GPU:number | readings:number | utilisation:name"
    return b.table(f"{heads} | memory in use:name", rows, "use of the GPUs")


def _row(asked: Asked, step: StepRecord) -> b.Row:
    # The step's time is a row's where it has no other.
    seconds = asked.seconds
    if seconds is None and len(step.rows) == 1:
        seconds = step.seconds
    return b.row(
        _status(asked.status),
        asked.seen,
        asked.asked,
        asked.expected,
        asked.source,
        f"{seconds:.1f}" if seconds else "–",
        status=asked.status.value,
    )


def _ran(step: StepRecord) -> b.Inline:
    command = (b.code(step.command), f", {duration(step.seconds)}")
    if not step.incident:
        return command
    report = f"{step.incident.partition('/')[2]}/report.md"
    return (*command, ": ", b.code(report, f"{step.incident}/report.html"))


def _setup(acceptance: Acceptance) -> list[tuple[str, b.Inline]]:
    host = acceptance.host
    gpus = [(f"GPU {gpu.index}", _gpu_facts(gpu)) for gpu in host.gpu_facts]
    took, budget = duration(_seconds(acceptance)), duration(acceptance.budget_s)
    return [
        ("device", acceptance.device),
        *gpus,
        ("machine", f"{host.cpu}, {host.cores} cores, {size(host.memory_bytes)}"),
        ("system", f"{host.os}, kernel {host.kernel}, Python {host.python}"),
        ("mmrepro", acceptance.mmrepro_version),
        ("begun", f"{acceptance.created.wall:%Y-%m-%d %H:%M} UTC"),
        ("time", f"{took} in children, budget {budget}"),
    ]


def _gpu_facts(gpu: GpuFacts) -> str:
    facts = [
        gpu.name,
        size(gpu.memory_bytes) if gpu.memory_bytes else "memory unknown",
        f"driver {gpu.driver}",
        f"CUDA {gpu.cuda}",
        "MIG" if gpu.mig else "",
        "taken" if gpu.taken else gpu.users or "not taken",
    ]
    return ", ".join(filter(None, facts))


KIND: Final = kind(Acceptance, SUMMARY_FILE, compose)
