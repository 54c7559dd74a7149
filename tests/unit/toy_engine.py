"""A package of one module that stands for an engine: real processes, nothing to
import."""

import os
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

from mmrepro.engines.supervise import EngineProcess, Entry
from mmrepro.engines.supervise.warm import ForkServer, ForkServerSpec

TIMEOUT_S = 60.0

SAY_ALL = """
    import json, os, random, sys, tempfile, time
    print("imported", flush=True)
    if __name__ == "__main__":
        facts = {
            "argv": sys.argv, "cwd": os.getcwd(), "session": os.getsid(0), "pid": os.getpid(),
            "variable": os.environ.get("TOY"),
            "tmp": tempfile.gettempdir(), "random": random.random(),
            "files": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1],
            "stdin": os.readlink("/proc/self/fd/0"),
        }
        with open("facts.tmp", "w") as file:
            json.dump(facts, file)
        os.rename("facts.tmp", "facts.json")
        time.sleep(600)
"""


def until(holds: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)


def toy(folder: Path, program: str = SAY_ALL, **env: str) -> ForkServerSpec:
    """The specification of a parent of the module ``toy_server``, written into
    ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "toy_server.py").write_text(textwrap.dedent(program))
    return ForkServerSpec(
        label="toy 1.0",
        python=Path(sys.executable),
        module="toy_server",
        preload=("no_such_module_of_this_release",),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env},
        path=(str(folder),),
    )


def serve(
    parent: ForkServer,
    spec: ForkServerSpec,
    folder: Path,
    *arguments: str,
    grace_s: float = 0.3,
) -> EngineProcess:
    folder.mkdir(parents=True, exist_ok=True)
    argv = [str(spec.python), "-m", spec.module, *arguments]
    entry = Entry(spec.module, list(arguments), list(spec.path))
    return parent.start(
        argv,
        entry,
        dict(spec.env),
        cwd=folder,
        log=folder / "engine.log",
        grace_s=grace_s,
    )
