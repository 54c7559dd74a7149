"""Where a core stands, from samples of its stacks."""

import pytest
from mmrepro.base.records import Moment
from mmrepro.probes.data import Frame, StackSample, ThreadStack
from mmrepro.runs.play.looking import standing, stays

OUTER = ("run", "loop", "put")


def thread(
    *names: str, tid: int = 1, active: bool = True, gil: bool = False
) -> ThreadStack:
    """``names``: outermost first."""
    frames = [Frame(function=name, file="f.py", line=1) for name in reversed(names)]
    return ThreadStack(
        tid=tid, name=f"t{tid}", active=active, owns_gil=gil, frames=frames
    )


def samples(*threads: list[ThreadStack]) -> list[StackSample]:
    return [
        StackSample(pid=1, taken=Moment.now(), blocking=False, threads=seen)
        for seen in threads
    ]


def names(stack: ThreadStack) -> list[str]:
    return [frame.function for frame in stack.frames]


def test_a_loop_stands_where_all_samples_are() -> None:
    turns = [(*OUTER, "pop"), (*OUTER, "pop", "next"), OUTER, (*OUTER, "len")] * 5
    seen = samples(
        *(
            [thread(*turn, gil=True), thread("wait", tid=2, active=False)]
            for turn in turns
        )
    )
    first, second = standing(seen)
    assert names(first) == ["put", "loop", "run"]
    assert (first.active, first.owns_gil, second.active) == (True, True, False)
    assert names(second) == ["wait"]
    assert stays(first, seen)


def test_torn_samples_change_nothing() -> None:
    seen = samples(*([thread(*OUTER)] for _ in range(19)), [thread("rubbish")])
    assert names(standing(seen)[0]) == ["put", "loop", "run"]
    two = samples(*([thread(*OUTER)] for _ in range(18)), *[[thread("rubbish")]] * 2)
    assert names(standing(two)[0]) == ["put", "loop", "run"]


def test_work_that_goes_deep_does_not_stay() -> None:
    deep = [f"layer{n}" for n in range(12)]
    seen = samples(*([thread("run", "step", *deep[: n % 12])] for n in range(20)))
    (first,) = standing(seen)
    assert names(first) == ["step", "run"]
    assert not stays(first, seen)


def test_an_idle_loop_is_no_place() -> None:
    seen = samples(*([thread("run", "event_loop")] for _ in range(5)))
    (first,) = standing(seen)
    assert stays(first, seen)
    assert not stays(first, seen, ("event_loop",))


def test_a_thread_that_came_or_went_is_not_told() -> None:
    seen = samples(
        [thread("a"), thread("b", tid=2)], *([thread("a")] for _ in range(5))
    )
    assert [stack.tid for stack in standing(seen)] == [1]
    assert standing([]) == []


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_busiest_first(share: float) -> None:
    runs = [number < share * 10 for number in range(10)]
    seen = samples(
        *(
            [thread("a", active=runs[n]), thread("b", tid=2, active=not runs[n])]
            for n in range(10)
        )
    )
    first = standing(seen)[0]
    assert first.tid == (1 if share > 0.5 else 2)
    assert first.active
