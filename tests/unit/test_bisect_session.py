"""A bisection's session, files and reports, with made-up runs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from matrix_nights import FakeProvisions
from mmrepro.base.errors import UnwritableOutput, UsageError
from mmrepro.base.records import Moment
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.bisect.plan import Field, field_of, plan, read_commits
from mmrepro.campaign.bisect.session import Bisecting
from mmrepro.campaign.bisect.sides import verdict_of
from mmrepro.campaign.campaign import Campaign
from mmrepro.campaign.work import LocalPlaces
from mmrepro.cli.bisect import exit_code
from mmrepro.failure.documents.ledger import Attempt, Cell, Lost, NightState, Role
from mmrepro.failure.documents.searches import (
    BISECTION_FILE,
    Bisection,
    Point,
    PointVerdict,
    SideConclusion,
)
from mmrepro.failure.signature import Outcome
from mmrepro.history.ledger import read
from mmrepro.reports.bisection import KIND
from mmrepro.reports.blocks import Table, words as text_of
from mmrepro.reports.documents import keep
from mmrepro.scenario.registry import load_scenario

GHOST = load_scenario("ghost-key-eviction")
RELEASES = (
    "0.11.0",
    "0.12.0",
    "0.13.0",
    "0.14.0",
    "0.18.0",
    "0.22.0",
    "0.23.0",
    "0.24.0",
    "0.32.0",
)
OPTIONS = BisectCommand(device="cpu", scenario="ghost-key-eviction")

Run = Callable[[str, int], Outcome | Lost]


def truth(release: str, _: int = 1) -> Outcome | Lost:
    """As it is for ghost-key-eviction."""
    if release in ("0.11.0", "0.12.0", "0.13.0"):
        return Outcome.DIFFERENT_FAILURE
    return (
        Outcome.NOT_REPRODUCED
        if release in ("0.24.0", "0.32.0")
        else Outcome.REPRODUCED
    )


class Made:
    """Makes runs up, and remembers them."""

    def __init__(self, truth: Run = truth, stop_after: int = 0) -> None:
        self.truth, self.stop_after = truth, stop_after
        self.made: list[tuple[str, int, Role]] = []

    def run(
        self,
        cell: Cell,
        folder: Path,
        root: Path,
        *,
        night: str,
        index: int,
        role: Role,
    ) -> Attempt:
        if self.stop_after and len(self.made) == self.stop_after:
            folder.mkdir(parents=True)
            (folder / "half").touch()
            raise KeyboardInterrupt
        assert not folder.exists()
        self.made.append((cell.release or cell.commit, index, role))
        seen = self.truth(cell.release or cell.commit, index)
        lost = seen if isinstance(seen, Lost) else None
        return Attempt(
            night="bisect",
            cell=cell.id,
            index=index,
            role=role,
            created=Moment.now(),
            seconds=2.5,
            outcome=None if isinstance(seen, Lost) else seen,
            lost=lost,
            explanation=f"saw {seen}",
            error="it broke" if lost else "",
            command=f"mmrepro run ghost-key-eviction --release {cell.release}",
        )

    def stop(self) -> None:
        pass


def listed(releases: Sequence[str] = RELEASES) -> list[Point]:
    return [
        Point(
            name=r,
            release=r,
            declared=GHOST.affects(r),
            uploaded="2026-01-02T00:00:00+00:00",
        )
        for r in releases
    ]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))


class Session:
    """A bisection of made-up runs, with what is asked of one in these tests."""

    def __init__(
        self,
        tmp_path: Path,
        made: Made,
        *,
        releases: Sequence[str] = RELEASES,
        jobs: int = 1,
        **options: object,
    ) -> None:
        chosen = replace(OPTIONS, out=tmp_path / "b", **options)  # type: ignore[arg-type]
        field = field_of(GHOST, chosen, listed(releases))
        self.policy = Bisecting(GHOST, chosen, field, write=partial(keep, KIND))
        self.places = LocalPlaces(made, FakeProvisions(), jobs)
        self.resume_command = self.policy.resume_command

    def execute(self) -> Bisection:
        return Campaign(self.policy, self.places).execute()


session = Session


def shown(bisection: Bisection) -> dict[str, str]:
    """The verdict of each point that its page has next to a boundary."""
    (table,) = [
        block for block in KIND.compose(bisection).card if isinstance(block, Table)
    ]
    return {text_of(row.cells[0]): text_of(row.cells[1]) for row in table.rows}


def test_both_sides_are_found(tmp_path: Path) -> None:
    made = Made()
    bisection = session(tmp_path, made).execute()
    document = json.loads((tmp_path / "b" / BISECTION_FILE).read_text())
    introduced, fixed = document["introduced"], document["fixed"]
    assert introduced["first_bad"] == "0.14.0"
    assert introduced["between"] == ["0.13.0", "0.14.0"]
    assert introduced["before"] == "different-failure"
    assert introduced["verified"] is True
    assert introduced["explanation"] == (
        "0.14.0 is the first bad release; before 0.14.0 the same trigger ends in "
        "another failure: saw different-failure"
    )
    assert fixed["first_good"] == "0.24.0"
    assert fixed["between"] == ["0.23.0", "0.24.0"]
    assert fixed["verified"] is True
    assert introduced["runs"] <= 8
    assert fixed["runs"] <= 8
    assert introduced["runs"] + fixed["runs"] == len(made.made)
    assert exit_code(bisection) == 0
    assert KIND.load(tmp_path / "b") == bisection
    night = read(tmp_path / "b").night("bisect")
    assert night.night.state is NightState.COMPLETE
    assert len(night.attempts) == len(made.made)


def test_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    first = Made(stop_after=4)
    running = session(tmp_path, first)
    with pytest.raises(KeyboardInterrupt):
        running.execute()
    stopped = KIND.load(tmp_path / "b")
    assert stopped.state == "interrupted"
    assert stopped.runs == 4
    assert f"to resume, run: {running.resume_command}" in stopped.failure
    assert "--resume" in running.resume_command
    with pytest.raises(UnwritableOutput, match="already holds a bisection"):
        session(tmp_path, Made())
    second = Made()
    whole = session(tmp_path, second, resume=True).execute()
    assert not {run[:2] for run in first.made} & {run[:2] for run in second.made}
    undisturbed = Made()
    same = session(tmp_path / "other", undisturbed).execute()
    assert [run[:2] for run in (*first.made, *second.made)] == [
        r[:2] for r in undisturbed.made
    ]
    assert whole.introduced == same.introduced
    third = Made()
    session(tmp_path, third, resume=True).execute()
    assert third.made == []


def test_infrastructure_is_tried_twice_and_an_unloadable_wheel_once(
    tmp_path: Path,
) -> None:
    def run(release: str, index: int) -> Outcome | Lost:
        if release == "0.24.0":
            return Lost.UNLOADABLE
        if release == "0.32.0" and index == 1:
            return Lost.INFRASTRUCTURE
        return truth(release)

    made = Made(run)
    bisection = session(tmp_path, made, find="fixed").execute()
    assert [r for r in made.made if r[0] == "0.24.0"] == [("0.24.0", 1, "planned")]
    assert ("0.32.0", 2, "retry") in made.made
    assert bisection.fixed is not None
    assert bisection.fixed.conclusion is SideConclusion.RANGE
    assert bisection.fixed.first_good is None
    assert bisection.fixed.one_of == ["0.24.0", "0.32.0"]
    assert not bisection.fixed.verified
    assert "cannot be tested" in bisection.fixed.explanation
    assert exit_code(bisection) == 3
    point = bisection.point("0.24.0")
    assert point is not None
    assert point.why == "it cannot be loaded here: it broke"


def test_inconclusive_is_untestable(tmp_path: Path) -> None:
    made = Made(lambda r, _: Outcome.INCONCLUSIVE if r == "0.24.0" else truth(r))
    bisection = session(tmp_path, made, find="fixed").execute()
    assert bisection.fixed is not None
    assert bisection.fixed.one_of == ["0.24.0", "0.32.0"]


def test_nothing_but_lost_runs_is_infrastructure(tmp_path: Path) -> None:
    bisection = session(tmp_path, Made(lambda r, n: Lost.INFRASTRUCTURE)).execute()
    assert bisection.fixed is not None
    assert bisection.fixed.conclusion is SideConclusion.NO_FAILURE
    assert exit_code(bisection) == 4


def test_a_failure_in_the_newest_is_no_fix(tmp_path: Path) -> None:
    made = Made(lambda r, n: Outcome.REPRODUCED)
    bisection = session(tmp_path, made, find="fixed").execute()
    assert bisection.fixed is not None
    assert bisection.fixed.conclusion is SideConclusion.NO_BOUNDARY
    assert bisection.fixed.first_good is None
    assert (
        "the failure is in 0.32.0, the last on that side" in bisection.fixed.explanation
    )
    assert exit_code(bisection) == 1


def test_a_different_failure_beyond_is_no_fix(tmp_path: Path) -> None:
    def run(release: str, index: int) -> Outcome | Lost:
        seen = truth(release)
        return Outcome.DIFFERENT_FAILURE if seen is Outcome.NOT_REPRODUCED else seen

    bisection = session(tmp_path, Made(run), find="fixed").execute()
    assert bisection.fixed is not None
    assert bisection.fixed.first_good is None
    assert bisection.fixed.after == "different-failure"
    assert "this is no fix" in bisection.fixed.explanation


def test_bounds_are_checked_and_gone_beyond(tmp_path: Path) -> None:
    for good, find, words in (
        ("0.24.0", "introduced", "other side"),
        ("0.23.0", "fixed", "both good and bad"),
        ("0.99", "fixed", "not one of the 9 points"),
    ):
        with pytest.raises(UsageError, match=words):
            session(tmp_path, Made(), find=find, good=good, bad="0.23.0")
    for good, find, other in (
        ("0.24.0", "introduced", "fixed"),
        ("0.22.0", "fixed", "introduced"),
    ):
        with pytest.raises(UsageError, match="other side") as caught:
            session(tmp_path, Made(), find=find, good=good, bad="0.23.0")
        assert caught.value.hint == f"--find {other}"
    made = Made()
    found = session(tmp_path, made, find="fixed", bad="0.18.0", good="0.22.0").execute()
    assert found.fixed is not None
    assert found.fixed.first_good == "0.24.0"
    assert found.fixed.notes[0].startswith(
        "0.22.0 was given as good, and has the failure"
    )


@pytest.mark.parametrize(
    ("find", "good", "healthy"),
    [("introduced", RELEASES[3], RELEASES[0]), ("fixed", RELEASES[-4], RELEASES[-1])],
)
def test_beyond_a_wrong_bound_the_outermost_release_is_asked_too(
    tmp_path: Path, find: str, good: str, healthy: str
) -> None:
    def run(release: str, _: int) -> Outcome | Lost:
        good = release == healthy
        return Outcome.NOT_REPRODUCED if good else Outcome.REPRODUCED

    bad = RELEASES[5] if find == "introduced" else RELEASES[2]
    options = {"find": find, "bad": bad, "good": good}
    found = session(tmp_path, Made(run), **options).execute()
    side = found.introduced if find == "introduced" else found.fixed
    assert side is not None
    assert healthy in side.between


def test_a_command_line_that_is_refused_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it broke"):
        session(tmp_path, Made(lambda r, n: Lost.USAGE)).execute()
    assert KIND.load(tmp_path / "b").state == "failed"


def test_flaky_runs_give_a_posterior_in_every_format(tmp_path: Path) -> None:
    def run(release: str, index: int) -> Outcome | Lost:
        seen = truth(release)
        if seen is Outcome.REPRODUCED and index % 2:
            return Outcome.NOT_REPRODUCED
        return seen

    bisection = session(tmp_path, Made(run), find="fixed").execute()
    assert bisection.fixed is not None
    assert bisection.fixed.first_good == "0.24.0"
    assert bisection.fixed.posterior[0].last_bad == "0.23.0"
    assert bisection.fixed.posterior[0].probability >= 0.95
    assert {"0.23.0": "± both"}.items() <= shown(bisection).items()


def test_dry_run_tells_points_prior_and_runs() -> None:
    field: Field = field_of(GHOST, OPTIONS, listed())
    expected = plan(GHOST, OPTIONS, field)
    assert expected.known_bad == "0.23.0"
    introduced, fixed = expected.sides
    assert introduced.declared == ["0.13.0", "0.14.0"]
    assert fixed.declared == ["0.23.0", "0.24.0"]
    assert (introduced.far, fixed.far) == ("0.11.0", "0.32.0")
    assert introduced.least <= 6
    assert introduced.most <= 9
    assert set(fixed.missing) == {"0.23.0", "0.24.0", "0.32.0"}


LINES = """\
# newest first, as git prints them
cccccccccccc 2026-05-03T10:00:00+02:00 Fix the cache
bbbbbbbbbbbb 2026-05-02T10:00:00+02:00 2 more tests

aaaaaaaaaaaa 2026-05-01T10:00:00Z Begin
"""


def test_commits_are_read_in_either_order(tmp_path: Path) -> None:
    file = tmp_path / "commits.txt"
    for text in (LINES, "\n".join(reversed(LINES.splitlines()))):
        file.write_text(text)
        points = read_commits(file)
        assert [p.commit[0] for p in points] == ["a", "b", "c"]
        assert [p.subject for p in points] == ["Begin", "2 more tests", "Fix the cache"]
    file.write_text("ccccccc\nbbbbbbb Only a subject\n")
    points = read_commits(file)
    assert [(p.commit, p.uploaded, p.subject) for p in points] == [
        ("bbbbbbb", "", "Only a subject"),
        ("ccccccc", "", ""),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("aaaaaaa\nnot-a-commit x\n", "line 2: 'not-a-commit' is no commit"),
        ("aaaaaaa\n\naaaaaaa\n", "line 3: commit aaaaaaa stands on line 1 already"),
        ("aaaaaaa 2026-99-01 x\n", "line 1: '2026-99-01' is no date"),
        ("# nothing\n", "lists no commit"),
    ],
)
def test_bad_lists_name_the_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "commits.txt"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        read_commits(file)


def test_options_are_checked() -> None:
    for change, words in (
        ({"confidence": 1.0}, "no probability|not a probability"),
        ({"by": "commit"}, "needs the commits"),
        ({"commits": Path("x")}, "--by commit"),
        ({"resume": True}, "--resume needs the folder"),
    ):
        with pytest.raises(UsageError, match=words):
            replace(OPTIONS, **change)  # type: ignore[arg-type]


def test_document_reads_itself(tmp_path: Path) -> None:
    bisection = session(tmp_path, Made()).execute()
    assert Bisection.model_validate_json(bisection.model_dump_json()) == bisection


def test_what_it_fetched_is_dropped_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mmrepro.campaign.bisect import session as module

    on_disk, dropped = {"0.23.0", "0.32.0"}, []

    class There:
        def __init__(self, release: str) -> None:
            self.path = Path(release)

    def existing(spec: object) -> There | None:
        release = spec.release  # type: ignore[attr-defined]
        return There(release) if release in on_disk else None

    monkeypatch.setattr(module, "existing", existing)
    monkeypatch.setattr(
        module, "prune_environments", lambda names: dropped.extend(names)
    )

    def run(release: str, index: int) -> Outcome | Lost:
        on_disk.add(release)
        return truth(release)

    killed = Made(run, stop_after=3)
    first = session(tmp_path, killed, find="fixed")
    first.policy._tidy = lambda: None  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        first.execute()
    assert "0.24.0" in on_disk
    assert dropped == []
    session(tmp_path, Made(run), find="fixed", resume=True).execute()
    assert dropped == ["0.24.0"]


def test_the_last_of_equal_runs_explains_a_point() -> None:
    def run(index: int, outcome: Outcome, explanation: str) -> Attempt:
        return Attempt(
            night="bisect",
            cell="c",
            index=index,
            created=Moment.now(),
            seconds=2.5,
            outcome=outcome,
            explanation=explanation,
        )

    runs = [run(n, Outcome.REPRODUCED, f"it hung in run {n}") for n in (1, 2)]
    assert verdict_of(runs) == (PointVerdict.BAD, "it hung in run 2")
    # What is neither good nor bad has to be explained, whatever came after it.
    other = [
        run(1, Outcome.DIFFERENT_FAILURE, "it died"),
        run(2, Outcome.DIFFERENT_FAILURE, "it died again"),
    ]
    assert verdict_of(other) == (PointVerdict.OTHER, "it died")
