"""No prompt takes more from the prefix cache than an earlier prompt shares with it.

A server that tells how many tokens of a prompt came from its cache can be held to it without a
second server: the most that a sound cache can give is the longest prefix that the prompt shares, in
text, in its pictures and under its salt, with any one that was sent before it was answered, and
with that one's answer. Blocks and pages only make it less. See :mod:`mmrepro.oracle.prompts` for
how the bound is found without knowing the chat template; where it cannot be found, nothing is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmrepro.case.model import Case
from mmrepro.case.played import Played, PlayState
from mmrepro.engines import Engine
from mmrepro.evidence import RequestRecord
from mmrepro.incident.replay import Expectation, FindingClass, Sighting
from mmrepro.models.tiny import TINY
from mmrepro.oracle import buckets
from mmrepro.oracle.judged import Judged, Sent, sent_of
from mmrepro.oracle.loud import INVALID
from mmrepro.oracle.prompts import NOTHING, Prompt, Rules, prompt_of, prompt_of_record
from mmrepro.signature.answers import grade
from packaging.version import Version

BY_PICTURE = ("vllm", "minivllm")
"""Engines whose caches go by the picture, not by what the processor makes of it."""
SALTED = {"vllm": "0.11.0", "sglang": "0.5.11"}
"""Engines whose caches go by ``cache_salt``, and since when: SGLang 0.5.6 takes it, and its
scheduler drops it (scenarios/pad_value_collision)."""
STARTED_AGAIN = ("vllm:num_preemptions_total", "minivllm:num_preemptions_total")
"""A request that is preempted finds its own tokens in the cache when it comes again; SGLang does
not count those."""


@dataclass(frozen=True)
class _Earlier:
    prompt: Prompt
    began: float


def cache_bound(case: Case, played: Played, engine: Engine) -> Judged:
    """Whether any operation took more from the cache than there can have been for it."""
    told = [one for one in sent_of(case, played) if _is_told(one)]
    if not told:
        return Judged(unseen=[_why_untold(case, played)] if played.evidence.requests else [])
    if played.state is not PlayState.ENDED:
        return Judged(unseen=["The play did not end: the cache bound was not judged."])
    if _preempted(played, engine):
        return Judged(
            unseen=[
                "Requests were preempted, and find their own tokens in the cache when they "
                "come again: the cache bound was not judged."
            ]
        )
    rules = Rules(bytewise=case.server.model in TINY, by_features=engine.name not in BY_PICTURE)
    since = SALTED.get(engine.name)
    salted = since is not None and Version(case.server.release) >= Version(since)
    earlier = _prompts(case, played, rules, salted=salted)
    sightings, unknown = [], 0
    for one in told:
        found, known = _judged(one, earlier, rules)
        sightings += [found] if found else []
        unknown += not known
    unseen = [f"Of {unknown} prompts it cannot be told what they share with earlier ones."]
    return Judged(sightings=_by_bucket(sightings), unseen=unseen if unknown else [])


def _is_told(one: Sent) -> bool:
    record = one.record
    return (
        one.generates
        and one.n == 1
        and record.answered
        and record.cached_tokens is not None
        and record.prompt_tokens is not None
    )


def _why_untold(case: Case, played: Played) -> str:
    option = {
        "vllm": " (vLLM does with --enable-prompt-tokens-details)",
        "sglang": " (SGLang does with --enable-cache-report)",
    }.get(case.server.engine, "")
    return f"No answer tells how many tokens came from the cache{option}: its bound was not judged."


def _preempted(played: Played, engine: Engine) -> bool:
    """Whether a request may have been; where the engine counts that, and nothing tells, it may."""
    names = [name for name in STARTED_AGAIN if name.startswith(f"{engine.name}:")]
    if not names:
        return False
    if played.before is None or played.after is None:
        return True
    before, after = (reading.metrics.get(names[0]) for reading in (played.before, played.after))
    return before is None or after is None or after > before


def _prompts(case: Case, played: Played, rules: Rules, *, salted: bool) -> list[_Earlier]:
    """All that was sent to the server, by the case and by the harness, but for what was refused
    for its length before it ran."""
    sent = sent_of(case, played)
    names = {one.op.id for one in sent}
    ours = [
        _Earlier(prompt_of(one, bytewise=rules.bytewise, salted=salted), one.begin)
        for one in sent
        if one.generates and not _refused_for_length(one.record)
    ]
    others = [
        _Earlier(prompt_of_record(record, bytewise=rules.bytewise), record.sent.mono)
        for record in played.evidence.requests
        if record.label not in names and record.prompt_chars
    ]
    return [*ours, *others]


def _refused_for_length(record: RequestRecord) -> bool:
    """Engines look at the length before anything is computed: such a prompt is in no cache."""
    return record.status in INVALID and grade(record).kind == "refusal"


def _judged(one: Sent, earlier: Sequence[_Earlier], rules: Rules) -> tuple[Sighting | None, bool]:
    """What is wrong with an answer, and whether it could be judged."""
    record = one.record
    mine = next(e.prompt for e in earlier if e.prompt.name == one.op.id)
    cached, tokens = record.cached_tokens or 0, record.prompt_tokens or 0
    if cached > tokens:
        return _sighting(one, "whole", tokens, f"its prompt has {tokens}"), True
    if not cached:
        return None, True
    best, whose = rules.most_shared(mine, NOTHING), ""
    if best is None:
        return None, False
    for other in earlier:
        if other.prompt is mine or other.began >= one.end:
            continue
        shared = rules.most_shared(mine, other.prompt)
        if shared is None:
            return None, False
        if shared > best:
            best, whose = shared, other.prompt.name
        if best >= cached:
            return None, True
    with_whom = f"{whose} shares" if whose else "what a template puts before a prompt has"
    return _sighting(one, _kind(mine), best, f"{with_whom} at most {best} with it"), True


def _kind(prompt: Prompt) -> str:
    """What it is that differs: a salt, pictures or text."""
    if prompt.salt:
        return "salt"
    pictures = any(not isinstance(item, str) for item in prompt.orders[0])
    return "picture" if pictures else "text"


def _sighting(one: Sent, kind: str, most: int, bound: str) -> Sighting:
    record = one.record
    return Sighting(
        finding_class=FindingClass.CACHE_BOUND,
        bucket=buckets.silent(FindingClass.CACHE_BOUND, kind),
        operations=[one.op.id],
        said=f"{one.op.id}: {record.cached_tokens} of {record.prompt_tokens} prompt tokens came "
        f"from the prefix cache; {bound}.",
        expected="No more tokens come from the cache than an earlier prompt shares.",
        expectations=[Expectation(operation=one.op.id, cached_at_most=most)],
    )


def _by_bucket(sightings: Sequence[Sighting]) -> list[Sighting]:
    """One for each bucket, with all operations; the first one's words."""
    merged: dict[str, Sighting] = {}
    for one in sightings:
        if one.bucket in merged:
            merged[one.bucket].operations += one.operations
            merged[one.bucket].expectations += one.expectations
        else:
            merged[one.bucket] = one.model_copy(deep=True)
    return list(merged.values())
