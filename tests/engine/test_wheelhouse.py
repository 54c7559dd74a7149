"""mmrepro and an engine, carried to a machine without a network: here, a namespace
without one."""

import json
import subprocess
from pathlib import Path

import pytest
from mmrepro.base.machine.host import child_environment
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import minivllm_spec
from mmrepro.engines.environments.uv import run_uv
from mmrepro.engines.environments.wheelhouse import make, make_target

pytestmark = pytest.mark.engine
NO_NETWORK = ("unshare", "--map-root-user", "--net")


@pytest.mark.slow
def test_a_wheelhouse_is_all_that_a_run_without_a_network_needs(tmp_path: Path) -> None:
    if subprocess.run(
        [*NO_NETWORK, "true"], capture_output=True, check=False
    ).returncode:
        pytest.skip("no namespaces for this user here")
    spec = minivllm_spec("0.1", "cpu")
    host = ensure(spec)  # plays a machine that has torch, and lacks these
    lacks = ("transformers==", "numpy==", "hypothesis==")
    freeze = [
        line
        for line in run_uv(["pip", "freeze", "--python", str(host.python)]).splitlines()
        if not line.startswith(lacks)
    ]
    python = ".".join(host.python_version.split(".")[:2])
    target = make_target(python, freeze="\n".join(freeze))
    house = tmp_path / "house"
    made = make(spec, target, house, max_part=20 * 1024**2)
    assert {p.name for p in made.plan.packages if p.file} >= {"transformers", "numpy"}
    assert not {p.name for p in made.plan.packages if p.file} & {
        "torch",
        "nvidia-cublas",
    }
    said = offline(
        f"""
        {host.python} house/part-01/install.py --check
        {host.python} house/part-01/install.py
        PATH=$PWD/mmrepro-venv/bin:$PATH
        mmrepro env create minivllm 0.1 --device cpu --wheelhouse house --python {host.python}
        mmrepro run mm-prefill-contract --device cpu --start-mode cold --out incident
        """,
        tmp_path,
    )
    assert f"{len(made.new_parts)} parts: all whole" in said
    incident = json.loads((tmp_path / "incident" / "incident.json").read_text())
    assert incident["verdict"]["outcome"] == "reproduced"
    environment = next((tmp_path / "cache" / "environments").glob("minivllm-0.1-cpu-*"))
    assert '"source": "wheelhouse"' in (environment / "manifest.json").read_text()


def offline(script: str, folder: Path) -> str:
    own = {
        "MMREPRO_CACHE_DIR": str(folder / "cache"),
        "UV_CACHE_DIR": str(folder / "uv"),
    }
    done = subprocess.run(
        [*NO_NETWORK, "bash", "-ec", f"ip link set lo up\n{script}"],
        cwd=folder,
        env=child_environment(own),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
