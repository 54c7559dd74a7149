"""How answers read, and the conditions that scenarios share, at their edges."""

from __future__ import annotations

from typing import Any

import pytest
from made_up import (
    GHOST,
    logs,
    metrics,
    probed,
    processes,
    request,
    run_facts,
)
from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.probes.data import InferenceData, LogLine
from mmrepro.scenario import Check, Finding, Truth, common
from mmrepro.scenario.bind import bind
from mmrepro.scenario.registry import load_scenario
from mmrepro.signature import answers, views
from mmrepro.signature.decide import guarded

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
VLLM = load_scenario("ghost-key-eviction")


def told(check: Check, evidence: Evidence) -> Finding:
    return guarded(bind(check, VLLM, run_facts(VLLM)), evidence)


def truth(check: Check, *probes: Any, **more: Any) -> Truth:
    return told(check, Evidence(probes=[probed(p) for p in probes], **more)).truth


# ------------------------------------------------------------------ answers


def graded(limit: float | None = None, **more: Any) -> answers.Grade:
    status = more.pop("status", 200)
    fields = {"text": "", "completion_tokens": None, "error": ""} | more
    return answers.grade(request("trigger", "x", status, **fields), limit)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"completion_tokens": 1}, "answered"),
        ({"text": "hello"}, "answered"),
        ({"completion_tokens": 0}, "opaque answer"),
        ({"status": 500, "error": "boom"}, "opaque 500"),
        ({"status": 499, "error": "boom"}, "opaque answer"),
        ({"status": 400, "error": "boom"}, "opaque answer"),
        ({"status": 400, "error": "too long"}, "refusal"),
        ({"status": 500, "error": "too long"}, "refusal"),
        ({"status": 399, "text": "hello"}, "answered"),
        ({"status": 399, "error": "too long"}, "broken"),
        ({"status": None, "error": "cut"}, "broken"),
        ({"timed_out": True, "text": "hello"}, "broken"),
        ({"error": "too long", "stream": True}, "refusal"),
        ({"error": "boom", "stream": True}, "broken"),
        ({"error": "too long"}, "broken"),
        ({"finish_reason": "error", "text": "boom"}, "opaque answer"),
        ({"finish_reason": "error", "text": "length"}, "named answer"),
        ({"text": "internal error happened, INPUT_LENGTH"}, "named answer"),
        ({"text": "internal error happened"}, "opaque answer"),
    ],
)
def test_how_an_answer_reads(more: dict[str, Any], kind: str) -> None:
    assert graded(**more).kind == kind
    assert graded(**more).explained is (kind in ("named answer", "refusal"))


def test_what_a_refusal_names() -> None:
    def refused(error: str, limit: float | None = 1344) -> str:
        return str(graded(limit, status=400, error=error))

    assert refused("too long: 1344 tokens, KV").endswith(
        "explained; it names the limit and the cause"
    )
    assert refused("too long: 1344").endswith("it names the limit, not the cause, the KV budget")
    assert refused("too long, cache").endswith("it names the cause, not the limit in tokens")
    assert refused("too long").endswith(
        "it names the length, not the limit in tokens, not the cause, the KV budget"
    )
    assert refused("too long", None).endswith("it names the length, not the cause, the KV budget")
    assert "explained, but as an answer with 200" in str(
        graded(text="x length", finish_reason="error")
    )
    assert str(graded(status=500, error="boom")).endswith(
        "opaque, it does not say that the prompt is too long"
    )
    assert str(graded(completion_tokens=3)) == "HTTP 200 with 3 tokens in 0.10 s"
    assert str(graded(status=None, error="cut")) == "HTTP None, then cut"


def test_a_long_message_is_cut() -> None:
    assert "“" + "e" * 160 + "”" in graded(status=500, error="e" * 160).words
    assert "“" + "e" * 159 + "…”" in graded(status=500, error="e" * 161).words
    assert "“why”" in graded(status=500, error='{"message": "why"}').words


def test_given_means_each_of_them() -> None:
    good = request("trigger", "a")
    refused = request("trigger", "b", 400, error="too long", text="")
    failed = request("trigger", "c", 500, error="boom", text="")
    evidence = Evidence(requests=[good, refused, failed])
    assert answers.given("a")(evidence).truth is MET
    assert answers.given("a", "b")(evidence).truth is NOT_MET
    assert answers.given("a", "b", or_explained=True)(evidence).truth is MET
    assert answers.given("a", "c", or_explained=True)(evidence).truth is NOT_MET


# ------------------------------------------------------------------ conditions that scenarios share


def sent(*records: RequestRecord) -> Evidence:
    return Evidence(requests=list(records))


def test_answered_and_refused() -> None:
    good, bad = request("trigger", "a"), request("trigger", "b", 500)
    assert told(common.answered("a"), sent(good, bad)).truth is MET
    assert told(common.answered("a", "b"), sent(good, bad)).truth is NOT_MET
    either = common.refused_or_answered("x")
    for status, found in ((400, MET), (200, MET), (401, NOT_MET), (500, NOT_MET)):
        assert told(either, sent(request("trigger", "x", status))).truth is found
    assert (
        told(common.refused_or_answered("x", 413), sent(request("trigger", "x", 413))).truth is MET
    )


def test_answered_alike_is_one_text() -> None:
    alike = common.answered_alike("a", "b")
    one, same, other = (
        request("trigger", n, text=t) for n, t in (("a", "1"), ("b", "1"), ("b", "2"))
    )
    silent = request("trigger", "b", 500, text="1")
    assert told(alike, sent(one, same)).truth is MET
    assert told(alike, sent(one, other)).truth is NOT_MET
    assert told(alike, sent(one, silent)).truth is NOT_MET
    assert told(alike, sent(one)).truth is UNKNOWN


def test_as_by_the_control_server() -> None:
    mine, right = request("trigger", "a", text="1"), request("control", "a", text="1")
    assert told(common.as_by_control("a"), sent(mine, right)).truth is MET
    right.text = "2"
    assert told(common.as_by_control("a"), sent(mine, right)).truth is NOT_MET


def test_a_trigger_ends_when_nothing_of_it_hangs() -> None:
    hung = request("trigger", "x", None, timed_out=True)
    assert told(common.trigger_ended, sent(request("trigger", "x", 500))).truth is MET
    assert told(common.trigger_ended, sent(request("trigger", "y"), hung)).truth is NOT_MET
    hung.phase = "gate"
    assert told(common.trigger_ended, sent(hung)).truth is UNKNOWN


def test_in_the_log_means_every_pattern() -> None:
    declared = common.in_log("s", "cached-item-assertion", "added-request")
    assert declared.check is not None
    assert truth(declared.check, logs(GHOST)) is MET
    assert truth(declared.check, logs()) is NOT_MET
    assert truth(declared.check, logs(GHOST, added=0)) is NOT_MET
    assert (
        "first at 11-21 03:37:42"
        in told(declared.check, Evidence(probes=[probed(logs(GHOST))])).observed
    )
    assert truth(common.not_logged("cache-drift"), logs()) is MET
    assert truth(common.not_logged("added-request"), logs()) is NOT_MET


@pytest.mark.parametrize(
    ("answered", "status", "error", "found"),
    [
        (False, 500, "boom", MET),
        (False, 503, "boom", MET),
        (False, 499, "boom", UNKNOWN),
        (False, 401, "finish_reason", UNKNOWN),
        (False, 200, "the completion ended with finish_reason 'error'", MET),
        (False, 200, "not JSON", UNKNOWN),
        (False, None, "finish_reason", NOT_MET),
        (True, 200, "", NOT_MET),
    ],
)
def test_every_request_fails_with_an_answer(
    answered: bool, status: int | None, error: str, found: Truth
) -> None:
    declared = common.every_request_fails()
    data = InferenceData(answered=answered, status=status, seconds=1, deadline_s=9, error=error)
    assert declared.check is not None
    assert truth(declared.check, data) is found


def test_factors_and_mitigations() -> None:
    plain, flipped = run_facts(VLLM), run_facts(VLLM, "", "patch")
    assert bind(common.changed("patch"), VLLM, flipped)(Evidence()).truth is MET
    assert bind(common.changed("patch"), VLLM, plain)(Evidence()).truth is NOT_MET
    assert bind(common.unmitigated, VLLM, plain)(Evidence()).truth is MET
    assert bind(common.unmitigated, VLLM, flipped)(Evidence()).truth is NOT_MET


def test_an_idle_queue_is_abnormal_while_somebody_waits() -> None:
    hung = request("trigger", "x", None, timed_out=True)
    idle, busy = (metrics(), metrics()), (metrics(running=1), metrics(running=1))
    for readings, requests, found in (
        (idle, [hung], MET), (busy, [hung], NOT_MET), (idle, [], NOT_MET), (busy, [], MET),
    ):  # fmt: skip
        assert truth(common.idle_while_asked, *readings, requests=requests) is found


def test_the_last_line_is_the_cores() -> None:
    check = common.last_line("waiting for work")
    assert truth(check, logs(GHOST)) is MET
    assert truth(check, logs(last="step 3")) is NOT_MET
    silent = logs()
    silent.last_by_process = {"APIServer": LogLine(number=1, text="waiting for work")}
    assert truth(check, silent) is UNKNOWN


def test_rows_say_how_it_usually_is() -> None:
    quick, slow = request("gate", "a"), request("gate", "b", latency_s=0.3)
    assert common.usual_latency(views.Requests(sent(slow, quick))) == "0.10 to 0.30 s"
    assert common.usual_latency(views.Requests(sent(request("gate", "a", 500)))) == ""
    evidence = Evidence(probes=[probed(processes(0.4), "gate"), probed(processes(97.0))])
    said = bind(common.idle_cpu, VLLM, run_facts(VLLM))(evidence)
    assert said == "0 % when idle"
    row = told(common.answered_row("x"), sent(request("trigger", "x", None)))
    assert (row.truth, row.observed) == (NOT_MET, "no answer in 0.10 s")
    assert told(common.answered_row("x"), sent(request("trigger", "x"))).truth is MET
