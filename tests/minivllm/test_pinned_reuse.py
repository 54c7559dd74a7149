"""The race without an engine: what the emulated stream gives is what the table says of
it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

REPRODUCERS = Path(__file__).parents[2] / "reproducers"
NO_GPU = "torch finds no CUDA device here"
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU)


@cache
def told(script: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Its exit code and its document."""
    command = [sys.executable, str(REPRODUCERS / script), "--json", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def reuse(device: str) -> tuple[int, dict[str, Any]]:
    sizes = ("--size", "1024", "--size", str(1 << 20))
    return told("pinned_reuse.py", "--device", device, "--repetitions", "3", *sizes)


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {claim["id"]: claim["status"] for claim in document["claims"]}


def test_the_emulated_stream_gives_what_the_table_says() -> None:
    code, document = reuse("emulated")
    assert code == 0
    assert len(document["trials"]) == 2 * 8
    assert {trial["as_emulated"] for trial in document["trials"]} == {True}
    assert {mask["as_emulated"] for mask in document["masks"]} == {True}
    not_so = {
        name for name, status in statuses(document).items() if status != "confirmed"
    }
    assert not_so == {"delay", "graph"}, "it knows neither time nor graphs"


def test_the_emulated_masks_are_those_of_vllms_own_code() -> None:
    """Rows to put in, and ones that the device reads: as vLLM 0.12.0's
    ``_gather_mm_embeddings`` gave them in a queue of its own, of the report's image:
    2046 rows and 2048 ones, 354 and 353."""
    _, document = reuse("emulated")
    masks = {mask["name"]: mask for mask in document["masks"]}
    assert (
        "Number of elements of source < number of ones" in masks["three-steps"]["error"]
    )
    assert masks["two-steps"]["rows"][:2] == [[2046, 2040], [354, 353]]
    assert masks["two-steps"]["wrong"][0] > 0
    assert masks["equal-count"]["rows"][0] == [1000, 1000]
    assert masks["equal-count"]["wrong"][0] > 0


def test_a_cpu_is_never_late() -> None:
    code, document = reuse("cpu")
    assert code == 1
    assert {(trial["old"], trial["busy"]) for trial in document["trials"]} == {(3, 0)}
    assert {mask["outcome"] for mask in document["masks"]} == {"right"}
    assert statuses(document)["busy"] == "refuted"
    assert statuses(document)["as-emulated"] == "not-tested"


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize("script", ["pinned_reuse.py", "device_assert.py"])
def test_without_a_gpu_it_cannot_be_tried(script: str) -> None:
    code, document = told(script, "--device", "cuda")
    assert code == 4
    assert NO_GPU in document["error"]


@on_cuda
def test_a_gpu_that_is_late_reads_what_the_emulated_stream_reads() -> None:
    code, document = reuse("cuda")
    assert code == 0
    assert set(statuses(document).values()) == {"confirmed"}, document["claims"]
    assert {mask["as_emulated"] for mask in document["masks"]} == {True}


def test_a_cpu_refuses_at_once_and_goes_on() -> None:
    code, document = told("device_assert.py", "--device", "cpu")
    refusals = {one["cause"]: one for one in document["refusals"]}
    assert code == 0
    assert {one["raised_by"] for one in refusals.values()} == {"launch"}
    assert {one["afterwards"] for one in refusals.values()} == {""}
    assert refusals["index"]["error"] == "IndexError: index out of range in self"
    assert (
        "Number of elements of source < number of ones in mask"
        in refusals["scatter"]["error"]
    )
    assert set(statuses(document).values()) == {"not-tested"}


@on_cuda
def test_a_gpu_refuses_later_and_is_lost() -> None:
    code, document = told("device_assert.py", "--device", "cuda")
    assert code == 0
    assert set(statuses(document).values()) == {"confirmed"}, document["claims"]
