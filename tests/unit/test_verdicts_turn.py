"""Signatures, one change at a time: the verdict turns, and no condition is one that
cannot fail.

A signature whose condition cannot fail would pass the first test and none of the
others."""

from functools import partial

import made_up_race
import pytest
import test_verdicts_completions as completions
import test_verdicts_crash as crash
import test_verdicts_desync as desync
import test_verdicts_hang as hang
import test_verdicts_kv as kv
import test_verdicts_lora as lora
import test_verdicts_prefill as prefill
import test_verdicts_race as race
import test_verdicts_sglang as sglang
import test_verdicts_stack as stack
from made_up import desync_run, hang_run
from made_up_crash import overflow_run
from made_up_kv import crash_run, opaque_run
from mmrepro.base.records import Fidelity
from mmrepro.failure.signature import Outcome, Truth
from mmrepro.scenario import RunFacts
from turns import Change, Table, meant, recorded

STAND_IN = RunFacts(sglang.COLLISION.release, Fidelity.CPU_STAND_IN, frozenset(), 13.0)
TABLES = {
    "ghost-key-eviction": Table(hang.GHOST_KEY, hang_run, hang.ROWS),
    "mm-cache-desync": Table(desync.DESYNC, desync_run, desync.ROWS),
    "generated-placeholder": Table(crash.GENERATED, crash.dead, crash.DEATHS),
    "encoder-cache-overflow": Table(crash.OVERFLOW, overflow_run, crash.HANGS),
    "async-race": Table(made_up_race.RACE, made_up_race.race, race.ROWS),
    "undersized-kv-budget": Table(kv.BUDGET, opaque_run, kv.ROWS, complete=False),
    "kv-growth-crash": Table(kv.GROWTH, crash_run, kv.GROWTH_ROWS, complete=False),
    "slot-mapping": Table(
        prefill.SLOTS,
        partial(prefill.failed_run, prefill.SLOTS),
        prefill.ROWS,
        complete=False,
    ),
    "pad-value-collision": Table(
        sglang.COLLISION,
        partial(sglang.run, collides=True),
        sglang.ROWS,
        lambda: STAND_IN,
        complete=False,
    ),
    "completions-session": recorded(
        "completions-session-0.14.0", completions.SCENARIO, completions.ROWS
    ),
    "lora-no-adapter": recorded("lora-no-adapter-0.32.0", lora.SCENARIO, lora.ROWS),
    "lora-reload": recorded("lora-reload-0.25.0", stack.RELOAD, stack.RELOAD_ROWS),
    "lora-added": recorded("lora-added-0.25.0", stack.ADDED, stack.ADDED_ROWS),
    "tool-arguments-dropped": recorded(
        "tool-arguments-dropped-0.33.0", stack.TOOLS, stack.TOOL_ROWS
    ),
}
every_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


@pytest.fixture(autouse=True)
def alone(request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["table"].alone:
        request.getfixturevalue("by_conditions")


@every_table
def test_the_run_reproduces(table: Table) -> None:
    outcome, conditions = table.judged()
    unmet = [r.id for r in conditions if r.truth is not Truth.MET]
    assert unmet == (["counted-as-running"] if table.scenario is crash.OVERFLOW else [])
    assert all(r.observed for r in conditions)
    assert outcome is Outcome.REPRODUCED


@pytest.mark.parametrize(
    ("table", "change", "words"),
    [
        pytest.param(table, *row, id=f"{name}: {what}")
        for name, table in TABLES.items()
        for what, row in table.rows.items()
    ],
)
def test_one_change_turns_the_verdict(table: Table, change: Change, words: str) -> None:
    outcome, conditions = table.judged(change)
    expected, truths = meant(words)
    found = {r.id: r.truth for r in conditions}
    assert {name: found[name] for name in truths} == truths
    assert outcome is expected, found
    assert all(r.observed for r in conditions), "a reader must learn why"


@pytest.mark.parametrize("table", [t for t in TABLES.values() if t.complete])
def test_every_required_condition_can_fail_and_can_be_unknown(table: Table) -> None:
    seen: dict[str, set[Truth]] = {}
    for changes in [(), *((change,) for change, _ in table.rows.values())]:
        for result in table.judged(*changes)[1]:
            if result.required:
                seen.setdefault(result.id, set()).add(result.truth)
    assert {name: truths for name, truths in seen.items() if truths != set(Truth)} == {}
