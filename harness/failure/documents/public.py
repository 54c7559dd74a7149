"""What of an incident or a finding may leave the machine: other words and pictures,
redacted."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from mmrepro.base.text import Redactor
from mmrepro.failure.documents.finding import LoadedFinding
from mmrepro.failure.documents.published import (
    Public,
    harmless,
    label,
    redacted_words,
    uncovered,
)
from mmrepro.failure.documents.replay import PUBLIC_DIR
from mmrepro.probes.log_words import hidden_in
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.case import CASE_FILE, Case, read_case, read_contents, write_case

_NOT_PLAYED: Final = (
    "Texts and images are random ones of the same lengths, sizes and sharing; the "
    "failure was seen with the real ones, and the random ones were not played"
)


HEAD_BYTES: Final = 256 << 10
TAIL_BYTES: Final = 2 << 20
"""Of a longer text only so much of its beginning and its end is kept."""
_MAX_LINE_CHARS: Final = 16 << 10
_MAX_DEPTH: Final = 100
"""Of JSON that is looked through by its fields: py-spy's has five."""


def _harmless_locals(dump: Any) -> Any:
    """py-spy's JSON: ``locals`` of a frame is a list of objects with ``name`` and
    ``repr``."""
    if isinstance(dump, list):
        return [_harmless_locals(item) for item in dump]
    if isinstance(dump, dict):
        kept = {key: _harmless_locals(item) for key, item in dump.items()}
        if isinstance(kept.get("repr"), str):
            kept["repr"] = harmless(kept["repr"], str(kept.get("name", "")))
        return kept
    return dump


# ---------------------------------------------------------------------------- a finding


@contextmanager
def public(
    loaded: LoadedFinding, redactor: Redactor | None = None
) -> Iterator[LoadedFinding]:
    """``loaded`` for others, while its pictures are needed."""
    redactor = redactor or Public()
    if loaded.case is not None:
        register(loaded.case, redactor)
    replay = redactor.redact_model(loaded.replay)
    finding = redactor.redact_model(loaded.finding.model_copy(deep=True))
    if loaded.case is None:
        yield LoadedFinding(replay, finding, None)
        return

    with tempfile.TemporaryDirectory(prefix="mmrepro-") as temporary:
        folder = Path(temporary)
        case, played = _public_case(loaded, loaded.case, folder)
        if not played:
            finding.limits.append(_NOT_PLAYED)
            # What was answered, was answered to other words.
            for expectation in finding.expectations:
                expectation.text = None
        yield LoadedFinding(replay, finding, _without_keys(case, redactor), folder)


def register(case: Case, redactor: Redactor) -> None:
    """Make ``redactor`` know every text of ``case``: messages, prompts, recorded
    answers."""
    for op in case.operations:
        for message in op.messages or []:
            for part in message.parts():
                redactor.add(part.text or "", "prompt")
        if isinstance(op.prompt, str):
            redactor.add(op.prompt, "prompt")
        if op.recorded is not None:
            redactor.add(op.recorded.text, "answer")


def _public_case(loaded: LoadedFinding, case: Case, folder: Path) -> tuple[Case, bool]:
    """The case that may go out, written to ``folder``; whether a play of it has
    failed."""
    own = loaded.folder / PUBLIC_DIR if loaded.folder is not None else None
    if own is not None and (own / CASE_FILE).is_file():
        case, place = read_case(own)
        write_case(case, folder, read_contents(case, place))
        return case, True
    captured = Captured(case, read_contents(case, loaded.folder))
    played = case.origin.anonymised
    if not played:
        model = Path(case.server.model)  # whose tokens count; without it, a tiny one's
        tokenizer = model if (model / "tokenizer.json").is_file() else None
        captured = anonymise(captured, loaded.replay.seed, tokenizer)
    write_case(captured.case, folder, captured.contents)
    return captured.case, played


def _without_keys(case: Case, redactor: Redactor) -> Case:
    """``case`` with the server's settings and the requests' parameters redacted; the
    words stay."""
    changes = {
        "title": redactor.redact(case.title),
        "server": redactor.redact_model(case.server),
        "origin": redactor.redact_model(case.origin),
        "operations": [
            op.model_copy(update={"parameters": redactor.redact_value(op.parameters)})
            for op in case.operations
        ],
    }
    return case.model_copy(update=changes)


# --------------------------------------------------------------------------- a raw file


class NotPublic(Exception):
    """Why nothing of a file may go out."""


def public_text(path: Path, home: Path, redactor: Redactor) -> tuple[str, str]:
    """What of the file may go out, and what is missing of it. Raises NotPublic.

    Args:
        home: the folder that it lies in, without links.
    """
    try:
        raw, note = _ends_of(path, home)
    except OSError as error:
        raise NotPublic(f"cannot be read: {error.strerror}") from error
    text = raw.decode("utf-8", "replace")

    document = _json(text) if _holds_json(path) else None
    if _holds_stacks(path):
        if document is None:
            raise NotPublic(
                "no JSON that can be read: the values of local variables cannot be "
                "left out"
            )
        text = json.dumps(_harmless_locals(document), indent=1)
        note = "values of local variables are left out, numbers and digests apart"
    elif document is not None:
        document = redactor.redact_value(_without_words(document, redactor))
        text = json.dumps(document, indent=1, ensure_ascii=False)
    elif "-metrics" in path.name:
        text = _METRIC.sub(lambda match: _labels(match, redactor), text)
    else:
        text = redactor.hide("quoted", text, uncovered(text, hidden_in(text)))

    lines: list[str] = []
    for line in text.split("\n"):
        too_long = len(line) > _MAX_LINE_CHARS
        lines.append(line[:_MAX_LINE_CHARS] + " [cut]" if too_long else line)
    return redacted_words("\n".join(lines), redactor), note


def _holds_stacks(path: Path) -> bool:
    return "-stacks-" in path.name


def _holds_json(path: Path) -> bool:
    return _holds_stacks(path) or path.suffix == ".json"


def _ends_of(path: Path, home: Path) -> tuple[bytes, str]:
    """The bytes of a plain file, of a long one its two ends; what is missing of it.
    Raises OSError, NotPublic."""
    # Opening a device may act.
    if not stat.S_ISREG(path.lstat().st_mode):
        raise NotPublic("a link or no plain file")
    # A link may take the file's place, or its folder's, before it is open.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags)
    with os.fdopen(handle, "rb") as file:
        opened = Path(os.path.realpath(f"/proc/self/fd/{handle}"))
        if opened != home / path.name:
            raise NotPublic("a link leads to it")
        size = os.fstat(handle).st_size
        if b"\0" in file.read(4096):
            raise NotPublic("not text")

        file.seek(0)
        raw = file.read(HEAD_BYTES + TAIL_BYTES)
        if size <= len(raw):
            return raw, ""
        # Both ends are whole lines: half of a secret would not be found.
        head = raw[:HEAD_BYTES].rpartition(b"\n")[0]
        file.seek(size - TAIL_BYTES)
        tail = file.read(TAIL_BYTES).partition(b"\n")[2]
    gap = size - len(head) - len(tail)
    note = f"{gap} bytes in the middle are left out"
    return head + f"\n[mmrepro: {note}]\n".encode() + tail, note


_METRIC: Final = re.compile(r"^[A-Za-z_:][\w:]*\{.*\}", re.MULTILINE)
_METRIC_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\\n]|\\.)*)"')


def _labels(metric: re.Match[str], redactor: Redactor) -> str:
    served = redactor.names if isinstance(redactor, Public) else ()

    def shown(match: re.Match[str]) -> str:
        name, value = match.groups()
        if not label(name, value, served):
            value = redactor.placeholder("label", value)
        return f'{name}="{value}"'

    return _METRIC_LABEL.sub(shown, metric[0])


def _without_words(value: Any, redactor: Redactor) -> Any:
    """JSON whose texts are as lines of a log."""
    if isinstance(value, dict):
        return {key: _without_words(item, redactor) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_words(item, redactor) for item in value]
    if isinstance(value, str) and _QUOTING.search(value):
        return redactor.hide("quoted", value, uncovered(value, hidden_in(value)))
    return value


_QUOTING: Final = re.compile("[\"'`{\n]|: |<")


def _json(text: str) -> Any:
    """The document in a text; None: it is no JSON, or so deep that it is better taken
    for a text."""
    with suppress(ValueError, RecursionError):
        document = json.loads(text)
        if _shallow(document, _MAX_DEPTH):
            return document
    return None


def _shallow(value: Any, most: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    items = value.values() if isinstance(value, dict) else value
    return most > 0 and all(_shallow(item, most - 1) for item in items)
