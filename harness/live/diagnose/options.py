"""Options of ``mmrepro diagnose``."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from mmrepro.base import common_options as common
from mmrepro.base.errors import UsageError
from mmrepro.base.options import EVIDENCE, LIMITS, Command, option, text_of
from mmrepro.base.text import one_line
from mmrepro.probes import PROBES

NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE: Final = re.compile(r"[!-~][ -~]*")
"""What HTTP allows (RFC 9110, 5.1 and 5.5), less tabs and what is no ASCII."""
_FRAMING: Final = (
    "accept-encoding connection content-length content-type expect range te trailer "
    "transfer-encoding upgrade"
)
"""Another value of these makes another request, or another answer, than is read
here."""


def read_headers(given: Sequence[str]) -> dict[str, str]:
    """Return the value by name. Raises UsageError, also for what no request can
    carry."""
    headers = {}
    for text in given:
        name, colon, value = text.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise UsageError(
                "A --header is NAME: VALUE.",
                hint="--header 'Authorization: Bearer KEY'",
            )
        name, value = name.strip(), value.strip()
        if not NAME.fullmatch(name):
            why = "its name holds more than letters, digits and dashes"
        elif name.lower() in _FRAMING.split():
            why = f"mmrepro sets {name.lower()} itself"
        elif not VALUE.fullmatch(value):
            why = "its value holds more than printable ASCII characters"
        else:
            headers[name] = value
            continue
        raise UsageError(
            f"The --header {name!r} cannot be sent: {why}.",
            hint="--header 'Authorization: Bearer KEY'",
        )
    return headers


def read_deadline(text: str) -> float:
    """Return the seconds of ``15``, ``15s`` or ``1.5s``. Raises UsageError."""
    try:
        seconds = float(text.strip().removesuffix("s"))
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 600:
        raise UsageError(
            f"--deadline {text!r} is not a time of 1 to 600 s.", hint="--deadline 15s"
        )
    return seconds


_MOST_FILES: Final = 1000
"""Of a folder with logs and dumps."""


def _has_more_files(folder: Path, most: int) -> bool:
    seen = 0
    for _, folders, files in os.walk(folder):
        seen += len(folders) + len(files)
        if seen > most:
            return True
    return False


def _check_log(log: Path) -> None:
    """Raises UsageError: a name that no file can have, or a folder with more than logs
    in it.

    A file that is not there yet, or may not be read, is told of in the diagnosis.
    """
    why = ""
    try:
        if stat.S_ISDIR(log.stat().st_mode) and _has_more_files(log, _MOST_FILES):
            why = f"it is a folder of more than {_MOST_FILES:,} files"
    except (FileNotFoundError, PermissionError):
        return
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name holds a NUL"
    if why:
        raise UsageError(
            f"--log {one_line(str(log), 100)} is no log file: {why}.", hint="--log FILE"
        )


@dataclass(frozen=True)
class LiveCommand(Command):
    """Options of a command that looks at a live server."""

    url: str = common.URL(
        "", required=False, shown="the inference servers of this machine"
    )
    model: str = option(
        "", "Served model to ask for.", "NAME", shown="the first listed"
    )
    logs: tuple[Path, ...] = option(
        (),
        "A log file of the server. May be repeated.",
        "FILE",
        EVIDENCE,
        name="--log",
        shown="where its output goes",
    )
    rules: Path | None = common.RULES(None)
    headers: Mapping[str, str] = common.HEADER({}, read=read_headers)
    """They are written nowhere: one of them is an API key."""
    out: Path | None = common.OUT(None, shown="incidents/…")
    full: bool = common.FULL(False)
    json: bool = common.JSON(False)
    quiet: bool = common.QUIET(False)
    more: tuple[str, ...] = option(
        (),
        "More servers: replicas, or a prefill and its decode servers.",
        "URL…",
        argument=True,
    )
    prometheus: str = option(
        "", "Take the servers from this Prometheus server's targets and metrics.", "URL"
    )

    def __post_init__(self) -> None:
        for log in self.logs:
            _check_log(log)


@dataclass(frozen=True)
class DiagnoseCommand(LiveCommand):
    """Options of ``mmrepro diagnose``.

    ``deadline_s`` is that of the one request, and of the watch where no request may be
    sent.
    ``out``: None: a folder below ``incidents/``, kept unless the server is healthy.
    """

    COMMAND: ClassVar[str] = "diagnose"
    DOCUMENTS: ClassVar[tuple[str, ...]] = (
        "mmrepro.failure.documents.diagnosis:Diagnosis",
        "mmrepro.failure.documents.fleet:Fleet",
        "mmrepro.failure.documents.chain:Chain",
        "probe=mmrepro.probes.data:ProbeResult",
    )
    pid: int = option(
        0, "A process of the server.", "PID", shown="who listens there", least=0
    )
    engine: str = common.ENGINE_NAME("auto", help="Name of the engine.")
    deadline_s: float = option(
        15.0,
        "Time that the one request may take.",
        "SECONDS",
        LIMITS,
        name="--deadline",
        shown="15s",
        read=read_deadline,
        write=text_of,
    )
    samples: int = option(
        5, "Number of stack samples of each process.", "N", EVIDENCE, least=3, most=100
    )
    request: bool = option(
        True,
        "Send one inference; --no-request only observes.",
        group=EVIDENCE,
        name="--request/--no-request",
    )
    only: str | None = option(
        None,
        "Collect one kind of evidence, print it as JSON and judge nothing.",
        "KIND",
        EVIDENCE,
        choices=tuple(PROBES),
    )
    native: bool = option(
        False, "C frames as well: pauses the server for each sample.", group=EVIDENCE
    )
    gpu_core: bool = option(
        False,
        (
            "On a hang, write a CUDA core dump (the server needs "
            "CUDA_ENABLE_USER_TRIGGERED_COREDUMP=1). Kills the server."
        ),
        group=EVIDENCE,
    )
    through: bool = option(
        False,
        "URL is a gateway: ask it and each server behind it, and say which is wrong.",
        group=EVIDENCE,
    )
    scenarios: tuple[str, ...] = option(
        (),
        "Try this one besides the known ones: a name, or a path that ends in .py.",
        "NAME|FILE",
        name="--scenario",
        names="scenario",
        runs_code=True,
    )
    trust: bool = common.TRUST(False)
    verbose: bool = common.VERBOSE(False)
