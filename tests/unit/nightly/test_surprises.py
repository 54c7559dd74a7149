"""Bundles of a night: only what is odd, bounded, and what is left out is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hostile import HOSTILE
from markdown_it import MarkdownIt
from mmrepro.failure.documents.ledger import Attempt, Cell, Event, EventKind, Planned
from mmrepro.failure.signature import Outcome
from mmrepro.history.concerns import Quarantine
from mmrepro.reports import load
from night_documents import NOBODY, Json, Script, document
from night_samples import HEALTHY, REPRODUCED, cell, excused, night, runs_of
from nightly import index_of
from sample import partial_incident, sample_incident

from mmrepro.history.ledger import History  # isort: skip

ODD, FLAKY, LOST, FINE, DRIFTED = (cell(f"0.{n}.0") for n in range(5))
QUARANTINE = excused(
    *(("ghost-key-eviction", c.release) for c in (ODD, FLAKY, LOST, DRIFTED))
)


def made(folder: Path, *cells: tuple[Cell, Outcome | None, list[Attempt]]) -> History:
    """A ledger's folder with these incidents; the runs of a cell have one key."""
    history = History()
    history.take(night("n"))
    for of, expected, runs in cells:
        history.take(Planned(night="n", cell=of, expected=expected))
        for run in runs:
            path = f"incidents/n/{of.id}/run-{run.index}"
            (folder / path).mkdir(parents=True)
            incident = sample_incident() if run.outcome else partial_incident("failed")
            (folder / path / "incident.json").write_text(
                incident.model_dump_json(indent=1)
            )
            history.take(run.model_copy(update={"incident": path, "key": of.id}))
    return history


@pytest.fixture
def ledger(tmp_path: Path) -> tuple[Path, History]:
    folder = tmp_path / "nights"
    cells = [
        (FINE, HEALTHY, runs_of(FINE, HEALTHY, HEALTHY)),
        (LOST, HEALTHY, runs_of(LOST, HEALTHY, None)),
        (FLAKY, HEALTHY, runs_of(FLAKY, HEALTHY, HEALTHY, REPRODUCED, HEALTHY)),
        (ODD, HEALTHY, runs_of(ODD, HEALTHY, REPRODUCED, REPRODUCED)),
        (DRIFTED, HEALTHY, runs_of(DRIFTED, HEALTHY, HEALTHY)),
    ]
    history = made(folder, *cells)
    history.take(
        Event(
            night="n",
            what=EventKind.DRIFT,
            identity="d",
            cell=DRIFTED.id,
            text="It drifts.",
        )
    )
    return folder, history


class Bundles:
    """``nightly.py surprises`` for a ledger that is nowhere but in memory, with its
    incidents."""

    def __init__(self, folder: Path, history: History, script: Script) -> None:
        self.folder, self.out, self._script = folder, folder.parent / "out", script
        self.history = history

    def __call__(self, *words: str, excused: Quarantine = NOBODY) -> list[Json]:
        made = self.folder / "night.json"
        made.write_text(json.dumps(document(self.history, excused)))
        code, text = self._script(
            "surprises", made, "--out", self.out, "--json", *words
        )
        assert code == 0, text
        found: list[Json] = json.loads(text)["runs"]
        return found


@pytest.fixture
def bundles(ledger: tuple[Path, History], script: Script) -> Bundles:
    return Bundles(*ledger, script)


def test_only_what_is_odd_the_most_telling_first_and_bounded(bundles: Bundles) -> None:
    whole = bundles()
    names = [one["file"] for one in whole]
    assert names == [
        f"{ODD.id}-run-2.zip",
        f"{DRIFTED.id}-run-1.zip",
        f"{FLAKY.id}-run-2.zip",
        f"{FLAKY.id}-run-3.zip",
        f"{LOST.id}-run-1.zip",
    ]
    assert {p.name for p in bundles.out.iterdir()} == {"index.md", *names}
    for one in whole:
        assert load(bundles.out / one["file"]).scenario.name
        assert one["bytes"] == (bundles.out / one["file"]).stat().st_size
    index = (bundles.out / "index.md").read_text()
    assert "5 bundles, 0 left out" in index
    assert all(name in index for name in names)
    for path in bundles.out.iterdir():
        path.unlink()

    bound = whole[0]["bytes"] + whole[1]["bytes"] + 100
    bounded = bundles("--max-bytes", str(bound))
    left_out = [one["left_out"] for one in bounded if not one["file"]]
    assert sum(p.stat().st_size for p in bundles.out.glob("*.zip")) <= bound
    assert [one["file"] for one in bounded][: 5 - len(left_out)] == names[
        : 5 - len(left_out)
    ]
    assert left_out[-1].endswith("KiB were left")
    index = (bundles.out / "index.md").read_text()
    assert f"{len(left_out)} left out" in index
    assert f"left out: {left_out[-1]}" in index


def test_quarantine_and_a_night_as_expected_write_nothing(
    tmp_path: Path, bundles: Bundles, script: Script
) -> None:
    assert bundles(excused=QUARANTINE) == []
    fine = made(tmp_path / "fine", (FINE, HEALTHY, runs_of(FINE, HEALTHY, HEALTHY)))
    assert Bundles(bundles.folder, fine, script)() == []
    text = script("surprises", bundles.folder / "night.json", "--out", bundles.out)[1]
    assert text == "Night n has nothing to bundle.\n"
    assert not bundles.out.exists()


def test_what_is_not_there_is_named(tmp_path: Path, bundles: Bundles) -> None:
    folder = bundles.folder
    (folder / f"incidents/n/{ODD.id}/run-2/incident.json").unlink()
    elsewhere = tmp_path / "elsewhere"
    (folder / f"incidents/n/{FLAKY.id}/run-2").rename(elsewhere)
    (folder / f"incidents/n/{FLAKY.id}/run-2").symlink_to(elsewhere)
    (lost,) = bundles.history.nights[0].attempts_of(LOST.id)
    lost.incident = ""
    done = bundles()
    assert sum(bool(one["file"]) for one in done) == 2
    why = [one["left_out"] for one in done if not one["file"]]
    assert "holds no incident.json" in why[0]
    assert why[1:] == [
        "its incident lies outside of the ledger's folder",
        "the run left no incident",
    ]


@pytest.mark.parametrize("text", [*HOSTILE, "a | b", "`x` <b> ##[error]"])
def test_nothing_in_the_index_is_more_than_words(tmp_path: Path, text: str) -> None:
    of = cell("0.24.0", scenario=text or "x", variant=text)
    read = text.encode("utf-8", "replace").decode()
    history = made(tmp_path, (of, HEALTHY, []))
    (square,) = document(history)["cells"]
    row = {"run": None, "file": "", "bytes": 0, "left_out": read}
    index = index_of("n", [(square, row)])
    tokens = MarkdownIt("commonmark").enable("table").parse(index)
    assert sum(token.type == "tr_open" for token in tokens) == 2
    inline = [child.type for token in tokens for child in token.children or []]
    assert set(inline) <= {"text", "text_special", "code_inline", "softbreak"}
