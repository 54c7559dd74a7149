"""``mmrepro accept``: all that only this machine can show, in one summary."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.campaign.accept.options import AcceptCommand
from mmrepro.cli.console import console_for, emit, table_console
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from mmrepro.base.machine.files import Device
    from mmrepro.base.machine.gpu import Choice
    from mmrepro.campaign.accept.judging import Part
    from mmrepro.failure.documents.acceptance import Acceptance

IMPATIENT = {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_RETRIES": "1"}
"""Where there is no network uv reports it soon; what the user has set stays."""


@command(AcceptCommand)
def accept(asked: AcceptCommand) -> None:
    """Try what only this machine can show, the most valuable first, and write one
    summary.

    What came to its end is not run again: the same command continues where it ended.
    Exit codes: 0 what ran passed; 1 something failed; 3 something was broken off,
    inconclusive or beyond the budget; 4 no GPU, or nothing could be run.

    Example:  mmrepro accept --device cuda --budget 25m --out accepted
    """
    from mmrepro.base.machine.files import device_of
    from mmrepro.base.machine.gpu import Choice, take
    from mmrepro.campaign.accept.parts import chosen

    parts = chosen(asked.only)
    device = device_of(asked.device)
    if asked.list_:
        _list(parts, device, as_json=asked.json)
        return
    if asked.out is None:
        raise UsageError(
            "--out DIR says where the summary and the incidents go.",
            hint="mmrepro accept --out accepted",
        )
    gpu = take() if device == "cuda" else Choice()
    raise typer.Exit(_execute(replace(asked, device=device), asked.out, device, gpu))


def _execute(asked: AcceptCommand, out: Path, device: Device, gpu: Choice) -> ExitCode:
    """Run the parts, or continue them. Raises MmreproError and KeyboardInterrupt."""
    import mmrepro
    from mmrepro.base.machine.host import host_facts
    from mmrepro.base.records import Moment
    from mmrepro.campaign.accept.parts import PARTS, chosen
    from mmrepro.campaign.accept.session import Accepting, exit_code
    from mmrepro.campaign.cluster.where import Where
    from mmrepro.campaign.trial import TrialOptions
    from mmrepro.cli.campaign import conduct, finish
    from mmrepro.failure.documents.acceptance import Acceptance, PartRecord
    from mmrepro.failure.documents.folder import prepared, refuse_taken
    from mmrepro.reports import write_reports
    from mmrepro.reports.acceptance import KIND
    from mmrepro.reports.documents import keep

    earlier = _earlier(out, device, resume=asked.resume)
    known = earlier.parts if earlier else []
    parts = chosen(
        asked.only or ([part.part for part in known] if asked.resume else ())
    )
    if earlier is None:
        refuse_taken(out, [part.name for part in parts])
    folder = prepared(out)
    # One summary of a folder, whatever parts each command was asked for.
    records = {
        part.name: PartRecord(part=part.name, title=part.shows, steps=[])
        for part in parts
    }
    records |= {part.part: part for part in known}
    acceptance = Acceptance(
        mmrepro_version=mmrepro.__version__,
        created=earlier.created if earlier else Moment.now(),
        seconds=0.0,
        budget_s=asked.budget_s,
        device=device,
        command=asked.command_line(out=Path(out.name)),
        resume=asked.command_line(out=out, resume=True),
        host=host_facts(gpu.names).model_copy(update={"gpu_facts": gpu.facts()}),
        parts=[records[part.name] for part in PARTS if part.name in records],
    )
    policy = Accepting(
        folder,
        parts,
        acceptance,
        write=partial(keep, KIND),
        report=write_reports,
        variables={one.name: one.value for one in gpu.settings()},
        again=asked.again,
    )
    console = console_for(asked)
    builds = TrialOptions(
        env={n: v for n, v in IMPATIENT.items() if n not in os.environ}
    )
    made = conduct(
        policy,
        lambda say: Where().places(say, builds),
        console,
        asked,
        budget_s=asked.budget_s,
    )
    finish(asked, KIND, made, folder)
    return exit_code(policy.records)


def _earlier(folder: Path, device: str, *, resume: bool) -> Acceptance | None:
    """What an earlier command left there. Raises UsageError: another device's; or
    none."""
    from mmrepro.base.machine.files import is_there
    from mmrepro.failure.documents.acceptance import SUMMARY_FILE
    from mmrepro.reports.acceptance import KIND

    if not is_there(folder / SUMMARY_FILE):
        if resume:
            raise UsageError(
                f"{folder} holds no acceptance to go on with.",
                hint=f"mmrepro accept --out {shlex.quote(str(folder))}",
            )
        return None
    found = KIND.load(folder)
    if found.device != device:
        raise UsageError(
            f"{folder} holds what was observed on {found.device}; this is {device}.",
            hint="choose another --out",
        )
    return found


def _list(parts: Sequence[Part], device: Device, *, as_json: bool) -> None:
    """The parts with their steps and estimates."""
    from mmrepro.base.units import duration
    from mmrepro.campaign.accept.judging import PartsDocument

    if as_json:
        emit(PartsDocument(device=device, parts=[part.facts(device) for part in parts]))
        return
    from mmrepro.reports.blocks import Paragraph, table
    from mmrepro.reports.terminal import print_blocks

    rows = []
    for part in parts:
        able = [step for step in part.steps if device in step.devices]
        about = duration(part.estimate_s(device)) if able else f"not on {device}"
        rows.append((part.name, str(len(able)), about, part.shows))
    total = duration(sum(part.estimate_s(device) for part in parts))
    summary = Paragraph(f"all on {device}: about {total}, environments apart")
    heads = ["part:name", "steps:number", "about:number", "shows that"]
    print_blocks([*table(heads, rows), summary], table_console())
