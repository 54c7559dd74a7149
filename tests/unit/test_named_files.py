"""Files that users name and that are none: a pipe is never waited for, a device is not
read."""

import os
from pathlib import Path

import pytest
from mmrepro.cli import main

LINES = [
    "--engine",
    "vllm",
    "--gpu-memory-utilization",
    "0.8",
    "--free",
    "40GiB",
    "--total",
    "80GiB",
]
COMMANDS = {
    "kv-budget": ["kv-budget", *LINES, "--model", "{}"],
    "kv-budget, folder": ["kv-budget", *LINES, "--model", "{}/.."],
    "logs": ["logs", "{}"],
    "why": ["why", "{}"],
    "find": ["find", "{}"],
    "judge": ["judge", "{}"],
    "report": ["report", "{}"],
    "capture": ["capture", "{}"],
    "replay": ["replay", "{}"],
    "repro": ["repro", "{}"],
    "repro, server": ["repro", "--server", "{}", "--client", "curl x"],
    "repro, client": ["repro", "--server", "vllm serve m", "--client", "{}"],
    "upgrade": ["upgrade", "0.1", "0.1", "--engine", "minivllm", "--traffic", "{}"],
    "matrix": ["matrix", "run", "{}", "--dry-run"],
    "show": ["show", "{}"],
}


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_no_file_is_refused_at_once(
    name: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path("/dev/zero")
    if kind == "pipe":
        folder = tmp_path / "config.json"  # also what a model's folder is looked at for
        os.mkfifo(folder)
        path = folder
    monkeypatch.chdir(tmp_path)
    words = [
        str(path.parent) if word == "{}/.." else word.format(path)
        for word in COMMANDS[name]
    ]
    monkeypatch.setattr("sys.argv", ["mmrepro", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code in (1, 2, 3)
    assert "bug of mmrepro" not in told
