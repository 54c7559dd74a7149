"""What a claim may name besides conditions: a whole part of the signature, and that the
trigger arrived."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_up import request, run_facts
from mmrepro.base.errors import BrokenScenario
from mmrepro.base.records import ClaimStatus
from mmrepro.scenario import (
    Finding,
    Scenario,
    cause,
    claim,
    cure,
    precondition,
    symptom,
)
from mmrepro.scenario.common import changed
from mmrepro.scenario.registry import load_scenario
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence import Evidence

CONFIRMED, REFUTED, NOT_TESTED = (
    ClaimStatus.CONFIRMED,
    ClaimStatus.REFUTED,
    ClaimStatus.NOT_TESTED,
)


def told(fact: str):  # type: ignore[no-untyped-def]
    def check(evidence: Evidence) -> Finding:
        value = evidence.facts.get(fact)
        if value is None:
            return Finding.unknown(f"{fact} unknown")
        return Finding.of(bool(value), fact)

    return check


class Parts(Scenario):
    """Parts of a signature by fact.

    What: of a test.

    Why: to see what a claim is judged by.
    """

    name, release, affected = "parts", "0.23.0", ">=0"
    mitigations = (cure("off", "--off"),)
    preconditions = (
        precondition("it arrived", told("there"), id="there", removed_by=("off",)),
    )
    symptoms = (
        symptom("first", told("first"), id="first"),
        symptom("second", told("second"), id="second"),
        symptom("more", told("more"), id="more", required=False),
    )
    causes = (cause("why", told("why"), id="why"),)
    claims = (
        claim("whole", "the whole symptom", "a report", by="symptom"),
        claim("both", "symptom and cause", "a report", by=("symptom", "cause")),
        claim("given", "given that it arrived", "a report", by="why", given="arrived"),
        claim("no", "not on {name}", "a report", untested="nobody looks at {release}"),
    )

    async def trigger(self, drive: Drive) -> None:
        return


ALL = {"there": True, "first": True, "second": True, "why": True}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (ALL, (CONFIRMED, CONFIRMED, CONFIRMED)),
        (ALL | {"first": False}, (REFUTED, REFUTED, CONFIRMED)),
        (ALL | {"second": False}, (REFUTED, REFUTED, CONFIRMED)),
        (ALL | {"second": None}, (NOT_TESTED, NOT_TESTED, CONFIRMED)),
        (ALL | {"more": False}, (CONFIRMED, CONFIRMED, CONFIRMED)),
        (ALL | {"why": False}, (CONFIRMED, REFUTED, REFUTED)),
        (ALL | {"there": False}, (CONFIRMED, CONFIRMED, NOT_TESTED)),
        (ALL | {"there": None}, (CONFIRMED, CONFIRMED, NOT_TESTED)),
    ],
)
def test_a_part_and_the_arrival(
    facts: dict[str, bool | None], expected: tuple[ClaimStatus, ...]
) -> None:
    evidence = Evidence(requests=[request("gate", "gate: text only")], facts=facts)
    found = Parts().claim_results(evidence, run_facts(Parts()))
    assert tuple(c.status for c in found[:3]) == expected
    assert found[3].status is NOT_TESTED
    assert found[3].observed == "nobody looks at 0.23.0"


def test_what_a_mitigation_takes_away_is_not_asked_for() -> None:
    evidence = Evidence(
        requests=[request("gate", "gate: text only")], facts=ALL | {"there": False}
    )
    found = Parts().claim_results(evidence, run_facts(Parts(), "", "off"))
    assert found[2].status is CONFIRMED


class Cured(Parts):
    """A claim, the same about the mitigation, one that no mitigation changes, and a
    refuted one."""

    claims = (
        claim("plain", "it says why", "a report", by="why"),
        claim(
            "of-it",
            "with it so, too",
            "a report",
            by="why",
            given=changed("off", "flipped"),
        ),
        claim("any", "whatever is on", "a report", by="why", cured=True),
        claim("against", "never", "a report", by=told("quiet"), refuted=True),
    )


@pytest.mark.parametrize(
    ("changes", "facts", "expected"),
    [
        (
            (),
            {"first": False, "why": False, "quiet": True},
            (REFUTED, None, REFUTED, REFUTED),
        ),
        (
            ("off",),
            {"first": False, "why": False, "quiet": True},
            (None, REFUTED, REFUTED, None),
        ),
        (("off",), {"why": False, "quiet": True}, (None, REFUTED, REFUTED, None)),
        (("off",), {"quiet": True}, (CONFIRMED, CONFIRMED, CONFIRMED, REFUTED)),
        (("off",), {"first": False, "quiet": False}, (CONFIRMED,) * 4),
    ],
    ids=["as released", "cured", "fails otherwise", "fails all the same", "confirmed"],
)
@pytest.mark.parametrize("flipped", [False, True])
def test_a_run_whose_cure_was_on_refutes_nothing_but_what_is_said_of_the_cure(
    changes: tuple[str, ...],
    facts: dict[str, bool],
    expected: tuple[ClaimStatus | None, ...],
    flipped: bool,
) -> None:
    evidence = Evidence(
        requests=[request("gate", "gate: text only")], facts=ALL | facts
    )
    run = run_facts(Cured(), "", *changes)
    if flipped and changes:
        run = replace(run, mitigations=frozenset(), flips=frozenset({"flipped"}))
    found = Cured().claim_results(evidence, run)
    assert tuple(c.status for c in found) == tuple(
        one or NOT_TESTED for one in expected
    )


def test_where_the_gate_failed_nothing_arrived() -> None:
    evidence = Evidence(requests=[request("gate", "gate: text only", 500)], facts=ALL)
    found = Parts().claim_results(evidence, run_facts(Parts()))
    assert [c.status for c in found[:3]] == [CONFIRMED, CONFIRMED, NOT_TESTED]


def test_names_of_parts_are_no_missing_conditions(tmp_path) -> None:  # type: ignore[no-untyped-def]
    source = """
from mmrepro.scenario import Finding, Scenario, claim, symptom

class Named(Scenario):
    \"\"\"Named.

    What: a test.

    Why: one.
    \"\"\"

    name, release, affected = "named", "0.23.0", ">=0"
    symptoms = (symptom("s", lambda evidence: Finding.of(True, ""), id="s"),)
    claims = (claim("c", "c", "r", by=("symptom", "cause"), given="{given}"),)

    async def trigger(self, drive):
        return

SCENARIO = Named()
"""
    file = tmp_path / "named.py"
    file.write_text(source.replace("{given}", "arrived"))
    assert load_scenario(str(file)).name == "named"
    other = tmp_path / "other.py"
    other.write_text(source.replace("{given}", "arriving"))
    with pytest.raises(BrokenScenario, match="arriving"):
        load_scenario(str(other))
