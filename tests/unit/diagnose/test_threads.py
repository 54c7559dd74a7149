"""What several stack samples say together."""

from __future__ import annotations

from hypothesis import given, strategies as st
from mmrepro.live.diagnose.threads import Course, courses, holder
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


def test_what_is_called_from_lines_that_differ_is_not_steady() -> None:
    found = course(*[frames("c x.py:3", f"b x.py:{n}", "a x.py:1") for n in range(3)])
    assert [f.function for f in found.steady] == ["a"]
    assert (found.loose, found.turning) == (2, "b")


def test_frames_of_c_code_do_not_make_a_stack_move() -> None:
    inner = [
        frames(f"0x{n} libcrypto.so.3:0", f"f{n} lib.so:0") + DEEP for n in range(4)
    ]
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


def test_a_torn_sample_without_the_threads_first_frame_is_passed_over_but_not_many() -> (
    None
):
    """Of the popitem loop of vLLM 0.23.0, on a machine with four busy loops beside
    it."""
    torn = frames("<genexpr> c.py:196")
    found = course(DEEP, torn, DEEP, DEEP)
    assert (found.rigid, found.samples, found.torn) == (True, 3, 1)
    assert not course(DEEP, torn, torn, DEEP, DEEP).stays


def test_a_loop_that_is_all_python_may_turn_further() -> None:
    """Frames of that loop too: it differs from line 81 and 82 of __setitem__ on."""
    root = [
        "__setitem__ lru.py:294",
        "process_input_sockets core.py:1528",
        "run threading.py:982",
    ]
    stacks = [
        frames("popitem cache.py:195", "__setitem__ c.py:82", *root),
        frames("popitem cache.py:196", "__setitem__ c.py:81", *root),
        frames(
            "__contains__ abc.py:97",
            "order cache.py:91",
            "popitem cache.py:196",
            "__setitem__ c.py:82",
            *root,
        ),
    ]
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
    assert not course(
        IDLE, frames("step core.py:9", "run_busy_loop v1/core.py:1"), IDLE
    ).waits
    assert course(frames("_worker concurrent/futures/thread.py:81")).waits
    assert course(frames("_turn selectors.py:8", "step core.py:9")).waits
    assert not course(frames("step core.py:9", "_turn selectors.py:8")).waits
    assert not course(frames("step core.py:9", "wait threading.py:320")).waits
    assert course([]).waits


def test_a_thread_that_is_not_in_every_sample_is_left_out() -> None:
    once = [thread(DEEP), thread(DEEP, name="short", tid=9)]
    data = sampled(once, [thread(DEEP)], [thread(DEEP)])
    assert [c.name for c in courses(data.samples, CORE)] == ["MainThread"]
    renamed = sampled(*[[thread(DEEP, name=name)] for name in "abc"])
    assert [c.name for c in courses(renamed.samples, CORE)] == ["a"]
    same = [thread(DEEP, name="worker", tid=n) for n in (1, 2)]
    unnumbered = [thread(DEEP, name=n, tid=None) for n in "ab"]  # type: ignore[arg-type]
    for pair in (same, unnumbered):
        found = courses(sampled(*[pair] * 3).samples, CORE)
        assert [(c.tid, c.name) for c in found] == [(t.tid, t.name) for t in pair]
    assert courses(data.samples, 1) == []


names = st.sampled_from("abcdef")
stack = st.lists(
    st.builds(
        lambda f, n: Frame(function=f, file="x", line=n), names, st.integers(1, 3)
    ),
    max_size=8,
)


@given(st.lists(stack, min_size=1, max_size=6))
def test_steady_frames_are_in_every_sample_from_the_root_on(
    stacks: list[list[Frame]],
) -> None:
    found = course(*stacks)
    read = [list(sample.frames) for sample in found.stacks]
    torn = len(stacks) - len(read)
    assert torn == found.torn
    assert torn * 3 <= len(stacks)
    root = [(one[-1].function, one[-1].file) for one in read if one][:1]
    whole = [
        one for one in stacks if one and [(one[-1].function, one[-1].file)] == root
    ]
    assert read == (whole if torn else stacks)
    depth = len(found.steady)
    for one in read:
        assert tuple(one[len(one) - depth :]) == found.steady
    assert found.loose == max(len(one) for one in read) - depth
    if found.rigid:
        assert all(one == read[0] for one in read)


# ---------------------------------------------------------------- edges


def test_how_far_a_loop_may_turn() -> None:
    root = ["b x.py:2", "a x.py:1"]

    def turning(depth: int, **more: object) -> Course:
        inner = [
            frames(*[f"f{k} m{n}.py:{n}" for k in range(depth)], *root)
            for n in range(3)
        ]
        return course(*inner, **more)

    assert (turning(3).loose, turning(3).stays) == (3, True)
    assert not turning(4).stays
    assert turning(6, gil=True).stays
    assert not turning(7, gil=True).stays
    two = sampled(*[[thread(s, gil=n > 0)] for n, s in enumerate([DEEP, DEEP, DEEP])])
    assert courses(two.samples, CORE)[0].with_gil == 2
    assert turning(0).rigid


def test_what_is_counted_of_a_course() -> None:
    mixed = [[thread(DEEP, active=n > 1, gil=n > 2)] for n in range(5)]
    found = courses(sampled(*mixed).samples, CORE)[0]
    assert (found.samples, found.active, found.with_gil, found.torn) == (5, 3, 2, 0)
    assert (found.pid, found.name, found.tid) == (CORE, "MainThread", 2040)


def test_a_thread_takes_a_lock_where_it_does_in_every_sample() -> None:
    lock = frames("acquire t.py:7", "step a.py:3")
    assert course(lock, lock, lock).locking
    assert not course(lock, lock).locking
    assert not course(lock, DEEP, lock).locking
    assert not course([], [], []).locking
    assert course(*[frames("Lock.__enter__ t.py:7", "step a.py:3")] * 3).locking


def test_a_wait_for_the_device_is_seen_in_the_three_innermost_frames() -> None:
    def on_device(*names: str) -> bool:
        return course(*[frames(*names)] * 3).on_device

    cuda = "synchronize torch/cuda/streams.py:7"
    assert on_device(cuda)
    assert on_device("a x.py:1", "b x.py:1", cuda)
    assert not on_device("a x.py:1", "b x.py:1", "c x.py:1", cuda)
    assert not on_device("a x.py:1")


def test_the_place_is_the_one_most_often_seen() -> None:
    other = frames("d x.py:4", "b x.py:2", "a x.py:1")
    assert course(DEEP, other, other).place == "d (x.py:4)"
    assert course(other, DEEP, DEEP).place == "c (x.py:3)"
    assert course([], [], []).place == "no Python frame"


def test_the_deepest_sample_is_shown() -> None:
    deeper = frames("d x.py:4", "c x.py:3", "b x.py:2", "a x.py:1")
    assert [f.function for f in course(DEEP, deeper, DEEP).frames] == [
        "d",
        "c",
        "b",
        "a",
    ]


def test_code_that_has_no_file_is_pythons_too() -> None:
    assert course(*[frames("<module> <string>:1", "0x1 lib.so:0")] * 3).place == (
        "<module> (<string>:1)"
    )
    assert course(*[frames("0x1 lib.so:0")] * 3).place == "0x1 (lib.so)"


def test_a_function_is_named_only_where_all_turn_there() -> None:
    one, two = (frames(f"{n} x.py:9", "b x.py:2", "a x.py:1") for n in "cd")
    assert course(one, two, one).turning == ""
    methods = [frames(f"C.turn x.py:{n}", "b x.py:2", "a x.py:1") for n in (8, 9, 9)]
    assert course(*methods).turning == "turn"


def test_a_third_of_the_samples_may_be_torn() -> None:
    torn = frames("<genexpr> c.py:196")
    two_of_six = course(DEEP, torn, DEEP, DEEP, torn, DEEP)
    assert (two_of_six.samples, two_of_six.torn) == (4, 2)
    three_of_seven = course(DEEP, torn, DEEP, DEEP, torn, DEEP, torn)
    assert (three_of_seven.samples, three_of_seven.torn) == (7, 0)


def held(
    waits: dict[str, str], holds: dict[str, str], depth: int = 1, **more: object
) -> str:
    """Who holds what the first thread waits for; ``holds`` are locals of the other's
    frame."""
    waiting = frames("acquire t.py:7", *[f"f{n} a.py:{n}" for n in range(5)])
    waiting[depth].locals.update(waits)
    holding = frames(
        "sleepy b.py:9", "held b.py:4", *[f"g{n} b.py:{n}" for n in range(5)]
    )
    holding[1].locals.update(holds)
    both = [thread(waiting, active=False), thread(holding, name="other", tid=1, **more)]  # type: ignore[arg-type]
    found = courses(sampled(*[both] * 4).samples, CORE)
    return holder(found[0], found)


def test_who_holds_a_lock_is_told_by_locals() -> None:
    lock = {"lock": "<locked _thread.lock object at 0x7f01>"}
    assert held(lock, lock) == "thread 'other' has it, in sleepy (b.py:9)"
    assert held(lock, {"mine": "<lock at 0x7f01>"}) != ""
    assert held(lock, {"mine": "<lock at 0x7f02>"}) == ""
    assert held(lock, {"x": "<Pool at 0x7f01>"}) == ""
    assert held(lock, lock, depth=3) != ""
    assert held(lock, lock, depth=4) == ""
    pool = {"self": "<Pool at 0x5>"}
    probably = "probably thread 'other', inside the same object: sleepy (b.py:9)"
    assert held(pool, pool) == probably
    assert held(pool, pool, depth=3) == probably
    assert held(pool, pool, depth=4) == ""
    assert held(pool, {"self": "<Pool at 0x6>"}) == ""
    assert held(pool, {"other": "<Pool at 0x5>"}) == ""
    assert held({}, {}) == ""


def test_one_that_waits_itself_holds_nothing() -> None:
    waiting = frames("acquire t.py:7", "step a.py:3")
    waiting[1].locals["lock"] = waiting[1].locals["self"] = "<lock at 0x7f01>"
    nothing = thread([], name="c", tid=3)
    two = [thread(waiting, active=False), thread(waiting, name="b", tid=2), nothing]
    found = courses(sampled(*[two] * 4).samples, CORE)
    assert holder(found[0], found) == ""
    assert holder(found[0], found[:1]) == ""
    holds = frames("sleepy b.py:9")
    holds[0].locals["lock"] = "<lock at 0x7f01>"
    three = [*two, thread(holds, name="d", tid=4)]
    found = courses(sampled(*[three] * 4).samples, CORE)
    assert holder(found[0], found) == "thread 'd' has it, in sleepy (b.py:9)"
    holds[0].locals = {"self": "<lock at 0x7f01>"}
    waiting[1].locals = {"self": "<lock at 0x7f01>"}
    found = courses(sampled(*[three] * 4).samples, CORE)
    assert "'d'" in holder(found[0], found)


def test_the_holder_is_looked_for_in_the_last_sample() -> None:
    def sample(lock: str) -> list[object]:
        waiting, holding = (
            frames("acquire t.py:7", "step a.py:3"),
            frames("sleepy b.py:9"),
        )
        waiting[1].locals["lock"] = "<lock at 0x7f01>"
        holding[0].locals["mine"] = lock
        return [thread(waiting, active=False), thread(holding, name="other", tid=1)]

    let_go = [sample("<lock at 0x7f01>")] * 3 + [sample("None")]
    found = courses(sampled(*let_go).samples, CORE)  # type: ignore[arg-type]
    assert holder(found[0], found) == ""
    taken = [sample("None")] * 3 + [sample("<lock at 0x7f01>")]
    found = courses(sampled(*taken).samples, CORE)  # type: ignore[arg-type]
    assert holder(found[0], found) == "thread 'other' has it, in sleepy (b.py:9)"


def test_who_is_inside_the_object_is_looked_for_in_the_last_sample() -> None:
    def sample(inside: str) -> list[object]:
        waiting, holding = (
            frames("acquire t.py:7", "step a.py:3"),
            frames("sleepy b.py:9"),
        )
        waiting[1].locals["self"] = "<Pool at 0x5>"
        holding[0].locals["self"] = inside
        return [thread(waiting, active=False), thread(holding, name="other", tid=1)]

    for before, last, named in (
        ("None", "<P at 0x5>", True),
        ("<P at 0x5>", "None", False),
    ):
        both = sampled(*[sample(before)] * 3, sample(last))  # type: ignore[list-item]
        found = courses(both.samples, CORE)
        assert ("'other'" in holder(found[0], found)) is named


def test_what_is_waited_for_is_read_in_the_last_sample() -> None:
    def sample(lock: str) -> list[object]:
        waiting, holding = (
            frames("acquire t.py:7", "step a.py:3"),
            frames("sleepy b.py:9"),
        )
        waiting[1].locals["lock"] = lock
        holding[0].locals["mine"] = "<lock at 0x7f01>"
        return [thread(waiting, active=False), thread(holding, name="other", tid=1)]

    other = [sample("<lock at 0x7f01>")] * 3 + [sample("<lock at 0x7f02>")]
    found = courses(sampled(*other).samples, CORE)  # type: ignore[arg-type]
    assert holder(found[0], found) == ""


def test_the_object_that_is_waited_in_is_read_in_the_last_sample() -> None:
    def sample(pool: str) -> list[object]:
        waiting, holding = (
            frames("acquire t.py:7", "step a.py:3"),
            frames("sleepy b.py:9"),
        )
        waiting[1].locals["self"], holding[0].locals["self"] = pool, "<Pool at 0x5>"
        return [thread(waiting, active=False), thread(holding, name="other", tid=1)]

    other = [sample("<Pool at 0x5>")] * 3 + [sample("<Pool at 0x6>")]
    found = courses(sampled(*other).samples, CORE)  # type: ignore[arg-type]
    assert holder(found[0], found) == ""
