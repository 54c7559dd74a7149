"""Single-file reproducers: run beside the server, by the engine's own interpreter."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmrepro.errors import MmreproError
from mmrepro.evidence import ReproducerResult
from mmrepro.machine.child_env import child_environment
from mmrepro.reproducers import reproducer_path
from mmrepro.supervise import Entry
from mmrepro.supervise.warm import ForkServer

TIMEOUT_S = 60.0
POLL_S = 0.02


@dataclass(frozen=True)
class Interpreter:
    """What runs a reproducer.

    Attributes:
        python: the engine's interpreter.
        env: what the engine itself got besides the cleaned environment: a patch that the engine
            has, the reproducer has too.
        parent: where the server was forked from it, the reproducer is too: most of its time is the
            engine's import.
    """

    python: Path
    env: Mapping[str, str]
    parent: ForkServer | None = None

    def run(self, name: str, folder: Path) -> ReproducerResult:
        """Run the reproducer ``name``; the last line that it prints is a JSON object of facts.

        ``folder``: an existing one for what it prints where it is forked. Never raises.
        """
        started = time.monotonic()
        result = ReproducerResult(name=name, exit_code=None, seconds=0.0)
        try:
            result.forked, (result.exit_code, output, error) = self._outcome(name, folder)
            if result.exit_code == 0:
                facts = json.loads(output.strip().splitlines()[-1])
                result = ReproducerResult.model_validate({**result.model_dump(), "facts": facts})
            else:
                result.error = error.strip()[-500:]
        except TimeoutError:
            result.error = f"no result in {TIMEOUT_S:.0f} s"
        except (OSError, ValueError, IndexError) as problem:
            result.exit_code = None  # pydantic's error is a ValueError
            result.error = f"{type(problem).__name__}: {problem}"[:500]
        result.seconds = round(time.monotonic() - started, 3)
        return result

    def _outcome(self, name: str, folder: Path) -> tuple[bool, tuple[int, str, str]]:
        if self.parent is not None:
            with contextlib.suppress(MmreproError):  # the parent ended meanwhile
                return True, self._forked(name, folder, self.parent)
        return False, self._new_process(name)

    def _new_process(self, name: str) -> tuple[int, str, str]:
        try:
            done = subprocess.run(
                [str(self.python), str(reproducer_path(name))],
                env=child_environment() | dict(self.env),
                capture_output=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise TimeoutError from expired
        output, error = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
        return done.returncode, output, error

    def _forked(self, name: str, folder: Path, parent: ForkServer) -> tuple[int, str, str]:
        script = reproducer_path(name)
        log = folder / f"{script.stem}.log"
        process = parent.start(
            [str(self.python), str(script)],
            Entry(script.stem, [], [str(script.parent)]),
            child_environment() | dict(self.env),
            cwd=folder,
            log=log,
            grace_s=0.0,
        )
        try:
            deadline = time.monotonic() + TIMEOUT_S
            while (code := process.exit_code) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(POLL_S)
        finally:
            process.stop()
        output = log.read_text(errors="replace")
        return code, output, output
