"""The command line. Only what ``--help`` needs is imported here."""

import atexit
import contextlib
import gc
import shlex
import signal
import sys
from types import FrameType

from mmrepro.base.errors import (
    RUN_MODULES,
    ExitCode,
    InfrastructureError,
    MmreproError,
    UsageError,
    missing_extra,
)
from mmrepro.base.machine import Streams

END_S = 3.0
"""Time for an interpreter to end, after a command has."""
_DEBUG_HINT = "set MMREPRO_DEBUG=1 to see where"


def program() -> None:
    """Entry point of the program ``mmrepro``: :func:`main`, and then the process ends.

    An interpreter waits for all threads, and runs what was registered for its end. A
    scenario's file may have started a thread that never ends."""
    import os
    import threading

    sys.unraisablehook = _unraisable
    try:
        main()
    except (SystemExit, KeyboardInterrupt) as ended:
        # Nothing is left that Ctrl-C could end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = ExitCode.INTERRUPTED if not isinstance(ended, SystemExit) else ended.code
        watch = threading.Timer(END_S, os._exit, (code,))
        watch.daemon = True  # it goes on while the interpreter waits for others
        watch.start()
        sys.exit(code)


def _unraisable(seen: "sys.UnraisableHookArgs") -> None:
    """Write what a cleanup raised, where nobody could catch it; not a second Ctrl-C."""
    if not isinstance(seen.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(seen)


def main() -> None:
    """Run the command that ``sys.argv`` holds: one sentence for an error, never a
    traceback."""
    # Importing makes many objects and no garbage: looking for it took a quarter of a
    # diagnosis.
    gc.set_threshold(100_000)
    # An interpreter that ends looks through all of them again: up to 0.3 s of a
    # command.
    atexit.register(gc.freeze)
    streams = Streams()
    try:
        code = _for_git(streams.settle(_run(streams)))
    except KeyboardInterrupt:  # a second Ctrl-C, while the first one was handled
        code = _interrupted()
    sys.exit(code)


def _interrupted() -> int:
    """Say that the command was interrupted, undisturbed by a second Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    _say("Interrupted.")
    signal.signal(signal.SIGINT, before)
    return ExitCode.INTERRUPTED


def _run(streams: Streams) -> int:
    """The exit code of the command that ``sys.argv`` holds; what is wrong is printed on
    stderr."""
    if sys.platform != "linux":
        hint = "run it on a Linux machine, or in a container"
        _report(
            InfrastructureError("mmrepro needs Linux, whose /proc it reads.", hint=hint)
        )
        return ExitCode.INFRASTRUCTURE
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, interrupt)
        if screen := _plain_screen(sys.argv[1:]):
            print(screen)
            return ExitCode.AS_EXPECTED
        from mmrepro.cli.app import app

        code = app(prog_name="mmrepro", standalone_mode=False)
        if code == ExitCode.INTERRUPTED:  # typer's answer to Ctrl-C
            return _interrupted()
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        return _interrupted()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except MmreproError as error:
        _report(error)
        return error.exit_code
    except Exception as error:
        if streams.lost:
            return ExitCode.INFRASTRUCTURE
        return _refused(error) if isinstance(error, OSError) else _foreign(error)


def _plain_screen(words: list[str]) -> str:
    """What needs no command line to be parsed: the help, and the version; "": all
    else."""
    import os

    # A shell that completes a word starts mmrepro without any.
    if "_MMREPRO_COMPLETE" in os.environ:
        return ""
    if words in ([], ["-h"], ["--help"]):
        from mmrepro.cli.help_screen import help_screen

        return help_screen()
    if words in (["-V"], ["--version"], ["version"]):
        from mmrepro import __version__

        return f"mmrepro {__version__}"
    return ""


def _for_git(code: int) -> int:
    """The exit code of the command that ``git bisect run`` calls: all from 1 to 127 but
    125 means a bad commit there, and an error of the command is none."""
    if sys.argv[1:2] != ["bisect-run"] or code in (0, 1, 125) or code > 127:
        return code
    return 128


def _refused(error: OSError) -> int:
    """What the system refuses, where nothing closer to it has a sentence for it: no
    bug, so far."""
    _debug(error)
    where = f"{error.filename}: " if error.filename is not None else ""
    _report(InfrastructureError(f"{where}{error.strerror or error}.", hint=_DEBUG_HINT))
    return ExitCode.INFRASTRUCTURE


def _foreign(error: Exception) -> int:
    """Typer prints its own errors, a missing extra has a sentence; anything else is a
    bug of ours, in one line."""
    # Every exception of click has it, vendored or not.
    show = getattr(error, "show", None)
    if callable(show):
        with contextlib.suppress(OSError):
            show()
        return ExitCode.USAGE
    if type(error).__name__ in ("Abort", "Exit"):
        return int(getattr(error, "exit_code", ExitCode.INTERRUPTED))
    if isinstance(error, ModuleNotFoundError) and error.name in RUN_MODULES:
        from mmrepro.base.installed import install_command

        _report(UsageError(missing_extra(error.name), hint=install_command("run")))
        return ExitCode.USAGE
    _say(
        f"mmrepro failed: {type(error).__name__}: {str(error)[:1000]}\n"
        f"This is a bug of mmrepro; {_DEBUG_HINT}."
    )
    _debug(error)
    return ExitCode.INFRASTRUCTURE


def _debug(error: Exception) -> None:
    import os

    if os.environ.get("MMREPRO_DEBUG"):
        raise error


def _report(error: MmreproError) -> None:
    """One plain sentence, what lies behind it, and the next command to type, on
    stderr."""
    from mmrepro.base.installed import as_typed
    from mmrepro.base.machine import terminal_width
    from mmrepro.base.text import one_line, wrapped

    width = terminal_width(stderr=True)
    lines = []
    for text in (error.message, *(f"  {detail}" for detail in error.detail[:8])):
        lines.append(wrapped(one_line(text, 1000), width, hang=4))

    # A command is never broken: it is there to be copied.
    hint = error.hint or _what_is_there(error.__cause__)
    if hint:
        lines.append(one_line(f"Next: {as_typed(hint)}", 1000))
    _say("\n".join(lines))


def _what_is_there(cause: BaseException | None) -> str:
    """Lists the folder of a file that the system refuses, or the nearest one that there
    is."""
    from pathlib import Path

    from mmrepro.base.machine import is_folder

    name = cause.filename if isinstance(cause, OSError) else None
    if not isinstance(name, (str, Path)):
        return ""
    there = filter(is_folder, Path(name).parents)
    return f"ls -l {shlex.quote(str(next(there, '.')))}"


def _say(text: str) -> None:
    """Print on stderr. Where its reader left, the exit code says so: see
    :class:`Streams`."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")


def interrupt(number: int, frame: FrameType | None) -> None:
    """End the command as Ctrl-C does. A second such signal must not cut short what the
    first began: the engine is ended, and what was collected is written."""
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, lambda *_: None)  # a child would inherit SIG_IGN
    raise KeyboardInterrupt
