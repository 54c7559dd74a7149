"""A scenario that sends the case of a finding: what its file is filled with."""

from __future__ import annotations

import shlex
from typing import Any

from mmrepro import scenario
from mmrepro.base.text import one_line
from mmrepro.engines.models import TINY
from mmrepro.failure.documents.replay import Finding
from mmrepro.scenario import more
from mmrepro.search.replay.known import signature_of
from mmrepro.traffic.case import Case


def scenario_facts(finding: Finding, case: Case, name: str) -> dict[str, Any]:
    """What the template of the scenario called ``name`` is filled with."""
    signature = signature_of(finding, case)
    refused = [
        op.id for op in case.operations if finding.observed.get(op.id, "")[:1] == "4"
    ]
    until = next(
        (op.id for op in case.operations if op.id in finding.operations),
        case.operations[-1].id,
    )
    module = name.replace("-", "_")
    calls = {_called(one) for one in (*signature.symptoms, *signature.causes)}
    own = case.server.model in TINY
    wanted = case.server.model if own else "qwen2-vl"
    model = type(TINY[wanted]).__name__
    made = f"{model}()"
    if not hasattr(more, model):
        model, made = "TINY", f'TINY["{wanted}"]'
    if case.server.scripts is not None:
        model, made = "scripted_model", "scripted_model(CASE)"
    names = {
        "Drive",
        "Scenario",
        "answered",
        "case_arrived",
        "play_case",
        "trigger_ended",
    }
    names |= {*calls, model}
    if signature.observed:
        names |= {"Finding", "Requests", "symptom"}
    if not signature.causes:
        names |= {"Finding", "Logs", "cause"}
    ordered = sorted(names, key=lambda name: (not name[0].isupper(), name))
    return {
        "title": _docstring(f"{finding.title}."),
        "said": _docstring(f"{finding.observation}. Expected: {finding.expectation}"),
        "why": _docstring(_why(finding)),
        "module": module,
        "folder": f"{module}_case",
        "cls": "".join(word.capitalize() for word in name.split("-")),
        "name": name,
        "engine": case.server.engine,
        "release": case.server.release,
        "model": made,
        "foreign": "" if own else "FOLDER",
        "max_model_len": case.server.max_model_len,
        "server": repr(shlex.join(case.server.args)),
        "env": repr(case.server.env) if case.server.env else "",
        "patterns": repr({"exception": signature.pattern}) if signature.pattern else "",
        "precondition": f"case_arrived({tuple(refused)!r}, {until!r})",
        "symptoms": signature.symptoms,
        "causes": signature.causes,
        "observed": signature.observed,
        "healthy": signature.healthy,
        "imports": [name for name in ordered if name in vars(scenario)],
        "more": [name for name in ordered if name not in vars(scenario)],
    }


def _called(expression: str) -> str:
    return expression.partition("(")[0]


def _why(finding: Finding) -> str:
    if finding.known:
        return f"as the known scenario {finding.known}: mmrepro show {finding.known}"
    return f"unknown. In the replay its bucket is {finding.bucket}"


def _docstring(text: str) -> str:
    """On one line that no docstring ends at."""

    return one_line(text, 300).replace("\\", "/").replace('"', "'")
