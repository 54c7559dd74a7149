"""The stand-in that writes which lines run: the same ones by both of Python's ways."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from mmrepro.reproducers import reproducer_path

CODE = """\
import threading


def work(number):
    if number:
        return later(number)
    return 0


def later(number):
    for _ in range(300):
        number += 1
    return number


def other():
    return 3


class Box:
    async def run(self):
        return 1


work(0)
thread = threading.Thread(target=work, args=(1,))
thread.start()
thread.join()
other()
try:
    Box().run().send(None)
except StopIteration:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "python3.12", "python3.13", "python3.14"])
def test_it_writes_the_lines_that_run_and_no_others(tmp_path: Path, name: str) -> None:
    """``sys.settrace`` before Python 3.12, ``sys.monitoring`` from there on."""
    python = shutil.which(name) if name else sys.executable
    # A version manager's name may stand for no interpreter.
    if python is None or subprocess.run([python, "-c", ""], check=False).returncode:
        pytest.skip(f"{name} is not here")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "code_of.py").write_text(CODE)
    boot = reproducer_path("standins")
    paths = [boot / "boot", boot / "reach", tmp_path / "work"]
    ran = subprocess.run(
        [python, "-c", "import code_of"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "MMREPRO_STAND_INS": str(boot / "reach"),
            # work without its last line, later, run; not other.
            "MMREPRO_REACH": "work/code_of.py:4-6,10-13,21-22;work/absent.py:1-9",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    written = [line for line in ran.stderr.splitlines() if line]
    assert all(line.startswith("mmrepro reach ") for line in written)
    places = [line.rpartition(" ")[2] for line in written]
    assert set(places) == {
        f"work/code_of.py:{number}" for number in (5, 6, 11, 12, 13, 22)
    }
    # A line of a loop is not written each time.
    assert len(places) < 40
