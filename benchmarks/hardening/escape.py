"""Ways out of the box, each tried: which get out, seen from outside.

Usage:  python benchmarks/hardening/escape.py --by client|server|bwrap|unboxed
            [--weak KIND] [--as USER] [--only ID]... [--json FILE] [--seconds S]
            [--share PART] [--no-world]

An attack is a small script of the standard library (escapes/). It is told where the
canaries are (files, sockets, a process, keys), never what they hold; the outside judges
it by what is found there afterwards (_outside.py). The whole rehearsal runs in a world
of its own: mounts, processes, network, IPC and a /tmp of a bounded size, so that a
broken box breaks nothing of the machine. Rights of the whole kernel are asked for,
never used. Exit 0: every attack ran, and none got out."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from hardening._outside import AttackRun, Bounds, EscapeFinding, Outside, rehearsal
from hardening._runners import WEAK, bwrap, find_python, unboxed
from hardening.escapes import attacker

KINDS = (
    "mounts",
    "namespaces",
    "proc",
    "processes",
    "kernel",
    "sockets",
    "inherited",
    "files",
    "devices",
    "bombs",
    "leavings",
    "forging",
    "peers",
)

Runner = Callable[[Outside, Path, float, str], AttackRun]

RUNNERS: dict[str, Runner] = {
    "unboxed": unboxed,
    "bwrap": bwrap,
}
BOXED = ("client", "server")
"""Of mmrepro's own: they import it, which the others do not."""

OFFERS: dict[str, frozenset[str]] = {
    name: frozenset({"door", "serve", "peer"}) for name in ("unboxed", *BOXED)
}
"""What a runner offers beyond running a script: see `WayOut.needs`."""


@dataclass(frozen=True)
class WayOut:
    """One attack: what it tries, and what counts as out."""

    id: str
    kind: str
    title: str
    aims: tuple[str, ...]
    only: str
    """`root`: no ordinary user could ever get out like this; `kernel`: nobody on most
    kernels."""
    needs: str
    """`door`, `serve` or `peer`: what a runner must offer beyond running a script."""


def attacks() -> list[WayOut]:
    """List every way out, by kind."""
    for kind in KINDS:
        importlib.import_module(f"hardening.escapes.{kind}")
    ways = []
    for entry in attacker.ATTACKS:
        kind = entry.function.__module__.rpartition(".")[2]
        ways.append(
            WayOut(entry.id, kind, entry.title, entry.aims, entry.only, entry.needs)
        )
    return ways


def try_out(
    outside: Outside, way: WayOut, runner: Runner, seconds: float, weak: str = ""
) -> EscapeFinding:
    """Try one way out with a runner, and leave the outside as it was."""
    script = outside.prepare(way.kind, way.id)
    ran = runner(outside, script, seconds, weak)
    finding = outside.judge(way, ran)
    outside.restore()
    return finding


# ---------------------------------------------------------------- a world of its own

WORLD = """
set -e
mount -t tmpfs -o size=2g,mode=1777 tmpfs /tmp
mount -t tmpfs -o size=2g,mode=1777 tmpfs /var/tmp
mount -t tmpfs -o size=2g,mode=1777 tmpfs /dev/shm
mount -t mqueue mqueue /dev/mqueue 2>/dev/null || true
ip link set lo up
exec "$@"
"""


def world_command(command: list[str], user: str = "") -> list[str]:
    """Write the command that runs another where nothing of the machine is in reach but
    its files.

    Root makes the world and may become a user in it; a user makes it with bubblewrap.
    """
    if user:
        account = pwd.getpwnam(user)
        change = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}"]
        command = [*change, "--init-groups", "--inh-caps=-all", *command]
    command = ["env", "MMREPRO_ESCAPE_WORLD=1", *command]
    if os.geteuid() == 0:
        namespaces = [
            "--mount",
            "--pid",
            "--ipc",
            "--uts",
            "--net",
            "--propagation",
            "private",
        ]
        unshare = ["unshare", *namespaces, "--fork", "--kill-child", "--mount-proc"]
        return [*unshare, "sh", "-c", WORLD, "world", *command]
    world = ["bwrap", "--dev-bind", "/", "/", "--die-with-parent"]
    world += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--proc", "/proc"]
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        world += ["--size", str(2 << 30), "--tmpfs", folder]
    return [*world, *command]


def run_in_world(arguments: list[str], options: argparse.Namespace) -> int:
    """Run this program again in a world of its own, which hands its rows out by a
    descriptor."""
    # A virtual environment below root's home is no user's to start.
    python = find_python() if options.user else sys.executable
    command = [python, str(Path(__file__).resolve()), *arguments, "--no-world"]
    with contextlib.ExitStack() as opened:
        descriptors = []
        if options.json is not None:
            rows = opened.enter_context(options.json.open("w", encoding="utf-8"))
            descriptors.append(rows.fileno())
            command += ["--json-descriptor", str(rows.fileno())]
        world = world_command(command, options.user)
        return subprocess.run(world, pass_fds=descriptors, check=False).returncode


# ---------------------------------------------------------------- the command


def main(argv: list[str] | None = None) -> int:
    """Try the ways out and print one row each."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    options = parse(arguments)
    if options.list:
        for way in attacks():
            print(f"{way.id:24} {way.kind:12} {','.join(way.aims):24} {way.title}")
        return 0
    if not options.no_world:
        return run_in_world(arguments, options)
    if options.by in BOXED:
        from hardening import _box_runners

        RUNNERS.update(client=_box_runners.client, server=_box_runners.server)
    runner = RUNNERS.get(options.by)
    if runner is None:
        print(
            f"No runner {options.by!r} here; there are: {', '.join(RUNNERS)}.",
            file=sys.stderr,
        )
        return 2
    if options.by == "bwrap" and shutil.which("bwrap") is None:
        print("bubblewrap is not installed here.", file=sys.stderr)
        return 2
    chosen = [way for way in attacks() if chosen_by(way, options.only, options.kind)]
    chosen = shared(chosen, options.share)
    findings = []
    with rehearsal(Bounds()) as outside:
        for way in chosen:
            if way.needs and way.needs not in OFFERS.get(options.by, frozenset()):
                findings.append(
                    EscapeFinding(
                        way.id, "not-tried", [], f"the runner has no {way.needs}"
                    )
                )
            else:
                started = time.monotonic()
                findings.append(
                    try_out(outside, way, runner, options.seconds, options.weak)
                )
                print_row(way, findings[-1], time.monotonic() - started)
    if options.json_descriptor is not None:
        with os.fdopen(options.json_descriptor, "w", encoding="utf-8") as rows:
            rows.write(as_json(chosen, findings))
    elif options.json is not None:
        options.json.write_text(as_json(chosen, findings), encoding="utf-8")
    return report(chosen, findings)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--by", default="client", choices=["bwrap", "unboxed", *BOXED])
    parser.add_argument("--weak", default="", choices=["", *WEAK], metavar="KIND")
    parser.add_argument("--as", dest="user", default="", metavar="USER")
    parser.add_argument("--only", action="append", default=[], metavar="ID")
    parser.add_argument("--kind", action="append", default=[], choices=KINDS)
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    parser.add_argument(
        "--json-descriptor", type=int, default=None, help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="of each kind, at least one"
    )
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--no-world", action="store_true")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args(arguments)


def shared(ways: list[WayOut], share: float) -> list[WayOut]:
    """Take a share of each kind, spread over it, and at least one."""
    taken: list[WayOut] = []
    for kind in KINDS:
        of_kind = [way for way in ways if way.kind == kind]
        wanted = max(1, round(len(of_kind) * share))
        taken += of_kind[:: max(1, len(of_kind) // wanted)][:wanted]
    return taken


def chosen_by(way: WayOut, names: list[str], kinds: list[str]) -> bool:
    if not names and not kinds:
        return True
    return way.id in names or way.kind in kinds


def print_row(way: WayOut, finding: EscapeFinding, seconds: float) -> None:
    what = "; ".join(finding.facts) or finding.why
    print(f"{finding.state:9} {way.id:24} {seconds:5.1f} s  {what[:300]}", flush=True)


def as_json(ways: list[WayOut], findings: list[EscapeFinding]) -> str:
    """Return each way out with what was found of it."""
    rows = [
        asdict(way) | asdict(finding)
        for way, finding in zip(ways, findings, strict=True)
    ]
    return json.dumps(rows, indent=1)


def report(ways: list[WayOut], findings: list[EscapeFinding]) -> int:
    """Print the count, and return the exit status.

    An attack that never ran holds nothing: it fails the rehearsal as one that got out.
    """
    out = [finding.id for finding in findings if finding.state == "out"]
    untried = [finding.id for finding in findings if finding.state == "not-tried"]
    failed = [finding.id for finding in findings if finding.failed]
    print(f"{len(out)} of {len(ways)} get out, {len(untried)} not tried")
    if failed:
        print(f"did not run: {', '.join(failed)}")
    return 1 if out or failed else 0


if __name__ == "__main__":
    sys.exit(main())
