"""An engine's own tests, run in the environment of a tree, in a box.

Red, green and untestable are told apart by what was raised, never by an exit code: a
test that was skipped, that wants a GPU, a model of a hub or a package that is not here,
says nothing of the tree."""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

from mmrepro.base.box import GIB, TEMPORARY, WORK, Box, Limits
from mmrepro.base.machine import cache_root
from mmrepro.base.records import Document, Record
from mmrepro.base.text import one_line
from mmrepro.engines import spec_for
from mmrepro.engines.environments import (
    Environment,
    ask_git,
    ensure,
    import_once,
    run_uv,
)
from mmrepro.engines.models import MODELS_DIR, hub_models_named, write_hub
from mmrepro.engines.serving import serving
from mmrepro.engines.supervise import run_variables
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.options import RunCommand
from mmrepro.runs.play import replayed
from mmrepro.runs.start import ServerSpec
from mmrepro.runs.starter import box_of, variables_inside
from mmrepro.traffic.case import ServerWanted
from pydantic import Field

LIMIT_S = 300.0
"""For all tests of one tree: those of a fix take seconds."""
_TEST_LIMIT_S = 60
_IMPORT_S = 300.0
"""Until torch and the engine are imported, on a busy machine."""
_LAST_LINES = 15
_BESIDE = ("pyproject.toml", "pytest.ini", "setup.cfg", "conftest.py", "examples")
"""What tests read besides their own folders: settings, and templates of examples."""
_CONFTESTS = "conftest.py"


class TreeTestState(StrEnum):
    """What a test says of a tree."""

    RED = "red"
    GREEN = "green"
    UNTESTABLE = "untestable"


class UntestableCause(StrEnum):
    """Why a test says nothing of a tree on this machine."""

    GPU = "gpu"
    HUB = "hub"
    PACKAGE = "package"
    OPERATOR = "operator"
    MEMORY = "memory"
    SKIPPED = "skipped"
    LATE = "late"
    ABSENT = "absent"
    """The tree lacks a name that the test uses: the test came with that name."""
    COLLECTION = "collection"
    NONE = "none"
    """No test ran."""


class UpstreamTest(Record):
    """One test on one tree."""

    test: str
    state: TreeTestState
    cause: UntestableCause | None = None
    why: Annotated[str, Field(description="the exception, or the reason; empty: green")]
    frames: Annotated[
        list[str], Field(description="innermost last, as FILE:LINE:FUNCTION")
    ] = []
    seconds: float = 0.0


class UpstreamRun(Document, kind="tree-tests"):
    """What an engine's own tests say of one tree."""

    tree: str
    state: TreeTestState
    cause: UntestableCause | None = None
    why: str
    tests: list[UpstreamTest]
    seconds: float
    last: Annotated[list[str], Field(description="last lines of pytest's output")] = []

    @property
    def red(self) -> set[str]:
        return {seen.test for seen in self.tests if seen.state is TreeTestState.RED}

    @property
    def green(self) -> set[str]:
        return {seen.test for seen in self.tests if seen.state is TreeTestState.GREEN}

    @property
    def counts(self) -> str:
        """``3 red, 6 green, 1 untestable``."""
        words = []
        for state in TreeTestState:
            number = sum(seen.state is state for seen in self.tests)
            if number:
                words.append(f"{number} {state.value}")
        return ", ".join(words) or "no test ran"


# ------------------------------------------------------------------ causes

_CAUSES: Mapping[UntestableCause, re.Pattern[str]] = {
    UntestableCause.GPU: re.compile(
        r"No CUDA GPUs|not compiled with CUDA|CUDA driver|NVIDIA driver|libcuda"
        r"|CUDA is not available|[Nn]eeds? (?:a |at least \d+ )?(?:GPU|CUDA)"
        r"|requires? (?:a |at least \d+ |\d+ )?(?:GPU|CUDA)|active drivers"
        r"|torch\.cuda\.|_cuda_|device type|does not support CUDA|nvml|NVML"
        r"|AttributeError: module 'torch\._C' has no attribute '_cuda"
        r"|is not supported on (?:the )?CPU|Triton is not installed"
        r"|CPU backend (?:does not|only)",
    ),
    UntestableCause.HUB: re.compile(
        r"huggingface\.co|hf\.co|LocalEntryNotFound|OfflineModeIsEnabled"
        r"|HF_HUB_OFFLINE|outgoing traffic has been disabled|HFValidationError"
        r"|Invalid repository ID or local directory|is not the path to a directory"
        r"|is not a valid model identifier|RepositoryNotFound|Can't load (?:tokenizer"
        r"|the configuration|image processor|feature extractor|processor)"
        r"|MaxRetryError|NameResolutionError|Temporary failure in name resolution"
        r"|Name or service not known|Network is unreachable|Cannot connect to host"
        r"|ConnectionError|ConnectError|gaierror|Max retries exceeded|modelscope"
        r"|SSLError|couldn't connect to|ClientConnector|s3\.amazonaws|vllm-public",
    ),
    UntestableCause.OPERATOR: re.compile(
        r"'_OpNamespace'|No such operator|Could not run '[\w:]+' with arguments"
        r"|Could not find schema for|_C\w* ?has no attribute|operator \S+ does not exist"
        r"|Unknown keyword argument '\w+' for operator",
    ),
    UntestableCause.MEMORY: re.compile(
        r"MemoryError|Cannot allocate memory|out of memory"
        r"|Failed core proc|No space left on device",
    ),
    UntestableCause.LATE: re.compile(r"Failed: Timeout"),
}
"""In the types and messages of an exception and of those that it came of, in order."""
_MISSING_MODULE = re.compile(r"No module named '(?P<module>[\w.]+)'")
_MISSING_NAME = re.compile(
    r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"
)
_MISSING_ATTRIBUTE = re.compile(
    r"module '(?P<module>[\w.]+)'.* (?:has no|does not have the) attribute '\w+'"
)
"""What Python, pytest's monkeypatch and unittest's mock say of a module."""


def judged(phases: Sequence[Mapping[str, Any]], engine: str) -> UpstreamTest:
    """What the phases of one test come to."""
    test = str(phases[0]["test"])
    seconds = sum(float(phase.get("seconds", 0)) for phase in phases)
    for phase in phases:
        if phase["state"] == "failed":
            # What a teardown raises is of the machine, where the test itself passed.
            cause, why = _cause_of(phase, engine)
            state = TreeTestState.RED if cause is None else TreeTestState.UNTESTABLE
            chain = phase.get("chain") or [{}]
            return UpstreamTest(
                test=test,
                state=state,
                cause=cause,
                why=why,
                frames=chain[0].get("frames", []),
                seconds=seconds,
            )
    for phase in phases:
        if phase["state"] == "skipped":
            why = one_line(str(phase.get("text", "")), 200)
            return UpstreamTest(
                test=test,
                state=TreeTestState.UNTESTABLE,
                cause=UntestableCause.SKIPPED,
                why=why or "it was skipped",
                seconds=seconds,
            )
    if any(phase["when"] == "call" for phase in phases):
        return UpstreamTest(
            test=test, state=TreeTestState.GREEN, why="", seconds=seconds
        )
    return UpstreamTest(
        test=test,
        state=TreeTestState.UNTESTABLE,
        cause=UntestableCause.NONE,
        why="it did not end",
        seconds=seconds,
    )


def _cause_of(
    phase: Mapping[str, Any], engine: str
) -> tuple[UntestableCause | None, str]:
    """Why a failed phase says nothing of the tree, None: it does; and its words."""
    chain = [dict(one) for one in phase.get("chain", [])]
    texts = [f"{one['type'].rpartition('.')[2]}: {one['message']}" for one in chain]
    shown = one_line(texts[0] if texts else str(phase.get("text", "")), 300)
    whole = "\n".join(texts) or str(phase.get("text", ""))
    for text in texts or [whole]:
        if found := _MISSING_NAME.search(text):
            own = found["module"].split(".")[0] == engine
            kind = UntestableCause.ABSENT if own else UntestableCause.PACKAGE
            return kind, shown
        if found := _MISSING_MODULE.search(text):
            own = found["module"].split(".")[0] == engine
            kind = UntestableCause.ABSENT if own else UntestableCause.PACKAGE
            return kind, shown
    for one, text in zip(chain, texts, strict=True):
        found = _MISSING_ATTRIBUTE.search(text)
        if found and found["module"].split(".")[0] == engine:
            frames = one.get("frames") or [""]
            # Where the engine's own code asks, the failure is the engine's.
            if f"/{engine}/" not in frames[-1]:
                return UntestableCause.ABSENT, shown
    if not _is_comparison(chain):
        for cause, pattern in _CAUSES.items():
            if pattern.search(whole):
                return cause, shown
    if phase["when"] == "collect":
        return UntestableCause.COLLECTION, shown
    return None, shown


def _is_comparison(chain: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a test's own assertion failed: it says what was compared, whatever words
    are in that. torch raises AssertionError as well, where it lacks CUDA."""
    if not chain or not chain[0]["type"].endswith("AssertionError"):
        return False
    frames = chain[0].get("frames") or [""]
    return "/torch/" not in frames[-1]


def summed(
    tree: str,
    tests: Sequence[UpstreamTest],
    seconds: float,
    last: Sequence[str] = (),
    only: Iterable[str] | None = None,
) -> UpstreamRun:
    """What all tests come to: red where one is red, green where one is green and none
    is red.

    Args:
        only: tests that count; None: all.
    """
    names = None if only is None else set(only)
    counted = [seen for seen in tests if names is None or seen.test in names]
    red = [seen for seen in counted if seen.state is TreeTestState.RED]
    green = [seen for seen in counted if seen.state is TreeTestState.GREEN]
    if red:
        first = red[0]
        state, cause, why = TreeTestState.RED, None, f"{first.test}: {first.why}"
    elif green:
        state, cause, why = TreeTestState.GREEN, None, f"{len(green)} passed"
    else:
        state, cause, why = (
            TreeTestState.UNTESTABLE,
            UntestableCause.NONE,
            "no test ran",
        )
        if counted:
            cause, why = counted[0].cause, f"{counted[0].test}: {counted[0].why}"
    return UpstreamRun(
        tree=tree,
        state=state,
        cause=cause,
        why=why,
        tests=list(tests),
        seconds=round(seconds, 1),
        last=list(last),
    )


# ------------------------------------------------------------------ the tests' files


def unpack_tests(
    clone: Path, rev: str, folder: Path, *, newer: str = "", files: Sequence[str] = ()
) -> list[str]:
    """Write the tests of a commit into ``folder``, as git has them, and over them
    ``files`` as a newer commit has them.

    Returns:
        those of ``files`` that the commit itself has otherwise or not at all.

    Raises:
        UsageError: git refuses.
    """
    own = _listed(clone, rev, ("tests", "test", *_BESIDE))
    _write(clone, own, folder)
    if not newer:
        return []
    later = _listed(clone, newer, files)
    _write(clone, later, folder)
    return [name for name in later if own.get(name) != later[name]]


def _listed(clone: Path, rev: str, paths: Sequence[str]) -> dict[str, str]:
    """git's name of the content by file."""
    if not paths:
        return {}
    listed = ask_git(clone, "ls-tree", "-rz", rev, "--", *paths)
    names = {}
    for line in os.fsdecode(listed).split("\0"):
        about, _, name = line.partition("\t")
        if about and about.split()[1] == "blob" and not about.startswith("120000"):
            names[name] = about.split()[2]
    return names


def _write(clone: Path, names: Mapping[str, str], folder: Path) -> None:
    asked = "".join(f"{sha}\n" for sha in names.values()).encode()
    answer = ask_git(clone, "cat-file", "--batch", stdin=asked)
    at = 0
    for name in names:
        end = answer.index(b"\n", at)
        head = answer[at:end].split()
        if head[-1] == b"missing":  # a clone may lack its largest files
            at = end + 1
            continue
        size = int(head[2])
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(answer[end + 1 : end + 1 + size])
        at = end + size + 2


# ------------------------------------------------------------------ the run


def test_tools(environment: Environment) -> Path:
    """The folder with pytest and what else the engine's tests import, installed once
    for that Python and month.

    Raises:
        EnvironmentBuildError: they cannot be installed.
    """
    tools = serving(environment.spec.engine).tests.tools
    cutoff = environment.resolved_until
    about = [*tools, environment.python_version, cutoff[:7]]
    key = hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]
    folder = cache_root() / "sources" / f"test-tools-{key}"
    if folder.is_dir():
        return folder
    new = folder.with_name(f".{folder.name}-{os.getpid()}")
    until = ["--exclude-newer", cutoff]
    words = ["pip", "install", "--python", str(environment.python), *until]
    run_uv([*words, "--target", str(new), *tools], doing="installing pytest")
    new.rename(folder)
    return folder


@dataclass(frozen=True)
class UpstreamSide:
    """The tests of one tree.

    Attributes:
        folder: that holds them, as :func:`unpack_tests` leaves it.
        tests: files and tests, as pytest names them.
        red_first: what is red on the side before it runs first: only that can show
            what the side mends, and the time may be over before the rest.
    """

    environment: Environment
    folder: Path
    tests: Sequence[str]
    red_first: bool = False


def run_tests(
    sides: Sequence[UpstreamSide], *, limit_s: float = LIMIT_S
) -> list[UpstreamRun]:
    """Run tests of trees over the same release in one box, one tree after the other.

    What they have in common is imported once: on a CPU that is most of the time.

    Raises:
        NoBox: there is none here.
        EnvironmentBuildError: pytest cannot be installed.
    """
    first = sides[0].environment
    tools = test_tools(first)
    preload = serving(first.spec.engine).tests.preload
    common = (
        first
        if first.below is None
        else ensure(spec_for(first.spec.engine, first.kernels, first.spec.device))
    )
    import_once(common, preload)
    runner = reproducer_path("run_tests.py")
    began = time.monotonic()
    base = box_of(first)
    readable = [*base.readable, tools]
    plans = []
    for number, side in enumerate(sides):
        readable.append(side.environment.path)
        place = str(WORK / str(number))
        words = ["-p", "no:cacheprovider", "-q", "--tb=short", "--rootdir", place]
        # One file that cannot be imported says nothing of the others.
        words.append("--continue-on-collection-errors")
        words += [f"--timeout={_TEST_LIMIT_S}", "--timeout-method=signal"]
        plan = {
            "python": str(side.environment.python),
            "site": str(side.environment.site_packages),
            "folder": place,
            "engine": side.environment.spec.engine,
            "limit_s": limit_s,
            "red_first": side.red_first,
            "arguments": [*words, *side.tests],
        }
        plans.append(plan)

    order = {"tools": str(tools), "preload": preload, "sides": plans}
    reading, writing = os.pipe()
    with ExitStack() as held, tempfile.TemporaryDirectory(prefix="mmr-tests-") as name:
        for side in sides:
            held.enter_context(side.environment.in_use())
        models = cache_root() / MODELS_DIR
        write_hub(_models_named(sides), Path(name) / _HUB, models)
        readable.append(models)
        box_order = replace(
            base,
            argv=(str(common.python), str(runner), str(writing), json.dumps(order)),
            env={**variables_inside(), **_variables(first), **_HUB_VARIABLES},
            readable=tuple(readable),
            copied=tuple(_copies(sides, Path(name))),
            descriptors=(writing,),
            limits=Limits(memory=8 * GIB),
        )
        output = held.enter_context(tempfile.TemporaryFile())
        try:
            box = Box(box_order, stdout=output, stderr=output)
        finally:
            os.close(writing)
        deadline = began + limit_s * len(sides) + _IMPORT_S
        with box:
            lines, late = _lines_until(reading, deadline, box)
        os.close(reading)
        output.seek(max(0, output.seek(0, os.SEEK_END) - 20_000))
        text = output.read().decode("utf-8", "replace")
    last = [one_line(line, 200) for line in text.splitlines()[-_LAST_LINES:]]
    why = box.over or ("they did not end in time" if late else "")
    made = []
    for number, side in enumerate(sides):
        own = [line for line in lines if line.get("side") == number]
        made.append(_side_seen(side, own, last, why))
    return made


_HUB: Final = "hub"
_HUB_VARIABLES: Final = {"HF_HUB_CACHE": str(WORK / _HUB), "HF_HUB_OFFLINE": "1"}
_MOST_TEXT: Final = 1 << 20


def _models_named(sides: Sequence[UpstreamSide]) -> set[str]:
    """Models of a hub that the tests of these sides name: in their own files, and in
    those beside and above them which are no tests."""
    names: set[str] = set()
    for side in sides:
        files: set[Path] = set()
        for test in side.tests:
            file = side.folder / test.partition("::")[0]
            files.add(file)
            for folder in file.relative_to(side.folder).parents:
                beside = (side.folder / folder).glob("*.py")
                files |= {one for one in beside if not one.name.startswith("test_")}
        for file in files:
            if file.is_file():
                with file.open("rb") as opened:
                    text = opened.read(_MOST_TEXT).decode("utf-8", "replace")
                names |= hub_models_named(text)
    return names


def _copies(sides: Sequence[UpstreamSide], folder: Path) -> list[Path]:
    """A folder whose content the box gets: the tests of each side below its number."""
    for number, side in enumerate(sides):
        place = folder / str(number)
        shutil.copytree(side.folder, place, symlinks=True)
    return [folder]


def _side_seen(
    side: UpstreamSide,
    lines: Sequence[Mapping[str, Any]],
    last: Sequence[str],
    why: str,
) -> UpstreamRun:
    """What one tree's tests came to; ``why``: the box was ended before its time."""
    spec = side.environment.spec
    seen = _seen(lines, spec.engine)
    seconds = max((float(line["at"]) for line in lines), default=0.0)
    made = summed(spec.release, seen, seconds, last)
    ended = next((line for line in lines if line.get("kind") == "ended"), None)
    if ended is not None and ended["code"] == -signal.SIGALRM:
        why = "they did not end in time"
    elif ended is not None and ended["code"] < 0:
        why = f"a test ended the process by signal {-ended['code']}"
    if why and made.state is not TreeTestState.RED:
        made.state, made.cause = TreeTestState.UNTESTABLE, UntestableCause.LATE
        made.why = why
    elif not seen and last:
        made.why = next((line for line in reversed(last) if line), made.why)
    return made


def _lines_until(
    reading: int, deadline: float, box: Box
) -> tuple[list[dict[str, Any]], bool]:
    """What the tests wrote, and whether they were late."""
    held = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return _parsed(held), True
        ready, _, _ = select.select([reading], [], [], min(left, 0.5))
        if ready:
            piece = os.read(reading, 1 << 16)
            held += piece
            if not piece:
                return _parsed(held), False
        elif box.poll() is not None:
            return _parsed(held), False


def _parsed(content: bytes) -> list[dict[str, Any]]:
    lines = []
    for line in content.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # cut off
            continue
        if isinstance(entry, dict):
            lines.append(entry)
    return lines


def _seen(lines: Sequence[Mapping[str, Any]], engine: str) -> list[UpstreamTest]:
    phases: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if line.get("kind") == "phase":
            phases.setdefault(str(line["test"]), []).append(line)
        elif line.get("kind") == "begins":
            phases.setdefault(str(line["test"]), [])
    seen = []
    for test, own in phases.items():
        if own:
            seen.append(judged(own, engine))
            continue
        why = "it had begun, and there is no end of it"
        late = UntestableCause.LATE
        state = TreeTestState.UNTESTABLE
        seen.append(UpstreamTest(test=test, state=state, cause=late, why=why))
    return seen


def _variables(environment: Environment) -> dict[str, str]:
    """What the engine gets from mmrepro on this machine: stand-ins, the CPU's settings,
    caches in the box."""
    spec = environment.spec
    wanted = ServerWanted(engine=spec.engine, release=spec.release)
    scenario, options = replayed(wanted, RunCommand(release=spec.release))
    model = scenario.model.write(cache_root() / MODELS_DIR)
    plan = ServerSpec(scenario, options, environment, model).plan(8000)
    state = str(environment.state_dir)
    own = run_variables(plan.env, str(TEMPORARY))
    for name, value in own.items():
        own[name] = value.replace(state, str(TEMPORARY / "state"))
    own["PYTHONDONTWRITEBYTECODE"] = "1"
    return own
