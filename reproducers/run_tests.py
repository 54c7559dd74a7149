"""Runs an engine's own tests on one or several trees, and writes what became of each.

``python run_tests.py DESCRIPTOR ORDER``: ORDER is JSON, ``{"tools", "preload", "sides":
[{"python", "site", "folder", "engine", "limit_s", "arguments"}]}``. What all trees have in
common (torch, transformers) is imported once; each tree's tests then run in a process
that is forked, with the tree's own packages before the common ones. The folder of pytest
and its plugins comes after all that the environment has, so that nothing of the engine's
is replaced. A line of JSON a phase goes to the descriptor. Nothing is concluded here.

Where a file of tests imports a name of the engine that the tree lacks, a placeholder
takes its place (:class:`AbsentName`): the tests that do not use the name still run."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import inspect
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, NoReturn

_MOST = 4000
"""Characters of a message."""
_POLL_S = 0.1
_MOST_RED = 1 << 20
"""Characters of a list of red tests."""


class Reporter:
    """A plugin of pytest's."""

    def __init__(self, descriptor: int, number: int) -> None:
        self._descriptor = descriptor
        self._number = number
        self._began = time.monotonic()

    def send(self, **facts: Any) -> None:
        facts["side"] = self._number
        facts["at"] = round(time.monotonic() - self._began, 3)
        left = (json.dumps(facts) + "\n").encode()
        while left:
            left = left[os.write(self._descriptor, left) :]

    def pytest_collection_finish(self, session: Any) -> None:
        self.send(kind="collected", tests=[item.nodeid for item in session.items])

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome == "passed":
            return
        call = getattr(report, "mmrepro", None) or {}
        text = str(report.longrepr or "")[-_MOST:]
        state = report.outcome
        self.send(
            kind="phase",
            test=report.nodeid,
            when="collect",
            state=state,
            text=text,
            **call,
        )

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self.send(kind="begins", test=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        text = ""
        if report.outcome != "passed":
            text = str(report.longrepr or "")[-_MOST:]
            self._note(report)
        facts = dict(report.user_properties).get("mmrepro", {})
        self.send(
            kind="phase",
            test=report.nodeid,
            when=report.when,
            state=report.outcome,
            text=text,
            expected=hasattr(report, "wasxfail"),
            seconds=round(report.duration, 3),
            **(facts if report.outcome == "failed" else {}),
        )

    def _note(self, report: Any) -> None:
        """Note a red test for the side after this one, as soon as it is: the time may
        be over."""
        if report.outcome == "failed":
            with _red_of(self._number).open("a") as file:
                file.write(f"{report.nodeid}\n")


def _red_of(number: int) -> Path:
    """The file with the red tests of a side, below the box's own folder for such."""
    return Path(tempfile.gettempdir()) / f"mmrepro-red-{number}"


def _red_before(number: int) -> set[str]:
    """Tests that were red on the side before."""
    try:
        with _red_of(number - 1).open() as file:
            return set(file.read(_MOST_RED).splitlines())
    except (OSError, ValueError):
        return set()


def _facts(error: BaseException) -> dict[str, Any]:
    """An exception with those that it came of: types, messages, innermost frames."""
    chain = []
    seen = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = traceback.extract_tb(current.__traceback__)
        last = [f"{f.filename}:{f.lineno}:{f.name}" for f in frames[-6:]]
        kind = type(current)
        name = f"{kind.__module__}.{kind.__qualname__}"
        chain.append({"type": name, "message": str(current)[:1000], "frames": last})
        current = current.__cause__ or current.__context__
    return {"chain": chain[:6]}


# ------------------------------------------------------- names that a tree lacks


class AbsentName:
    """Placeholder for a name that a file of tests imports and the tree lacks.

    Whatever is done with it raises the ImportError that the import would have raised.
    """

    def __init__(self, module: str, name: str) -> None:
        self.__dict__["said"] = f"cannot import name {name!r} from {module!r}"

    def __getattr__(self, name: str) -> Any:
        # pytest and inspect ask anything for names of that form, and take no for an answer.
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(self.said)

    def __or__(self, other: object) -> AbsentName:
        """In an annotation, which runs nothing: ``Name | None``."""
        return self

    __ror__ = __or__

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ImportError(self.said)

    __call__ = __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = _refuse
    __eq__ = __ne__ = __lt__ = __gt__ = __enter__ = __setattr__ = _refuse
    __instancecheck__ = __subclasscheck__ = __mro_entries__ = _refuse
    __hash__ = object.__hash__


class PlaceholderImports:
    """The import statement for files of tests: ``from engine.module import name`` with a
    placeholder for each name that the tree lacks.

    Only statements at the top of files below ``folder`` are changed: one in a function
    raises ImportError in its own test alone, and no module of the engine's is touched.
    """

    def __init__(self, engine: str, folder: str) -> None:
        self._engine, self._folder = engine, f"{folder}/"
        self._import = builtins.__import__

    def __enter__(self) -> None:
        builtins.__import__ = self._imported

    def __exit__(self, *_: object) -> None:
        builtins.__import__ = self._import

    def _imported(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if not (fromlist and level == 0 and self._is_own(name, globals, locals)):
            return self._import(name, globals, locals, fromlist or (), level)
        try:
            module: Any = self._import(name, globals, locals, fromlist, level)
        except ModuleNotFoundError as error:
            # Not one that the engine's own module asks for, which is that module's fault.
            missing = error.name or ""
            if name != missing and not name.startswith(missing + "."):
                raise
            module = SimpleNamespace()
        if all(hasattr(module, one) for one in fromlist if one != "*"):
            return module
        found = {one: getattr(module, one, AbsentName(name, one)) for one in fromlist}
        return SimpleNamespace(**found)

    def _is_own(
        self,
        name: str,
        globals: Mapping[str, Any] | None,
        locals: Mapping[str, Any] | None,
    ) -> bool:
        """Whether a file of tests asks for the engine, outside of any function."""
        if name.partition(".")[0] != self._engine or globals is None:
            return False
        is_test = str(globals.get("__file__")).startswith(self._folder)
        return is_test and locals is globals


def absent_in(item: Any) -> AbsentName | None:
    """The placeholder that a test uses, itself, by a parameter, its class, a fixture, or
    a function of its file that it calls; None: none."""
    call = getattr(item, "callspec", None)
    for value in call.params.values() if call is not None else ():
        if isinstance(value, AbsentName):
            return value
    functions = [item.function]
    for fixtures in item._fixtureinfo.name2fixturedefs.values():
        functions += [fixture.func for fixture in fixtures]
    seen: set[int] = set()
    for function in functions:
        function = inspect.unwrap(getattr(function, "__func__", function))
        if isinstance(function, FunctionType):
            found = _absent_below(function, seen)
            if found is not None:
                return found
    return None


def _absent_below(function: FunctionType, seen: set[int]) -> AbsentName | None:
    """The first placeholder among the globals that a function names, or that functions
    and classes of its own file name which it uses."""
    if id(function) in seen:
        return None
    seen.add(id(function))
    own = function.__globals__
    for name in _names_in(function.__code__):
        value = own.get(name)
        if isinstance(value, AbsentName):
            return value
        for called in _functions_of(value, own["__name__"]):
            found = _absent_below(called, seen)
            if found is not None:
                return found
    return None


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _functions_of(value: Any, module: str) -> Iterator[FunctionType]:
    """A function of that module itself, or the methods of a class of it."""
    if isinstance(value, FunctionType) and value.__module__ == module:
        yield value
    elif isinstance(value, type) and value.__module__ == module:
        for method in vars(value).values():
            method = getattr(method, "__func__", method)
            if isinstance(method, FunctionType):
                yield method


# ------------------------------------------------------------------ one tree


def run_side(tools: str, descriptor: int, number: int, side: dict[str, Any]) -> int:
    """Run the tests of one tree in this process."""
    folder = side["folder"]
    os.chdir(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [folder, side["site"], os.environ.get("PYTHONPATH", "")]
    )
    sys.path[:0] = [folder, side["site"]]
    if tools not in sys.path:
        sys.path.append(tools)
    import pytest

    reporter = Reporter(descriptor, number)

    class Hooks:
        """Hooks that need pytest's decorator."""

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            report = yield
            if call.excinfo is not None:
                facts = _facts(call.excinfo.value)
                report.user_properties.append(("mmrepro", facts))
            return report

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            red = _red_before(number) if side.get("red_first") else set()
            items.sort(key=lambda item: item.nodeid not in red)

        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(self, item: Any) -> None:
            absent = absent_in(item) if hasattr(item, "function") else None
            if absent is not None:
                raise ImportError(absent.said)

        @pytest.hookimpl(wrapper=True)
        def pytest_make_collect_report(self, collector: Any) -> Any:
            with PlaceholderImports(side["engine"], folder):
                report = yield
            call = getattr(report, "call", None)
            if call is not None and call.excinfo is not None:
                report.mmrepro = _facts(call.excinfo.value)
            return report

    return int(pytest.main(side["arguments"], plugins=[reporter, Hooks()]))


def conflicts(site: str) -> list[str]:
    """Packages of a tree's own that are imported already, from elsewhere."""
    names = {path.name.partition(".")[0] for path in Path(site).iterdir()}
    return sorted(names & sys.modules.keys())


def main() -> None:
    descriptor = int(sys.argv[1])
    order = json.loads(sys.argv[2])
    # This file's own folder is no place of the tests'.
    del sys.path[0]
    sides = dict(enumerate(order["sides"]))
    if "only" in order:
        number = order["only"]
        _end(run_side(order["tools"], descriptor, number, sides[number]))

    sys.path.append(order["tools"])
    for name in order["preload"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for number, side in sides.items():
        child = os.fork()
        if not child:
            os.setpgid(0, 0)
            if conflicts(side["site"]):
                again = json.dumps({**order, "only": number})
                words = [side["python"], __file__, str(descriptor), again]
                os.execv(side["python"], words)  # noqa: S606
            _end(run_side(order["tools"], descriptor, number, side))
        code = _code_of(child, float(side["limit_s"]))
        Reporter(descriptor, number).send(kind="ended", code=code)
    _end(0)


def _code_of(child: int, limit_s: float) -> int:
    """The exit code of a tree's tests; -SIGALRM: they had not ended in time, and are
    ended with what they started.

    They have no alarm of their own: pytest-timeout sets that of each test.
    """
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGALRM


def _end(code: int) -> NoReturn:
    """End at once: threads that a test left would keep the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
