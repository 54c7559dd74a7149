"""``mmrepro diagnose`` on real servers: healthy, loaded, stopped, killed, overloaded,
hung.

One start of vLLM serves all of the first part, in the order of the file: the last test
kills it."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from grids import grid
from live import COMMAND, assert_nothing_left, processes_in, shared_memory, wait_for
from live_server import Load, Server, Told, ask, diagnose, serving
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.runs.options import StartMode

pytestmark = pytest.mark.engine
GHOST = "ghost-key-eviction"
DROP = [
    "setpriv",
    "--reuid",
    "65534",
    "--regid",
    "65534",
    "--clear-groups",
    "--inh-caps",
    "-all,+dac_read_search",
    "--ambient-caps",
    "-all,+dac_read_search",
    "--bounding-set",
    "-all,+dac_read_search",
]
"""Another user without ptrace rights; the one right kept is to read this interpreter's
files."""

# ------------------------------------------------------------- a healthy vLLM, then not


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("vllm")
    with serving(
        "vllm", "0.23.0", TinyQwen2VL(), folder, "--max-num-seqs", "8"
    ) as server:
        ask(server.url)  # the first one warms up
        yield server


HEALTHY_RUNS = int(os.environ.get("MMREPRO_HEALTHY_RUNS", "3"))
"""The false alarm test proper takes 10 of each; three fit CI's time."""


@pytest.mark.parametrize("clients", grid([0, 4], always=[0]))
def test_a_healthy_server_is_healthy_in_all_runs(
    vllm: Server, tmp_path: Path, clients: int
):
    with Load(vllm.url, clients) as load:
        wait_for(lambda: load.done >= clients, 60, "answers under load")
        before = load.done
        told = [diagnose(vllm.url, cwd=tmp_path) for _ in range(HEALTHY_RUNS)]
        assert load.done > before or not clients
    assert [(t.exit_code, t.state, t.found) for t in told] == [
        (0, "healthy", [])
    ] * HEALTHY_RUNS
    for one in told:
        assert one.document["classes"] == []
        assert one.document["effect"]["paused_s"] == 0
        assert one.document["effect"]["inferences"] == 1
    assert list(tmp_path.iterdir()) == []  # nothing is kept of a healthy server


def test_it_says_what_was_found_of_it(vllm: Server, tmp_path: Path):
    target = diagnose(vllm.url, "--out", "kept", cwd=tmp_path).document["target"]
    assert (target["engine"], target["release"], target["place"]) == (
        "vllm",
        "0.23.0",
        "local",
    )
    assert target["root_pid"] == vllm.pid
    assert {p["role"] for p in target["processes"]} >= {"APIServer", "EngineCore"}
    assert target["logs"] == [str(vllm.log)]
    assert "Healthy" in (tmp_path / "kept" / "report.html").read_text()


@pytest.mark.slow
def test_without_a_request_an_idle_server_is_not_called_healthy(
    vllm: Server, tmp_path: Path
):
    idle = diagnose(vllm.url, "--no-request", cwd=tmp_path)
    assert (idle.exit_code, idle.state) == (3, "no-fault-seen")
    assert idle.document["effect"]["inferences"] == 0
    with Load(vllm.url, 4) as load:
        wait_for(lambda: load.done >= 4, 60, "answers under load")
        busy = diagnose(vllm.url, "--no-request", cwd=tmp_path)
    assert (busy.exit_code, busy.state) == (0, "healthy")


def core_of(server: Server) -> psutil.Process:
    children = psutil.Process(server.pid).children(recursive=True)
    return next(p for p in children if "EngineCore" in " ".join(p.cmdline()))


@pytest.mark.parametrize(
    "role", grid(["APIServer", "EngineCore"], always=["EngineCore"])
)
def test_a_stopped_process_is_said_to_be_stopped(
    vllm: Server, tmp_path: Path, role: str
):
    pid = vllm.pid if role == "APIServer" else core_of(vllm).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        told = diagnose(vllm.url, cwd=tmp_path)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (told.exit_code, told.state, told.found) == (1, "stopped", [])
    assert f"{role} (pid {pid})" in told.document["assessment"]["sentence"]
    assert told.seconds < 100
    assert diagnose(vllm.url, cwd=tmp_path).state == "healthy"


@pytest.mark.slow
def test_overload_is_no_hang(vllm: Server, tmp_path: Path):
    """On a busy machine a look may be too late to tell, and says so; none may call it a
    hang."""
    told: list[Told] = []

    def overloaded() -> bool:
        told.append(diagnose(vllm.url, "--deadline", "3", cwd=tmp_path, timeout=120))
        return told[-1].state == "overloaded"

    with Load(vllm.url, 48, max_tokens=512, timeout=15):
        wait_for(overloaded, 180, "an overload")
    assert {t.state for t in told} <= {"healthy", "slow", "unknown", "overloaded"}
    assert (told[-1].exit_code, [t.found for t in told]) == (1, [[]] * len(told))


@pytest.mark.slow
def test_a_core_that_was_killed_alone_is_told_from_a_dead_server(
    vllm: Server, tmp_path: Path
):
    front = psutil.Process(vllm.pid)
    front.suspend()  # vLLM's front follows its EngineCore within a second: hold it back
    core_of(vllm).kill()
    try:
        held = diagnose(vllm.url, cwd=tmp_path)
    finally:
        front.resume()
    assert (held.exit_code, held.state, held.found) == (1, "part-dead", [])
    assert "killed by signal 9" in " ".join(held.document["assessment"]["why"])
    wait_for(lambda: not psutil.pid_exists(vllm.pid), 30, "the end of the front")
    told = diagnose(vllm.url, "--log", str(vllm.log), cwd=tmp_path)
    assert (told.exit_code, told.state, told.found) == (1, "dead", [])
    assert "EngineCore died first" in told.document["assessment"]["sentence"]
    blind = diagnose(vllm.url, cwd=tmp_path)
    assert (blind.exit_code, blind.state) == (1, "dead")
    assert "died first" not in blind.document["assessment"]["sentence"]


# ------------------------------------------------------- what only looks like a failure

YESTERDAY = """\
(APIServer pid=8) INFO 11-20 03:00:00 [entrypoints/api_utils.py:273] non-default args: {'port': 1}
(EngineCore pid=9) INFO 11-20 03:00:01 [core.py:113] Initializing a V1 LLM engine (v0.23.0) with x
(APIServer pid=8) INFO:     Started server process [8]
(APIServer pid=8) INFO 11-20 03:10:00 [async_llm.py:1] Added request chatcmpl-1.
(EngineCore pid=9) ERROR 11-20 03:10:01 [v1/engine/core.py:1195] AssertionError: Expected a cached \
item for mm_hash='5f060411f6672c43afaf56ad299c688f7f229b9728324f49dc54e3a4be614385'
(APIServer pid=8) INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server \
Error
(APIServer pid=8) ERROR 11-20 03:11:00 [async_llm.py:480] EngineDeadError: EngineCore encountered
"""
KEY = "sk-0123456789abcdef"
WITH_KEY = ("--header", f"Authorization: Bearer {KEY}")
NO_TITLES = 'raise ImportError("this machine has no setproctitle")'
"""A stand-in for the package: older releases, and those without it, name no process."""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """vLLM without process titles, behind a key, that logs to the file of an earlier
    one."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "engine.log").write_text(YESTERDAY)
    (folder / "standin").mkdir()
    (folder / "standin" / "setproctitle.py").write_text(NO_TITLES)
    with serving(
        "vllm",
        "0.23.0",
        TinyQwen2VL(),
        folder,
        "--api-key",
        KEY,
        env={"PYTHONPATH": str(folder / "standin")},
        mode=StartMode.COLD,
    ) as server:
        ask(server.url, key=KEY)
        yield server


def nothing_matches(told: Told) -> bool:
    fits = {m["fit"] for m in told.document["matches"]}
    return fits <= {"exposed", "not-this"}


@pytest.mark.slow
def test_a_healthy_server_without_titles_is_healthy(bare: Server, tmp_path: Path):
    told = diagnose(bare.url, *WITH_KEY, "--out", "kept", cwd=tmp_path)
    roles = {p["role"] for p in told.document["target"]["processes"]}
    assert len(told.document["target"]["processes"]) > 1
    assert not any("EngineCore" in role for role in roles)
    assert (told.exit_code, told.state) == (0, "healthy")
    assert told.document["effect"]["inferences"] == 1
    assert "which process is EngineCore" in " ".join(told.document["unseen"])


@pytest.mark.slow
def test_a_healthy_server_with_yesterdays_crash_in_its_log_matches_nothing(
    bare: Server, tmp_path: Path
):
    told = diagnose(bare.url, *WITH_KEY, "--out", "kept", cwd=tmp_path)
    assert nothing_matches(told)
    assert told.document["target"]["logs"] == [str(bare.log)]
    assert (told.state, told.document["since"]) == ("healthy", "")
    incident = json.loads((tmp_path / "kept" / "incident.json").read_text())
    read = next(
        p["data"] for p in incident["evidence"]["probes"] if p["probe"] == "logs"
    )
    assert read["earlier_lines"] >= len(YESTERDAY.splitlines())


@pytest.mark.slow
def test_a_server_behind_an_api_key_is_not_called_failing(bare: Server, tmp_path: Path):
    told = diagnose(bare.url, cwd=tmp_path)
    assert (told.exit_code, told.state) == (3, "no-fault-seen")
    assert nothing_matches(told)
    assert "--header" in told.document["assessment"]["advice"][0]


@pytest.mark.slow
def test_one_without_titles_that_was_killed_is_dead_and_not_of_an_old_crash(
    bare: Server, tmp_path: Path
):
    for process in [
        psutil.Process(bare.pid),
        *psutil.Process(bare.pid).children(recursive=True),
    ]:
        process.kill()
    wait_for(lambda: not psutil.pid_exists(bare.pid), 30, "its end")
    told = diagnose(bare.url, "--log", str(bare.log), cwd=tmp_path)
    assert (told.exit_code, told.state) == (1, "dead")
    assert nothing_matches(told)
    assert "died first" not in told.document["assessment"]["sentence"]
    assert "03:1" not in told.document["since"]


# ---------------------------------------------------------------- the hang


@dataclass(frozen=True)
class Kept:
    """A hung server that its run left behind."""

    url: str
    pid: int
    folder: Path
    shm_before: set[str]


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """The server that ``mmrepro run ghost-key-eviction`` left hanging."""
    folder, shm_before = tmp_path_factory.mktemp("hang") / "it", shared_memory()
    run = [
        *COMMAND,
        "run",
        GHOST,
        "--keep-server",
        "--start-mode",
        "fork",
        "--json",
        "--out",
        str(folder),
    ]
    done = subprocess.run(run, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["verdict"]["outcome"] == "reproduced"
    server = Kept(
        document["server"]["url"], document["server"]["pid"], folder, shm_before
    )
    yield server
    if processes_in(folder):
        os.kill(server.pid, signal.SIGTERM)
        wait_for(lambda: not processes_in(folder), 30, "the end of the kept server")


def conditions(told: Told) -> dict[str, str]:
    return {c["id"]: c["truth"] for c in told.document["matches"][0]["conditions"]}


def test_the_hang_is_named_with_every_condition_met(hung: Kept, tmp_path: Path):
    told = diagnose(hung.url, "--out", "it", cwd=tmp_path)
    assert (told.exit_code, told.state) == (1, "frozen-in-python")
    assert (told.document["matches"][0]["scenario"], told.fit(GHOST)) == (
        GHOST,
        "match",
    )
    assert set(conditions(told).values()) == {"met"}
    assert told.found == [GHOST]
    certain = {
        c["name"] for c in told.document["classes"] if c["certainty"] == "certain"
    }
    assert certain == {"steps-stopped", "gauges-lie"}
    assert told.document["effect"]["cpu_s"] < 4
    # Before the deadline other evidence decides; a busy machine sees that later
    # than 15 s.
    silence = next(
        w for w in told.document["assessment"]["why"] if "got no answer" in w
    )
    assert "(stopped early; the other evidence is enough)" in silence or (
        "for 15." in silence
    )
    assert any(
        "popitem" in f["function"] for f in told.document["assessment"]["frames"]
    )
    assert told.document["effect"]["paused_s"] == 0
    assert told.document["since"]
    report = (tmp_path / "it" / "report.html").read_text()
    assert GHOST in report
    again = subprocess.run(
        [*COMMAND, "report", "it", "--format", "md"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "process_input_sockets" in again.stdout


@pytest.mark.slow
def test_less_is_seen_less_is_claimed(hung: Kept, tmp_path: Path):
    silent = diagnose(hung.url, "--no-request", "--deadline", "8", cwd=tmp_path)
    assert (silent.exit_code, silent.fit(GHOST)) == (1, "likely")
    assert conditions(silent).pop("no-answer-later") == "unknown"
    withheld = diagnose(hung.url, "--log", "/dev/null", "--deadline", "8", cwd=tmp_path)
    assert (withheld.exit_code, withheld.fit(GHOST)) == (1, "likely")
    unknown = {
        name for name, truth in conditions(withheld).items() if truth == "unknown"
    }
    assert unknown == {"cached-item-assertion", "ghost-is-the-key"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_still_finds_the_hang_and_is_told_what_he_cannot_see(
    hung: Kept, tmp_path: Path
):
    told = diagnose(hung.url, "--deadline", "8", cwd=tmp_path, prefix=DROP)
    assert (told.exit_code, told.state) == (1, "frozen")
    assert told.fit(GHOST) == "symptom-only"
    unseen = " ".join(told.document["unseen"])
    for hint in ("CAP_SYS_PTRACE", "--log FILE", "root"):
        assert hint in unseen


def test_the_kept_server_hangs_on_and_ends_with_its_pid(hung: Kept):
    with urllib.request.urlopen(hung.url + "/health", timeout=5) as answer:
        assert answer.status == 200
    assert processes_in(hung.folder)
    os.kill(hung.pid, signal.SIGTERM)
    assert_nothing_left(
        hung.folder, hung.shm_before, 20, int(hung.url.rpartition(":")[2])
    )


# ---------------------------------------------------------------- small ones


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        "minivllm", "0.1", TinyQwen3(), tmp_path_factory.mktemp("mini")
    ) as server:
        ask(server.url)
        yield server


def test_a_killed_server_is_dead(mini: Server, tmp_path: Path):
    assert diagnose(mini.url, cwd=tmp_path).state == "healthy"
    os.kill(mini.pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(mini.pid), 10, "its end")
    told = diagnose(mini.url, cwd=tmp_path)
    assert (told.exit_code, told.state, told.found) == (1, "dead", [])
    named = diagnose(mini.url, "--pid", str(mini.pid), cwd=tmp_path)
    assert "does not exist any more" in " ".join(named.document["assessment"]["why"])


MODES = {
    "html": ("broken-output", "no completion"),
    "nan": ("broken-output", "NaN"),
    "error": ("failing", "fails"),
    "python": ("frozen-in-python", "spins_in_python"),
    "native": ("frozen-in-native-code", "spins_in_c"),
    "nap": ("frozen-in-python", "clock_nanosleep"),
    "lock": ("blocked-on-lock", "thread 'holder' has it, in holds"),
    "starved": ("starved", "none is let in"),
    "deaf": ("not-receiving", "waits_for_work|Condition.wait"),
}


@pytest.mark.parametrize("mode", grid(MODES, always=["nan", "python", "lock"]))
def test_a_fake_engine_that_misbehaves(tmp_path: Path, mode: str):
    """Real processes, real stacks, and no engine: what no known failure here does on
    demand."""
    state, says = MODES[mode]
    script = str(Path(__file__).with_name("fake_engine.py"))
    command = [sys.executable, script, mode, "minivllm.server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            told = diagnose(f"http://127.0.0.1:{port}", "--deadline", "3", cwd=tmp_path)
        finally:
            process.kill()
    sentence = told.document["assessment"]["sentence"]
    assert (told.exit_code, told.state, told.found) == (1, state, []), sentence
    assert re.search(says, sentence), sentence
