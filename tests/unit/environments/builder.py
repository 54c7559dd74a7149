"""Builds the environment of vLLM 0.23.0 with the fake uv, in a process of its own (no test)."""

import os
import sys

from mmrepro.environments import uv
from mmrepro.environments.build import ensure
from mmrepro.environments.spec import vllm_spec
from mmrepro.errors import MmreproError

uv.uv_binary = lambda: os.environ["FAKE_UV"]
try:
    made = ensure(vllm_spec("0.23.0", "cpu"), progress=lambda phase: print(phase, flush=True))
except MmreproError as error:
    sys.exit(f"{type(error).__name__}: {error.message}")
print("reused" if made.reused else "built", made.path, flush=True)
