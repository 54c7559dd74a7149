"""Limits of this machine and of stand-ins are never a finding; an engine's own errors
stay one."""

import json
from collections.abc import Iterator

import pytest
from made_up_plays import answer, canary, case_of, operation, played
from mmrepro.engines import get_engine
from mmrepro.search.oracle.beyond import limit_of
from mmrepro.search.oracle.judge import judge
from mmrepro.traffic.case.model import Operation
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence import RequestRecord

VLLM = get_engine("vllm")
LIMITS = {
    (
        "AttributeError: 'XGrammarGrammar' object has no attribute "
        "'apply_vocab_mask_cpu'"
    ): "apply_vocab_mask_cpu",
    "RuntimeError: Unsupported device: cpu": "Unsupported device: cpu",
    "RuntimeError: \"topk_cpu\" not implemented for 'Half'": "topk_cpu",
    (
        "NotImplementedError: Could not run '_C::rms_norm' with arguments from the "
        "'CPU' backend."
    ): ("_C::rms_norm"),
    (
        "AttributeError: '_OpNamespace' '_C' object has no attribute 'silu_and_mul'"
    ): "silu_and_mul",
    "AssertionError: Torch not compiled with CUDA enabled": (
        "Torch not compiled with CUDA"
    ),
    "RuntimeError: Found no NVIDIA driver on your system.": "NVIDIA driver",
    "RuntimeError: 0 active drivers ([]). There should only be one.": "0 active drivers",
    "ModuleNotFoundError: No module named 'triton'": "triton",
    "ModuleNotFoundError: No module named 'vllm._C'": "vllm._C",
    "ImportError: libcudart.so.12: cannot open shared object file": "libcudart.so.12",
    "NotImplementedError: FP8 KV cache is not supported on CPU": "FP8 KV cache",
    "ValueError: Machete only supported on CUDA": "Machete",
    "ValueError: logits must be of type float32": "logits must be of type float32",
    "ValueError: The kernel requires an SM100-class GPU.": "The kernel",
    (
        "RuntimeError: sgl_kernel.f was called, but this is mmrepro's stand-in "
        "without it"
    ): ("sgl_kernel.f"),
}
OWN = (
    "ModuleNotFoundError: No module named 'requests'",
    "RuntimeError: selected index k out of range",
    "NotImplementedError: beam search",
    "NotImplementedError: beam search not implemented for 'chat'",
    "ValueError: This model does not support generation",
    "ValueError: best_of is not supported with streaming",
    "AttributeError: 'NoneType' object has no attribute 'x'",
    "IndexError: index 100000000 is out of bounds for dimension 0 with size 320",
    "ValueError: logprobs requires --max-logprobs",
    "EngineDeadError: EngineCore encountered an issue. See stack trace (above).",
)


@pytest.mark.parametrize(("text", "op"), LIMITS.items())
def test_a_limit_names_what_is_missing(text: str, op: str) -> None:
    assert op in limit_of([text])
    assert limit_of([text], "cuda") == ""


@pytest.mark.parametrize("text", OWN)
def test_an_engines_own_error_is_none(text: str) -> None:
    assert limit_of([text]) == ""


def wrong(op: Operation, status: int, text: str) -> RequestRecord:
    error = {"error": {"message": text, "type": "SomeError", "code": status}}
    return answer(op, status=status, error=json.dumps(error))


def kinds(text: str) -> Iterator[tuple[Operation, Played]]:
    """A play that shows ``text`` as an answer, at its start, as its death, for good."""
    op = operation("r1")
    failed, silent = wrong(op, 500, text), wrong(op, 500, "Internal Server Error")
    around = [
        canary("canary before", 0.0),
        canary("canary after", 9.0, status=500, error=text),
    ]
    yield op, played([failed])
    yield op, played([silent], causes=[text])
    yield op, played([wrong(op, 400, text)])
    yield op, played([], PlayState.START_FAILED, causes=["RuntimeError: failed", text])
    yield op, played([failed], PlayState.DIED, causes=[text], exit_code=1)
    yield op, played([around[0], failed, around[1]], causes=[text])


@pytest.mark.parametrize("text", LIMITS)
def test_it_is_no_finding_however_it_shows(text: str) -> None:
    for op, play in kinds(text):
        found = judge(case_of([op]), play, engine=VLLM)
        assert not found.sightings, found.sightings
        assert "Not testable here" in found.untestable[0]


@pytest.mark.parametrize("text", OWN)
def test_what_is_the_engines_stays_a_finding(text: str) -> None:
    for op, play in kinds(text):
        found = judge(case_of([op]), play, engine=VLLM)
        assert not found.untestable
        only_refused = any(r.status == 400 for r in play.evidence.requests)
        assert bool(found.sightings) is not only_refused


def test_on_a_gpu_the_same_words_are_the_engines() -> None:
    for op, play in kinds("NotImplementedError: FP8 KV cache is not supported on CPU"):
        found = judge(
            case_of([op]), play.model_copy(update={"device": "cuda"}), engine=VLLM
        )
        assert not found.untestable


def test_an_instruction_that_the_processor_lacks_is_one() -> None:
    play = played([], PlayState.DIED, exit_code=-4)
    found = judge(case_of([operation("r1")]), play, engine=VLLM)
    assert (found.sightings, len(found.untestable)) == ([], 1)
    crash = judge(case_of([]), played([], PlayState.DIED, exit_code=-11), engine=VLLM)
    assert crash.sightings
