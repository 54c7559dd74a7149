"""The dead man's switch: what counts as a nightly run that is missing, and what is
printed."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import nightly
import pytest
from made_nights import BEGAN, cell, night, written
from mmrepro.failure.documents.ledger import NightState
from mmrepro.history import events
from mmrepro.history.ledger import History
from night_document import LATE, watch
from night_documents import Script, document

ONE = {cell(): "r"}


def after(hours: float, *nights: object, **more: object) -> str:
    """Why the next one is overdue then."""
    made = document(History(nights))  # type: ignore[arg-type]
    return watch(made, BEGAN + timedelta(hours=hours), **more).text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hours", "state", "says"),
    [
        (1, NightState.COMPLETE, ""),
        (36, NightState.COMPLETE, ""),
        (
            37,
            NightState.COMPLETE,
            "37 h after n1 began no other night had, and one is due every",
        ),
        (24, NightState.RUNNING, ""),
        (
            25,
            NightState.RUNNING,
            "n1 began 25 h ago and has not ended; one is due every 24 h.",
        ),
        (25, NightState.INTERRUPTED, ""),
        (25, NightState.OUT_OF_TIME, ""),
        (-0.9, NightState.COMPLETE, ""),
        (
            -1.1,
            NightState.COMPLETE,
            "n1 began at 2026-11-01 03:00 UTC, which is still to come",
        ),
    ],
)
def test_when_a_run_is_overdue(hours: float, state: NightState, says: str) -> None:
    made = document(History([night(1, ONE, hours=0, state=state)]))
    found = watch(made, BEGAN + timedelta(hours=hours))
    assert bool(found.text) == bool(says)
    assert found.text.startswith(says)
    assert (found.night, found.after(1)) == ("n1", BEGAN + timedelta(hours=24))
    assert found.after(LATE) == BEGAN + timedelta(hours=36)


def test_it_is_late_when_the_ledger_s_events_have_it_so() -> None:
    assert LATE == events.LATE


def test_a_night_without_a_run_is_no_sign_of_life() -> None:
    empty = night(2, {cell(): ""}, hours=30)
    assert after(37, night(1, ONE, hours=0), empty).startswith("37 h after n1 began")
    assert after(31, empty) == after(0) == "No night of this ledger ran anything."


def test_how_often_may_be_given_instead() -> None:
    silent = night(1, ONE, hours=0, every_h=None)
    assert after(900, silent) == ""
    assert after(900, silent, every_h=24).startswith("900 h after n1")
    assert after(40, night(1, ONE, hours=0), every_h=168) == ""


def test_a_night_that_nobody_delivered_is_missing_at_once() -> None:
    one = night(1, ONE, hours=0)
    assert after(25, one) == ""
    assert after(25, one, absent=True) == (
        "A night was to follow n1, and no machine delivered anything."
    )


@pytest.mark.parametrize(
    ("ago", "every_h", "options", "code", "says"),
    [
        (1, 24, [], 0, "and is complete; the next night is due at "),
        (
            40,
            24,
            [],
            1,
            "40 h after n1 began no other night had, and one is due every 24 h.",
        ),
        (40, 24, ["--every", "7d"], 0, "the next night is due at"),
        (40, None, [], 2, "says when the next one is due: --every 24h"),
    ],
)
def test_exit_codes(
    tmp_path: Path,
    script: Script,
    ago: float,
    every_h: float | None,
    options: list[str],
    code: int,
    says: str,
) -> None:
    folder = written(tmp_path, night(1, ONE, every_h=every_h), ago=ago)
    exit_code, text = script("overdue", folder, *options)
    assert (exit_code, text.count("\n")) == (code, 1)
    assert says in text
    if code == 1:
        made = json.loads(script("overdue", folder, *options, "--json")[1])
        assert (made["overdue"], made["identity"]) == (True, "night-missing:n1")
        assert (made["state"], says in made["text"]) == ("complete", True)


def test_without_a_night_or_a_ledger(tmp_path: Path, script: Script) -> None:
    code, text = script("overdue", tmp_path)
    assert (code, "holds no ledger.jsonl" in text) == (2, True)
    (tmp_path / "ledger.jsonl").write_text('{"kind": "nig')
    code, text = script("overdue", tmp_path)
    assert (code, text) == (1, "No night of this ledger ran anything.\n")
    assert script("annotate", tmp_path)[0] == 2


@pytest.mark.parametrize("text", ["", "[]", '{"nights": []}'])
def test_what_is_no_such_document(tmp_path: Path, script: Script, text: str) -> None:
    made = tmp_path / "night.json"
    made.write_text(text)
    code, printed = script("overdue", made)
    assert (code, "lacks cells, concerns, events, n" in printed) == (2, True)
    code, printed = script("issues", made, "--quarantine", "q.toml")
    assert (code, "--quarantine is for a ledger" in printed) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        *(
            ("overdue", f"--every={text}")
            for text in ("0x", "1 h", "h", "0h", "9" * 400)
        ),
        *(
            ("surprises", "--out=x", f"--max-bytes={text}")
            for text in ("no", "0", "9" * 400)
        ),
        ("annotate", "--max=0"),
        ("issues", "--max-new=-1"),
    ],
)
def test_a_quantity_that_is_none(script: Script, words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        script(*words)


def test_quantities() -> None:
    assert [nightly.hours(text) for text in ("24h", "7d", "1h30m", "3600")] == [
        24,
        168,
        1.5,
        1,
    ]
    assert [nightly.size(text) for text in ("200M", "1GiB", "5")] == [
        200 << 20,
        1 << 30,
        5,
    ]
