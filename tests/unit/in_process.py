"""``mmrepro …`` in this process: a start of Python and its imports take half a second
each."""

import io
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout

import pytest
from mmrepro import cli
from mmrepro.cli import live


def mmrepro(*words: object) -> tuple[int, str, str]:
    """Exit code, output and error."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    # A test may have set them.
    out.isatty, err.isatty = (
        sys.stdout.isatty,
        sys.stderr.isatty,
    )
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP)}
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        # A diagnosis bounds its own process, which is that of all tests before and
        # after this one.
        patch.setattr(live, "_bound", lambda servers=1: None)
        patch.setattr(sys, "argv", ["mmrepro", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return int(ended.value.code or 0), texts[0], texts[1]
