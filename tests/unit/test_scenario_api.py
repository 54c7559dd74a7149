"""The author's API: what a scenario declares, and what the evaluator makes of it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from made_up import (
    GHOST,
    drop,
    hang_run,
    healthy_run,
    logs,
    metrics,
    swap,
)
from mmrepro import scenario as scenario_names
from mmrepro.base.errors import BrokenScenario
from mmrepro.base.records import ClaimStatus
from mmrepro.cli import conditions
from mmrepro.runs.judge import judge
from mmrepro.scenario import (
    Drive,
    Evidence,
    Factor,
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
    Truth,
    answered,
    cause,
    claim,
    cure,
    endpoints_green,
    issue,
    more,
    precondition,
    pull,
    row,
    unmitigated,
    upgrade,
    with_variants,
)
from mmrepro.scenario.definition import bind
from mmrepro.scenario.more import (
    Condition,
    Fidelity,
    StacksData,
    core_burns_cpu,
    guarded,
    idle_while_asked,
    last_line,
    never_answered,
    new_request_unanswered,
    no_progress,
    refused_or_answered,
    trigger_ended,
)
from mmrepro.scenario.registry import load_scenario

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
    preconditions = (
        precondition(
            "an image was sent", answered("fill 1"), id="sent", removed_by=("off",)
        ),
    )
    symptoms = (
        never_answered("fill 11", reported="no answer in 15 s"),
        new_request_unanswered(),
        core_burns_cpu(required=False),
    )
    claims = (
        claim("hangs", "it hangs", REPORT, by="no-answer"),
        claim("both", "it hangs by a ghost", REPORT, by=("no-answer", "in-the-log")),
        claim("luck", "it takes luck", REPORT, by="no-answer", refuted=True),
        claim(
            "later",
            "0.24.0 mends it",
            "vllm#43595",
            by="no-answer",
            releases=">=0.24.0",
        ),
        claim("never", "on the reporter's machine", REPORT, untested="no such machine"),
        claim(
            "if-green",
            "with green endpoints",
            REPORT,
            by="no-answer",
            given="never-there",
        ),
        claim(
            "checked",
            "an image was sent",
            REPORT,
            by=answered("fill 1"),
            note="of thirty",
        ),
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
        return Finding.of(
            any(GHOST in key for key in keys), f"{len(keys)} samples show it"
        )

    @cause("the class alone loops", id="class-loops", live=False)
    def loops(self, reproducers: Reproducers) -> Finding:
        return Finding.of(
            not reproducers.truth("ghost_key.py", "eviction_ends"), "it loops"
        )

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


def test_the_signature_is_what_is_declared_in_the_order_of_its_parts() -> None:
    found = [(c.id, c.part, c.required) for c in SCENARIO.conditions(FACTS)]
    assert found == [
        ("sent", "precondition", True),
        ("no-answer", "symptom", True),
        ("no-answer-later", "symptom", True),
        ("core-burns-cpu", "symptom", False),
        ("in-the-log", "cause", True),
        ("the-key", "cause", False),
        ("class-loops", "cause", True),
    ]


def test_only_the_mitigations_and_flips_of_a_run_waive_its_preconditions() -> None:
    def waived(*mitigations: str, flips: tuple[str, ...] = ()) -> str:
        facts = replace(
            FACTS, mitigations=frozenset(mitigations), flips=frozenset(flips)
        )
        return SCENARIO.conditions(facts)[0].waived

    assert (waived(), waived("release"), waived("off"), waived(flips=("off",))) == (
        "",
        "",
        "off",
        "off",
    )


def test_that_a_flip_took_effect_is_judged_of_a_flipped_run_alone() -> None:
    class Flipped(Hangs):
        factors = (
            Factor("one", "d", "--a"),
            Factor("two", "d", "--b", took_effect=answered("x")),
        )

    both = replace(FACTS, flips=frozenset({"one", "two"}))
    assert [c.part for c in Flipped().conditions(FACTS)] == [
        c.part for c in SCENARIO.conditions(FACTS)
    ]
    found = judge(Flipped(), hang_run(), both).conditions[-2:]
    assert [(c.id, c.part, c.truth, c.observed) for c in found] == [
        (
            "flip-one",
            "flip",
            Truth.UNKNOWN,
            "the scenario does not say what shows that the flip took effect",
        ),
        ("flip-two", "flip", Truth.UNKNOWN, "x was not sent"),
    ]
    assert judge(Flipped(), hang_run(), both).outcome is Outcome.REPRODUCED


def test_a_method_that_overrides_one_keeps_its_place_and_words() -> None:
    class Narrower(Hangs):
        def in_the_log(self, logs: Logs) -> Finding:
            return Finding.of(False, "narrower")

    conditions = Narrower().conditions(FACTS)
    assert [c.id for c in conditions] == [c.id for c in SCENARIO.conditions(FACTS)]
    one = next(c for c in conditions if c.id == "in-the-log")
    assert (one.statement, one.check(hang_run()).observed) == (
        "the log names a hash",
        "narrower",
    )


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
    assert told["if-green"].startswith(
        "not tested without never-there: there is no condition"
    )
    assert told["checked"] == "fill 1: answered (of thirty)"


def test_what_another_release_does_otherwise_refutes_nothing() -> None:
    class Reported(Hangs):
        claims = (
            claim("fits", "t", REPORT, by="no-answer", refutable_on="<0.20"),
            claim(
                "fails", "t", REPORT, by="no-answer", refuted=True, refutable_on="<0.20"
            ),
            claim(
                "mine", "t", REPORT, by="no-answer", refuted=True, refutable_on=">=0.20"
            ),
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
            claim(
                "uncured",
                "t",
                "elsewhere",
                by="no-answer",
                given=without_a_cure,
                note="so",
            ),
        )

    def told(facts: RunFacts) -> list[tuple[str, str]]:
        found = {c.id: c for c in Checked().claim_results(hang_run(), facts)}
        assert [found[name].source for name in ("both", "uncured")] == [
            "vllm#43941",
            "elsewhere",
        ]
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
    assert [ended(e).truth for e in (hang_run(), over, Evidence())] == [
        NOT_MET,
        MET,
        UNKNOWN,
    ]


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
            return [
                Condition(
                    "one", "symptom", "s", lambda e: Finding.of(True, facts.fidelity)
                )
            ]

    (one,) = Own().live_conditions(LIVE)
    assert one.check(Evidence()).observed == "live"


# ------------------------------------------------------------------ the names

FIRST = re.findall(
    r"\w+",
    """
    Check Claim Control Drive Evidence Factor FailureClass Finding LiveFacts Logs Measured Metrics
    Missing Outcome Processes Reference Reproducers RequestRecord Requests RunFacts Scenario
    Severity Truth Upstream UpstreamState all_met answered cause claim cure endpoints_green issue
    precondition pull quote row some_requests_fail symptom unmitigated upgrade with_variants
    """,
)


def names(module: ModuleType) -> list[str]:
    """What a module has that is neither private nor one of its submodules."""
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name != "TYPE_CHECKING"
        and not isinstance(value, ModuleType)
    )


def test_the_names_that_a_scenario_needs_first_are_these() -> None:
    """A new one belongs in ``more``: whoever writes a first scenario reads this
    list."""
    assert names(scenario_names) == sorted(FIRST)


def test_a_name_of_more_says_so_where_it_is_imported_from_the_first() -> None:
    with pytest.raises(ImportError, match=r"play_case is in mmrepro\.scenario\.more"):
        from mmrepro.scenario import play_case  # type: ignore[attr-defined] # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'no_such_name'"):
        from mmrepro.scenario import no_such_name  # type: ignore[attr-defined] # noqa: F401


def test_a_file_with_such_an_import_is_shown_its_own_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("\nfrom mmrepro.scenario import play_case\n")
    with pytest.raises(
        BrokenScenario, match=r"more; import it from there \(mine\.py line 2\)"
    ):
        load_scenario(str(file))


def test_no_name_is_in_both() -> None:
    assert not {*names(scenario_names)} & {*names(more)}


def test_the_page_on_conditions_is_made_from_docstrings() -> None:
    page = Path(__file__).parents[2] / "docs" / "conditions.md"
    assert page.read_text("utf-8") == conditions.page(), (
        f"python -m mmrepro.cli.conditions > {page}"
    )
    for view in (Requests, Logs, Metrics, Processes, Reproducers, Measured):
        for name in vars(view):
            if not name.startswith("_") and name != "observable":
                assert f"`{name}(" in page.read_text("utf-8"), name
    # A row without words helps nobody.
    assert "|  |" not in page.read_text("utf-8")
