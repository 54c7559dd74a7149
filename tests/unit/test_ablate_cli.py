"""``mmrepro ablate`` as users meet it: no engine, no network."""

import json
from pathlib import Path

import pytest
from matrix_nights import FakeProvisions
from mmrepro.base.errors import ExitCode
from mmrepro.campaign.ablate import cells
from mmrepro.campaign.cluster import where
from mmrepro.traffic.evidence import Evidence
from test_cli import Here, here as here
from worlds import World, WorldTrials, as_in_0_23, environment

GHOST = "ghost-key-eviction"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    place = environment(tmp_path / "cache/environments/vllm-0.23.0-cpu")
    made = World()
    monkeypatch.setattr(cells, "existing", lambda spec: place)
    monkeypatch.setattr(
        where, "Trials", lambda options: WorldTrials(made, place, options)
    )
    monkeypatch.setattr(where, "Provisions", lambda *rest: FakeProvisions())
    return made


def test_an_ablation_for_people_and_for_machines(
    here: Here, world: World, tmp_path: Path
) -> None:
    chosen = ("--device", "cpu", "--factors", "cache-size, mm-cache")
    said = here("ablate", GHOST, *chosen, "--out", tmp_path / "out")
    assert (said.returncode, said.stderr) == (0, "")
    assert "mm-cache: cured (1 × cured), in " in said.stdout
    assert "hides it" in said.stdout
    assert said.stdout.splitlines()[-1].startswith(
        "WORKAROUND FOUND: ghost-key-eviction on vllm"
    )
    world.calls.clear()
    again = here("ablate", GHOST, *chosen, "--json")
    assert (again.returncode, world.calls) == (0, [])
    document = json.loads(again.stdout)
    assert {f["name"]: f["factor_class"] for f in document["factors"]} == {
        "cache-size": "hides-it",
        "mm-cache": "necessary",
    }
    assert "mm-cache: cured (1 × cured), reused" in again.stderr
    for format, starts in (("md", "# Ablation"), ("html", "<!doctype"), ("json", "{")):
        shown = here("report", tmp_path / "out", "--format", format)
        assert shown.stdout.startswith(starts)
    assert (
        here("report", tmp_path / "out", "--format", "junit").returncode
        == ExitCode.USAGE
    )


def test_quiet_prints_the_verdict_and_the_page(
    here: Here, world: World, tmp_path: Path
) -> None:
    chosen = (
        "--device",
        "cpu",
        "--factors",
        "cache-size, mm-cache",
        "--out",
        tmp_path / "out",
    )
    said = here("ablate", GHOST, *chosen, "-q")
    assert (said.returncode, said.stderr) == (0, "")
    page, verdict = said.stdout.splitlines()
    assert verdict.startswith("WORKAROUND FOUND: ghost-key-eviction on vllm")
    assert page == f"page: {tmp_path / 'out/ablation.html'}"
    assert (tmp_path / "out/ablation.html").is_file()


def test_ctrl_c(here: Here, world: World, tmp_path: Path) -> None:
    def interrupted(flips: frozenset[str]) -> Evidence:
        if flips:
            raise KeyboardInterrupt
        return as_in_0_23(flips)

    world.happens = interrupted
    said = here("ablate", GHOST, "--device", "cpu", "--out", tmp_path / "out")
    assert said.returncode == ExitCode.INTERRUPTED
    resume = (
        f"to resume, run: mmrepro ablate {GHOST} --device cpu --out {tmp_path / 'out'}"
    )
    assert resume in said.stderr
    assert "1 cell done" in said.stderr
    world.happens = as_in_0_23
    words = resume.partition(": mmrepro ")[2].split()
    resumed = here(*words)
    assert resumed.returncode == 0
    assert world.calls.count(()) == 1


def test_places_time_and_events_are_typed_as_of_every_campaign(
    here: Here, world: World, tmp_path: Path
) -> None:
    chosen = (
        "--device",
        "cpu",
        "--factors",
        "mm-cache",
        "--jobs",
        "2",
        "--budget",
        "1s",
    )
    out, events = tmp_path / "out", tmp_path / "events.jsonl"
    late = here("ablate", GHOST, *chosen, "--out", out, "--events", events)
    assert late.returncode == ExitCode.INCONCLUSIVE, (
        "no run is expected to end in a second"
    )
    assert world.calls == []
    failure = json.loads((out / "ablation.json").read_text())["failure"]
    assert failure.endswith(f"--jobs 2 --budget 1s --out {out} --factors mm-cache")
    said = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert said == ["began", "ended"]
    resumed = here("resume", out)
    assert resumed.returncode == 0, resumed.stderr
    assert world.calls == [(), ("mm-cache",)]


def test_a_dry_run_starts_nothing(here: Here, world: World, tmp_path: Path) -> None:
    said = here("ablate", GHOST, "--dry-run", "--device", "cpu")
    assert said.returncode == 0
    assert world.calls == []
    assert not (tmp_path / "ablations").exists()
    assert "9 runs, about 9 min" in said.stdout
    assert "an estimate" in said.stdout
    document = json.loads(
        here("ablate", GHOST, "--dry-run", "--json", "--device", "cpu").stdout
    )
    assert [c["flips"] for c in document["cells"]][:2] == [[], ["prefix-caching"]]
    assert document["cells"][1]["command"].endswith("--flip prefix-caching")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            (GHOST, "--factors", "prayer"),
            "has no factor 'prayer'; it has: prefix-caching, ",
        ),
        ((GHOST, "--threshold", "2"), "--threshold 2 is more than --repeat 1"),
        ((GHOST, "--repeat", "0"), "--repeat"),
        ((GHOST, "--release", "latest"), "'latest' is not a release of vllm."),
        (("no-such",), "There is no scenario 'no-such'"),
    ],
)
def test_wrong_use(
    here: Here, tmp_path: Path, argv: tuple[str, ...], says: str
) -> None:
    said = here("ablate", *argv, "--device", "cpu")
    assert (said.returncode, said.stdout) == (ExitCode.USAGE, "")
    assert says in said.stderr
    assert list(tmp_path.iterdir()) == []


def test_its_help_and_its_schema(here: Here) -> None:
    assert "Example:  mmrepro ablate" in here("ablate", "--help").stdout
    assert "Ablation" in json.loads(here("ablate", "--json-schema").stdout)["$defs"]
