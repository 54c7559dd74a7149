"""The judge of benchmarks/hardening/escape.py: what it sees from outside and what it
believes."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("namespaces and /proc are Linux's", allow_module_level=True)

from hardening import _outside, _rehearsal
from hardening._outside import AttackRun, Outside, rehearsal
from hardening.escape import KINDS, WayOut, attacks, report, try_out
from hardening.escapes import attacker

AIMS = {
    attacker.SECRET,
    attacker.WRITTEN,
    attacker.REACHED,
    attacker.SIGNALLED,
    attacker.LEFT,
    attacker.BOUNDS,
    attacker.FORGED,
    attacker.PERMITTED,
}
WAY = WayOut(
    "home", "files", "any way out", (attacker.SECRET, attacker.PERMITTED), "", ""
)


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with rehearsal() as canaries:
        yield canaries


def begun(outside: Outside, *more: bytes) -> bytes:
    """Return the output of an attack that ran and was refused, and whatever else it
    printed."""
    token = outside.facts()["token"].encode()
    return b"\n".join([token + b" BEGIN home", token + b" REFUSED home", *more])


def judged(outside: Outside, act: Callable[[Outside], AttackRun | None]) -> list[str]:
    """Let a box through which `act` happens be judged; return the facts."""

    def runner(
        outside: Outside, _script: Path, _seconds: float, _weak: str
    ) -> AttackRun:
        return act(outside) or AttackRun(0, begun(outside))

    finding = try_out(outside, WAY, runner, 5)
    assert finding.state == ("out" if finding.facts else "held")
    return finding.facts


def test_the_ways_out_are_many_of_every_kind_and_each_has_its_name() -> None:
    ways = attacks()
    assert len(ways) >= 80
    assert {way.kind for way in ways} == set(KINDS)
    assert len({way.id for way in ways}) == len(ways)
    for way in ways:
        assert way.aims, way.id
        assert set(way.aims) <= AIMS, way.id


def test_what_is_refused_is_held(outside: Outside) -> None:
    assert judged(outside, lambda _outside: None) == []


def touch_target(outside: Outside) -> None:
    with Path(outside.facts()["targets"][0]).open("a", encoding="ascii") as stream:
        stream.write("changed")


def new_file(outside: Outside) -> None:
    (outside.folder / "home" / "new").write_text("new", encoding="ascii")


def new_name_in_tmp(outside: Outside) -> None:
    Path("/tmp", outside.marker + "-left").write_text("new", encoding="ascii")


def reach_port(outside: Outside) -> None:
    with socket.create_connection(
        ("127.0.0.1", outside.listeners.tcp4), timeout=5
    ) as connection:
        connection.recv(100)


def reach_abstract(outside: Outside) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect("\0" + outside.listeners.abstract)
        connection.recv(100)


def signal_canary(outside: Outside) -> None:
    os.kill(outside.canary.process.pid, signal.SIGURG)


def kill_canary(outside: Outside) -> None:
    outside.canary.process.kill()
    outside.canary.process.wait()


def change_memory(outside: Outside) -> None:
    with Path(f"/proc/{outside.canary.process.pid}/mem").open(
        "r+b", buffering=0
    ) as memory:
        memory.seek(outside.canary.address + 100)
        memory.write(b"out")


def print_secret(outside: Outside) -> AttackRun:
    return AttackRun(0, begun(outside, Path(outside.secret_files[0]).read_bytes()))


def print_encoded(outside: Outside) -> AttackRun:
    return AttackRun(
        0, begun(outside, base64.b64encode(outside.secret_files[0].read_bytes()))
    )


def probe_granted(outside: Outside) -> AttackRun:
    return AttackRun(
        0, begun(outside, outside.facts()["token"].encode() + b" PERMITTED mount")
    )


def forge(outside: Outside) -> AttackRun:
    return AttackRun(
        0, begun(outside), b"verdict=" + outside.facts()["forged"].encode()
    )


def escape_codes(outside: Outside) -> AttackRun:
    return AttackRun(0, begun(outside), b"client: \x1b[2J")


def never_end(outside: Outside) -> AttackRun:
    return AttackRun(None, begun(outside))


def flood(outside: Outside) -> AttackRun:
    return AttackRun(0, begun(outside) + bytes(outside.bounds.output))


def leave_in_scratch(outside: Outside) -> None:
    (outside.scratch / "left").mkdir()


@pytest.mark.parametrize(
    ("act", "fact"),
    [
        (touch_target, "written"),
        (new_file, "written"),
        (new_name_in_tmp, "written"),
        (change_memory, "written"),
        (reach_port, "reached"),
        (reach_abstract, "reached"),
        (signal_canary, "signalled"),
        (kill_canary, "signalled"),
        (print_secret, "secret"),
        (print_encoded, "secret"),
        (probe_granted, "permitted"),
        (forge, "forged"),
        (escape_codes, "forged"),
        (never_end, "the runner"),
        (flood, "bounds"),
        (leave_in_scratch, "left"),
    ],
)
def test_what_comes_through_is_seen_and_undone(
    outside: Outside, act: Callable[[Outside], AttackRun | None], fact: str
) -> None:
    facts = judged(outside, act)
    assert facts
    assert all(seen.startswith(fact) for seen in facts), facts
    # The next attack begins from the same state.
    assert judged(outside, lambda _outside: None) == []


def test_a_process_that_outlives_the_box_is_seen_and_ended(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_outside, "SETTLE_S", 0.3)
    left = []

    def leave(outside: Outside) -> None:
        program = (
            f"open('/proc/self/comm', 'w').write({outside.comm!r}); print(flush=True); "
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program + "import time; time.sleep(60)"],
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        left.append(process)

    assert any(fact.startswith("left: 1 process") for fact in judged(outside, leave))
    assert left[0].wait(timeout=5) == -signal.SIGKILL
    left[0].stdout.close()


def test_threads_beyond_the_bound_are_seen(outside: Outside) -> None:
    count = outside.bounds.processes + 20

    def bomb(outside: Outside) -> None:
        program = (
            "import threading, sys; threading.stack_size(65536); stop = "
            "threading.Event()\n"
            f"for _ in range({count}): threading.Thread(target=stop.wait, "
            f"daemon=True).start()\n"
            "print(flush=True); sys.stdin.read()"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()
        peaks = outside.peaks
        assert peaks is not None
        seen = threading.Event()
        for _turn in range(100):
            if peaks.processes > outside.bounds.processes or seen.wait(0.05):
                break
        process.communicate()

    assert any(fact.startswith("bounds: processes") for fact in judged(outside, bomb))


def test_an_attack_that_never_ran_holds_nothing(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_runner(
        _outside: Outside, _script: Path, _seconds: float, _weak: str
    ) -> AttackRun:
        return AttackRun(1, b"bwrap: no permission")

    finding = try_out(outside, WAY, no_runner, 5)
    assert finding.state == "not-tried"
    assert "bwrap: no permission" in finding.why
    assert report([WAY], [finding]) == 1
    assert WAY.id in capsys.readouterr().out


def test_a_script_stands_alone_and_knows_no_secret(outside: Outside) -> None:
    for way in attacks():
        text = _outside.script_text(way.kind, way.id, outside.facts())
        compile(text, way.id, "exec")
        assert len(text) < 65_536  # what an issue can hold
        assert outside.secret_files[0].read_text(encoding="ascii").strip() not in text


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
@pytest.mark.parametrize("environment", ["as-in-docker", "without-bubblewrap"])
def test_no_box_can_be_had(environment: str) -> None:
    box = ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
    command = _rehearsal.ENVIRONMENTS[environment](box)
    assert subprocess.run(command, check=False, capture_output=True).returncode != 0


def test_only_a_refusal_that_starts_nothing_fails_closed() -> None:
    environment = "without-bubblewrap"
    refuses = _rehearsal.rehearse(environment, ["sh", "-c", "exit 2"])
    assert refuses.failed_closed

    runs = "sed -n '/^```python/,/^```/p' \"$0\" | sed 1d\\;/^\\`/d | python3 -; exit 2"
    started = _rehearsal.rehearse(environment, ["sh", "-c", runs])
    assert "client" in started.started
    assert not started.failed_closed

    ends_well = _rehearsal.rehearse(environment, ["sh", "-c", "exit 0"])
    assert not ends_well.failed_closed
