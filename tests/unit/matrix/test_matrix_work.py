"""What a machine does with an order, without a night around it."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from matrix_nights import FakeProvisions, FakeTrials, attempt, planned
from mmrepro.campaign.groups import groups_of
from mmrepro.campaign.work import Began, CellsUntilWhole, Here
from mmrepro.incident.ledger import Attempt, Cell, Lost, Planned
from mmrepro.signature import Outcome

BAD = Outcome.REPRODUCED


class Slow(FakeProvisions):
    """Its environments take 100 s."""

    def seconds(self, group: object) -> float:
        return 100.0


def order(cells: Sequence[Planned], **more: object) -> CellsUntilWhole:
    known: dict[str, object] = {
        "night": "n1",
        "group": groups_of(cells)[0],
        "attempts": {},
        "before": {},
        "seconds": {},
        "repeat": 1,
        "confirm": 2,
    }
    return CellsUntilWhole(**{**known, **more})  # type: ignore[arg-type]


def told(
    order: CellsUntilWhole,
    root: Path,
    provisions: FakeProvisions | None = None,
    takes: float = 50.0,
) -> list[str]:
    now = [0.0]

    def pass_by(cell: Cell, index: int) -> None:
        now[0] += takes

    class Timed(FakeTrials):
        def run(self, *rest: object, **more: object) -> Attempt:
            made = super().run(*rest, **more)  # type: ignore[arg-type]
            return made.model_copy(update={"seconds": takes})

    trials = Timed(lambda cell, index: BAD, pass_by)
    here = Here(trials, provisions or FakeProvisions(), clock=lambda: now[0])
    made = order.carry_out(here, root)
    return [
        f"{one.what.partition(' ')[0]}{one.index}"
        if isinstance(one, Began)
        else f"{one.outcome or one.lost}"
        for one in made
    ]


CELLS = [planned(scenario, "1.0") for scenario in "abc"]


def test_an_order_can_be_sent_and_attempts_of_before_count(tmp_path: Path) -> None:
    before = {CELLS[0].cell.id: (attempt(CELLS[0], 1, Lost.INFRASTRUCTURE),)}
    sent = pickle.loads(pickle.dumps(order(CELLS[:2], attempts=before)))
    assert told(sent, tmp_path) == ["a2", BAD, "b1", BAD]


@pytest.mark.parametrize(
    ("until", "runs"), [(59.0, 0), (60.0, 1), (99.0, 1), (100.0, 2), (150.0, 3)]
)
def test_what_was_measured_a_moment_ago_is_what_a_run_takes(
    tmp_path: Path, until: float, runs: int
) -> None:
    """60 s are assumed of the first; it takes 50 s, and so will the others."""
    assert len(told(order(CELLS, until=until), tmp_path)) == 2 * runs


def test_what_earlier_nights_measured_counts_before_that(tmp_path: Path) -> None:
    seconds = {planned.cell.id: 20.0 for planned in CELLS}
    assert len(told(order(CELLS, until=70.0, seconds=seconds), tmp_path)) == 4


def test_nothing_is_fetched_that_there_is_no_time_for(tmp_path: Path) -> None:
    provisions = Slow()
    assert told(order(CELLS, until=159.0), tmp_path, provisions) == []
    assert provisions.told == ["done 1.0"]
    assert len(told(order(CELLS, until=160.0), tmp_path, provisions)) == 6, "100 s, and 60 s"


def test_the_next_environment_is_fetched_if_there_is_time_for_it(tmp_path: Path) -> None:
    ahead = groups_of([planned("a", "2.0")])[0]
    provisions = FakeProvisions()
    told(order(CELLS, ahead=ahead), tmp_path, provisions)
    assert "prefetch 2.0" in provisions.told
    late = FakeProvisions()
    known = {planned.cell.id: 1.0 for planned in CELLS}
    told(order(CELLS, ahead=ahead, until=59.0, seconds=known), tmp_path / "late", late)
    assert "prefetch 2.0" not in late.told


def test_a_closed_order_leaves_no_parent(tmp_path: Path) -> None:
    provisions = FakeProvisions()
    working = order(CELLS).carry_out(
        Here(FakeTrials(lambda cell, index: BAD), provisions), tmp_path
    )
    next(working)
    assert provisions.told[-1] == "warm 3"
    working.close()
    assert provisions.told[-1] == "cold"
