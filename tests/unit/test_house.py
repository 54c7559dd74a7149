"""What a command loads stays small. The numbers are in pyproject.toml.

``python tests/unit/test_house.py --lower`` writes the numbers that can go down; a
number is raised by hand, with a sentence in the commit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from mmrepro.runs.key import closure, code_files
from mmrepro.scenario.registry import load_scenario

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "pyproject.toml"
SLACK = 2
"""How far above what is there a number may stand; or one per cent, where that is
more."""
COMMAND = "python tests/unit/test_house.py --lower"

IMPORTED = "import sys, mmrepro.scenario\n"
RUN = '''
import contextlib, sys
from datetime import UTC, datetime
from pathlib import Path

import mmrepro.cli
from fake_engine_process import ready, starter
from mmrepro.engines.environments import build
from mmrepro.engines.environments.spec import Manifest
from mmrepro.base.records import WheelFacts
from mmrepro.runs import start as starts, starter as starters

real = starts.ensure


def ensure(spec, progress):
    """As if it had been built before."""
    folder = build.folder_of(spec)
    (folder / "venv/lib/python3/site-packages").mkdir(parents=True)
    (folder / "requirements.lock").touch()
    wheel = WheelFacts(project="", filename="", sha256="", uploaded="", origin="")
    manifest = Manifest(
        engine=spec.engine, release=spec.release, device=spec.device, project=spec.project,
        wheel=wheel, resolved_until="", packages=[], python="", uv="", build_seconds=0.0,
        created=datetime.now(UTC),
    )
    (folder / "manifest.json").write_text(manifest.model_dump_json())
    assert build.existing(spec) is not None
    return real(spec, progress)


starts.ensure = ensure
starters.Starter = lambda *_, **__: contextlib.nullcontext(starter(ready).it)
sys.argv = ["mmrepro", "run", "ghost-key-eviction", "--device", "cpu", "--out", sys.argv[1]]
try:
    mmrepro.cli.main()
except SystemExit as ended:
    assert ended.code == 3, "nothing that the FAKE engine says is a verdict"
assert Path(sys.argv[-1], "report.html").exists()
'''
LOGS = """
import contextlib, io, sys
from pathlib import Path

import mmrepro.cli

Path("server.log").write_text(
    "INFO 04-18 13:05:02 [api_server.py:1] vLLM API server version 0.23.0\\n"
    "Traceback (most recent call last):\\n"
    '  File "worker.py", line 1, in step\\n'
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\\n"
)
sys.argv = ["mmrepro", "logs", "server.log"]
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    mmrepro.cli.main()
"""
WALK = """
import sys, threading

levels = {{room: n for n, line in enumerate({layers!r}) for room in line.split(" | ")}}
climbs, plain = set(), dict.fromkeys(map(ord, "<>. "), "_")


def room(frame):
    return (frame.f_globals.get("__name__", "") + ".").split(".")[1] if frame else ""


def watch(frame, event, _):
    own = room(frame)
    if event != "call" or own not in levels or frame.f_code.co_name == "<module>":
        return
    while (frame := frame.f_back) and room(frame) not in levels:
        pass
    caller = room(frame)
    if caller and levels[own] < levels[caller]:
        place = frame.f_code.co_qualname.translate(plain)
        climbs.add(f"mmrepro.{{caller}}.calls.{{own}}.{{place}}")


threading.setprofile(watch)
sys.setprofile(watch)
"""
"""Notes each function that calls one of a higher room: a callable that it was handed,
or a method that a class up there has replaced."""
SHOWN = "\nsys.setprofile(None)\nprint(*climbs)\n"
LIST = (
    'print(*sorted(n for n in sys.modules if n.partition(".")[0] == '
    '"mmrepro"), sep="\\n")\n'
)
BEFORE = {
    "scenario.registry",
    "base.machine.streams",
    "base.machine.configured",
    "base.values",
}
"""What finds the scenario by its name and reads the command, before the run."""
AFTER = {
    "failure.documents.stored",
    "failure.documents.published",
    "base.text.wrapping",
    "base.installed",
}
"""What reads the document for its report, when the run has ended."""
QUICK = """
import contextlib, io, sys
import mmrepro.cli
sys.argv = ["mmrepro", *{words!r}]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    mmrepro.cli.main()
slow = {{"httpx2", "jinja2", "numpy", "PIL", "mmrepro.reports.incident", "mmrepro.campaign"}}
slow.add({also!r})
assert slow.isdisjoint(sys.modules), slow & set(sys.modules)
"""
"""A command that only reads scenarios: 0.35 s at most, and each module takes a
millisecond."""
PROGRAMS = {
    "import mmrepro.scenario": IMPORTED,
    "mmrepro run": RUN,
    "mmrepro list": QUICK.format(words=["list"], also="rich"),
    "mmrepro show": QUICK.format(
        words=["show", "ghost-key-eviction"], also="prometheus_client"
    ),
}


def limits(of: str) -> dict[str, int]:
    table: dict[str, int] = tomllib.loads(PROJECT.read_text())["tool"]["house"][of]
    return table


@cache
def loaded(program: str) -> tuple[str, ...]:
    """Modules of mmrepro that a fresh interpreter has after a program."""
    with tempfile.TemporaryDirectory() as work:
        here = str(Path(__file__).parent)
        env = {**os.environ, "MMREPRO_CACHE_DIR": f"{work}/cache", "PYTHONPATH": here}
        ran = subprocess.run(
            [sys.executable, "-c", program + LIST, f"{work}/out"],
            cwd=work,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    words = {*ran.stdout.split()}  # the program prints its own name as well
    return tuple(
        sorted(word for word in words if re.fullmatch(r"mmrepro(\.\w+)*", word))
    )


def wrong(there: Mapping[str, int], limits: Mapping[str, int], slack: int) -> list[str]:
    """What is above its number, has none, or has one that is too high."""
    found = [f"{name}: no number" for name in sorted(there.keys() - limits.keys())]
    found += [f"{name}: not there" for name in sorted(limits.keys() - there.keys())]
    for name in sorted(there.keys() & limits.keys()):
        now, limit = there[name], limits[name]
        if now > limit:
            found.append(
                f"{name}: {now}, above its {limit}: make it smaller, or see "
                "CONTRIBUTING"
            )
        elif limit - now > max(slack, now // 100):
            found.append(f"{name}: {now}, its {limit} can go down: {COMMAND}")
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_more_modules_are_loaded(name: str) -> None:
    modules = loaded(PROGRAMS[name])
    limit = {name: limits("modules")[name]}
    assert not wrong({name: len(modules)}, limit, SLACK), modules


@pytest.mark.parametrize(("program", "most"), [(RUN, 12), (LOGS, 8)])
def test_a_walk_climbs_seldom(program: str, most: int) -> None:
    """From the command to report.html, where the FAKE engine fails at the gate; from a
    log to its cause."""
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    walked = WALK.format(layers=contracts[0]["layers"]) + program + SHOWN
    climbs = [name for name in loaded(walked) if ".calls." in name]
    assert 3 <= len(climbs) <= most, climbs


def test_what_a_run_loads_is_in_its_key() -> None:
    """But what starts it and what reports it, other engines, and what describes
    environments."""
    elsewhere = re.compile(
        r"(cli|reports|engines\.environments)\b|engines(\.(?!models|supervise)|$)|$"
    )
    ghost = load_scenario("ghost-key-eviction")
    files = set(code_files(ghost))
    parts = {name: name.removeprefix("mmrepro").lstrip(".") for name in loaded(RUN)}
    apart = [
        n
        for n, part in parts.items()
        if not elsewhere.match(part) and part not in BEFORE | AFTER
    ]
    assert len(apart) > 60
    known = closure(apart)
    assert not [name for name in apart if known[name] not in files]


def test_every_program_has_its_number() -> None:
    assert limits("modules").keys() == PROGRAMS.keys()


@pytest.mark.parametrize(
    ("now", "limit", "says"),
    [
        (100, 100, None),
        (98, 100, None),
        (97, 100, "can go down"),
        (101, 100, "above"),
        (1000, 1010, None),
        (1000, 1011, "can go down"),
    ],
)
def test_a_number_is_held_from_both_sides(
    now: int, limit: int, says: str | None
) -> None:
    found = wrong({"a": now}, {"a": limit}, SLACK)
    assert says in found[0] if says else not found, found


def test_a_folder_without_a_number_and_a_number_without_a_folder() -> None:
    assert wrong({"new": 1}, {"gone": 1}, 60) == ["new: no number", "gone: not there"]


def lowered(text: str, there: Mapping[str, Mapping[str, int]]) -> str:
    """``pyproject.toml`` with the numbers that can go down; none goes up."""
    for table, counted in there.items():
        head, mark, rest = text.partition(f"[tool.house.{table}]\n")
        body, end, tail = rest.partition("\n[")
        for name, now in counted.items():
            body = re.sub(
                rf'^("{re.escape(name)}" = )(\d+)',
                lambda found, now=now: f"{found[1]}{min(int(found[2]), now)}",  # type: ignore[misc]
                body,
                flags=re.MULTILINE,
            )
        text = head + mark + body + end + tail
    return text


def test_lowering_raises_nothing_and_leaves_the_rest() -> None:
    text = (
        '[tool.house.modules]\n"a" = 10\n"a/b" = 20 # why\n\n[tool.other]\n"a" = 30\n'
    )
    assert lowered(text, {"modules": {"a": 5, "a/b": 25}}) == text.replace("10", "5")


if __name__ == "__main__":
    assert sys.argv[1:] == ["--lower"], __doc__
    counts = {name: len(loaded(program)) for name, program in PROGRAMS.items()}
    PROJECT.write_text(lowered(PROJECT.read_text(), {"modules": counts}))
