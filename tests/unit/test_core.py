"""``pip install mmrepro`` alone: what the core does without the extra ``run``, and what
the wheel holds."""

import json
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from mmrepro.base.errors import RUN_MODULES
from mmrepro.base.installed import install_command

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EVIDENCE = ROOT / "tests/evidence/ghost-key-eviction-0.23.0.zip"
WITHOUT = """
import io, json, sys
for name in {modules}:
    sys.modules[name] = None
from mmrepro.cli import main
told = sys.stdout
for words in json.loads(sys.argv[1]):
    sys.argv = ["mmrepro", *words]
    sys.stdout, sys.stderr = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    sys.stderr.flush()
    print(json.dumps([code, sys.stderr.buffer.getvalue().decode()]), file=told)
"""
"""Commands one after another where the modules of the extra cannot be imported."""
NEEDLESS: dict[tuple[str, ...], int] = {
    ("demo", "--print"): 0,
    ("judge", str(EVIDENCE)): 0,
    ("report", str(EVIDENCE), "--format", "html"): 0,
    ("find", "Expected a cached item"): 0,
    ("logs", str(ROOT / "tests/unit/test_core.py")): 3,
    ("why", str(ROOT / "tests/unit/test_core.py")): 3,
    ("diagnose", "http://127.0.0.1:1"): 1,
    ("watch", "http://127.0.0.1:1", "--once"): 1,
    ("list",): 0,
    ("show", "ghost-key-eviction"): 0,
    ("show", "--claims"): 0,
    ("incidents",): 0,
    ("run", "--json-schema"): 0,
    ("kv-budget", "--help"): 0,
    ("bundle", str(EVIDENCE)): 0,
}
CASE = ROOT / "docs/found/vllm-0.23.0-ghost-key/case.json"
NEEDING = (
    "run ghost-key-eviction",
    "repro --server=x --client=y",
    "replay x.har --engine vllm",
    f"replay {CASE}",
    "fuzz minivllm --budget 1m",
    f"upgrade 0.32.0 0.33.0 --engine vllm --traffic {CASE}",
    "ablate ghost-key-eviction",
    "bisect ghost-key-eviction",
    "matrix run --scenario all --releases newest --out nights",
    "check --for vllm==0.23.0",
    "new odd --engine vllm",
)


@pytest.fixture(scope="module")
def core(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[tuple[str, ...], tuple[int, str]]:
    """The exit code of each, and what it printed on stderr."""
    commands = [*NEEDLESS, *(tuple(words.split()) for words in NEEDING)]
    code = WITHOUT.format(modules=(*RUN_MODULES, "ray"))
    words = [sys.executable, "-c", code, json.dumps(commands)]
    folder = tmp_path_factory.mktemp("core")
    ran = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    said = [tuple(json.loads(line)) for line in ran.stdout.splitlines()]
    return dict(zip(commands, said, strict=True))


def test_the_core_needs_no_extra(core: dict[tuple[str, ...], tuple[int, str]]) -> None:
    found = {words: core[words] for words in NEEDLESS}
    assert found == {words: (code, "") for words, code in NEEDLESS.items()}


@pytest.mark.parametrize("words", NEEDING)
def test_a_missing_extra_is_one_sentence_with_the_line_to_type(
    core: dict[tuple[str, ...], tuple[int, str]], words: str
) -> None:
    code, said = core[tuple(words.split())]
    assert code in (2, 4), said
    assert said.splitlines()[-1] == f"Next: {install_command('run')}"
    assert len(said.splitlines()) == 2


def test_the_modules_of_the_extra_are_those_of_its_packages() -> None:
    """Of those that every Python wants."""
    wanted = PROJECT["project"]["optional-dependencies"]["run"]
    packages = {line.partition(">")[0] for line in wanted if ";" not in line}
    assert {
        {"PIL": "pillow", "yaml": "pyyaml"}.get(name, name) for name in RUN_MODULES
    } == packages


def test_the_wheel_holds_each_data_file() -> None:
    """An editable install has them all; a wheel has what package-data names."""
    setup = PROJECT["tool"]["setuptools"]
    folders = setup["package-dir"]
    held = []
    for package, patterns in setup["package-data"].items():
        root = next(
            p
            for p in sorted(folders, key=len, reverse=True)
            if f"{package}.".startswith(f"{p}.")
        )
        below = package.removeprefix(root).replace(".", "/")
        held += [f"{folders[root]}{below}/{pattern}" for pattern in patterns]
    listed = subprocess.run(
        ["git", "ls-files", *folders.values()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    data = [
        name
        for name in listed.stdout.split()
        if not name.endswith((".py", "README.md"))
        # Of docs/ the package has the pages alone.
        and (not name.startswith("docs/") or Path(name).match("docs/*.md"))
    ]
    assert len(data) > 15
    assert not [
        name for name in data if not any(fnmatch(name, pattern) for pattern in held)
    ]
