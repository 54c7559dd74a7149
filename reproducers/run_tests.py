"""Runs an engine's own tests on one or several trees, and writes what became of each.

``python run_tests.py DESCRIPTOR ORDER``: ORDER is JSON, ``{"tools", "preload", "sides":
[{"python", "site", "folder", "limit_s", "arguments"}]}``. What all trees have in common
(torch, transformers) is imported once; each tree's tests then run in a process that is
forked, with the tree's own packages before the common ones. The folder of pytest and
its plugins comes after all that the environment has, so that nothing of the engine's
is replaced. A line of JSON a phase goes to the descriptor. Nothing is concluded
here."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

_MOST = 4000
"""Characters of a message."""


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

        @pytest.hookimpl(wrapper=True)
        def pytest_make_collect_report(self, collector: Any) -> Any:
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
            signal.alarm(int(side["limit_s"]))
            if conflicts(side["site"]):
                again = json.dumps({**order, "only": number})
                words = [side["python"], __file__, str(descriptor), again]
                os.execv(side["python"], words)  # noqa: S606
            _end(run_side(order["tools"], descriptor, number, side))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        Reporter(descriptor, number).send(kind="ended", code=code)
    _end(0)


def _end(code: int) -> NoReturn:
    """End at once: threads that a test left would keep the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
