"""A search as plain code: its lines of work, its time, its places."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest
from mmrepro.base.errors import PlaceLost
from mmrepro.base.records import Record
from mmrepro.campaign.campaign import Campaign, CampaignState
from mmrepro.campaign.events import CampaignEvent, Note, RunBegan
from mmrepro.campaign.search import Search, Spent
from mmrepro.campaign.work import Order, StartedRun, Working


class Squared(Record):
    id: str
    index: int
    value: int


class Square:
    """An order: the square of the number that the wish is called after."""

    def __init__(self, want: StartedRun) -> None:
        self.want = want

    def answer(self) -> Squared:
        want = self.want
        return Squared(id=want.id, index=want.index, value=int(want.id) ** 2)


class Place:
    """Does what it is told, but for the orders in ``dies``, counted from 1."""

    def __init__(
        self,
        name: str,
        dies: Collection[int] = (),
        both: threading.Barrier | None = None,
    ):
        self.name, self.dies, self.both, self.orders = name, dies, both, 0

    def has(self, group: object) -> bool:
        return False

    def work(self, order: Order, root: Path) -> Working:
        assert isinstance(order, Square)
        self.orders += 1
        yield order.want
        if self.both is not None:
            self.both.wait()
        if self.orders in self.dies:
            raise PlaceLost(f"{self.name} is gone.")
        yield order.answer()


class Places:
    def __init__(self, *places: Place) -> None:
        self.places = places
        self.stopped = False

    def there(self) -> Sequence[Place]:
        return self.places

    def expect(self, groups: object) -> None:
        pass

    def stop(self) -> None:
        self.stopped = True

    def join(self) -> None:
        pass


class Sums(Search[str, Squared]):
    """``work`` is a generator of lines; each asks for squares."""

    kind = "sum"
    resume_command = "mmrepro resume here"

    def __init__(self, *work: Callable[[Sums], None], most: int = 99) -> None:
        super().__init__()
        self.folder = Path()
        self.work: Iterator[Callable[[Sums], None]] = iter(work)
        self.most, self.written, self.said = most, 0, []  # type: ignore[var-annotated]

    def standing(self) -> str:
        return f"{self.written} squares"

    def more(self) -> Callable[[], None] | None:
        work = next(self.work, None)
        return None if work is None else lambda: work(self)

    def order_of(self, want: StartedRun) -> Order:
        return Square(want)  # type: ignore[return-value]

    def keep(self, line: Squared) -> tuple[str, int]:
        self.written += 1
        return line.id, line.index

    def affords(self, want: StartedRun) -> bool:
        return self.written < self.most

    def end(self, state: CampaignState, failure: str) -> str:
        return f"{state}: {self.said}{failure and ': '}{failure}"

    def of(self, *numbers: int) -> list[int]:
        return [
            line.value
            for line in self.results([StartedRun(str(n), 1) for n in numbers])
        ]


def adds(*numbers: int) -> Callable[[Sums], None]:
    def work(search: Sums) -> None:
        total = 0
        for number in numbers:
            total += search.of(number)[0]
        search.said.append(total)

    return work


def executed(search: Sums, *places: Place) -> tuple[str, list[CampaignEvent]]:
    heard: list[CampaignEvent] = []
    campaign = Campaign(search, Places(*places), [heard.append], wait_s=0.05)  # type: ignore[arg-type]
    return campaign.execute(), heard


def test_lines_follow_each_other_on_one_place() -> None:
    document, heard = executed(Sums(adds(1, 2), adds(3), adds(2, 4)), Place(""))
    assert document == "complete: [5, 9, 20]"
    began = [event.what for event in heard if isinstance(event, RunBegan)]
    assert began == ["1", "2", "3", "4"], "the square of two is known by then"


def test_lines_go_on_beside_each_other_on_two_places() -> None:
    both = threading.Barrier(2, timeout=20)
    document, _ = executed(
        Sums(adds(1, 2), adds(3, 4)), Place("a", both=both), Place("b", both=both)
    )
    assert sorted(document.partition("[")[2].rstrip("]").split(", ")) == ["25", "5"]


def test_several_wishes_of_one_line_go_to_several_places() -> None:
    both = threading.Barrier(2, timeout=20)

    def work(search: Sums) -> None:
        search.said += search.of(3, 1)

    document, _ = executed(Sums(work), Place("a", both=both), Place("b", both=both))
    assert document == "complete: [9, 1]", "in the order in which they were asked for"


def parts(search: Sums) -> None:
    """A sum of two squares, each a line that asks for one more before."""

    def square(number: int) -> int:
        search.of(number + 1)
        return search.of(number)[0]

    search.said.append(sum(search.beside([lambda: square(1), lambda: square(5)])))
    search.said += search.beside([lambda: 0])


def test_parts_of_a_line_go_on_beside_each_other() -> None:
    both = threading.Barrier(2, timeout=20)
    document, _ = executed(Sums(parts), Place("a", both=both), Place("b", both=both))
    assert document == "complete: [26, 0]"
    document, heard = executed(Sums(parts), Place(""))
    assert document == "complete: [26, 0]"
    began = [event.what for event in heard if isinstance(event, RunBegan)]
    assert began == ["2", "1", "6", "5"], "on one place one part after the other"


def test_a_line_whose_part_has_no_time_hears_so() -> None:
    def work(search: Sums) -> None:
        try:
            parts(search)
        except Spent:
            search.said.append("spent")

    document, _ = executed(Sums(work, most=3), Place(""))
    assert document == "out-of-time: ['spent']"


def test_who_has_no_time_hears_so_and_may_conclude() -> None:
    def work(search: Sums) -> None:
        try:
            search.of(1)
            search.of(2)
        except Spent:
            search.said.append("no time for two")

    document, heard = executed(Sums(work, adds(5), most=1), Place(""))
    assert document == "out-of-time: ['no time for two']"
    assert [event.what for event in heard if isinstance(event, RunBegan)] == ["1"]


def test_a_line_that_fails_ends_the_campaign_and_stops_the_places() -> None:
    def work(search: Sums) -> None:
        search.of(1)
        raise ValueError("no sum")

    search, places = Sums(work), Places(Place(""))
    with pytest.raises(ValueError, match="no sum"):
        Campaign(search, places).execute()  # type: ignore[arg-type]
    assert places.stopped


def test_a_run_whose_place_is_lost_goes_to_another() -> None:
    document, heard = executed(Sums(adds(1, 2)), Place("dies", dies=(1,)), Place("b"))
    assert document == "complete: [5]"
    notes = [event.text for event in heard if isinstance(event, Note)]
    assert notes == ["dies was lost: dies is gone. Its run goes to others."]


def test_a_run_that_loses_every_place_ends_it() -> None:
    with pytest.raises(PlaceLost):
        executed(Sums(adds(1)), *(Place(name, dies=(1, 2, 3)) for name in "abc"))


def test_a_search_waits_for_a_place_that_comes_late() -> None:
    class Late(Places):
        looks = 0

        def there(self) -> Sequence[Place]:
            self.looks += 1
            return self.places if self.looks > 3 else []

    campaign = Campaign(Sums(adds(1, 2)), Late(Place("a")), wait_s=20.0)  # type: ignore[arg-type]
    assert campaign.execute() == "complete: [5]"
