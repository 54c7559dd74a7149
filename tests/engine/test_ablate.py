"""An ablation of two factors on the real vLLM: interrupted, resumed, and reused as a
whole.

mm-cache-desync is the cheapest scenario (nothing hangs in it), and two factors are four
runs."""

import json
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from live import COMMAND, processes_in, wait_for
from mmrepro.base.machine.files import cache_root

pytestmark = [pytest.mark.engine, pytest.mark.slow]
DESYNC = ("ablate", "mm-cache-desync", "--factors", "prefix-caching,mm-cache")


@dataclass(frozen=True)
class Ablated:
    """The same ablation three times: broken off, gone on with, and once more."""

    folder: Path
    interrupted: subprocess.CompletedProcess[str]
    resumed: dict[str, Any]
    again: dict[str, Any]
    plan: dict[str, Any]


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A cache without cells, but with the environments and models of the user's."""
    root = tmp_path_factory.mktemp("cache")
    for name in ("environments", "models"):
        (cache_root() / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(cache_root() / name)
    return {**os.environ, "MMREPRO_CACHE_DIR": str(root)}


@pytest.fixture(scope="module")
def ablated(
    variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Ablated:
    folder = tmp_path_factory.mktemp("ablation") / "it"

    def mmrepro(*arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [*COMMAND, *arguments, "--json"],
            capture_output=True,
            text=True,
            timeout=900,
            env=variables,
        )
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    process = subprocess.Popen(
        [*COMMAND, *DESYNC, "--json", "--out", str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
        start_new_session=True,
    )
    try:
        wait_for(
            lambda: process.poll() is not None or cells(folder), 300, "the first cell"
        )
        second = "incidents/ablate/*-prefix-caching-*/run-1"

        def begun() -> list[Path]:
            return list(folder.glob(f"{second}/evidence/engine.log"))

        wait_for(lambda: process.poll() is not None or begun(), 60, "the second engine")
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate(timeout=60)
    (broken_off,) = folder.glob(second)
    wait_for(lambda: not processes_in(broken_off), 10, "the end of the engine")
    resume = next(
        line for line in stderr.splitlines() if line.startswith("to resume, run: ")
    )
    resumed = mmrepro(*shlex.split(resume.removeprefix("to resume, run: "))[1:])
    again = mmrepro(*DESYNC, "--out", str(folder.with_name("again")))
    return Ablated(
        folder,
        subprocess.CompletedProcess([], process.returncode, stdout, stderr),
        resumed,
        again,
        mmrepro(*DESYNC, "--dry-run"),
    )


def cells(folder: Path) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(
            (folder / "ablation.json").read_text()
        )["cells"]
    except (OSError, ValueError):
        return []
    return found


def test_ctrl_c_says_how_to_go_on(ablated: Ablated) -> None:
    assert ablated.interrupted.returncode == 130
    assert ablated.interrupted.stdout == ""
    assert "Traceback" not in ablated.interrupted.stderr


def test_what_was_whole_is_reused_when_it_goes_on(ablated: Ablated) -> None:
    first = ablated.resumed["cells"][0]
    assert (first["flips"], first["reused"]) == ([], 1)
    assert sum(cell["reused"] for cell in ablated.resumed["cells"]) == 1


def test_the_cache_is_necessary_and_prefix_caching_irrelevant(ablated: Ablated) -> None:
    classes = {f["name"]: f["factor_class"] for f in ablated.resumed["factors"]}
    assert classes == {"prefix-caching": "irrelevant", "mm-cache": "necessary"}
    assert ablated.resumed["conclusion"] == "cure-found"
    assert [cure["flips"] for cure in ablated.resumed["cures"]] == [["mm-cache"]]
    together = next(c for c in ablated.resumed["cells"] if len(c["flips"]) == 2)
    assert together["state"] == "cured"


def test_each_cell_is_an_incident_of_its_own(ablated: Ablated) -> None:
    for cell in ablated.resumed["cells"]:
        for run in cell["runs"]:
            file = ablated.folder / run["incident_dir"] / "incident.json"
            incident = json.loads(file.read_text())
            assert incident["verdict"]["outcome"] == run["outcome"]
            args = incident["engine"]["command"]
            assert ("--no-enable-prefix-caching" in args) == (
                "prefix-caching" in cell["flips"]
            )


def test_a_second_call_reuses_every_cell(ablated: Ablated) -> None:
    assert all(cell["reused"] == len(cell["runs"]) for cell in ablated.again["cells"])
    assert [c["runs"][0]["key"] for c in ablated.again["cells"]] == [
        c["runs"][0]["key"] for c in ablated.resumed["cells"]
    ]
    assert ablated.again["factors"] == ablated.resumed["factors"]
    assert sum(cell["runs"] for cell in ablated.plan["cells"]) == 0
    assert "measured" in ablated.plan["seconds_from"]


def test_it_fits_its_schema(ablated: Ablated) -> None:
    command = [*COMMAND, "ablate", "--json-schema"]
    schema = json.loads(subprocess.check_output(command, text=True))
    jsonschema.validate(
        json.loads((ablated.folder / "ablation.json").read_text()), schema
    )
    for name in ("ablation.md", "ablation.html"):
        assert "necessary" in (ablated.folder / name).read_text()
