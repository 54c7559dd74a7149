"""For every test."""

from __future__ import annotations

import os
import signal
import sys

from hypothesis import settings

# A shell that starts something in the background makes it ignore SIGINT, and children inherit
# that: the tests that send Ctrl-C would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Without .pyc files each of the hundreds of commands that the tests start compiles half a second of
# Python first.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says nothing here: engines may be running beside the tests.
# The same examples each time: a run fails for what it changed. "thorough" draws new ones.
settings.register_profile("mmrepro", deadline=None, max_examples=40, derandomize=True)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "mmrepro"))
