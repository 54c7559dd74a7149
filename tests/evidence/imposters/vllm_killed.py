"""Imposters of what one request to vLLM kills: other deaths, other requests, other
processes."""

import re
from collections.abc import Iterator
from itertools import starmap

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.scenario.vllm_killed import DUMPED, FATAL, KILLER, SENT, THROUGH

from imposters import Imposter
from imposters.prefill_edits import (
    Edit,
    first_error,
    logs,
    of,
    reworded,
    unlogged,
    without,
)

OTHER, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
DIES = ("one-request", "dead")
"""Claims that the death alone confirms, whatever it was of."""
FIXED = {
    "stop-token-oov": "0.32.0",
    "grammar-backend-latch": "one-backend",
    "embeds-mrope": "refuse-embeds",
    "text-only-placeholder": "0.23.0",
    "seeded-chunk": "larger-budget",
    "json-object-false": "0.25.0",
    "priority-children": "0.12.0",
    "hybrid-checkpoint": "no-prefix-caching",
}
"""The recording that is not reproduced."""
SEEN = {
    "stop-token-oov": "0.23.0",
    "grammar-backend-latch": "0.23.0",
    "embeds-mrope": "0.23.0",
    "text-only-placeholder": "0.14.0",
    "seeded-chunk": "0.32.0",
    "json-object-false": "0.24.0",
    "priority-children": "0.11.0",
    "hybrid-checkpoint": "0.33.0",
}


def anothers(*patterns: str):  # type: ignore[no-untyped-def]
    """Lines of a server that ran before in the same log."""

    def edit(incident: Incident) -> None:
        for data in logs(incident):
            for pattern in patterns:
                for line in data.matches.get(pattern, ()):
                    line.process = re.sub(r"pid=\d+", "pid=7", line.process)

    return edit


def every() -> Iterator[Imposter]:
    for name, release in SEEN.items():
        run, fixed = f"{name}-{release}", f"{name}-{FIXED[name]}"
        yield from starmap(
            Imposter,
            (
                (
                    f"{name}: of another exception",
                    run,
                    "other-cause",
                    "EngineCore had another exception first",
                    first_error("RuntimeError: out of memory"),
                    OTHER,
                    DIES,
                ),
                (
                    f"{name}: through another place",
                    run,
                    "stale-log",
                    "the traceback through the bug is of a server before this one",
                    anothers(THROUGH),
                    OTHER,
                    (*DIES, "latched"),
                ),
                (
                    f"{name}: the exception is an old one",
                    run,
                    "stale-log",
                    "the exception is of a server before this one",
                    anothers(FATAL, "exception"),
                    OTHER,
                    DIES,
                ),
                (
                    f"{name}: another request",
                    run,
                    "trigger-failed",
                    "no request came in as it was meant",
                    unlogged(SENT),
                    UNDECIDED,
                ),
                (
                    f"{name}: no log",
                    run,
                    "absent-probe",
                    "the log could not be read",
                    without("logs"),
                    UNDECIDED,
                ),
                (
                    f"{name}: refused for something else",
                    fixed,
                    "healthy",
                    "the request is refused for its model",
                    of(
                        KILLER,
                        status=400,
                        error="the model is not known",
                        prompt_tokens=None,
                    ),
                    UNDECIDED,
                ),
            ),
        )


ON_A_GPU = "stop-token-oov-0.23.0-on-a-gpu"
CUDA = "/pytorch/aten/src/ATen/native/cuda"
THREAD = "block: [0,0,0], thread: [1,0,0] Assertion"


def on_a_gpu() -> Iterator[Imposter]:
    """Of the one request that fails in a kernel there: other kernels, other steps."""
    kernels = {
        "an embedding's": f"{CUDA}/Indexing.cu:1515: indexSelectSmallIndex: {THREAD} "
        "`srcIndex < srcSelectDimSize` failed.",
        "gather's": f"{CUDA}/ScatterGatherKernel.cu:160: operator(): {THREAD} "
        '`idx_dim >= 0 && idx_dim < index_size && "index out of bounds"` failed.',
        "masked_scatter's": f"{CUDA}/IndexKernel.cu:400: masked_scatter_size_check: "
        f"{THREAD} `totalElements <= srcSize` failed.",
    }
    changes = {
        f"{kernel} kernel": (
            "another kernel's assertion failed first",
            reworded("device-assert", "^.*$", words),
        )
        for kernel, words in kernels.items()
    }
    changes |= {
        "the words of a CPU": (
            "its exception is the one that a CPU raises",
            as_on_a_cpu,
        ),
        "another step": (
            "the step that failed computes another request",
            of_step("a774e6a3", "f"),
        ),
        "within": (
            "the step's token is in the vocabulary's form",
            of_step(r"\[1151935\]", "[]"),
        ),
        "another's dump": (
            "the dump is of a server before this one",
            of_step("", "", pid=7),
        ),
        "later": ("the request came after the assertion", sent_after),
    }
    for name, (change, edit) in changes.items():
        yield Imposter(
            f"stop-token-oov on a GPU: {name}",
            ON_A_GPU,
            "other-cause",
            change,
            edit,
            OTHER,
            DIES,
        )
    yield Imposter(
        "stop-token-oov on a GPU: unprinted",
        ON_A_GPU,
        "absent-probe",
        "what the device printed was lost",
        unlogged("device-assert"),
        UNDECIDED,
        DIES,
    )


def as_on_a_cpu(incident: Incident) -> None:
    for data in logs(incident):
        own = [one for one in data.matches["exception"] if "EngineCore" in one.process]
        for line in own:
            line.text = (
                "IndexError: index 1151935 is out of bounds for dimension 1 "
                "with size 320"
            )
        data.matches[FATAL], data.match_counts[FATAL] = own, len(own)


def of_step(old: str, new: str, pid: int = 0) -> Edit:
    """EngineCore's dump of the step that failed says something else, or is of another
    process."""

    def edit(incident: Incident) -> None:
        for data in logs(incident):
            for line in data.errors:
                if DUMPED in line.text:
                    line.text = re.sub(old, new, line.text) if old else line.text
                    line.process = f"EngineCore pid={pid}" if pid else line.process

    return edit


def sent_after(incident: Incident) -> None:
    for data in logs(incident):
        for line in data.matches[SENT]:
            line.number = data.matches["device-assert"][0].number + 1


IMPOSTERS = [*every(), *on_a_gpu()]
