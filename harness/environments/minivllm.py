"""What minivllm's environment is made of: its code comes with mmrepro, torch from the index."""

from __future__ import annotations

from mmrepro.environments.spec import EnvironmentSpec, Reason
from mmrepro.errors import UnknownRelease
from mmrepro.machine.files import Device, detect_device

RELEASE = "0.1"
TORCH = "2.11.0"

CUTOFF = "2026-06-14T00:00:00+00:00"
"""The day of vLLM 0.23.0, whose environment has the same torch: uv's cache serves both."""

REQUIREMENTS = (
    "safetensors",
    "tokenizers",
    "numpy",
    "pillow",
    "transformers==5.12.0",  # the tests' reference; the engine itself does not import it
    "pytest",
    "hypothesis",
)


def minivllm_spec(release: str, device: Device | None = None) -> EnvironmentSpec:
    """The environment of minivllm; ``device`` None: what this machine has.

    Raises:
        UnknownRelease: there is only one release, the one in this package.
    """
    if release != RELEASE:
        raise UnknownRelease(
            f"There is no release {release!r} of minivllm: it is part of mmrepro.",
            hint=f"use {RELEASE}",
        )
    return EnvironmentSpec(
        engine="minivllm",
        release=release,
        device=device or detect_device(),
        project="torch",
        version=TORCH,
        dated_by="torch",
        origin="the PyTorch project's own wheel; minivllm's code comes with mmrepro",
        requirements=REQUIREMENTS,
        cutoff=CUTOFF,
        disk_bytes=6 * 1024**3,
        reasons=(
            Reason("torch", TORCH, "minivllm is part of mmrepro; this is the wheel that it needs"),
        ),
    )
