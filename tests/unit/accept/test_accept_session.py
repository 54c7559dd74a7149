"""What is run, what is kept, and when there is no time: with a child that is a
function."""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from matrix_nights import HOST, FakeProvisions, FakeTrials
from mmrepro.base.errors import ExitCode, UsageError
from mmrepro.base.records import Moment
from mmrepro.campaign.accept import running
from mmrepro.campaign.accept.judging import Child, Ended, Judged, Needs, Part, Step
from mmrepro.campaign.accept.running import Sample, StepRun, beside
from mmrepro.campaign.accept.session import STARTS_FILE, Accepting, exit_code
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.events import CampaignEvent, RunEnded
from mmrepro.campaign.work import Here, LocalPlaces
from mmrepro.failure.documents.acceptance import Acceptance, PartRecord, Row, Status
from mmrepro.failure.signature import Outcome

BAD = Outcome.REPRODUCED

STATUSES = {0: Status.PASSED, 1: Status.FAILED, 3: Status.NOT_TESTED}


def judge(ended: Ended) -> Judged:
    """By the exit code; None: it was ended, being late."""
    status = Status.BROKEN_OFF if ended.exit_code is None else STATUSES[ended.exit_code]
    row = Row(
        asked="it", expected="0", source="", seen=str(ended.exit_code), status=status
    )
    return Judged([row], whole=ended.exit_code is not None)


def step(name: str, **changes: Any) -> Step:
    given: dict[str, Any] = {
        "estimate_s": 10.0,
        "limit_s": 20.0,
        "judge": judge,
    } | changes
    child = given.pop("child", Child((name,)))
    return Step(name, f"step {name}", child, **given)


class Fake(Accepting):
    """Children, a clock and an environment, in one.

    ``codes``: of each step; what is not there ends with 0 after ``takes`` seconds.
    """

    def __init__(self, folder: Path, **codes: int | type[BaseException] | None) -> None:
        self.to, self.codes = folder, codes
        self.now, self.takes = 0.0, 10.0
        self.ran: list[str] = []
        self.limits: dict[str, float] = {}
        self.unavailable = ""
        self.told: list[tuple[str, bool]] = []
        self.summaries: list[int] = []
        self.during: Callable[[], object] = lambda: None

    def child(
        self,
        order: StepRun,
        here: Here,
        incident: Path,
        python: Path | None,
        limit_s: float,
    ) -> Ended:
        name = order.step.child.words[0]
        self.ran.append(name)
        self.limits[name] = limit_s
        incident.mkdir()  # raises where something of a broken-off run was left
        self.during()
        outcome = self.codes.get(name, 0)
        if isinstance(outcome, type):
            raise outcome
        self.now += limit_s if outcome is None else self.takes
        return Ended(
            "cpu", outcome, self.takes, limit_s, incident, beside(incident, "xml")
        )

    def clock(self) -> float:
        return self.now

    def written(self, acceptance: Acceptance, folder: Path) -> None:
        self.summaries.append(sum(len(part.steps) for part in acceptance.parts))

    def heard(self, event: CampaignEvent) -> None:
        if isinstance(event, RunEnded):
            self.told.append((event.what.rpartition(" ")[2], event.kept))

    def execute(
        self,
        *parts: Part,
        budget_s: float = 1000.0,
        device: Any = "cpu",
        again: bool = False,
    ) -> list[PartRecord]:
        super().__init__(
            self.to, parts, blank(parts, device), write=self.written, again=again
        )
        places = LocalPlaces(
            FakeTrials(lambda cell, index: BAD), FakeProvisions(), clock=self.clock
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StepRun, "_run", lambda order, *how: self.child(order, *how))
            patch.setattr(running, "existing", lambda spec: None)
            patch.setattr(
                FakeProvisions, "provide", lambda *_: self.unavailable, raising=False
            )
            patch.setattr(FakeProvisions, "failed", lambda *_: False, raising=False)
            campaign = Campaign(
                self, places, [self.heard], budget_s=budget_s, clock=self.clock
            )
            campaign.execute()
        return self.records


def blank(parts: Sequence[Part], device: Any) -> Acceptance:
    return Acceptance(
        mmrepro_version="0",
        created=Moment.now(),
        seconds=0.0,
        budget_s=1.0,
        device=device,
        command="",
        resume="",
        host=HOST,
        parts=[
            PartRecord(part=part.name, title=part.shows, steps=[]) for part in parts
        ],
    )


def statuses(records: list[PartRecord]) -> dict[str, Status]:
    return {step.step: step.rows[0].status for part in records for step in part.steps}


ONE = Part("one", "the first", (step("a"), step("b")))
TWO = Part("two", "the second", (step("c"),))


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    return Fake(tmp_path)


def test_all_steps_are_run_in_order_and_written_down(fake: Fake) -> None:
    done = fake.execute(ONE, TWO)
    assert fake.ran == ["a", "b", "c"]
    assert statuses(done) == dict.fromkeys("abc", Status.PASSED)
    assert exit_code(done) is ExitCode.AS_EXPECTED
    assert fake.summaries == [0, 1, 2, 3, 3], (
        "at the start, at each step's end, and at the end"
    )
    result = PartRecord.model_validate_json((fake.to / "one/result.json").read_bytes())
    assert [one.step for one in result.steps] == ["a", "b"]
    assert result.status is Status.PASSED
    assert result.seconds == 20


def test_nothing_is_run_twice(fake: Fake) -> None:
    fake.codes = {"b": 1, "c": 3}
    first = fake.execute(ONE, TWO)
    assert exit_code(first) is ExitCode.NOT_AS_EXPECTED
    again = Fake(fake.to)
    assert again.execute(ONE, TWO) == first
    assert again.ran == []
    assert again.told == [("a", True), ("b", True), ("c", True)]
    starts = (fake.to / STARTS_FILE).read_text().splitlines()
    assert Counter(json.loads(line)["step"] for line in starts) == Counter("abc")


def test_what_failed_is_run_once_more_when_asked_for(fake: Fake) -> None:
    fake.codes = {"b": 1, "c": 3}
    fake.execute(ONE, TWO)
    again = Fake(fake.to)
    assert exit_code(again.execute(ONE, TWO, again=True)) is ExitCode.AS_EXPECTED
    assert again.ran == ["b", "c"]


@pytest.mark.parametrize("how", [KeyboardInterrupt, SystemExit])
def test_what_was_whole_before_an_interruption_is_kept(
    fake: Fake, how: type[BaseException]
) -> None:
    fake.codes = {"b": how}
    with pytest.raises(how):
        fake.execute(ONE)
    assert fake.acceptance.state != "complete", "though each step that ran is whole"
    again = Fake(fake.to)
    done = again.execute(ONE, TWO)
    assert again.acceptance.state == "complete"
    assert again.ran == ["b", "c"], "and what it left of the second is out of the way"
    assert set(statuses(done).values()) == {Status.PASSED}


def test_a_half_written_record_counts_for_nothing(fake: Fake) -> None:
    fake.execute(TWO)
    record = fake.to / "two/c.json"
    record.write_text(record.read_text()[:-40])
    again = Fake(fake.to)
    again.execute(TWO)
    assert again.ran == ["c"]


def test_another_child_under_the_same_name_is_another_step(fake: Fake) -> None:
    fake.execute(TWO)
    other = Part("two", "the second", (step("c", child=Child(("c", "--more"))),))
    again = Fake(fake.to)
    again.execute(other)
    assert again.ran == ["c"]


def test_what_does_not_fit_the_budget_is_not_begun(fake: Fake) -> None:
    done = fake.execute(ONE, TWO, budget_s=25.0)
    assert fake.ran == ["a", "b"]
    last = done[1].steps[0]
    assert last.rows[0].seen == "the budget: about 10 s are needed, 5 s left"
    assert last.over_budget
    assert not last.whole
    assert exit_code(done) is ExitCode.INCONCLUSIVE
    again = Fake(fake.to)
    assert exit_code(again.execute(ONE, TWO, budget_s=25.0)) is ExitCode.AS_EXPECTED
    assert again.ran == ["c"], "a new command has a new budget"


def test_a_short_step_behind_a_long_one_still_fits(fake: Fake) -> None:
    parts = Part(
        "one", "", (step("long", estimate_s=50.0), step("short", estimate_s=5.0))
    )
    done = fake.execute(parts, budget_s=30.0)
    assert fake.ran == ["short"]
    assert statuses(done) == {"long": Status.NOT_TESTED, "short": Status.PASSED}


def test_no_step_has_more_time_than_the_budget_has_left(fake: Fake) -> None:
    fake.execute(ONE, budget_s=25.0)
    assert fake.limits == {"a": 20.0, "b": 15.0}


def test_a_step_that_outran_its_limit_is_broken_off_and_begun_anew(fake: Fake) -> None:
    fake.codes = {"a": None}
    done = fake.execute(ONE)
    assert statuses(done) == {"a": Status.BROKEN_OFF, "b": Status.PASSED}
    assert done[0].status is Status.BROKEN_OFF
    assert exit_code(done) is ExitCode.INCONCLUSIVE
    again = Fake(fake.to)
    again.execute(ONE)
    assert again.ran == ["a"]


def test_without_an_environment_a_part_is_not_tested_and_the_next_one_goes_on(
    fake: Fake,
) -> None:
    fake.unavailable = "The index cannot be reached."
    needy = Part(
        "one", "", (step("a", child=Child(("a",), (Needs("vllm", "0.23.0"),))),)
    )
    done = fake.execute(needy, TWO)
    assert fake.ran == ["c"]
    why = "no environment of vllm 0.23.0 (cpu) is here: The index cannot be reached."
    assert done[0].rows[0].seen == why
    assert done[0].status is Status.NOT_TESTED
    assert exit_code(done) is ExitCode.AS_EXPECTED, "all that ran passed"
    assert exit_code(done[:1]) is ExitCode.INFRASTRUCTURE, "nothing could be run"


def test_what_only_a_gpu_has_is_not_tried_on_a_cpu(fake: Fake) -> None:
    only = step("a", devices=frozenset({"cuda"}), why_not="a CPU has no such thing")
    done = fake.execute(Part("one", "", (only,)), TWO)
    assert fake.ran == ["c"]
    assert done[0].rows[0].seen == "a CPU has no such thing"
    assert done[0].whole, "nothing is left to be tried here"


def test_tests_that_are_not_there_are_not_tested(fake: Fake) -> None:
    child = Child(("tests/minivllm/no_such.py",), tests=True)
    done = fake.execute(Part("one", "", (step("a", child=child),)))
    assert fake.ran == []
    assert "run it in the repository" in done[0].rows[0].seen


def test_a_judge_that_fails_never_passes(fake: Fake) -> None:
    def broken(ended: Ended) -> Judged:
        raise ValueError("no such field")

    done = fake.execute(Part("one", "", (step("a", judge=broken),)))
    assert statuses(done) == {"a": Status.BROKEN_OFF}
    assert "no such field" in done[0].rows[0].seen


def test_an_inconclusive_run_is_whole_and_told_by_the_exit_code(fake: Fake) -> None:
    fake.codes = {"b": 3}
    done = fake.execute(ONE)
    assert exit_code(done) is ExitCode.INCONCLUSIVE
    assert done[0].status is Status.PASSED, "what was not tested takes nothing away"


def test_two_commands_do_not_work_in_one_folder(fake: Fake) -> None:
    def second() -> None:
        with pytest.raises(UsageError, match="at work"):
            Fake(fake.to).execute(TWO)

    fake.during = second
    fake.execute(TWO)
    assert fake.ran == ["c"]


def test_secrets_and_home_folders_do_not_reach_a_summary(fake: Fake) -> None:
    def telling(ended: Ended) -> Judged:
        seen = f"Authorization: Bearer abcdefghijklmnop in {Path.home()}/x"
        row = Row(asked="it", expected="", source="", seen=seen, status=Status.PASSED)
        return Judged([row])

    done = fake.execute(Part("one", "", (step("a", judge=telling),)))
    assert "abcdefghijklmnop" not in done[0].rows[0].seen
    assert str(Path.home()) not in done[0].rows[0].seen


def read_by(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], Sequence[Sample]]
) -> None:
    monkeypatch.setattr(running, "nvml_samples", lambda: contextlib.nullcontext(read))


def test_the_gpu_is_read_while_a_step_runs(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_by(monkeypatch, lambda: [Sample(0, 7.0, 2.0**30), Sample(1, None, None)])
    first, second = fake.execute(TWO)[0].gpu
    assert (first.step, first.gpu) == ("c", 0)
    assert first.utilisation_pct is not None
    assert first.utilisation_pct.most == 7.0
    assert second.memory_bytes is None, "what NVML does not tell is not zero"


def test_a_driver_that_fails_takes_nothing_with_it(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost() -> Sequence[Sample]:
        raise RuntimeError("GPU is lost")

    read_by(monkeypatch, lost)
    assert statuses(fake.execute(TWO)) == {"c": Status.PASSED}
