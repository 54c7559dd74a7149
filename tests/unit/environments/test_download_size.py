"""What a build says of its size before it downloads, and how often it says how far it
is."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from mmrepro.base.records import Moment
from mmrepro.campaign.cluster.where import Where
from mmrepro.campaign.trial import TrialOptions
from mmrepro.cli.building import EVERY_S, Sparse, building
from mmrepro.cli.progress import Progress
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import vllm_spec
from mmrepro.engines.environments.uv import (
    Download,
    Notice,
    UvFailed,
    _Phases,
    plan_of,
    rate_of,
)
from mmrepro.traffic.evidence.model import BUILD, BUILD_NOTICE, Event
from rich.console import Console

PYLOCK = """lock-version = "1.0"
[[packages]]
name = "torch"
version = "2.11.0"
wheels = [{ url = "https://index.invalid/t.whl", size = 2_000_000_000 }]
[[packages]]
name = "old-thing"
version = "1.0"
sdist = { url = "https://index.invalid/o.tar.gz", size = 3_000_000 }
[[packages]]
name = "unsized"
version = "2"
wheels = [{ url = "https://index.invalid/u.whl" }]
"""
DEBUG = [
    "not cached: torch==2.11.0",
    "not cached: old-thing==1.0",
    "resolved 3 packages",
    "would download 2 packages",
]


def planned_with(phases: list[str], described: str, rate: float = 0.0) -> Download:
    def run(arguments: list[str], progress=None, doing="") -> str:
        if progress is None:
            if not described:
                raise UvFailed(2, "error: no")
            return described
        assert arguments[-2:] == ["--dry-run", "-v"]
        for phase in phases:
            progress(phase)
        return ""

    return plan_of(run, ["pip", "sync", "x.lock"], ["--python", "p", "x.lock"], rate)


def test_what_is_in_the_cache_is_not_counted() -> None:
    plan = planned_with(
        ["not cached: old-thing==1.0", "would download 1 package"], PYLOCK
    )
    assert str(plan) == (
        "1 package to download, 3 MiB; up to 5 MiB on disk, 1 s at 100 Mbit/s"
    )
    assert planned_with(["resolved 3 packages"], PYLOCK) == Download(0, 0)
    assert str(Download(0, 0)) == "nothing to download: all is in uv's cache"


def test_the_time_is_that_of_the_rate_seen() -> None:
    plan = planned_with(DEBUG, PYLOCK, rate=40e6)
    assert str(plan) == (
        "2 packages to download, 1.9 GiB; up to 3.5 GiB on disk, 50 s at the 38 MiB/s "
        "seen"
    )
    assert "2 min 40 s at 100 Mbit/s" in str(planned_with(DEBUG, PYLOCK))


def test_an_index_without_sizes() -> None:
    assert "does not say how large" in str(planned_with(DEBUG, ""))
    # a uv that words it in another way still counts
    assert planned_with(["would download 7 packages"], PYLOCK).files == 7


def test_a_small_download_tells_no_rate() -> None:
    assert rate_of(4_000_000, 2.0) == 0.0
    assert rate_of(100_000_000, 4.0) == 25e6


def test_how_much_of_what_was_begun_is_there() -> None:
    phases = _Phases()
    lines = [
        "Downloading torch (900.0MiB)",
        "Downloading triton (100.0MiB)",
        " Downloaded triton",
        " Downloaded torch",
    ]
    assert [phases.read(line) for line in lines] == [
        "downloading torch (900.0MiB)",
        "downloading torch (900.0MiB) and 1 more",
        "downloading torch (900.0MiB); 10% is there",
        "unpacking",
    ]


def test_off_a_terminal_a_download_is_told_of_every_ten_seconds() -> None:
    now = 0.0
    lines: list[str] = []
    tell = Sparse(lines.append, clock=lambda: now)
    for second in range(25):
        now = float(second)
        tell(f"downloading torch, second {second}")
    tell("unpacking")
    assert EVERY_S == 10.0
    assert lines == [
        "downloading torch, second 0",
        "downloading torch, second 10",
        "downloading torch, second 20",
        "unpacking",
    ]


def test_a_notice_stays_on_a_terminal() -> None:
    stream = io.StringIO()
    with building(Console(file=stream, force_terminal=True, width=80), "vllm") as tell:
        tell(Notice("2.0 GB [large]"))
        tell("unpacking")
    assert "2.0 GB [large]\n" in stream.getvalue()


def event(text: str, source: str) -> Event:
    return Event(at=Moment.now(), phase="start", source=source, text=text)


def test_a_run_off_a_terminal_prints_its_build_and_its_stages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Progress(Console(file=io.StringIO()), "a run") as progress:
        progress(event("2.0 GB", BUILD_NOTICE))
        progress(event("unpacking", BUILD))
        progress(event("gate", "stage"))
        progress(event("a request", "client"))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "2.0 GB\nunpacking\n[0 s] warm-up check\n")


def test_a_command_of_many_runs_has_a_notice_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Callable[[Event], None]] = []
    monkeypatch.setattr("mmrepro.campaign.cluster.where.Players", made.append)
    lines: list[str] = []
    Where().places(lines.append, TrialOptions())
    (built,) = made
    for source in (BUILD_NOTICE, BUILD, BUILD_NOTICE, BUILD, "client"):
        built(
            event("Python of 0.33.0" if source == BUILD_NOTICE else "unpacking", source)
        )
    assert lines == ["Python of 0.33.0", "unpacking", "unpacking"]


def test_the_size_is_said_before_anything_is_installed(fake_uv: Path) -> None:
    lines: list[str] = []
    ensure(vllm_spec("0.23.0", "cpu"), progress=lines.append)
    (at,) = [n for n, line in enumerate(lines) if "uv's cache" in line]
    assert isinstance(lines[at], Notice)
    assert lines[at + 1 :][0].startswith("resolved")
    assert any(line.startswith("downloading torch") for line in lines[at + 1 :])
