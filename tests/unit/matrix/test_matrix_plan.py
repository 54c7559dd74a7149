"""What ``--releases``, ``--mitigation``, ``--shard`` and FILE.toml mean."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.campaign.matrix import plan as planning, selectors
from mmrepro.campaign.matrix.options import MatrixRunCommand, Rows, load
from mmrepro.campaign.matrix.plan import NightPlan, dry_run, sharded
from mmrepro.campaign.schedule import Estimates, groups_of
from mmrepro.engines import spec_for
from mmrepro.engines.environments.index import Listed
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.failure.documents.ledger import Planned
from mmrepro.history.ledger import History
from mmrepro.scenario import Scenario
from mmrepro.scenario.registry import load_scenario, scenario_names
from packaging.specifiers import SpecifierSet
from packaging.version import Version

VLLM = "0.11.0 0.11.1.post2 0.13.0 0.14.0 0.14.1 0.22.0 0.23.0 0.24.0 0.25.0 0.32.0"
SGLANG = "0.5.2 0.5.6 0.5.22 0.5.23"
GHOST = "ghost-key-eviction"


def listed(text: str) -> list[Listed]:
    return [
        Listed(Version(v), v, datetime(2026, 1, 1, tzinfo=UTC)) for v in text.split()
    ]


def listing(spec: EnvironmentSpec) -> Sequence[Listed]:
    return listed({"vllm": VLLM, "sglang": SGLANG}.get(spec.engine, "0.1"))


def nothing(spec: EnvironmentSpec) -> Sequence[Listed]:
    raise AssertionError("the index was asked")


def plan(
    *scenarios: str, ask: object = listing, releases: str = "", **over: Any
) -> NightPlan:
    wanted = selectors.parse(releases) if releases else ()
    settings = MatrixRunCommand(**{"device": "cpu", "releases": wanted, **over})
    rows = [Rows(scenario=list(scenarios))]
    return planning.plan("n", rows, settings, MatrixRunCommand(), listing=ask)  # type: ignore[arg-type]


def cells(made: NightPlan) -> list[str]:
    return [
        " ".join([p.cell.release, p.cell.row, p.expected or ""]).strip()
        for p in made.cells
    ]


def releases(made: NightPlan) -> list[str]:
    return [p.cell.release for p in made.cells]


# ---------------------------------------------------------------- the whole catalogue


def test_the_catalogues_night_has_every_scenario() -> None:
    """At its own release, under each mitigation that helps there, behind its range, and
    newest."""
    loaded = load(Path(__file__).parents[3] / "docs/nightly/catalogue.toml")
    made = planning.plan(
        "n", loaded.cell, MatrixRunCommand(), loaded.matrix, listing=listing
    )
    ran = {
        (p.cell.scenario, p.cell.variant, p.cell.release, p.cell.mitigations)
        for p in made.cells
    }
    for name in scenario_names():
        main = load_scenario(name)
        for one in main.variants or (main,):
            newest = listing(spec_for(one.engine, one.release, "cpu"))[-1].version
            releases = {one.release, newest, *_behind(one)}
            assert {(name, one.variant, release, ()) for release in releases} <= ran, (
                one.full_name
            )
            for cure in one.mitigations:
                if not cure.release and cure.effective_on.contains(one.release):
                    assert (name, one.variant, one.release, (cure.name,)) in ran, (
                        cure.name
                    )


def test_the_gpus_file_has_what_only_a_gpu_shows() -> None:
    loaded = load(Path(__file__).parents[3] / "docs/gpu.toml")
    assert (loaded.matrix.device, loaded.matrix.start_mode) == ("cuda", "cold")
    rows = {
        (name, *(row.releases or ())) for row in loaded.cell for name in row.scenario
    }
    assert {
        ("ghost-key-eviction", "0.23.0"),
        ("mm-cache-desync", "0.23.0"),
        ("undersized-kv-budget", "0.18.0"),
        ("pad-value-collision", "0.5.17"),
    } <= rows
    made = planning.plan(
        "n", loaded.cell, MatrixRunCommand(), loaded.matrix, listing=listing
    )
    masks = [p for p in made.cells if p.cell.variant == "reused-mask"]
    assert [p.cell.mitigations for p in masks] == [(), ("fix",)]


def _behind(one: Scenario) -> set[str]:
    there = [
        release.version for release in listing(spec_for(one.engine, one.release, "cpu"))
    ]
    inside = [release for release in there if one.affects(release)]
    later = [r for r in there if inside and Version(r) > Version(inside[-1])]
    return set(later[:1])


@pytest.mark.parametrize(
    ("inside", "found"),
    [("", ""), ("b", "c"), ("bc", "d"), ("d", ""), ("ac", "b d"), ("abcd", "")],
)
def test_the_first_release_after(inside: str, found: str) -> None:
    assert (
        selectors.after(list("abcd"), lambda release: release in inside)
        == found.split()
    )


# ---------------------------------------------------------------- selectors


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ("affected", "0.14.0 0.14.1 0.22.0 0.23.0"),
        ("boundary", "0.13.0 0.14.0 0.23.0 0.24.0"),
        ("after", "0.24.0"),
        ("newest", "0.32.0"),
        ("own", "0.23.0"),
        ("0.13.0..0.14.0", "0.13.0 0.14.0"),
        ("0.11.1..0.11.1", "0.11.1.post2"),
        ("..0.13", "0.11.0 0.11.1.post2 0.13.0"),
        ("0.25..", "0.25.0 0.32.0"),
        ("0.99.0", "0.99.0"),
        ("newest,0.13.0,boundary,newest", "0.13.0 0.14.0 0.23.0 0.24.0 0.32.0"),
        ("", "0.23.0 0.32.0"),
    ],
)
def test_selectors(selector: str, wanted: str) -> None:
    made = plan(GHOST, **({"releases": selector} if selector else {}))
    assert releases(made) == wanted.split()
    assert {
        p.expected for p in made.cells if p.cell.release in ("0.14.0", "0.23.0")
    } <= {"reproduced"}


def test_the_index_is_asked_only_where_a_selector_needs_it() -> None:
    assert releases(plan(GHOST, releases="0.22.0,own", ask=nothing)) == [
        "0.22.0",
        "0.23.0",
    ]
    with pytest.raises(AssertionError):
        plan(GHOST, releases="newest", ask=nothing)


def test_versions_of_one_engine_are_none_of_another() -> None:
    made = plan(GHOST, "pad-value-collision", releases="0.22.0,0.5.6")
    assert cells(made) == [
        "0.5.6 pad-value-collision reproduced",
        "0.22.0 ghost-key-eviction reproduced",
    ]
    made = plan(GHOST, "pad-value-collision", releases="0.22.0..0.23.0")
    assert releases(made) == ["0.22.0", "0.23.0"]
    assert "no release of sglang" in made.notes[0]


@pytest.mark.parametrize(
    "wrong", ["", " , ", "latest", "0.2..0.1", "..", "1..2..3", "a..b"]
)
def test_what_names_no_release(wrong: str) -> None:
    with pytest.raises(UsageError) as caught:
        selectors.parse(wrong)
    assert caught.value.hint


@given(
    st.lists(st.integers(0, 40), unique=True, max_size=12),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_an_edge_is_between_neighbours(numbers: list[int], low: int, high: int) -> None:
    there = [f"0.{n}.0" for n in sorted(numbers)]
    inside = SpecifierSet(f">=0.{low}.0,<0.{high}.0")
    found = selectors.boundary(there, inside.contains)
    flags = [r in inside for r in there]
    edges = sum(a != b for a, b in itertools.pairwise(flags))
    assert (not found) == (edges == 0)
    assert len(found) <= 2 * edges
    for release in found:
        at = there.index(release)
        assert any(
            flags[i] != flags[at] for i in (at - 1, at + 1) if 0 <= i < len(there)
        )


# ------------------------------------------------------------- mitigations and variants


def test_each_mitigation_is_a_row_where_it_speaks() -> None:
    made = plan(GHOST, releases="0.23.0,0.24.0", mitigation=("each",))
    helps = [m.name for m in load_scenario(GHOST).mitigations if not m.release]
    assert helps
    assert cells(made) == [
        "0.23.0 ghost-key-eviction reproduced",
        *(f"0.23.0 ghost-key-eviction +{name} not-reproduced" for name in helps),
        "0.24.0 ghost-key-eviction not-reproduced",
    ]
    assert "is the release 0.24.0, a column of its own" in made.notes[0]
    [only] = plan(GHOST, releases="0.23.0", mitigation=(helps[0],)).cells
    assert only.cell.mitigations == (helps[0],)


def test_a_mitigation_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="no mitigation 'prayer'"):
        plan(GHOST, releases="own", mitigation=("prayer",))
    with pytest.raises(UsageError, match="another release") as caught:
        plan(GHOST, releases="own", mitigation=("release",))
    assert caught.value.hint == "--releases 0.24.0"


def test_variants() -> None:
    one = plan("borrowed-faults", releases="own")
    assert [p.cell.variant for p in one.cells] == ["ghost-key-lru"], (
        "the default, by its name"
    )
    assert plan("borrowed-faults:ghost-key-lru", releases="own").cells == one.cells
    assert len(plan("borrowed-faults:all", releases="own").cells) == 4
    everything = plan("all", releases="own")
    assert {p.cell.engine for p in everything.cells} == {
        "vllm",
        "sglang",
        "lmdeploy",
        "minivllm",
    }
    of_one = plan("all", releases="own", engine="sglang")
    assert {p.cell.engine for p in of_one.cells} == {"sglang"}
    assert {p.cell.scenario for p in of_one.cells} >= {
        "pad-value-collision",
        "shape-alias",
    }
    assert plan(GHOST, GHOST, releases="own").cells == plan(GHOST, releases="own").cells


@pytest.mark.parametrize(
    ("names", "over", "words"),
    [
        ([], {}, "no scenario"),
        (["ghost"], {}, "There is no scenario"),
        ([f"{GHOST}:x"], {}, "no variant 'x'"),
        ([GHOST], {"engine": "sglang"}, "of that engine"),
        ([GHOST], {"engine": "tgi"}, "no engine 'tgi'"),
        ([GHOST], {"releases": "0.15.0..0.16.0"}, "no cell"),
    ],
)
def test_nothing_to_run(names: list[str], over: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(*names, **over)


# ---------------------------------------------------------------- groups, shards, time


def test_cells_of_one_environment_stand_together_oldest_first() -> None:
    made = plan(
        GHOST, "mm-cache-desync", "pad-value-collision", releases="boundary,own"
    )
    names = [(group.name, len(group.cells)) for group in groups_of(made.cells)]
    assert names == [
        ("sglang 0.5.2 (cpu)", 1),
        ("sglang 0.5.6 (cpu)", 1),
        ("sglang 0.5.22 (cpu)", 1),
        ("sglang 0.5.23 (cpu)", 1),
        ("vllm 0.13.0 (cpu)", 2),
        ("vllm 0.14.0 (cpu)", 2),
        ("vllm 0.23.0 (cpu)", 1),
        ("vllm 0.24.0 (cpu)", 2),
    ]


@examples(15)
@given(st.integers(1, 5), st.sets(st.integers(0, 30), min_size=1, max_size=12))
def test_shards_are_a_partition_that_does_not_move(
    count: int, minors: set[int]
) -> None:
    def of(some: set[int]) -> list[Planned]:
        text = ",".join(f"0.{n}.0" for n in sorted(some))
        return plan(GHOST, "mm-cache-desync", releases=text, ask=nothing).cells

    every = of(minors)
    parts = [sharded(every, f"{i}/{count}") for i in range(1, count + 1)]
    assert sorted(p.cell.id for part in parts for p in part) == sorted(
        p.cell.id for p in every
    )
    homes = [{(p.cell.engine, p.cell.release) for p in part} for part in parts]
    assert sum(map(len, homes)) == len(set().union(*homes)), (
        "an environment is in one shard"
    )
    fewer = of(set(list(minors)[:1]))
    for i, part in enumerate(parts, 1):
        assert {p.cell.id for p in sharded(fewer, f"{i}/{count}")} <= {
            p.cell.id for p in part
        }


@pytest.mark.parametrize("wrong", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3"])
def test_no_shard(wrong: str) -> None:
    with pytest.raises(UsageError, match="no shard"):
        sharded([], wrong)


def test_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        planning, "existing", lambda spec: spec.release == "0.23.0" or None
    )
    made = plan(GHOST, "mm-cache-desync", releases="0.23.0,0.24.0")
    estimates = Estimates(History())
    estimates.note(made.cells[0].cell, 20.0)
    estimates.note(made.cells[0].cell, 30.0)
    told = dry_run("n", made.cells, lambda one: 2, estimates)
    assert [g.environment for g in told.groups] == ["there", "to be fetched first"]
    assert told.groups[0].download_bytes == 0
    assert told.download_bytes == told.groups[1].download_bytes > 2**30
    (whole, other), (same_row, _) = (group.cells for group in told.groups)
    assert whole.seconds == same_row.seconds == other.seconds == 50.0
    assert [c.seconds_from for c in (whole, same_row, other)] == [
        "median of 2 attempts of this cell",
        "median of 2 attempts of this row",
        "median of 2 attempts of this engine",
    ]
    assert told.runs == 8
    assert told.seconds == 4 * 50 + planning.ASSUMED_BUILD_S
    none = dry_run("n", made.cells, lambda one: 0, estimates)
    assert (none.runs, none.seconds, none.download_bytes) == (0, 0, 0)


# ---------------------------------------------------------------- FILE.toml


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ci").mkdir()
    file = tmp_path / "ci/nightly.toml"
    file.write_text(
        """
[matrix]
releases = "boundary, newest"
repeat = 2
max-time = "1h30m"
every = "24h"
disk = "40G"
quarantine = "known.toml"
device = "cpu"

[[cell]]
scenario = "ghost-key-eviction"
releases = ["own", "0.22.0..0.23.0"]
mitigation = "each"

[[cell]]
scenario = ["mm-cache-desync", "mine.py"]
server-arg = "--dtype=float32"
"""
    )
    monkeypatch.chdir(tmp_path)
    made = load(file)
    assert made.matrix.repeat == 2
    assert (made.matrix.max_time, made.matrix.every, made.matrix.disk) == (
        5400,
        86400,
        40 << 30,
    )
    assert made.matrix.quarantine == Path("ci/known.toml")
    first, second = made.cell
    assert first.releases == ["own", "0.22.0..0.23.0"]
    assert second.scenario == ["mm-cache-desync", "ci/mine.py"]
    assert second.server_arg == ["--dtype=float32"]
    second.scenario.pop()
    over = MatrixRunCommand()
    cells = planning.plan("n", made.cell, over, made.matrix, listing=listing).cells
    assert sum(p.cell.scenario == GHOST for p in cells) > 2, (
        "its own releases and mitigations"
    )
    of_second = [p.cell for p in cells if p.cell.scenario == "mm-cache-desync"]
    assert [c.release for c in of_second] == ["0.13.0", "0.14.0", "0.32.0"], (
        "the file's"
    )
    group = second.model_copy(
        update={"feature": ["none", "ngram", "lora"], "releases": ["own"]}
    )
    cells = planning.plan(
        "n", [group], MatrixRunCommand(), made.matrix, listing=listing
    ).cells
    assert [p.cell.server_args for p in cells] == [
        ("--dtype=float32", *more)
        for more in ((), ("{feature:ngram}",), ("{feature:lora}",))
    ]
    group = second.model_copy(update={"feature": ["telepathy"]})
    with pytest.raises(UsageError, match="no feature telepathy for vllm"):
        planning.plan("n", [group], MatrixRunCommand(), made.matrix, listing=listing)
    over = MatrixRunCommand(releases=("0.24.0",), mitigation=("none",))
    cells = planning.plan("n", made.cell, over, made.matrix, listing=listing).cells
    assert {p.cell.release for p in cells} == {"0.24.0"}, "the command line's"


def test_settings_over_others() -> None:
    mine, file = (
        MatrixRunCommand(repeat=3, confirm=0),
        MatrixRunCommand(repeat=1, jobs=2, max_time=60),
    )
    both = mine.over(file)
    assert (both.repeat, both.confirm, both.jobs, both.max_time) == (3, 0, 2, 60)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[matrix]\nrepeats = 2", "[matrix], key 'repeats': there is no such key"),
        ("[matrix]\nrepeat = 0", "[matrix], key 'repeat'"),
        (
            "[matrix]\nevery = 'soon'",
            "[matrix], key 'every': 'soon' is not a length of time",
        ),
        ("[matrix]\ndisk = 'much'", "[matrix], key 'disk': 'much' is not a size"),
        ("[cells]", "[cells]: there is no such table"),
        (
            "[[cell]]\nscenario='a'\n[[cell]]\nscenario='b'\nreleases='latest'",
            "[[cell]] number 2, key 'releases': 'latest' names no releases",
        ),
        ("[[cell]]\nscenario='a'\ndevice='tpu'", "[[cell]] number 1, key 'device'"),
        ("[[cell]]\nreleases='own'", "[[cell]] number 1 names no scenario"),
        ("[matrix", "is not valid TOML"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "m.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        load(file)
    assert words in caught.value.message
    assert str(file) in caught.value.message


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load(tmp_path / "m.toml")
