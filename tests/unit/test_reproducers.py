"""The ghost key's reproducer against small stand-ins: a made-up `vllm` and a made-up
`cachetools`.

cachetools is not a dependency of ours, and the real engines are for tests/engine. The
fakes hold the few lines that matter: name-mangled order and data, and the eviction
loop."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.machine.host import child_environment
from mmrepro.reproducers import reproducer_path

CACHETOOLS = """\
import collections

class Cache:
    def __init__(self, maxsize, getsizeof=None):
        self.maxsize, self.currsize, self.__data = maxsize, 0, {}
        self.getsizeof = getsizeof or (lambda value: 1)

    def __contains__(self, key):
        return key in self.__data

    def __len__(self):
        return len(self.__data)

    def __getitem__(self, key):
        return self.__data[key]

    def __setitem__(self, key, value):
        if key not in self.__data:
            size = self.getsizeof(value)
            while self.currsize + size > self.maxsize:
                self.popitem()
            self.currsize += size
        self.__data[key] = value

    def __delitem__(self, key):
        self.currsize -= self.getsizeof(self.__data.pop(key))

class LRUCache(Cache):
    def __init__(self, maxsize, getsizeof=None):
        super().__init__(maxsize, getsizeof)
        self.__order = collections.OrderedDict()

    def __setitem__(self, key, value):
        Cache.__setitem__(self, key, value)
        self.__order[key] = None
        self.__order.move_to_end(key)

    def __delitem__(self, key):
        Cache.__delitem__(self, key)
        del self.__order[key]
"""

BUGGY = """\
import cachetools

class LRUCache(cachetools.LRUCache):
    @property
    def order(self):
        return self._LRUCache__order

    def pop(self, key, default=None):
        if key not in self:
            return default
        value = self[key]
        del self[key]
        return value

    def touch(self, key):
        try:
            self._LRUCache__order.move_to_end(key)
        except KeyError:
            self._LRUCache__order[key] = None

    def popitem(self, remove_pinned=False):
        key = next(iter(self.order))
        return key, self.pop(key)
"""

FIXED = BUGGY.replace("self._LRUCache__order[key] = None", "pass")


def engine(folder: Path, cache: str, *, whole: bool = False) -> Path:
    """Installs the fakes; ``whole``: LRUCache lives in ``vllm.utils`` itself, as it
    once did."""
    utils = folder / "vllm" / ("" if whole else "utils")
    utils.mkdir(parents=True)
    trap = "raise ImportError('all of vllm was imported')\n"
    (folder / "vllm" / "__init__.py").write_text("" if whole else trap)
    if not whole:
        (utils / "__init__.py").write_text(trap)
    (utils / ("utils.py" if whole else "cache.py")).write_text(cache)
    (folder / "cachetools").mkdir()
    (folder / "cachetools" / "__init__.py").write_text(CACHETOOLS)
    dist = folder / "cachetools-7.1.4.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: cachetools\nVersion: 7.1.4\n"
    )
    return folder


def run(folder: Path, *first: Path, **more: str) -> subprocess.CompletedProcess[str]:
    variables = boot_variables(*first) | more
    variables["PYTHONPATH"] += os.pathsep + str(folder)
    return subprocess.run(
        [sys.executable, str(reproducer_path("ghost_key.py"))],
        env=child_environment({**variables, "PYTHONDONTWRITEBYTECODE": "1"}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def facts(folder: Path, *first: Path) -> Mapping[str, Any]:
    done = run(folder, *first)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("whole", [False, True], ids=["utils/cache.py", "utils.py"])
def test_the_buggy_class_never_ends_its_eviction(tmp_path: Path, whole: bool) -> None:
    found = facts(engine(tmp_path, BUGGY, whole=whole))
    assert found["touch_inserts_missing_key"] is True
    assert found["popitem_picks_ghost"] is True
    assert found["popitem_returns"] == "ghost=None"
    assert found["currsize_shrinks"] is False
    assert found["eviction_ends"] is False
    assert found["eviction_ends_with_both"] is True
    assert found["cachetools"] == "7.1.4"
    assert Path(found["file"]).is_relative_to(tmp_path)


def test_each_part_of_the_fix_alone_is_told(tmp_path: Path) -> None:
    found = facts(engine(tmp_path, BUGGY))
    assert found["eviction_ends_with_touch_fix"] is True
    assert found["eviction_ends_with_popitem_fix"] is True


def test_the_articles_unit_test_ends_and_the_next_insert_does_not(
    tmp_path: Path,
) -> None:
    found = facts(engine(tmp_path, BUGGY))
    assert found["article_test_ends"] is True
    assert found["insert_after_article_test_ends"] is False


def test_the_fixed_class_ends(tmp_path: Path) -> None:
    found = facts(engine(tmp_path, FIXED))
    assert found["touch_inserts_missing_key"] is False
    assert found["popitem_picks_ghost"] is False
    assert found["currsize_shrinks"] is True
    assert found["eviction_ends"] is True


def test_the_stand_in_patches_the_buggy_class(tmp_path: Path) -> None:
    patch = reproducer_path("standins") / "ghost_key_patch"
    done = run(engine(tmp_path, BUGGY), patch)
    assert "LRUCache.touch is patched" in done.stderr
    assert "LRUCache.popitem is patched" in done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["eviction_ends"] is True
    assert found["touch_inserts_missing_key"] is False


@pytest.mark.parametrize(("part", "inserts"), [("touch", False), ("popitem", True)])
def test_the_stand_in_patches_one_part_alone(
    tmp_path: Path, part: str, inserts: bool
) -> None:
    patch = reproducer_path("standins") / "ghost_key_patch"
    done = run(engine(tmp_path, BUGGY), patch, MMREPRO_GHOST_KEY_PATCH=part)
    assert done.stderr.count("is patched") == 1
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["eviction_ends"] is True
    assert found["touch_inserts_missing_key"] is inserts


def test_a_part_of_the_stand_in_that_does_not_exist(tmp_path: Path) -> None:
    patch = reproducer_path("standins") / "ghost_key_patch"
    done = run(engine(tmp_path, BUGGY), patch, MMREPRO_GHOST_KEY_PATCH="tuoch")
    assert done.returncode == 70
    assert "tuoch" in done.stderr


def test_the_stand_in_leaves_other_programs_alone(tmp_path: Path) -> None:
    patch = reproducer_path("standins") / "ghost_key_patch"
    done = subprocess.run(
        [sys.executable, "-c", "import json; print(json.dumps(1))"],
        env=child_environment(boot_variables(patch)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def boot_variables(*folders: Path) -> dict[str, str]:
    boot = reproducer_path("standins") / "boot"
    return {
        "PYTHONPATH": os.pathsep.join(str(p) for p in (boot, *folders)),
        "MMREPRO_STAND_INS": os.pathsep.join(str(p) for p in folders),
    }


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('half done')", "half done"),
        (
            "from mmrepro_boot import after_import\n"
            "after_import('colorsys', lambda module: module.no_such_name)",
            "no_such_name",
        ),
    ],
    ids=["at start", "at the import"],
)
def test_a_stand_in_that_fails_ends_the_process(
    tmp_path: Path, code: str, said: str
) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "standin.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", "import colorsys; print('went on')"],
        env=child_environment(boot_variables(folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "went on" not in done.stdout
    assert said in done.stderr


def test_without_the_engine_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip() == "vllm is not installed in this environment"


def test_its_facts_fit_the_evidence(tmp_path: Path) -> None:
    values = facts(engine(tmp_path, BUGGY)).values()
    assert all(isinstance(value, str | int | float | bool | None) for value in values)


def test_nothing_in_an_engines_environment_imports_mmrepro() -> None:
    """Another interpreter runs it, without the harness; import-linter sees packages
    only."""
    guilty = [
        f"{path.name}: {name}"
        for path in reproducer_path("").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        for name in _modules(node)
        if name.partition(".")[0] == "mmrepro"
    ]
    assert not guilty


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
