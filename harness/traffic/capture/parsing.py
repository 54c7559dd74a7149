"""Files of any size in bounded memory: JSON, lines, and objects as Python prints them
in a log."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import ijson  # type: ignore[import-untyped,unused-ignore]
from mmrepro.base import units

MAX_TEXT = 32 << 20
"""Bytes of one string as it stands in the file; of a longer one the beginning is
kept."""
CUT = "\ufdd0mmrepro-cut\ufdd0"
"""At the end of a string that was cut. U+FDD0 is no character: no text holds one."""

CHUNK = 1 << 18
_MOST_SILENCE = 4 << 20
"""Bytes outside strings without an event."""
_REST_OF_CHARACTER = re.compile(rb"[0-9A-Fa-f]{0,4}[\x80-\xbf]{0,3}")
"""What may be missing of ``\\u12`` or of a character of several bytes."""
_BACKSLASH = 0x5C
_BOM = b"\xef\xbb\xbf"


MAX_DEPTH = 100


class BadJson(Exception):
    """It cannot be read on; the text says why, in a clause without anything of the file
    in it."""


def events(file: BinaryIO) -> Iterator[tuple[str, Any, int]]:
    """What ijson's ``basic_parse`` gives, and how deep it stands. Raises BadJson."""
    stream = _Shortened(file)
    depth = 0
    try:
        for event, value in ijson.basic_parse(stream, use_float=True):
            stream.fed = 0
            depth -= event in ("end_map", "end_array")
            yield event, value, depth
            depth += event in ("start_map", "start_array")
            if depth > MAX_DEPTH:
                raise BadJson(f"it is nested deeper than {MAX_DEPTH}")
    except ijson.IncompleteJSONError as error:
        early = "premature" in str(error)
        raise BadJson(
            "the file ends in the middle" if early else "it is no JSON there"
        ) from error
    except (ijson.JSONError, ValueError, RecursionError, OverflowError) as error:
        raise BadJson("it is no JSON there") from error


class _Shortened:
    """Reads as a file does; strings longer than ``MAX_TEXT`` end early, with ``CUT``.

    A long string comes in one piece: the parser looks at one that comes in many from
    its beginning each time. Whoever parses it sets ``fed`` to 0 at each event: so much
    outside strings without one is a number without end, which the parser would keep in
    memory; ``read`` raises BadJson."""

    def __init__(self, file: BinaryIO) -> None:
        self.fed = 0
        self._file = file
        self._begun = False
        self._inside = False
        self._length = 0
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        """The next bytes, as many as there are at once; ``b""`` at the end only."""
        if size == 0:
            return b""
        out: list[bytes] = []
        while not any(out) or (self._inside and self._length > CHUNK):
            chunk = self._file.read(CHUNK)
            if not self._begun:
                chunk, self._begun = chunk.removeprefix(_BOM), True
            if not chunk:
                out.append(self._rest)
                self._rest = b""
                break
            self._shorten(self._rest + chunk, out)
        if self.fed > _MOST_SILENCE:
            raise BadJson(f"a value of more than {units.size(_MOST_SILENCE)}")
        return b"".join(out)

    def _shorten(self, data: bytes, out: list[bytes]) -> None:
        """Add what is kept of ``data``; what cannot be told yet is the ``_rest``."""
        at = 0
        self._rest = b""
        while at < len(data):
            if not self._inside:
                quote = data.find(b'"', at)
                end = len(data) if quote < 0 else quote + 1
                out.append(data[at:end])
                self.fed += end - at
                self._inside = quote >= 0
                self._length = 0
                at = end
                continue
            end = _end(data, at)
            if end < 0:
                # A backslash whose other half comes with the next piece waits for it.
                end = len(data) - _backslashes(data, at, len(data)) % 2
                self._rest = data[end:]
                self._kept(data[at:end], out)
                return
            self._kept(data[at:end], out)
            out.append(b'"')
            self._inside = False
            at = end + 1

    def _kept(self, piece: bytes, out: list[bytes]) -> None:
        """Add a piece of a string, as far as there is room for it."""
        before = self._length
        self._length += len(piece)
        if self._length <= MAX_TEXT:
            out.append(piece)
        elif before <= MAX_TEXT:
            # The piece that goes too far: only a character that is begun ends.
            rest = _REST_OF_CHARACTER.match(piece)
            out.append(rest[0] if rest else b"")
            out.append(CUT.encode())


def _end(data: bytes, at: int) -> int:
    """Where the string ends that ``at`` is inside of; -1: not in these bytes."""
    quote = data.find(b'"', at)
    while quote >= 0 and _backslashes(data, at, quote) % 2:
        quote = data.find(b'"', quote + 1)
    return quote


def _backslashes(data: bytes, begin: int, end: int) -> int:
    """How many there are directly before ``end``."""
    at = end
    while at > begin and data[at - 1] == _BACKSLASH:
        at -= 1
    return end - at


# ------------------------------------------------------------------ lines

MAX_LINE = 48 << 20


@dataclass(frozen=True)
class TextLine:
    """``number`` from 1; ``cut``: longer than ``MAX_LINE``, and only its beginning is
    here;
    ``time``: of a log's line, as printed."""

    number: int
    text: str
    cut: bool = False
    time: str = ""


def lines(file: BinaryIO) -> Iterator[TextLine]:
    """Yield each line; of one that is too long the rest is read over."""
    number = 0
    while data := file.readline(MAX_LINE):
        number += 1
        whole = data.endswith(b"\n") or len(data) < MAX_LINE
        while not whole:
            rest = file.readline(MAX_LINE)
            whole = rest.endswith(b"\n") or len(rest) < MAX_LINE
            data = data[:1000]
        cut = len(data) == 1000 and not data.endswith(b"\n")
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
        yield TextLine(number, text, cut)


# ------------------------------------------------------------------ as Python prints it

TEXT = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
"""Pattern of a text as ``repr`` prints it."""


def arguments(printed: str) -> dict[str, Any]:
    """Names and values of ``Name(a=1, b=[…])``; an object within becomes such a
    dictionary too. Raises ValueError: it is not printed like that, or was cut."""
    try:
        tree = ast.parse(printed, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("not an object as Python prints it") from error
    if not isinstance(tree, ast.Call):
        raise ValueError("not an object as Python prints it")
    try:
        return _called(tree)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def _called(tree: ast.Call) -> dict[str, Any]:
    """Raises ValueError."""
    values: dict[str, Any] = {}
    for word in tree.keywords:
        if word.arg is not None:  # None: **more
            values[word.arg] = _value(word.value)
    return values


def _value(node: ast.expr) -> Any:
    """Raises ValueError: it is neither plain nor an object of plain things."""
    if isinstance(node, ast.Call):
        return _called(node)
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(_value(key)): _value(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    try:
        return ast.literal_eval(node)
    except (TypeError, MemoryError) as error:
        raise ValueError("not plain") from error


def text_of(printed: str) -> str | None:
    """Return what ``repr`` printed; None for ``None``. Raises ValueError."""
    try:
        value = ast.literal_eval(printed)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError("not a text as Python prints it") from error
    if not isinstance(value, str | None):
        raise ValueError("not a text")
    return value


def no_constant(name: str) -> Any:
    """For ``json``: NaN and Infinity are no JSON. Raises ValueError."""
    raise ValueError(name)


# ---------------------------------------------------------- what logs of requests share


def not_default(parameters: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters that are not at their defaults; a tuple holds
    several defaults."""
    kept: dict[str, Any] = {}
    # These two have no default that all servers share.
    for name in ("max_tokens", "temperature"):
        if parameters.get(name) is not None:
            kept[name] = parameters[name]
    for name, usual in defaults.items():
        value = parameters.get(name)
        at_default = value in usual if isinstance(usual, tuple) else value == usual
        if value is not None and not at_default:
            kept[name] = value
    return kept
