"""What a finding hands out, on real servers: ``reproduce.py`` and the scenario made of
it."""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from live import COMMAND, RunOnce
from live_server import Server, serving
from mmrepro.base.records import Fidelity, FindingClass, HostFacts, Moment
from mmrepro.engines.models import TinyQwen2VL
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.failure.documents.replay import Finding, Rate, Replay
from mmrepro.reports.replay import write_replay
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import (
    Case,
    Message,
    Noise,
    Operation,
    Origin,
    Part,
    ServerWanted,
)

pytestmark = pytest.mark.engine

SHARED = [
    "--vision",
    "fake",
    "--block-size",
    "16",
    "--mm-cache-tokens",
    "130",
    "--paper",
]
FAULT = ["--fault", "ghost-key-lru", *SHARED]
FIXED = [*FAULT, "--fix", "ghost-key-lru"]
MODEL = TinyQwen3()


def asking(id: str, text: str, image: str, *after: str) -> Operation:
    parts = [Part(image=image), Part(text=text)]
    return Operation(
        id=id,
        after=list(after),
        messages=[Message(role="user", content=parts)],
        parameters={"max_tokens": 4, "temperature": 0},
    )


@pytest.fixture(scope="module")
def case() -> Case:
    """minivllm's ghost key: an image that is refused, the same again, then new ones."""
    size = MODEL.image_size()
    fills = [f"F{number}" for number in range(4)]
    operations = [asking("r1", "x" * 2100, "X"), asking("r2", "hi", "X", "r1.end")]
    for name in fills:
        operations.append(
            asking(f"r{len(operations) + 1}", "hi", name, f"{operations[-1].id}.end")
        )
    return Case(
        server=ServerWanted(
            engine="minivllm",
            release="0.1",
            model="qwen3",
            max_model_len=2048,
            args=FAULT,
        ),
        images={name: Noise(seed=i, size=size) for i, name in enumerate(["X", *fills])},
        operations=operations,
        origin=Origin(anonymised=True),
    )


@pytest.fixture(scope="module")
def found(case: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finding's folder. Its words are made up; what is made of it runs."""
    folder = tmp_path_factory.mktemp("replay")
    return written(
        case, folder, bucket="minivllm/hang/_loop > _take > add > received > put"
    )


def written(case: Case, folder: Path, bucket: str) -> Path:
    """A finding's folder in a replay's."""
    write_case(case, folder / "f1")
    finding = Finding(
        id="f1",
        finding_class=FindingClass.HANG,
        bucket=bucket,
        said="A request had no answer after 6 s, and nothing moved",
        operations=["r4"],
        confirmed=True,
        rate=Rate(failed=3, plays=3, low=0.292, high=1.0),
        requests=len(case.operations),
        requests_before=len(case.operations),
        observed={
            "r1": "400 too long",
            "r2": "200",
            "r3": "200",
            "r4": "no answer in 6.0 s",
        },
        folder="f1",
        case_file="f1/case.json",
        server=case.server,
    )
    replay = Replay(
        mmrepro_version="0",
        id="made-up",
        created=Moment.now(),
        state="complete",
        command="mmrepro replay case.json",
        origin=Origin(),
        server=case.server,
        requests=len(case.operations),
        host=HostFacts(os="", kernel="", cpu="", cores=1, memory_bytes=1, python=""),
        fidelity=Fidelity.TEACHING_ENGINE,
        budget=40,
        findings=[finding],
    )
    write_replay(replay, folder)
    return folder / "f1"


def reproduce(found: Path, server: Server) -> tuple[int, str]:
    port = server.url.rpartition(":")[2]
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(found / "reproduce.py"), "--port", port],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not done.stderr
    return done.returncode, done.stdout


def test_the_script_hangs_a_server_that_it_did_not_start(
    found: Path, tmp_path: Path
) -> None:
    with serving("minivllm", "0.1", MODEL, tmp_path / "s", *FAULT) as server:
        code, said = reproduce(found, server)
        assert code == 1, said
        assert "HANG reproduced: request r" in said
        with urllib.request.urlopen(f"{server.url}/health", timeout=5) as answer:
            assert answer.status == 200
    assert "ghost-key-lru is on" in server.log.read_text()


def test_and_not_one_that_is_put_right(found: Path, tmp_path: Path) -> None:
    with serving("minivllm", "0.1", MODEL, tmp_path / "s", *FIXED) as server:
        code, said = reproduce(found, server)
    assert (code, said.splitlines()[-1]) == (
        0,
        "Not reproduced: every request was answered.",
    )


@pytest.mark.slow
@pytest.mark.parametrize(("release", "code"), [("0.23.0", 1), ("0.24.0", 0)])
def test_the_ghost_key_of_vllm(tmp_path: Path, release: str, code: int) -> None:
    """0.24.0 has the fix (vllm#43595)."""
    model, options = TinyQwen2VL(), ["--mm-processor-cache-gb", "0.02"]
    fills = [f"F{number}" for number in range(14)]
    # Alone the text would fit: it is refused when its picture is counted, and has been
    # prepared.
    operations = [asking("r1", "x" * 1898, "X"), asking("r2", "hi", "X", "r1.end")]
    for name in fills:
        operations.append(
            asking(f"r{len(operations) + 1}", "hi", name, f"{operations[-1].id}.end")
        )
    case = Case(
        server=ServerWanted(engine="vllm", release=release, args=options),
        images={
            name: Noise(seed=i, size=model.image_size())
            for i, name in enumerate(["X", *fills])
        },
        operations=operations,
    )
    found = written(case, tmp_path / "replay", bucket="vllm/hang/process_input_sockets")
    with serving("vllm", release, model, tmp_path / "s", *options) as server:
        shown, said = reproduce(found, server)
    assert shown == code, said
    for name, status in (("r1", 400), ("r2", 500)):  # with the fix as well
        assert re.search(rf"^ +{name} +{status} ", said, re.MULTILINE), said


@pytest.mark.slow
def test_a_scenario_made_of_it_reproduces_and_its_fix_does_not(
    found: Path, tmp_path_factory: pytest.TempPathFactory, run_once: RunOnce
) -> None:
    folder = tmp_path_factory.mktemp("scenario")
    made = subprocess.run(
        [
            *COMMAND,
            "new",
            "last-night",
            "--from",
            str(found),
            "--out",
            str(folder),
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    file = json.loads(made.stdout)["files"][0]
    assert len(Path(file).read_text().splitlines()) <= 100
    broken = run_once(file)
    assert (broken.outcome, broken.exit_code) == ("reproduced", 0), broken.why
    assert broken.condition("stands-there")["truth"] == "met"
    assert [r["status"] for r in broken.requests("r1")] == [400]
    fixed = run_once(file, "--server-arg=--fix", "--server-arg=ghost-key-lru")
    assert fixed.outcome == "not-reproduced", fixed.why
    assert broken.document["left_behind"] == fixed.document["left_behind"] == []
