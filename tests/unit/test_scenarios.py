"""Every registered scenario is consistent, and broken ones are refused in one
sentence."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from grids import grid
from made_up import (
    GHOST,
    LOOP,
    desync_run,
    drop,
    hang_run,
    healthy_run,
    run_facts,
    stacks,
    swap,
    thread,
)
from mmrepro.base.errors import BrokenScenario, UnknownScenario, UsageError
from mmrepro.base.records import ClaimStatus
from mmrepro.engines import ENGINES, LaunchRequest
from mmrepro.failure.signature import Finding, Outcome, Truth
from mmrepro.reproducers import reproducer_path
from mmrepro.scenario import Scenario, all_met
from mmrepro.scenario.more import Mitigation
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.scenarios.ghost_key_eviction import GhostKeyEviction
from mmrepro.traffic.evidence import Evidence
from packaging.specifiers import SpecifierSet
from packaging.version import Version

NONE: frozenset[str] = frozenset()


def test_the_built_in_scenarios_are_registered() -> None:
    assert {"ghost-key-eviction", "mm-cache-desync"} <= set(scenario_names())


@pytest.fixture(params=scenario_names())
def scenario(request: pytest.FixtureRequest) -> Scenario:
    return load_scenario(request.param)


def test_it_says_what_it_is(scenario: Scenario) -> None:
    assert scenario.name in scenario_names()
    assert scenario.engine in ENGINES
    assert all([scenario.title, scenario.summary, scenario.explanation])
    assert len(scenario.title) <= 90
    assert scenario.references
    assert all(r.url.startswith("https://") for r in scenario.references)


def test_its_release_is_affected(scenario: Scenario) -> None:
    assert scenario.affects(scenario.release)
    outcome, why = scenario.expected(scenario.release, NONE)
    assert outcome is Outcome.REPRODUCED
    assert scenario.release in why


def test_its_mitigations_can_be_applied(scenario: Scenario) -> None:
    names = [m.name for m in scenario.mitigations]
    assert len(names) == len(set(names))
    for mitigation in scenario.mitigations:
        assert scenario.mitigation(mitigation.name) is mitigation
        assert mitigation.description
        if mitigation.patch:
            folder = reproducer_path("standins") / mitigation.patch.folder
            assert (folder / "standin.py").is_file()
        if mitigation.release:
            outcome, _ = scenario.expected(
                mitigation.release, frozenset({mitigation.name})
            )
            assert outcome is Outcome.NOT_REPRODUCED
    for name in names:
        mitigation = scenario.mitigation(name)
        if not mitigation.release:
            outcome, why = scenario.expected(scenario.release, frozenset({name}))
            helps = mitigation.effective_on.contains(Version(scenario.release))
            assert outcome is (Outcome.NOT_REPRODUCED if helps else Outcome.REPRODUCED)
            assert name in why or not helps


def test_its_factors_can_be_flipped(scenario: Scenario) -> None:
    names = [f.name for f in scenario.factors]
    assert len(names) == len(set(names))
    for factor in scenario.factors:
        assert re.fullmatch(r"[a-z0-9-]+", factor.name)
        assert scenario.factor(factor.name) is factor
        assert all([factor.description, factor.failing, factor.setting])
        assert factor.failing != factor.setting
        if factor.patch:
            folder = reproducer_path("standins") / factor.patch.folder
            assert (folder / "standin.py").is_file()
    with pytest.raises(UsageError, match=names[0] if names else "it has: none"):
        scenario.factor("prayer")


def test_a_flip_comes_after_the_scenarios_own_options() -> None:
    scenario = load_scenario("ghost-key-eviction")
    flip = scenario.factor("mm-cache").flip
    request = LaunchRequest(
        environment=None,  # type: ignore[arg-type]
        model=Path("m"),
        port=1,
        max_model_len=1,
        server_args=scenario.server_args,
        mitigations=(flip, scenario.factor("touch-fix").flip),
    )
    args = request.all_server_args
    first, last = (i for i, arg in enumerate(args) if arg == "--mm-processor-cache-gb")
    assert (args[first + 1], args[last + 1]) == ("0.02", "0")
    assert request.variables(request.all_patches)["MMREPRO_GHOST_KEY_PATCH"] == "touch"


def test_whether_the_ghost_remains_without_the_hang() -> None:
    """The spin and its stack need the hang; a ghost and a class that cannot evict it do
    not."""
    scenario = load_scenario("ghost-key-eviction")
    facts = run_facts(scenario)
    whole = type("Whole", (type(scenario),), {"lasting_causes": ()})()
    assert whole.cause_remains(hang_run(), facts).truth is Truth.MET
    assert whole.cause_remains(healthy_run(), facts).truth is Truth.NOT_MET
    assert whole.cause_remains(Evidence(), facts).truth is Truth.UNKNOWN
    hidden = healthy_run()
    hidden.reproducers = hang_run().reproducers
    assert whole.cause_remains(hidden, facts).truth is Truth.NOT_MET
    assert scenario.cause_remains(hidden, facts).truth is Truth.MET
    assert scenario.cause_remains(healthy_run(), facts).truth is Truth.NOT_MET
    hidden.reproducers = []
    assert scenario.cause_remains(hidden, facts).truth is Truth.UNKNOWN


def test_an_unknown_mitigation_is_told_with_what_there_is(scenario: Scenario) -> None:
    with pytest.raises(UsageError, match=scenario.mitigations[0].name):
        scenario.mitigation("prayer")


def test_its_reproducers_are_there(scenario: Scenario) -> None:
    for name in scenario.reproducers:
        assert reproducer_path(name).is_file()


def test_its_signature_is_whole(scenario: Scenario) -> None:
    conditions = scenario.conditions(run_facts(scenario))
    ids = [c.id for c in conditions]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in ids)
    assert all(c.statement for c in conditions)
    assert {c.part for c in conditions if c.required} == {
        "precondition",
        "symptom",
        "cause",
    }


def test_its_log_patterns_compile_and_the_quoted_ones_exist(scenario: Scenario) -> None:
    patterns = {**ENGINES[scenario.engine].log_patterns, **scenario.log_patterns}
    for pattern in patterns.values():
        re.compile(pattern)
    assert set(scenario.key_log_patterns) <= set(patterns)


def test_its_sources_mark_something(scenario: Scenario) -> None:
    assert all(ref.qualname and ref.note and ref.highlight for ref in scenario.sources)


RUNS = {
    "nothing": Evidence,
    "hang": hang_run,
    "healthy": healthy_run,
    "desync": desync_run,
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    "release",
    grid(["0.13.0", "0.23.0", "0.24.0", "0.32.0"], always=["0.13.0", "0.32.0"]),
)
def test_its_tables_can_be_made_of_any_run(
    scenario: Scenario, run: str, release: str
) -> None:
    evidence = RUNS[run]()
    facts = run_facts(scenario, release)
    claims = scenario.claim_results(evidence, facts)
    assert len({c.id for c in claims}) == len(claims)
    if run == "nothing":
        assert {c.status for c in claims} == {ClaimStatus.NOT_TESTED}
    rows = scenario.symptom_rows(evidence, facts)
    assert len({r.check for r in rows}) == len(rows)
    if run == "nothing":
        assert {r.abnormal for r in rows if r.check != "process alive"} == {None}
    stack = scenario.key_stack(evidence)
    assert (stack is not None) == (
        run == "hang" and scenario.name == "ghost-key-eviction"
    )


def test_the_key_stack_is_one_with_the_ghost() -> None:
    stack = load_scenario("ghost-key-eviction").key_stack(hang_run())
    assert stack is not None
    assert stack.frames[0].function == "LRUCache.popitem"
    assert "lru_key" in stack.frames[0].locals
    assert (stack.seen, stack.samples, stack.owns_gil) == (5, 5, True)


def test_of_stacks_in_popitem_the_key_stack_is_the_one_that_shows_the_key() -> None:
    evidence = hang_run()
    shown, blank = thread(*LOOP, key=GHOST), thread(*LOOP)
    swap(evidence, stacks(thread(*LOOP[1:]), blank, shown, blank))
    stack = load_scenario("ghost-key-eviction").key_stack(evidence)
    assert stack is not None
    assert stack.frames[0].locals == {"lru_key": repr(GHOST)}
    assert stack.note.startswith("popitem evicts 1 × ")
    drop(evidence, "logs")
    stack = load_scenario("ghost-key-eviction").key_stack(evidence)
    assert stack is not None
    assert "logs" in stack.note, "a stack is shown although the log cannot be read"


def test_what_the_hang_claims_of_its_fix() -> None:
    """0.24.0 fixes the hang and not the desynchronisation; an older release tells
    nothing."""
    scenario = load_scenario("ghost-key-eviction")

    def status(evidence: Evidence, release: str) -> tuple[ClaimStatus, ClaimStatus]:
        claims = {
            c.id: c.status
            for c in scenario.claim_results(evidence, run_facts(scenario, release))
        }
        return claims["fixed-hang"], claims["fixed-desync"]

    assert status(healthy_run(), "0.24.0") == (
        ClaimStatus.CONFIRMED,
        ClaimStatus.REFUTED,
    )
    assert status(hang_run(), "0.24.0")[0] is ClaimStatus.REFUTED
    assert status(hang_run(), "0.23.0") == (ClaimStatus.NOT_TESTED,) * 2


# ---------------------------------------------------------------- expectations


def made(**attributes: object) -> Scenario:
    base = load_scenario("mm-cache-desync")
    plain = {"expected": Scenario.expected, "affected": SpecifierSet(">=1,<2")}
    return type("Made", (type(base),), plain | attributes)()  # type: ignore[no-any-return]


def test_the_expectation_follows_the_range_the_mitigation_and_where_it_works() -> None:
    helps = Mitigation("helps", "", ("--x",), effective_on=SpecifierSet(">=1.5"))
    upgrade = Mitigation("release", "", release="2.0")
    scenario = made(mitigations=(helps, upgrade))
    assert scenario.expected("0.9", NONE)[0] is Outcome.NOT_REPRODUCED
    assert scenario.expected("1.0", NONE)[0] is Outcome.REPRODUCED
    assert scenario.expected("1.4", frozenset({"helps"}))[0] is Outcome.REPRODUCED
    assert scenario.expected("1.5", frozenset({"helps"}))[0] is Outcome.NOT_REPRODUCED
    assert (
        scenario.expected("1.6rc1", frozenset({"helps"}))[0] is Outcome.NOT_REPRODUCED
    )
    # The release that was really run decides, not the name of the mitigation.
    assert scenario.expected("1.4", frozenset({"release"}))[0] is Outcome.REPRODUCED
    assert scenario.expected("2.0", frozenset({"release"}))[0] is Outcome.NOT_REPRODUCED


def test_unmet_is_a_sequential_and() -> None:
    met, not_met, unknown = (Finding(t, t.value) for t in Truth)
    assert all_met(met, not_met, unknown) is not_met
    assert all_met(met, unknown, not_met) is unknown
    assert all_met(met, met).truth is Truth.MET
    assert all_met().truth is Truth.UNKNOWN


# ---------------------------------------------------------------- loading by path

GOOD = """
    from __future__ import annotations
    from dataclasses import dataclass
    from mmrepro.scenarios.vllm_mm_caches import MmCacheDesync

    @dataclass
    class Plan:  # looks its own module up
        steps: list[str]

    class Mine(MmCacheDesync):
        name = "mine"

    SCENARIO = Mine()
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "my scenario.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_a_file_by_path(tmp_path: Path) -> None:
    assert load_scenario(written(tmp_path, GOOD)).name == "mine"


DECLARED = """from mmrepro.scenario import *
class S(Scenario):
    '''Title.

    What: happens.

    Why: a reason.
    '''
    name, release, affected = "s", "1", ">0"
    async def trigger(self, drive): pass
"""

BROKEN = {
    "syntax": ("x = 1\ndef f(:\n", "line 2 is not valid Python"),
    "indentation": ("def f():\nx = 1\n", "line 2 is not valid Python"),
    "nul byte": ("x = '\0'\n", "is not valid Python|cannot be loaded"),
    "import": ("import no_such_module\n", "No module named 'no_such_module'.*line 1"),
    "raises": ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero .*line 2"),
    "exits": ("import sys\nsys.exit(0)\n", "SystemExit"),
    "its own interrupt": (
        "x = 1\nraise KeyboardInterrupt\n",
        "KeyboardInterrupt.*line 2",
    ),
    "generator": ("raise GeneratorExit\n", "GeneratorExit"),
    "its own end": (
        "class E(BaseException): pass\nraise E('over')\n",
        "E: over .*line 2",
    ),
    "recursion": ("def f(): f()\nf()\n", "RecursionError"),
    "empty": ("", "binds no scenario to the name SCENARIO"),
    "a class": (GOOD + "\n    SCENARIO = Mine\n", "binds no scenario"),
    "abstract": (
        (
            "from mmrepro.scenario import Scenario\nclass S(Scenario): pass\nSCENARIO "
            "= S()\n"
        ),
        "abstract",
    ),
    "no range": (GOOD + "\n    Mine.affected = '<two'\n", "Invalid specifier"),
    "no such device": (
        GOOD + "\n    Mine.devices = ('gpu',)\n",
        "has the devices .'gpu',.",
    ),
    "a device's letters": (
        GOOD + "\n    Mine.devices = 'cpu'\n",
        "has the devices 'cpu'",
    ),
    "a number": (
        GOOD + "\n    Mine.release = 0.23\n",
        "lacks the attribute 'release', a text",
    ),
    "open quotes": (GOOD + "\n    Mine.server = '--x \"'\n", "No closing quotation"),
    "no condition": (
        GOOD + "\n    Mine.conditions = lambda *_: []\n",
        "has no condition",
    ),
    "an unknown type": (
        DECLARED + "    @cause('c')\n    def c(self, what: int): ...\nSCENARIO = S()\n",
        "asks for what: <class .int.>, which no evidence is",
    ),
    "two of a name": (
        DECLARED + "    symptoms = causes = (endpoints_green(),)\nSCENARIO = S()\n",
        "has two conditions called endpoints-green",
    ),
    "a claim by nothing": (
        DECLARED + "    symptoms = (endpoints_green(),)\n"
        "    claims = (claim('c', 'it is', 'r', by='no-such'),)\nSCENARIO = S()\n",
        "has the claim 'c' by 'no-such', which is no condition of it",
    ),
    "a row by nothing": (
        DECLARED + "    symptoms = (endpoints_green(),)\n"
        "    rows = (row('r', 'no-such'),)\nSCENARIO = S()\n",
        "has the row 'r' by 'no-such', which is no condition of it",
    ),
    "removed by nothing": (
        DECLARED + "    preconditions = (precondition('p', lambda: None, id='p', "
        "removed_by=('no-such',)),)\nSCENARIO = S()\n",
        (
            "has the precondition 'p' removed by 'no-such', which is no mitigation or "
            "factor of it"
        ),
    ),
    "no server to compare with": (
        DECLARED
        + (
            "    symptoms = (endpoints_green(),)\n    fails_at_start = True\n"
            "SCENARIO = S()\n"
        ),
        "fails_at_start and has no control_server",
    ),
    "a server for no option": (
        DECLARED + "    symptoms = (endpoints_green(),)\n"
        "    option_servers = {'video': '--x'}\nSCENARIO = S()\n",
        "has option_servers for 'video', which is no option of it",
    ),
    "a hook's name": (
        DECLARED
        + "    @cause('c')\n    def control(self, logs: Logs): ...\nSCENARIO = S()\n",
        "in the method 'control', which is a hook of Scenario",
    ),
    "no summary": (
        DECLARED.replace("What:", "") + "SCENARIO = S()\n",
        "begins with 'What:'",
    ),
}


@pytest.mark.parametrize(("text", "says"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BrokenScenario, match=says) as told:
        load_scenario(written(tmp_path, text))
    assert "\n" not in told.value.message
    assert "my scenario.py" in told.value.message


def test_a_syntax_error_in_what_it_imports_names_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "its_helper.py").write_text("def f(:\n")
    with pytest.raises(BrokenScenario, match=r"its_helper\.py line 1"):
        load_scenario(written(tmp_path, "import its_helper\n"))


def test_names_that_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(UnknownScenario, match="Did you mean ghost-key-eviction"):
        load_scenario("ghost-key-evicton")
    with pytest.raises(UnknownScenario, match=r"There is no scenario 'zzz'\.$"):
        load_scenario("zzz")
    with pytest.raises(UnknownScenario, match="There is no scenario file"):
        load_scenario(str(tmp_path / "none.py"))


class OtherWay(GhostKeyEviction):
    variant = "other-way"
    title = "the same, in another way"


class TwoWays(GhostKeyEviction):
    variant = "one-way"

    @property
    def variants(self) -> tuple[Scenario, ...]:
        return (self, OtherWay())


def test_a_variant_is_a_scenario_of_its_own() -> None:
    scenario = TwoWays()
    assert scenario.with_variant("") is scenario
    assert scenario.with_variant("one-way") is scenario
    other = scenario.with_variant("other-way")
    assert (other.name, other.full_name) == (
        scenario.name,
        "ghost-key-eviction-other-way",
    )
    with pytest.raises(UsageError, match="one-way, other-way"):
        scenario.with_variant("third-way")
    with pytest.raises(UsageError, match="it has: none"):
        GhostKeyEviction().with_variant("one-way")
