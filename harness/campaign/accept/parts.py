"""The parts, in order of value: what is run, how long it may take, and what it is held
against.

Seconds are those of one H100 with a cold start, and of two CPU cores, whichever is
more."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrepro.base.errors import UsageError
from mmrepro.base.records import FindingClass
from mmrepro.campaign.accept.judging import (
    CPU_ONLY,
    EVERYWHERE,
    GPU_ONLY,
    Child,
    Ended,
    Judge,
    Judged,
    Needs,
    Part,
    Step,
    claims_judge,
    junit_judge,
    late,
    machine_judge,
    run_judge,
    search_judge,
    told,
    untried,
)
from mmrepro.campaign.trial import incident_in
from mmrepro.failure.documents.acceptance import Row, Status
from mmrepro.scenarios.chunked_mm_prefill import device_assert

TITLE = "device-side asserts on purpose, each in a child"


def judge_refusals(ended: Ended) -> Judged:
    """The reproducer's own claims, then those of the scenario that meets such an
    assert."""
    judged = claims_judge(TITLE, "CUDA: cudaErrorAssert", keys=("gpu",))(ended)
    if not judged.whole:
        return judged
    with tempfile.TemporaryDirectory(prefix="mmrepro-accept-") as folder:
        found = list(device_assert.claims(ended.document, Path(folder)))
    rules = [told(one, "the rules of chunked-mm-prefill") for one in found]
    return Judged([*judged.rows, *rules])


PREDICTION = (
    "what the emulated stream says of a pinned buffer that is written too early"
)
OBSERVATION = "what a real stream does with a pinned buffer that is written too early"
REUSED_MASK = "minivllm's reused-mask"

RECORDED = "borrowed-faults-reused-mask-0.1"
"""In tests/evidence; a test holds RECORDED_TRUTHS to it."""
RECORDED_TRUTHS = {
    "prepared-ahead": "met",
    "image-500": "met",
    "text-answered": "met",
    "endpoints-green": "met",
    "scatter-error": "met",
    "mask-of-another-step": "met",
}


def judge_prediction(ended: Ended) -> Judged:
    """It is made where every outcome of the emulation is told."""
    if (ending := late(PREDICTION, ended) or untried(PREDICTION, ended)) is not None:
        return ending
    told = [f"{name}: {outcome}" for name, outcome in _outcomes(ended.document)]
    row = Row(
        asked=PREDICTION,
        expected="a prediction, written down before the real stream is tried",
        source="reproducers/pinned_reuse.py --device emulated",
        seen="; ".join(told) or ended.words or "the emulated stream gave no outcome",
        status=Status.PASSED if told else Status.BROKEN_OFF,
        seconds=ended.seconds,
    )
    return Judged([row], whole=bool(told))


def judge_observation(ended: Ended) -> Judged:
    """The reproducer's claims, and each outcome beside the one that was predicted."""
    judged = claims_judge(
        OBSERVATION, "CUDA's API synchronization behavior", keys=("gpu",)
    )(ended)
    if not judged.whole:
        return judged
    predicted = dict(_outcomes(ended.before.get("prediction", {})))
    rows = [
        Row(
            asked=f"as emulated: {name}",
            expected=predicted.get(name, "no prediction was made"),
            source="the emulated stream, in the step before",
            seen=outcome,
            status=_held(predicted.get(name), outcome),
        )
        for name, outcome in _outcomes(ended.document)
    ]
    return Judged([*judged.rows, *rows])


def judge_reused_mask(ended: Ended) -> Judged:
    """The verdict, and each condition beside what the recorded CPU run had there."""
    judged = run_judge(REUSED_MASK)(ended)
    incident = incident_in(ended.incident)
    if not judged.whole or incident is None or incident.verdict is None:
        return judged
    seen = {one.id: str(one.truth) for one in incident.verdict.conditions}
    other = [
        f"{name} {seen.get(name, 'not judged')} in place of {truth}"
        for name, truth in RECORDED_TRUTHS.items()
        if seen.get(name) != truth
    ]
    row = Row(
        asked="it fails as it does on a CPU, condition for condition",
        expected=", ".join(
            f"{name} {truth}" for name, truth in RECORDED_TRUTHS.items()
        ),
        source=f"the recorded run {RECORDED}",
        seen="; ".join(other) or "the same",
        status=Status.FAILED if other else Status.PASSED,
    )
    return Judged([*judged.rows, row])


def _held(predicted: str | None, seen: str) -> Status:
    if predicted is None or seen == "no answer":
        return Status.NOT_TESTED
    return Status.PASSED if predicted == seen else Status.FAILED


def _outcomes(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(what was tried, its outcome) of each mask."""
    for one in document.get("masks", []):
        yield f"mask {one['name']}", str(one["outcome"])


MINIVLLM = Needs("minivllm", "0.1")
VLLM = Needs("vllm", "0.23.0")
LMDEPLOY, LMDEPLOY_GPU = Needs("lmdeploy", "0.6.4"), Needs("lmdeploy", "0.18.0")
SGLANG, SGLANG_GPU = Needs("sglang", "0.5.6"), Needs("sglang", "0.5.17")
"""The releases of the reports, which want torch 2.4 or older and torch 2.9.1; and one
of each that takes torch 2.11, as a machine with a GPU has it."""
TORCH = (MINIVLLM, VLLM)
"""Environments with torch, for children that need nothing else."""

NOTE_FAULTS = (
    "slot-mapping",
    "pinned-placeholder",
    "warmup-sequence",
    "warmup-order",
    "broken-module",
    "image-path",
)
BORROWED_FAULTS = ("ghost-key-lru", "pad-value-key", "kv-budget")
"""``reused-mask``, the fourth, is a race: it is in that part."""


def _run(
    name: str,
    title: str,
    words: str,
    needs: Needs,
    times: tuple[float, float],
    *,
    claims: Sequence[str] = (),
    judge: Judge | None = None,
) -> Step:
    # Cold: nothing of mmrepro's is between a GPU's first engine and its own start.
    child = Child(
        ("run", *words.split(), "--start-mode", "cold"), (needs,), incident=True
    )
    return Step(name, title, child, judge or run_judge(title, claims), *times)


def _script(
    name: str,
    title: str,
    words: str,
    judge: Judge,
    times: tuple[float, float],
    *,
    gpu_only: str = "",
) -> Step:
    """A reproducer that needs torch; ``gpu_only``: why a CPU cannot show it."""
    devices = GPU_ONLY if gpu_only else EVERYWHERE
    child = Child(tuple(words.split()), TORCH, script=True)
    return Step(name, title, child, judge, *times, devices, gpu_only)


def _by_device(
    scenario: str,
    cpu: tuple[str, Needs],
    gpu: tuple[str, Needs],
    claims: Sequence[str],
    times: tuple[float, float],
) -> tuple[Step, Step]:
    """One scenario on a release for CPUs and on one for GPUs; each is a title and what
    it needs."""

    def step(name: str, title: str, needs: Needs) -> Step:
        words = f"{scenario} --release {needs.release}"
        return _run(name, title, words, needs, times, claims=claims)

    return (
        replace(
            step(scenario, *cpu),
            devices=CPU_ONLY,
            why_not=f"{cpu[1]} wants an older torch than a machine with a GPU has; the "
            f"next step takes {gpu[1].release} in its place",
        ),
        replace(
            step(f"{scenario}-gpu", *gpu),
            devices=GPU_ONLY,
            why_not=f"on a CPU the step before has {cpu[1].release}, of the report",
        ),
    )


def _fault(scenario: str, variant: str) -> Step:
    words = f"{scenario} --variant {variant}"
    claims = ("pin-memory",) if variant == "pinned-placeholder" else ()
    return _run(
        variant,
        f"{scenario}, variant {variant}",
        words,
        MINIVLLM,
        (15, 90),
        claims=claims,
    )


def _search(
    name: str,
    title: str,
    words: str,
    finds: Sequence[FindingClass],
    times: tuple[float, float],
    reads: str = "",
) -> Step:
    """Servers forked from a parent that has imported the engine: on a GPU before CUDA
    is used."""
    words = f"{words} --start-mode warm --seed 0"
    child = Child(tuple(words.split()), (MINIVLLM,), incident=True, reads=reads)
    return Step(name, title, child, search_judge(title, finds), *times)


RECORDED_CASE = "docs/replays/minivllm/case.json"
TORCH_WORKS = "torch allocates, computes and copies on the device"
TESTS = "equality with transformers, decode graphs, "
HANG = "vLLM 0.23.0 hangs in the eviction of its multimodal cache"

PARTS = (
    Part(
        "check",
        "the machine has what a run needs, and torch can use its device",
        (
            Step(
                "machine",
                "what a run needs of this machine",
                Child(("check",), device_option=False),
                machine_judge,
                6,
                60,
            ),
            _script(
                "torch",
                TORCH_WORKS,
                "device_trial.py",
                claims_judge(
                    TORCH_WORKS, "torch's documentation", keys=("torch", "cuda", "gpu")
                ),
                (25, 90),
            ),
        ),
    ),
    Part(
        "minivllm",
        (
            "minivllm's faults are reproduced, and without a fault it answers as "
            "transformers does"
        ),
        (
            *(_fault("mm-prefill-contract", variant) for variant in NOTE_FAULTS),
            *(_fault("borrowed-faults", variant) for variant in BORROWED_FAULTS),
            Step(
                "tests",
                f"{TESTS}the note's own call of pin_memory",
                Child(
                    ("tests/minivllm/test_cuda.py", "-k", "not cpu"),
                    (MINIVLLM,),
                    tests=True,
                ),
                junit_judge(f"{TESTS}pin_memory"),
                90,
                240,
                GPU_ONLY,
                "what of it can be shown on a CPU is in tests/minivllm",
            ),
        ),
    ),
    Part(
        "race",
        "a host buffer that is written too early, on a real stream, against what the "
        "emulation says",
        (
            _script(
                "prediction",
                PREDICTION,
                "pinned_reuse.py --device emulated --repetitions 1",
                judge_prediction,
                (25, 120),
            ),
            _script(
                "pinned-reuse",
                OBSERVATION,
                "pinned_reuse.py --repetitions 10",
                judge_observation,
                (80, 180),
                gpu_only="a CPU has done each copy when the call returns: there is no "
                "stream that could be late, so the race can only be emulated there "
                "(see the step before)",
            ),
            _run(
                "reused-mask",
                REUSED_MASK,
                "borrowed-faults --variant reused-mask",
                MINIVLLM,
                (20, 90),
                judge=judge_reused_mask,
            ),
            _run(
                "reused-mask-fix",
                "the same with two buffers (mitigation fix)",
                "borrowed-faults --variant reused-mask --mitigation fix",
                MINIVLLM,
                (20, 90),
            ),
        ),
    ),
    Part(
        "search",
        (
            "replay and fuzz find a planted fault, and report nothing of an engine "
            "without one"
        ),
        (
            _search(
                "replay",
                "a recorded case's hang and HTTP 500 are confirmed",
                f"replay {RECORDED_CASE} --no-shrink --repeat 2 --budget 6",
                (FindingClass.HANG, FindingClass.SERVER_ERROR),
                (75, 240),
                RECORDED_CASE,
            ),
            _search(
                "fuzz",
                "fuzz finds the hang of a cache that two processes keep",
                "fuzz minivllm --server-arg=--fault=ghost-key-lru --no-shrink --repeat "
                "2 --budget 90s",
                (FindingClass.HANG,),
                (100, 240),
            ),
            _search(
                "healthy",
                "fuzz reports nothing of a healthy engine",
                "fuzz minivllm --budget 60s",
                (),
                (75, 200),
            ),
        ),
    ),
    Part(
        "ghost-key-eviction",
        "vLLM's hang in the multimodal cache; on a GPU also that it idles and that its "
        "memory is held",
        (
            _run(
                "ghost-key-eviction",
                HANG,
                f"ghost-key-eviction --release {VLLM.release}",
                VLLM,
                (150, 420),
                claims=("gpu-idle",),
            ),
        ),
    ),
    Part(
        "mm-cache-desync",
        "vLLM's two multimodal caches part ways after a refused request",
        (
            _run(
                "mm-cache-desync",
                "vLLM 0.23.0 fails the image of a refused request with HTTP 500",
                f"mm-cache-desync --release {VLLM.release}",
                VLLM,
                (100, 300),
            ),
        ),
    ),
    Part(
        "device-assert",
        (
            "what a device-side assert leaves in a log, against the rules of "
            "chunked-mm-prefill"
        ),
        (
            _script(
                "device-assert",
                TITLE,
                "device_assert.py",
                judge_refusals,
                (25, 120),
                gpu_only=(
                    "a CPU raises an IndexError at once: only a GPU has a "
                    "device-side assert"
                ),
            ),
        ),
    ),
    Part(
        "lmdeploy",
        (
            "LMDeploy takes a tenth of the cache that was asked for: the report's 0.1 "
            "and 21 blocks"
        ),
        _by_device(
            "undersized-kv-budget",
            ("LMDeploy 0.6.4 with the report's own cache_max_entry_count", LMDEPLOY),
            (
                "LMDeploy 0.18.0 with the report's own cache_max_entry_count, told of "
                "the report's memory: as few blocks, and it explains",
                LMDEPLOY_GPU,
            ),
            ("blocks-21", "blocks-107", "works-with-0.5"),
            (120, 300),
        ),
    ),
    Part(
        "sglang",
        "SGLang answers a picture with another one's keys and values",
        _by_device(
            "pad-value-collision",
            ("SGLang 0.5.6 takes two pictures for one", SGLANG),
            ("SGLang 0.5.17 takes two pictures for one", SGLANG_GPU),
            ("kv-reused",),
            (150, 420),
        ),
    ),
)


def chosen(names: Sequence[str]) -> list[Part]:
    """Those parts in their own order; all of them for (). Raises UsageError: no such
    part."""
    known = [part.name for part in PARTS]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(
            f"There is no part {unknown[0]!r}; there are {', '.join(known)}.",
            hint="mmrepro accept --list",
        )
    return [part for part in PARTS if not names or part.name in names]
