"""The reports of a replay and of its findings, their issue and their bundle."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hostile import HOSTILE
from mmrepro.case.files import write_case
from mmrepro.case.model import Case
from mmrepro.errors import BadIncident
from mmrepro.incident.replay import REPLAY_FILE, Finding, FindingClass, Rate, Replay
from mmrepro.reports import replay as reports, replay_view as view
from mmrepro.reports.replay_json import ToldReplay, replay_json, told
from mmrepro.reports.replay_sequence import drawing, kind_of, picture, sequence
from rich.console import Console
from strict_html import read_html

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))
from made_up_replay import finding, ghost_case, operation, replay, unconfirmed

RECORDED = Path(__file__).parents[2] / "evidence"


def written(folder: Path, *findings: Finding, case: Case | None = None) -> Replay:
    made = replay(*findings)
    for one in findings:
        write_case(case or ghost_case(), folder / one.folder)
    reports.write_replay(made, folder)
    return made


# ---------------------------------------------------------------------- the sequence


def test_lanes_stand_in_the_order_of_their_barriers() -> None:
    case = Case(
        server=ghost_case().server,
        operations=[
            operation("a", stream=True),
            operation("b", "a.first-token"),
            operation("c", "a.end"),
            operation("d"),
            operation("e", "running<=0"),
        ],
    )
    drawn = sequence(case, {"a": "200", "d": "no answer in 6 s"}, ["d"])
    spans = {lane.operation.id: (lane.sent, lane.end) for lane in drawn.lanes}
    assert spans == {"a": (0, 2), "b": (1, 4), "c": (2, 4), "d": (3, 6), "e": (4, 6)}
    assert [lane.fails for lane in drawn.lanes] == [False, False, False, True, False]
    assert drawn.lanes[0].marks == {0: "first-token"}
    text = drawing(drawn)
    rows = text.splitlines()
    assert rows[0].startswith("  a ●▸")
    assert rows[3].startswith("! d")
    assert "?" in rows[3]
    assert rows[1].index("●") > rows[0].index("●")
    ElementTree.fromstring(str(picture(drawn)))


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("200 4 tokens", "ok"),
        ("400 too long", "client"),
        ("500 boom", "server"),
        ("failed: connection reset", "server"),
        ("no answer in 6.0 s", "lost"),
        ("left after 2 tokens", "left"),
        ("not sent", "unsent"),
        ("", "unknown"),
    ],
)
def test_what_came_of_a_request_is_told_apart(said: str, kind: str) -> None:
    assert kind_of(said) == kind


def test_of_hundreds_those_that_fail_are_drawn() -> None:
    case = Case(
        server=ghost_case().server, operations=[operation(f"r{number}") for number in range(200)]
    )
    drawn = sequence(case, {"r150": "no answer in 9 s"}, ["r150"])
    assert len(drawn.lanes) == 60
    assert drawn.hidden == 140
    assert "r150" in {lane.operation.id for lane in drawn.lanes}
    assert all(len(row) <= 220 for row in drawing(drawn).splitlines())
    ElementTree.fromstring(str(picture(drawn)))


def test_an_image_that_comes_again_has_the_same_mark(tmp_path: Path) -> None:
    written(tmp_path, finding())
    html = (tmp_path / "f1" / "report.html").read_text()
    text = read_html(html)
    assert text.count("noise, seed 777, 42 × 28") == 1
    rows = (tmp_path / "f1" / "report.md").read_text()
    assert rows.count("[X]") == 2


# ---------------------------------------------------------------------- the reports


@pytest.mark.parametrize("kind", list(FindingClass))
def test_a_finding_of_every_class_has_its_reports(tmp_path: Path, kind: FindingClass) -> None:
    case = ghost_case()
    if kind is FindingClass.START_FAILURE:
        case = case.keeping([])
    written(tmp_path, finding(case, kind), case=case)
    for name in ("report.md", "report.html"):
        text = (tmp_path / "f1" / name).read_text()
        text = read_html(text) if name.endswith("html") else text
        assert view.CLASS_WORDS[kind] in text
        assert view.EXPECTED[kind] in text
        assert "3 of 3 plays (95%: 29% to 100%)" in text
        assert "vllm serve ./tiny-model --max-model-len 2048" in text
        assert "popitem" in text
        assert "Two plays left each request out" in text
        assert "metrics: the counter of prompts says 7" in text
    assert (tmp_path / "f1" / "reproduce.py").exists() is (kind is not FindingClass.START_FAILURE)
    assert "/made/up" not in (tmp_path / "f1" / "report.md").read_text()


def test_the_replay_names_its_findings_and_what_was_seen_besides(tmp_path: Path) -> None:
    known = finding(id="f2", folder="f2", known="ghost-key-eviction", known_why="all fit")
    made = written(tmp_path, finding(), known)
    made.unconfirmed.append(unconfirmed())
    reports.write_replay(made, tmp_path)
    for name in ("replay.md", "replay.html"):
        text = (tmp_path / name).read_text()
        text = read_html(text) if name.endswith("html") else text
        for word in (
            "Unknown failure", "ghost-key-eviction", "a counter is off by one", "near-tie",
            "whether memory grows", "203 entries", "1400", "as fast as the barriers allow",
            "mmrepro replay night.har",
        ):  # fmt: skip
            assert word in text, (name, word)
    assert 'href="f1/report.html"' in (tmp_path / "replay.html").read_text()
    assert reports.load_replay(tmp_path) == made
    console = Console(file=io.StringIO(), width=160)
    from mmrepro.reports.replay_terminal import print_replay

    print_replay(made, console, "replays/r")
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "UNKNOWN FAILURE" in said
    assert "replays/r/f1/reproduce.py" in said
    assert "seen once, not again: metrics" in said
    assert "also: metrics: the counter of prompts says 7" in said


@pytest.mark.parametrize(
    ("findings", "state", "label", "code"),
    [
        ([], "complete", "Nothing found", 0),
        ([{}], "complete", "Unknown failure", 1),
        ([{"known": "ghost-key-eviction"}], "complete", "Known", 0),
        ([{"known": "ghost-key-eviction"}, {}], "complete", "Unknown failure", 1),
        ([{"confirmed": False}], "complete", "Unproven", 3),
        ([{"confirmed": False, "known": "x"}], "complete", "Unproven", 3),
        ([{}], "interrupted", "Interrupted", 1),
        ([], "failed", "Failed", 4),
    ],
)
def test_the_headline_and_the_exit_code_agree(
    findings: list[dict[str, object]], state: str, label: str, code: int
) -> None:
    made = replay(*(finding(**more) for more in findings), state=state)
    assert view.headline(made).label == label
    assert told(made, Path("r")).exit_code == code


def test_a_rate_is_never_called_certain() -> None:
    for failed, plays in ((3, 3), (1, 2), (0, 0)):
        words = view.rate_words(Rate(failed=failed, plays=plays, low=0.3, high=1.0))
        assert "determin" not in words
        assert "always" not in words
    assert view.rate_words(Rate(failed=1, plays=1, low=0.025, high=1.0)) == (
        "1 of 1 play (95%: 2% to 100%)"
    )


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_ends_nothing(tmp_path: Path, text: str) -> None:
    text = text.encode("utf-8", "replace").decode()  # as the client has it
    case = ghost_case()
    hostile = finding(
        case, said=text, stack=[text], log_lines=[text], known_why=text, observed={"r1": text}
    )
    written(tmp_path, hostile, case=case)
    read_html((tmp_path / "f1" / "report.html").read_text())
    read_html((tmp_path / "replay.html").read_text())
    compile((tmp_path / "f1" / "reproduce.py").read_text(), "reproduce.py", "exec")


def test_what_is_no_replay_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadIncident):
        reports.load_replay(tmp_path)
    (tmp_path / REPLAY_FILE).write_text("{}")
    with pytest.raises(BadIncident, match="is no replay of schema version 1"):
        reports.load_replay(tmp_path)
    with pytest.raises(BadIncident, match="is no finding of a replay"):
        reports.load_finding(tmp_path)


def test_a_replay_that_was_cut_short_has_reports(tmp_path: Path) -> None:
    made = replay(finding(), state="interrupted", failure="Ctrl-C")
    reports.write_replay(made, tmp_path)  # no folder of the finding is there yet
    (tmp_path / "f1").mkdir()
    reports.write_replay(made, tmp_path)
    assert "Ctrl-C" in (tmp_path / "replay.md").read_text()
    assert not (tmp_path / "f1" / "reproduce.py").exists()
    read_html((tmp_path / "f1" / "report.html").read_text())


def test_the_json_has_what_is_promised() -> None:
    document = json.loads(replay_json(replay(finding()), Path("replays/r")))
    assert {"exit_code", "folder", "starts", "seconds", "findings"} <= document.keys()
    one = document["findings"][0]
    assert (one["class"], one["known"], one["requests"], one["confirmed"]) == (
        "hang",
        None,
        5,
        True,
    )
    assert one["folder"] == "replays/r/f1"
    assert one["also"] == ["metrics: the counter of prompts says 7"]
    assert {k: one["rate"][k] for k in ("failed", "plays", "low", "high")} == {
        "failed": 3, "plays": 3, "low": 0.292, "high": 1.0,
    }  # fmt: skip
    assert ToldReplay.model_validate(document) == told(replay(finding()), Path("replays/r"))
