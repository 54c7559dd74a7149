"""Tests that need torch: run by minivllm's own environment, never by the harness's.

``tests/engine/test_minivllm.py`` builds that environment and runs them in it. Without
torch, as in a plain ``pytest``, they are not collected."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "reproducers"))

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["*.py"]
