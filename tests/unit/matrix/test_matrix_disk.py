"""The disk's bound, and what is fetched beside the runs."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mmrepro.base.records import WheelFacts
from mmrepro.campaign import provisions
from mmrepro.campaign.provisions import Bound, Provisions
from mmrepro.campaign.schedule import EnvironmentGroup
from mmrepro.campaign.trial import TrialOptions
from mmrepro.engines.environments.spec import EnvironmentSpec, Manifest
from mmrepro.failure.documents.ledger import Cell, Planned

GIB = 2**30


class Disk:
    """A disk on which each environment takes 10 GiB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used, self.dropped = 500 * GIB, list[str]()
        self.in_use: set[str] = set()
        monkeypatch.setattr(provisions, "drop", self.drop)

    def build(self, bound: Bound, name: str) -> None:
        self.used += 10 * GIB
        bound.built(name)

    def drop(self, name: str) -> bool:
        if name in self.in_use:
            return False
        self.dropped.append(name)
        self.used -= 10 * GIB
        return True


def test_environments_go_when_the_next_one_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Disk(monkeypatch)
    bound = Bound(25 * GIB, tmp_path / "disk.json", used=lambda: there.used)
    for name in ("a", "b"):
        assert bound.make_room(10 * GIB, frozenset()) == ""
        there.build(bound, name)
    assert there.dropped == []
    assert bound.make_room(10 * GIB, frozenset({"a"})) == ""
    assert there.dropped == ["b"], "a is still needed"
    there.build(bound, "c")
    there.in_use = {"a"}
    again = Bound(25 * GIB, tmp_path / "disk.json", used=lambda: there.used)
    assert again.growth == 20 * GIB, (
        "a night that is gone on with counts from its start"
    )
    assert again.make_room(10 * GIB, frozenset()) == ""
    assert there.dropped == ["b", "c"], "what is in use is left alone"
    why = again.make_room(20 * GIB, frozenset())
    assert "about 20 GiB, does not fit into the 25 GiB" in why
    assert "10 GiB were added" in why


def manifest(folder: Path, *packages: str) -> None:
    folder.mkdir(parents=True)
    wheel = WheelFacts(project="p", filename="p.whl", sha256="", uploaded="", origin="")
    made = Manifest(
        engine="sglang",
        release="1.0",
        device="cpu",
        project="p",
        wheel=wheel,
        resolved_until="2026-01-01",
        packages=list(packages),
        python="3.11",
        uv="0",
        created="2026-01-01T00:00:00Z",  # type: ignore[arg-type]
        build_seconds=1,
    )
    (folder / "manifest.json").write_text(made.model_dump_json())


def test_uv_forgets_what_only_the_dropped_one_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path))
    manifest(tmp_path / "environments/one", "torch==2", "sglang==1", "numpy==1")
    manifest(tmp_path / "environments/two", "torch==2", "sglang==2")
    asked: list[list[str]] = []
    monkeypatch.setattr(provisions, "run_uv", lambda arguments: asked.append(arguments))
    assert provisions.drop("one")
    assert asked == [["cache", "clean", "numpy", "sglang"]]
    assert [
        p.name for p in (tmp_path / "environments").iterdir() if p.name[0] != "."
    ] == ["two"]


# ---------------------------------------------------------------- fetched ahead


def group(release: str) -> EnvironmentGroup:
    cell = Cell(scenario="a", engine="sglang", release=release, device="cpu")
    return EnvironmentGroup(
        "sglang", release, "cpu", "", (Planned(night="n", cell=cell),)
    )


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Releases whose environments are there."""
    there: list[str] = []
    monkeypatch.setattr(
        provisions, "existing", lambda spec: object() if spec.release in there else None
    )
    return there


def test_one_environment_is_fetched_once(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    calls: list[tuple[str, int]] = []

    def build(
        self: Provisions, spec: EnvironmentSpec, nice: int, within_s: None
    ) -> str:
        calls.append((spec.release, nice))
        begun.set()
        assert go_on.wait(20)
        built.append(spec.release)
        return ""

    monkeypatch.setattr(Provisions, "_build", build)
    one = Provisions(TrialOptions())
    one.prefetch(group("1.0"))
    assert begun.wait(20)
    # One at a time: this is left to be fetched when it is needed.
    one.prefetch(group("2.0"))
    waiting = threading.Thread(target=one.prepare, args=(group("1.0"),))
    waiting.start()
    go_on.set()
    waiting.join(20)
    assert one.prepare(group("2.0")) == ""
    assert calls == [("1.0", provisions.NICE), ("2.0", 0)]


def test_what_cannot_be_fetched_is_tried_once_and_left_to_the_run(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def build(
        self: Provisions, spec: EnvironmentSpec, nice: int, within_s: None
    ) -> str:
        calls.append(spec.release)
        return "no wheel"

    monkeypatch.setattr(Provisions, "_build", build)
    one = Provisions(TrialOptions())
    assert one.seconds(group("1.0")) > 0
    assert one.prepare(group("1.0")) == one.prepare(group("1.0")) == ""
    assert calls == ["1.0"]
    assert one.prepare(group("no version")) == ""


def test_the_bound_is_asked_and_told(
    tmp_path: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(
        self: Provisions, spec: EnvironmentSpec, nice: int, within_s: None
    ) -> str:
        built.append(spec.release)
        there.used += 10 * GIB
        return ""

    monkeypatch.setattr(Provisions, "_build", build)
    there = Disk(monkeypatch)
    bound = Bound(10 * GIB, tmp_path / "disk.json", used=lambda: there.used)
    one = Provisions(TrialOptions(), bound)
    groups = [group("1.0"), group("2.0")]
    one.expect(groups)
    assert one.prepare(groups[0]) == ""
    assert "does not fit" in one.prepare(groups[1]), "the first one is still needed"
    one.done(groups[0])
    assert one.prepare(groups[1]) == ""
    assert len(there.dropped) == 1


def test_stop_ends_what_is_being_fetched(
    built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    begun = threading.Event()
    real = subprocess.Popen

    def popen(arguments: list[str], **more: object) -> subprocess.Popen[bytes]:
        assert arguments[1:6] == ["-P", "-m", "mmrepro", "env", "create"]
        child = real([sys.executable, "-c", "import time; time.sleep(60)"], **more)  # type: ignore[call-overload]
        started.append(child)
        begun.set()
        return child  # type: ignore[no-any-return]

    monkeypatch.setattr(provisions.subprocess, "Popen", popen)
    one = Provisions(TrialOptions())
    one.prefetch(group("1.0"))
    assert begun.wait(20)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    kinder = os.getpriority(os.PRIO_PROCESS, started[0].pid) - own
    assert kinder >= min(provisions.NICE, 19 - own)
    one.stop()
    one.join()
    assert started[0].returncode is not None
    with pytest.raises(KeyboardInterrupt):
        one.prepare(group("2.0"))
