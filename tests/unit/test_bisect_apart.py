"""``mmrepro bisect-run FILE.py``: what the file does to its process is no verdict for
git."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from in_process import mmrepro
from mmrepro.campaign.bisect import apart
from mmrepro.cli.app import app
from typer.testing import CliRunner

GOOD = (Path(__file__).parents[1] / "pack" / "odd_image.py").read_text("utf-8")
ENDINGS = {
    "a-thread-never-ends": (
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "os.close(1)"
    ),
    "exits-1": "import os; os._exit(1)",
    "exits-9": "import os; os._exit(9)",
    "sys-exit-1": "import sys; sys.exit(1)",
    "raises-keyboard-interrupt": "raise KeyboardInterrupt",
    "closes-stdout": "import os; os.close(1)",
    "closes-all": "import os; os.closerange(0, 256)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "kills-its-parent's-group": (
        "import os, time; os.killpg(os.getpgid(os.getppid()), 9); time.sleep(60)"
    ),
    "answers-itself": (
        "import os\n"
        "for n in range(3, 64):\n"
        '    try: os.write(n, b\'{"kind": "tested", "tested": {}}\\n\')\n'
        "    except OSError: pass\n"
        "os._exit(0)"
    ),
    "exits-as-it-is-checked": (
        f"{GOOD}\nimport os\ntype(SCENARIO).conditions = lambda *_: os._exit(0)"
    ),
    "leaves-as-it-is-checked": (
        f"{GOOD}\nimport sys\ntype(SCENARIO).conditions = lambda *_: sys.exit(0)"
    ),
}


def bisect_run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mmrepro",
        "bisect-run",
        "./scenario.py",
        "--device",
        "cpu",
    ]
    return subprocess.run(
        [*command, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", ENDINGS)
def test_a_file_that_ends_its_process_cannot_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "scenario.py").write_text(ENDINGS[name])
    if name.startswith("kills"):  # its parent is not to be this process
        done = bisect_run(tmp_path)
        code, said = done.returncode, done.stdout
    else:
        monkeypatch.chdir(tmp_path)
        code, said, _ = mmrepro("bisect-run", "./scenario.py", "--device", "cpu")
    assert code == 125
    assert said.endswith("exit code 125 for git bisect: skip\n")


@pytest.mark.parametrize(
    "loop",
    [
        (
            "while True:\n    try:\n        while True: pass\n    except "
            "BaseException: pass"
        ),
        "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)\nwhile True: pass",
    ],
)
def test_a_file_that_never_ends_cannot_be_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    pid = tmp_path / "pid"
    pid.touch()

    def clock() -> float:
        """Hours pass at once, as soon as the file runs."""
        return time.monotonic() + (1e5 if pid.read_text() else 0.0)

    monkeypatch.setattr(apart, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(apart, "LOAD_S", 1000.0)
    monkeypatch.setattr(apart, "END_S", 0.5)
    (tmp_path / "scenario.py").write_text(
        f"import os; open('pid', 'w').write(str(os.getpid()))\n{loop}"
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        app, ["bisect-run", "./scenario.py", "--device", "cpu", "--json"]
    )
    assert done.exit_code == 125
    assert json.loads(done.stdout)["verdict"] == "untestable"
    process = Path("/proc") / pid.read_text()
    deadline = time.monotonic() + 10
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.exists()


@pytest.mark.parametrize("text", ["class Mine(:\n", "x = 1\n"])
def test_a_file_that_cannot_be_loaded_stops_the_bisection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    (tmp_path / "scenario.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    code, said, told = mmrepro("bisect-run", "./scenario.py", "--device", "cpu")
    assert (code, said) == (128, "")
    assert "scenario.py" in told


TELLS = """
import os, pickle, sys
from mmrepro.campaign.bisect.apart import AnswerPipe
order = pickle.load(sys.stdin.buffer)
answers = AnswerPipe(int(sys.argv[1]), order.secret)
answers.send("loaded")
told = dict(tree="t", words="t", verdict="{verdict}", why="so", exit_code={code}, term="", runs=[])
answers.send("tested", tested=told)
os._exit(9)
"""


@pytest.mark.parametrize(
    ("verdict", "code"), [("good", 0), ("bad", 1), ("untestable", 125)]
)
def test_the_verdict_alone_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: str, code: int
) -> None:
    (tmp_path / "tells_verdict.py").write_text(TELLS.format(verdict=verdict, code=code))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(apart, "PROGRAM", "tells_verdict")
    done = CliRunner().invoke(app, ["bisect-run", "./any.py", "--device", "cpu"])
    assert (done.exit_code, verdict.upper() in done.stdout.upper()) == (code, True)


def test_a_refusal_comes_back_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "scenario.py").write_text(GOOD)
    done = bisect_run(tmp_path, "--source", "nowhere")
    assert done.returncode == 128
    assert "nowhere" in done.stderr


def test_a_verdict_that_reaches_nobody_is_none(tmp_path: Path) -> None:
    """Standard output is full: git reads no exit code of that as a bad commit."""
    (tmp_path / "scenario.py").write_text("import os; os._exit(1)")
    command = [sys.executable, "-m", "mmrepro", "bisect-run", "./scenario.py"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=-3, check=False, timeout=60
        )
    assert done.returncode >= 128
