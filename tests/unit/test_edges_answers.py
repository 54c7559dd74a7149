"""How answers read, and the conditions that scenarios share, at their edges."""

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
from mmrepro.failure.signature import answers, comparison, views
from mmrepro.failure.signature.comparison import ComparedAnswers
from mmrepro.probes.data import InferenceData, LogLine
from mmrepro.scenario import Finding, Truth, common
from mmrepro.scenario.definition import bind
from mmrepro.traffic.evidence import Evidence, Missing, RequestRecord
from vllm_checks import VLLM, finding_of, truth_of

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


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
    assert refused("too long: 1344").endswith(
        "it names the limit, not the cause, the KV budget"
    )
    assert refused("too long, cache").endswith(
        "it names the cause, not the limit in tokens"
    )
    assert refused("too long").endswith(
        "it names the length, not the limit in tokens, not the cause, the KV budget"
    )
    assert refused("too long", None).endswith(
        "it names the length, not the cause, the KV budget"
    )
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


# ------------------------------------------------------ conditions that scenarios share


def sent(*records: RequestRecord) -> Evidence:
    return Evidence(requests=list(records))


def test_answered_and_refused() -> None:
    good, bad = request("trigger", "a"), request("trigger", "b", 500)
    assert finding_of(common.answered("a"), sent(good, bad)).truth is MET
    assert finding_of(common.answered("a", "b"), sent(good, bad)).truth is NOT_MET
    either = common.refused_or_answered("x")
    for status, found in ((400, MET), (200, MET), (401, NOT_MET), (500, NOT_MET)):
        assert finding_of(either, sent(request("trigger", "x", status))).truth is found
    assert (
        finding_of(
            common.refused_or_answered("x", 413), sent(request("trigger", "x", 413))
        ).truth
        is MET
    )


def test_answered_alike_is_one_text() -> None:
    alike = common.answered_alike("a", "b")
    one, same, other = (
        request("trigger", n, text=t) for n, t in (("a", "1"), ("b", "1"), ("b", "2"))
    )
    silent = request("trigger", "b", 500, text="1")
    assert finding_of(alike, sent(one, same)).truth is MET
    assert finding_of(alike, sent(one, same)).observed == "2 answers (a; b): all alike"
    assert finding_of(alike, sent(one, other)).truth is NOT_MET
    assert finding_of(alike, sent(one, other)).observed.endswith(
        "2 different texts: ['1', '2']"
    )
    assert finding_of(alike, sent(one, silent)).truth is NOT_MET
    assert finding_of(alike, sent(one)).truth is UNKNOWN


def test_as_by_the_control_server() -> None:
    mine, right = request("trigger", "a", text="1"), request("control", "a", text="1")
    assert finding_of(common.as_by_control("a"), sent(mine, right)).truth is MET
    right.text = "2"
    assert finding_of(common.as_by_control("a"), sent(mine, right)).truth is NOT_MET


def test_a_trigger_ends_when_nothing_of_it_hangs() -> None:
    hung = request("trigger", "x", None, timed_out=True)
    assert (
        finding_of(common.trigger_ended, sent(request("trigger", "x", 500))).truth
        is MET
    )
    assert (
        finding_of(common.trigger_ended, sent(request("trigger", "y"), hung)).truth
        is NOT_MET
    )
    hung.phase = "gate"
    assert finding_of(common.trigger_ended, sent(hung)).truth is UNKNOWN


@pytest.mark.parametrize(
    ("status", "more", "truth"),
    [
        (500, {}, MET),
        (503, {}, MET),
        (None, {"error": "the connection broke"}, MET),
        (499, {}, NOT_MET),
        (200, {}, NOT_MET),
        (None, {"timed_out": True}, NOT_MET),
    ],
)
def test_a_request_fails_in_the_server_by_500_and_above(
    status: int | None, more: dict[str, Any], truth: Truth
) -> None:
    check = common.fails_in_server("x", "y").check
    assert check is not None
    both = sent(request("trigger", "x", 500), request("trigger", "y", status, **more))
    assert finding_of(check, both).truth is truth


def test_in_the_log_means_every_pattern() -> None:
    declared = common.in_log("s", "cached-item-assertion", "added-request")
    assert declared.check is not None
    assert truth_of(declared.check, logs(GHOST)) is MET
    assert truth_of(declared.check, logs()) is NOT_MET
    assert truth_of(declared.check, logs(GHOST, added=0)) is NOT_MET
    assert (
        "first at 11-21 03:37:42"
        in finding_of(declared.check, Evidence(probes=[probed(logs(GHOST))])).observed
    )
    assert declared.id == "cached-item-assertion"
    twice = finding_of(
        declared.check, Evidence(probes=[probed(logs(GHOST, GHOST))])
    ).observed
    counts = "2 × cached-item-assertion, 18 × added-request"
    assert twice == f"{counts}, first at 11-21 03:37:42"
    assert truth_of(common.not_logged("cache-drift"), logs()) is MET
    assert truth_of(common.not_logged("added-request"), logs()) is NOT_MET


@pytest.mark.parametrize(
    ("answered", "status", "error", "found"),
    [
        (False, 500, "boom", MET),
        (False, 503, "boom", UNKNOWN),  # a gateway's words, perhaps
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
    data = InferenceData(
        answered=answered, status=status, seconds=1, deadline_s=9, error=error
    )
    assert declared.check is not None
    assert truth_of(declared.check, data) is found


def test_factors_and_mitigations() -> None:
    plain, flipped = run_facts(VLLM), run_facts(VLLM, "", "patch")
    assert bind(common.changed("patch"), VLLM, flipped)(Evidence()).truth is MET
    assert bind(common.changed("patch"), VLLM, plain)(Evidence()).truth is NOT_MET
    assert bind(common.unmitigated, VLLM, plain)(Evidence()).truth is MET
    assert bind(common.unmitigated, VLLM, plain)(Evidence()).observed == "none"
    assert bind(common.unmitigated, VLLM, flipped)(Evidence()).observed == "patch"
    assert bind(common.unmitigated, VLLM, flipped)(Evidence()).truth is NOT_MET


def test_an_idle_queue_is_abnormal_while_somebody_waits() -> None:
    hung = request("trigger", "x", None, timed_out=True)
    idle, busy = (metrics(), metrics()), (metrics(running=1), metrics(running=1))
    for readings, requests, found in (
        (idle, [hung], MET),
        (busy, [hung], NOT_MET),
        (idle, [], NOT_MET),
        (busy, [], MET),
    ):
        assert truth_of(common.idle_while_asked, *readings, requests=requests) is found


def test_the_last_line_is_the_cores() -> None:
    check = common.last_line("waiting for work")
    assert truth_of(check, logs(GHOST)) is MET
    assert truth_of(check, logs(last="step 3")) is NOT_MET
    silent = logs()
    silent.last_by_process = {"APIServer": LogLine(number=1, text="waiting for work")}
    assert truth_of(check, silent) is UNKNOWN


def test_rows_say_how_it_usually_is() -> None:
    quick, slow = request("gate", "a"), request("gate", "b", latency_s=0.3)
    assert common.usual_latency(views.Requests(sent(slow, quick))) == "0.10 to 0.30 s"
    assert common.usual_latency(views.Requests(sent(request("gate", "a", 500)))) == ""
    evidence = Evidence(
        probes=[probed(processes(0.4), "gate"), probed(processes(97.0))]
    )
    said = bind(common.idle_cpu, VLLM, run_facts(VLLM))(evidence)
    assert said == "0 % when idle"
    row = finding_of(common.answered_row("x"), sent(request("trigger", "x", None)))
    assert (row.truth, row.observed) == (NOT_MET, "no answer in 0.10 s")
    assert (
        finding_of(common.answered_row("x"), sent(request("trigger", "x"))).truth is MET
    )


# ------------------------------------------------------------------ whose answer it was


def picture(
    label: str, phase: Any = "trigger", whose: str = "A", cached: Any = 3
) -> RequestRecord:
    more = {"tokens": [whose, "end"], "logprobs": [-0.5, -1.0], "cached_tokens": cached}
    return request(phase, label, prompt_tokens=32, **more)


def gate(*names: str) -> list[RequestRecord]:
    return [
        picture(f"gate: {name} {kind}", "gate", name)
        for name in names
        for kind in ("alone", "again")
    ]


def compared(*records: RequestRecord, **facts: Any) -> ComparedAnswers:
    return ComparedAnswers(Evidence(requests=list(records), facts=facts))


def test_each_has_an_answer_of_its_own_twice() -> None:
    both = gate("A", "B")
    assert compared(*both).differ("A", "B").truth is MET
    assert compared(*both[:3]).differ("A", "B").observed == "B was not answered twice"
    assert compared(*both[:2]).differ("A", "B") == Finding.of(
        False, "B alone was not answered"
    )
    assert compared(*both[:3]).differ("A", "B").truth is NOT_MET
    assert compared(*gate("A")).differ("A").truth is MET
    for change, said in (
        ({"logprobs": []}, "B: the server gives no logprobs"),
        (
            {"tokens": ["C", "end"]},
            "B is not answered alike twice: token 1: 'C' against 'B'",
        ),
        (
            {"tokens": ["A", "end"]},
            "B is not answered alike twice: token 1: 'A' against 'B'",
        ),
    ):
        other = [*both[:2], both[2].model_copy(update=change), both[3]]
        found = compared(*other).differ("A", "B")
        assert (found.truth, found.observed) == (NOT_MET, said)
    twins = [
        *both[:2],
        *(r.model_copy(update={"tokens": both[0].tokens}) for r in both[2:]),
    ]
    assert (
        compared(*twins).differ("A", "B").observed
        == "A and B get one and the same answer"
    )


def test_whose_answer_came() -> None:
    seen = compared(*gate("A", "B"), picture("B after A"), picture("A after B"))
    assert seen.whose("B after A", "B", "A") == "A"
    assert seen.after("A", "B")[0] == "A"
    assert (
        "A's answer, all 2 tokens and logprobs; from its own it differs at token 1"
        in (seen.after("A", "B")[1])
    )
    assert seen.after("B", "A") == ("A", "A after B: A's own answer")
    assert (seen.own("A", "B").truth, seen.own("B", "A").truth) == (NOT_MET, MET)
    odd = compared(*gate("A", "B"), picture("B after A", whose="C"))
    assert odd.after("A", "B")[0] == ""
    assert "neither A's nor B's answer" in odd.after("A", "B")[1]
    assert odd.own("A", "B").truth is NOT_MET
    silent = picture("B after A")
    silent.status = 500
    with pytest.raises(Missing):
        compared(*gate("A", "B"), silent).own("A", "B")


def test_the_last_answer_counts() -> None:
    seen = compared(
        picture("x", whose="A"), picture("x", whose="B"), picture("x y", whose="C")
    )
    assert seen.to("x").tokens[0] == "B"


def test_nothing_from_the_cache_is_zero_only_where_the_server_counts_so() -> None:
    one, none = picture("x", cached=3), picture("y", cached=None)
    assert compared(one).cached("x") == 3
    assert compared(one, none, cached_tokens_total=3).cached("y") == 0
    for facts in ({}, {"cached_tokens_total": 4}):
        with pytest.raises(Missing):
            compared(one, none, **facts).cached("y")
    assert (
        compared(one, picture("z", cached=0)).from_cache("x", "z")
        == "x: 3 of 32; z: 0 of 32"
    )


def test_more_than_the_text_before_it() -> None:
    def more(*cached: int) -> Truth:
        records = [
            picture("text", cached=3),
            *(picture(f"{n}", cached=c) for n, c in enumerate(cached)),
        ]
        return (
            compared(*records)
            .more_than_text("text", *map(str, range(len(cached))))
            .truth
        )

    assert (more(4, 5), more(4, 3), more(3, 4), more(2)) == (
        MET,
        NOT_MET,
        NOT_MET,
        NOT_MET,
    )


def test_the_same_answer_is_the_same_to_the_logprob() -> None:
    one = picture("x")
    assert comparison.same(one, picture("y"))
    for change in (
        {"tokens": ["A", "."]},
        {"logprobs": [-0.5, -1.1]},
        {"logprobs": []},
    ):
        other = one.model_copy(update=change)
        assert not comparison.same(one, other)
        assert not comparison.same(other, one)
    empty = one.model_copy(update={"tokens": [], "logprobs": []})
    assert not comparison.same(empty, empty)
    assert compared(one, picture("y")).alike("x", "y")
    assert not compared(one, picture("y", whose="B")).alike("x", "y")


def test_where_two_answers_part() -> None:
    one = picture("x")
    difference = comparison.first_difference
    assert difference(one, one) == "no difference"
    assert (
        difference(one, one.model_copy(update={"tokens": ["A", "."]}))
        == "token 2: 'end' against '.'"
    )
    other = one.model_copy(update={"logprobs": [-0.5, -1.1]})
    assert difference(one, other) == "token 2: logprob -1.0000 against -1.1000"
    longer = one.model_copy(
        update={"tokens": ["A", "end", "x"], "logprobs": [-0.5, -1.0, -2.0]}
    )
    assert difference(one, longer) == "2 against 3 tokens"
    assert comparison.spelled(one) == "A end"
    assert comparison.spelled(one.model_copy(update={"tokens": [], "text": "Y"})) == "Y"
    assert comparison.spelled(one.model_copy(update={"tokens": ["a\n"]})) == "a\\n"


# ----------------------------------------------------------------- as they are declared


def test_what_shared_conditions_are_unless_told_otherwise() -> None:
    assert not common.endpoints_green().abnormal
    alive = common.process_alive()
    assert (alive.live, alive.abnormal) == (True, False)
    assert common.process_alive(abnormal=True).abnormal
    assert common.added_not_scheduled().live is False
    required = {one.id: one.required for one in common.dies_of("x", "it dies")}
    exits = required.pop("server-exits")
    assert (exits, set(required.values())) == (False, {True})


def test_the_first_that_failed_is_named() -> None:
    failed = [request("trigger", "a", status) for status in (500, None, None)]
    assert finding_of(common.answered("a"), sent(*failed)).observed == "a: 500 HTTP 500"
