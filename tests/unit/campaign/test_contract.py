"""What every kind of campaign keeps, whatever ends it: nothing twice, nothing lost."""

import errno
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mmrepro
import pytest
from kinds import KINDS, Opened
from mmrepro.base.errors import MmreproError, NoSpace
from mmrepro.base.machine.journal import LineFile
from mmrepro.base.records import Record
from mmrepro.campaign.campaign import Campaign
from mmrepro.runs import key
from worlds import closure_once

JOURNALS = Path(__file__).parent / "journals"
MADE = "made.txt"
"""Beside a campaign's folder: a line for each run that a place began to make."""
MOVES = {
    "created",
    "finished",
    "id",
    "at",
    "command",
    "resume",
    "seconds",
    "host",
    "client",
    "elapsed_s",
    "kept_s",
    "pursuing_s",
    "after_s",
    "reused",
}
"""Fields of a document that are of one call, not of what was found."""


ONE_MORE = {
    "runs",
    "points",
    "plays",
    "starts",
    "steps",
    "needed",
    "episodes",
    "features",
    "counted",
}
"""Fields that say how many runs it took, or what the further ones showed."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(key, "closure", closure_once)


def opened(kind: str, folder: Path, jobs: int = 1) -> Opened:
    def say(run: str) -> None:
        with (folder.parent / MADE).open("a") as file:
            file.write(run + "\n")

    return KINDS[kind](folder, say, jobs)


def execute(kind: str, folder: Path, jobs: int = 1) -> Any:
    """The document of a campaign that is begun, or gone on with."""
    campaign = opened(kind, folder, jobs)
    try:
        return found(Campaign(campaign.policy, campaign.places).execute())
    finally:
        campaign.close()


def found(document: Record) -> Any:
    """What it says, but for when and by which call."""

    def still(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: still(v) for k, v in value.items() if k not in MOVES}
        return [still(item) for item in value] if isinstance(value, list) else value

    return still(json.loads(document.model_dump_json()))


def made(folder: Path) -> list[str]:
    file = folder.parent / MADE
    return file.read_text().splitlines() if file.exists() else []


class Whole(NamedTuple):
    """A campaign that nothing disturbs: lines of its journal, its document, its
    runs."""

    lines: int
    document: Any
    made: Counter[str]


WHOLES: dict[str, Whole] = {}


@pytest.fixture
def whole(kind: str, tmp_path: Path) -> Whole:
    if kind not in WHOLES:
        folder, lines, append = tmp_path / "whole" / "c", 0, LineFile.append

        def counting(self: LineFile, line: bytes) -> None:
            nonlocal lines
            lines += 1
            append(self, line)

        folder.parent.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LineFile, "append", counting)
            document = execute(kind, folder)
        WHOLES[kind] = Whole(lines, document, Counter(made(folder)))
    return WHOLES[kind]


def in_a_child(work: Callable[[], object]) -> int:
    """Do it in a process of its own; how that ended, as :func:`os.waitpid` has it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def killed_at(kind: str, folder: Path, line: int, how: str) -> int:
    """A campaign whose process is killed at that line of its journal: before, in or
    after it."""

    def work() -> None:
        append, left = LineFile.append, line

        def dying(self: LineFile, text: bytes) -> None:
            nonlocal left
            if left == 0:
                if how == "torn":
                    append(self, text[: len(text) // 2])
                if how == "after":
                    append(self, text)
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            append(self, text)

        LineFile.append = dying  # type: ignore[method-assign]
        execute(kind, folder)

    return in_a_child(work)


HOWS = ("before", "torn", "after")
WHOLE = "matrix"
"""The kind that is killed at every line for each change: what all of them keep is kept
alike."""


@pytest.mark.parametrize(
    "hows",
    [(), *(pytest.param((how,), id=how, marks=pytest.mark.nightly) for how in HOWS)],
)
def test_killed_at_any_line_it_goes_on(
    kind: str, whole: Whole, hows: tuple[str, ...], tmp_path: Path
) -> None:
    """In turn before, in and after some of the lines; each way at each line every
    night."""
    lines, document, runs = whole.lines, whole.document, whole.made
    assert lines > 5
    step = 1 if hows or kind == WHOLE else max(1, lines // 6)
    for number, line in enumerate(range(lines - 1, -1, -step)):
        how = (hows or HOWS)[number % len(hows or HOWS)]
        folder = tmp_path / f"{line}" / "c"
        folder.parent.mkdir()
        assert killed_at(kind, folder, line, how) == signal.SIGKILL
        assert execute(kind, folder) == document, f"killed {how} line {line}"
        again = Counter(made(folder)) - runs
        # Only the run whose line was not on disk yet is made again.
        assert again.total() <= (how != "after"), f"killed {how} line {line}: {again}"
        assert not runs - Counter(made(folder))
        if not hows and number % 3:
            continue
        before = made(folder)
        assert execute(kind, folder) == document
        assert made(folder) == before, "what is complete is not run again"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_has_ended(
    kind: str, whole: Whole, number: signal.Signals, tmp_path: Path
) -> None:
    folder = tmp_path / "cut" / "c"
    folder.parent.mkdir()

    def work() -> None:
        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        signal.signal(number, interrupt)
        append, runs = LineFile.append, 0

        def pressing(self: LineFile, text: bytes) -> None:
            nonlocal runs
            append(self, text)
            runs += 1
            if runs == 5:
                os.kill(os.getpid(), number)

        LineFile.append = pressing  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            execute(kind, folder)

    assert in_a_child(work) == 0
    kept = made(folder)
    assert execute(kind, folder) == whole.document
    assert Counter(made(folder)[len(kept) :]).keys().isdisjoint(kept[:-1])


def test_a_full_disk_is_one_error_and_costs_nothing_that_ended(
    kind: str, whole: Whole, tmp_path: Path
) -> None:
    folder = tmp_path / "full" / "c"
    folder.parent.mkdir()
    append, left = LineFile.append, whole.lines // 2
    before = set(threading.enumerate())

    def full(self: LineFile, line: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise NoSpace(f"The disk that holds {self.path} is full.") from OSError(
                errno.ENOSPC
            )
        append(self, line)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LineFile, "append", full)
        with pytest.raises(NoSpace):
            execute(kind, folder)
    assert not set(threading.enumerate()) - before, "a thread of the campaign goes on"
    assert execute(kind, folder) == whole.document


@pytest.mark.parametrize("left", ["whole", "torn"])
def test_a_journal_of_an_earlier_day_goes_on(
    kind: str, whole: Whole, left: str, tmp_path: Path
) -> None:
    """What each kind wrote to its folder on 2026-11-29 is read, and gone on with."""
    folder = tmp_path / "old" / "c"
    folder.parent.mkdir()
    execute(kind, folder)  # the files beside the journal
    old = (JOURNALS / f"{kind}.jsonl").read_text()
    lines = old.replace("VERSION", mmrepro.__version__).splitlines(keepends=True)
    if left == "torn":
        half = len(lines) // 2
        lines = [*lines[:half], lines[half][:-9]]
    journal = next(folder.glob("*.jsonl"))
    journal.write_text("".join(lines))
    before = len(made(folder))

    document = execute(kind, folder)
    if kind == "ablate":
        # The key of its runs has the code of that day: they are made again.
        assert document["conclusion"] == whole.document["conclusion"]
        return
    assert document == whole.document
    again = len(made(folder)) - before
    assert again == 0 if left == "whole" else again < whole.made.total()


def test_a_second_process_on_the_folder_is_refused(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "both" / "c"
    folder.parent.mkdir()
    ready, go_on = threading.Event(), threading.Event()
    append = LineFile.append

    def waiting(self: LineFile, line: bytes) -> None:
        append(self, line)
        if not ready.is_set():
            ready.set()
            assert go_on.wait(20)

    def other() -> None:
        try:
            execute(kind, folder)
        except MmreproError as error:
            os._exit(7 if "nother mmrepro" in error.message else 8)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LineFile, "append", waiting)
        result: list[Any] = []
        first = threading.Thread(target=lambda: result.append(execute(kind, folder)))
        first.start()
        try:
            assert ready.wait(20)
            assert os.waitstatus_to_exitcode(in_a_child(other)) == 7
        finally:
            go_on.set()
            first.join()
    assert result


def test_two_places_reach_the_same_conclusion(
    kind: str, whole: Whole, tmp_path: Path
) -> None:
    folder = tmp_path / "two" / "c"
    folder.parent.mkdir()
    assert concluded(whole.document) == concluded(execute(kind, folder, 2))


def concluded(document: Any) -> Any:
    """Without how many runs it took: places beside each other may make one more."""
    return json.loads(
        json.dumps(document, sort_keys=True),
        object_hook=lambda d: {k: v for k, v in d.items() if k not in ONE_MORE},
    )
