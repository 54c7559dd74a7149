"""Replays, findings and fuzzing sessions as pages: sequence, charts, rows."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from finding_samples import (
    finding,
    found,
    fuzz,
    ghost_case,
    known,
    once,
    replay,
    whole_fuzz,
    whole_replay,
    written,
)
from grids import grid
from hostile import ACTIVE, HOSTILE, SOME, markdown_tokens, plant, shape
from made_up_replay import operation
from mmrepro.base.errors import BadIncident, UsageError
from mmrepro.base.records import FindingClass
from mmrepro.cli.app import app
from mmrepro.failure.documents.finding import LoadedFinding, load
from mmrepro.failure.documents.replay import (
    FUZZ_FILE,
    REPLAY_FILE,
    Episode,
    KnownUpstream,
    Needed,
    PlayFacts,
    Rate,
    ReportFacts,
    ReproVerdict,
    Step,
)
from mmrepro.reports import finding as one, findings, fuzz as fuzzing, replay as replays
from mmrepro.reports.blocks import Block, Picture, words
from mmrepro.reports.documents import keep, kind_of, render
from mmrepro.reports.replay import write_replay
from mmrepro.reports.replay_sequence import (
    drawing,
    images_picture,
    kind_of as result_of,
    picture,
    sequence,
)
from mmrepro.reports.repro import COMMENT_FILE
from mmrepro.reports.svg import StepLine, steps
from mmrepro.traffic.case.model import Case
from rendered import printed, section
from strict_html import Html
from typer.testing import CliRunner

SVG = "{http://www.w3.org/2000/svg}"
Golden = Callable[[str, str], None]


def drawn(blocks: list[Block]) -> ElementTree.Element:
    return ElementTree.fromstring(
        next(str(b.drawing) for b in blocks if isinstance(b, Picture))
    )


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
    lanes = sequence(case, {"a": "200", "d": "no answer in 6 s"}, ["d"])
    spans = {lane.operation.id: (lane.sent, lane.end) for lane in lanes.lanes}
    assert spans == {"a": (0, 2), "b": (1, 4), "c": (2, 4), "d": (3, 6), "e": (4, 6)}
    assert [lane.fails for lane in lanes.lanes] == [False, False, False, True, False]
    assert lanes.lanes[0].marks == {0: "first-token"}
    text = drawing(lanes)
    rows = text.splitlines()
    assert rows[0].startswith("  a ●▸")
    assert rows[3].startswith("! d")
    assert "?" in rows[3]
    assert rows[1].index("●") > rows[0].index("●")
    ElementTree.fromstring(str(picture(lanes)))


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
    assert result_of(said) == kind


def test_of_hundreds_those_that_fail_are_drawn() -> None:
    case = Case(
        server=ghost_case().server,
        operations=[operation(f"r{number}") for number in range(200)],
    )
    lanes = sequence(case, {"r150": "no answer in 9 s"}, ["r150"])
    assert len(lanes.lanes) == 60
    assert lanes.hidden == 140
    assert "r150" in {lane.operation.id for lane in lanes.lanes}
    assert all(len(row) <= 220 for row in drawing(lanes).splitlines())
    ElementTree.fromstring(str(picture(lanes)))


def test_an_image_that_comes_again_has_the_same_mark() -> None:
    case = ghost_case()
    lanes = sequence(case, {}, [])
    texts = [t.text for t in ElementTree.fromstring(str(picture(lanes))).iter("text")]
    assert texts.count("X") == 2
    named = ElementTree.fromstring(str(images_picture(lanes, {"X": "noise, seed 777"})))
    assert [t.text for t in named.iter("text")].count("noise, seed 777") == 1
    assert drawing(lanes).count("[X]") == 2


# ---------------------------------------------------------------------- the charts


def path_of(svg: str) -> list[tuple[float, float]]:
    """The corners of the first line."""
    d = re.search(r'class="line s0" d="M([\d.]+) ([\d.]+)([^"]*)"', svg)
    assert d is not None
    x, y = float(d[1]), float(d[2])
    corners = [(x, y)]
    for letter, number in re.findall(r"([HV])([\d.]+)", d[3]):
        x, y = (float(number), y) if letter == "H" else (x, float(number))
        corners.append((x, y))
    return corners


def test_a_chart_of_steps_is_true_to_its_numbers() -> None:
    svg = str(
        steps("left", [StepLine("f1", [(0, 8), (1, 8), (2, 4), (4, 0)])], "steps")
    )
    corners = path_of(svg)
    (x0, y0), (x4, y4) = corners[0], corners[-1]
    assert x4 > x0
    assert y4 > y0
    # Each corner by shares of both axes: 8 at the top, 0 at the bottom.
    shares = [
        (round((x - x0) / (x4 - x0), 2), round((y4 - y) / (y4 - y0), 2))
        for x, y in corners
    ]
    assert shares == [(0, 1), (0.5, 1), (0.5, 0.5), (1, 0.5), (1, 0), (1, 0)]


@pytest.mark.parametrize("most", [0, 1, 10**9, 10**400])
def test_no_number_leaves_the_chart(most: int) -> None:
    svg = str(
        steps(
            "x",
            [StepLine("f1", [(0, most), (most, 1)])] * 9,
            "steps",
            [(most, "F1")] * 99,
        )
    )
    ElementTree.fromstring(svg)
    assert len(svg) < 30_000
    height = float(re.search(r'viewBox="0 0 1080 ([\d.]+)"', svg)[1])  # type: ignore[index]
    assert all(0 <= x <= 1080 and 0 <= y <= height for x, y in path_of(svg))
    assert not steps("x", [StepLine("f1", [(0, 1)])], "steps")


def test_what_a_step_gave_back_is_not_left_out() -> None:
    tried = [(40, True), (4, False), (20, True), (9, False)]
    made = finding(
        requests_before=200,
        steps=[Step(what="x", kept=k, requests=n, failed=1, plays=1) for n, k in tried],
    )
    assert findings.requests_left(made) == [200, 40, 40, 20, 20]
    page = replays.compose(replay(made, known(steps=[])))
    titles = [t.text for t in drawn(section(page, "Shrinking")).iter("title")]
    assert titles == ["f1: 200 to 20"]
    assert not section(replays.compose(replay()), "Shrinking")


def test_coverage_adds_up_and_marks_the_findings() -> None:
    made = fuzz(
        found(episode=7),
        found(2, 99, known(), folder=""),
        episodes=[
            Episode(number=number, kind="mixed", requests=1, new=new)
            for number, new in ((0, 30), (7, 5), (4, 0), (5, 0))
        ],
    )
    blocks = section(fuzzing.compose(made), "Coverage")
    svg = drawn(blocks)
    assert [t.text for t in svg.iter("title")] == ["different: 0 to 35"]
    assert [t.text for t in svg.iter("text") if t.get("class") == "name"] == ["F1"]
    text = words(blocks[0].text)  # type: ignore[union-attr]
    assert text == (
        "35 different observations in 4 episodes; the last 2 episodes showed nothing "
        "new."
    )
    assert not section(fuzzing.compose(fuzz(episodes=[])), "Coverage")


# ---------------------------------------------------------------------- the pages


def test_a_replay_links_its_findings_and_says_how_to_go_on() -> None:
    page = replays.compose(whole_replay(), "replays/r")
    assert 'href="f1/report.html"' in render(replays.KIND, whole_replay(), "html")
    assert dict(page.commands) == {
        "to reproduce f1": "python3 replays/r/f1/reproduce.py",
        "to report f1 upstream": "mmrepro report replays/r/f1 --format issue",
        "run again": "mmrepro replay night.har --engine vllm",
    }
    # The unknown one is the one to go on with, wherever it stands.
    turned = replays.compose(replay(known(), finding(id="f3", folder="f3")))
    assert turned.commands[0] == ("to reproduce f3", "python3 f3/reproduce.py")


def test_a_session_links_what_it_pursued() -> None:
    html = render(fuzzing.KIND, whole_fuzz(), "html")
    assert {"e0003/f1/report.html", "e0008/f1/report.html"} <= {*Html(html).all("href")}
    # A pursuit that was cut short has no folder: nothing is linked, nothing is to be
    # typed.
    cut = fuzz(found(folder="", replay=""), state="interrupted")
    assert [why for why, _ in fuzzing.compose(cut).commands] == [
        "to resume it",
        "run again",
    ]
    assert "f1/report.html" not in render(fuzzing.KIND, cut, "html")


@pytest.mark.parametrize("kind", list(FindingClass))
def test_a_finding_of_every_class_has_its_page(
    tmp_path: Path, kind: FindingClass
) -> None:
    case = ghost_case()
    if kind is FindingClass.START_FAILURE:
        case = case.keeping([])
    written(tmp_path, finding(case, kind), case=case)
    loaded = load(tmp_path / "f1")
    page = one.compose(loaded)
    assert kind.words in page.title
    texts = [words(b.text) for b in page.card if hasattr(b, "text")]
    assert f"Expected: {kind.expected}." in texts
    assert (
        "The same requests also show: metrics: the counter of prompts says 7" in texts
    )
    assert page.counts[1] == "3 of 3 attempts (95%: 29% to 100%)"
    starts = kind is FindingClass.START_FAILURE
    assert bool(section(page, "The sequence")) is not starts
    assert (tmp_path / "f1" / "reproduce.py").exists() is not starts
    assert (
        "vllm serve ./tiny-model --max-model-len 2048"
        in one.steps_of(loaded)[-1 - (not starts)]
    )
    limits = "\n".join(loaded.limits)
    assert "Two plays left each request out" in limits
    assert "A tiny random-weight model was served" in limits
    Html((tmp_path / "f1" / "report.html").read_text())


def test_a_findings_page_draws_its_sequence(tmp_path: Path, golden: Golden) -> None:
    written(tmp_path, finding())
    loaded = load(tmp_path / "f1")
    page = one.compose(loaded)
    assert [block for block in page.shown if block.title == "Where it stands"] == []
    long = replace(loaded, finding=finding(stack=[f"frame {n}" for n in range(9)]))
    (stack,) = section(one.compose(long), "Where it stands")
    assert len(stack.frames) == 9  # type: ignore[union-attr]
    drawn = one.sequence_of(loaded)
    assert drawn is not None
    lines = printed(page, full=True).splitlines()
    assert {f"  {line}" for line in drawing(drawn).splitlines()} <= {*lines}
    golden("finding.md", render(one.KIND, loaded, "md"))
    golden("finding.txt", printed(page))


@pytest.mark.parametrize(
    ("made", "more", "label", "code"),
    [
        ([], {}, "Nothing found", 0),
        ([{}], {}, "Unknown failure", 1),
        ([{"known": "ghost-key-eviction"}], {}, "Known", 0),
        ([{"known": "ghost-key-eviction"}, {}], {}, "Unknown failure", 1),
        ([{"confirmed": False}], {}, "Unproven", 3),
        ([{"confirmed": False, "known": "x"}], {}, "Unproven", 3),
        ([{}], {"state": "interrupted"}, "Interrupted", 1),
        ([], {"state": "failed"}, "Failed", 0),  # the command exits with 4
    ],
)
def test_the_badge_and_the_exit_code_agree(
    made: list[dict[str, Any]], more: dict[str, Any], label: str, code: int
) -> None:
    some = [finding(**one) for one in made]
    replayed, fuzzed = (
        replay(*some, **more),
        fuzz(*(found(one=f) for f in some), **more),
    )
    assert replays.compose(replayed).badge.label == label
    assert fuzzing.compose(fuzzed).badge.label == label
    assert fuzzed.exit_code == code
    # A fuzz looks for what is unknown; a recording that fails is a problem either way.
    assert replayed.exit_code == (1 if label == "Known" else code)
    assert fuzzing.compose(fuzz(once=[once()])).badge.label == "Unproven"


def test_a_rate_is_never_called_certain() -> None:
    rate = Rate(failed=1, plays=1, low=0.025, high=1.0)
    assert findings.rate_words(rate) == "1 of 1 attempt (95%: 2% to 100%)"
    assert findings.short_rate(rate) == "1 of 1 (2–100%)"
    never = Rate(failed=0, plays=0, low=0.0, high=1.0)
    assert findings.rate_words(never) == findings.short_rate(never) == "not measured"


def test_what_was_cut_short_has_reports(tmp_path: Path) -> None:
    made = replay(finding(), state="interrupted", failure="Ctrl-C")
    write_replay(made, tmp_path)  # no folder of the finding is there yet
    (tmp_path / "f1").mkdir()
    write_replay(made, tmp_path)
    assert "Ctrl-C" in (tmp_path / "replay.md").read_text()
    assert not (tmp_path / "f1" / "reproduce.py").exists()
    Html((tmp_path / "f1" / "report.html").read_text())
    empty = fuzz(
        state="failed", failure="no wheel", learnt=[], episodes=[], deadline_s=None
    )
    assert "no wheel" in Html(render(fuzzing.KIND, empty, "html")).text
    assert "no wheel" in printed(fuzzing.compose(empty))


# ---------------------------------------------------------------------- foreign text


@pytest.mark.parametrize("text", grid(HOSTILE, always=SOME))
def test_hostile_text_changes_no_finding(tmp_path: Path, text: str) -> None:
    written(tmp_path, finding())
    loaded = load(tmp_path / "f1")

    def planted(given: str) -> LoadedFinding:
        made = plant(loaded.finding, given)
        made.observed, made.operations = {"r1": given, "r5": "no answer in 6 s"}, ["r5"]
        return replace(loaded, replay=plant(loaded.replay, given), finding=made)

    html, markdown = (render(one.KIND, planted(text), form) for form in ("html", "md"))
    assert (
        Html(html).shape == Html(render(one.KIND, planted("two words"), "html")).shape
    )
    benign = render(one.KIND, planted("two words"), "md")
    assert shape(markdown_tokens(markdown)) == shape(markdown_tokens(benign))
    odd = replay(plays=[PlayFacts(number=1, what="", requests=1, state=text)])
    status = render(replays.KIND, odd, "html")
    for shown in (html, markdown, status, printed(one.compose(planted(text)))):
        assert not ACTIVE.search(shown)
    utf8 = text.encode("utf-8", "replace").decode()  # as the client has it
    code = one.script_of(planted(utf8))
    compile(code, "reproduce.py", "exec")


def test_a_command_stays_on_its_line() -> None:
    made = replay(finding(id="f1\nrm -rf ~", folder="f1"))
    fenced = (
        render(replays.KIND, made, "md").partition("```sh\n")[2].partition("```")[0]
    )
    assert "\nrm" not in fenced
    assert "# to reproduce f1 rm -rf ~" in fenced


@pytest.mark.parametrize(
    "folder", ["../f1", "/etc", "e0003/f1/../..", "javascript:alert(1)"]
)
def test_a_finding_lies_below_its_session(tmp_path: Path, folder: str) -> None:
    document = json.loads(fuzz(found()).model_dump_json())
    document["found"][0]["folder"] = folder
    (tmp_path / FUZZ_FILE).write_text(json.dumps(document))
    with pytest.raises(BadIncident, match="does not follow the fuzz schema"):
        fuzzing.KIND.load(tmp_path)


# ---------------------------------------------------------------------- folders


def test_a_folder_is_known_by_what_lies_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, finding())
    assert kind_of(tmp_path) is replays.KIND
    assert kind_of(tmp_path / REPLAY_FILE) is replays.KIND
    assert kind_of(tmp_path / "f1") is one.KIND
    monkeypatch.chdir(tmp_path / "f1")
    assert kind_of(Path()) is one.KIND
    # A case that lies in no replay is no finding.
    (tmp_path / REPLAY_FILE).unlink()
    assert kind_of(tmp_path / "f1").name == "an incident"
    with pytest.raises(BadIncident, match="is no finding of a replay"):
        load(tmp_path / "f1")
    keep(fuzzing.KIND, whole_fuzz(), tmp_path)
    assert kind_of(tmp_path) is fuzzing.KIND


def test_the_folder_gives_its_reports_again(tmp_path: Path) -> None:
    keep(fuzzing.KIND, whole_fuzz(), tmp_path)
    runner = CliRunner()
    signs = {"md": "# Fuzzing of", "html": "<!doctype", "json": '"episodes"'}
    for place in (tmp_path, tmp_path / FUZZ_FILE):
        for form, sign in signs.items():
            done = runner.invoke(app, ["report", str(place), "--format", form])
            assert (done.exit_code, sign in done.stdout) == (0, True)
    for form, hint in (
        ("issue", "e0003/f1 --format issue"),
        ("junit", "--format json"),
    ):
        done = runner.invoke(app, ["report", str(tmp_path), "--format", form])
        assert isinstance(done.exception, UsageError)
        assert hint in str(done.exception.hint)


def test_a_failure_whose_words_are_known_is_not_called_unknown() -> None:
    words_of = finding(resembles=["borrowed-faults"])
    badge = findings.badge(replay(words_of), [words_of], "")
    assert (badge.label, badge.note) == (
        "Failure",
        "its words are those of borrowed-faults",
    )
    both = [words_of, finding(id="f3", folder="f3")]
    assert findings.badge(replay(*both), both, "").label == "Unknown failure"


def test_an_option_that_a_failure_needs_is_named() -> None:
    needed = Needed(what="--fault ghost-key-lru", why="nothing without it")
    of_fault = finding(needed=[needed, Needed(what="r1", why="it too")])
    [block] = findings.gone_without(of_fault)
    assert words(block.text) == "Gone without: --fault ghost-key-lru"
    assert not [*findings.gone_without(finding(needed=[]))]


def reproduced(tmp_path: Path) -> str:
    upstream = KnownUpstream(
        issue="vllm#43941", url="https://github.com/x/issues/43941", fixed="fixed in 1"
    )
    one_known = known(id="f1", folder="f1", upstream=upstream, bucket="vllm/x > <a>")
    made = written(tmp_path, one_known)
    made.report = ReportFacts(verdict=ReproVerdict.REPRODUCED, said="it hangs")
    write_replay(made, tmp_path)
    return (tmp_path / COMMENT_FILE).read_text("utf-8")


def test_a_comment_begins_with_what_a_maintainer_asks_first(tmp_path: Path) -> None:
    first, *rest = reproduced(tmp_path).splitlines()
    assert first == (
        "**Reproduced** on vLLM 0.23.0; known: `ghost-key-eviction`, "
        "[vllm#43941](https://github.com/x/issues/43941), fixed in 1. It hangs."
    )
    text = "\n".join(rest)
    assert "bucket `vllm/x > <a>`" in text
    assert "To reproduce it without mmrepro:" in text
    assert "<summary>reproduce.py</summary>" in text
