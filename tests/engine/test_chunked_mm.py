"""chunked-mm-prefill and encoder-cache-overflow on the real vLLM, and the emulated
stream's own."""

import json
import subprocess
from pathlib import Path

import pytest
from live import Finished, RunOnce
from mmrepro.base.machine.host import child_environment
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import vllm_spec
from mmrepro.reproducers import reproducer_path

pytestmark = pytest.mark.engine
PREFILL, OVERFLOW = "chunked-mm-prefill", "encoder-cache-overflow"
IMAGES = ("image of two steps", "image A, of three steps", "image B, of three steps")


def placeholder(run_once: RunOnce, variant: str, release: str) -> Finished:
    return run_once(PREFILL, "--variant", variant, "--release", release)


def race(run_once: RunOnce, *more: str, release: str = "0.12.0") -> Finished:
    return run_once(PREFILL, "--variant", "async-race", "--release", release, *more)


def texts(run: Finished) -> list[str]:
    return [run.requests(label)[0]["text"] for label in IMAGES]


@pytest.mark.slow
def test_a_stray_placeholder_takes_0_11_0_down(run_once: RunOnce):
    died = placeholder(run_once, "generated-placeholder", "0.11.0")
    assert (died.outcome, died.exit_code) == ("reproduced", 0), died.why
    assert died.document["fidelity"] == "cpu"
    assert died.document["stand_ins"] == []
    assert "Number of elements of source" in died.condition("first-error")["observed"]
    assert died.condition("server-exits")["truth"] == "met"
    assert died.claim("needs-async")["status"] == "refuted"
    assert died.document["left_behind"] == []


@pytest.mark.slow
def test_an_image_above_the_encoder_cache_hangs(run_once: RunOnce):
    hung = run_once(OVERFLOW, "--release", "0.11.0")
    assert (hung.outcome, hung.exit_code) == ("reproduced", 0), hung.why
    assert hung.condition("larger-than-the-budget")["truth"] == "met"
    assert hung.document["left_behind"] == []


@pytest.mark.slow
def test_0_12_0_answers_the_stray_placeholder(run_once: RunOnce):
    lives = placeholder(run_once, "generated-placeholder", "0.12.0")
    assert (lives.outcome, lives.exit_code) == ("not-reproduced", 0), lives.why
    assert lives.condition("stray-placeholder")["truth"] == "met"


def test_the_race_kills_0_12_0(run_once: RunOnce):
    died = race(run_once)
    assert (died.outcome, died.exit_code) == ("reproduced", 0), died.why
    assert died.document["fidelity"] == "emulated-stream"
    assert [s["name"] for s in died.document["stand_ins"]] == ["emulated_stream"]
    assert died.condition("silent-steps")["truth"] == "met"
    assert died.claim("graphs")["status"] == "refuted"
    assert died.claim("reporters-build")["status"] == "not-tested"


@pytest.mark.parametrize("mitigation", ["sync-scheduling", "barrier"])
@pytest.mark.slow
def test_a_mitigation_orders_the_buffer(run_once: RunOnce, mitigation):
    cured = race(run_once, "--mitigation", mitigation)
    assert (cured.outcome, cured.exit_code) == ("not-reproduced", 0), cured.why
    assert cured.condition("unordered-buffer")["truth"] == "not-met"
    overlapping = "met" if mitigation == "barrier" else "not-met"
    assert cured.condition("steps-overlap")["truth"] == overlapping
    assert [m["effective"] for m in cured.document["mitigations"] if m["applied"]] == [
        True
    ]


@pytest.mark.slow
def test_0_14_0_orders_the_buffer(run_once: RunOnce):
    fixed = race(run_once, release="0.14.0")
    assert (fixed.outcome, fixed.exit_code) == ("not-reproduced", 0), fixed.why
    assert fixed.document["fidelity"] == "emulated-stream"
    assert fixed.condition("unordered-buffer")["truth"] == "not-met"
    assert fixed.condition("steps-overlap")["truth"] == "met"


PLAIN = """
from mmrepro.scenarios.chunked_mm_prefill.async_race import AsyncRace

class Plain(AsyncRace):
    patches = ()
    server = f"{AsyncRace.server} --no-async-scheduling"

SCENARIO = Plain()
"""


@pytest.mark.slow
def test_the_stand_in_changes_no_token_where_work_is_ordered(
    run_once: RunOnce, tmp_path: Path
):
    """And a silent step of the race does change them."""
    file = tmp_path / "plain.py"
    file.write_text(PLAIN)
    plain = run_once(str(file), "--release", "0.12.0")
    assert plain.document["fidelity"] == "cpu"
    assert plain.document["stand_ins"] == []
    expected = texts(plain)
    assert len(set(expected)) > 1, "images must not all get one answer"
    for mitigation in ("sync-scheduling", "barrier"):
        assert texts(race(run_once, "--mitigation", mitigation)) == expected, mitigation
    assert texts(race(run_once))[0] != expected[0]


@pytest.mark.parametrize("release", ["0.12.0", "0.14.0"])
def test_the_emulated_stream_on_torch(release):
    environment = ensure(vllm_spec(release, "cpu"))
    folder = reproducer_path("standins") / "emulated_stream"
    done = subprocess.run(
        [str(environment.python), str(Path(__file__).with_name("stream_on_torch.py"))],
        env=child_environment({"PYTHONPATH": str(folder)}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found
    assert [name for name, holds in found.items() if not holds] == []
