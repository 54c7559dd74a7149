"""minivllm in its own environment: its torch tests, and the contract's six variants
over HTTP.

The tests below ``tests/minivllm`` need torch, which the harness does not have. They run
once, under the interpreter of minivllm's environment, and each of their functions is a
test here that tells what JUnit's file says of it: failed, skipped or absent is failed.
Where all of one was skipped for want of a GPU, it is skipped here."""

import ast
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from grids import grid
from junitparser import JUnitXml, TestCase
from live import RunOnce
from mmrepro.base.machine.host import child_environment
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import MINIVLLM, minivllm_spec
from mmrepro.engines.models.qwen import TinyQwen3
from mmrepro.reproducers import reproducer_path
from mmrepro.scenario.registry import load_scenario
from mmrepro.scenarios.data import pad_value_pair

pytestmark = [
    pytest.mark.engine,
    pytest.mark.meanwhile("pad-value-collision --option traffic"),
]

NO_GPU = "torch finds no CUDA device here"
INNER = Path(__file__).parents[1] / "minivllm"
CONTRACT = "mm-prefill-contract"
VARIANTS = [v.variant for v in load_scenario(CONTRACT).variants]
AT_START = "mm-prefill-at-start"


def functions() -> list[tuple[str, str]]:
    """(file, function) of every test below tests/minivllm, read without importing
    it."""
    return [
        (file.stem, node.name)
        for file in sorted(INNER.glob("test_*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@dataclass(frozen=True)
class Inner:
    """One run of the inner tests: what it said, and its cases by file and function."""

    exit_code: int
    said: str
    cases: dict[tuple[str, str], list[TestCase]]


@pytest.fixture(scope="session")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    made = ensure(minivllm_spec(MINIVLLM, "cpu"))
    report = tmp_path_factory.mktemp("inner") / "junit.xml"
    command = [str(made.python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["--durations=5", f"--junitxml={report}", str(INNER)]
    done = subprocess.run(
        command,
        env=child_environment({"OMP_NUM_THREADS": "1"}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    cases: dict[tuple[str, str], list[TestCase]] = {}
    for suite in JUnitXml.fromfile(str(report)) if report.exists() else ():
        for case in suite:
            file, function = (
                case.classname.rpartition(".")[2],
                case.name.partition("[")[0],
            )
            cases.setdefault((file, function), []).append(case)
    return Inner(done.returncode, done.stdout[-6000:] + done.stderr[-2000:], cases)


@pytest.mark.parametrize(("file", "function"), functions())
def test_in_its_environment(inner: Inner, file: str, function: str) -> None:
    cases = inner.cases.get((file, function))
    assert cases, f"it did not run: pytest ended with {inner.exit_code}\n{inner.said}"
    cases = [case for case in cases if [r.message for r in case.result] != [NO_GPU]]
    if not cases:
        pytest.skip(NO_GPU)
    bad = {
        case.name: [r.message for r in case.result]
        for case in cases
        if not case.is_passed
    }
    assert not bad, inner.said


def test_nothing_else_was_run_there(inner: Inner) -> None:
    assert inner.exit_code == 0, inner.said
    assert set(inner.cases) == set(functions())


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_reproduces(run_once: RunOnce, variant: str) -> None:
    broken = run_once(CONTRACT, "--variant", variant, "--device", "cpu")
    assert (broken.outcome, broken.exit_code) == ("reproduced", 0), broken.why
    assert broken.claim("root-cause")["status"] == "confirmed"
    assert broken.claim("original")["status"] == "not-tested"
    assert broken.document["fidelity"] == "teaching-engine"
    assert broken.document["stand_ins"] == []
    assert broken.document["left_behind"] == []


@pytest.mark.parametrize("variant", grid(VARIANTS, always=["slot-mapping"]))
def test_its_fix_cures_it(run_once: RunOnce, variant: str) -> None:
    fixed = run_once(
        CONTRACT, "--variant", variant, "--device", "cpu", "--mitigation", "fix"
    )
    assert (fixed.outcome, fixed.exit_code) == ("not-reproduced", 0), fixed.why
    assert fixed.claim("fixed")["status"] == "confirmed"
    assert [m["effective"] for m in fixed.document["mitigations"]] == [True]


@pytest.mark.parametrize(
    "variant",
    grid(
        [v.variant for v in load_scenario(AT_START).variants], always=["broken-module"]
    ),
)
def test_the_server_does_not_start(run_once: RunOnce, variant: str) -> None:
    broken = run_once(AT_START, "--variant", variant, "--device", "cpu")
    assert (broken.outcome, broken.exit_code) == ("reproduced", 0), broken.why
    assert broken.claim("at-start")["status"] == "confirmed"
    assert broken.document["evidence"]["never_ready"].startswith(
        "minivllm 0.1 ended with 1 while"
    )
    assert {r["phase"] for r in broken.document["evidence"]["requests"]} == {"control"}
    assert broken.document["left_behind"] == []


def test_put_right_it_starts(run_once: RunOnce) -> None:
    fixed = run_once(AT_START, "--device", "cpu", "--mitigation", "fix")
    assert (fixed.outcome, fixed.exit_code) == ("not-reproduced", 0), fixed.why
    assert fixed.claim("fixed")["status"] == "confirmed"
    assert [m["effective"] for m in fixed.document["mitigations"]] == [True]


def demo(cache: Path, *args: str) -> subprocess.CompletedProcess[str]:
    made, model = ensure(minivllm_spec(MINIVLLM, "cpu")), TinyQwen3().write(cache)
    command = [str(made.python), "-m", "minivllm.demo", "--model", str(model), *args]
    home = reproducer_path("minivllm").parent
    env = child_environment({"OMP_NUM_THREADS": "1"})
    return subprocess.run(
        command,
        cwd=home,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_notes_demo_tells_what_it_prefilled_and_how_fast(tmp_path: Path) -> None:
    done = demo(
        tmp_path, "--image-path", str(pad_value_pair() / "A.png"), "--max-tokens", "4"
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["prefill_tokens"] > told["of_the_picture"] > 0
    assert told["prefill_tokens_per_s"] > 0 < told["decode_tokens_per_s"]
    assert told["finish_reason"] == "length"
    lost = demo(tmp_path, "--image-path", "nowhere.png")
    assert (lost.returncode, lost.stdout) == (2, "")
    assert (
        lost.stderr == "minivllm: [Errno 2] No such file or directory: 'nowhere.png'\n"
    )
