"""``bisect-run`` of a scenario that is not mmrepro's own, in a process apart.

``git bisect`` reads exit code 0 as good and almost every other one as bad. So code that
is not ours never decides on it: a scenario's file may end its process, close its
streams, or never come to an end. The process that runs it answers through a pipe of its
own, in lines that carry a secret word; how that process ends is not asked. Without an
answer the tree cannot be tested."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mmrepro.base.errors import ExitCode, MmreproError
from mmrepro.base.machine import die_with_parent
from mmrepro.base.units import duration
from mmrepro.campaign.bisect import between
from mmrepro.campaign.bisect.once import GitCode, Tested
from mmrepro.campaign.bisect.options import BisectRunCommand
from mmrepro.campaign.trial import BUILD_S, GRACE_S
from mmrepro.failure.documents.searches import PointVerdict
from pydantic import ValidationError

PROGRAM = "mmrepro.cli.bisect_apart"
LOAD_S = 30.0
"""Until the scenario's file is loaded."""
_READ_S = 900.0
"""For reading the source tree, besides the runs."""
END_S = 3.0
"""Between the last word of the process and its end."""
_MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class TestOrder:
    """What the process is to do; it is pickled, from us to us."""

    secret: str
    asked: BisectRunCommand
    root: Path


class AnswerPipe:
    """The pipe through which the process answers: its end of it."""

    def __init__(self, number: int, secret: str) -> None:
        os.set_inheritable(number, False)
        self._number, self._secret = number, secret

    def send(self, kind: str, **said: Any) -> None:
        """Raises OSError: the scenario's code closed it."""
        line = json.dumps({"secret": self._secret, "kind": kind, **said}) + "\n"
        left = line.encode()
        while left:
            left = left[os.write(self._number, left) :]


def tested_apart(asked: BisectRunCommand, root: Path) -> Tested:
    """Test as ``tested`` does, by a process that may do whatever it likes to itself.

    Raises:
        MmreproError: the command line is wrong, or the machine is at fault, as
            ``tested`` says.
    """
    secret = secrets.token_hex(16)
    reading, writing = os.pipe()
    program = [sys.executable, "-P", "-m", PROGRAM, str(writing)]
    command = [
        sys.executable,
        "-I",
        "-S",
        str(Path(between.__file__)),
        str(writing),
        *program,
    ]
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=2,  # what the file prints is no verdict
            pass_fds=(writing,),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    finally:
        os.close(writing)

    patience_s = END_S
    try:
        with contextlib.suppress(BrokenPipeError), _input_of(child) as order:
            pickle.dump(TestOrder(secret, asked, root), order)

        answers = _AnswerLines(reading, secret, child)
        last = answers.next(LOAD_S)
        if last.get("kind") == "loaded":
            # An engine may be running, which is to be ended.
            patience_s = GRACE_S + END_S
            runs = asked.repeat + 1
            last = answers.next(_READ_S + runs * (BUILD_S + asked.timeout_s))

        made = _tested(asked, last, answers.why)
        patience_s = END_S
        return made
    finally:
        os.close(reading)
        _end(child, patience_s)


def _input_of(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdin is not None
    return child.stdin


def _tested(asked: BisectRunCommand, last: dict[str, Any], why: str) -> Tested:
    """Read the last answer. Raises MmreproError: it is a refusal."""
    if last.get("kind") == "refused":
        error = MmreproError(str(last["message"]), hint=str(last["hint"]))
        error.detail = [str(line) for line in last["detail"]]
        error.exit_code = ExitCode(last["exit_code"])
        raise error
    if last.get("kind") == "tested":
        with contextlib.suppress(ValidationError):
            return Tested.model_validate(last["tested"])
    if last.get("kind") == "untestable":
        why = str(last["why"])
    return Tested(
        tree=asked.source,
        words=asked.source,
        verdict=PointVerdict.UNTESTABLE,
        why=f"{asked.scenario} {why}",
        exit_code=GitCode.SKIP,
        term="",
        runs=[],
    )


class _AnswerLines:
    """The lines that come through the pipe and carry the secret; others are somebody
    else's."""

    def __init__(
        self, number: int, secret: str, child: subprocess.Popen[bytes]
    ) -> None:
        self._number, self._secret, self._child = number, secret, child
        self._held = b""
        self.why = "ended its process before there was a verdict"
        """Why there is no answer, after the file's name."""

    def next(self, limit_s: float) -> dict[str, Any]:
        """The next answer; {}: there is none, and ``why``."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            line, newline, rest = self._held.partition(b"\n")
            if newline:
                self._held = rest
                if found := self._answer(line):
                    return found
                continue

            ended = self._child.poll() is not None
            ready, _, _ = select.select([self._number], [], [], 0 if ended else 0.2)
            if not ready and ended:
                return {}
            if ready and not self._read():
                return {}

        self.why = f"came to no verdict within {duration(limit_s)}"
        return {}

    def _read(self) -> bool:
        """Take what has come; False: nothing more will."""
        got = os.read(self._number, 1 << 16)
        self._held += got
        return bool(got) and len(self._held) < _MOST_BYTES

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            return {}

        ours = isinstance(found, dict) and found.get("secret") == self._secret
        return found if ours else {}


def _end(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Wait for its end, ask for it, force it. What it started is killed with it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_S if patience_s == END_S else 0.0)
        return

    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(patience_s)
        return

    child.kill()
    child.wait()
