"""The main job on the real vLLM: the hang, its absence, its mitigations, its root."""

import json
import subprocess

import jsonschema
import pytest
from live import COMMAND, RunOnce

pytestmark = pytest.mark.engine
GHOST, DESYNC = "ghost-key-eviction", "mm-cache-desync"

STACK = [
    ("popitem", "vllm/utils/cache.py"),
    ("__setitem__", "cachetools/__init__.py"),
    ("__setitem__", "cachetools/__init__.py"),
    ("get_and_update_item", "vllm/multimodal/cache.py"),
    ("get_and_update_features", "vllm/multimodal/cache.py"),
    ("preprocess_add_request", "vllm/v1/engine/core.py"),
    ("process_input_sockets", "vllm/v1/engine/core.py"),
]


@pytest.fixture(scope="module")
def hung(run_once: RunOnce):
    return run_once(GHOST)


def test_0_23_0_is_reproduced(hung):
    assert hung.outcome == "reproduced", hung.why
    assert hung.exit_code == 0
    document = hung.document
    assert document["verdict"]["as_expected"] is True
    assert document["engine"]["release"] == "0.23.0"
    assert document["fidelity"] == "cpu"
    assert document["incident_dir"] == str(hung.folder)
    assert all(c["truth"] == "met" for c in document["verdict"]["conditions"])
    assert document["left_behind"] == []


def test_the_stack_is_the_bug_reports(hung):
    frames = hung.document["key_stack"]["frames"]
    seen = [(f["function"].rsplit(".", 1)[-1], f["file"]) for f in frames]
    start = seen.index(STACK[0])
    assert seen[start : start + len(STACK)] == STACK
    assert "process_input_sockets" in hung.document["key_stack"]["thread"]


def test_the_evidence_is_on_disk_and_named(hung):
    for condition in hung.document["verdict"]["conditions"]:
        for name in condition["evidence"]:
            assert (hung.folder / "evidence" / name).is_file(), name
    for name in ("report.md", "report.html", "incident.json", "evidence/engine.log"):
        assert (hung.folder / name).stat().st_size > 1000, name


def test_the_source_lines_are_those_of_the_engine(hung):
    touch = next(
        s for s in hung.document["sources"] if s["qualname"] == "LRUCache.touch"
    )
    assert any("self._LRUCache__order[key] = None" in line for line in touch["lines"])
    assert touch["highlight"]


def test_the_incident_fits_its_schema(hung):
    schema = json.loads(
        subprocess.check_output([*COMMAND, "run", "--json-schema"], text=True)
    )
    jsonschema.validate(json.loads((hung.folder / "incident.json").read_text()), schema)


@pytest.mark.parametrize("format", ["md", "html", "json", "junit"])
def test_reports_are_made_again_from_the_folder_alone(hung, format):
    command = [*COMMAND, "report", str(hung.folder), "--format", format]
    text = subprocess.check_output(command, text=True)
    assert "ghost-key-eviction" in text


def test_the_claims_are_judged(hung):
    assert hung.claim("cause")["status"] == "confirmed"
    assert hung.claim("at-will")["status"] == "refuted"
    assert hung.claim("fixed-hang")["status"] == "not-tested"
    assert hung.claim("gpu-idle")["status"] in ("not-tested", "confirmed")


@pytest.mark.slow
def test_0_24_0_is_fixed_but_for_the_cause(run_once: RunOnce):
    fixed = run_once(GHOST, "--release", "0.24.0")
    assert (fixed.outcome, fixed.exit_code) == ("not-reproduced", 0), fixed.why
    assert fixed.claim("fixed-hang")["status"] == "confirmed"
    assert fixed.claim("fixed-desync")["status"] == "refuted"
    assert fixed.condition("engine-code-loops")["truth"] == "not-met"


@pytest.mark.slow
@pytest.mark.parametrize("mitigation", ["patch", "disable-mm-cache"])
def test_a_mitigation_prevents_the_hang(run_once: RunOnce, mitigation):
    cured = run_once(GHOST, "--release", "0.23.0", "--mitigation", mitigation)
    assert (cured.outcome, cured.exit_code) == ("not-reproduced", 0), cured.why
    applied = next(m for m in cured.document["mitigations"] if m["name"] == mitigation)
    assert applied["applied"] is True
    assert applied["effective"] is True
    names = [stand_in["name"] for stand_in in cured.document["stand_ins"]]
    assert names == (["ghost_key_patch"] if mitigation == "patch" else [])


@pytest.mark.slow
def test_greedy_answers_repeat_across_starts(hung, run_once: RunOnce):
    """Real weights: the same image gives the same answer on another server of that
    release."""
    other = run_once(GHOST, "--release", "0.23.0", "--mitigation", "patch")
    texts = [[r["text"] for r in run.requests("gate: image")] for run in (hung, other)]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) > 1, "two images must not get one answer"


@pytest.mark.parametrize("release", ["0.24.0", "0.32.0"])
@pytest.mark.slow
def test_the_desynchronised_cache_outlives_the_fix(run_once: RunOnce, release):
    desync = run_once(DESYNC, "--release", release)
    assert (desync.outcome, desync.exit_code) == ("reproduced", 0), desync.why
    statuses = [r["status"] for r in desync.requests("image X again")]
    assert statuses == ([500] * 4 if release == "0.24.0" else [500, 200, 200, 200])
    assert desync.claim("for-ever")["status"] == (
        "confirmed" if release == "0.24.0" else "refuted"
    )


def test_a_server_that_cannot_start_is_infrastructure(run_once: RunOnce):
    failed = run_once(GHOST, "--server-arg=--kv-cache-dtype=no-such")
    assert failed.exit_code == 4
    assert failed.stdout == ""
    assert "Traceback" not in failed.stderr
    assert "no-such" in failed.stderr or "kv-cache-dtype" in failed.stderr
    incident = json.loads((failed.folder / "incident.json").read_text())
    assert incident["state"] == "failed"
    assert incident["verdict"] is None
