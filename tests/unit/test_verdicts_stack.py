"""vLLM's adapters that are loaded as it runs, and streamed tool calls: tables for a
turn."""

from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios.lora_runtime import (
    AFTER,
    AGAIN,
    ALONE,
    FIRST,
    LATER,
    LONG,
    OF_A,
    OF_B,
    RELOADED,
    SALTED,
    SWAPPED,
    THIRD,
    A,
    B,
)
from mmrepro.scenarios.tool_stream import ALONE as ONE_CALL, STREAMED, WHOLE
from mmrepro.traffic.evidence import Evidence
from test_verdicts_lora import as_answered, reproducer
from turns import Change, Row, edit, measured, ran

RELOAD, ADDED, TOOLS = map(
    load_scenario, ("lora-reload", "lora-added", "tool-arguments-dropped")
)
RELOAD_ROWS: dict[str, Row] = {
    "the new adapter's answer": (
        as_answered(RELOADED, OF_B),
        "not-reproduced -stale-answer",
    ),
    "no answer": (edit(RELOADED, status=500), "different -stale-answer"),
    "wrong with a salt": (as_answered(SALTED, OF_A), "different -salted"),
    "wrong under its own name": (as_answered(AFTER, OF_A), "different -own-name"),
    "nothing was cached": (
        edit(RELOADED, cached_tokens=None),
        "different -from-the-cache",
    ),
    "the salt was of no use": (
        edit(SALTED, cached_tokens=128),
        "different -from-the-cache",
    ),
    "nobody tells of the cache": (
        edit(AGAIN, cached_tokens=None),
        "inconclusive ?from-the-cache",
    ),
    "hashed by the path": (
        reproducer(another_path_same_key=False),
        "different -hashed-by-name",
    ),
    "hashed by no name": (
        reproducer(another_name_same_key=True),
        "different -hashed-by-name",
    ),
    "the script was not run": (ran(), "inconclusive ?hashed-by-name"),
    "a load was refused": (
        edit(f"load {SWAPPED}", status=400),
        "inconclusive -replaced",
    ),
    "it was not asked before": (as_answered(FIRST, OF_B), "inconclusive -replaced"),
    "both are one adapter": (as_answered(OF_A, OF_B), "inconclusive -tell-apart"),
    "not alike twice": (as_answered(AGAIN, OF_A), "inconclusive -tell-apart"),
}


def answered_right(evidence: Evidence) -> None:
    for name, label in LONG.items():
        as_answered(label, ALONE[name])(evidence)


ADDED_ROWS: dict[str, Row] = {
    "both give their own answers": (answered_right, "not-reproduced -answers-turn"),
    "it turned before the load": (
        measured(pieces_before=23),
        "different -answers-turn",
    ),
    "no move is noticed twice": (
        reproducer(refreshed_after_a_move=1),
        "different -slots-remembered",
    ),
    "nothing is worked out": (
        reproducer(refreshed_at_first=0),
        "different -slots-remembered",
    ),
    "the script was not run": (ran(), "inconclusive ?slots-remembered"),
    "the load was refused": (edit(f"load {THIRD}", status=400), "inconclusive -loaded"),
    "the load came late": (
        edit(f"load {THIRD}", latency_s=900.0),
        "inconclusive -loaded",
    ),
    "nobody had begun": (measured(pieces_before=0), "inconclusive -loaded"),
    "wrong for good": (
        as_answered(LATER[B], LONG[A]),
        "different -tell-apart -own-again",
    ),
    "both are one adapter": (
        as_answered(ALONE[A], ALONE[B]),
        "different -tell-apart -answers-turn",
    ),
}


def given(label: str, *arguments: str) -> Change:
    """The calls of that answer have these arguments; () : there are none."""

    def change(evidence: Evidence) -> None:
        for record in evidence.labelled(label):
            calls = record.choices[0].tool_calls
            del calls[len(arguments) :]
            for call, text in zip(calls, arguments, strict=True):
                call.arguments = text

    return change


MOON = '{"at": "moon"}'
TOOL_ROWS: dict[str, Row] = {
    "streamed right": (given(STREAMED, "{}", MOON), "not-reproduced -arguments-gone"),
    "cut off": (given(STREAMED, "{}", '{"at'), "different -arguments-gone"),
    "one call": (given(STREAMED, "{}"), "different -arguments-gone"),
    "no call": (given(STREAMED), "different -arguments-gone"),
    "whole without them": (
        given(WHOLE, "{}", "{}"),
        "different -both-called -whole-has-them",
    ),
    "alone without them": (given(ONE_CALL, "{}"), "different -alone-has-them"),
    "the parser keeps them": (
        reproducer(xlam_streamed=MOON),
        "different -parser-drops",
    ),
    "the script was not run": (ran(), "inconclusive ?parser-drops"),
    "the stream failed": (edit(STREAMED, status=500), "inconclusive -both-called"),
}
