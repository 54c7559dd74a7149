"""For every test of what runs without an engine."""

from __future__ import annotations

import os

# What a killed process wrote is in the kernel: only a machine that stops loses what was not waited
# for, and no test stops one. Thousands of lines of journals are written here, 5 ms each.
os.fsync = lambda _file: None  # type: ignore[assignment]
