"""What a check may ask for, and what it is told where that is missing."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import (
    GHOST,
    drop,
    hang_run,
    http,
    logs,
    probed,
    processes,
    request,
    stacks,
    thread,
)
from mmrepro.base.errors import BrokenScenario
from mmrepro.base.records import ClaimStatus
from mmrepro.runs.judge import judge
from mmrepro.scenario import (
    Check,
    Drive,
    Evidence,
    Finding,
    Logs,
    Measured,
    Metrics,
    Processes,
    Reproducers,
    Requests,
    RunFacts,
    Scenario,
    Truth,
    answered,
    claim,
    issue,
    pull,
    quote,
    symptom,
)
from mmrepro.scenario.definition import bind, observable, parameters
from mmrepro.scenario.more import (
    Engine,
    changed,
    counted_as_running,
    happened,
    refused_or_answered,
    unchanged,
)
from test_scenario_api import FACTS, LIVE, REPORT, SCENARIO, Hangs, truths

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN


def test_everything_that_a_check_may_ask_for() -> None:
    def check(
        evidence: Evidence,
        requests: Requests,
        metrics: Metrics,
        processes: Processes,
        engine: Engine,
        facts: RunFacts,
        untyped,  # type: ignore[no-untyped-def]
        more: int = 3,
    ) -> Finding:
        assert untyped is evidence
        assert requests.evidence is evidence
        reading = metrics.readings(engine.metrics["running"])
        assert processes.of(engine.core_role)[-1].user_pct == 97.0
        return Finding.of(facts is FACTS and more == 3, f"{reading}")

    assert bind(check, SCENARIO, FACTS)(hang_run()).observed == "[0.0, 0.0]"
    assert not observable(check)
    assert parameters(lambda e: Finding.of(True, "")) == (Evidence,)


def test_what_there_is_not() -> None:
    def check(what: Path) -> Finding:
        raise NotImplementedError

    with pytest.raises(
        BrokenScenario, match=r"check asks for what: <class 'pathlib\.[\w.]+'>"
    ):
        bind(check, SCENARIO, FACTS)


VIEWS = {
    "a request": lambda e: Requests(e).first("no such"),
    "a count": lambda e: Logs(e).count("no-such-pattern"),
    "a second reading": lambda e: Metrics(e).readings(("no:such",)),
    "a process": lambda e: Processes(e).of("NoSuchRole"),
    "a reproducer": lambda e: Reproducers(e).facts("no_such.py"),
    "a fact of it": lambda e: Reproducers(e).truth("ghost_key.py", "no_such"),
    "a number": lambda e: Measured(e).number("no_such"),
}


@pytest.mark.parametrize("ask", VIEWS.values(), ids=VIEWS.keys())
def test_a_view_raises_what_is_missing(ask) -> None:  # type: ignore[no-untyped-def]
    results = judge(_asking(ask), hang_run(), FACTS).conditions
    assert [r.truth for r in results] == [UNKNOWN]
    assert "the checker failed" not in results[0].observed
    assert results[0].observed


def _asking(ask) -> Scenario:  # type: ignore[no-untyped-def]
    class Asks(Scenario):
        name, release, affected = "asks", "1.0", ">0"
        symptoms = (symptom("s", lambda e: Finding.of(bool(ask(e)), "there")),)

        async def trigger(self, drive: Drive) -> None:
            raise NotImplementedError

    return Asks()


def test_locals_of_a_frame() -> None:
    loop = (("LRUCache.popitem", "cache.py"), ("process_input_sockets", "core.py"))
    data = stacks(thread(*loop, key="a"), thread(*loop[1:]), thread(*loop, key="b"))
    assert data.texts("lru_key", frame="popitem") == ["'a'", "'b'"]
    assert data.numbers("lru_key", frame="popitem") == []
    assert len(data.threads("process_input_sockets")) == 3
    first = data.samples[0].threads[0]
    assert first.within("popitem", "process_input_sockets")
    assert not first.within("process_input_sockets", "popitem")
    assert not first.within("popitem", "process_input_sockets", "run")
    data.samples[0].threads[0].frames[0].locals["n"] = "12"
    data.samples[2].threads[0].frames[0].locals["n"] = "<not built yet>"
    assert data.numbers("n", frame="popitem") == [12]


# ------------------------------------------------------------------ references


def test_references() -> None:
    assert REPORT.url == "https://github.com/vllm-project/vllm/issues/43941"
    fix = pull("sglang#2151", "t", release="0.5.0")
    assert fix.url == "https://github.com/sgl-project/sglang/pull/2151"
    assert fix.note == "the fix, in 0.5.0"
    assert quote("a.py", "A.b", "note", "x", "y").highlight == ("x", "y")


@pytest.mark.parametrize("name", ["vllm", "vllm#", "vllm#x", "nobody#1", "#1"])
def test_what_names_no_issue(name: str) -> None:
    with pytest.raises(BrokenScenario, match="names no issue"):
        issue(name, "t")


def test_never_answered_wants_its_own_request() -> None:
    evidence = hang_run()
    assert truths(evidence)["no-answer"] is MET
    evidence.requests[-1].timed_out = False
    evidence.requests[-1].status = 400
    assert truths(evidence)["no-answer"] is NOT_MET
    evidence.requests.pop()
    evidence.requests.append(request("trigger", "fill 12", None, timed_out=True))
    assert truths(evidence)["no-answer"] is UNKNOWN


def test_probes_of_the_control_server_are_not_the_runs() -> None:
    evidence = Evidence(
        probes=[probed(logs(GHOST), "control"), probed(http(200, 200), "control")]
    )
    assert truths(evidence)["in-the-log"] is UNKNOWN
    evidence.probes.append(probed(processes(user=97.0)))
    # What it used in the gate is not known.
    assert truths(evidence)["core-burns-cpu"] is UNKNOWN


# ------------------------------------------------------ checks in works_after and given


def test_healthy_after_needs_every_check() -> None:
    assert SCENARIO.healthy_after(hang_run(), FACTS).truth is MET
    evidence = hang_run()
    evidence.requests[5].status = 500
    assert SCENARIO.healthy_after(evidence, FACTS).truth is NOT_MET
    evidence.requests = [r for r in evidence.requests if r.label != "fill 1"]
    assert SCENARIO.healthy_after(evidence, FACTS).truth is not MET


def test_that_nothing_failed_means_nothing_where_the_trigger_was_not_there() -> None:
    class Triggered(Hangs):
        works_after = (
            happened(refused_or_answered("image X, too long")),
            happened(fills),
        )

    evidence = hang_run()
    assert Triggered().healthy_after(evidence, FACTS).truth is MET
    evidence.facts["fills_until_hang"] = 0
    found = Triggered().healthy_after(evidence, FACTS)
    assert (found.truth, found.observed) == (UNKNOWN, "that did not happen: 0 fills")
    evidence.facts.clear()
    assert Triggered().healthy_after(evidence, FACTS).truth is UNKNOWN


def fills(measured: Measured) -> Finding:
    count = measured.number("fills_until_hang")
    return Finding.of(count > 0, f"{count:g} fills")


@pytest.mark.parametrize(
    ("given", "flips", "mitigations", "status"),
    [
        (changed("cache", "off"), {"cache"}, set(), ClaimStatus.CONFIRMED),
        (changed("cache", "off"), set(), {"off"}, ClaimStatus.CONFIRMED),
        (changed("cache", "off"), {"another"}, set(), ClaimStatus.NOT_TESTED),
        (unchanged("cache"), {"another"}, {"off"}, ClaimStatus.CONFIRMED),
        (unchanged("cache"), {"cache"}, set(), ClaimStatus.NOT_TESTED),
    ],
)
def test_a_claim_that_only_a_changed_run_tests(
    given: Check, flips: set[str], mitigations: set[str], status: ClaimStatus
) -> None:
    class Given(Hangs):
        claims = (
            claim("one", "it hangs all the same", REPORT, by="no-answer", given=given),
        )

    facts = replace(FACTS, flips=frozenset(flips), mitigations=frozenset(mitigations))
    assert Given().claim_results(hang_run(), facts)[0].status is status


def test_what_is_shown_of_a_run_and_required_of_a_look() -> None:
    class Running(Hangs):
        symptoms = (counted_as_running("one runs", required=False),)

    by_id = {c.id: c for c in Running().conditions(FACTS)}
    live = {c.id: c for c in Running().live_conditions(LIVE)}
    assert not by_id["counted-as-running"].required
    assert live["counted-as-running"].required


def test_healthy_after_by_the_id_of_a_condition() -> None:
    class ByName(Hangs):
        works_after = ("in-the-log", answered("fill 1"))

    assert (
        ByName().healthy_after(hang_run(), FACTS).observed == "a line; fill 1: answered"
    )
    evidence = hang_run()
    drop(evidence, "logs")
    assert ByName().healthy_after(evidence, FACTS).truth is UNKNOWN
