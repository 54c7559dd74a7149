"""Loud failures, and what only looks like one."""

import pytest
from made_up_plays import answer, canary, case_of, operation, played, refused
from mmrepro.base.records import FindingClass
from mmrepro.engines import get_engine
from mmrepro.probes.data import Frame, ThreadStack
from mmrepro.search.oracle import loud
from mmrepro.search.oracle.judge import judge
from mmrepro.traffic.case.sending import PlayState

VLLM = get_engine("vllm")


def errors(record, state=PlayState.ENDED):
    op = operation(record.label)
    return loud.server_errors(case_of([op]), played([record], state), VLLM)


def test_a_server_that_does_not_start_is_judged_by_that_alone():
    causes = ["ImportError: libfoo.so.12: cannot open shared object file"]
    play = played([], PlayState.START_FAILED, causes=causes, frames=["load", "start"])
    found = judge(case_of([]), play, engine=VLLM)
    assert [s.bucket for s in found.sightings] == [
        "vllm/start-failure/ImportError/load < start"
    ]
    assert not found.unseen


def test_a_taken_port_is_nobodys_failure():
    causes = ["OSError: [Errno 98] Address already in use"]
    found = loud.start_failure(played([], PlayState.START_FAILED, causes=causes), VLLM)
    assert not found.sightings
    assert "port" in found.unseen[0]


def test_a_death_is_known_by_its_exception_or_by_how_it_ended():
    causes = ["AssertionError: nothing to preempt"]
    play = played(
        [], PlayState.DIED, causes=causes, frames=["_decode", "schedule"], exit_code=1
    )
    assert loud.death(case_of([]), play, VLLM).sightings[0].bucket == (
        "vllm/death/AssertionError: nothing to preempt/_decode < schedule"
    )
    silent = loud.death(case_of([]), played([], PlayState.DIED, exit_code=-11), VLLM)
    assert silent.sightings[0].bucket == "vllm/death/SIGSEGV"


def test_answers_that_were_lost_with_the_server_are_no_failures_besides():
    op, other = operation("r1"), operation("r2")
    lost = answer(op, status=None, error="RemoteProtocolError: peer closed connection")
    own = refused(other, 500, "Expected a cached item for mm_hash='ab12'")
    play = played([lost, own], PlayState.DIED, exit_code=1)
    found = loud.server_errors(case_of([op, other]), play, VLLM)
    assert [s.operations for s in found.sightings] == [["r2"]]
    assert found.counted == {"answers lost when the server died": 1}
    assert loud.death(case_of([op, other]), play, VLLM).sightings[0].operations == [
        "r1"
    ]


def test_a_hang_names_where_it_stands_and_who_waits():
    frames = [Frame(function="Cache.evict", file="vllm/cache.py", line=1)]
    stack = [
        ThreadStack(tid=1, name="MainThread", active=True, owns_gil=True, frames=frames)
    ]
    play = played([], PlayState.HUNG, stack=stack, stuck=["r7"], deadline_s=5.0)
    found = loud.hang(play, VLLM)
    assert found.sightings[0].bucket == "vllm/hang/evict"
    assert found.sightings[0].operations == ["r7"]
    assert "inside evict" in found.sightings[0].said
    blind = loud.hang(played([], PlayState.HUNG, stuck=["r7"]), VLLM)
    assert blind.sightings[0].bucket == "vllm/hang/"
    assert "No stack" in blind.unseen[0]


def test_errors_of_one_kind_are_one_sighting():
    ops = [operation(f"r{i}") for i in range(4)]
    records = [
        refused(ops[0], 500, "Expected a cached item for mm_hash='00ab12cd'", at=1.0),
        refused(ops[1], 500, "Expected a cached item for mm_hash='99ff12cd'", at=2.0),
        refused(ops[2], 500, "out of memory", at=3.0),
        answer(ops[3], 4.0, status=None, error="ReadError: connection reset"),
    ]
    found = loud.server_errors(case_of(ops), played(records), VLLM).sightings
    assert [s.operations for s in found] == [["r0", "r1"], ["r2"], ["r3"]]
    assert found[0].bucket == (
        "vllm/server-error/500/SomeError: Expected a cached item for mm_hash=*"
    )
    assert all(s.finding_class is FindingClass.SERVER_ERROR for s in found)


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        (
            {"status": 400, "error": '{"error": {"message": "too long"}}'},
            "requests refused",
        ),
        ({"status": 404, "error": "Not Found"}, "answers of 404: no such endpoint"),
        ({"status": 501, "error": "no"}, "answers of 501: no such endpoint"),
        ({"status": 503, "error": "busy"}, "answers of 503: overloaded"),
        ({"status": 429, "error": "busy"}, "answers of 429: overloaded"),
        (
            {"error": "{'message': 'too long', 'type': 'BadRequestError'}"},
            "requests refused",
        ),
        ({"error": "{'message': 'too long', 'code': 400}"}, "requests refused"),
        ({"finish_reason": "error", "text": "INPUT_LENGTH_ERROR"}, "requests refused"),
    ],
)
def test_what_an_engine_may_say_is_counted(fields, counted):
    found = errors(answer(operation("r1"), **fields))
    assert not found.sightings
    assert found.counted == {counted: 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"left": True, "status": None, "error": "ReadError"},
        {"timed_out": True, "status": None, "error": "no complete answer in 5.0 s"},
        {"error": "the stream ended without [DONE]"},
        {"error": "not a chat completion (KeyError): {}"},
        {},
    ],
)
def test_a_client_that_left_and_a_broken_form_are_no_server_errors(fields):
    found = errors(answer(operation("r1"), **fields))
    assert not found.sightings
    assert not found.counted


@pytest.mark.parametrize(
    ("fields", "bucket"),
    [
        ({"error": "{'message': 'oh no', 'code': 500}"}, "vllm/server-error/500/oh no"),
        ({"finish_reason": "error"}, "vllm/server-error/200/finish reason error"),
        ({"finish_reason": "abort"}, "vllm/server-error/200/finish reason abort"),
        (
            {"status": 500, "error": "Internal Server Error"},
            "vllm/server-error/500/Internal Server Error",
        ),
    ],
)
def test_an_error_inside_an_answer_of_200_is_one(fields, bucket):
    found = errors(answer(operation("r1"), **fields))
    assert [s.bucket for s in found.sightings] == [bucket]


@pytest.mark.parametrize(
    ("words", "parameters", "bucket"),
    [
        ("Internal server error", {}, "Internal server error"),
        (
            "Internal server error",
            {"regex": "a+"},
            "Internal server error, with a grammar",
        ),
        ("KeyError: x", {"regex": "a+"}, "KeyError: x"),
    ],
)
def test_where_an_error_says_nothing_a_grammar_tells_it_from_others(
    words, parameters, bucket
):
    op = operation("r1", **parameters)
    play = played([answer(op, status=500, error=words)])
    (found,) = loud.server_errors(case_of([op]), play, VLLM).sightings
    assert found.bucket == f"vllm/server-error/500/{bucket}"


def test_a_connection_that_the_server_s_end_broke_is_counted():
    lost = answer(operation("r1"), status=None, error="ReadError: ")
    found = errors(lost, PlayState.DIED)
    assert not found.sightings
    assert found.counted == {"answers lost when the server died": 1}


# --------------------------------------------------------------------- failing for good

FINE, LONG, LOST = operation("r1"), operation("r2"), operation("r3")
ASSERTED = {"causes": ["AssertionError"], "frames": ["_async_loop", "_loop_main"]}


def failing(last, state=PlayState.ENDED, before=None):
    """An answer, an opaque 500, another answer, and one more 500 at the end."""
    records = [
        canary("canary before", 0.0, **(before or {})),
        refused(LONG, 500, "Internal Server Error", at=1.0),
        answer(FINE, at=2.0),
        refused(LOST, 500, "Internal Server Error", at=4.0),
        last,
    ]
    return judge(
        case_of([LONG, FINE, LOST]), played(records, state, **ASSERTED), engine=VLLM
    )


def test_a_server_that_fails_every_request_from_some_moment_on():
    last = canary("canary after", 9.0, "", status=500, error="Internal Server Error")
    found = failing(last)
    one, other = found.sightings
    assert one.finding_class is FindingClass.FAILING
    assert one.bucket == "vllm/failing/AssertionError/_async_loop < _loop_main"
    assert one.operations == ["r3"], "r2 failed as well, and r1 was answered after it"
    assert (other.finding_class, other.operations) == (
        FindingClass.SERVER_ERROR,
        ["r2"],
    )
    assert found.counted["answers lost since the server fails every request"] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": 503, "error": "busy"},
        {"status": 400, "error": "no such model"},
        {"status": None, "timed_out": True, "error": "no complete answer in 6.0 s"},
    ],
)
def test_what_answers_or_refuses_the_canary_does_not_fail_every_request(fields):
    found = failing(canary("canary after", 9.0, **fields))
    assert [s.operations for s in found.sightings] == [["r2", "r3"]]
    assert {s.finding_class for s in found.sightings} == {FindingClass.SERVER_ERROR}


def test_a_canary_that_never_was_answered_shows_no_change():
    last = canary("canary after", 9.0, "", status=500, error="Internal Server Error")
    never = {"status": 500, "error": "Internal Server Error"}
    kinds = {s.finding_class for s in failing(last, before=never).sightings}
    assert kinds == {FindingClass.SERVER_ERROR}


def test_a_canary_that_a_death_took_along_is_the_death():
    last = canary("canary after", 9.0, "", status=None, error="ReadError: ")
    kinds = [s.finding_class for s in failing(last, PlayState.DIED).sightings]
    assert kinds[0] is FindingClass.DEATH
    assert FindingClass.FAILING not in kinds


def test_a_server_that_answered_every_request_does_not_fail_for_good():
    """The canary alone got an error: once is no "from now on"."""
    last = canary("canary after", 9.0, "", status=500, error="Internal Server Error")
    for other in (answer(LONG, at=2.0), refused(LONG, 400, "too long", at=2.0)):
        records = [canary("canary before", 0.0), answer(FINE, at=1.0), other, last]
        found = judge(case_of([FINE, LONG]), played(records), engine=VLLM)
        assert found.sightings[0].finding_class is FindingClass.SERVER_ERROR
        assert FindingClass.FAILING not in {s.finding_class for s in found.sightings}
        assert "were all answered" in found.sightings[0].said
    left = answer(LONG, at=2.0, status=None, left=True)
    records = [canary("canary before", 0.0), answer(FINE, at=1.0), left, last]
    found = judge(case_of([FINE, LONG]), played(records), engine=VLLM)
    first = found.sightings[0].finding_class
    assert first is FindingClass.FAILING, "nothing was answered since a client left"


@pytest.mark.parametrize(
    "code", [-9, -15, -2, -1, 137, 143, -3, -10, -12, -24, -30, 131]
)
@pytest.mark.parametrize("causes", [[], ["ValueError: an earlier one"]])
def test_a_signal_that_somebody_sent_is_no_death(code, causes):
    play = played(
        [], PlayState.DIED, exit_code=code, causes=causes, frames=["f"] * bool(causes)
    )
    found = loud.death(case_of([]), play, VLLM)
    assert not found.sightings
    assert "somebody sent it" in found.unseen[0]
    own = loud.death(case_of([]), play.model_copy(update={"ends_itself": True}), VLLM)
    assert "by itself" not in own.sightings[0].said


@pytest.mark.parametrize("code", [-11, -6, -7, -8, -5, -31, 1, 139, 134, None])
def test_a_crash_and_an_exit_are_a_death(code):
    found = loud.death(case_of([]), played([], PlayState.DIED, exit_code=code), VLLM)
    assert [s.finding_class for s in found.sightings] == [FindingClass.DEATH]


@pytest.mark.parametrize("before", [None, {"status": 400, "error": "no logprobs"}])
def test_a_loop_that_ended_fails_for_good_where_no_canary_can_show_it(before):
    """An engine that refuses the canary, and one that has no chat at all."""
    lmdeploy = get_engine("lmdeploy")
    op = operation("r1")
    asked = [] if before is None else [canary("canary before", 0.0, **before)]
    records = [*asked, answer(op, status=500, error="Internal Server Error")]
    ended = "TypeError: unhashable type: 'list'"
    play = played(records, causes=[ended], frames=["loop"], loop_ended=ended)
    (found,) = judge(case_of([op]), play, engine=lmdeploy).sightings
    assert (found.finding_class, found.operations) == (FindingClass.FAILING, ["r1"])
    assert "loop ended" in found.said
    answered = [
        canary("canary before", 0.0),
        *records[len(asked) :],
        canary("canary after", 9.0),
    ]
    play = played(answered, causes=[ended], loop_ended=ended)
    kinds = {
        one.finding_class
        for one in judge(case_of([op]), play, engine=lmdeploy).sightings
    }
    assert FindingClass.FAILING not in kinds
