"""Where a silent engine stands: each state's words, frames and process, and the edges
between."""

from __future__ import annotations

from typing import Any

import pytest
from made_up import http
from mmrepro.failure.documents.diagnosis import Assessment, ServerState
from mmrepro.live.diagnose import frozen
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes.data import AnyProbeData, ThreadStack
from seen import (
    CORE,
    FRONT,
    GREEN,
    IDLE,
    TID,
    evidence,
    frames,
    idle,
    log,
    sampled,
    still,
    target,
    thread,
    use,
    waiting,
)

LOOP = frames("pop cache.py:5", "evict cache.py:9", "loop core.py:1")
STEP = frames("matmul layer.py:7", "step core.py:3")


def view(*data: AnyProbeData, **facts: Any) -> DiagnosisView:
    return DiagnosisView(target(**facts), evidence(*data))


def engine(*data: AnyProbeData, asked: bool = True, **facts: Any) -> Assessment:
    return frozen.engine(view(*data, **facts), ["seen"], asked=asked)


def five(*threads: ThreadStack, pid: int = CORE) -> Any:
    return sampled(*[list(threads)] * 5, pid=pid)


def mixed(*gil: bool, stack: Any = STEP) -> Any:
    return sampled(*[[thread(stack, gil=one)] for one in gil])


# --------------------------------------------------------------- one thread that stands


def test_a_loop_in_python_has_the_gil_in_half_of_the_samples() -> None:
    half = engine(mixed(True, True, False, False), use(98.0))
    assert half.state is ServerState.FROZEN_PYTHON
    less = engine(mixed(True, False, False, False), use(98.0))
    assert less.state is ServerState.FROZEN_NATIVE
    assert half.sentence == (
        "EngineCore is stuck in an endless loop in matmul (layer.py:7). Its thread "
        "'MainThread' uses CPU and never releases the GIL."
    )
    assert less.sentence == (
        "EngineCore is stuck in native code called from matmul (layer.py:7): it "
        "uses CPU without end and does not hold the GIL."
    )
    assert half.why == [
        "seen",
        "EngineCore uses 98 % user + 0 % system of a core",
        "in all 4 samples thread 'MainThread' is in matmul (layer.py:7), 4 times "
        "active, 2 times with the GIL",
    ]
    assert (half.process, half.thread, half.seen, half.samples) == (
        "EngineCore",
        "MainThread",
        4,
        4,
    )
    assert [f.function for f in half.frames] == ["matmul", "step"]
    assert half.advice[0] == less.advice[0] == frozen.KEEP
    assert less.advice[1] == frozen.MORE_STACKS.format(pid=CORE)


def test_a_core_that_is_hot_spins_where_its_thread_was_active_each_time() -> None:
    """The thread that uses the CPU may not be told, as without the right to read its
    times."""
    unnamed = use(98.0, thread=1.0)
    assert (
        engine(five(thread(LOOP, gil=True)), unnamed).state is ServerState.FROZEN_PYTHON
    )
    lazy = sampled(*[[thread(STEP, active=n > 0)] for n in range(4)])
    assert engine(lazy, unnamed).state is ServerState.BLOCKED_ON_LOCK
    assert engine(lazy, use(98.0)).state is ServerState.FROZEN_NATIVE
    without_id = five(thread(LOOP, gil=True, tid=None))  # type: ignore[arg-type]
    assert engine(without_id, use(98.0)).state is ServerState.FROZEN_PYTHON
    cold = engine(five(thread(LOOP, gil=True)), use(1.0))
    assert cold.state is ServerState.FROZEN_NATIVE


def test_a_loop_with_a_fifth_of_a_processor_waits_for_no_lock() -> None:
    """Beside others it sleeps now and then, for the GIL."""
    samples = [[thread(LOOP, gil=n != 2, active=n != 2)] for n in range(5)]
    busy = engine(sampled(*samples), use(18.0))
    assert busy.state is ServerState.FROZEN_PYTHON
    seldom = [[thread(LOOP, gil=n == 2, active=n == 2)] for n in range(5)]
    assert engine(sampled(*seldom), use(18.0)).state is ServerState.BLOCKED_ON_LOCK


def test_a_wait_in_a_native_call() -> None:
    asleep = five(thread(STEP, active=False))
    read = engine(asleep, use(1.0), waiting("read"))
    assert read.sentence == (
        "EngineCore waits in a native call made by matmul (layer.py:7) (system call "
        "read)."
    )
    assert read.advice == [frozen.KEEP, frozen.MORE_STACKS.format(pid=CORE)]
    kept = engine(five(thread(STEP, active=False, gil=True)), use(1.0))
    assert kept.sentence == (
        "EngineCore waits in a native call made by matmul (layer.py:7) and keeps the "
        "GIL."
    )
    assert kept.state is ServerState.FROZEN_NATIVE
    cuda = five(thread(frames("synchronize torch/cuda/streams.py:7"), active=False))
    stuck = engine(cuda, use(99.0), waiting("futex"))  # CUDA waits in a loop
    assert stuck.state is ServerState.KERNEL_STUCK
    assert stuck.sentence.startswith(
        "EngineCore waits for its device in synchronize, called by "
    )
    launch = five(thread(frames("launch triton/backends/driver.py:7"), active=False))
    assert engine(launch, use(1.0), waiting("futex")).state is ServerState.FROZEN_NATIVE
    assert "(system call futex)" in engine(launch, use(1.0), waiting("futex")).sentence
    assert (
        engine(asleep, use(1.0), waiting("futex")).state is ServerState.BLOCKED_ON_LOCK
    )
    assert engine(asleep, use(1.0)).state is ServerState.BLOCKED_ON_LOCK
    other = engine(five(thread(STEP, active=False, tid=7)), use(1.0), waiting("read"))
    assert other.state is ServerState.BLOCKED_ON_LOCK
    nameless = five(thread(STEP, active=False, tid=None))  # type: ignore[arg-type]
    calls = waiting("read")
    calls.waits = dict.fromkeys((-1, 1, TID), "read")
    assert engine(nameless, use(1.0), calls).state is ServerState.BLOCKED_ON_LOCK
    some = sampled(*[[thread(STEP, active=False, gil=n > 0)] for n in range(4)])
    assert engine(some, use(1.0)).state is ServerState.BLOCKED_ON_LOCK


def test_who_sleeps_in_no_sample_waits_for_no_lock() -> None:
    """LMDeploy on a busy machine: it copies memory, with a fifth of a processor."""
    busy = engine(five(thread(STEP, active=True)), use(18.0))
    assert busy.state is ServerState.UNKNOWN
    assert busy.sentence == (
        "EngineCore is in a native call made by matmul (layer.py:7) in every sample, "
        "and has less than a processor: it computes slowly, or without end."
    )
    assert (
        engine(five(thread(STEP, active=True)), use(99.0)).state
        is ServerState.FROZEN_NATIVE
    )
    locking = five(thread(frames("acquire t.py:7", "step a.py:3"), active=True))
    assert engine(locking, use(18.0)).state is ServerState.BLOCKED_ON_LOCK
    waits = engine(five(thread(STEP, active=True)), use(18.0), waiting("futex"))
    assert waits.state is ServerState.BLOCKED_ON_LOCK


def test_a_lock_whose_holder_cannot_be_seen() -> None:
    locked = engine(
        five(thread(frames("acquire t.py:7", "step a.py:3"), active=False)), use(1.0)
    )
    assert locked.sentence == (
        "EngineCore is blocked: thread 'MainThread' waits for a lock in acquire "
        "(t.py:7)."
    )
    assert locked.advice == [
        frozen.KEEP,
        "who holds it could not be seen in the locals",
    ]
    assert locked.holder == ""
    waits, holds = (
        frames("acquire t.py:7", "step a.py:3"),
        frames("sleepy b.py:9", "held b.py:4"),
    )
    waits[1].locals["lock"] = holds[1].locals["lock"] = "<lock at 0x7f01>"
    both = five(
        thread(waits, active=False), thread(holds, active=False, name="other", tid=1)
    )
    held = engine(both, use(1.0))
    assert held.sentence.endswith("; thread 'other' has it, in sleepy (b.py:9).")
    assert held.advice == [frozen.KEEP]


# ---------------------------------------------------------------- which thread it is


def test_the_busiest_thread_is_named_before_others() -> None:
    hot = thread(LOOP, name="worker", tid=TID)
    main = thread(STEP, name="MainThread", tid=1, gil=True)
    assert engine(five(main, hot), use(98.0)).thread == "worker"
    # None is hot: the one that has the GIL, the core's own, the main one, the more
    # active.
    assert (
        engine(
            five(thread(STEP, name="w", tid=1, gil=True), thread(LOOP)), use(1.0)
        ).thread
        == "w"
    )
    core = thread(STEP, name="EngineCore loop", tid=1)
    assert engine(five(thread(LOOP), core), use(1.0)).thread == "EngineCore loop"
    worker = thread(STEP, name="worker", tid=1)
    assert engine(five(worker, thread(LOOP)), use(1.0)).thread == "MainThread"
    lazy = thread(STEP, name="lazy", tid=1, active=False, gil=False)
    eager = [
        [thread(STEP, name="a", tid=2, active=n > 2), thread(STEP, name="b", tid=3)]
        for n in range(5)
    ]
    assert engine(sampled(*eager), use(1.0)).thread == "b"
    for stack, gil in ((STEP, True), (frames("acquire t.py:7", "step a.py:3"), False)):
        other = five(thread(stack, name="w", active=False, gil=gil))
        assert engine(other, use(1.0)).state not in (
            ServerState.NOT_RECEIVING,
            ServerState.SLOW,
        )
    # One that neither runs nor has a place of its own only sleeps: those are
    # everywhere.
    assert engine(five(lazy), use(1.0)).state is ServerState.NOT_RECEIVING


def test_a_thread_that_waits_for_work_stands_still_only_where_it_is_hot() -> None:
    polls = five(thread(frames("poll zmq.py:1", "loop core.py:1")))
    assert engine(polls, use(1.0)).state is ServerState.NOT_RECEIVING
    assert engine(polls, use(98.0)).state is ServerState.FROZEN_NATIVE


def test_a_loop_in_which_the_engine_idles_is_no_place_to_hang() -> None:
    turns = [
        [thread(frames("recv a.py:1", "event_loop_normal s.py:3", "run s.py:1"))],
        [thread(frames("event_loop_normal s.py:4", "run s.py:1"))],
        [thread(frames("recv a.py:2", "event_loop_normal s.py:3", "run s.py:1"))],
    ]
    idle_sglang = engine(sampled(*turns), use(98.0), engine="sglang")
    assert idle_sglang.state is ServerState.NOT_RECEIVING
    assert engine(sampled(*turns), use(98.0)).state is not ServerState.NOT_RECEIVING
    assert frozen.idle_loops(view(engine="sglang")) == {
        "event_loop_normal",
        "event_loop_overlap",
    }
    assert frozen.idle_loops(view(engine="")) == frozenset()


def test_a_hot_thread_without_an_id_is_not_taken_for_every_thread() -> None:
    nobody = use(1.0)
    nobody.processes[0].busiest = []
    waits = five(thread(IDLE, tid=None, active=False))  # type: ignore[arg-type]
    assert engine(waits, nobody).state is ServerState.NOT_RECEIVING


# ---------------------------------------------------------------- a thread has ended

MAIN = thread(IDLE, active=False)
SENDS = thread(
    frames("get queue.py:171", "process_output_sockets core.py:1580"),
    name="Thread-2 (process_output_sockets)",
    tid=2,
    active=False,
)
TAKES = thread(
    frames("poll zmq.py:1", "process_input_sockets core.py:1520"),
    name="Thread-1 (process_input_sockets)",
    tid=1,
    active=False,
)


def test_a_core_without_the_thread_that_takes_requests_receives_none() -> None:
    left = frozen.deaf(view(five(MAIN, SENDS)), ["seen"])
    assert left is not None
    assert (left.state, left.process) == (ServerState.NOT_RECEIVING, "EngineCore")
    assert "its thread process_input_sockets has ended" in left.sentence
    silent = engine(*still(), five(MAIN, SENDS), use(1.0))
    assert silent.sentence == left.sentence


def test_a_core_that_was_told_to_go_is_ending() -> None:
    going = frames(
        "cleanup_dist_env_and_memory vllm/distributed/parallel_state.py:2084",
        "EngineCore.shutdown vllm/v1/engine/core.py:625",
        "EngineCoreProc.run_engine_core vllm/v1/engine/core.py:1206",
    )
    told = engine(*still(), five(thread(going)), use(6.0))
    assert (told.state, told.process) == (ServerState.PART_DEAD, "EngineCore")
    assert told.frames[0].function == "cleanup_dist_env_and_memory"
    other = frames("shutdown queue.py:3", "step core.py:3")
    assert engine(*still(), five(thread(other)), use(6.0)).state is not told.state


def test_a_thread_that_was_there_at_first_is_of_a_core_that_ends() -> None:
    samples = five(MAIN, SENDS, TAKES)
    *_, last = samples.samples
    last.threads = [MAIN, TAKES]
    assert frozen.deaf(view(samples), []) is None
    going = engine(*still(), samples, use(1.0))
    assert (going.state, going.process) == (ServerState.PART_DEAD, "EngineCore")
    assert "its thread process_output_sockets ended" in going.sentence


def test_a_core_that_ends_after_its_worker_failed_names_the_worker() -> None:
    samples = five(MAIN, SENDS, TAKES)
    *_, last = samples.samples
    last.threads = [MAIN, TAKES]
    failed = log("WorkerProc failed.")
    failed.errors[0].process = "Worker pid=7"
    going = frozen.ending(view(samples, failed), [])
    assert going is not None
    assert (going.state, going.process) == (ServerState.PART_DEAD, "Worker")
    # A sample in which nothing could be read tells of no end.
    last.threads = []
    assert frozen.ending(view(samples, failed), []) is None


def test_threads_that_a_release_calls_otherwise_have_not_ended() -> None:
    assert frozen.deaf(view(five(MAIN, SENDS, TAKES)), []) is None
    assert frozen.deaf(view(five(MAIN)), []) is None
    assert frozen.deaf(view(five(MAIN, SENDS), engine="sglang"), []) is None
    assert frozen.deaf(view(), []) is None


# ---------------------------------------------------------------- nothing stands still


def test_a_starved_engine() -> None:
    starved = engine(*still(waiting=3), idle(), use(1.0))
    assert (starved.state, starved.process) == (ServerState.STARVED, "EngineCore")
    assert "none is let in" in starved.sentence
    assert starved.why == ["seen", "EngineCore uses 1 % user + 0 % system of a core"]
    assert (
        engine(*still(waiting=3, running=1), idle()).state is ServerState.NOT_RECEIVING
    )
    assert engine(*still(), idle()).state is ServerState.NOT_RECEIVING
    assert engine(*still(waiting=3)).state is ServerState.STARVED
    assert engine(*still(waiting=3, running=1)).state is ServerState.FROZEN
    spins = waiting("", "spinning-in-user-space")
    assert engine(*still(waiting=3), spins).state is ServerState.FROZEN


def test_an_engine_that_waits_for_work() -> None:
    deaf = engine(*still(), idle(), use(1.0))
    assert deaf.state is ServerState.NOT_RECEIVING
    assert deaf.sentence.startswith(
        "EngineCore waits for work (wait (threading.py:320)) while a"
    )
    assert (deaf.process, deaf.thread, deaf.seen) == ("EngineCore", "MainThread", 5)
    assert deaf.advice[0] == frozen.KEEP
    quiet = engine(*still(), idle(), use(1.0), asked=False)
    assert quiet.state is ServerState.NO_FAULT_SEEN
    assert (
        quiet.sentence
        == "EngineCore waits for work; whether work reaches it was not tried."
    )
    assert quiet.advice == [
        "let mmrepro send its one small request (without --no-request)"
    ]
    assert (quiet.process, quiet.frames) == ("EngineCore", [])


def moving(**more: Any) -> list[list[ThreadStack]]:
    names = [
        [f"f{n} m.py:{n}", f"g{n} m.py:{n}", f"h{n} m.py:{n}", f"i{n} m.py:1"]
        for n in range(5)
    ]
    return [[thread(frames(*one, "s a:1"), **more)] for one in names]


def test_an_engine_that_computes_something_long() -> None:
    slow = engine(*still(), sampled(*moving()), use(98.0))
    assert (slow.state, slow.process) == (ServerState.SLOW, "EngineCore")
    assert slow.sentence.startswith("EngineCore computes (its stack moves: now f")
    assert slow.sentence.endswith("nothing was finished while it was watched.")
    assert slow.thread == "MainThread"
    assert (
        engine(*still(), sampled(*moving()), use(1.0)).state
        is ServerState.NOT_RECEIVING
    )
    # Its main thread waits, another one computes.
    both = [[thread(IDLE, tid=1, active=False), *one] for one in moving(name="worker")]
    assert engine(*still(), sampled(*both), use(98.0)).thread == "worker"
    idle_worker = [
        [*one, thread(IDLE, tid=1, name="x", active=False)] for one in moving()
    ]
    assert engine(*still(), sampled(*idle_worker), use(98.0)).thread == "MainThread"
    # The engine's own thread is the main one where front and engine share a process.
    own = [
        [*one, thread(IDLE, tid=1, name="EngineCore", active=False)]
        for one in moving(tid=9)
    ]
    assert engine(*still(), sampled(*own), use(1.0)).thread == "EngineCore"
    # Without a main thread, the first that was seen.
    first = [
        [
            thread(IDLE, tid=1, name="a", active=False),
            thread(IDLE, tid=2, name="b", active=False),
        ]
    ] * 5
    assert engine(*still(), sampled(*first), use(1.0)).thread == "a"


# ---------------------------------------------------------------- without stacks


def test_without_stacks_silence_and_counters_make_it_frozen() -> None:
    deaf = engine(GREEN, *still(), use(1.0))
    assert deaf.state is ServerState.FROZEN
    assert deaf.sentence == (
        "The server is frozen: it takes requests, answers none and finishes nothing. "
        "Where could not be seen."
    )
    assert deaf.process == "EngineCore"
    assert "CAP_SYS_PTRACE" in deaf.advice[1]
    spins = engine(GREEN, *still(), waiting("", "spinning-in-user-space"), asked=False)
    told = "EngineCore is frozen: it spins in user space and finishes nothing."
    assert spins.sentence == f"{told} Where could not be seen."
    assert spins.why == ["seen", "as measured"]
    other = waiting("", "spinning-in-user-space")
    other.pid = FRONT
    assert engine(GREEN, *still(), other).why == ["seen"]
    blocked = engine(GREEN, *still(), waiting())
    assert blocked.sentence == deaf.sentence
    untried = engine(GREEN, *still(), asked=False)
    assert untried.state is ServerState.UNKNOWN
    assert (
        untried.sentence
        == "It finished nothing while it was watched; no request tried it."
    )
    assert "request" in untried.advice[0]


def test_without_stacks_and_counters_nothing_is_known_but_of_a_silent_front() -> None:
    unknown = engine(GREEN)
    assert unknown.state is ServerState.UNKNOWN
    assert "neither its counters nor its stacks" in unknown.sentence
    assert unknown.advice == [
        "diagnose again with a longer --deadline, as root, on the server's machine"
    ]
    assert engine().state is ServerState.UNKNOWN
    assert engine(http(None, None)).state is ServerState.FROZEN
    nobodys = engine(http(None, None), engine="", core_role="", states="S")
    assert (nobodys.state, nobodys.sentence) == (ServerState.UNKNOWN, unknown.sentence)
    remote = engine(GREEN, *still(running=1), root_pid=None, processes=[])
    assert (remote.state, remote.process) == (ServerState.FROZEN, "")
    assert engine(GREEN, root_pid=None, processes=[]).process == ""
    untitled = engine(GREEN, *still(), states="S")
    assert (untitled.state, untitled.process) == (ServerState.FROZEN, "the engine")


# ---------------------------------------------------------------- the front


def test_a_front_that_sleeps_on_top_of_uvloop() -> None:
    """uvloop's loop has no Python frame: py-spy showed these of a real one that was
    wedged so."""
    loop = frames("Runner.run asyncio/runners.py:118", "run uvloop/__init__.py:92")
    wedged = thread([*frames("_wedge hooks.py:7"), *loop], active=False)
    told = frozen.front(view(five(wedged, pid=FRONT)), [])
    assert told.sentence.endswith("answers none of them, in _wedge (hooks.py:7).")
    assert told.frames[0].function == "_wedge"
    idle = frozen.front(view(five(thread(loop, active=False), pid=FRONT)), [])
    assert idle.frames == [], "a loop that waits stands nowhere"


def test_a_front_that_answers_nothing() -> None:
    stuck = frozen.front(view(five(thread(STEP), pid=FRONT)), ["seen"])
    assert (stuck.state, stuck.process) == (ServerState.FRONT_FROZEN, "APIServer")
    assert stuck.sentence == (
        "The API server takes connections and answers none of them, in matmul "
        "(layer.py:7)."
    )
    assert len(stuck.why) == 2
    assert stuck.thread == "MainThread"
    assert stuck.advice == [frozen.KEEP]
    unseen = frozen.front(view(), ["seen"])
    assert (
        unseen.sentence == "The API server takes connections and answers none of them."
    )
    assert (unseen.why, unseen.frames, unseen.thread) == (["seen"], [], "")


@pytest.mark.parametrize("torn", [0, 1])
def test_torn_samples_are_counted(torn: int) -> None:
    samples = [[thread(STEP)]] * 3 + [[thread(frames("<genexpr> c.py:5"))]] * torn
    said = engine(sampled(*samples), use(98.0))
    assert (said.seen, said.samples) == (3, 3 + torn)
    assert ("(1 more came out torn)" in said.why[-1]) is bool(torn)


def test_two_of_five_samples_are_less_than_half() -> None:
    assert engine(mixed(True, True, False, False, False), use(98.0)).state is (
        ServerState.FROZEN_NATIVE
    )
    assert engine(mixed(True, True, True, False, False), use(98.0)).state is (
        ServerState.FROZEN_PYTHON
    )


def test_an_idle_loop_is_known_by_where_it_turns_or_where_it_is() -> None:
    def state(*stacks: list[str]) -> ServerState:
        samples = [[thread(frames(*one, "run s.py:1"))] for one in stacks]
        return engine(sampled(*samples), use(98.0), engine="sglang").state

    deep = [f"{f} m.py:{{0}}" for f in "abcdefg"]
    turns = [
        [*(d.format(n) for d in deep), f"event_loop_normal s.py:{n}"]
        for n in range(1, 4)
    ]
    # It turns there, and is elsewhere.
    assert state(*turns) is ServerState.NOT_RECEIVING
    inside = [*(d.format(1) for d in deep), "other s.py:1"]
    moves = [*(d.format(2) for d in deep), "step s.py:2"]
    assert (
        state(inside, ["event_loop_normal s.py:3"], moves) is ServerState.NOT_RECEIVING
    )
    assert state(inside, ["work s.py:3"], moves) is ServerState.SLOW
    called = ["work s.py:3", "event_loop_normal s.py:3"]
    assert state(inside, called, moves) is ServerState.SLOW


def test_an_idle_engine_is_shown_by_its_main_thread() -> None:
    worker = thread(IDLE, name="worker", tid=1, active=False)
    assert (
        engine(five(worker, thread(IDLE, active=False)), use(1.0)).thread
        == "MainThread"
    )


def test_a_process_that_is_not_seen_has_no_role() -> None:
    nobody = view(root_pid=None)
    for one, pid in zip(nobody.facts.processes, (1, -1), strict=True):
        one.pid = pid
    assert frozen.front(nobody, []).process == ""
