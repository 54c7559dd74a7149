"""``mmrepro env verify``: what differs from the wheels' own hashes is found, whatever
it is."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import in_process
import pytest
from mmrepro.base.records import Setting, WheelFacts
from mmrepro.engines.environments.recipe import TORCH_MODULE
from mmrepro.engines.environments.spec import LOCK_FILE, MANIFEST_FILE, Manifest
from mmrepro.engines.environments.stubs import FILE as STUB_FILE
from mmrepro.engines.environments.verify import Verification, verify
from mmrepro.engines.environments.wheelhouse.carried import PTH as HOST_FILE

NAME = "toy-1.0-cpu-00000000"
SITE = Path("venv/lib/python3.12/site-packages")


def record(content: bytes) -> str:
    digest = (
        base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    )
    return f"sha256={digest},{len(content)}"


@pytest.fixture
def environment(cache: Path) -> Path:
    """An environment of one package, an alias, a stub, and what a venv and Python
    write."""
    folder = cache / "environments" / NAME
    files = {
        "toy/__init__.py": b"x = 1\n",
        "toy/native.so": os.urandom(3_000_000),
        "toy-1.0.dist-info/METADATA": b"Name: toy\nVersion: 1.0\n",
        "../../../bin/toy": b"#!python\n",
    }
    for name, content in files.items():
        path = folder / SITE / name
        path.resolve().parent.mkdir(parents=True, exist_ok=True)
        path.resolve().write_bytes(content)
    rows = [f"{name},{record(content)}" for name, content in files.items()]
    rows.append("toy-1.0.dist-info/RECORD,,")
    (folder / SITE / "toy-1.0.dist-info" / "RECORD").write_text("\n".join(rows) + "\n")
    alias = folder / SITE / "other-1.0+cpu.dist-info"
    alias.mkdir()
    for name in ("METADATA", "INSTALLER"):
        (alias / name).write_text("mmrepro\n")
    lines = [f"{alias.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")]
    (alias / "RECORD").write_text("".join(lines))
    (folder / SITE / "toy" / "__pycache__").mkdir()
    (folder / SITE / "toy" / "__pycache__" / "__init__.cpython-312.pyc").write_bytes(
        b"compiled"
    )
    (folder / "venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "venv" / "lib64").symlink_to("lib")
    (folder / "venv" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (folder / LOCK_FILE).write_text("toy==1.0 \\\n    --hash=sha256:00\n")
    manifest = Manifest(
        engine="toy",
        release="1.0",
        device="cpu",
        project="toy",
        wheel=WheelFacts(
            project="toy",
            filename="toy-1.0-py3-none-any.whl",
            sha256="00",
            uploaded="",
            origin="",
        ),
        resolved_until="2026-01-01T00:00:00Z",
        packages=["toy==1.0"],
        notes=[
            Setting(
                name="dist-info alias", value="other==1.0+cpu", why="it looks itself up"
            )
        ],
        python="3.12.1",
        uv="0.13.0",
        created=datetime(2026, 1, 1, tzinfo=UTC),
        build_seconds=1.0,
    )
    (folder / MANIFEST_FILE).write_text(manifest.model_dump_json())
    return folder


def test_a_sound_one(environment: Path) -> None:
    # The alias's RECORD, METADATA and INSTALLER, the package's RECORD, a .pyc, python,
    # lib64, pyvenv.cfg.
    assert verify(environment) == Verification(NAME, files=4, unverified=8)
    code, out, _ = in_process.mmrepro("env", "verify")
    assert code == 0
    assert NAME in out


def content(site: Path) -> None:
    (site / "toy" / "__init__.py").write_bytes(b"x = 2\n")


def size(site: Path) -> None:
    (site / "toy" / "native.so").write_bytes(b"")


def last_byte(site: Path) -> None:
    with (site / "toy" / "native.so").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        before = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([before[0] ^ 1]))


def lost(site: Path) -> None:
    (site / "toy" / "__init__.py").unlink()


def added(site: Path) -> None:
    (site / "toy" / "more.py").write_text("")


def runs_at_start(site: Path) -> None:
    (site / "evil.pth").write_text("import os\n")


def customised(site: Path) -> None:
    (site / "sitecustomize.py").write_text("")


def program(site: Path) -> None:
    (site.parents[2] / "bin" / "uvicorn").write_text("#!/bin/sh\n")


def compiled_alone(site: Path) -> None:
    (site / "toy" / "more.pyc").write_bytes(b"")


def compiled_of_nothing(site: Path) -> None:
    (site / "toy" / "__pycache__" / "more.cpython-312.pyc").write_bytes(b"")


def link(site: Path) -> None:
    path = site / "toy" / "__init__.py"
    path.rename(site.parents[3] / "elsewhere.py")
    path.symlink_to(site.parents[3] / "elsewhere.py")


def folder_link(site: Path) -> None:
    (site / "toy").rename(site.parents[3] / "elsewhere")
    (site / "toy").symlink_to(site.parents[3] / "elsewhere")


def fifo(site: Path) -> None:
    (site / "toy" / "__init__.py").unlink()
    os.mkfifo(site / "toy" / "__init__.py")


def fifo_of_a_record(site: Path) -> None:
    (site / "toy-1.0.dist-info" / "RECORD").unlink()
    os.mkfifo(site / "toy-1.0.dist-info" / "RECORD")


def no_record(site: Path) -> None:
    (site / "toy-1.0.dist-info" / "RECORD").unlink()


def weak_hash(site: Path) -> None:
    digest = hashlib.md5(b"x = 1\n").digest()
    value = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    file = site / "toy-1.0.dist-info" / "RECORD"
    rows = file.read_text().splitlines()
    file.write_text("\n".join([f"toy/__init__.py,md5={value},6", *rows[1:]]) + "\n")


def no_hash(site: Path) -> None:
    file = site / "toy-1.0.dist-info" / "RECORD"
    rows = file.read_text().splitlines()
    file.write_text("\n".join(["toy/__init__.py,,", *rows[1:]]))


def outside(site: Path) -> None:
    with (site / "toy-1.0.dist-info" / "RECORD").open("a") as file:
        file.write("../../../../../../etc/passwd,,\n")


def binary_record(site: Path) -> None:
    (site / "toy-1.0.dist-info" / "RECORD").write_bytes(b'"\xff\0' * 200_000)


def another_package(site: Path) -> None:
    (site / "evil-1.0.dist-info").mkdir()
    (site / "evil-1.0.dist-info" / "RECORD").write_text("evil-1.0.dist-info/RECORD,,\n")


def another_version(site: Path) -> None:
    (site / "toy-1.0.dist-info").rename(site / "toy-1.1.dist-info")


def not_locked(site: Path) -> None:
    (site.parents[3] / LOCK_FILE).write_text("other==1.0\n")


def called_like_a_stub(site: Path) -> None:
    folder = site / Path(TORCH_MODULE).parent
    folder.mkdir(parents=True)
    (folder / STUB_FILE).write_bytes(b"\x7fELF")


def called_like_the_hosts_packages(site: Path) -> None:
    (site / HOST_FILE).write_text("import os; os.system('true')\n")


def no_manifest(site: Path) -> None:
    (site.parents[3] / MANIFEST_FILE).write_text("{}")


CHANGES = [
    content,
    size,
    last_byte,
    lost,
    added,
    runs_at_start,
    customised,
    program,
    compiled_alone,
    compiled_of_nothing,
    link,
    folder_link,
    fifo,
    fifo_of_a_record,
    no_record,
    weak_hash,
    no_hash,
    outside,
    binary_record,
    another_package,
    another_version,
    not_locked,
    no_manifest,
    called_like_a_stub,
    called_like_the_hosts_packages,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_found(
    environment: Path, change: Callable[[Path], None]
) -> None:
    change(environment / SITE)
    assert not verify(environment).sound


def test_packages_of_the_host_may_be_used(environment: Path) -> None:
    line = "import site; site.addsitedir('/usr/lib/python3/dist-packages')\n"
    (environment / SITE / HOST_FILE).write_text(line)
    assert verify(environment).sound


def test_the_command_fails_and_prints_few_lines(environment: Path) -> None:
    for number in range(100):
        (environment / SITE / f"more_{number}.py").write_text("")
    code, out, _ = in_process.mmrepro("env", "verify", "toy", "1.0")
    assert code == 1
    assert "more_0.py" in out
    assert len(out.splitlines()) < 30


def test_there_is_no_such_environment(environment: Path) -> None:
    code, _, errors = in_process.mmrepro("env", "verify", "toy", "2.0")
    assert code == 2
    assert "mmrepro env list" in errors
