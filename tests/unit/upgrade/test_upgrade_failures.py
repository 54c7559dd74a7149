"""Failures of one side alone, repeated before they are said; known ones by their
releases."""

from __future__ import annotations

import pytest
from made_up_plays import answer, case_of, operation, picture, refused
from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.upgrade import Area, Difference, Outcome, SideRun
from mmrepro.search.upgrade import catalogue, failures
from mmrepro.traffic.case.model import Case, ServerWanted
from upgrade_sides import run, seen

CASE = case_of([operation("r1"), operation("r2")])
HANG = seen(FindingClass.HANG, "vllm/step", "r1")


def side(name: str, *shows: bool, of=HANG) -> list[SideRun]:
    """A run for each of ``shows``: whether it shows the failure."""
    records = [answer(op) for op in CASE.operations]
    return [
        run(name, records, index=i, sightings=[of] if there else [])
        for i, there in enumerate(shows, 1)
    ]


@pytest.mark.parametrize(
    ("old", "new", "outcome", "matters"),
    [
        ([False, False], [True, True], Outcome.DIFFERENCE, True),
        ([True, True], [False, False], Outcome.DIFFERENCE, False),
        ([True, False], [False, True], Outcome.NONE, False),
        ([False, False], [True, False], Outcome.UNTOLD, False),
        ([False], [True, True], Outcome.UNTOLD, False),
        ([False, False], [False, False], Outcome.NONE, False),
    ],
)
def test_said_when_it_is_repeated(
    old: list[bool], new: list[bool], outcome: Outcome, matters: bool
) -> None:
    runs = side("old", *old), side("new", *new)
    found = failures.compare(*runs, case=CASE)
    assert {(one.outcome, one.matters) for one in found if one.subject == "hang"} == (
        {(outcome, matters)} if any(old + new) else set()
    )
    quiet = [one for one in found if one.subject == "failures"]
    assert bool(quiet) is (outcome is Outcome.NONE)


def test_a_request_that_new_refuses() -> None:
    old = side("old", False, False)
    records = [
        answer(CASE.operations[0]),
        refused(CASE.operations[1], message="no such field"),
    ]
    new = [run("new", records, index=i) for i in (1, 2)]
    (one,) = failures.compare(old, new, case=CASE)
    assert one.matters
    assert one.evidence == ["r2"]
    assert "NEW answers 400 where OLD answers 200: r2" in one.statement
    assert "no such field" in one.statement
    (back,) = failures.compare(new, old, case=CASE)
    assert not back.matters
    assert back.subject == "requests answered"


def test_an_overloaded_server_refuses_by_chance() -> None:
    old = side("old", False, False)
    new = [
        run("new", [refused(op, 503) for op in CASE.operations], index=i)
        for i in (1, 2)
    ]
    (one,) = failures.compare(old, new, case=CASE)
    assert one.outcome is Outcome.NONE


def test_the_form_of_an_answer_is_named_once() -> None:
    """What protocol says of the same answers is not said again; another answer's is."""
    form = seen(FindingClass.PROTOCOL, "finish-reason", "r1")
    known = Difference(
        area=Area.PROTOCOL,
        subject="finish_reason",
        outcome=Outcome.DIFFERENCE,
        statement="It is another.",
        evidence=["r1"],
    )
    runs = side("old", False, False, of=form), side("new", True, True, of=form)
    (one,) = failures.compare(*runs, case=CASE, known=[known])
    assert one.outcome is Outcome.NONE
    (one,) = failures.compare(*runs, case=CASE)
    assert one.subject == "protocol"
    assert one.matters


# ----------------------------------------------------------------------- known failures


def known(
    engine: str, old: str, new: str, case: Case, *args: str
) -> dict[str, Difference]:
    server = ServerWanted(engine=engine, release=old, args=list(args))
    case = case.model_copy(update={"server": server})
    found = catalogue.compare(case, server.model_copy(update={"release": new}))
    return {one.subject: one for one in found}


PICTURES = case_of([operation("r1", "look", [picture("a")])])


def test_the_ghost_key_is_gone() -> None:
    found = known("vllm", "0.23.0", "0.24.0", PICTURES)
    one = found["ghost-key-eviction"]
    assert "fixed in 0.24.0" in one.statement
    assert "it has images" in one.statement
    assert (one.old, one.new, one.matters) == (True, False, False)
    assert "embeds-mrope" in found["other known failures"].evidence


def test_a_failure_that_new_has_matters_if_the_traffic_can_meet_it() -> None:
    back = known("vllm", "0.24.0", "0.23.0", PICTURES)
    assert back["ghost-key-eviction"].matters
    plain = known("vllm", "0.24.0", "0.23.0", CASE)
    assert "ghost-key-eviction" in plain["other known failures"].evidence
    assert not any(one.matters for one in plain.values())


def test_what_a_failure_needs_together_must_be_there_together() -> None:
    """A streamed call of a tool is lost by one parser: not where there is none, or
    another one."""
    name, parser = "tool-arguments-dropped", "--tool-call-parser"
    for stream in (False, True):
        case = case_of(
            [operation("r1", "x", stream=stream, tools=[{"type": "function"}])]
        )
        for args in ((), (parser, "hermes"), (parser, "xlam"), (f"{parser}=xlam",)):
            found = known("vllm", "0.24.0", "0.32.0", case, *args)
            could = stream and "xlam" in "".join(args)
            assert (name in found) is could
            assert not could or found[name].matters


def test_an_option_that_keeps_a_failure_away() -> None:
    found = known("vllm", "0.24.0", "0.23.0", PICTURES, "--mm-processor-cache-gb", "0")
    assert "ghost-key-eviction" not in found


def test_a_source_tree_has_no_known_failures() -> None:
    (one,) = known("vllm", "0.23.0", "of a tree", PICTURES).values()
    assert one.outcome is Outcome.NONE
    assert "source tree" in one.statement


def test_a_release_beside_itself() -> None:
    assert known("vllm", "0.23.0", "0.23.0", PICTURES) == {}
