"""Of each class of failure: what to do next, and where upstream tells of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mmrepro.incident.diagnosis import Certainty, LiveClass, NamedClass

HERE = "docs/diagnose.md#classes"
_VLLM = "https://github.com/vllm-project/vllm/issues"
_SGLANG = "https://github.com/sgl-project/sglang/issues"


def _vllm(*numbers: int) -> tuple[str, ...]:
    return tuple(f"vllm#{n} {_VLLM}/{n}" for n in numbers)


def _sglang(*numbers: int) -> tuple[str, ...]:
    return tuple(f"sglang#{n} {_SGLANG}/{n}" for n in numbers)


@dataclass(frozen=True)
class ClassFacts:
    advice: tuple[str, ...]
    references: tuple[str, ...]


CLASS_FACTS: Mapping[LiveClass, ClassFacts] = {
    LiveClass.STEPS_STOPPED: ClassFacts(
        (
            "restart it after its evidence is kept (mmrepro diagnose URL --out DIR): it does not "
            "recover by itself",
            "what was sent last matters: mmrepro replay shrinks recorded traffic to it",
        ),
        (*_vllm(43941, 21148), HERE),
    ),
    LiveClass.KILLED_BY_INPUT: ClassFacts(
        (
            "refuse or rewrite the field at the gateway: a restart meets the same request again",
            "try the request on a newer release: most of these are answered with 400 there",
        ),
        (*_vllm(54195, 43920), *_sglang(27398), HERE),
    ),
    LiveClass.NEVER_FITS: ClassFacts(
        (
            "everything behind it in the queue waits as well: end the client that sent it",
            "lower --max-model-len below the KV cache's size, or make that larger; see "
            "mmrepro kv-budget",
        ),
        (*_vllm(35541, 39734), "docs/kv-budget.md", HERE),
    ),
    LiveClass.WORK_WITHOUT_CLIENTS: ClassFacts(
        (
            "requests in the background (/v1/responses with background) and clients of another "
            "port or of a UNIX socket look the same: are there any?",
            "a proxy between that keeps no connection, or an abort that is lost: compare with the "
            "log's lines of aborted requests",
        ),
        (*_vllm(54947, 10806), HERE),
    ),
    LiveClass.GAUGES_LIE: ClassFacts(
        (
            "do not route, scale or alert by these gauges alone; counters of tokens and a small "
            "request tell the truth (mmrepro watch)",
        ),
        (*_vllm(29928, 22545), HERE),
    ),
    LiveClass.MEMORY_GROWS: ClassFacts(
        (
            "rule out caches that still fill: --mm-processor-cache-gb 0, no prefix caching",
            "until it is found: restart before the limit, at a moment of your choice",
        ),
        (*_vllm(15294, 50860), HERE),
    ),
    LiveClass.PLACEHOLDER_COUNTS: ClassFacts(
        (
            "answers to such requests are wrong or missing: look for placeholder tokens in the "
            "prompt's text, and for another version of transformers than the release was made for",
            "try it with chunked prefill and the multimodal cache off",
        ),
        (*_vllm(15764), *_sglang(40797), "docs/lab/chunked-mm-prefill.md", HERE),
    ),
    LiveClass.GRAMMAR_LOOP: ClassFacts(
        (
            "find the request with the grammar or schema (response_format, structured_outputs) and "
            "bound its size at the gateway",
            "another backend of grammars, or a newer one, may take it",
        ),
        (*_vllm(14151, 49210, 43920), HERE),
    ),
}


def named(name: LiveClass, certainty: Certainty, sentence: str, why: Iterable[str]) -> NamedClass:
    """A class with what is known of it; empty observations are left out."""
    facts = CLASS_FACTS[name]
    return NamedClass(
        name=name,
        certainty=certainty,
        sentence=sentence,
        why=[text for text in why if text],
        advice=list(facts.advice),
        references=list(facts.references),
    )
