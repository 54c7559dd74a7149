"""Environments in which no box can be had: what runs a stranger's report must refuse
there.

Each function turns a command into one that runs in such an environment. Nothing of the
machine is
changed: the setting of namespaces counts in one namespace alone, the filter and the
capabilities in one process and its children."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DOCKER_CAPABILITIES = (
    "chown",
    "dac_override",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "net_bind_service",
    "net_raw",
    "sys_chroot",
    "mknod",
    "audit_write",
    "setfcap",
)
REFUSED = 2
"""The exit status of mmrepro that refuses."""


@dataclass(frozen=True)
class Rehearsed:
    """How a command ended where no box can be had."""

    environment: str
    exit_status: int | None
    """None: it did not end in time."""
    output: str
    started: tuple[str, ...]
    """What the stranger's report started in spite of it: names of beacons."""

    @property
    def failed_closed(self) -> bool:
        """Tell whether the command refused and started nothing."""
        return self.exit_status == REFUSED and not self.started


def without_namespaces(command: list[str]) -> list[str]:
    """Run where the kernel gives no user namespace, as many clusters are set.

    The bound is written in a user namespace made for it, where it counts for what is
    below."""
    script = (
        "echo 0 > /proc/sys/user/max_user_namespaces && "
        'exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"'
    )
    return ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh", *command]


def as_in_docker(command: list[str]) -> list[str]:
    """Run with what docker's default profile leaves: its capabilities, its filter's
    refusals."""
    script = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); "
        "from hardening._filter import docker_filter, install; "
        "install(docker_filter()); os.execvp(sys.argv[2], sys.argv[2:])"
    )
    inner = [sys.executable, "-c", script, str(HERE.parent), *command]
    if os.geteuid() != 0:
        return inner
    known = capability_names()
    kept = ["-all", *(f"+{name}" for name in DOCKER_CAPABILITIES if name in known)]
    return ["setpriv", f"--bounding-set={','.join(kept)}", "--inh-caps=-all", *inner]


def capability_names() -> set[str]:
    """List the capabilities that this process could pass on: docker's set is cut from
    them."""
    names = subprocess.run(
        ["setpriv", "--list-caps"], check=True, capture_output=True, text=True
    ).stdout.split()
    with Path("/proc/self/status").open(encoding="ascii") as status:
        bounding = next(line.split()[1] for line in status if line.startswith("CapBnd"))
    bits = int(bounding, 16)
    return {name for number, name in enumerate(names) if bits >> number & 1}


def without_bubblewrap(command: list[str]) -> list[str]:
    """Run where neither bubblewrap, podman nor docker is on the PATH.

    What a package brought beside the interpreter is the caller's to leave out.
    """
    return ["env", f"PATH={path_without(('bwrap', 'podman', 'docker'))}", *command]


@functools.cache
def path_without(names: tuple[str, ...]) -> str:
    """Return the PATH, each folder that has one of the programs replaced by links to
    the others."""
    places = []
    for place in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if any(os.access(os.path.join(place, name), os.X_OK) for name in names):
            places.append(linked_without(os.path.realpath(place), names))
        else:
            places.append(place)
    return os.pathsep.join(places)


@functools.cache
def linked_without(place: str, names: tuple[str, ...]) -> str:
    """Make a folder of links to a folder's programs, but for those."""
    folder = tempfile.mkdtemp(prefix="mmrepro-path-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for program in os.listdir(place):
        if program not in names:
            os.symlink(os.path.join(place, program), os.path.join(folder, program))
    os.chmod(folder, 0o755)
    return folder


ENVIRONMENTS: dict[str, Callable[[list[str]], list[str]]] = {
    "without-namespaces": without_namespaces,
    "as-in-docker": as_in_docker,
    "without-bubblewrap": without_bubblewrap,
}


@contextmanager
def beacon_report(server: str) -> Iterator[tuple[Path, Path]]:
    """Write a report whose client leaves a file where it runs; yield it and the
    beacons' folder."""
    folder = Path(tempfile.mkdtemp(prefix="mmrepro-beacon-"))
    beacons = folder / "beacons"
    beacons.mkdir()
    for place in (folder, beacons):
        place.chmod(0o777)
    report = folder / "ISSUE.md"
    report.write_text(
        f"""\
### Server

```bash
{server}
```

### Client

```python
import pathlib
pathlib.Path({str(beacons / "client")!r}).write_text("started")
print("BEACON", 6 * 7)
```
""",
        encoding="utf-8",
    )
    report.chmod(0o644)
    try:
        yield report, beacons
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def rehearse(
    environment: str,
    command: list[str],
    seconds: float = 60,
    server: str = "vllm serve tiny --port 8000",
) -> Rehearsed:
    """Run `command REPORT` where no box can be had, and look at what was started.

    Args:
        environment: a name of `ENVIRONMENTS`.
        command: what reads a report, as `["mmrepro", "repro"]`; the report's path is
            added.
        seconds: how long it may take.
        server: the server command that the report names.
    """
    with beacon_report(server) as (report, beacons):
        wrapped = ENVIRONMENTS[environment]([*command, str(report)])
        try:
            ended = subprocess.run(
                wrapped,
                check=False,
                timeout=seconds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=report.parent,
            )
            status, output = ended.returncode, ended.stdout
        except subprocess.TimeoutExpired as late:
            status, output = None, late.stdout or b""
        started = sorted(path.name for path in beacons.iterdir())
        # Not a text of the report, which may be shown: what only its run can print.
        if b"BEACON 42" in output and "client" not in started:
            started.append("client, printed")
        text = output.decode("utf-8", "replace")
        return Rehearsed(environment, status, text, tuple(started))
