"""Buckets: equal where two failures are one, whatever differs by chance."""

import random
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from made_up_plays import moment
from mmrepro.base.records import FindingClass
from mmrepro.failure.documents import Incident
from mmrepro.probes.data import Frame, StackSample, StacksData, ThreadStack
from mmrepro.search.oracle import judged

RECORDED = Path(__file__).parents[2] / "evidence"
TEMPLATES = (
    "Expected a cached item for mm_hash='{hex}'",
    "Input length ({number}) exceeds the maximum context length ({other}).",
    "request chatcmpl-{hex} failed on port {number}: [Errno {other}] {path}",
    "CUDA error at 0x{hex}: pid {number} of image sha256:{hex}",
    'image "{path}" has {number} x {other} pixels',
    "tensors of shapes [{number}, {other}] and [{other}, {number}, {number}] differ",
)
NUMBER = st.integers(0, 10**12)
HEX = st.text("0123456789abcdef", min_size=16, max_size=64).filter(
    lambda text: any(c.isdigit() for c in text)
)
PATH = st.lists(
    st.text("abcxyz019._-", min_size=1, max_size=8), min_size=1, max_size=5
).map(lambda parts: "/" + "/".join(parts))


@given(
    st.sampled_from(TEMPLATES),
    *(st.tuples(NUMBER, NUMBER, HEX, PATH) for _ in range(2)),
)
def test_a_message_is_the_same_whatever_numbers_hashes_and_paths_it_names(
    template, one, other
):
    def filled(values):
        number, another, digits, path = values
        return template.format(number=number, other=another, hex=digits, path=path)

    assert judged.normalised(filled(one)) == judged.normalised(filled(other))


def test_messages_of_other_words_are_others():
    seen = {judged.normalised(template) for template in TEMPLATES}
    assert len(seen) == len(TEMPLATES)


@given(st.text(max_size=300))
def test_any_text_has_a_form_and_that_form_is_its_own(text):
    form = judged.normalised(text)
    assert judged.normalised(form) == form
    assert "/" not in form


@given(NUMBER, NUMBER)
def test_an_exception_is_known_by_its_type_and_the_engines_top_functions(one, other):
    def bucket(number):
        causes = [f"torch.OutOfMemoryError: tried to allocate {number} bytes"]
        frames = ["<listcomp>", "allocate", "admit", "schedule", "step"]
        return judged.loud_bucket(
            "vllm", FindingClass.DEATH, causes, frames, "exit code 1"
        )

    assert bucket(one) == bucket(other)
    assert bucket(one) == "vllm/death/OutOfMemoryError/allocate < admit < schedule"


def test_without_a_traceback_the_message_tells_failures_apart():
    def bucket(cause):
        return judged.loud_bucket("vllm", FindingClass.START_FAILURE, [cause], [], "")

    assert bucket("RuntimeError: port 1 is taken") == bucket(
        "RuntimeError: port 2 is taken"
    )
    assert bucket("RuntimeError: no GPU") != bucket("RuntimeError: port 2 is taken")
    assert (
        judged.loud_bucket("x", FindingClass.DEATH, [], [], "SIGSEGV")
        == "x/death/SIGSEGV"
    )


# ---------------------------------------------------------------------- hangs


def recorded(name: str) -> list[StackSample]:
    with zipfile.ZipFile(RECORDED / f"{name}.zip") as archive:
        incident = Incident.model_validate_json(archive.read("incident.json"))
    return [
        s for _, d in incident.evidence.results(StacksData, "check") for s in d.samples
    ]


@pytest.mark.parametrize(
    ("name", "engine", "place", "number"),
    [
        ("ghost-key-eviction-0.23.0", "vllm", "get_and_update_item", 1),
        ("ghost-key-eviction-0.14.0", "vllm", "get_and_update_item", 1),
        ("ghost-key-eviction-0.23.0-on-a-gpu", "vllm", "get_and_update_item", 1),
        ("borrowed-faults-ghost-key-lru-0.1", "minivllm", "put", 3),
        ("encoder-cache-overflow-0.14.0", "vllm", "_process_engine_step", 3),
    ],
)
def test_a_recorded_hang_is_one_failure_whichever_samples_were_taken(
    name, engine, place, number
):
    samples = recorded(name)
    assert samples
    source = random.Random(7)
    paths = [
        judged.hang_path([], source.sample(samples, number), engine) for _ in range(200)
    ]
    of_all = judged.hang_bucket(engine, judged.hang_path([], samples, engine))
    alike = sum(
        judged.alike(judged.hang_bucket(engine, path), of_all) for path in paths
    )
    assert alike == 200, (
        "each is as deep as all samples together, or deeper in the same calls"
    )
    assert judged.hang_path([], samples, engine)[-1] == place


def test_hangs_of_other_places_are_others():
    ghost = judged.hang_path([], recorded("ghost-key-eviction-0.23.0"), "vllm")
    encoder = judged.hang_path([], recorded("encoder-cache-overflow-0.14.0"), "vllm")
    one, other = judged.hang_bucket("vllm", ghost), judged.hang_bucket("vllm", encoder)
    assert not judged.alike(one, other)
    assert not judged.alike(one, one.replace("vllm/", "sglang/", 1))
    assert judged.alike(one, judged.hang_bucket("vllm", [])), (
        "without a stack it may be any"
    )
    assert not judged.alike("protocol/usage", "protocol/no-done")


def thread(
    *frames: tuple[str, str], name: str = "MainThread", active: bool = True
) -> ThreadStack:
    """``frames``: function and file, outermost first."""
    made = [
        Frame(function=function, file=file, line=1)
        for function, file in reversed(frames)
    ]
    return ThreadStack(tid=1, name=name, active=active, owns_gil=active, frames=made)


CORE = "vllm/v1/core.py"


def test_a_forked_process_stands_below_its_own_root():
    """A warm start forks the core inside the launcher's own calls."""
    warm = thread(
        ("launch", "vllm/launch.py"),
        ("_bootstrap", "multiprocessing/process.py"),
        ("run_core", CORE),
        ("step", CORE),
    )
    cold = thread(
        ("_bootstrap", "multiprocessing/process.py"), ("run_core", CORE), ("step", CORE)
    )
    paths = [judged.hang_path([one], [], "vllm") for one in (warm, cold)]
    assert paths[0] == paths[1] == ["run_core", "step"]


def test_an_idle_loop_is_a_place_unless_all_samples_are_in_one_call_of_it():
    file = "sglang/srt/scheduler.py"

    def look(*inner):
        frames = [("event_loop_normal", file), *((name, file) for name in inner)]
        return StackSample(
            pid=1, taken=moment(1), blocking=False, threads=[thread(*frames)]
        )

    def path(*looks):
        return judged.hang_path([], looks, "sglang", ("event_loop_normal",))

    looks = [look("recv"), look(), look("check_idle")]
    assert path(*looks) == ["event_loop_normal"]
    assert path(looks[0]) == ["event_loop_normal"]
    stuck = [look("run_batch", "forward")] * 3
    assert path(*stuck) == ["event_loop_normal", "run_batch", "forward"]


def test_a_waiting_engine_stands_where_its_main_thread_waits():
    helper = thread(("pump", CORE), name="A helper", active=False)
    main = thread(("run_core", CORE), ("get", "queue.py"), active=False)
    assert judged.hang_path([helper, main], [], "vllm") == ["run_core"]
    assert judged.hang_path([], [], "vllm") == []


def test_a_thread_that_wakes_from_a_wait_again_and_again_does_not_run():
    """As vLLM's queue of outputs beside a core that turns without work."""
    pump = thread(("pump", CORE), ("Condition.wait", "threading.py"), name="pump")
    main = thread(("run_core", CORE), ("step", CORE))
    assert judged.hang_path([pump, main], [], "vllm") == ["run_core", "step"]
    worker = thread(("work", CORE), ("wait", CORE), name="work")
    assert judged.hang_path([worker, pump], [], "vllm") == ["work", "wait"]


@pytest.mark.parametrize(
    "kind", ["AssertionError", "RuntimeError", "ValueError", "Exception"]
)
def test_what_one_function_asserts_twice_is_two_failures(kind: str) -> None:
    def bucket(said: str) -> str:
        return judged.loud_bucket(
            "vllm", FindingClass.DEATH, [f"{kind}{said}"], ["step", "run"], ""
        )

    blocks, tokens = (
        bucket(": no free block of 12"),
        bucket(": more tokens than 12 slots"),
    )
    assert blocks != tokens
    assert blocks == bucket(": no free block of 977")
    assert bucket("") not in (blocks, tokens)
