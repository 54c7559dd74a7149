"""Standard streams that are narrow, full, closed or cut off, as a shell hands them to
mmrepro."""

import array
import fcntl
import json
import os
import re
import subprocess
import sys
import termios
import time
from itertools import product
from pathlib import Path

import pytest
from grids import grid
from mmrepro.base.errors import ExitCode
from simple_incident import incident

PIPE_BYTES = 65536
NARROW = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}


SCHEMA = "run --json-schema"
"""It prints more than a pipe holds."""


def shell(
    script: str, *, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """``script`` run by bash, in which ``$M`` is mmrepro."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"],
        capture_output=True,
        check=False,
        cwd=cwd,
        timeout=60,
        env={**os.environ, "M": f"{sys.executable} -m mmrepro", **variables},
    )
    said = done.stdout + done.stderr
    assert b"Traceback" not in said, said
    assert b"bug of mmrepro" not in said, said
    assert b"Exception ignored" not in said, said
    return done


@pytest.mark.parametrize(
    "command",
    grid(["show ghost-key-eviction", "--help"], always=["show ghost-key-eviction"]),
)
def test_what_the_encoding_lacks_is_escaped(command: str) -> None:
    wide = shell(f"$M {command}", PYTHONUTF8="1").stdout.decode()
    for name, variables in NARROW.items():
        done = shell(f"$M {command}", **variables)
        assert done.returncode == ExitCode.AS_EXPECTED
        narrow = done.stdout.decode("latin-1" if name == "latin-1" else "ascii")
        assert (
            re.sub(r"\\u([0-9a-f]{4})", lambda it: chr(int(it[1], 16)), narrow) == wide
        )


@pytest.mark.parametrize("variables", NARROW.values(), ids=NARROW)
def test_json_stays_json(variables: dict[str, str], tmp_path: Path) -> None:
    odd = "é ∞ 🖼"
    folder = tmp_path / odd
    folder.mkdir()
    (folder / "incident.json").write_text(
        incident(id=odd).model_dump_json(), encoding="utf-8"
    )
    done = shell(f"$M report '{odd}' --format json", cwd=tmp_path, **variables)
    assert done.returncode == ExitCode.AS_EXPECTED, done.stderr
    assert odd in json.dumps(
        json.loads(done.stdout.decode("latin-1")), ensure_ascii=False
    )


LOST = {"> /dev/full": "No space left on device", ">&-": "Bad file descriptor"}


@pytest.mark.parametrize(
    ("command", "stdout"),
    grid(
        product(["list", "list --json", "--help"], LOST),
        always=[("list --json", "> /dev/full"), ("--help", ">&-")],
    ),
)
def test_a_stdout_that_takes_nothing(stdout: str, command: str) -> None:
    why = LOST[stdout]
    done = shell(f"$M {command} {stdout}")
    assert done.stderr.decode() == f"Cannot write to stdout: {why}.\n"
    assert done.returncode == ExitCode.INFRASTRUCTURE


def test_nothing_said_is_nothing_lost() -> None:
    done = shell("$M run no-such-scenario >&-")
    assert done.returncode == ExitCode.USAGE
    assert b"no-such-scenario" in done.stderr


@pytest.mark.parametrize(
    "command",
    grid([SCHEMA, "show ghost-key-eviction", "--help"], always=[SCHEMA, "--help"]),
)
def test_a_reader_that_leaves(command: str) -> None:
    """A pipe nobody reads any more, opened before the command starts: no race with
    ``head``."""
    done = shell(f"exec 3> >(:); wait $!; $M {command} >&3")
    assert done.returncode == ExitCode.READER_GONE
    assert done.stderr == b""


def test_a_stderr_whose_reader_left() -> None:
    assert (
        shell("exec 3> >(:); wait $!; $M run nothing 2>&3").returncode
        == ExitCode.READER_GONE
    )


@pytest.mark.parametrize("stderr", ["2>&-", "2> /dev/full"])
def test_a_lost_stderr_changes_no_exit_code(stderr: str) -> None:
    assert shell(f"$M run no-such-scenario {stderr}").returncode == ExitCode.USAGE
    done = shell(f"$M list --json {stderr} <&-")
    assert done.returncode == ExitCode.AS_EXPECTED
    assert json.loads(done.stdout)


def test_no_stream_at_all() -> None:
    assert shell("$M list <&- >&- 2>&-").returncode == ExitCode.INFRASTRUCTURE


def test_a_stdout_that_does_not_block() -> None:
    """ssh and node hand such pipes on: a write that finds them full waits."""
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    child = subprocess.Popen(
        [sys.executable, "-m", "mmrepro", *SCHEMA.split()], stdout=theirs
    )
    os.close(theirs)
    deadline = time.monotonic() + 30
    while (
        child.poll() is None
        and waiting_in(ours) < PIPE_BYTES
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    with os.fdopen(ours, "rb") as pipe:
        assert json.loads(pipe.read())
    assert child.wait(30) == ExitCode.AS_EXPECTED


def waiting_in(pipe: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]
