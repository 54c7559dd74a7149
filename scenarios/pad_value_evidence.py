"""Conditions and claims of the pad value collision: from evidence to findings."""

from __future__ import annotations

from collections.abc import Iterator

from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, SymptomRow
from mmrepro.incident.birthday import collision_probability, images_for
from mmrepro.scenario import RunFacts
from mmrepro.scenarios import prefix_sharing as sharing
from mmrepro.scenarios.prefix_sharing import cached, claim, first_difference, one
from mmrepro.signature import Finding, Truth

BITS = 30
REPORTED_POOL = 46_000
REPRODUCER = "pad_value_collision.py"
ANALYSIS = "analysis"

ORDERS = (("A", "B"), ("B", "A"))
PASSED_ON_SINCE = "0.5.11"
"""First release whose scheduler passes extra_key on to the request (managers/scheduler.py:2001 of
0.5.11; 0.5.10 builds Req without it)."""


def victim_label(first: str, second: str) -> str:
    return f"{second} after {first}"


def victim(evidence: Evidence, first: str, second: str) -> RequestRecord | None:
    return one(evidence, victim_label(first, second))


def prefix_tokens(evidence: Evidence) -> int | None:
    """Tokens before the picture: what two pictures that have nothing to do with it share."""
    record = one(evidence, "gate: other picture after another")
    return None if record is None else cached(evidence, record)


def wrong_answer(evidence: Evidence, first: str, second: str) -> Finding:
    """``second``, sent after ``first``, is answered exactly as ``first`` is."""
    record = victim(evidence, first, second)
    strangers = sharing.own_answers(evidence, first)
    owns = sharing.own_answers(evidence, second)
    if record is None or not strangers or not owns:
        return Finding.unknown(f"{victim_label(first, second)} was not answered")
    if sharing.is_any(record, owns):
        return Finding.of(False, f"{victim_label(first, second)}: {second}'s own answer")
    if not sharing.is_any(record, strangers):
        return Finding.of(
            False,
            f"{victim_label(first, second)}: neither {first}'s nor {second}'s answer "
            f"({first_difference(record, strangers[-1])})",
        )
    return Finding.of(
        True,
        f"{victim_label(first, second)}: {first}'s answer, all {len(record.tokens)} tokens and "
        f"logprobs; from its own it differs at {first_difference(record, owns[0])}",
    )


def wrong_in_both_orders(evidence: Evidence) -> Finding:
    return _both([wrong_answer(evidence, *order) for order in ORDERS])


def silent(evidence: Evidence) -> Finding:
    """Nothing tells the client that something is wrong."""
    records = [r for r in (victim(evidence, *order) for order in ORDERS) if r is not None]
    if len(records) < len(ORDERS):
        return Finding.unknown("not both orders were answered")
    said = "; ".join(
        f"{r.label}: HTTP {r.status}, finish_reason {r.finish_reason}" for r in records
    )
    fine = all(r.status == 200 and r.finish_reason in ("length", "stop") for r in records)
    return Finding.of(fine, said)


def control_keeps_to_the_prefix(evidence: Evidence) -> Finding:
    """The control shares the text before the picture and no more, and gets its own answer.

    Without that, the pair's equal pad values are not what makes the difference: unknown.
    """
    prefix = prefix_tokens(evidence)
    if prefix is None:
        return Finding.unknown("how many tokens the text before the picture has was not measured")
    told = []
    for first in ("A", "B"):
        record = one(evidence, f"control after {first}")
        if record is None:
            return Finding.unknown(f"the control after {first} was not answered")
        shared = cached(evidence, record)
        if shared is None:
            return Finding.unknown(f"the control after {first}: what it shared is unknown")
        if shared > prefix:
            return Finding.unknown(
                f"the control after {first} shares {shared} tokens, more than the {prefix} before "
                "the picture: the run cannot tell a collision from any picture"
            )
        if not sharing.is_any(record, sharing.own_answers(evidence, "control")):
            return Finding.of(False, f"the control after {first} does not get its own answer")
        told.append(f"after {first}: {shared} of {record.prompt_tokens} tokens shared, own answer")
    return Finding.of(True, f"text before the picture: {prefix} tokens; control {'; '.join(told)}")


def kv_reused(evidence: Evidence) -> Finding:
    """The cache served tokens of the other picture, not only of the text before it."""
    prefix = prefix_tokens(evidence)
    if prefix is None:
        return Finding.unknown("how many tokens the text before the picture has was not measured")
    told, reused = [], []
    for order in ORDERS:
        record = victim(evidence, *order)
        shared = None if record is None else cached(evidence, record)
        if record is None or shared is None:
            return Finding.unknown(f"{victim_label(*order)}: what it shared is unknown")
        reused.append(shared > prefix)
        told.append(f"{record.label}: {shared} of {record.prompt_tokens}")
    text = f"prompt tokens from the cache: {'; '.join(told)}; the text before the picture has "
    return Finding.of(all(reused), f"{text}{prefix}")


def equal_pads(evidence: Evidence) -> Finding:
    """In the engine's own code: one pad value of two hashes."""
    facts = _facts(evidence)
    if isinstance(facts, Finding):
        return facts
    text = (
        f"A: hash {facts.get('hash_a')}, pad value {facts.get('pad_a')}; "
        f"B: hash {facts.get('hash_b')}, pad value {facts.get('pad_b')}"
    )
    met = facts.get("pads_equal") is True and facts.get("hashes_differ") is True
    return Finding.of(met, text, f"{REPRODUCER}.json")


def radix_match(evidence: Evidence) -> Finding:
    """The engine's RadixCache alone takes the one picture's entry for the other's."""
    facts = _facts(evidence)
    if isinstance(facts, Finding):
        return facts
    hit, tokens = facts.get("match_b_after_a"), facts.get("tokens")
    control = facts.get("match_control_after_a")
    text = f"B matches {hit} of {tokens} tokens of A; the control {control}"
    met = hit == tokens and control == facts.get("prefix_tokens")
    return Finding.of(met, text, f"{REPRODUCER}.json")


def healthy_after(evidence: Evidence) -> Finding:
    """Each picture gets its own answer in either order, and the control as well."""
    control = control_keeps_to_the_prefix(evidence)
    if control.truth is not Truth.MET:
        return control
    for order in ORDERS:
        label = victim_label(*order)
        record = victim(evidence, *order)
        if record is None and not any(r.label == label for r in evidence.requests):
            return Finding.unknown(f"{label} was not sent")
        if record is None:
            return Finding.of(False, f"{label} was not answered")
        if not sharing.is_any(record, sharing.own_answers(evidence, order[1])):
            return Finding.of(False, f"{record.label}: not {order[1]}'s own answer")
    return Finding.of(True, "A, B and the control get their own answers in either order")


# ------------------------------------------------------------------ tables


def symptom_rows(evidence: Evidence) -> Iterator[SymptomRow]:
    for first, second in ORDERS:
        found = wrong_answer(evidence, first, second)
        yield SymptomRow(
            check=f"{second} after {first}, same text",
            healthy=_answers(evidence, second),
            observed=found.observed,
            abnormal=None if found.truth is Truth.UNKNOWN else found.truth is Truth.MET,
            reported="answered with the features of the other picture",
        )
    for label, healthy, finding, bad in (
        ("prompt tokens from the cache", "the text before", kv_reused(evidence), True),
        (
            "control picture after A, after B",
            "its own",
            control_keeps_to_the_prefix(evidence),
            False,
        ),
        ("HTTP status after the other picture", "200", silent(evidence), False),
    ):
        unknown = finding.truth is Truth.UNKNOWN
        abnormal = None if unknown else (finding.truth is Truth.MET) == bad
        yield SymptomRow(check=label, healthy=healthy, observed=finding.observed, abnormal=abnormal)


def claims(evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
    """The statements of the analysis."""
    salted = sorted(facts.mitigations & {"cache-salt", "extra-key"})
    wrong = _of_equal_pads(evidence, facts, wrong_in_both_orders(evidence))
    reused = _of_equal_pads(evidence, facts, kv_reused(evidence))
    statements: tuple[tuple[str, str, Finding, str], ...] = (
        ("pad-range", "pad values lie in [0, 2^30)", pad_range(evidence), ANALYSIS),
        (
            "half-chance",
            "about 46 000 images give a 50 % chance of a collision",
            half_chance(evidence),
            ANALYSIS,
        ),
        ("kv-reused", "two pictures with one pad value share KV cache", reused, ANALYSIS),
        ("a-features", "B is answered with A's features", wrong, ANALYSIS),
        (
            "embeddings",
            "the embeddings are still replaced correctly, so it does not crash",
            embeddings_do_not_help(evidence),
            ANALYSIS,
        ),
        (
            "extra-key",
            "extra_key isolates completely",
            isolation(evidence, facts, salted),
            ANALYSIS,
        ),
        ("fixed-2256", "sglang#2256 and #2309 fixed it", history(wrong, facts), "history"),
    )
    return [claim(*statement) for statement in statements]


def _of_equal_pads(evidence: Evidence, facts: RunFacts, finding: Finding) -> Finding:
    """What pictures with one pad value do is told by pictures that have one."""
    if facts.mitigations and finding.truth is not Truth.MET:
        named = ", ".join(sorted(facts.mitigations))
        return Finding.unknown(f"mitigated in this run by {named}: {finding.observed}")
    pads = equal_pads(evidence)
    if pads.truth is Truth.MET:
        return finding
    why = "they have none in common" if pads.truth is Truth.NOT_MET else "it is unknown"
    return Finding.unknown(f"whether one pad value is enough is not told: {why} ({pads.observed})")


def pad_range(evidence: Evidence) -> Finding:
    facts = _facts(evidence)
    if isinstance(facts, Finding):
        return facts
    low, high, wraps = (facts.get(k) for k in ("pad_of_0", "pad_of_2_30_less_1", "pad_of_2_30"))
    numbers = [n for n in (low, high, wraps) if isinstance(n, int) and not isinstance(n, bool)]
    if len(numbers) < 3:
        return Finding.unknown("the reproducer does not tell", f"{REPRODUCER}.json")
    space = "2^30 different ones" if wraps == low else "more than 2^30 different ones"
    text = f"hash 0 gives {low}, hash 2^30 - 1 gives {high}, hash 2^30 gives {wraps}: {space}"
    met = low == 0 and high == (1 << BITS) - 1 and wraps == low
    return Finding.of(met, text, f"{REPRODUCER}.json")


def half_chance(evidence: Evidence) -> Finding:
    """Arithmetic, once the engine's own code has shown that there are 2^30 values."""
    facts = _facts(evidence)
    if isinstance(facts, Finding):
        return facts
    if facts.get("pad_of_2_30") is None or facts.get("pad_of_2_30") != facts.get("pad_of_0"):
        return Finding.unknown("this release has more than 2^30 pad values")
    half, there = images_for(0.5, BITS), collision_probability(REPORTED_POOL, BITS)
    text = f"50 % is reached at {half:,} images; {REPORTED_POOL:,} give {there:.1%}"
    return Finding.of(abs(there - 0.5) < 0.01, text)


def embeddings_do_not_help(evidence: Evidence) -> Finding:
    """The half that holds is that nothing crashes; the answer says whether the rest does."""
    wrong, quiet = wrong_in_both_orders(evidence), silent(evidence)
    if wrong.truth is not Truth.MET:
        return Finding.unknown(f"no collision was served in this run: {wrong.observed}")
    if quiet.truth is not Truth.MET:
        return quiet
    return Finding.of(
        False,
        "it does not crash, but the answer is the other picture's: the tokens of the picture come "
        "from the cache, so that no embedding is put in for them",
    )


def isolation(evidence: Evidence, facts: RunFacts, salted: list[str]) -> Finding:
    """Only a run that sends salts tells; the engine's cache alone is not the server."""
    if not salted:
        return Finding.unknown(
            f"no salt was sent in this run; to test: mmrepro run pad-value-collision --release "
            f"{facts.release} --mitigation cache-salt"
        )
    reused = kv_reused(evidence)
    if reused.truth is Truth.UNKNOWN:
        return reused
    named = ", ".join(salted)
    radix = _facts(evidence)
    alone = radix.get("match_b_after_a_other_key") if isinstance(radix, dict) else "?"
    isolated = healthy_after(evidence)
    return Finding.of(
        isolated.truth is Truth.MET,
        f"with {named} on {facts.release}: {reused.observed}; the radix cache by itself matches "
        f"{alone} tokens under another key (the scheduler passes the key on since "
        f"{PASSED_ON_SINCE})",
    )


def history(wrong: Finding, facts: RunFacts) -> Finding:
    """Both are of 2024 and in every release that can be run here: its presence refutes them."""
    if facts.mitigations:
        return Finding.unknown(f"mitigated in this run: {', '.join(sorted(facts.mitigations))}")
    if wrong.truth is Truth.MET:
        return Finding.of(False, f"both are in {facts.release}, and {wrong.observed}")
    return Finding.unknown(f"not seen on {facts.release}, which has later changes as well")


def _facts(evidence: Evidence) -> dict[str, str | int | float | bool | None] | Finding:
    result = evidence.reproducer(REPRODUCER)
    if result is None:
        return Finding.unknown("the reproducer was not run")
    if result.exit_code != 0:
        return Finding.unknown(f"the reproducer failed: {result.error[-200:]}")
    return result.facts


def _answers(evidence: Evidence, picture: str) -> str:
    owns = sharing.own_answers(evidence, picture)
    return sharing.answer(owns[0]) if owns else ""


def _both(findings: list[Finding]) -> Finding:
    """All of them, with what each observed; the first that is not met decides."""
    for truth in (Truth.NOT_MET, Truth.UNKNOWN):
        for finding in findings:
            if finding.truth is truth:
                return finding
    return Finding.of(True, "; ".join(f.observed for f in findings))
