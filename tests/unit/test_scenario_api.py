"""The author's API: what a scenario declares, and what the evaluator makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import (
    GHOST,
    drop,
    hang_run,
    healthy_run,
    http,
    logs,
    metrics,
    probed,
    processes,
    request,
    stacks,
    swap,
    thread,
)
from mmrepro.errors import BrokenScenario
from mmrepro.incident import ClaimStatus
from mmrepro.run.judge import judge
from mmrepro.scenario import (
    Check,
    Condition,
    Drive,
    Engine,
    Evidence,
    Fidelity,
    Finding,
    LiveFacts,
    Logs,
    Measured,
    Metrics,
    Outcome,
    Processes,
    Reproducers,
    Requests,
    RunFacts,
    Scenario,
    StacksData,
    Truth,
    answered,
    cause,
    changed,
    claim,
    core_burns_cpu,
    counted_as_running,
    cure,
    endpoints_green,
    guarded,
    happened,
    idle_while_asked,
    issue,
    last_line,
    never_answered,
    new_request_unanswered,
    no_progress,
    pull,
    quote,
    refused_or_answered,
    row,
    symptom,
    trigger_ended,
    unchanged,
    unmitigated,
    upgrade,
    with_variants,
)
from mmrepro.scenario.bind import bind, observable, parameters

MET, NOT_MET, UNKNOWN = Truth.MET, Truth.NOT_MET, Truth.UNKNOWN
FACTS = RunFacts("0.23.0", Fidelity.CPU, frozenset(), 13.0)
LIVE = LiveFacts("vllm", "0.23.0", (), 15.0)
REPORT = issue("vllm#43941", "the report")


class Hangs(Scenario):
    """It hangs.

    What: A request is never answered.
    It goes on over two lines.

    Why: For a reason.

    And for another one.
    """

    name, release, affected = "hangs", "0.23.0", ">=0.14.0,<0.24.0"
    server = """--max-num-seqs 8 --limit '{"image":1}'"""
    mitigations = (cure("off", "--cache 0"), upgrade("0.24.0"))
    symptoms = (
        never_answered("fill 11", reported="no answer in 15 s"),
        new_request_unanswered(),
        core_burns_cpu(required=False),
    )
    claims = (
        claim("hangs", "it hangs", REPORT, by="no-answer"),
        claim("both", "it hangs by a ghost", REPORT, by=("no-answer", "in-the-log")),
        claim("luck", "it takes luck", REPORT, by="no-answer", refuted=True),
        claim("later", "0.24.0 mends it", "vllm#43595", by="no-answer", releases=">=0.24.0"),
        claim("never", "on the reporter's machine", REPORT, untested="no such machine"),
        claim("if-green", "with green endpoints", REPORT, by="no-answer", given="never-there"),
        claim("checked", "an image was sent", REPORT, by=answered("fill 1"), note="of thirty"),
    )
    works_after = (answered("fill 1"), refused_or_answered("image X, too long"))

    async def trigger(self, drive: Drive) -> None:
        raise NotImplementedError

    @cause("the log names a hash")
    def in_the_log(self, logs: Logs) -> Finding:
        return Finding.of(logs.count("cached-item-assertion") > 0, "a line")

    @cause("popitem holds a key", required=False)
    def the_key(self, stacks: StacksData) -> Finding:
        keys = stacks.texts("lru_key", frame="popitem")
        return Finding.of(any(GHOST in key for key in keys), f"{len(keys)} samples show it")

    @cause("the class alone loops", id="class-loops", live=False)
    def loops(self, reproducers: Reproducers) -> Finding:
        return Finding.of(not reproducers.truth("ghost_key.py", "eviction_ends"), "it loops")

    @claim("fills", "it takes images", REPORT)
    def takes_images(self, measured: Measured) -> Finding:
        return Finding.of(measured.number("fills_until_hang") > 1, "several")


SCENARIO = Hangs()


def truths(evidence: Evidence) -> dict[str, Truth]:
    return {r.id: r.truth for r in judge(SCENARIO, evidence, FACTS).conditions}


def statuses(evidence: Evidence) -> dict[str, ClaimStatus]:
    return {c.id: c.status for c in SCENARIO.claim_results(evidence, FACTS)}


def test_the_docstring_is_the_reports() -> None:
    assert SCENARIO.title == "It hangs"
    assert SCENARIO.summary == "A request is never answered. It goes on over two lines."
    assert SCENARIO.explanation == "For a reason.\n\nAnd for another one."


def test_strings_are_what_they_stand_for() -> None:
    assert SCENARIO.server_args == ("--max-num-seqs", "8", "--limit", '{"image":1}')
    assert SCENARIO.affects("0.14.0")
    assert not SCENARIO.affects("0.24.0")
    assert SCENARIO.affected_range == ">=0.14.0, <0.24.0"
    assert SCENARIO.mitigation("off").server_args == ("--cache", "0")
    assert SCENARIO.mitigation("release").release == "0.24.0"


def test_a_variant_has_the_summary_of_its_family() -> None:
    class Other(Hangs):
        """It hangs otherwise.

        Why: Another reason.
        """

        variant = "other"

    both = with_variants(Hangs(), Other())
    other = both.with_variant("other")
    assert (other.title, other.explanation) == ("It hangs otherwise", "Another reason.")
    assert other.summary == SCENARIO.summary
    assert [v.variant for v in both.variants] == ["", "other"]


def test_the_signature_is_what_is_declared_the_symptom_first() -> None:
    found = [(c.id, c.part, c.required) for c in SCENARIO.conditions(FACTS)]
    assert found == [
        ("no-answer", "symptom", True),
        ("no-answer-later", "symptom", True),
        ("core-burns-cpu", "symptom", False),
        ("in-the-log", "cause", True),
        ("the-key", "cause", False),
        ("class-loops", "cause", True),
    ]


def test_a_method_that_overrides_one_keeps_its_place_and_words() -> None:
    class Narrower(Hangs):
        def in_the_log(self, logs: Logs) -> Finding:
            return Finding.of(False, "narrower")

    conditions = Narrower().conditions(FACTS)
    assert [c.id for c in conditions] == [c.id for c in SCENARIO.conditions(FACTS)]
    one = next(c for c in conditions if c.id == "in-the-log")
    assert (one.statement, one.check(hang_run()).observed) == ("the log names a hash", "narrower")


def test_a_hang_is_reproduced_with_the_files_that_were_read() -> None:
    verdict = judge(SCENARIO, hang_run(), FACTS)
    assert verdict.outcome is Outcome.REPRODUCED
    files = {r.id: r.evidence for r in verdict.conditions}
    assert files["no-answer"] == []  # requests have no file of their own
    assert files["no-answer-later"] == ["check-inference.raw"]
    assert files["in-the-log"] == ["check-logs.raw"]
    assert files["the-key"] == ["check-stacks.raw"]
    assert files["class-loops"] == ["ghost_key.py.json"]
    assert files["core-burns-cpu"] == ["check-processes.raw", "gate-processes.raw"]


@pytest.mark.parametrize(
    ("probe", "condition"),
    [("logs", "in-the-log"), ("stacks", "the-key"), ("inference", "no-answer-later")],
)
def test_what_is_missing_is_unknown_and_says_why(probe: str, condition: str) -> None:
    evidence = hang_run()
    drop(evidence, probe)
    results = {r.id: r for r in judge(SCENARIO, evidence, FACTS).conditions}
    assert results[condition].truth is UNKNOWN
    assert "ptrace is not permitted" in results[condition].observed


def test_nothing_is_met_by_nothing() -> None:
    assert set(truths(Evidence()).values()) == {UNKNOWN}
    assert judge(SCENARIO, Evidence(), FACTS).outcome is Outcome.INCONCLUSIVE


def test_a_check_that_fails_is_unknown() -> None:
    class Fails(Hangs):
        def in_the_log(self, logs: Logs) -> Finding:
            raise ZeroDivisionError("boom")

    verdict = judge(Fails(), hang_run(), FACTS)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "the checker failed: ZeroDivisionError: boom" in verdict.explanation


def test_claims_follow_from_conditions() -> None:
    assert statuses(hang_run()) == {
        "hangs": ClaimStatus.CONFIRMED,
        "both": ClaimStatus.CONFIRMED,
        "luck": ClaimStatus.REFUTED,
        "later": ClaimStatus.NOT_TESTED,
        "never": ClaimStatus.NOT_TESTED,
        "if-green": ClaimStatus.NOT_TESTED,
        "checked": ClaimStatus.CONFIRMED,
        "fills": ClaimStatus.CONFIRMED,
    }
    told = {c.id: c.observed for c in SCENARIO.claim_results(hang_run(), FACTS)}
    assert told["later"] == "this run is of 0.23.0; it is said of >=0.24.0"
    assert told["never"] == "no such machine"
    assert told["if-green"].startswith("not tested without never-there: there is no condition")
    assert told["checked"] == "fill 1: answered (of thirty)"


def test_what_another_release_does_otherwise_refutes_nothing() -> None:
    class Reported(Hangs):
        claims = (
            claim("fits", "t", REPORT, by="no-answer", refutable_on="<0.20"),
            claim("fails", "t", REPORT, by="no-answer", refuted=True, refutable_on="<0.20"),
            claim("mine", "t", REPORT, by="no-answer", refuted=True, refutable_on=">=0.20"),
            claim("as-it-was", "t", REPORT, by="no-answer", given=unmitigated),
        )

    def told(*mitigations: str) -> list[ClaimStatus]:
        facts = RunFacts("0.23.0", Fidelity.CPU, frozenset(mitigations), 13.0)
        return [c.status for c in Reported().claim_results(hang_run(), facts)][:4]

    confirmed, refuted = ClaimStatus.CONFIRMED, ClaimStatus.REFUTED
    assert told() == [confirmed, ClaimStatus.NOT_TESTED, refuted, confirmed]
    assert told("off")[3] is ClaimStatus.NOT_TESTED
    observed = Reported().claim_results(hang_run(), FACTS)[1].observed
    assert observed.startswith("said of <0.20; on 0.23.0: no answer in")


def test_a_claim_may_rest_on_checks_and_on_the_first_reference() -> None:
    def without_a_cure(facts: RunFacts) -> Finding:
        return Finding.of(not facts.mitigations, f"cures: {sorted(facts.mitigations)}")

    class Checked(Hangs):
        references = (REPORT, pull("vllm#43595", "the fix"))
        claims = (
            claim("both", "t", by=("no-answer", answered("fill 1"))),
            claim("one-fails", "t", by=("no-answer", answered("fill 11"))),
            claim("uncured", "t", "elsewhere", by="no-answer", given=without_a_cure, note="so"),
        )

    def told(facts: RunFacts) -> list[tuple[str, str]]:
        found = {c.id: c for c in Checked().claim_results(hang_run(), facts)}
        assert [found[name].source for name in ("both", "uncured")] == ["vllm#43941", "elsewhere"]
        assert found["both"].status is ClaimStatus.CONFIRMED
        assert found["one-fails"].status is ClaimStatus.REFUTED
        return [(found["uncured"].status, found["uncured"].observed)]

    ((status, observed),) = told(FACTS)
    assert (status, observed[-5:]) == (ClaimStatus.CONFIRMED, " (so)")
    cured = RunFacts("0.23.0", Fidelity.CPU, frozenset({"off"}), 13.0)
    assert told(cured) == [(ClaimStatus.NOT_TESTED, "not tested: cures: ['off']")]


def test_of_the_cause_what_lasts_is_told_without_the_symptom() -> None:
    class Lasting(Hangs):
        lasting_causes = ("class-loops",)

    evidence = hang_run()
    drop(evidence, "logs")
    assert SCENARIO.cause_remains(evidence, FACTS).truth is UNKNOWN
    assert Lasting().cause_remains(evidence, FACTS).truth is MET


def test_a_trigger_without_requests_ended_no_request() -> None:
    ended = bind(trigger_ended, SCENARIO, FACTS)
    over = hang_run()
    over.requests.pop()
    assert [ended(e).truth for e in (hang_run(), over, Evidence())] == [NOT_MET, MET, UNKNOWN]


def test_the_last_line_of_the_core() -> None:
    waits = bind(last_line("waiting for work"), SCENARIO, FACTS)
    evidence = hang_run()
    assert waits(evidence).truth is MET
    swap(evidence, logs(last="something else"))
    assert waits(evidence).truth is NOT_MET
    log = logs()
    log.last_by_process.clear()
    swap(evidence, log)
    assert waits(evidence).truth is UNKNOWN


def test_an_empty_queue_is_abnormal_only_while_a_request_waits() -> None:
    def abnormal(evidence: Evidence) -> Finding:
        return guarded(bind(idle_while_asked, SCENARIO, FACTS), evidence)

    assert abnormal(hang_run()).truth is MET
    assert abnormal(healthy_run()).truth is NOT_MET
    evidence = hang_run()
    swap(evidence, metrics(running=1))
    assert abnormal(evidence).truth is NOT_MET
    drop(evidence, "metrics")
    assert abnormal(evidence).truth is UNKNOWN


def test_a_claim_on_what_was_not_seen_is_not_tested() -> None:
    assert set(statuses(Evidence()).values()) == {ClaimStatus.NOT_TESTED}


def test_rows_without_any_declared_are_the_conditions_of_the_symptom() -> None:
    rows = SCENARIO.symptom_rows(hang_run(), FACTS)
    assert [(r.check, r.abnormal, r.reported) for r in rows] == [
        ("fill 11: neither refused nor answered", True, "no answer in 15 s"),
        ("a new text-only request is not answered either", True, ""),
        ("EngineCore uses a whole core in user space, idle before", True, ""),
    ]


def test_rows_by_condition_and_by_check() -> None:
    def usual(requests: Requests) -> str:
        return requests.first("no such").label

    def last(requests: Requests) -> str:
        return requests.within("trigger")[-1].label

    class Rows(Hangs):
        symptoms = (*Hangs.symptoms, endpoints_green())
        rows = (
            row("green", "endpoints-green", "200", "200", abnormal_if=False),
            row("fill 1", answered("fill 1"), usual, abnormal_if=None),
            row("fill 11", "no-answer", answered("fill 1")),
            row(last, "no-answer"),
        )

    green, fill, hung, named = Rows().symptom_rows(hang_run(), FACTS)
    assert named.check == "fill 11"
    assert (hung.healthy, hung.abnormal) == ("fill 1: answered", True)
    assert (green.healthy, green.abnormal, green.reported) == ("200", False, "200")
    assert (fill.healthy, fill.abnormal) == ("", None)


def test_the_live_form_follows_from_what_each_condition_needs() -> None:
    found = {c.id: c.required for c in SCENARIO.live_conditions(LIVE)}
    assert found == {
        "no-answer": True,  # an observer's own small request instead of the trigger's
        "no-answer-later": True,
        "core-busy": True,
        "in-the-log": True,
        "the-key": False,
    }


def test_counters_of_requests_are_not_an_observers() -> None:
    class Counting(Hangs):
        symptoms = (no_progress(),)

    statements = [c.statement for c in Counting().live_conditions(LIVE)]
    assert "counters of tokens stand still" in statements


def test_a_signature_of_its_own_making_is_the_observers_too() -> None:
    class Own(Scenario):
        name, release, affected = "own", "1.0", ">0"

        async def trigger(self, drive: Drive) -> None:
            raise NotImplementedError

        def conditions(self, facts: RunFacts) -> list[Condition]:
            return [Condition("one", "symptom", "s", lambda e: Finding.of(True, facts.fidelity))]

    (one,) = Own().live_conditions(LIVE)
    assert one.check(Evidence()).observed == "live"


def test_healthy_after_needs_every_check() -> None:
    assert SCENARIO.healthy_after(hang_run(), FACTS).truth is MET
    evidence = hang_run()
    evidence.requests[5].status = 500
    assert SCENARIO.healthy_after(evidence, FACTS).truth is NOT_MET
    evidence.requests = [r for r in evidence.requests if r.label != "fill 1"]
    assert SCENARIO.healthy_after(evidence, FACTS).truth is not MET


def test_that_nothing_failed_means_nothing_where_the_trigger_was_not_there() -> None:
    class Triggered(Hangs):
        works_after = (happened(refused_or_answered("image X, too long")), happened(fills))

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
        claims = (claim("one", "it hangs all the same", REPORT, by="no-answer", given=given),)

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

    assert ByName().healthy_after(hang_run(), FACTS).observed == "a line; fill 1: answered"
    evidence = hang_run()
    drop(evidence, "logs")
    assert ByName().healthy_after(evidence, FACTS).truth is UNKNOWN


# ------------------------------------------------------------------ what a check may ask for


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

    with pytest.raises(BrokenScenario, match=r"check asks for what: <class 'pathlib\.\w+'>"):
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
    evidence = Evidence(probes=[probed(logs(GHOST), "control"), probed(http(200, 200), "control")])
    assert truths(evidence)["in-the-log"] is UNKNOWN
    evidence.probes.append(probed(processes(user=97.0)))
    assert truths(evidence)["core-burns-cpu"] is UNKNOWN  # what it used in the gate is not known
