"""The table of all claims, and which of several runs judges one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from mmrepro.base.records import Fidelity, Moment
from mmrepro.cli.app import app
from mmrepro.failure.documents import ClaimResult, EngineFacts, Incident
from mmrepro.failure.signature import Outcome, Verdict
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.tools.catalogue import claims as catalogue
from mmrepro.tools.catalogue.claims import JudgedClaim, judged
from simple_incident import incident
from typer.testing import CliRunner

OWN, FLIP, GPU = "0.23.0", "--flip x", Fidelity.GPU
runner = CliRunner()


def said(
    status: str, release: str = OWN, *options: str, day: int = 1, **more: Any
) -> Incident:
    """A run of ghost-key-eviction, 0.23.0 being its own release, that judged one
    claim."""
    told = ClaimResult(
        id="c", text="so it is", source="a#1", status=status, observed=f"{status}!"
    )
    when = Moment(wall=datetime(2026, 11, day, tzinfo=UTC), mono=0)
    verdict = Verdict(
        outcome=Outcome.REPRODUCED,
        expected=Outcome.REPRODUCED,
        explanation="",
        conditions=[],
    )
    command = " ".join(("mmrepro run ghost-key-eviction --release", release, *options))
    engine = EngineFacts(name="vllm", release=release)
    return incident(
        command=command,
        engine=engine,
        created=when,
        claims=[told],
        verdict=verdict,
        **more,
    )


def claim(*incidents: Incident) -> JudgedClaim:
    (one,) = judged((f"run {number}", one) for number, one in enumerate(incidents))
    return one


@pytest.mark.parametrize(
    ("runs", "status", "source"),
    [
        ([said("not-tested"), said("refuted", "0.24.0")], "refuted", "run 1"),
        ([said("confirmed"), said("refuted", "0.24.0", day=2)], "confirmed", "run 0"),
        (
            [said("refuted", OWN, FLIP, day=3), said("confirmed", "0.24.0")],
            "confirmed",
            "run 1",
        ),
        ([said("refuted", OWN, FLIP), said("not-tested")], "refuted", "run 0"),
        ([said("confirmed"), said("confirmed", day=2)], "confirmed", "run 1"),
        (
            [said("confirmed"), said("confirmed", day=2, fidelity=GPU)],
            "confirmed",
            "run 0",
        ),
        (
            [said("not-tested", OWN, FLIP, day=2), said("not-tested")],
            "not-tested",
            "run 1",
        ),
    ],
)
def test_the_run_that_tells_most_judges_it(
    runs: list[Incident], status: str, source: str
) -> None:
    told = claim(*runs).judged
    assert (told.status, told.source) == (status, source)
    assert told.observed == f"{status}!"


def test_what_other_releases_say_stands_beside_it() -> None:
    mended, also = said("refuted", "0.24.0"), said("confirmed", "0.22.0")
    changed = said("refuted", "0.25.0", "--server-arg=--x")
    found = claim(said("confirmed"), mended, also, changed)
    assert [told.release for told in found.elsewhere] == ["0.24.0"]
    assert claim(said("not-tested"), said("not-tested", "0.24.0")).elsewhere == []


def of_variants(**said_of: str) -> list[JudgedClaim]:
    """``a="confirmed"``: what a plain run of each variant says of one claim."""
    found = []
    for number, (variant, status) in enumerate(said_of.items()):
        one = said(status, "0.23.0")
        scenario = one.scenario.model_copy(update={"variant": variant})
        found.append((f"run {number}", one.model_copy(update={"scenario": scenario})))
    return judged(found)


@pytest.fixture
def any_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    real = load_scenario("ghost-key-eviction")

    class Named:
        def with_variant(self, _: str) -> object:
            return real

    monkeypatch.setattr(catalogue, "known_scenario", lambda _, trust: Named())


@pytest.mark.usefixtures("any_variant")
def test_one_variants_word_hides_no_other_ones() -> None:
    found = of_variants(a="confirmed", b="refuted", c="confirmed", d="not-tested")
    assert [(one.judged.status.value, one.variants) for one in found] == [
        ("confirmed", ["a", "c"]),
        ("refuted", ["b"]),
        ("not-tested", ["d"]),
    ]
    assert found[1].judged.source == "run 1"
    assert [one.variants for one in of_variants(a="not-tested", b="not-tested")] == [
        ["a", "b"]
    ]


def test_a_run_without_a_verdict_says_nothing() -> None:
    silent = ("x", said("confirmed").model_copy(update={"verdict": None}))
    assert judged([silent]) == []
    assert len(judged([silent, ("run 1", said("confirmed"))])) == 1


def test_each_line_names_the_run_and_its_day() -> None:
    told = json.loads(runner.invoke(app, ["show", "--claims", "--json"]).stdout)[
        "claims"
    ]
    assert {one["scenario"] for one in told} == set(scenario_names())
    for one in told:
        assert one["judged"]["command"].startswith(f"mmrepro run {one['scenario']}")
        assert one["judged"]["at"] >= "2026-11-2"
        assert one["judged"]["observed"] or one["judged"]["status"] == "not-tested"


def test_every_declared_claim_of_a_recorded_scenario_is_in_it() -> None:
    told = json.loads(runner.invoke(app, ["show", "--claims", "--json"]).stdout)[
        "claims"
    ]
    found = {(one["scenario"], one["id"]) for one in told}
    for name in scenario_names():
        for variant in load_scenario(name).variants or (load_scenario(name),):
            for one in variant.claims:
                assert (name, one.id) in found, one


def test_status_and_scenario_choose() -> None:
    asked = ["show", "ghost-key-eviction", "--claims", "--status", "refuted", "--json"]
    told = json.loads(runner.invoke(app, asked).stdout)["claims"]
    assert {(one["scenario"], one["judged"]["status"]) for one in told} == {
        ("ghost-key-eviction", "refuted")
    }
    shown = runner.invoke(app, asked[:-1])
    assert "at-will" in shown.stdout


def test_wrong_words_are_one_sentence() -> None:
    for words in (["nonsense"], ["--status", "maybe"]):
        told = runner.invoke(app, ["show", "--claims", *words])
        assert told.exit_code != 0
        assert "Traceback" not in told.output
