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
    rows = [row for part in acceptance.parts for row in part.rows]
    left = sum(not step.whole for part in acceptance.parts for step in part.steps)
    left += sum(not part.steps for part in acceptance.parts)
    where = ", ".join(acceptance.host.gpus) or "no GPU"
    machine = where if acceptance.device == "cuda" else "a CPU"
    commands = [("to repeat it", acceptance.command)]
    if left:
        commands.append(("to try what was not run to its end", acceptance.resume))
    return b.Page(
        title=f"Acceptance on {machine}",
        badge=_badge(rows),
        subject=(
            f"{b.count(len(acceptance.parts), 'part')} on {machine}: {counts(rows)}"
        ),
        warning=b.Warning(f"{b.count(left, 'step')} did not come to an end.")
        if left
        else None,
        card=[*_card(acceptance)],
        counts=[
            (
                f"{duration(sum(part.seconds for part in acceptance.parts))} in child "
                "processes"
            )
        ],
        commands=commands,
        sections=[
            *(b.Section(part.part, [*_part(part)], 90) for part in acceptance.parts),
            b.Section("Set-up", [b.Facts(_setup(acceptance))], 50),
        ],
        footer=(
            f"{acceptance.created.wall:%Y-%m-%d %H:%M:%S} UTC, made by mmrepro "
            f"{acceptance.mmrepro_version} from ",
            b.code(SUMMARY_FILE),
            "; each part has its own folder beside it.",
        ),
    )


def _badge(rows: list[Asked]) -> b.Badge:
    found = {row.status for row in rows}
    if Status.FAILED in found:
        return b.Badge("Failed", "bad")
    if Status.PASSED not in found:
        return b.Badge("Not tested", "unsure")
    return (
        b.Badge("Not whole", "unsure")
        if Status.BROKEN_OFF in found
        else b.Badge("Passed", "good")
    )


def _status(status: Status) -> b.Span:
    return b.toned(*_WORDS[status])


# --------------------------------------------------------------------- the first screen


def _card(acceptance: Acceptance) -> Iterator[b.Block]:
    every = [row for part in acceptance.parts for row in part.rows]
    bad = [
        r for s in (Status.FAILED, Status.BROKEN_OFF) for r in every if r.status is s
    ]
    yield from b.bullets(
        [(b.toned(f"{r.asked}: ", "bad"), r.seen) for r in bad[:_TROUBLE]]
    )
    rows = []
    for part in acceptance.parts:
        name, status = b.link(part.part, f"#{b.slug(part.part)}"), _status(part.status)
        rows.append(
            (name, status, counts(part.rows), duration(part.seconds), part.title)
        )

    heads = "part:name | status:name | rows:name | time:number | shows that"
    yield from b.table(heads, rows, "parts")


# ----------------------------------------------------------------------------- sections


def _part(part: PartRecord) -> Iterator[b.Block]:
    """What did not pass, what passed, the GPUs' use and the commands."""
    yield b.p(f"Shows that {words.sentence(part.title)}")
    for passed in (False, True):
        rows = [
            _row(row, step)
            for step in part.steps
            for row in step.rows
            if (row.status is Status.PASSED) is passed
        ]
        names = "status:name | observed | asked | expected | source | seconds:number"
        shown = b.table(names, rows, part.part)
        yield from (
            b.folded(f"{b.count(len(rows), 'row')} passed", shown) if passed else shown
        )

    uses = []
    for use in part.gpu:
        busy, held = use.utilisation_pct, use.memory_bytes
        share = f"{busy.least:.0f} to {busy.most:.0f} %" if busy else "unknown"
        memory = f"{size(held.least, 2)} to {size(held.most, 2)}" if held else "unknown"
        uses.append((use.step, str(use.gpu), str(use.readings), share, memory))

    heads = (
        "step:name | GPU:number | readings:number | utilisation:name | memory "
        "in use:name"
    )
    yield from b.folded("Use of the GPUs", b.table(heads, uses, "use of the GPUs"))
    yield from b.bullets(
        [_ran(step) for step in part.steps if step.exit_code is not None]
    )


def _row(row: Asked, step: StepRecord) -> b.Row:
    seconds = row.seconds if row.seconds is not None else step.seconds
    alone = row.seconds is not None or len(step.rows) == 1
    took = f"{seconds:.1f}" if alone and seconds else "–"
    cells = (_status(row.status), row.seen, row.asked, row.expected, row.source, took)
    return b.row(*cells, status=row.status.value)


def _ran(step: StepRecord) -> b.Inline:
    told = (b.code(step.command), f", {duration(step.seconds)}")
    if not step.incident:
        return told
    report = f"{step.incident.partition('/')[2]}/report.md"
    return (*told, ": ", b.code(report, f"{step.incident}/report.html"))


def _setup(acceptance: Acceptance) -> list[tuple[str, b.Inline]]:
    host = acceptance.host
    return [
        ("device", acceptance.device),
        *((f"GPU {one.index}", _gpu_facts(one)) for one in host.gpu_facts),
        ("machine", f"{host.cpu}, {host.cores} cores, {size(host.memory_bytes)}"),
        ("system", f"{host.os}, kernel {host.kernel}, Python {host.python}"),
        ("mmrepro", acceptance.mmrepro_version),
        ("begun", f"{acceptance.created.wall:%Y-%m-%d %H:%M} UTC"),
        (
            "time",
            f"{duration(sum(part.seconds for part in acceptance.parts))} in children, "
            f"budget {duration(acceptance.budget_s)}",
        ),
    ]


def _gpu_facts(one: GpuFacts) -> str:
    memory = size(one.memory_bytes) if one.memory_bytes else "memory unknown"
    facts = [
        one.name,
        memory,
        f"driver {one.driver}",
        f"CUDA {one.cuda}",
        "MIG" * bool(one.mig),
    ]
    return ", ".join(
        [*filter(None, facts), "taken" if one.taken else one.users or "not taken"]
    )


KIND: Final = kind(Acceptance, SUMMARY_FILE, compose)
