"""What of an incident or a finding may leave the machine: other words and pictures, redacted."""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from mmrepro.base.text.looks import callers, conversation
from mmrepro.base.text.opaque import Span, names_a_digest
from mmrepro.base.text.redact import PLACEHOLDER, Redactor, names_a_secret
from mmrepro.failure.documents import Incident
from mmrepro.failure.documents.finding import LoadedFinding
from mmrepro.failure.documents.replay import PUBLIC_DIR, Finding, FindingClass
from mmrepro.probes.data import LogsData, StacksData
from mmrepro.traffic.capture.anonymise import anonymise
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.case.files import read_case, read_contents, write_case
from mmrepro.traffic.case.model import CASE_FILE, Case

NOT_PLAYED: Final = (
    "Texts and images are random ones of the same lengths, sizes and sharing; the failure was "
    "seen with the real ones, and the random ones were not played"
)
LEFT_OUT: Final = "[left out]"
_SPOKEN: Final = (FindingClass.CROSS_TALK, FindingClass.WRONG_ANSWER, FindingClass.CANARY)
"""Classes whose sentences quote answers."""
_QUOTED: Final = re.compile(r"""(['"])((?:\\.|(?!\1)[^\\]){3,4000})\1""")
_HARMLESS: Final = re.compile(
    r"-?\d[\d_.eE+-]*|None|True|False|<[\w.]+ object at 0x[0-9a-f]+>|(['\"]?[0-9a-f]{16,64}['\"]?)"
)


HEAD_BYTES: Final = 256 << 10
TAIL_BYTES: Final = 2 << 20
"""Of a longer text only so much of its beginning and its end is kept."""
MAX_LINE_CHARS: Final = 16 << 10
MAX_DEPTH: Final = 100
"""Of JSON that is looked through by its fields: py-spy's has five."""


def redact_log(text: str, redactor: Redactor) -> str:
    """``text`` of a log: besides secrets, what users wrote and where they called from."""
    text = redactor.redact(text)
    text = redactor.hide("prompt", text, _uncovered(text, conversation(text)))
    return redactor.hide("address", text, callers(text))


def _uncovered(text: str, spans: Iterable[Span]) -> Iterator[Span]:
    return (span for span in spans if not PLACEHOLDER.fullmatch(text[slice(*span)]))


# ----------------------------------------------------------------------------- an incident


def without_words(incident: Incident, redactor: Redactor) -> Incident:
    """A copy without what users wrote: log lines as in ``redact_log``, and only such local
    variables as cannot hold any of it."""
    copy = incident.model_copy(deep=True)
    for result in copy.evidence.probes:
        if isinstance(result.data, StacksData):
            for sample in result.data.samples:
                for thread in sample.threads:
                    for frame in thread.frames:
                        frame.locals.update(_harmless_of(frame.locals))
        elif isinstance(result.data, LogsData):
            logs = result.data
            single = (logs.last_progress, logs.first_line, logs.last_line)
            several = (logs.errors, logs.last_by_process.values(), logs.stuck_requests)
            for line in chain(filter(None, single), *several, *logs.matches.values()):
                line.text = redact_log(line.text, redactor)
    for excerpt in copy.log_lines:
        excerpt.text = redact_log(excerpt.text, redactor)
    for key_frame in copy.key_stack.frames if copy.key_stack else ():
        key_frame.locals.update(_harmless_of(key_frame.locals))
    return copy


def _harmless_of(variables: dict[str, str]) -> dict[str, str]:
    return {name: _harmless(value, name) for name, value in variables.items()}


def _harmless(value: str, name: str) -> str:
    """A number, or a digest where one is expected; nothing of what is called a secret."""
    found = _HARMLESS.fullmatch(value.strip())
    known = found and (names_a_digest(name) or not found[1] or found[1].strip("'\"").isdigit())
    return value if known and not names_a_secret(name) else LEFT_OUT


def harmless_locals(dump: Any) -> Any:
    """py-spy's JSON: ``locals`` of a frame is a list of objects with ``name`` and ``repr``."""
    if isinstance(dump, list):
        return [harmless_locals(item) for item in dump]
    if isinstance(dump, dict):
        harmless = {key: harmless_locals(item) for key, item in dump.items()}
        if isinstance(harmless.get("repr"), str):
            harmless["repr"] = _harmless(harmless["repr"], str(harmless.get("name", "")))
        return harmless
    return dump


# ------------------------------------------------------------------------------- a finding


@contextmanager
def public(loaded: LoadedFinding, redactor: Redactor | None = None) -> Iterator[LoadedFinding]:
    """``loaded`` for others, while its pictures are needed."""
    redactor = redactor or Redactor()
    if loaded.case is not None:
        register(loaded.case, redactor)
    replay, finding = redactor.redact_model(loaded.replay), _unspoken(loaded.finding, redactor)
    if loaded.case is None:
        yield LoadedFinding(replay, finding, None)
        return
    with tempfile.TemporaryDirectory(prefix="mmrepro-") as temporary:
        case, played = _public_case(loaded, loaded.case, Path(temporary))
        if not played:
            finding.limits.append(NOT_PLAYED)
            for one in finding.expectations:
                one.text = None  # the answer to other words
        yield LoadedFinding(replay, finding, _without_keys(case, redactor), Path(temporary))


def register(case: Case, redactor: Redactor) -> None:
    """Make ``redactor`` know every text of ``case``: messages, prompts, recorded answers."""
    for op in case.operations:
        for message in op.messages or []:
            for part in message.parts():
                redactor.add(part.text or "", "prompt")
        if isinstance(op.prompt, str):
            redactor.add(op.prompt, "prompt")
        if op.recorded is not None:
            redactor.add(op.recorded.text, "answer")


def _public_case(loaded: LoadedFinding, case: Case, folder: Path) -> tuple[Case, bool]:
    """The case that may go out, written to ``folder``; whether a play of it has failed."""
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
    """``case`` with the server's settings and the requests' parameters redacted; the words stay."""
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


def _unspoken(finding: Finding, redactor: Redactor) -> Finding:
    """A copy, redacted, without answers to words that do not go out."""
    finding = finding.model_copy(deep=True)
    for op, text in finding.observed.items():
        if text[:1] == "2":
            finding.observed[op] = text[:3]
    finding.log_lines = [redact_log(text, redactor) for text in finding.log_lines]
    if finding.finding_class in _SPOKEN:

        def hidden(text: str) -> str:
            return _QUOTED.sub(lambda m: redactor.placeholder("answer", m[2]), text)

        finding.said, finding.known_why = hidden(finding.said), hidden(finding.known_why)
        finding.observed = {op: hidden(text) for op, text in finding.observed.items()}
    return redactor.redact_model(finding)


# ------------------------------------------------------------------------------- a raw file


class NotPublic(Exception):
    """Why nothing of a file may go out."""


def public_text(path: Path, home: Path, redactor: Redactor) -> tuple[str, str]:
    """What of the file may go out, and what is missing of it. Raises NotPublic.

    Args:
        home: the folder that it lies in, without links.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode):  # opening a device may act
            raise NotPublic("a link or no plain file")
        # A link may take the file's place, or its folder's, before it is open.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            opened = Path(os.path.realpath(f"/proc/self/fd/{handle}"))
            if opened != home / path.name:
                raise NotPublic("a link leads to it")
            size = os.fstat(handle).st_size
            if b"\0" in file.read(4096):
                raise NotPublic("not text")
            file.seek(0)
            raw = file.read(HEAD_BYTES + TAIL_BYTES)
            note = ""
            if size > len(raw):
                head = raw[:HEAD_BYTES].rpartition(b"\n")[0]
                file.seek(size - TAIL_BYTES)
                tail = file.read(TAIL_BYTES).partition(b"\n")[2]
                gap = size - len(head) - len(tail)
                note = f"{gap} bytes in the middle are left out"
                raw = head + f"\n[mmrepro: {note}]\n".encode() + tail
    except OSError as error:
        raise NotPublic(f"cannot be read: {error.strerror}") from error
    text = raw.decode("utf-8", "replace")
    if "-stacks-" in path.name:
        if (dump := _json(text)) is None:
            raise NotPublic(
                "no JSON that can be read: the values of local variables cannot be left out"
            )
        text = json.dumps(harmless_locals(dump), indent=1)
        note = "values of local variables are left out, numbers and digests apart"
    elif path.suffix == ".json" and (document := _json(text)) is not None:
        text = json.dumps(redactor.redact_value(document), indent=1, ensure_ascii=False)
    lines = (
        line if len(line) <= MAX_LINE_CHARS else line[:MAX_LINE_CHARS] + " [cut]"
        for line in text.split("\n")
    )
    return redact_log("\n".join(lines), redactor), note


def _json(text: str) -> Any:
    """None: it is no JSON, or so deep that it is better taken for a text."""
    with suppress(ValueError, RecursionError):
        return document if _shallow(document := json.loads(text), MAX_DEPTH) else None
    return None


def _shallow(value: Any, most: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    items = value.values() if isinstance(value, dict) else value
    return most > 0 and all(_shallow(item, most - 1) for item in items)
