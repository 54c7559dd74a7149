"""Workflow commands: the worst first, ten at most, and never one that somebody else
wrote."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from github_runner import as_the_runner_reads_it, unescaped
from hostile import HOSTILE
from hypothesis import given, strategies as st
from made_nights import night as made_night, written
from mmrepro.failure.documents.ledger import Event, EventKind, NightState, Planned
from night_document import one_line
from night_documents import Script, document
from night_samples import (
    HEALTHY,
    REPRODUCED,
    attempt,
    cell,
    excused,
    history_of,
    night,
    one_night,
    realistic,
    runs_of,
)
from nightly import Annotation, annotations_of, escaped

NASTY = [
    *HOSTILE,
    "::set-output name=x::y",
    "\n::stop-commands::token\n",
    "\r::add-mask::a\r\n##[add-path]/tmp",
    "##[error]x ##[set-env name=PATH;]/tmp",
    "100% %0A::add-mask::secret %25 %3A%2C",
    "a,b=c:d::e",
]
PIECES = [
    "::",
    "##[",
    "%",
    "\n",
    "\r",
    "]",
    ",",
    ":",
    "=",
    "add-mask",
    " ",
    "error",
    "%0A",
    "\u2028",
    "\x85",
    "\x1b[",
]
TEXTS = st.one_of(
    st.sampled_from(NASTY),
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.text(),
)


@pytest.mark.parametrize("text", NASTY)
def test_each_of_these_is_words(text: str) -> None:
    test_the_runner_reads_what_was_meant.hypothesis.inner_test(text, text, "error")
    test_nothing_in_a_ledger_becomes_a_command.hypothesis.inner_test(text)


@given(title=TEXTS, text=TEXTS, level=st.sampled_from(["error", "warning", "notice"]))
def test_the_runner_reads_what_was_meant(title: str, text: str, level: str) -> None:
    line = Annotation(level, title, text).line
    assert len(line.splitlines()) == 1
    read = as_the_runner_reads_it(line)
    assert read is not None
    assert read.name == level
    assert read.properties.keys() == {"title"}
    assert read.properties["title"] == one_line(title, 120).replace("##[", "## [")
    assert read.data == one_line(text, 1000).replace("##[", "## [")
    assert as_the_runner_reads_it(f"2026-11-22T03:00:00Z {line}") is None, (
        "shown in another log"
    )


@given(text=TEXTS)
def test_what_is_escaped_is_read_back(text: str) -> None:
    for more in ("", ":,"):
        assert unescaped(escaped(text, more), more) == text
        assert not set(escaped(text, more)) & set(f"\r\n{more}")


@given(text=TEXTS)
def test_nothing_in_a_ledger_becomes_a_command(text: str) -> None:
    """Whatever field an engine's or a person's words stand in."""
    of = cell("0.23.0", scenario=text or "x", variant=text)
    run = attempt(of, "n", 1, REPRODUCED, expected=HEALTHY)
    lost = attempt(cell("0.24.0"), "n", 1, None)
    run.explanation = run.command = lost.error = text
    history = one_night(
        (of, HEALTHY, [run]), (cell("0.24.0"), HEALTHY, [lost]), title=text
    )
    history.take(
        Event(night="n", what=EventKind.DRIFT, identity="x", cell=of.id, text=text)
    )
    lines = [one.line for one in annotations_of(document(history))]
    assert len(lines) == 2
    for line in lines:
        read = as_the_runner_reads_it(line)
        assert read is not None
        assert read.name in ("error", "warning")


def test_the_worst_first_and_the_last_says_how_many_more() -> None:
    night_shown = document(realistic())
    everything = annotations_of(night_shown, 50)
    assert len(everything) > 5
    levels = [one.level for one in everything]
    assert levels == sorted(levels, key=["error", "warning", "notice"].index)
    assert everything[0].title == "bug returned"
    five = annotations_of(night_shown, 5)
    assert five[:4] == everything[:4]
    left = Counter(one.level for one in everything[4:])
    told = ", ".join(f"{n} {level}{'s' * (n > 1)}" for level, n in left.items())
    more = (
        f"{len(everything) - 4} more were not shown ({told}): see this run's summary."
    )
    assert (five[4].text, five[4].level) == (more, everything[4].level)
    assert len(annotations_of(night_shown, 1)) == 1
    exact = annotations_of(night_shown, len(everything))
    assert exact == everything, "none is spent on saying that there are no more"


def test_each_cell_is_told_once() -> None:
    of = cell()
    history = one_night((of, HEALTHY, runs_of(of, HEALTHY, REPRODUCED)))
    assert [a.title for a in annotations_of(document(history))] == ["not as expected"]
    history.take(
        Event(
            night="n", what=EventKind.DRIFT, identity="x", cell=of.id, text="It drifts."
        )
    )
    (told,) = annotations_of(document(history))
    assert told.title == "drift"
    assert (
        told.text
        == "It drifts. Repeat it: mmrepro run ghost-key-eviction --release 0.23.0"
    )


@pytest.mark.parametrize(
    ("outcomes", "level"),
    [
        ([REPRODUCED], "error"),
        ([REPRODUCED, HEALTHY], "error"),
        ([None], "warning"),
        ([], "warning"),
        ([HEALTHY], None),
    ],
)
def test_how_bad_a_cell_is(outcomes: list[None], level: str | None) -> None:
    of = cell()
    runs = runs_of(of, HEALTHY, *outcomes)
    for run in runs:
        run.key = "one"
    made = one_night((of, HEALTHY, runs))
    made.nights[0].events.append(
        Event(night="n", what=EventKind.NEW_RELEASE, identity="r", text="new")
    )
    found = annotations_of(document(made))
    assert [a.level for a in found] == [level, "notice"] if level else ["notice"]


def test_in_quarantine_it_is_a_notice_and_an_expired_entry_a_warning() -> None:
    of = cell()
    history = one_night((of, HEALTHY, runs_of(of, HEALTHY, REPRODUCED)))
    history.take(
        Event(
            night="n", what=EventKind.DRIFT, identity="x", cell=of.id, text="It drifts."
        )
    )
    known = document(history, excused(("ghost-key-eviction", "0.23.0")))
    (told,) = annotations_of(known)
    assert (told.level, told.title) == ("notice", "in quarantine")
    unused = document(
        history, excused(("ghost-key-eviction", "0.23.0"), ("other", "1"))
    )
    assert [a.level for a in annotations_of(unused)] == ["warning", "notice"]


def test_a_night_that_did_not_end_says_so() -> None:
    history = history_of(
        [night("n", state=NightState.OUT_OF_TIME), Planned(night="n", cell=cell())]
    )
    told = annotations_of(document(history))
    assert told[0].text == "This nightly run is out of time; 1 of 1 job did not run."
    assert told[0].level == "warning"


def test_the_command(tmp_path: Path, script: Script) -> None:
    runs = {cell(f"0.{n}.0", scenario="ghost"): "r" for n in range(12)}
    folder = written(tmp_path, made_night(1, runs, expected=HEALTHY), ago=1)
    code, text = script("annotate", folder)
    assert (code, len(text.splitlines())) == (0, 10)
    assert all(line.startswith("::error title=") for line in text.splitlines())
    assert "3 more were not shown (3 errors)" in text.splitlines()[-1]
    assert script("annotate", folder, "--night", "n7")[0] == 2


def test_a_note(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert script("note", "error", "A machine", "is gone\n") == (
        0,
        "A machine: is gone\n\n",
    )
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    line = script("note", "error", "A machine", "is gone: 5 %\nof it")[1]
    assert line == "::error title=A machine::is gone: 5 %25 of it\n"
