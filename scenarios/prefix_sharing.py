"""What the scenarios of SGLang's prefix cache share: whose answer it was, what came from the cache.

Greedy answers of fixed weights are compared exactly, token by token with their logprobs, and only
with answers that were computed alike: with as many prompt tokens taken from the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, ClaimStatus, Fidelity, Shown
from mmrepro.scenario import RunFacts
from mmrepro.signature import Condition, Finding, Truth, checks
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.pictures import Picture

TOKENS = 12
TEXT = "describe the image please"
FLUSH = "flush the prefix cache"
FLUSH_TRIES = 50
FLUSH_PAUSE_S = 0.1


async def flush(drive: Drive) -> None:
    """Empty the prefix cache; SGLang refuses while a request is just being taken off its books."""
    for _ in range(FLUSH_TRIES):
        record = await drive.traffic.raw(FLUSH, path="/flush_cache", deadline_s=drive.deadline_s)
        if record.status == 200 or record.timed_out:
            return
        await asyncio.sleep(FLUSH_PAUSE_S)


async def ask(
    drive: Drive, label: str, picture: Picture, extra: Mapping[str, object] | None = None
) -> RequestRecord:
    """One request with the picture before the text, with logprobs."""
    return await drive.chat(
        label,
        text=TEXT,
        images=[picture],
        max_tokens=TOKENS,
        extra={"logprobs": True, "top_logprobs": 1, **(extra or {})},
    )


async def read_counters(drive: Drive) -> None:
    """Keep the server's own count of cached prompt tokens, against which the answers' are held.

    The counter appears with its first cached token; before that it is zero.
    """
    total = await drive.metric("sglang:cached_tokens_total")
    prompt = await drive.metric("sglang:prompt_tokens_total")
    drive.fact("cached_tokens_total", total if total is not None or prompt is None else 0.0)


def one(evidence: Evidence, label: str) -> RequestRecord | None:
    """The last answered request with exactly that label."""
    return next((r for r in reversed(evidence.requests) if r.label == label and r.answered), None)


def cached(evidence: Evidence, record: RequestRecord) -> int | None:
    """Prompt tokens that came from the cache; None: unknown.

    SGLang 0.5.6 reports nothing where it means zero. Nothing counts as zero only if the counter of
    the server agrees: what the answers report must add up to it.
    """
    if record.cached_tokens is not None:
        return record.cached_tokens
    total = evidence.facts.get("cached_tokens_total")
    if not isinstance(total, int | float):
        return None
    return 0 if total == sum(r.cached_tokens or 0 for r in evidence.requests) else None


def same(one: RequestRecord, other: RequestRecord) -> bool:
    """The same answer, token by token and logprob by logprob; an empty one is like no other."""
    return bool(one.logprobs) and one.tokens == other.tokens and one.logprobs == other.logprobs


def first_difference(one: RequestRecord, other: RequestRecord) -> str:
    """Where two answers part, for people."""
    pairs = zip(one.tokens, one.logprobs, other.tokens, other.logprobs, strict=False)
    for place, (token, logprob, other_token, other_logprob) in enumerate(pairs, start=1):
        if token != other_token:
            return f"token {place}: {token!r} against {other_token!r}"
        if logprob != other_logprob:
            return f"token {place}: logprob {logprob:.4f} against {other_logprob:.4f}"
    if len(one.tokens) != len(other.tokens):
        return f"{len(one.tokens)} against {len(other.tokens)} tokens"
    return "no difference"


def is_any(record: RequestRecord, others: Sequence[RequestRecord]) -> bool:
    return any(same(record, other) for other in others)


def own_answers(evidence: Evidence, picture: str) -> list[RequestRecord]:
    """What the picture was answered in the gate, computed whole and from its own cache entry."""
    labels = (f"gate: {picture} alone", f"gate: {picture} again", f"gate: {picture} after others")
    found = (one(evidence, label) for label in labels)
    return [record for record in found if record is not None]


def flushed(evidence: Evidence) -> Finding:
    """Every flush that was asked for was carried out, in the end."""
    tries = [r for r in evidence.requests if r.label == FLUSH]
    if not tries:
        return Finding.unknown("the cache was never flushed")
    done = sum(r.status == 200 for r in tries)
    last = tries[-1]
    if last.status != 200:
        return Finding.of(False, f"/flush_cache: {last.status or last.error}")
    return Finding.of(True, f"{done} flushes of the prefix cache")


def different_answers(evidence: Evidence, *pictures: str) -> Finding:
    """Each picture has an answer of its own, and the same one each time."""
    owns = {picture: own_answers(evidence, picture) for picture in pictures}
    for picture, answers in owns.items():
        if len(answers) < 2:
            return Finding.of(False, f"{picture} was not answered twice")
        if not answers[0].logprobs:
            return Finding.of(False, f"{picture}: the server gives no logprobs")
        if answers[0].tokens != answers[1].tokens:
            return Finding.of(
                False,
                f"{picture} is not answered alike twice: "
                + first_difference(answers[0], answers[1]),
            )
    for place, picture in enumerate(pictures):
        for other in pictures[place + 1 :]:
            if any(is_any(answer, owns[other]) for answer in owns[picture]):
                return Finding.of(False, f"{picture} and {other} get one and the same answer")
    names = ", ".join(pictures)
    return Finding.of(True, f"{names} alone: {len(pictures)} different answers, repeatable")


def stub_untouched(evidence: Evidence) -> Finding:
    """No kernel that is only pretended took part, and the log shows that the count works."""
    loaded = checks.log_count(evidence, "sgl_kernel_stub-loaded")
    calls = [
        checks.log_count(evidence, f"{name}-called") for name in ("sgl_kernel_stub", "vllm_names")
    ]
    if loaded is None or None in calls:
        return Finding.unknown(evidence.why_missing("logs", "check"))
    if not loaded:
        return Finding.unknown("the log does not show that the stand-in was loaded")
    total = sum(c or 0 for c in calls)
    files = checks.log_files(evidence)
    if total:
        return Finding.unknown(
            f"{total} calls of kernels that are only pretended: the answers may not be the "
            "engine's own",
            *files,
        )
    return Finding.of(True, f"it reported itself {loaded} times, 0 calls", *files)


def behind_stub(facts: RunFacts) -> bool:
    return facts.fidelity is Fidelity.CPU_STAND_IN


def stub_conditions(facts: RunFacts) -> list[Condition]:
    """What a run behind the stand-in has to show besides."""
    if not behind_stub(facts):
        return []
    said = "no kernel that the stand-in only pretends to have was called"
    return [Condition("no-pretended-kernel", "cause", said, stub_untouched)]


def answer(record: RequestRecord | None) -> str:
    """An answer for people: its tokens, of which a byte-level model has strange ones."""
    if record is None:
        return "no answer"
    return " ".join(repr(token)[1:-1] for token in record.tokens) or record.text


def shown(
    caption: str,
    picture: bytes,
    file: str,
    evidence: Evidence,
    record: RequestRecord | None,
    own: RequestRecord | None,
) -> Shown:
    """One column of the report's comparison; ``own``: the picture's answer in the gate."""
    facts: dict[str, str] = {}
    if record is not None:
        number = cached(evidence, record)
        facts["logprobs"] = ", ".join(f"{p:.3f}" for p in record.logprobs[:5]) + " …"
        facts["from the cache"] = (
            f"{'?' if number is None else number} of {record.prompt_tokens} prompt tokens"
        )
        if own is not None and own is not record:
            facts["against its own"] = first_difference(record, own)
    return Shown(caption=caption, png=picture, file=file, text=answer(record), facts=facts)


def claim(name: str, text: str, finding: Finding, source: str, *, note: str = "") -> ClaimResult:
    """A claim of the analysis, judged by a finding: met confirms it, not met refutes it."""
    status = {
        Truth.MET: ClaimStatus.CONFIRMED,
        Truth.NOT_MET: ClaimStatus.REFUTED,
        Truth.UNKNOWN: ClaimStatus.NOT_TESTED,
    }[finding.truth]
    observed = f"{finding.observed} ({note})" if note else finding.observed
    return ClaimResult(id=name, text=text, source=source, status=status, observed=observed)
