"""``mmrepro accept``, from the options to the exit code."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import mmrepro
import typer
from mmrepro.accept.options import AcceptCommand
from mmrepro.accept.parts import PARTS, chosen
from mmrepro.accept.session import Accepting, exit_code
from mmrepro.accept.steps import Part
from mmrepro.base.units import duration
from mmrepro.campaign.trial import TrialOptions
from mmrepro.cli.campaign import Where, conduct
from mmrepro.cli.console import table_console
from mmrepro.errors import ExitCode, UsageError
from mmrepro.incident.acceptance import SUMMARY_FILE, Acceptance, PartRecord
from mmrepro.incident.folder import prepared
from mmrepro.machine.files import Device, is_there
from mmrepro.machine.gpu import Choice, take
from mmrepro.machine.host import host_facts
from mmrepro.records import Moment
from mmrepro.reports import write_reports
from mmrepro.reports.acceptance import KIND
from mmrepro.reports.blocks import Paragraph, table
from mmrepro.reports.documents import document_json, keep
from mmrepro.reports.terminal import print_blocks, print_page

IMPATIENT = {"UV_HTTP_TIMEOUT": "15", "UV_HTTP_RETRIES": "1"}
"""Where there is no network uv is to say so soon; what the user has set stays."""


def execute(asked: AcceptCommand, device: Device) -> ExitCode:
    """Run the parts, or go on with them. Raises MmreproError and KeyboardInterrupt."""
    out = asked.out
    if out is None:
        raise UsageError(
            "--out DIR says where the summary and the incidents go.",
            hint="mmrepro accept --out accepted",
        )
    gpu = take() if device == "cuda" else Choice()
    earlier = _earlier(out, device, resume=asked.resume)
    folder = prepared(out)
    known = earlier.parts if earlier else []
    parts = chosen(asked.only or ([part.part for part in known] if asked.resume else ()))
    # One summary of a folder, whatever parts each command was asked for.
    records = {part.name: PartRecord(part=part.name, title=part.shows, steps=[]) for part in parts}
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
    console = table_console(stderr=asked.json or asked.events == "-")
    builds = TrialOptions(env={n: v for n, v in IMPATIENT.items() if n not in os.environ})
    made = conduct(
        policy,
        lambda say: Where().places(say, builds),
        console,
        budget_s=asked.budget_s,
        events=asked.events,
    )
    if asked.json:
        typer.echo(document_json(made), nl=False)
    place = str(folder / KIND.files[1])
    print_page(KIND.compose(made), console, place, full=asked.full, quiet=asked.json)
    return exit_code(policy.records)


def _earlier(folder: Path, device: Device, *, resume: bool) -> Acceptance | None:
    """What an earlier command left there. Raises UsageError: of another device; or none."""
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


def show_list(parts: Sequence[Part], device: Device, *, as_json: bool) -> None:
    """The parts with their steps and estimates."""
    if as_json:
        told = [
            {
                "part": part.name,
                "shows": part.shows,
                "estimate_s": part.estimate_s(device),
                "steps": [
                    {
                        "step": step.name,
                        "title": step.title,
                        "command": step.child.shown(device),
                        "estimate_s": step.estimate_s if device in step.devices else 0,
                        "needs": [str(one) for one in step.child.needs],
                        "not_tested": "" if device in step.devices else step.why_not,
                    }
                    for step in part.steps
                ],
            }
            for part in parts
        ]
        typer.echo(json.dumps({"device": device, "parts": told}, indent=1))
        return
    rows = []
    for part in parts:
        able = [step for step in part.steps if device in step.devices]
        about = duration(part.estimate_s(device)) if able else f"not on {device}"
        rows.append((part.name, str(len(able)), about, part.shows))
    total = duration(sum(part.estimate_s(device) for part in parts))
    summary = Paragraph(f"all on {device}: about {total}, environments apart")
    heads = ["part:name", "steps:number", "about:number", "shows that"]
    print_blocks([*table(heads, rows), summary], table_console())
