"""Text from another process, made safe to show: terminal codes out, control characters
visible.

Logs, stacks and responses may hold colour codes, window-title sequences, NUL bytes or
characters that reverse the reading direction. ``plain`` is applied to every such text
before it reaches a terminal, Markdown, HTML or XML; escaping for those formats comes
after it and is theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import quote, quote_plus

# ECMA-48 control sequences. The bounds keep an unterminated sequence from swallowing a
# log.
_TERMINAL: Final = re.compile(
    r"""
      (?:\x1b\[|\x9b) [0-?]{0,64} [\ -/]{0,16} [@-~]           # CSI: colours, cursor
    | (?:\x1b\]|\x9d) [^\x07\x1b\x9c\n]{0,4096} (?:\x07|\x1b\\|\x9c)?  # OSC: titles, links
    | (?:\x1b[PX^_]|[\x90\x98\x9e\x9f]) [^\x1b\x9c\n]{0,4096} (?:\x1b\\|\x9c)?  # DCS, SOS, PM, APC
    | \x1b [\ -/]{0,16} [0-~]                                  # the two-character rest
    """,
    re.VERBOSE,
)
# Lone surrogates cannot be encoded as UTF-8; the two non-characters are illegal in XML.
_UNENCODABLE: Final = re.compile("[\ud800-\udfff\ufffe\uffff]")
_BIDI: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INVISIBLE: Final = (0x200B, 0x2060, 0xFEFF, *range(0xE0000, 0xE0080))
_VISIBLE: Final[dict[int, str]] = (
    {code: chr(0x2400 + code) for code in range(0x20) if code not in (0x09, 0x0A)}
    | {0x7F: "\u2421"}
    | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
    | {code: f"<U+{code:04X}>" for code in _BIDI}
    | dict.fromkeys(_INVISIBLE, "")
    | {0x2028: "\n", 0x2029: "\n"}
)


def plain(text: str) -> str:
    """``text`` without terminal sequences; other control and direction characters made
    visible.

    Keeps tabs and newlines. The result can be encoded as UTF-8 and written into XML
    1.0."""
    if text.isascii() and text.isprintable():
        return text
    text = _TERMINAL.sub("", text.replace("\r\n", "\n"))
    return _UNENCODABLE.sub("\ufffd", text).translate(_VISIBLE)


# Colours and cursor movements, also as Python, JSON and shells print them.
_COLOURS: Final = re.compile(
    r"(?:\x1b|\\{1,15}(?:x1b|u001b|0?33|e))(?:\[[0-9;:?]{0,32}[A-Za-z]|[()][A-Z0-9])",
    re.IGNORECASE,
)
_UNSEEN: Final = re.compile("[\u00ad\u200b-\u200d\u2060\ufeff]")


def without_disguise(text: str) -> str:
    """``text`` without what no reader sees, and what would hide one word from a
    pattern: colours, also those printed as escapes, and characters without width."""
    if "\x1b" in text or "\\" in text:
        text = _COLOURS.sub("", text)
    return text if text.isascii() else _UNSEEN.sub("", text)


def clip(text: str, limit: int) -> str:
    """At most ``limit`` characters, the cut marked."""
    return text if len(text) <= limit else text[: max(limit - 1, 0)].rstrip() + "…"


def one_line(text: str, limit: int = 500) -> str:
    """``plain`` text on one line, of at most ``limit`` characters."""
    # Cut first: a megabyte of hostile text is not worth normalising for a table cell.
    return clip(" ".join(plain(text[: limit * 8]).split()), limit)


# ------------------------------------------------------------ what was sent as a secret

Mask = Callable[[bytes], bytes]


def unmasked(data: bytes) -> bytes:
    return data


def mask_of(placeholders: Mapping[str, str]) -> Mask:
    """Replaces each secret by its placeholder: as it is, and as JSON, URLs and Python
    write it, in any case. For files that are too large, or too raw, for a
    ``Redactor``."""
    forms: dict[bytes, bytes] = {}
    for secret, placeholder in placeholders.items():
        written = {secret, json.dumps(secret)[1:-1], repr(secret)[1:-1]}
        written |= {quote(secret, safe=""), quote_plus(secret)}
        forms |= {
            form.encode().lower(): placeholder.encode() for form in written if form
        }
    if not forms:
        return unmasked
    longest_first = sorted(forms, key=len, reverse=True)
    found = re.compile(
        b"|".join(re.escape(form) for form in longest_first), re.IGNORECASE
    )
    return lambda data: found.sub(lambda match: forms[match[0].lower()], data)
