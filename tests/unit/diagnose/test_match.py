"""Known failures against evidence: no certainty that was not seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from made_up import GHOST, drop, hang_run, healthy_run, logs, probed, swap
from mmrepro.base.errors import UnknownScenario
from mmrepro.failure.documents.diagnosis import Fit, Match
from mmrepro.failure.signature import ConditionResult, Finding, Truth, views
from mmrepro.live.diagnose import match as matching
from mmrepro.live.diagnose.match import (
    all_scenarios,
    as_seen_by,
    judge,
    match,
    match_all,
    ranked,
    union,
)
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.session import diagnose
from mmrepro.probes.data import LogLine, LogsData
from mmrepro.scenario import LiveFacts
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.evidence import Evidence
from seen import waiting

GHOST_KEY = load_scenario("ghost-key-eviction")
DESYNC = load_scenario("mm-cache-desync")
FACTS = LiveFacts("vllm", "0.23.0", (), 15.0)
ALL_VLLM = [s for s in all_scenarios() if s.engine == "vllm"]


def hung() -> Evidence:
    """What a look at a hung server sees: no gate, no trigger, no reproducer."""
    evidence = hang_run()
    evidence.requests, evidence.reproducers, evidence.facts = [], [], {}
    evidence.probes = [p for p in evidence.probes if p.phase == "check"]
    return evidence


def healthy() -> Evidence:
    evidence = healthy_run()
    evidence.requests, evidence.reproducers, evidence.facts = [], [], {}
    evidence.probes = [p for p in evidence.probes if p.phase == "check"]
    swap(evidence, logs())
    return evidence


def failed(result: Match) -> dict[str, Truth]:
    return {c.id: c.truth for c in result.conditions if c.truth is not Truth.MET}


def test_a_hung_server_is_matched_by_the_ghost_key_alone() -> None:
    found = match_all(ALL_VLLM, hung(), FACTS)
    assert (found[0].scenario, found[0].fit) == ("ghost-key-eviction", Fit.MATCH)
    assert failed(found[0]) == {}
    assert found[0].exposed is True
    assert found[0].fix == "upgrade to vLLM 0.24.0 (vllm#43595)"
    assert all(m.fit in (Fit.EXPOSED, Fit.NOT_THIS) for m in found[1:])


def test_a_worker_that_waits_does_not_speak_for_the_core() -> None:
    """Its system calls are read as well, and may come last."""
    evidence = hung()
    worker = waiting().model_copy(update={"pid": 99_999})
    evidence.probes.append(probed(worker).model_copy(update={"phase": "check"}))
    ghost = match_all(ALL_VLLM, evidence, FACTS)[0]
    assert (ghost.scenario, ghost.fit) == ("ghost-key-eviction", Fit.MATCH), failed(
        ghost
    )


@pytest.mark.parametrize(
    ("probe", "lost"),
    [
        ("inference", {"no-answer-later"}),
        ("logs", {"cached-item-assertion", "ghost-is-the-key"}),
        ("metrics", {"nothing-queued", "no-progress"}),
        ("stacks", {"eviction-stack", "ghost-is-the-key"}),
        ("syscalls", {"user-space-spin"}),
        ("http", {"endpoints-green"}),
    ],
)
def test_what_was_not_seen_is_unknown_and_makes_it_likely(
    probe: str, lost: set[str]
) -> None:
    evidence = hung()
    drop(evidence, probe)
    found = match(GHOST_KEY, evidence, FACTS)
    assert found.fit is Fit.LIKELY
    assert {i for i, truth in failed(found).items() if truth is Truth.UNKNOWN} == lost
    assert set(failed(found).values()) == {Truth.UNKNOWN}


def test_without_log_and_stacks_only_the_symptom_is_there() -> None:
    evidence = hung()
    for probe in ("logs", "stacks", "syscalls"):
        drop(evidence, probe)
    assert match(GHOST_KEY, evidence, FACTS).fit is Fit.SYMPTOM_ONLY


def test_with_nothing_at_all_it_is_exposed_or_not_this() -> None:
    assert match(GHOST_KEY, Evidence(), FACTS).fit is Fit.EXPOSED
    fixed = replace(FACTS, release="0.24.0")
    assert match(GHOST_KEY, Evidence(), fixed).fit is Fit.NOT_THIS
    unknown = match(GHOST_KEY, Evidence(), replace(FACTS, release=""))
    assert (unknown.fit, unknown.exposed) == (Fit.NOT_THIS, None)
    off = replace(FACTS, command=("serve", "--mm-processor-cache-gb=0"))
    assert match(GHOST_KEY, Evidence(), off).exposed is False


def test_a_server_that_runs_with_a_mitigation_is_not_exposed() -> None:
    scenario = load_scenario("pad-value-collision")
    facts = LiveFacts("sglang", "0.5.6", ("serve", "--disable-radix-cache"), 15.0)
    assert match(scenario, Evidence(), facts).exposed is False
    assert (
        match(scenario, Evidence(), replace(facts, command=("serve",))).fit
        is Fit.EXPOSED
    )
    fixed = replace(facts, command=(), release="0.5.23")
    assert match(scenario, Evidence(), fixed).fit is Fit.NOT_THIS


def test_a_healthy_server_is_none_of_them() -> None:
    for found in match_all(all_scenarios(), healthy(), FACTS):
        assert found.fit in (Fit.EXPOSED, Fit.NOT_THIS), found


def test_variants_that_look_alike_from_outside_are_one() -> None:
    """Seen on LMDeploy 0.6.4: how large the prompt was does not show from outside."""
    budget = [s for s in all_scenarios() if s.name == "undersized-kv-budget"]
    assert len(budget) > 1
    found = match_all(budget, Evidence(), LiveFacts("lmdeploy", "0.6.4", (), 15.0))
    assert [m.variant for m in found] == [load_scenario("undersized-kv-budget").variant]
    contract = [s for s in all_scenarios() if s.name == "mm-prefill-contract"]
    evidence = healthy()
    log = logs()
    log.match_counts |= dict.fromkeys(contract[0].log_patterns.values(), 1)
    log.match_counts |= {p: 0 for s in contract[1:] for p in s.log_patterns.values()}
    swap(evidence, log)
    told = match_all(contract, evidence, LiveFacts("minivllm", "0.1", (), 15.0))
    assert len(told) > 1


def test_another_engines_failures_are_not_judged() -> None:
    found = match(GHOST_KEY, hung(), replace(FACTS, engine="sglang"))
    assert (found.fit, found.conditions) == (Fit.NOT_THIS, [])
    assert "sglang" in found.why


def access(count: int) -> LogsData:
    log = logs(*[GHOST] * count)
    line = LogLine(
        number=7, text='"POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error'
    )
    log.matches["failed-500"] = [line] * count
    log.match_counts["failed-500"] = count
    return log


def test_the_desynchronised_cache_shows_in_the_log_of_a_working_server() -> None:
    evidence = healthy()
    swap(evidence, access(2))
    found = match(DESYNC, evidence, replace(FACTS, release="0.24.0"))
    assert found.fit is Fit.MATCH, found
    hung_too = hung()
    swap(hung_too, access(1))
    assert match(DESYNC, hung_too, FACTS).fit is Fit.EXPOSED


def test_the_desynchronised_cache_shows_where_all_clients_stream() -> None:
    """Their answers began with 200: the access log has no 500 of them, EngineCore tells
    of them."""
    evidence, log = healthy(), logs(GHOST)
    log.match_counts["failed-500"] = 0
    log.match_counts["request-given-up"] = 0
    swap(evidence, log)
    found = match(DESYNC, evidence, replace(FACTS, release="0.24.0"))
    assert found.fit is not Fit.MATCH, found
    assert failed(found) == {"requests-fail": Truth.NOT_MET}
    log.match_counts["request-given-up"] = 1
    log.matches["request-given-up"] = [
        LogLine(number=8, text="Unexpected error pre-processing request chatcmpl-1")
    ]
    found = match(DESYNC, evidence, replace(FACTS, release="0.24.0"))
    assert found.fit is Fit.MATCH, found


def test_without_a_request_a_spinning_server_is_not_one_that_works_otherwise() -> None:
    evidence = hung()
    swap(evidence, access(1))
    drop(evidence, "inference")
    found = match(DESYNC, evidence, FACTS)
    assert failed(found)["others-answered"] is Truth.NOT_MET


def test_the_end_of_a_large_log_tells_presence_but_not_absence() -> None:
    evidence = hung()
    log = logs()
    log.skipped_bytes = 5
    swap(evidence, log)
    assert (
        failed(match(GHOST_KEY, evidence, FACTS))["cached-item-assertion"]
        is Truth.UNKNOWN
    )
    log = logs(GHOST)
    log.skipped_bytes = 5
    swap(evidence, log)
    assert match(GHOST_KEY, evidence, FACTS).fit is Fit.MATCH


def test_a_signature_that_raises_is_no_match() -> None:
    class Broken(type(GHOST_KEY)):  # type: ignore[misc]
        def live_conditions(self, facts: LiveFacts) -> list:  # type: ignore[type-arg]
            raise RuntimeError("oops")

    found = match(Broken(), hung(), FACTS)
    assert found.fit is Fit.NOT_THIS
    assert "oops" in found.why


@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda s: s.full_name)
def test_every_live_signature_is_whole_and_none_is_met_by_nothing(scenario) -> None:
    facts = LiveFacts(scenario.engine, scenario.release, (), 15.0)
    conditions = scenario.live_conditions(facts)
    assert {c.part for c in conditions if c.required} == {"symptom", "cause"}
    assert len({c.id for c in conditions}) == len(conditions)
    found = match(scenario, Evidence(), facts)
    assert found.fit in (Fit.EXPOSED, Fit.NOT_THIS)
    assert found.met == 0
    assert not found.why.startswith("its signature failed")


# ---------------------------------------------------------------- the rule itself

results = st.lists(
    st.builds(
        lambda n, part, truth, required: ConditionResult(
            id=f"c{n}",
            part=part,
            statement="s",
            required=required,
            truth=truth,
            observed="o",
        ),
        st.integers(0, 99),
        st.sampled_from(["symptom", "cause"]),
        st.sampled_from(list(Truth)),
        st.booleans(),
    ),
    max_size=8,
)
exposures = st.sampled_from([Finding(truth, "said") for truth in Truth])


@given(results, exposures)
def test_a_match_is_everything_met_and_likely_is_never_against(
    judged: list[ConditionResult], exposure: Finding
) -> None:
    fit, why = judge(judged, exposure)
    required = [r for r in judged if r.required]
    truths = {r.truth for r in required}
    parts = {r.part for r in required if r.truth is Truth.MET}
    assert why
    if exposure.truth is not Truth.MET:
        assert fit is not Fit.MATCH
    if exposure.truth is Truth.NOT_MET:
        assert fit in (Fit.SYMPTOM_ONLY, Fit.NOT_THIS)
    if fit is Fit.MATCH:
        assert truths == {Truth.MET}
        assert parts == {"symptom", "cause"}
    if fit is Fit.LIKELY:
        assert Truth.NOT_MET not in truths
        assert parts == {"symptom", "cause"}
        cause = [r.truth for r in required if r.part == "cause"]
        assert cause.count(Truth.MET) * 2 >= len(cause)
    if fit is Fit.EXPOSED:
        assert exposure.truth is Truth.MET


def one(
    part: str, truth: Truth, name: str = "c", required: bool = True
) -> ConditionResult:
    return ConditionResult(
        id=f"{name}-{part}",
        part=part,
        statement="s",
        required=required,
        truth=truth,
        observed="o",
    )


def fit(exposed: Truth, *judged: ConditionResult) -> tuple[Fit, str]:
    return judge(judged, Finding(exposed, "said"))


MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


def test_whether_it_can_happen_here_caps_the_fit() -> None:
    whole = one("symptom", MET), one("cause", MET)
    assert fit(MET, *whole) == (Fit.MATCH, "2 of 2 required conditions match")
    told = "2 of 2 required conditions match; whether it can happen here is not known: said"
    assert fit(UNKNOWN, *whole) == (Fit.LIKELY, told)
    told = "it looks like this, but it cannot happen here (said)"
    assert fit(NOT_MET, *whole) == (Fit.SYMPTOM_ONLY, told)
    half = one("symptom", MET), one("cause", MET), one("cause", UNKNOWN, "d")
    assert fit(MET, *half) == (
        Fit.LIKELY,
        "nothing speaks against it; not seen: d-cause",
    )
    assert fit(UNKNOWN, *half)[0] is Fit.LIKELY
    assert fit(NOT_MET, *half) == (Fit.SYMPTOM_ONLY, told)
    unseen = one("symptom", MET), one("cause", UNKNOWN)
    assert fit(NOT_MET, *unseen) == (Fit.SYMPTOM_ONLY, told)
    partly = one("symptom", MET), one("cause", MET), one("cause", NOT_MET, "d")
    assert fit(NOT_MET, *partly)[0] is Fit.NOT_THIS
    missed = one("symptom", MET), one("cause", NOT_MET)
    told = "it cannot happen here (said); not met: c-cause"
    assert fit(NOT_MET, *missed) == (Fit.NOT_THIS, told)
    dim = one("symptom", UNKNOWN), one("symptom", MET, "d"), one("cause", MET)
    told = "it cannot happen here (said); not seen: c-symptom"
    assert fit(NOT_MET, *dim) == (Fit.NOT_THIS, told)
    assert fit(MET, *dim)[0] is Fit.LIKELY


def test_each_fit_at_its_edge() -> None:
    look = "it looks like this, but its cause was not seen"
    two = one("symptom", MET), one("cause", MET), one("cause", UNKNOWN, "d")
    assert fit(MET, *two)[0] is Fit.LIKELY
    third = one("cause", UNKNOWN, "e")
    assert fit(MET, *two, third) == (
        Fit.SYMPTOM_ONLY,
        f"{look} (not seen: d-cause, e-cause)",
    )
    against = one("symptom", MET), one("cause", MET), one("cause", NOT_MET, "d")
    # A failure's neighbours share all but one of its conditions: that one is not met.
    assert fit(UNKNOWN, *against) == (Fit.NOT_THIS, "not met: d-cause")
    assert fit(MET, *against) == (
        Fit.EXPOSED,
        "it can happen here (said); now: not met: d-cause",
    )
    missed = one("symptom", MET), one("cause", NOT_MET), one("cause", UNKNOWN, "d")
    assert fit(MET, *missed) == (
        Fit.EXPOSED,
        "it can happen here (said); now: not met: c-cause",
    )
    assert fit(UNKNOWN, *missed) == (Fit.NOT_THIS, "not met: c-cause")
    nothing = one("symptom", UNKNOWN), one("cause", UNKNOWN)
    told = "it can happen here (said); now: not seen: c-symptom, c-cause"
    assert fit(MET, *nothing) == (Fit.EXPOSED, told)
    told = "no sign was seen; not seen: c-symptom, c-cause"
    assert fit(UNKNOWN, *nothing) == (Fit.NOT_THIS, told)
    cause_alone = one("symptom", UNKNOWN), one("cause", MET)
    assert fit(UNKNOWN, *cause_alone)[0] is Fit.NOT_THIS
    symptom_alone = one("symptom", MET), one("cause", UNKNOWN)
    assert fit(UNKNOWN, *symptom_alone)[0] is Fit.SYMPTOM_ONLY
    # What is not required neither makes nor breaks it, and nothing at all is no match.
    extra = one("symptom", NOT_MET, "x", False), one("cause", NOT_MET, "y", False)
    assert fit(MET, one("symptom", MET), one("cause", MET), *extra)[0] is Fit.MATCH
    assert fit(MET)[0] is Fit.EXPOSED
    assert fit(UNKNOWN, one("symptom", MET))[0] is not Fit.MATCH
    assert fit(MET, one("symptom", MET))[0] is not Fit.LIKELY


def test_a_match_tells_what_it_counts() -> None:
    evidence = hung()
    drop(evidence, "inference")
    found = match(GHOST_KEY, evidence, FACTS)
    assert (found.met, found.not_met, found.unknown) == (8, 0, 1)
    whole = match(GHOST_KEY, hung(), FACTS)
    assert (whole.met, whole.not_met, whole.unknown, whole.exposed) == (9, 0, 0, True)
    assert whole.title == GHOST_KEY.title
    assert any("disable-mm-cache" in remedy for remedy in whole.remedies)
    assert any("43941" in reference for reference in whole.references)
    fixed = match(GHOST_KEY, hung(), replace(FACTS, release="0.24.0"))
    assert (fixed.fit, fixed.exposed) == (Fit.SYMPTOM_ONLY, False)
    assert match(GHOST_KEY, hung(), replace(FACTS, release="")).fit is Fit.LIKELY
    unknown_engine = match(GHOST_KEY, hung(), replace(FACTS, engine=""))
    assert unknown_engine.conditions
    other = match(GHOST_KEY, hung(), replace(FACTS, engine="sglang"))
    assert other.why == "the server is sglang, this happens to vllm"


@pytest.mark.parametrize(
    "facts",
    [
        replace(
            FACTS, release="0.24.0", command=("serve", "--mm-processor-cache-gb", "0")
        ),
        replace(FACTS, release="0.10.0"),
    ],
    ids=["the cache is off", "vLLM 0.10.0"],
)
def test_a_server_that_cannot_fail_so_does_not_match(facts: LiveFacts) -> None:
    """Its log holds every line that the signature asks for, and single requests got
    500."""
    evidence = healthy()
    swap(evidence, access(2))
    assert match(DESYNC, evidence, replace(FACTS, release="0.24.0")).fit is Fit.MATCH
    found = match(DESYNC, evidence, facts)
    assert (found.fit, found.exposed) == (Fit.SYMPTOM_ONLY, False)


@given(results, exposures, st.integers(0, 7))
def test_seeing_less_never_makes_a_better_fit(
    judged: list[ConditionResult], exposure: Finding, index: int
) -> None:
    order = list(Fit)
    if not judged or judged[index % len(judged)].truth is Truth.NOT_MET:
        return
    blind = list(judged)
    blind[index % len(judged)] = blind[index % len(judged)].model_copy(
        update={"truth": Truth.UNKNOWN}
    )
    before, after = judge(judged, exposure)[0], judge(blind, exposure)[0]
    assert order.index(after) >= order.index(before)


@given(st.lists(st.sampled_from(list(Fit)), max_size=9))
def test_the_ranking_is_best_first(fits: list[Fit]) -> None:
    made = [
        Match(scenario=f"s{n}", title="t", fit=fit, why="w")
        for n, fit in enumerate(fits)
    ]
    order = [list(Fit).index(m.fit) for m in ranked(made)]
    assert order == sorted(order)


def test_two_scenarios_may_call_different_lines_by_the_same_name() -> None:
    one = type("One", (type(GHOST_KEY),), {"log_patterns": {"line": "aaa"}})()
    two = type(
        "Two", (type(GHOST_KEY),), {"log_patterns": {"line": "bbb", "also": "aaa"}}
    )()
    assert union([one, two]) == {"aaa": "aaa", "bbb": "bbb"}
    evidence = healthy()
    log = logs()
    log.match_counts |= {"aaa": 2, "bbb": 0}
    log.matches["aaa"] = [LogLine(number=n, text="aaa") for n in (1, 2)]
    swap(evidence, log)

    def counts(scenario) -> list[int | None]:  # type: ignore[no-untyped-def]
        seen = as_seen_by(scenario, evidence)
        return [
            views.log_count(seen, name) for name in ("line", "also", "added-request")
        ]

    assert counts(one) == [2, None, 18]
    assert counts(two) == [0, 2, 18]
    assert [
        line.number for line in views.log_lines(as_seen_by(one, evidence), "line")
    ] == [1, 2]
    assert views.log_count(evidence, "line") is None


PACKED = Path(__file__).parents[2] / "pack/odd_image.py"


def test_a_file_is_tried_besides_the_known_ones() -> None:
    found = all_scenarios([str(PACKED)], trust=True)
    assert [s.name for s in found].count("odd-image") == 1
    assert len(found) == len(all_scenarios()) + 1


def test_a_file_takes_the_place_of_a_known_one(tmp_path: Path) -> None:
    """Whoever works on a known signature tries his own, not both."""
    file = tmp_path / "mine.py"
    file.write_text(PACKED.read_text().replace('"odd-image"', '"ghost-key-eviction"'))
    same = [
        s
        for s in all_scenarios([str(file)], trust=True)
        if s.name == "ghost-key-eviction"
    ]
    assert [s.engine for s in same] == ["minivllm"]


def test_a_file_that_is_none_is_said_before_the_server_is_touched(
    tmp_path: Path,
) -> None:
    options = DiagnoseCommand(
        url="http://127.0.0.1:9", scenarios=("none.py",), out=tmp_path / "x"
    )
    with pytest.raises(UnknownScenario):
        diagnose(options)
    assert not (tmp_path / "x").exists()


def test_a_broken_plug_in_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmrepro.base.errors import BrokenScenario
    from mmrepro.scenario import registry

    names = ["ghost-key-eviction", "broken", "mm-cache-desync", "undersized-kv-budget"]
    known = {name: load_scenario(name) for name in names if name != "broken"}

    def load(name: str, *, conditions: bool):  # type: ignore[no-untyped-def]
        if name == "broken":
            raise BrokenScenario("it does not import")
        return known[name]

    monkeypatch.setattr(registry, "scenario_names", lambda: names)
    monkeypatch.setattr(registry, "load_scenario", load)
    budget = known["undersized-kv-budget"].variants
    assert all_scenarios() == [known[names[0]], known[names[2]], *budget]
    # One that is given stands first, and not twice.
    assert all_scenarios([names[2]]) == [known[names[2]], known[names[0]], *budget]


def test_the_best_fit_is_first_and_among_equals_the_one_with_more_met() -> None:
    def made(name: str, fit: Fit = Fit.LIKELY, **counts: object) -> Match:
        return Match(scenario=name, title="t", fit=fit, why="w", **counts)  # type: ignore[arg-type]

    order = [
        made("z", Fit.MATCH),
        made("y", met=3, not_met=9, unknown=9),
        made("x", met=2, not_met=1, unknown=9),
        made("w", met=2, not_met=2, unknown=1),
        made("u", met=2, not_met=2, unknown=2),
        made("v", met=2, not_met=2, unknown=2, variant="a"),
        made("v", met=2, not_met=2, unknown=2, variant="b"),
        made("a", Fit.EXPOSED, met=9),
    ]
    assert ranked(reversed(order)) == order


def test_one_scenarios_variants_are_kept_apart_where_they_are_judged_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = replace(FACTS, engine="sglang")
    assert len(match_all([GHOST_KEY, GHOST_KEY], hung(), FACTS)) == 1
    # Those that were not judged have nothing in common.
    assert len(match_all([GHOST_KEY, GHOST_KEY], hung(), facts)) == 2
    assert len(match_all([GHOST_KEY, DESYNC], hung(), FACTS)) == 2
    named = match(GHOST_KEY, hung(), FACTS)
    other = [
        named,
        named.model_copy(update={"scenario": "x"}),
        named.model_copy(update={"conditions": named.conditions[1:]}),
    ]
    monkeypatch.setattr(matching, "match", lambda *_: other.pop())
    assert len(match_all([GHOST_KEY] * 3, hung(), FACTS)) == 3
