"""Hints name what works here: in a checkout, in a tool's environment, from a wheel."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmrepro.base import installed


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No checkout: the package lies in site-packages, from a wheel of the user's."""
    wheel = f"file://{tmp_path}/my%20wheels/mmrepro-0.2.0-py3-none-any.whl"
    recorded = SimpleNamespace(read_text=lambda name: json.dumps({"url": wheel}))
    monkeypatch.setattr(installed, "_PACKAGE", tmp_path / "site-packages" / "mmrepro")
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: recorded)
    return monkeypatch


def test_a_checkout_is_synced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(installed, "_PACKAGE", tmp_path / "harness")
    command = installed.install_command("run")
    assert command == f"uv sync --inexact --extra run --directory {tmp_path}"


@pytest.mark.parametrize(
    ("prefix", "begins"),
    [
        ("/home/me/.local/share/pipx/venvs/mmrepro", "pipx install --force "),
        ("/home/me/.local/share/uv/tools/mmrepro", "uv tool install --force "),
        ("/home/me/venv", "/"),
    ],
)
def test_a_wheel_is_named_where_it_lies(
    elsewhere: pytest.MonkeyPatch, tmp_path: Path, prefix: str, begins: str
) -> None:
    elsewhere.setattr(sys, "prefix", prefix)
    command = installed.install_command("run")
    assert command.startswith(begins)
    wheel = tmp_path / "my wheels" / "mmrepro-0.2.0-py3-none-any.whl"
    assert command.endswith(f"'{wheel}[run]'")


def test_the_program_is_typed_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    assert installed.typed_program() == "mmrepro"
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    # uv as README installs it, and no development tools.
    uv = tmp_path / ".uv" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.touch(mode=0o755)
    monkeypatch.setenv("UV", str(uv))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    program = ".uv/bin/uv run --no-dev --extra run mmrepro"
    assert installed.typed_program() == program
    assert installed.as_typed("mmrepro run thing") == f"{program} run thing"
    assert installed.as_typed("python3 mmrepro.py") == "python3 mmrepro.py"
    monkeypatch.delenv("UV")
    assert installed.typed_program() == "uv run --no-dev --extra run mmrepro"


def test_a_hint_under_uv_run_is_as_short_as_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """uv names itself by its resolved path, here behind a link in another folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    uv = elsewhere / "uv"
    uv.touch(mode=0o755)
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    monkeypatch.setenv("UV", str(uv))
    monkeypatch.setenv("PATH", str(elsewhere))
    assert installed.as_typed("mmrepro list") == "uv run mmrepro list"
    checkout = tmp_path / "checkout"
    (checkout / ".uv").mkdir(parents=True)
    (checkout / ".uv" / "bin").symlink_to(elsewhere)
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(checkout)
    assert installed.as_typed("mmrepro list") == ".uv/bin/uv run mmrepro list"
