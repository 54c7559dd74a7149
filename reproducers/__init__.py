"""What runs inside an engine's environment: stand-ins, single-file reproducers,
minivllm.

Nothing below this folder imports mmrepro: another interpreter runs it.
"""

from __future__ import annotations

from pathlib import Path


def reproducer_path(name: str) -> Path:
    """The file of a reproducer, or the folder of a stand-in, as installed."""
    return Path(__file__).parent / name
