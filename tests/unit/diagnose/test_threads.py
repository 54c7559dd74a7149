"""What several stack samples say together."""

from __future__ import annotations

from hypothesis import given, strategies as st
from mmrepro.diagnose.threads import Course, courses
from mmrepro.probes.data import Frame
from seen import CORE, IDLE, frames, sampled, thread


def course(*stacks: list[Frame], **more: object) -> Course:
    return courses(sampled(*[[thread(s, **more)] for s in stacks]).samples, CORE)[0]  # type: ignore[arg-type]


DEEP = frames("c x.py:3", "b x.py:2", "a x.py:1")


def test_the_very_same_line_is_rigid() -> None:
    found = course(DEEP, DEEP, DEEP)
    assert (found.stays, found.rigid, found.loose, found.turning) == (True, True, 0, "")
    assert found.place == "c (x.py:3)"


def test_a_small_loop_stays_and_its_turning_frame_is_named() -> None:
    inside = frames("key x.py:9", "c x.py:4", "b x.py:2", "a x.py:1")
    found = course(DEEP, inside, DEEP)
    assert (found.stays, found.rigid, found.turning) == (True, False, "c")
    assert [f.function for f in found.steady] == ["b", "a"]
    assert found.frames[0].function == "key"


def test_frames_of_c_code_do_not_make_a_stack_move() -> None:
    inner = [frames(f"0x{n} libcrypto.so.3:0", f"f{n} lib.so:0") + DEEP for n in range(4)]
    found = course(*inner)
    assert found.rigid
    assert found.place == "c (x.py:3)"
    assert found.frames[0].function.startswith("0x")


def test_a_torn_sample_without_frames_is_passed_over_but_not_many() -> None:
    assert course(DEEP, DEEP, [], DEEP).rigid
    assert course(DEEP, DEEP, [], DEEP).samples == 3
    assert not course(DEEP, [], [], DEEP, DEEP).stays
    assert not course(DEEP, DEEP, []).stays, "two are left"
    assert course([], [], []).waits


def test_a_torn_sample_without_the_threads_first_frame_is_passed_over_but_not_many() -> None:
    """Of the popitem loop of vLLM 0.23.0, on a machine with four busy loops beside it."""
    torn = frames("<genexpr> c.py:196")
    found = course(DEEP, torn, DEEP, DEEP)
    assert (found.rigid, found.samples, found.torn) == (True, 3, 1)
    assert not course(DEEP, torn, torn, DEEP, DEEP).stays


def test_a_loop_that_is_all_python_may_turn_further() -> None:
    """Frames of that loop too: it differs from line 81 and 82 of __setitem__ on."""
    root = ["__setitem__ lru.py:294", "process_input_sockets core.py:1528", "run threading.py:982"]
    stacks = [
        frames("popitem cache.py:195", "__setitem__ c.py:82", *root),
        frames("popitem cache.py:196", "__setitem__ c.py:81", *root),
        frames("__contains__ abc.py:97", "order cache.py:91", "popitem cache.py:196",
               "__setitem__ c.py:82", *root),
    ]  # fmt: skip
    assert course(*stacks, gil=True).stays
    assert not course(*stacks).stays, "as far as a model's forward pass moves"
    further = frames(*[f"f{n} m.py:{n}" for n in range(7)], *root)
    assert not course(*stacks, further, gil=True).stays


def test_two_samples_are_not_enough() -> None:
    assert not course(DEEP, DEEP).stays


def test_a_stack_that_differs_from_its_root_on_does_not_stay() -> None:
    assert not course(DEEP, frames("z y.py:1"), DEEP).stays


def test_a_waiting_thread_waits() -> None:
    assert course(IDLE, IDLE, IDLE).waits
    assert not course(IDLE, frames("step core.py:9", "run_busy_loop v1/core.py:1"), IDLE).waits
    assert course(frames("_worker concurrent/futures/thread.py:81")).waits
    assert course([]).waits


def test_a_thread_that_is_not_in_every_sample_is_left_out() -> None:
    once = [thread(DEEP), thread(DEEP, name="short", tid=9)]
    data = sampled(once, [thread(DEEP)], [thread(DEEP)])
    assert [c.name for c in courses(data.samples, CORE)] == ["MainThread"]
    assert courses(data.samples, 1) == []


names = st.sampled_from("abcdef")
stack = st.lists(st.builds(lambda f, n: Frame(function=f, file="x", line=n), names,
                           st.integers(1, 3)), max_size=8)  # fmt: skip


@given(st.lists(stack, min_size=1, max_size=6))
def test_steady_frames_are_in_every_sample_from_the_root_on(stacks: list[list[Frame]]) -> None:
    found = course(*stacks)
    read = [list(sample.frames) for sample in found.stacks]
    torn = len(stacks) - len(read)
    assert torn == found.torn
    assert torn * 3 <= len(stacks)
    root = [(one[-1].function, one[-1].file) for one in read if one][:1]
    whole = [one for one in stacks if one and [(one[-1].function, one[-1].file)] == root]
    assert read == (whole if torn else stacks)
    depth = len(found.steady)
    for one in read:
        assert tuple(one[len(one) - depth :]) == found.steady
    assert found.loose == max(len(one) for one in read) - depth
    if found.rigid:
        assert all(one == read[0] for one in read)
