"""The Dockerfiles, held to what the repository has; they were built by hand:
docs/lab/gpu.md and docs/lab/install.md."""

import re
import subprocess
import tomllib
from pathlib import Path, PurePosixPath

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SIDECAR = (ROOT / "Dockerfile.sidecar").read_text()
IGNORED = (ROOT / ".dockerignore").read_text().splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def instructions(stage: int = -1, file: str = DOCKERFILE) -> list[tuple[str, str]]:
    """Of one stage, as (instruction, rest), with continued lines joined."""
    lines = [line for line in file.splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    stages: list[list[tuple[str, str]]] = [[]]
    for line in filter(str.strip, joined.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, " ".join(rest.split())))
    return stages[stage]


def of(name: str, stage: int = -1, file: str = DOCKERFILE) -> list[str]:
    return [rest for what, rest in instructions(stage, file) if what == name]


def sent(path: str) -> bool:
    """The build is sent ``path``: the last line of .dockerignore that matches it
    decides."""
    through = True
    for line in IGNORED:
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!")
        parts = PurePosixPath(path).parts
        above = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
        anywhere = pattern.startswith("**/") and pattern[3:] in parts
        if anywhere or any(PurePosixPath(one).match(pattern) for one in above):
            through = line.startswith("!")
    return through


def test_all_that_is_installed_is_sent() -> None:
    folders = PROJECT["tool"]["setuptools"]["package-dir"].values()
    files = [
        PROJECT["project"]["readme"],
        *PROJECT["project"]["license-files"],
        "pyproject.toml",
    ]
    copied = [
        word for rest in of("COPY", 1) for word in rest.split()[:-1] if word != "."
    ]
    assert copied == ["constraints.txt"]
    assert of("COPY", 1, SIDECAR) == of("COPY", 1)
    for path in (*folders, *files, *copied):
        assert (ROOT / path).exists()
        assert sent(path), path
    assert sent("harness/engines/environments/torch.toml")


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "incidents/a/incident.json",
        "tests/conftest.py",
        "uv.lock",
        "harness/__pycache__/errors.cpython-311.pyc",
        "benchmarks/weight.py",
    ],
)
def test_nothing_else_is_sent(path: str) -> None:
    assert not sent(path)


def test_the_sidecar_holds_the_core_alone_and_is_made_in_the_same_way() -> None:
    (installed,) = [rest for rest in of("RUN", 1, SIDECAR) if "uv pip install" in rest]
    assert re.search(r"--constraint constraints\.txt --compile-bytecode \. ", installed)
    assert of("FROM", -1, SIDECAR) == ["scratch"]
    for name in ("USER", "WORKDIR", "ENTRYPOINT", "CMD"):
        assert of(name, -1, SIDECAR) == of(name)
    (uv,) = [
        rest for rest in of("RUN", 1, SIDECAR) if "constraints.txt > uv.txt" in rest
    ]
    assert uv in of("RUN", 1)


def test_it_does_not_run_as_root() -> None:
    (user,) = of("USER")
    uid, _, gid = user.partition(":")
    assert int(uid) > 0  # a number: Kubernetes' runAsNonRoot refuses a name
    assert f"chown -R {uid}:{gid} /cache /out" in " ".join(of("RUN"))
    assert of("WORKDIR") == ["/out"]


def test_all_that_lasts_is_in_the_one_volume() -> None:
    assert of("VOLUME") == ["/cache"]
    variables = dict(word.split("=", 1) for rest in of("ENV") for word in rest.split())
    for name in ("HOME", "MMREPRO_CACHE_DIR", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR"):
        assert variables[name].startswith("/cache/")


def test_the_nightly_takes_it_as_it_is_made() -> None:
    workflow = YAML(typ="safe").load(ROOT / ".github/workflows/nightly-gpu.yml")
    machine = workflow["jobs"]["gpu"]
    assert f"--user {of('USER')[0]}" in machine["container"]["options"]
    assert [
        mounted.partition(":")[2] for mounted in machine["container"]["volumes"]
    ] == of("VOLUME")
    assert f"HOME={machine['env']['HOME']}" in of("ENV")[0].split()


def test_the_base_is_pinned_and_named_once() -> None:
    (base,) = of("ARG", 0)
    assert re.fullmatch(r"BASE=nvidia/cuda:\d+\.\d+\.\d+-runtime-\w+\d+\.\d+", base)
    assert [rest for stage in (1, 2) for rest in of("FROM", stage)] == [
        "${BASE} AS build",
        "${BASE}",
    ]


def test_it_runs_what_the_project_installs() -> None:
    assert of("ENTRYPOINT") == ['["mmrepro"]']
    assert "mmrepro" in PROJECT["project"]["scripts"]
    assert "--constraint constraints.txt" in " ".join(of("RUN", 1))


def test_tools_that_trace_have_one_capability_and_a_way_without() -> None:
    (made,) = [rest for rest in of("RUN") if "setcap" in rest]
    assert re.findall(r"setcap (\S+)", made) == ["cap_sys_ptrace+ep"]
    assert "for tool in /opt/mmrepro/bin/py-spy /usr/bin/strace" in made
    assert '"$tool.plain"' in made
    (sidecar,) = [rest for rest in of("RUN", 1, SIDECAR) if "setcap" in rest]
    assert sidecar.replace("$file", "$tool").replace("file=/image$tool; ", "") in made


def test_uv_is_installed_by_its_hash() -> None:
    (program,) = re.findall(r"awk ('[^']*') constraints.txt", DOCKERFILE)
    done = subprocess.run(
        ["sh", "-c", f"awk {program} constraints.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("uv==")
    assert sum(line.lstrip().startswith("--hash=sha256:") for line in lines) > 10
    assert not any(re.match(r"\w", line) for line in lines[1:])  # and nothing but uv
