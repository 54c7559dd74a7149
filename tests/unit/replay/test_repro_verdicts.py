"""What a report claims, and what a replay says of it."""

from __future__ import annotations

from typing import Any

import pytest
from fake_plays import SERVER
from mmrepro.base.errors import UsageError
from mmrepro.base.machine.host import host_facts
from mmrepro.base.records import Fidelity, FindingClass, Moment
from mmrepro.failure.documents.replay import (
    Answer,
    Claim,
    ClientEnd,
    Finding,
    Needs,
    PlayFacts,
    Rate,
    Replaced,
    Replay,
    ReportFacts,
    ReproVerdict,
    Sighting,
)
from mmrepro.search.oracle.scripted import HELD
from mmrepro.search.repro.claim import claim_of, read_claim, what_about
from mmrepro.search.repro.verdict import concluded
from mmrepro.traffic.case.model import Origin

D, F, S, H = (
    FindingClass.DEATH,
    FindingClass.FAILING,
    FindingClass.SERVER_ERROR,
    FindingClass.HANG,
)


@pytest.mark.parametrize(
    ("title", "text", "status", "classes"),
    [
        (
            "Invalid response_format leads in 500 errors",
            "It should return HTTP 400.",
            500,
            [S],
        ),
        (
            "",
            "The server returns HTTP 500 (Internal Server Error) instead of 422.",
            500,
            [S],
        ),
        ("", "results in an HTTP 500 response, expected 400 Bad Request", 500, [S]),
        ("x", "EngineCore encountered a fatal error.\nEngineDeadError", None, [D, F]),
        ("n>1 crashes engine", "", None, [D, F, S]),
        ("", "Scheduler hit an exception: Traceback", None, [D, F]),
        (
            "",
            "The client gets a disconnected connection and the server exits.",
            None,
            [D, F],
        ),
        ("Requests hang forever", "", None, [H]),
        ("", 'I get {"error": ..., "code": 400}', 400, []),
        ("", "The request gets HTTP 500 and EngineCore dies.", 500, [D, F]),
        ("", "The EngineCore process has exited", None, [D, F]),
        ("How do I use it?", "We use 512 tokens and 500 steps to warm up.", None, []),
        ("How do I use it?", "Please explain.", None, []),
        ("", "curl: (18) transfer closed with outstanding read data", None, [S]),
        ("", "IncompleteRead, as the EngineCore process has died", None, [D, F]),
    ],
)
def test_what_a_text_claims(
    title: str, text: str, status: int | None, classes: list[FindingClass]
) -> None:
    claim = read_claim(title, text)
    assert (claim.status, claim.classes) == (status, classes)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "NCCL error in: /x.cpp:1, unhandled system error",
        'File "/x/vllm/v1/worker/gpu/states.py", line 104, in add_request',
        r"[TM][ERROR] Assertion fail: D:\x\src/turbomind/models/llama/Barrier.h:20",
    ],
)
def test_what_only_a_gpu_shows_is_noticed(text: str) -> None:
    assert read_claim("", text).hardware
    assert not read_claim("", "RuntimeError: shape mismatch").hardware


def test_exceptions_of_clients_name_no_cause() -> None:
    text = (
        "openai.InternalServerError: 500\nTypeError: '<' not supported\nEngineDeadError"
    )
    assert read_claim("", text).exceptions == ["TypeError"]


def test_words_of_the_command_line() -> None:
    assert claim_of("500").status == 500
    assert claim_of("crash").classes == [D, F]
    with pytest.raises(UsageError, match="nonsense"):
        claim_of("nonsense")


# ----------------------------------------------------------------------------- verdicts


def finding(kind: FindingClass, cause: str = "", **more: Any) -> Finding:
    rate = Rate(failed=2, plays=2, low=0.1, high=1)
    return Finding(
        id="f1",
        finding_class=kind,
        bucket=f"vllm/{kind}/x",
        said=f"it fails: {cause}",
        confirmed=more.pop("confirmed", True),
        rate=rate,
        requests=1,
        requests_before=1,
        server=SERVER,
        log_lines=[cause] if cause else [],
        **more,
    )


def answer(status: str, words: str = "") -> Answer:
    return Answer(
        operation="r1", path="/v1/x", status=status, words=f"{status} {words}".strip()
    )


def replay(claim: Claim, **more: Any) -> Replay:
    report = ReportFacts(
        claim=claim, replaced=more.pop("replaced", []), output=more.pop("output", "")
    )
    return Replay(
        mmrepro_version="0",
        id="x",
        created=Moment.now(),
        state="complete",
        command="mmrepro repro",
        origin=Origin(),
        server=SERVER,
        requests=1,
        host=host_facts(),
        fidelity=Fidelity.CPU,
        budget=40,
        report=report,
        **more,
    )


LLAMA = Replaced(what="meta-llama/Llama-3.1-8B", by="x", why="x", model=True)
FLAG = Replaced(what="--quantization fp8", why="it needs a GPU", essential=True)
ONCE = Sighting(finding_class=D, bucket="b", said="it died")
LOOK = Answer(
    operation="r0", method="GET", path="/v1/models", status="200", words="200 {}"
)
TYPE = Claim(classes=[D, F], exceptions=["TypeError"])


@pytest.mark.parametrize(
    ("claim", "seen", "verdict", "words"),
    [
        (TYPE, {"findings": [finding(D, "TypeError: x")]}, "reproduced", "2 of 2"),
        (TYPE, {"findings": [finding(S, "TypeError: x")]}, "reproduced", "TypeError"),
        (
            TYPE,
            {"findings": [finding(D, "NotImplementedError: op")]},
            "different",
            "not the death",
        ),
        (TYPE, {"findings": [finding(D, "EngineDeadError: x")]}, "reproduced", ""),
        (
            TYPE,
            {"findings": [finding(D, "TypeError: x", confirmed=False)]},
            "unproven",
            "",
        ),
        (TYPE, {"unconfirmed": [ONCE]}, "unproven", "it died"),
        (
            read_claim("", "The request gets HTTP 500 and EngineCore dies."),
            {"findings": [finding(S)]},
            "different",
            "not the death of the report",
        ),
        (Claim(), {"findings": [finding(S, "ValueError: x")]}, "reproduced", ""),
        (Claim(classes=[H]), {"findings": [finding(S)]}, "different", "not the hang"),
        (
            Claim(classes=[D]),
            {"findings": [finding(FindingClass.METRICS)]},
            "not-reproduced",
            "what is wrong is another class (metrics)",
        ),
        (
            Claim(classes=[D]),
            {"findings": [finding(FindingClass.EXPECTATION)]},
            "reproduced",
            "",
        ),
        (
            read_claim("logit_bias of -100 is ignored", ""),
            {"findings": [finding(FindingClass.PROTOCOL)]},
            "reproduced",
            "",
        ),
        (
            Claim(),
            {"findings": [finding(FindingClass.PROTOCOL)]},
            "different",
            "protocol: it fails",
        ),
        (
            Claim(status=500, classes=[S]),
            {"answers": [answer("400", "a schema is needed")]},
            "not-reproduced",
            "400, not the 500 of the report: a schema is needed",
        ),
        (
            Claim(status=500, classes=[S]),
            {"answers": [answer("403", "Restart vllm serve with --enable-scale-out")]},
            "nothing-tested",
            "nothing was tested: r1 got 403 Restart vllm serve with --enable-scale-out",
        ),
        (
            Claim(status=500, classes=[S]),
            {"answers": [answer("400", "maximum context length is 2048 tokens")]},
            "nothing-tested",
            "context length",
        ),
        (
            Claim(classes=[D]),
            {
                "answers": [
                    answer("400", "token id 151645 is out of vocabulary, below 1446")
                ]
            },
            "nothing-tested",
            "151645",
        ),
        (
            Claim(classes=[D]),
            {
                "answers": [
                    answer("400", "token_id(s) [1151645] are out-of-vocab; [0, 1446)")
                ]
            },
            "not-reproduced",
            "400, not the death of the report",
        ),
        (
            Claim(classes=[D]),
            {
                "answers": [
                    answer("400", "token_id(s) [191222, 99999] are out-of-vocab; 1446")
                ],
                "replaced": [LLAMA],
            },
            "not-reproduced",
            "400, not the death of the report",
        ),
        (
            Claim(classes=[D]),
            {
                "answers": [
                    answer("400", "token_id(s) [99999] are out-of-vocab; [0, 1446)")
                ],
                "replaced": [LLAMA],
            },
            "nothing-tested",
            "the tiny model has fewer tokens than meta-llama/Llama-3.1-8B",
        ),
        (
            Claim(),
            {"output": "client.sh: line 1: http: command not found"},
            "nothing-tested",
            "--container IMAGE, of one that has http",
        ),
        (
            Claim(classes=[D]),
            {"answers": [answer("400", "token id -1 is out of vocabulary")]},
            "not-reproduced",
            "-1",
        ),
        (
            Claim(),
            {"answers": [answer("400", "bad")]},
            "nothing-tested",
            "r1 got 400 bad",
        ),
        (
            Claim(status=400),
            {"answers": [answer("400", "bad")]},
            "reproduced",
            "as in the report",
        ),
        (
            Claim(),
            {"answers": [answer("200", "fine")]},
            "not-reproduced",
            "1 request answered",
        ),
        (
            Claim(classes=[D]),
            {"answers": [LOOK, answer("200", "fine"), answer("403", "no")]},
            "nothing-tested",
            "r1 got 403 no",
        ),
        (
            Claim(classes=[D]),
            {"answers": [LOOK, answer("404", "no")]},
            "nothing-tested",
            "404",
        ),
        (
            Claim(classes=[D]),
            {"answers": [answer("200"), answer("400", "bad seed")]},
            "not-reproduced",
            "400, not the death of the report: bad seed",
        ),
        (
            Claim(),
            {"output": "Traceback\nModuleNotFoundError: No module named 'x'"},
            "nothing-tested",
            "no request was sent; its client ended with ModuleNotFoundError",
        ),
        (
            Claim(),
            {"answers": [answer("200")], "replaced": [FLAG]},
            "needs-hardware",
            "fp8",
        ),
        (Claim(), {"findings": [finding(S)], "replaced": [FLAG]}, "reproduced", ""),
        (
            Claim(),
            {"findings": [finding(FindingClass.START_FAILURE)], "replaced": [FLAG]},
            "needs-hardware",
            "fp8",
        ),
        (
            Claim(),
            {"findings": [finding(FindingClass.START_FAILURE)]},
            "nothing-tested",
            "",
        ),
        (
            Claim(hardware="device-side assert", classes=[D]),
            {"answers": [answer("200")]},
            "needs-hardware",
            "device-side assert",
        ),
    ],
)
def test_verdicts(claim: Claim, seen: dict[str, Any], verdict: str, words: str) -> None:
    if "answers" not in seen and "output" not in seen:
        seen = {**seen, "answers": [answer("200")]}
    made = replay(claim, **seen)
    got, said = concluded(made)
    assert got == verdict, said
    assert words in said
    assert made.report is not None
    made.report.verdict = got
    expected = {ReproVerdict.REPRODUCED: 1, ReproVerdict.NOT_REPRODUCED: 0}.get(got, 3)
    assert made.exit_code == expected


def test_a_replay_of_refusals_alone_tested_nothing() -> None:
    made = replay(Claim(), answers=[answer("403", "no"), answer("400", "no")])
    made.report = None
    assert (
        made.nothing_tested
        == "nothing was tested: r1 got 403 no, and 1 more were refused"
    )
    assert made.exit_code == 3
    made.answers.append(LOOK)
    assert made.nothing_tested, "a look tests nothing"
    made.answers.append(answer("200"))
    assert (made.nothing_tested, made.exit_code) == ("", 0)


# --------------------------------------------------------- what never came


def of_protocol(kind: str, **more: Any) -> Finding:
    made = finding(FindingClass.PROTOCOL, **more)
    made.bucket = f"protocol/{kind}"
    return made


@pytest.mark.parametrize(
    ("title", "prose", "about"),
    [
        ("A stream ends with `finish_reason: tool_calls`", "", ["finish"]),
        ("Wrong answer", "The stop string is in the text", ["stop"]),
        ("The stop string is kept by derender", "", ["stop", "derender"]),
        ("500 of /v1/messages", "see /v1/models", ["/v1/messages"]),
        ("curl -H 'Content-Type: x'", "", []),
    ],
)
def test_what_a_report_is_about(title: str, prose: str, about: list[str]) -> None:
    assert what_about(title, prose) == about


def test_what_is_wrong_with_what_the_report_is_about_is_reproduced() -> None:
    claim = Claim(about=["finish", "calls"])
    made = replay(claim, findings=[of_protocol("stream-finish")])
    assert concluded(made)[0] is ReproVerdict.REPRODUCED
    made = replay(claim, findings=[of_protocol("usage")])
    assert concluded(made)[0] is not ReproVerdict.REPRODUCED
    made = replay(Claim(), findings=[of_protocol("stream-finish")])
    assert concluded(made)[0] is not ReproVerdict.REPRODUCED


@pytest.mark.parametrize(
    ("claim", "missing", "verdict"),
    [
        (Claim(), [], ReproVerdict.NOT_REPRODUCED),
        (Claim(), ["a tool call"], ReproVerdict.NOTHING_TESTED),
        (Claim(classes=[D, F]), ["a tool call"], ReproVerdict.NOT_REPRODUCED),
        (
            Claim(classes=[D, F], about=["calls"]),
            ["a tool call"],
            ReproVerdict.NOTHING_TESTED,
        ),
        (Claim(about=["stop", "derender"]), [], ReproVerdict.NOTHING_TESTED),
    ],
)
def test_what_never_came_was_not_tested(
    claim: Claim, missing: list[str], verdict: ReproVerdict
) -> None:
    answer = Answer(
        operation="r1", path="/v1/completions", status="200", words="", missing=missing
    )
    made, said = concluded(replay(claim, answers=[answer]))
    assert made is verdict
    assert ("--script FILE" in said) == (missing != [] and "nothing was" in said)


def test_a_failure_that_needs_no_request_is_not_the_report_s() -> None:
    made = finding(D)
    made.requests = 0
    verdict, said = concluded(replay(Claim(classes=[D, F]), findings=[made]))
    assert verdict is ReproVerdict.NOTHING_TESTED
    assert "none of the report's requests" in said


# ------------------------------------------------------------ what refutes nothing


@pytest.mark.parametrize(
    ("args", "verdict"),
    [(["--tool-call-parser", "hermes"], "reproduced"), ([], "nothing-tested")],
)
def test_a_refusal_that_asks_for_an_option_which_is_there_is_the_failure(
    args: list[str], verdict: str
) -> None:
    words = "a named tool requires --tool-call-parser to be set"
    made = of_report(Claim(status=400), answers=[answer("400", words)])
    made.server = made.server.model_copy(update={"args": args})
    assert concluded(made)[0] == verdict


def test_an_answer_without_end_to_a_request_that_is_refused_is_no_context() -> None:
    words = "the answer has more than 8388608 bytes"
    made = of_report(Claim(status=400), answers=[answer("400", words)])
    assert concluded(made)[0] == "reproduced"


def of_report(claim: Claim, **more: Any) -> Replay:
    names = ("end", "shows_output", "shows_sound")
    facts = {name: more.pop(name) for name in names if name in more}
    made = replay(claim, answers=more.pop("answers", [answer("200", "fine")]), **more)
    assert made.report is not None
    made.report.source = "issue.md"
    made.report = made.report.model_copy(update=facts)
    return made


CHECK = ClientEnd(
    code=1, exception="AssertionError", line=9, is_check=True, asked=3, runs=2, failed=2
)


def test_a_client_s_own_check_is_the_report_s_where_that_is_silent() -> None:
    verdict, said = concluded(of_report(Claim(about=["derender"]), end=CHECK))
    assert verdict is ReproVerdict.REPRODUCED
    assert "line 9 (AssertionError) fails in 2 of 2 runs" in said
    once = CHECK.model_copy(update={"failed": 1})
    assert concluded(of_report(Claim(), end=once))[0] is ReproVerdict.UNPROVEN
    refused = CHECK.model_copy(update={"refused": 1})
    assert concluded(of_report(Claim(), end=refused))[0] is ReproVerdict.NOTHING_TESTED
    loud = of_report(Claim(classes=[D, F]), end=CHECK)
    assert concluded(loud)[0] is not ReproVerdict.REPRODUCED


@pytest.mark.parametrize(
    ("claim", "more", "verdict", "words"),
    [
        (Claim(), {}, ReproVerdict.NOTHING_TESTED, "not read from its words"),
        (Claim(expected=True), {}, ReproVerdict.NOT_REPRODUCED, "1 request answered"),
        (Claim(classes=[D, F]), {}, ReproVerdict.NOT_REPRODUCED, "not the death"),
        (
            Claim(classes=[D, F]),
            {"end": ClientEnd(ended="it had not ended after 120 s", asked=9)},
            ReproVerdict.NOTHING_TESTED,
            "when 9 requests had been sent",
        ),
        (
            Claim(classes=[D, F]),
            {"end": ClientEnd(code=1, exception="JSONDecodeError", line=3, asked=1)},
            ReproVerdict.NOTHING_TESTED,
            "an exit code of 1",
        ),
        (
            Claim(classes=[H], rare="after some hours"),
            {},
            ReproVerdict.NOTHING_TESTED,
            "it comes and goes",
        ),
        (
            Claim(classes=[FindingClass.WRONG_ANSWER]),
            {},
            ReproVerdict.NOTHING_TESTED,
            "no short test",
        ),
        (
            Claim(classes=[FindingClass.PROTOCOL]),
            {},
            ReproVerdict.NOTHING_TESTED,
            "no rule of mmrepro's",
        ),
        (
            Claim(about=["/v1/x"]),
            {},
            ReproVerdict.NOTHING_TESTED,
            "no rule of mmrepro's judges",
        ),
        (Claim(about=["calls"]), {}, ReproVerdict.NOTHING_TESTED, "--script FILE"),
        (
            Claim(about=["calls"]),
            {"shows_output": True},
            ReproVerdict.NOT_REPRODUCED,
            "1 request answered",
        ),
        (
            Claim(about=["calls"]),
            {"shows_output": True, "shows_sound": True},
            ReproVerdict.NOTHING_TESTED,
            "no rule of mmrepro's says what is wrong",
        ),
        (Claim(about=["stop"]), {}, ReproVerdict.NOT_REPRODUCED, "nothing is wrong"),
        (Claim(about=["metrics"]), {}, ReproVerdict.NOTHING_TESTED, "only some"),
        (
            Claim(classes=[D], model_code="model_executor/models/x.py"),
            {},
            ReproVerdict.NEEDS_MODEL,
            "code of its own model",
        ),
    ],
)
def test_silence_refutes_only_what_was_tested(
    claim: Claim, more: dict[str, Any], verdict: ReproVerdict, words: str
) -> None:
    made, said = concluded(of_report(claim, **more))
    assert made is verdict, said
    assert words in said


def test_what_no_rule_held_against_the_model_s_words_refutes_nothing() -> None:
    unheld = answer("200", "fine").model_copy(update={"missing": [HELD]})
    shown = {"shows_output": True, "answers": [unheld]}
    verdict, said = concluded(of_report(Claim(about=["calls"]), **shown))
    assert verdict is ReproVerdict.NOTHING_TESTED
    assert "--expect" in said
    for claim in (Claim(about=["stop"]), Claim(about=["calls"], expected=True)):
        assert concluded(of_report(claim, **shown))[0] is ReproVerdict.NOT_REPRODUCED


def test_what_the_client_saw_is_not_refuted_by_its_requests_alone() -> None:
    saw = ClientEnd(saw="r1 got 500", asked=2, refused=1)
    refused = [answer("400", "body.model: field required")]
    for answers in (refused, [answer("200", "fine")]):
        loud = of_report(Claim(status=500, classes=[S]), end=saw, answers=answers)
        verdict, said = concluded(loud)
        assert verdict is ReproVerdict.UNPROVEN
        assert "r1 got 500 as the client ran" in said
    silent = of_report(Claim(about=["stop"]), end=saw)
    assert concluded(silent)[0] is ReproVerdict.NOT_REPRODUCED


def test_a_client_that_left_waited_for_no_answer() -> None:
    left = [answer("left", "after sent")]
    for claim in (Claim(classes=[FindingClass.HANG]), Claim(about=["stop"])):
        verdict, said = concluded(of_report(claim, answers=left))
        assert verdict is ReproVerdict.NOTHING_TESTED
        assert "went away" in said
    ended = of_report(Claim(classes=[D, F]), answers=left)
    assert concluded(ended)[0] is ReproVerdict.NOT_REPRODUCED


@pytest.mark.parametrize(
    ("place", "classes"),
    [
        ("site-packages/vllm/v1/engine/input_processor.py", [S]),
        ("sglang/srt/managers/tokenizer_manager.py", [S]),
        ("vllm/tool_parsers/hermes_tool_parser.py", []),
        ("site-packages/transformers/tokenizer.py", []),
    ],
)
def test_an_exception_of_the_engine_is_no_answer(
    place: str, classes: list[FindingClass]
) -> None:
    told = f'  File "/x/{place}", line 7, in f\nKeyError: 7\n'
    claim = read_claim("", f"It does not work.\n{told}")
    assert (claim.exceptions, claim.classes) == (["KeyError"], classes)
    with_status = read_claim("", f"I get HTTP 400.\n{told}")
    assert with_status.classes == []


def test_a_client_that_tries_again_for_ever_shows_no_hang() -> None:
    assert not read_claim("", "the client retries forever").classes
    assert read_claim("", "then it waits forever").classes == [FindingClass.HANG]


@pytest.mark.parametrize(
    "words",
    [
        "The output is random output.",
        "requests returned outputs consisting solely of “!”",
        "it emits only `!`",
        "an accuracy drop on GSM8K",
        "The model repeats endlessly: endless repetition",
        "结果排序错误",
    ],
)
def test_what_only_weights_decide_is_a_wrong_answer(words: str) -> None:
    assert read_claim("", words).classes == [FindingClass.WRONG_ANSWER]
    claim = Claim(classes=[FindingClass.WRONG_ANSWER])
    made = of_report(claim, answers=[], replaced=[QUANTISED])
    assert concluded(made)[0] is ReproVerdict.NEEDS_MODEL
    assert concluded(of_report(claim, answers=[]))[0] is ReproVerdict.NOTHING_TESTED


def left_out(what: str, needs: Needs) -> Replaced:
    return Replaced(what=what, why="it is not here", essential=True, needs=needs)


QUANTISED = Replaced(
    what="org/model-AWQ",
    by="a tiny Llama",
    why="not quantised",
    essential=True,
    model=True,
    needs=Needs.MODEL,
)


@pytest.mark.parametrize(
    ("claim", "row", "verdict"),
    [
        (Claim(classes=[D]), left_out("-tp 2", Needs.HARDWARE), "needs-hardware"),
        (Claim(about=["finish"]), left_out("-tp 2", Needs.HARDWARE), "not-reproduced"),
        (
            Claim(about=["calls", "text"]),
            left_out("-tp 2", Needs.HARDWARE),
            "nothing-tested",
        ),
        (
            Claim(about=["text"]),
            left_out("-tp 2", Needs.HARDWARE),
            "needs-hardware",
        ),
        (Claim(classes=[D]), left_out("A=0", Needs.RELEASE), "nothing-tested"),
        (Claim(classes=[D]), left_out("--lora", Needs.MODEL), "needs-model"),
        (Claim(classes=[D]), QUANTISED, "needs-model"),
        (Claim(about=["finish"]), QUANTISED, "needs-model"),
        (Claim(about=["calls"]), QUANTISED, "nothing-tested"),
        (Claim(classes=[D]), left_out("--x y", Needs.TRUST), "nothing-tested"),
    ],
)
def test_what_a_failure_hangs_on_that_is_left_out(
    claim: Claim, row: Replaced, verdict: str
) -> None:
    made, said = concluded(of_report(claim, replaced=[row]))
    assert made == verdict, said


def test_a_refusal_never_comes_as_far_as_a_gpu() -> None:
    claim = Claim(status=500, classes=[S])
    row = left_out("-tp 8", Needs.HARDWARE)
    made = of_report(claim, replaced=[row], answers=[answer("400", "bad schema")])
    assert concluded(made)[0] is ReproVerdict.NOT_REPRODUCED


def test_a_loud_failure_is_not_that_of_a_report_of_an_answer() -> None:
    made = of_report(Claim(about=["reasoning"]), findings=[finding(S, "KeyError: x")])
    assert concluded(made)[0] is ReproVerdict.DIFFERENT
    unread = of_report(Claim(), findings=[finding(S, "KeyError: x")])
    assert concluded(unread)[0] is ReproVerdict.UNPROVEN


def test_a_refusal_of_other_words_is_not_the_report_s() -> None:
    claim = Claim(status=400, messages=["The tokenizer has no template for tools"])
    other = of_report(claim, answers=[answer("400", "Unknown field in logit bias")])
    assert concluded(other)[0] is not ReproVerdict.REPRODUCED
    same = of_report(claim, answers=[answer("400", "The tokenizer has no template")])
    assert concluded(same)[0] is ReproVerdict.REPRODUCED


def test_words_by_which_a_failure_comes_and_goes() -> None:
    assert read_claim("It hangs after a few hours", "").rare == "after a few hours"
    assert read_claim("It hangs", "").rare == ""
    trace = 'File "/x/vllm/model_executor/models/qwen3.py", line 3, in forward'
    assert read_claim("", trace).model_code == "model_executor/models/qwen3.py"


@pytest.mark.parametrize(
    ("logged", "verdict"),
    [
        ("ValueError: unknown dtype float7 for the cache", "reproduced"),
        ("ValueError: could not locate think start tokens", "nothing-tested"),
        ("RuntimeError: Engine core initialization failed. See", "nothing-tested"),
    ],
)
def test_a_start_that_fails_is_the_report_s_by_its_words(
    logged: str, verdict: str
) -> None:
    text = (
        "ValueError: unknown dtype float7 for the cache\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    claim = read_claim("vLLM fails to start", text)
    made = replay(claim, findings=[finding(FindingClass.START_FAILURE, logged)])
    got, said = concluded(made)
    assert got == verdict, said


def test_what_is_ignored_is_another_feature_than_what_is_wrong() -> None:
    claim = read_claim("The stop string is ignored", "")
    claim.about = what_about("The stop string is ignored", "")
    other = replay(claim, findings=[of_protocol("stream-finish")])
    assert concluded(other)[0] is not ReproVerdict.REPRODUCED
    same = replay(claim, findings=[of_protocol("stop-text")])
    assert concluded(same)[0] is ReproVerdict.REPRODUCED


@pytest.mark.parametrize(
    ("part", "about", "verdict"),
    [
        ("the calls of tools are [] and ['f({})']", ["calls"], "reproduced"),
        ("the text is '<tool_call>' and ''", ["calls"], "reproduced"),
        ("the end is stop and tool_calls", ["calls"], "different"),
        ("the calls of tools are [] and ['f({})']", ["reasoning"], "different"),
    ],
)
def test_a_stream_differs_from_the_whole_in_what_the_report_is_about(
    part: str, about: list[str], verdict: str
) -> None:
    seen = finding(FindingClass.EXPECTATION, f"beside r1-whole {part}.")
    made = of_report(Claim(about=about), findings=[seen])
    assert concluded(made)[0] == verdict
    made.report.claim.expected = True  # type: ignore[union-attr]
    assert concluded(made)[0] == "reproduced"


def test_a_small_stand_in_is_told_where_the_code_of_the_report_runs() -> None:
    claim = Claim(classes=[D, F], hardware="vllm/v1/worker/gpu/sample/x.py")
    refused = answer("400", "allowed_token_ids contains out-of-vocab token id!")
    made = replay(claim, answers=[refused])
    assert concluded(made)[0] is ReproVerdict.NEEDS_HARDWARE
    more = {"release": "0.32.0", "args": ["{feature:runner-v2}"]}
    made.server = made.server.model_copy(update=more)
    verdict, words = concluded(made)
    assert verdict is ReproVerdict.NOTHING_TESTED
    assert "fewer tokens" in words


START = Claim(classes=[FindingClass.START_FAILURE])
STARTED = PlayFacts(
    number=2, what="the whole case", requests=0, state="ended", start_s=9.0
)
NOT_STARTED = STARTED.model_copy(update={"state": "start-failed"})


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({"plays": [STARTED]}, "not-reproduced"),
        ({"plays": [STARTED], "replaced": [FLAG]}, "needs-hardware"),
        ({"plays": [NOT_STARTED]}, "nothing-tested"),
        ({"plays": []}, "nothing-tested"),
    ],
)
def test_a_start_without_a_client_is_tested_by_starting(
    more: dict[str, Any], verdict: str
) -> None:
    seen, words = concluded(replay(START, **more))
    assert seen == verdict
    assert ("the server starts" in words) is (more["plays"] == [STARTED])


def test_an_option_that_the_command_refuses_says_nothing_of_a_model() -> None:
    refused = "argument --convert: invalid choice: 'reward' (choose from 'auto')"
    kind = FindingClass.START_FAILURE
    for cause, verdict in ((refused, "nothing-tested"), ("CUDA", "needs-model")):
        made = replay(START, findings=[finding(kind, cause)], replaced=[QUANTISED])
        assert concluded(made)[0] == verdict


def test_a_start_that_comes_and_goes_is_not_refuted_by_one() -> None:
    rare = START.model_copy(update={"rare": "sometimes"})
    seen, words = concluded(replay(rare, plays=[STARTED]))
    assert (seen, "sometimes" in words) == ("nothing-tested", True)
