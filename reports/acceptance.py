"""An acceptance as Markdown: made to be published, so without a path of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mmrepro.base.units import duration, size
from mmrepro.incident.acceptance import (
    SUMMARY_FILE,
    Acceptance,
    GpuUse,
    PartRecord,
    Row,
    Status,
    StepRecord,
    counts,
)
from mmrepro.records import GpuFacts
from mmrepro.reports import gfm
from mmrepro.reports.document import document_json
from mmrepro.reports.writing import replace_file
from mmrepro.text.sanitize import one_line

MARKDOWN_FILE: Final = "summary.md"
MARKS: Final = {
    Status.PASSED: "✔ passed",
    Status.FAILED: "**✘ failed**",
    Status.NOT_TESTED: "– not tested",
    Status.BROKEN_OFF: "**broken off**",
}


def write_acceptance(told: Acceptance, folder: Path) -> list[Path]:
    """``summary.json`` and ``summary.md``, each whole. Raises UnwritableOutput."""
    files = {SUMMARY_FILE: document_json(told), MARKDOWN_FILE: render_acceptance(told)}
    for name, text in files.items():
        replace_file(folder / name, text)
    return [folder / name for name in files]


def render_acceptance(told: Acceptance) -> str:
    parts = [_head(told), _overview(told), *(_part(part) for part in told.parts), _resume(told)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(told: Acceptance) -> str:
    host = told.host
    gpus = ", ".join(host.gpus) or "no GPU"
    facts = [
        ("device", told.device),
        *((f"GPU {one.index}", _gpu_facts(one)) for one in host.gpu_facts),
        ("machine", f"{host.cpu}, {host.cores} cores, {size(host.memory_bytes)}"),
        ("system", f"{host.os}, kernel {host.kernel}, Python {host.python}"),
        ("mmrepro", told.mmrepro_version),
        ("begun", f"{told.created.wall:%Y-%m-%d %H:%M} UTC"),
        (
            "time",
            f"{duration(sum(part.seconds for part in told.parts))} in children, "
            f"budget {duration(told.budget_s)}",
        ),
    ]
    rows = [row for part in told.parts for row in part.rows]
    title = f"# Acceptance on {gfm.text(gpus if told.device == 'cuda' else 'a CPU')}"
    table = gfm.table(["", ""], [[name, gfm.cell(value)] for name, value in facts])
    command = gfm.fence(one_line(told.command, 1000), "sh", 1, 1000)
    return "\n\n".join([title, f"**{counts(rows)}**", command, table])


def _gpu_facts(one: GpuFacts) -> str:
    memory = size(one.memory_bytes) if one.memory_bytes else "memory not told"
    told = [one.name, memory, f"driver {one.driver}", f"CUDA {one.cuda}", "MIG" * bool(one.mig)]
    return ", ".join([*filter(None, told), "taken" if one.taken else one.users or "not taken"])


def _overview(told: Acceptance) -> str:
    rows = [
        [
            f"[{gfm.cell(part.part)}](#{part.part})",
            gfm.cell(part.title),
            MARKS[part.status],
            gfm.cell(counts(part.rows)),
            duration(part.seconds),
        ]
        for part in told.parts
    ]
    return gfm.table(["part", "shows that", "status", "rows", "time"], rows)


def _part(part: PartRecord) -> str:
    rows = [_row(row, step) for step in part.steps for row in step.rows]
    head = ["asked", "expected", "source", "seen", "status", "seconds"]
    blocks = [f"## {gfm.text(part.part)}", gfm.table(head, rows)]
    if part.gpu:
        blocks.append(_gpu(part.gpu))
    if commands := [f"{_ran(step)}" for step in part.steps if step.exit_code is not None]:
        blocks.append("\n".join(commands))
    return "\n\n".join(blocks)


def _row(row: Row, step: StepRecord) -> list[str]:
    seconds = row.seconds if row.seconds is not None else step.seconds
    alone = row.seconds is not None or len(step.rows) == 1
    return [
        gfm.cell(row.asked),
        gfm.cell(row.expected),
        gfm.cell(row.source),
        gfm.cell(row.seen),
        MARKS[row.status],
        f"{seconds:.1f}" if alone and seconds else "–",
    ]


def _ran(step: StepRecord) -> str:
    told = f"- {gfm.code(step.command)}, {duration(step.seconds)}"
    report = f"{step.incident.partition('/')[2]}/report.md"
    return f"{told}: {gfm.code(report)}" if step.incident else told


def _gpu(uses: list[GpuUse]) -> str:
    rows = [
        [
            gfm.cell(use.step),
            str(use.gpu),
            str(use.readings),
            " to ".join(_range(use)) or "not told",
            " to ".join(_memory(use)) or "not told",
        ]
        for use in uses
    ]
    return gfm.table(["step", "GPU", "readings", "utilisation", "memory in use"], rows)


def _range(use: GpuUse) -> Iterator[str]:
    if use.utilisation_pct is not None:
        yield f"{use.utilisation_pct.least:.0f}"
        yield f"{use.utilisation_pct.most:.0f} %"


def _memory(use: GpuUse) -> Iterator[str]:
    if use.memory_bytes is not None:
        yield size(use.memory_bytes.least, 2)
        yield size(use.memory_bytes.most, 2)


def _resume(told: Acceptance) -> str:
    if all(part.whole for part in told.parts):
        return ""
    command = gfm.fence(one_line(told.resume, 1000), "sh", 1, 1000)
    return f"What was not tested or broken off is tried by:\n\n{command}"
