"""What scenarios declare: what an observer asks for, what is abnormal, what is set up
and sent.

Each test also judges or sends: what is declared counts where it is used.
"""

import asyncio
import importlib
from pathlib import Path

import pytest
from listening import Listening, driven
from made_up import at, hang_run, request, run_facts
from made_up_crash import death_run
from made_up_kv import ended, log, opaque_run, replace_log, sized
from made_up_sglang import EMBEDDING, KV, alias_run, run
from mmrepro.base.records import ClaimStatus
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.engines.models.tiny import TinyText
from mmrepro.failure.signature import evaluate
from mmrepro.kv_budget import Geometry, block_bytes_of
from mmrepro.scenario import LiveFacts, Scenario, lmdeploy as kv
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios import kv_growth_crash as growth, shape_alias
from mmrepro.scenarios.chunked_mm_prefill import placeholder
from mmrepro.scenarios.ghost_key_eviction import (
    SCENARIO as GHOST_KEY,
    report as ghost_report,
)
from mmrepro.scenarios.pad_value_collision import SCENARIO as COLLISION
from mmrepro.scenarios.undersized_kv_budget import SCENARIO as BUDGET, WAYS, report
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence import Evidence, ReproducerResult
from mmrepro.traffic.evidence.recorder import Recorder

CONFIRMED, REFUTED, NOT_TESTED = (
    ClaimStatus.CONFIRMED,
    ClaimStatus.REFUTED,
    ClaimStatus.NOT_TESTED,
)

# ------------------------------------------------------------- an observer's conditions

OBSERVED = {
    "encoder-cache-overflow": "no-progress no-answer core-alive counted-as-running "
    "larger-than-the-budget schedules-nothing",
    "kv-growth-crash": "every-request-fails front-lives assertion",
    "mm-cache-desync": "requests-fail others-answered endpoints-green receiver-misses",
    "undersized-kv-budget": "requests-fail others-answered endpoints-green "
    "validation-error input-length-error",
    "chunked-mm-prefill generated-placeholder": "core-died first-error",
    "chunked-mm-prefill literal-placeholder": "core-died first-error",
    # All of a run, so that no crash alone is taken for the race.
    "chunked-mm-prefill async-race": "request-500 core-died health-503 server-exits? "
    "first-error silent-steps? wrong-mask unordered-buffer",
    "pad-value-collision": "b-gets-a a-gets-b silent control endpoints-green? "
    "kv-reused equal-pad-values radix-match?",
}
OPTIONAL = {
    "encoder-cache-overflow": "counted-as-running core-burns-cpu others-starve",
    "mm-cache-desync": "for-ever",
    "chunked-mm-prefill generated-placeholder": "server-exits",
    "chunked-mm-prefill literal-placeholder": "server-exits",
    "chunked-mm-prefill async-race": "server-exits silent-steps",
    "pad-value-collision": "endpoints-green radix-match",
}


def named(name: str) -> Scenario:
    name, _, variant = name.partition(" ")
    return load_scenario(name).with_variant(variant) if variant else load_scenario(name)


@pytest.mark.parametrize("name", OBSERVED)
def test_what_is_asked_for_and_what_decides(name: str) -> None:
    scenario = named(name)
    live = evaluate(
        scenario.live_conditions(LiveFacts(scenario.engine, scenario.release)),
        Evidence(),
    )
    told = " ".join(f"{r.id}{'' if r.required else '?'}" for r in live)
    assert told == OBSERVED[name]
    results = evaluate(scenario.conditions(run_facts(scenario)), Evidence())
    assert " ".join(r.id for r in results if not r.required) == OPTIONAL.get(name, "")


# ------------------------------------------------------------------ rows and claims


def test_the_rows_of_the_collision_say_what_is_abnormal() -> None:
    rows = COLLISION.symptom_rows(run(collides=True), run_facts(COLLISION))
    assert [r.abnormal for r in rows] == [True, True, True, False, False]
    rows = COLLISION.symptom_rows(run(collides=False), run_facts(COLLISION))
    assert [r.abnormal for r in rows] == [False] * 5


@pytest.mark.parametrize("scenario", [KV, EMBEDDING])
def test_the_rows_of_the_alias_say_what_is_abnormal(scenario: Scenario) -> None:
    for aliases in (True, False):
        rows = scenario.symptom_rows(
            alias_run(scenario, aliases=aliases), run_facts(scenario)
        )
        assert [r.abnormal for r in rows] == [aliases, aliases, False]


def test_the_tables_of_the_ghost_key() -> None:
    made = importlib.reload(ghost_report)
    again = type(
        "Again", (type(GHOST_KEY),), {"rows": made.ROWS, "claims": made.CLAIMS}
    )()
    evidence = hang_run()
    for number, record in enumerate(evidence.requests):
        record.sent = at(20 * number)  # one at a time
    rows = {r.check: r.abnormal for r in again.symptom_rows(evidence, run_facts(again))}
    assert [name for name, abnormal in rows.items() if abnormal is False] == [
        "process alive",
        "/health, /v1/models",
    ]
    assert [name for name, abnormal in rows.items() if abnormal is None] == [
        "GPU utilisation"
    ]
    told = again.claim_results(evidence, run_facts(again))
    assert [c.id for c in told if c.status is REFUTED] == ["at-will", "unit-test-hangs"]


def test_a_served_collision_refutes_what_was_said_of_fixes() -> None:
    claims = COLLISION.claim_results(run(collides=True), run_facts(COLLISION))
    refuted = [c.id for c in claims if c.status is REFUTED]
    assert refuted == ["half-chance", "embeddings"]


def test_what_a_crash_did_not_need_is_refuted_by_it() -> None:
    without = placeholder.report.with_budget_above_the_image
    needs = placeholder.needs("needs", "it needs a small budget", without)
    scenario = named("chunked-mm-prefill generated-placeholder")
    again = type("Again", (type(scenario),), {"claims": (needs,)})()
    (told,) = again.claim_results(death_run(placeholder.IMAGE), run_facts(again))
    assert told.status is REFUTED


def kv_claims(evidence: Evidence) -> dict[str, ClaimStatus]:
    """By claims that are made anew."""
    made = {
        "claims": report.claims(BUDGET.predicted),  # type: ignore[attr-defined]
        "rows": report.rows(report.PROMPT),
    }
    again = type("Again", (type(BUDGET),), made)()
    rows = again.symptom_rows(evidence, run_facts(again))
    assert [r.abnormal for r in rows[:2]] == [True, True]
    assert [r.healthy for r in rows[2:]] == ["0.5", "107", "6848"]
    return {c.id: c.status for c in again.claim_results(evidence, run_facts(again))}


def test_the_reports_numbers() -> None:
    computed = {"block_bytes": 8_388_608, "runtime_mib": 5061, "pool_big": 903_548_928}
    evidence = opaque_run()
    evidence.reproducers = [
        ReproducerResult(name=report.CHAIN, exit_code=0, seconds=1, facts=computed)
    ]
    told = kv_claims(evidence)
    assert told["gpu-mem"] is NOT_TESTED  # consistent with it, no more
    by_log = {"blocks-21", "limit-1344", "blocks-107", "limit-6848"}
    assert {told[name] for name in by_log} == {CONFIRMED}
    assert told["block-bytes"] is told["runtime"] is CONFIRMED
    assert told["blocks-24"] is REFUTED
    replace_log(evidence, log(sized(0.1, 24, 1536), *[ended(3446, 1536)] * 2))
    assert kv_claims(evidence)["blocks-24"] is CONFIRMED


def test_the_image_has_its_own_prompt_and_no_reproducer() -> None:
    evidence = opaque_run()
    text, image = (s.claim_results(evidence, run_facts(s)) for s in BUDGET.variants[:2])
    assert [c.id for c in image] == [c.id for c in text if c.id not in report.OF_TEXT]
    assert len(image) == len(text) - 5


# ------------------------------------------------------------------ what is set up


def bytes_of_a_block(layers: int, heads: int, dim: int) -> int:
    return block_bytes_of(Geometry(layers, heads, dim, dim, 2), BUDGET.release)


def test_a_models_blocks_are_as_large_as_foretold() -> None:
    for scenario in (*BUDGET.variants, growth.SCENARIO):
        plan, model = scenario.plan_of(scenario.release), scenario.model  # type: ignore[attr-defined]
        if isinstance(model, TinyText):
            size = bytes_of_a_block(model.layers, model.kv_heads, model.head_dim)
        else:
            assert isinstance(model, TinyQwen2VL)
            assert model.hidden % 64 == 0
            size = bytes_of_a_block(model.layers, model.hidden // 64, 64)
        assert (size, model.vocab_size) == (plan.bytes_per_block, plan.vocab_size)
    full = BUDGET.with_variant("full-size")
    assert full.plan_of(full.release).bytes_per_block == 8_388_608  # type: ignore[attr-defined]
    assert full.expected(full.release, frozenset())
    image = BUDGET.with_variant("image").model
    assert isinstance(image, TinyQwen2VL)
    assert (image.vision_width, image.vision_depth) == (32, 1)  # the least of work
    assert growth.prompt_tokens(growth.SCENARIO.release) == 1300
    assert growth.SCENARIO.needed == 1400
    assert growth.SCENARIO.mitigations[0].server_args == (
        "--cache-max-entry-count",
        "0.11",
    )
    assert growth.SCENARIO.trigger_deadline_s == 60.0


# ------------------------------------------------------------------ what is sent


@pytest.mark.parametrize("variant", ["text", "image"])
def test_the_prompt_is_sent_whole_and_streamed(variant: str, tmp_path: Path) -> None:
    scenario, server = BUDGET.with_variant(variant), Listening()
    drive = Drive(server, Recorder(tmp_path), (28, 28), 2048, "0.6.4")  # type: ignore[arg-type]
    short = request("gate", "short", prompt_tokens=417)
    asyncio.run(scenario.outgrow(drive, "gate: ", short))  # type: ignore[attr-defined]
    told = [(label, more["stream"]) for label, _, more in server.sent]
    assert told == [(f"gate: {label}", streamed) for label, streamed in WAYS.items()]
    assert told == [("gate: the prompt", False), ("gate: the prompt, streamed", True)]


def test_the_answer_outgrows_the_cache(tmp_path: Path) -> None:
    server = Listening()
    drive = Drive(server, Recorder(tmp_path), (28, 28), 2048, "0.6.4")  # type: ignore[arg-type]
    short = request("gate", "short", prompt_tokens=417)
    asyncio.run(growth.SCENARIO.outgrow(drive, "", short))
    ((label, _, more),) = server.sent
    assert (label, len(more["text"]), more["max_tokens"]) == (
        "growing",
        1300 - 415,
        100,
    )
    assert kv.SHORT == "hi"


def test_pictures_that_fill_the_cache_of_embeddings(tmp_path: Path) -> None:
    server = driven(EMBEDDING, tmp_path, part="between")
    names = [f"fill-{n}{again}" for n in range(5) for again in ("", " again")]
    assert server.images == [(name, [1024]) for name in names]
    assert EMBEDDING.model.image_tokens == 1024
    assert (EMBEDDING.prefix_cached, shape_alias.FEW) == (False, 2)  # type: ignore[attr-defined]
    assert all(more["max_tokens"] == 1 for _, _, more in server.sent)
