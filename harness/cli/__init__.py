"""The command line. Only what ``--help`` needs is imported here: it answers in 0.3 s."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from mmrepro.errors import ExitCode, MmreproError


def main() -> None:
    """Entry point of ``mmrepro``: one sentence for an error, never a traceback."""
    from mmrepro.cli.app import app

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        code = app(standalone_mode=False)
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted.\n")
        sys.exit(ExitCode.INTERRUPTED)
    except MmreproError as error:
        _tell(error)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(ExitCode.AS_EXPECTED)
    except Exception as error:
        sys.exit(_foreign(error))
    sys.exit(code if isinstance(code, int) else 0)


def _foreign(error: Exception) -> int:
    """Typer's own errors are printed by it; anything else is a bug of ours, said in a line."""
    show = getattr(error, "show", None)  # every exception of click has it, vendored or not
    if callable(show):
        show()
        return ExitCode.USAGE
    if type(error).__name__ in ("Abort", "Exit"):
        return int(getattr(error, "exit_code", ExitCode.INTERRUPTED))
    sys.stderr.write(
        f"mmrepro failed: {type(error).__name__}: {error}\n"
        "This is a bug of mmrepro; set MMREPRO_DEBUG=1 to see where.\n"
    )
    import os

    if os.environ.get("MMREPRO_DEBUG"):
        raise error
    return ExitCode.INFRASTRUCTURE


def _tell(error: MmreproError) -> None:
    """One plain sentence, what lies behind it, and the next command to type, on stderr."""
    from mmrepro.text.sanitize import one_line

    lines = [error.message, *(f"  {line}" for line in error.detail[:8])]
    if error.hint:
        lines.append(f"Next: {error.hint}")
    sys.stderr.write("\n".join(one_line(line, 1000) for line in lines) + "\n")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
