"""For every test."""

from __future__ import annotations

import signal

# A shell that starts something in the background makes it ignore SIGINT, and children inherit
# that: the tests that send Ctrl-C would then wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
