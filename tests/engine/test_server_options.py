"""The recorded options of four releases are those of their own parsers."""

import os
import subprocess
from pathlib import Path

import pytest
from mmrepro.engines import spec_for
from mmrepro.engines.environments.build import existing

pytestmark = pytest.mark.engine

RECORDED = sorted((Path(__file__).parents[1] / "unit" / "server_options").glob("*.txt"))
SCRIPT = Path(__file__).with_name("server_options.py")


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_the_recorded_options_are_those_of_the_releases_parser(
    file: Path, tmp_path: Path
) -> None:
    engine, _, release = file.stem.partition("-")
    environment = existing(spec_for(engine, release, "cpu"))
    if environment is None:
        pytest.skip(
            f"no environment of {file.stem}: mmrepro env create {engine} {release}"
        )
    command = [str(environment.python), str(SCRIPT), engine]
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    printed = done.stdout.partition("OPTIONS\n")[2]
    assert printed.splitlines() == file.read_text().splitlines()
