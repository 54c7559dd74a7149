"""A finding's upstream test, run in installed trees: red where the failure is, green
where it is not."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil
from mmrepro.base.errors import NotConfirmed
from mmrepro.base.machine import cache_root, device_of
from mmrepro.base.records import FindingClass
from mmrepro.base.text import one_line
from mmrepro.engines import spec_for
from mmrepro.engines.environments import Environment, ensure
from mmrepro.engines.serving import serving
from mmrepro.engines.supervise import free_port, run_variables
from mmrepro.reproducers import reproducer_path
from mmrepro.runs import RunCommand, ServerSpec, test_tools
from mmrepro.runs.play import replayed
from mmrepro.traffic.case import ServerWanted

_PYTEST = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "pygments")
"""What pytest is made of, all of it Python: it is lent to an environment that has
none."""
_TIMEOUT_S = 900.0
_LAST_LINES = 12
_TEST = "test_upstream.py"
_SILENT = "it answers nothing at all"
"""What a test asserts first: where nothing is answered, nothing is tested."""


@dataclass(frozen=True)
class _TreeVerdict:
    """What a test said of one tree.

    Attributes:
        red: it failed by what it asserts; None: it could not be run, which says
            nothing.
        said: its assertion, or why it could not be run.
    """

    tree: str
    red: bool | None
    said: str
    seconds: float
    log: tuple[str, ...] = ()


def confirmed(
    write: Callable[[str], str],
    kind: FindingClass,
    server: ServerWanted,
    good: str,
    say: Callable[[str], None],
) -> str:
    """The test, once it was run where the failure is and, if ``good`` is given, where
    it is not.

    Args:
        write: makes the test; gets the sentences on where it was run.
        server: where the failure is.
        good: a release without it; "": none is known.
        say: gets what goes on.

    Raises:
        NotConfirmed: it is not red there, or not green there: it is of no use to
            others.
        MmreproError: as ``ensure``.
    """
    text = write("")
    bad = _run(text, kind, server, server.release, say)
    if bad.red is not True:
        raise _of_no_use(bad, "fail", "where the finding is")
    sentences = [f"It fails with {bad.tree}: {bad.said}."]
    if good:
        fixed = _run(text, kind, server, good, say)
        if fixed.red is not False:
            raise _of_no_use(fixed, "pass", "which should be without the failure")
        sentences.append(f"It passes with {fixed.tree}.")
    else:
        sentences.append(
            "It was not run on a tree without the failure: none was named."
        )

    device = device_of("auto")
    sentences.append(
        f"Run by mmrepro on {'a CPU' if device == 'cpu' else 'a GPU'}{_lent(server)}."
    )
    return write(" ".join(sentences))


def _lent(server: ServerWanted) -> str:
    lent = serving(server.engine).tests.lent
    if lent:
        return lent
    return ", with stand-ins for GPU kernels" if device_of("auto") == "cpu" else ""


def _of_no_use(verdict: _TreeVerdict, wanted: str, where: str) -> NotConfirmed:
    came = {True: "fails", False: "passes", None: "cannot be run"}[verdict.red]
    return NotConfirmed(
        (
            f"The test is to {wanted} with {verdict.tree}, {where}, and {came}: "
            f"{verdict.said}."
        ),
        hint="--no-run prints it as it is",
        detail=list(verdict.log),
    )


def _run(
    text: str,
    kind: FindingClass,
    server: ServerWanted,
    release: str,
    say: Callable[[str], None],
) -> _TreeVerdict:
    """Run the test with ``release``, in a folder that has the form of the engine's own
    tests."""
    environment = ensure(spec_for(server.engine, release), progress=say)
    tree = f"{server.engine} {release}"
    began = time.monotonic()
    say(f"running the test with {tree}")
    with (
        tempfile.TemporaryDirectory(prefix="mmrepro-upstream-") as name,
        environment.in_use(),
    ):
        folder = Path(name)
        test = _tests(folder, server.engine) / _TEST
        test.write_text(text, encoding="utf-8")
        log, report = folder / "log", folder / "report.xml"
        with log.open("wb") as output:
            words = [
                "-m",
                "pytest",
                "-x",
                "-p",
                "no:cacheprovider",
                "--junit-xml",
                str(report),
            ]
            child = subprocess.Popen(
                [str(environment.python), *words, str(test)],
                cwd=folder,
                env=_variables(environment, server, release, folder),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with _ended(child):
                try:
                    child.wait(_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    why = f"it did not end within {_TIMEOUT_S:g} s"
                    return _TreeVerdict(
                        tree, None, why, time.monotonic() - began, _last(log)
                    )

        red, said = _read(report, kind)
        return _TreeVerdict(
            tree, red, said, round(time.monotonic() - began, 1), _last(log)
        )


def _tests(folder: Path, engine: str) -> Path:
    """A folder for the test, as deep in the engine's tree as it is written for."""
    tests = serving(engine).tests
    if not tests.folder:
        return folder
    place = folder / tests.folder
    place.mkdir(parents=True)
    for package in (place, *place.parents[:2]):
        (package / "__init__.py").touch()
    shutil.copy(reproducer_path(tests.utils), folder / "tests" / "utils.py")
    return place


def _variables(
    environment: Environment, server: ServerWanted, release: str, folder: Path
) -> dict[str, str]:
    """What the engine gets from mmrepro on this machine: stand-ins, caches, the CPU's
    settings."""
    wanted = server.model_copy(update={"release": release})
    scenario, options = replayed(wanted, RunCommand(release=release))
    model = scenario.model.write(cache_root() / "models")
    plan = ServerSpec(scenario, options, environment, model).plan(free_port())
    lent, temporary = folder / "lent", folder / "tmp"
    lent.mkdir()
    temporary.mkdir()
    own = run_variables(plan.env, str(temporary))
    pytest_from = _pytest_for(environment, lent)
    paths = [own.get("PYTHONPATH", ""), str(folder), str(pytest_from)]
    own["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    programs = [str(environment.python.parent), os.environ.get("PATH", "")]
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PYTHON", "VIRTUAL_ENV"))
    }
    return {**kept, **own, "PATH": os.pathsep.join(programs)}


def _pytest_for(environment: Environment, lent: Path) -> Path:
    """The folder that lends pytest to an environment: ``lent`` with links to this
    Python's own, or where it has none, the tools of the engine's tests.

    Raises:
        EnvironmentBuildError: they cannot be installed.
    """
    origins: list[tuple[str, Path]] = []
    for module in _PYTEST:
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            return test_tools(environment)
        origin = Path(spec.origin)
        is_package = origin.name == "__init__.py"
        origins.append((module, origin.parent if is_package else origin))

    for module, origin in origins:
        if (environment.site_packages / origin.name).exists():
            continue
        # pluggy asks for its version.
        for linked in (origin, *origin.parent.glob(f"{module}-*.dist-info")):
            (lent / linked.name).symlink_to(linked)
    return lent


@contextmanager
def _ended(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Afterwards nothing of its session is left."""
    try:
        yield
    finally:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            left = [pid for pid in psutil.pids() if _session(pid) == child.pid]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sent)
            _, alive = psutil.wait_procs(
                [p for pid in left if (p := _process(pid))], timeout=8
            )
            if not alive:
                break
        child.wait()


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def _read(report: Path, kind: FindingClass) -> tuple[bool | None, str]:
    """Whether the test failed by its assertion, and what it said."""
    try:
        suite = ElementTree.parse(report).getroot().find("testsuite")  # noqa: S314 - pytest's
    except (OSError, ElementTree.ParseError):
        suite = None

    if suite is None or suite.get("tests") in (None, "0"):
        return None, "pytest ran no test"
    broken = [*suite.iter("error"), *suite.iter("failure")]
    if not broken:
        skipped = suite.find("testcase/skipped") is not None
        return (None, "it was skipped") if skipped else (False, "it passes")
    message = one_line(broken[0].get("message") or "", 300).rstrip(".")
    # SGLang's CustomTestCase tries again, and raises another exception of its own at
    # the end.
    asserted = re.findall(r"AssertionError: (.+)", broken[0].text or "")
    # pytest puts the rewritten expression behind the sentence, unittest before it.
    said = asserted[-1].partition(" assert not")[0] if asserted else message
    said = one_line(said.rpartition(" is not false : ")[2], 300).rstrip(".")
    if said.endswith(_SILENT):
        return None, said
    if broken[0].tag == "failure" and (asserted or kind is FindingClass.START_FAILURE):
        return True, said
    return None, message or "pytest could not run it"


def _last(log: Path) -> tuple[str, ...]:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return tuple(one_line(line, 200) for line in lines[-_LAST_LINES:] if line.strip())
