"""Requests that SGLang wrote down as a pickle: ``--crash-dump-folder`` and its request
dumps.

Reading a pickle runs code that the file names. So another process reads it, which looks
no name up and has no rights (:mod:`mmrepro.probes.unpickle`); this one reads the JSON
that it prints. The form is that of sglang/srt/managers/tokenizer_manager.py,
``dump_requests_before_crash`` and ``_dump_data_to_file``, of 0.4 to 0.5.23."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from mmrepro.base.units import size
from mmrepro.probes import unpickle
from mmrepro.probes.base import Unavailable
from mmrepro.probes.data import RequestDumpData
from pydantic import ValidationError

_MAX_FILE_BYTES = 512 << 20
_MAX_ANSWER_BYTES = 16 << 20
_TIMEOUT_S = 40.0


def is_pickle(head: bytes) -> bool:
    """Whether a file begins as a pickle of protocol 2 to 5 does: Python writes no
    other."""
    return len(head) > 2 and head[0] == 0x80 and 2 <= head[1] <= 5


def read_requests(path: Path, timeout_s: float = _TIMEOUT_S) -> RequestDumpData:
    """The requests of one dump. Nothing of the file is run.

    Raises:
        Unavailable: it is no dump of SGLang's, or asks for something that none holds.
        OSError: it cannot be opened.
    """
    length = path.stat().st_size
    if length > _MAX_FILE_BYTES:
        raise Unavailable(f"{path} is larger than {size(_MAX_FILE_BYTES)}")
    command = [
        sys.executable,
        "-I",
        "-S",
        "-B",
        str(Path(unpickle.__file__)),
        str(length),
    ]
    with path.open("rb") as source:
        try:
            ended = subprocess.run(
                command,
                stdin=source,
                capture_output=True,
                timeout=timeout_s,
                env={"PYTHONIOENCODING": "utf-8"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{path} was not read within {timeout_s:.0f} s") from None
    if ended.returncode < 0:
        raise Unavailable(
            f"{path}: its reader ended by signal {-ended.returncode}, as it may"
        )
    try:
        found = json.loads(ended.stdout[:_MAX_ANSWER_BYTES])
        if name := found.get("refused"):
            raise Unavailable(
                f"{path} is no dump of requests: it asks for {name}, which was not done"
            )
        if error := found.get("error"):
            why = " ".join(str(error).split())
            raise Unavailable(
                f"{path} is a pickle, and no dump of SGLang's requests: {why}"
            )
        return RequestDumpData(file=str(path), **found)
    except (ValueError, AttributeError, TypeError, ValidationError):
        raise Unavailable(f"{path} is a pickle that could not be read") from None
