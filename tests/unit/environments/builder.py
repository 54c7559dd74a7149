"""Builds the environment of vLLM 0.23.0 with the fake uv, in a process of its own (no
test)."""

import os
import sys

from mmrepro.base.errors import MmreproError
from mmrepro.engines.environments import uv
from mmrepro.engines.environments.build import ensure
from mmrepro.engines.environments.spec import vllm_spec

uv.uv_binary = lambda: os.environ["FAKE_UV"]
try:
    made = ensure(
        vllm_spec("0.23.0", "cpu"), progress=lambda phase: print(phase, flush=True)
    )
except MmreproError as error:
    sys.exit(f"{type(error).__name__}: {error.message}")
print("reused" if made.reused else "built", made.path, flush=True)
