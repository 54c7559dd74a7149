"""MADE-UP runs of two sides: a case, what each answers, and the bodies that it would
have sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from made_up_plays import played
from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.replay import Sighting
from mmrepro.failure.documents.upgrade import Side, SideRun
from mmrepro.search.oracle.side_form import fields_of
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.evidence import RequestRecord

Change = Callable[[RequestRecord, dict[str, Any]], None]
"""What a side does to a record and its body."""


def body_of(record: RequestRecord) -> dict[str, Any]:
    """The body of vLLM's kind that would have brought it."""
    if record.status != 200:
        return json.loads(record.error)
    choices = [
        {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": choice.text,
                "reasoning": None,
                "calls": [],
            },
            "finish_reason": choice.finish_reason,
            "logprobs": {
                "content": [{"token": t, "logprob": -0.5} for t in choice.tokens]
            },
        }
        for choice in record.choices
    ]
    usage = {
        "prompt_tokens": record.prompt_tokens,
        "completion_tokens": record.completion_tokens,
    }
    return {"id": "x", "choices": choices, "usage": usage}


def nothing(record: RequestRecord, body: dict[str, Any]) -> None:
    """A side as it is."""


def run(
    side: Side,
    records: Sequence[RequestRecord],
    change: Change = nothing,
    *,
    index: int = 1,
    sightings: Sequence[Sighting] = (),
) -> SideRun:
    """One run of a side; the bodies of streams have one piece."""
    kept, fields = [], {}
    for given in records:
        record = given.model_copy(deep=True)
        body = body_of(record)
        change(record, body)
        data = json.dumps(body).encode()
        kept.append(record)
        fields[record.label] = fields_of(
            b"data: " + data + b"\n" if record.stream else data
        )
    return SideRun(
        side=side,
        index=index,
        played=played(kept),
        fields=fields,
        sightings=list(sightings),
    )


def sides(
    case: Case,
    answer: Callable[[Any], RequestRecord],
    change: Change = nothing,
    *,
    times: int = 2,
) -> tuple[list[SideRun], list[SideRun]]:
    """OLD as it is, and NEW with ``change``."""
    records = [answer(op) for op in case.operations]
    old = [run("old", records, index=i + 1) for i in range(times)]
    return old, [run("new", records, change, index=i + 1) for i in range(times)]


def seen(kind: FindingClass, bucket: str, *operations: str) -> Sighting:
    return Sighting(
        finding_class=kind,
        bucket=f"{kind}/{bucket}",
        operations=list(operations),
        said=f"{bucket}.",
    )
