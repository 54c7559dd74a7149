"""Requests aimed at the code that two sides have otherwise: what differs is read from
their files, what a request runs from the server's log."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from fake_player import NOW, FakePlayer, Fakes
from fake_plays import SERVER
from mmrepro.engines import REACH, get_engine
from mmrepro.failure.documents.replay import Fuzz
from mmrepro.reports.documents import keep
from mmrepro.reports.fuzz import KIND
from mmrepro.search.fuzz import against
from mmrepro.search.fuzz.against import Comparing
from mmrepro.search.fuzz.aim import (
    ChangedFunction,
    ReachedChange,
    SideAim,
    aim_at,
    changed_functions,
    changed_lines,
    line_ranges,
)
from mmrepro.search.fuzz.fields import AT_ONCE, crossed_requests, features_of
from mmrepro.search.fuzz.options import FuzzCommand
from mmrepro.traffic.case import COMPLETIONS, Operation
from mmrepro.traffic.case.sending import Played, PlayState

OLD = """\
LIMIT = 5


class Sampler:
    def check(self, top_k):
        if top_k == -2:
            raise ValueError(
                "no"
            )
        return top_k

    def rest(self):
        return 1


def free():
    # a comment
    return None
"""
NEW = OLD.replace("-2", "-1").replace("a comment", "another").replace("= 5", "= 6")
NEWER = NEW.replace("        return 1\n", "        x = 1\n        return x\n")


def functions(before: str, after: str) -> tuple[dict[str, set[int]], ...]:
    gone, come = changed_lines(before, after)
    sides = []
    for text, lines in ((before, gone), (after, come)):
        made = changed_functions("vllm/a.py", text, lines)
        sides.append({one.name: set(one.changed) for one in made})
    return tuple(sides)


def test_functions_are_named_by_the_lines_that_can_run() -> None:
    """Neither a comment nor what runs at import is one."""
    assert functions(OLD, NEW) == ({"Sampler.check": {6}}, {"Sampler.check": {6}})
    old, new = functions(NEW, NEWER)
    assert (old, new) == ({"Sampler.rest": {13}}, {"Sampler.rest": {13, 14}})
    # Lines that only come stand behind one of the other side.
    longer = OLD.replace("return top_k", "top_k += 1\n        return top_k")
    old, new = functions(OLD, longer)
    assert new == {"Sampler.check": {10}}


def test_what_is_no_python_here_is_not_guessed_at(tmp_path: Path) -> None:
    aim = aimed(tmp_path, {"a.py": "def f(:\n    pass\n"}, {"a.py": OLD})
    assert aim is not None
    assert aim.unread == ["vllm/a.py is no Python that is understood here"]
    assert [f.name for f in aim.new.functions] == [
        "Sampler.check",
        "Sampler.rest",
        "free",
    ]


def side(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / "vllm" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def aimed(tmp_path: Path, old: dict[str, str], new: dict[str, str]) -> Any:
    return aim_at(side(tmp_path / "old", old), side(tmp_path / "new", new), "vllm")


def test_files_that_are_the_same_are_no_target(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    side(old, {"same.py": OLD, "a.py": OLD, "gone.py": OLD, "text.txt": "1"})
    side(new, {"a.py": NEW, "text.txt": "2"})
    os.link(old / "vllm/same.py", new / "vllm/same.py")
    aim = aim_at(old, new, "vllm")
    assert aim is not None
    assert aim.files == ["vllm/a.py", "vllm/gone.py"]
    assert {f.file for f in aim.new.functions} == {"vllm/a.py"}
    assert aim_at(old, old, "vllm") is None


def test_two_releases_are_no_target(tmp_path: Path) -> None:
    old = {f"f{number}.py": OLD for number in range(201)}
    assert aimed(tmp_path, old, {}) is None


def test_a_server_is_asked_for_no_more_than_a_variable_holds() -> None:
    many = [
        ChangedFunction(f"vllm/{'x' * 90}{number}.py", "f", 1, 9, frozenset({2}))
        for number in range(2000)
    ]
    spec = SideAim(many).spec
    assert 50_000 < len(spec) < 64_000
    server = SideAim(many[:1]).watching(SERVER)
    assert server.env == {REACH: f"vllm/{'x' * 90}0.py:1-9"}
    assert SideAim().watching(SERVER) == SERVER


def test_lines_that_no_request_ran_are_listed(tmp_path: Path) -> None:
    reached = ReachedChange(aimed(tmp_path, {"a.py": OLD}, {"a.py": NEWER}))
    reached.take("new", ["vllm/a.py:6", "vllm/a.py:9"], "a plain request")
    reached.take("old", ["vllm/a.py:13"], "a plain request")
    missed = {f.name: f.missed for f in reached.functions()}
    assert missed == {"Sampler.check": "", "Sampler.rest": "13-14"}
    assert line_ranges([9, 3, 4, 5, 11]) == "3-5, 9, 11"


def test_a_crossed_request_has_what_was_kept_and_one_thing_more() -> None:
    kept = Operation(id="k", path=COMPLETIONS, prompt="hello", parameters={"top_k": -2})
    made = crossed_requests([kept], Random(1))
    crossed = made[3:]
    assert len(crossed) == AT_ONCE
    assert len({op.id for op in made}) == len(made)
    for op in crossed:
        assert op.path == COMPLETIONS
        assert "top_k" in op.parameters
    assert len({tuple(features_of(op)) for op in crossed}) > 20


class Reaching(FakePlayer):
    """A FAKE server that runs the check of ``top_k`` where a request has the field, and
    its raise for -2; it answers 400 there, and the new side for -1."""

    def __init__(self) -> None:
        super().__init__(lambda case: {})
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.args: list[list[str]] = []

    def play(self, case: Any, contents: Any, options: Any, folder: Path, **more: Any):
        new = "--other" in case.server.args
        refused = -1 if new else -2

        def status(op: Operation) -> int:
            return 400 if op.parameters.get("top_k") == refused else 200

        self.engine = lambda asked: {op.id: str(status(op)) for op in asked.operations}
        played: Played = super().play(case, contents, options, folder, **more)
        for op in case.operations:
            error = {"error": {"message": "no", "type": "bad", "code": status(op)}}
            said = {"id": op.id, "choices": []} if status(op) == 200 else error
            played.bodies[op.id] = json.dumps(said)
        self.asked.append((folder.parent.name, case.server.env))
        if REACH in case.server.env:
            played.log_file = "engine.log"
            self._log(case, status, folder / "engine.log")
        return played

    def _log(self, case: Any, status: Any, log: Path) -> None:
        lines = ["INFO hello", f"mmrepro reach {NOW.mono - 5:.3f} vllm/a.py:6"]
        for number, op in enumerate(case.operations):
            at = NOW.mono + number + 0.05
            if "top_k" in op.parameters:
                lines.append(f"mmrepro reach {at:.3f} vllm/a.py:6")
            if status(op) == 400:
                lines.append(f"mmrepro reach {at:.3f} vllm/a.py:7")
        log.write_text("\n".join(lines) + "\n")


class AimedComparing(Fakes, Comparing):
    pass


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Of the two releases: their Python files differ in one function."""
    folders = {
        "0.23.0": side(tmp_path / "old", {"a.py": OLD}),
        "0.24.0": side(tmp_path / "new", {"a.py": NEW}),
    }
    monkeypatch.setattr(against, "spec_for", lambda engine, release, device: release)
    monkeypatch.setattr(
        against, "ensure", lambda spec: SimpleNamespace(site_packages=folders[spec])
    )
    return folders


def session(tmp_path: Path, player: Reaching, **options: Any) -> Fuzz:
    other = SERVER.model_copy(update={"args": ["--other"], "release": "0.24.0"})
    given = {"server": SERVER, "other": other, "budget_s": 30.0, **options}
    made = AimedComparing(
        FuzzCommand(engine="vllm", against="--other", **given),
        write=lambda fuzz, folder: keep(KIND, fuzz, folder),
    )
    made.player = player
    made.episodes_at_most = 5
    return made.execute()


@pytest.mark.usefixtures("environments")
def test_what_reaches_a_change_is_kept_and_mutated(tmp_path: Path) -> None:
    player = Reaching()
    made = session(tmp_path, player, out=tmp_path / "f")
    aim = made.aim
    assert aim is not None
    (function,) = aim.functions
    assert (function.file, function.name) == ("vllm/a.py", "Sampler.check")
    # Line 6 is the changed one, on both sides; what ran at the start is no request's.
    assert (function.lines, function.reached, function.entered) == (2, 2, True)
    assert function.missed == ""
    assert all("top_k" in words for words in function.requests)
    assert "crossed" in {episode.kind for episode in made.episodes}
    fields = {(d.field, *d.features) for d in made.differences if d.confirmed}
    assert ("status", "top_k=-2") in fields
    page = repr(KIND.compose(made))
    assert "Sampler.check" in page
    assert "1 of these functions" in page

    # What is shrunk and confirmed is asked of servers that do nothing else.
    for purpose, env in player.asked:
        assert (REACH in env) == purpose.startswith("episode"), purpose


@pytest.mark.parametrize("starts", [True, False])
def test_both_sides_get_the_options_that_the_changed_code_names(
    tmp_path: Path, environments: dict[str, Path], starts: bool
) -> None:
    flag = "--enable-prompt-tokens-details"
    code = NEW.replace("top_k == -1", "self.enable_prompt_tokens_details")
    side(environments["0.24.0"], {"a.py": code})

    class Sided(Reaching):
        def play(self, case: Any, *rest: Any, **more: Any) -> Played:
            has_both = {flag, "--other"} <= {*case.server.args}
            if has_both and not starts:
                return Played(state=PlayState.START_FAILED, said="no such option")
            self.args.append(case.server.args)
            return super().play(case, *rest, **more)

    player = Sided()
    made = session(tmp_path, player, out=tmp_path / "f")
    assert made.aim is not None
    assert made.aim.flags == ([flag] if starts else [])
    assert any("no such option" in text for text in made.aim.unread) is not starts
    assert all((flag in args) is starts for args in player.args[4:])
    assert (flag in repr(KIND.compose(made))) is True

    # Nothing is tried again by a session that goes on.
    again = Sided()
    continued = session(tmp_path, again, resume=tmp_path / "f")
    assert continued.aim == made.aim
    assert "options" not in [purpose for purpose, _ in again.asked]


@pytest.mark.usefixtures("environments")
def test_a_session_that_is_continued_knows_what_was_reached(tmp_path: Path) -> None:
    first = session(tmp_path, Reaching(), out=tmp_path / "f")
    again = session(tmp_path, Reaching(), resume=tmp_path / "f")
    assert again.aim == first.aim
    assert len(again.differences) == len(first.differences)


@pytest.mark.usefixtures("environments")
def test_a_server_is_watched_by_the_stand_in_and_its_report_says_so(
    tmp_path: Path,
) -> None:
    from mmrepro.engines.base import REACHED_LINES, LaunchRequest

    environment: Any = SimpleNamespace(spec=SimpleNamespace(device="cpu"))
    fields: dict[str, Any] = {
        "environment": environment,
        "model": tmp_path,
        "server_args": (),
        "port": 1,
        "max_model_len": 64,
    }
    plain = LaunchRequest(**fields)
    watched = LaunchRequest(**fields, server_env={REACH: "vllm/a.py:1-9"})
    assert plain.all_patches == ()
    assert watched.all_patches == (REACHED_LINES,)
    assert get_engine("vllm").own_patches(watched) == ()
