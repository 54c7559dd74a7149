"""Other spellings of a text: what decodes to something private is private as well.

A *view* is a text with its encoded parts decoded, and knows where each character comes
from: rules that look for secrets run on it, and what they find is hidden in the source.
Decoded are percent signs, entities of HTML, escapes of programs, wide and styled
letters, lists of numbers of bytes, letters that are spaced out, and Base64, Base32 and
hexadecimal of readable text; each also within another. Of a secret that is known,
spellings that nobody can tell from noise are looked for as they are.

Time is linear in the text: each pattern has bounded repetition, a text has few views,
and at most ``_MOST_SECRETS`` secrets are looked for."""

from __future__ import annotations

import base64
import binascii
import codecs
import html
import re
import string
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from mmrepro.base.text.opaque import Span

_LEVELS: Final = 3
"""Encodings within each other that are undone: a percent sign of a percent sign has
two."""
_AROUND: Final = 2048
"""Characters of a line, on either side of what is encoded, that a view shows."""
_MOST_SECRETS: Final = 64
_MORE_SECRETS: Final = 128 << 20
"""Characters to look through: in a short text more secrets are looked for."""
LEAST_SECRET: Final = 4
_LEAST_OWN: Final = 8
"""Characters of a secret that is looked for as it is."""
_LEAST_PART: Final = 6
"""Characters of a spelling that is looked for within words; a shorter one must stand
alone."""

# Each pattern begins with a class of characters, so that most places are passed over
# quickly.
_SIGNED: Final = re.compile(
    r"""[%&\\=Uu\u0080-\U0010ffff](?:
      (?P<percent>(?<=%)[2-7][0-9A-Fa-f]|(?<=%)u00[2-7][0-9A-Fa-f]|(?<=%)[89A-Fa-f][0-9A-Fa-f](?:%[89A-Fa-f][0-9A-Fa-f]){1,63})
    | (?P<entity>(?<=&)(?:\#\d{1,7}|\#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});)
    | (?P<escape>(?<=\\)\\{0,7}(?:u\{[0-9A-Fa-f]{1,6}\}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}
        |x[0-9A-Fa-f]{2}|x\{[0-9A-Fa-f]{1,6}\}|N\{[A-Z0-9\ -]{1,80}\}|[01][0-7]{2}))
    | (?P<points>(?<=[Uu])\+[0-9A-Fa-f]{4,6}(?:[ ,]{0,2}[Uu]\+[0-9A-Fa-f]{4,6}){3,512})
    | (?P<css>(?<=\\)0{0,4}[2-7][0-9A-Fa-f][ ]?(?:\\0{0,4}[2-7][0-9A-Fa-f][ ]?){3,512})
    | (?P<quoted>(?<==)[2-7][0-9A-F](?:=[2-7][0-9A-F]){3,512})
    | (?P<styled>(?<=[^\x00-\x7f]))
    )""",
    re.VERBOSE,
)
_BYTES: Final = re.compile(
    r"""\d(?<![\w.+-]\d)(?:(?<=0)x[0-9A-Fa-f]{2}|\d{1,2})
    (?:(?:[,;:|][ \t\r\n]{0,2}|[ \t-])(?:0x[0-9A-Fa-f]{2}|\d{2,3})){3,1024}(?![\w.])""",
    re.VERBOSE,
)
_PAIRS: Final = re.compile(
    r"""[0-9A-Fa-f]{2}(?<![\w.+-][0-9A-Fa-f]{2})(?:(?:[ :,-][0-9A-Fa-f]{2}){5,1024}
    |[0-9A-Fa-f]{2}(?:[ ][0-9A-Fa-f]{4}){2,512}(?:[ ][0-9A-Fa-f]{2})?)(?![\w.])""",
    re.VERBOSE,
)
_BITS: Final = re.compile(
    r"[01]{8}(?<![\w.+-][01]{8})(?:[ ,]{0,2}[01]{8}){3,512}(?![\w.])"
)
_CALLS: Final = re.compile(
    r"[Cc][Hh][Rr][Ww]?\(\d{2,3}\)"
    r"(?:[ ]?[+.&,|]{1,2}[ ]?[Cc][Hh][Rr][Ww]?\(\d{2,3}\)){3,512}"
)
_LETTERS: Final = re.compile(
    r"""(\\?["'])[^\s\\]\1[ ]?[,+.&][ ]?(?:\1[^\s\\]\1[ ]?[,+.&][ ]?){4,256}\1[^\s\\]\1"""
)
_SPACED: Final = re.compile(
    r"""(?<![^\s"'(\[=:])[^\s\\](?P<gap>[ ._|*\u00b7-])
    (?:[^\s\\](?P=gap)){4,256}[^\s\\](?![^\s"')\],;])""",
    re.VERBOSE,
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9+/_-]{12,4096}={0,6}")
_OPENED: Final = re.compile(
    r"(?:(?:new )?(?:bytes|bytearray|array|list|Buffer\.from|Uint8Array(?:\.from)?|vec!"
    r"|\[\]byte"
    r"|byte\[\]|b?string|String\.fromCharCode)[ ]?)?[\[({]{1,2}[ \n]{0,8}\Z"
)
_CLOSED: Final = re.compile(r"[ \n]{0,8}[\])}]{1,2}")
_ONE_LETTER: Final = re.compile(r"""\\?(["'])[^\s\\]\\?\1""")
_OCTAL: Final = re.compile(r"[01][0-7]{2}")
_EIGHT: Final = re.compile(r"[01]{8}")
_NUMBER: Final = re.compile(r"0x[0-9A-Fa-f]{2}|\d+")
_HEX_PAIR: Final = re.compile(r"[0-9A-Fa-f]{2}")
_CSS: Final = re.compile(r"\\0*([2-7][0-9A-Fa-f])")
_POINT: Final = re.compile(r"\+([0-9A-Fa-f]+)")


@dataclass(frozen=True)
class _DecodedPiece:
    """A part of a view, and the part of the source that it shows.

    Attributes:
        alone: the two have the same characters, so that a part of one is a part of the
            other.
    """

    at: int
    start: int
    end: int
    alone: bool


class _DecodedView:
    """A text decoded; ``spans`` lead from it to the source."""

    def __init__(
        self, text: str, pieces: list[_DecodedPiece], of: _DecodedView | None = None
    ) -> None:
        self.text = text
        self._pieces = pieces
        self._starts = [piece.at for piece in pieces]
        self._of = of

    def source(self, start: int, end: int) -> Span:
        """Where the source has what stands here from ``start`` to ``end``."""
        span = self._span(start, end)
        return self._of.source(*span) if self._of is not None else span

    def decodes(self, start: int, end: int) -> bool:
        """Whether something from ``start`` to ``end`` is encoded in the source."""
        first = max(0, bisect_right(self._starts, start) - 1)
        last = bisect_right(self._starts, end - 1)
        if any(not piece.alone for piece in self._pieces[first:last]):
            return True
        return self._of is not None and self._of.decodes(*self._span(start, end))

    def _span(self, start: int, end: int) -> Span:
        """The same in the view, or the text, that this one was made of."""
        begin = self._place(start)[0]
        return begin, self._place(end - 1)[1] if end > start else begin

    def _place(self, at: int) -> Span:
        piece = self._pieces[max(0, bisect_right(self._starts, at) - 1)]
        if not piece.alone:
            return piece.start, piece.end
        place = piece.start + at - piece.at
        return place, place + 1


def views(text: str) -> Iterator[_DecodedView]:
    """Views of all parts of ``text`` in which something is encoded, each decoded
    further up to ``_LEVELS`` times."""
    for start, end, within in _windows(text, _decodable(text)):
        view = _view(text, start, end, within, None)
        yield view
        for _ in range(_LEVELS - 1):
            deeper = _decodable(view.text)
            if not deeper:
                break
            view = _view(view.text, 0, len(view.text), deeper, view)
            yield view


_Part = tuple[int, int, str]
"""Begin and end of what is encoded, and what it says."""


@lru_cache(maxsize=8)
def _decodable(text: str) -> tuple[_Part, ...]:
    """What is encoded in ``text``, in order, none within another."""
    found: list[_Part] = []
    for match in _SIGNED.finditer(text):
        decoded = _OF_SIGN[match.lastgroup or ""](match[0])
        found.append((match.start(), match.end(), decoded))
    for pattern, decode in _RUNS.items():
        for match in pattern.finditer(text):
            start, end = match.span()
            if decoded := decode(match[0]):
                if pattern is not _TOKEN and pattern is not _SPACED:
                    start, end = _with_brackets(text, start, end)
                found.append((start, end, decoded))
    parts: list[_Part] = []
    for part in sorted(found, key=lambda part: (part[0], -part[1])):
        start, end, decoded = part
        says = decoded and decoded != text[start:end]
        if says and (not parts or start >= parts[-1][1]):
            parts.append(part)
    return tuple(parts)


def _with_brackets(text: str, start: int, end: int) -> Span:
    """A list with its brackets and what makes bytes of it, so that a value is what it
    says."""
    opening = _OPENED.search(text, max(0, start - 40), start)
    closing = _CLOSED.match(text, end)
    if opening is None or closing is None:
        return start, end
    return opening.start(), closing.end()


def _windows(
    text: str, parts: Iterable[_Part]
) -> Iterator[tuple[int, int, list[_Part]]]:
    """Lines with something encoded, with those before and after; ones that overlap are
    one."""
    start = end = -1
    within: list[_Part] = []
    for part in parts:
        if part[0] < end and within:
            within.append(part)
            end = max(end, _line_end(text, part[1]))
            continue
        if within:
            yield start, end, within
        start, end, within = (
            _line_start(text, part[0]),
            _line_end(text, part[1]),
            [part],
        )
    if within:
        yield start, end, within


def _line_start(text: str, at: int) -> int:
    """The begin of the line before the one of ``at``."""
    least = max(0, at - _AROUND)
    line = text.rfind("\n", least, at)
    before = text.rfind("\n", least, line) if line > least else -1
    return before + 1 if before >= 0 else least


def _line_end(text: str, at: int) -> int:
    """The end of the line behind the one of ``at``."""
    most = min(len(text), at + _AROUND)
    line = text.find("\n", at, most)
    behind = text.find("\n", line + 1, most) if line >= 0 else -1
    return behind if behind >= 0 else most


def _view(
    text: str, start: int, end: int, parts: Iterable[_Part], of: _DecodedView | None
) -> _DecodedView:
    """``parts`` of a window decoded; the window may begin or end within none of
    them."""
    out: list[str] = []
    pieces: list[_DecodedPiece] = []
    length, position = 0, start
    for begin, stop, decoded in parts:
        if begin > position:
            pieces.append(_DecodedPiece(length, position, begin, True))
            out.append(text[position:begin])
            length += begin - position
        pieces.append(_DecodedPiece(length, begin, stop, False))
        out.append(decoded)
        length += len(decoded)
        position = stop
    if position < end:
        pieces.append(_DecodedPiece(length, position, end, True))
        out.append(text[position:end])
    return _DecodedView("".join(out), pieces, of)


# -------------------------------------------------------------- what each encoding says


def _percent(shown: str) -> str:
    codes = shown.replace("%u00", "").replace("%", "")
    return bytes.fromhex(codes).decode("utf-8", "ignore")


def _escape(shown: str) -> str:
    body = shown.lstrip("\\")
    if body.startswith("N"):
        try:
            return unicodedata.lookup(body[2:-1])
        except KeyError:
            return ""
    octal = body[0] in "01"
    return _letter(int(body, 8) if octal else int(body[1:].strip("{}"), 16))


def _letter(code: int) -> str:
    """The letter of a code; nothing for a control character."""
    letter = chr(code) if 32 <= code < 0x110000 and not 0xD800 <= code < 0xE000 else ""
    return letter if letter.isprintable() else ""


def _points(shown: str) -> str:
    return "".join(_letter(int(code, 16)) for code in _POINT.findall(shown))


def _quoted(shown: str) -> str:
    return _readable(bytes.fromhex(shown.replace("=", "")))


def _numbers(shown: str) -> str:
    """Decimal numbers of bytes; pairs of digits may be hexadecimal ones as well, and
    say both."""
    numbers = _NUMBER.findall(shown)
    codes = [int(number, 16 if number.startswith("0x") else 10) for number in numbers]
    if codes in (sorted(codes), sorted(codes, reverse=True)):
        return ""  # blocks, sizes: counted, not written
    said = _readable(bytes(codes)) if max(codes) < 256 else ""
    if not said and all(_OCTAL.fullmatch(number) for number in numbers):
        said = _readable(bytes(int(number, 8) for number in numbers))
    if all(len(number) == 2 for number in numbers):
        said = f"{said} {_pairs(shown)}".strip()
    return said


def _pairs(shown: str) -> str:
    return _readable(bytes.fromhex("".join(_HEX_PAIR.findall(shown))))


def _letters(shown: str) -> str:
    """Letters in quotes, one each."""
    mark = 2 if shown[0] == "\\" else 1
    return "".join(match[0][mark] for match in _ONE_LETTER.finditer(shown))


def _bits(shown: str) -> str:
    return _readable(bytes(int(bits, 2) for bits in _EIGHT.findall(shown)))


def _calls(shown: str) -> str:
    codes = [int(code) for code in _NUMBER.findall(shown)]
    return _readable(bytes(codes)) if max(codes) < 256 else ""


def _spaced(shown: str) -> str:
    return shown[::2]


def is_readable(text: str) -> bool:
    """Whether ``text`` is Base64, Base32 or hexadecimal of what can be read."""
    return bool(_token(text))


@lru_cache(maxsize=1 << 14)
def _token(shown: str) -> str:
    """Base64, Base32 or hexadecimal of something that can be read; else nothing."""
    bare = shown.rstrip("=")
    if bare.startswith("0x"):
        bare = bare[2:]
    if len(bare) >= 16 and len(bare) % 2 == 0 and _is_hexadecimal(bare):
        return _readable(bytes.fromhex(bare))
    if len(bare) >= 16 and bare.isupper() and bare.isalnum():
        with_ends = bare + "=" * (-len(bare) % 8)
        try:
            if said := _readable(base64.b32decode(with_ends)):
                return said
        except binascii.Error:
            pass
    plain = bare.replace("-", "+").replace("_", "/")
    if len(plain) % 4 == 1:
        return ""
    try:
        return _readable(
            base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        )
    except binascii.Error:
        return ""


_HEXADECIMAL: Final = re.compile(r"[0-9a-f]+|[0-9A-F]+")


def _is_hexadecimal(text: str) -> bool:
    return _HEXADECIMAL.fullmatch(text) is not None


def _readable(data: bytes) -> str:
    """``data`` as text on one line; nothing if it is none, or if few of its signs are
    letters."""
    if len(data) % 2 == 0 and data.count(0) * 2 == len(data):
        # UTF-16, as PowerShell has it.
        data = data[::2] if data[1:2] == b"\0" else data[1::2]
    data = data.rstrip(b"\n\0")
    if not data.isascii() or not (text := data.decode()).isprintable():
        return ""
    usual = sum(c.isalnum() or c in " _-" for c in text)
    return text if usual * 10 >= len(text) * 6 else ""


@lru_cache(maxsize=1 << 12)
def _styled(letter: str) -> str:
    """A wide, circled or mathematical letter as the plain one."""
    plain = unicodedata.normalize("NFKC", letter)
    return plain if plain.isascii() and plain.isprintable() else ""


_OF_SIGN: Final[dict[str, Callable[[str], str]]] = {
    "percent": _percent,
    "entity": html.unescape,
    "escape": _escape,
    "points": _points,
    "css": lambda shown: _readable(bytes.fromhex("".join(_CSS.findall(shown)))),
    "quoted": _quoted,
    "styled": _styled,
}
_RUNS: Final[dict[re.Pattern[str], Callable[[str], str]]] = {
    _BYTES: _numbers,
    _PAIRS: _pairs,
    _BITS: _bits,
    _CALLS: _calls,
    _LETTERS: _letters,
    _SPACED: _spaced,
    _TOKEN: _token,
}


# ------------------------------------------------------------ of a secret that is known


def spelled(text: str, secrets: Iterable[str]) -> list[tuple[int, int, str]]:
    """Where ``text`` has one of ``secrets`` in another spelling, and which, in
    order."""
    wanted = [secret for secret in secrets if len(secret) >= LEAST_SECRET]
    if not wanted:
        return []
    wanted = wanted[-max(_MOST_SECRETS, _MORE_SECRETS // (len(text) + 1)) :]
    found: list[tuple[int, int, str]] = []
    for secret in wanted:
        for form in _forms(secret):
            found += [(*span, secret) for span in _places(text, form)]
        if _stands_out(secret):
            whole = [
                span
                for span in _places(text, secret)
                if not _within_a_word(text, *span)
            ]
            found += [(*span, secret) for span in whole]
    for view in views(text):
        for secret in wanted:
            for start, end in _places(view.text, secret):
                if view.decodes(start, end):
                    found.append((*view.source(start, end), secret))
            for form in _forms(secret):
                for start, end in _places(view.text, form):
                    found.append((*view.source(start, end), secret))
    return sorted(found, key=lambda one: (one[0], -one[1]))


def _places(text: str, form: str) -> Iterator[Span]:
    at = text.find(form)
    while at >= 0:
        end = at + len(form)
        if len(form) >= _LEAST_PART or not _within_a_word(text, at, end):
            yield at, end
        at = text.find(form, end)


def _within_a_word(text: str, start: int, end: int) -> bool:
    return text[start - 1 : start].isalnum() or text[end : end + 1].isalnum()


@lru_cache(maxsize=1 << 10)
def _forms(secret: str) -> tuple[str, ...]:
    """Spellings that stand for ``secret`` in one piece, the longest first."""
    data = secret.encode("utf-8", "surrogatepass")
    forms = {secret[::-1], codecs.encode(secret, "rot13")}
    forms |= {data.hex(), data.hex().upper()}
    if len(secret) >= _LEAST_PART:
        forms |= {secret.upper(), secret.lower(), *_shifted(secret)}
        forms |= {base64.b85encode(data).decode(), base64.a85encode(data).decode()}
    for offset in range(3):
        part = _middle(
            base64.b64encode(bytes(offset) + data).decode(), offset, len(data), 6
        )
        forms |= {part, part.replace("+", "-").replace("/", "_")}
    for offset in range(5):
        forms.add(
            _middle(
                base64.b32encode(bytes(offset) + data).decode(), offset, len(data), 5
            )
        )
    forms -= {secret}
    enough = (form for form in forms if len(form) >= LEAST_SECRET)
    return tuple(sorted(enough, key=lambda form: (-len(form), form)))


def _shifted(secret: str) -> Iterator[str]:
    """Letters moved by a few places, and all signs by 47."""
    if (
        sum(letter.isalpha() and letter.isascii() for letter in secret)
        >= _LEAST_PART - 1
    ):
        for places in range(1, 26):
            yield secret.translate(_moved(places))
    yield "".join(
        chr(33 + (ord(c) - 33 + 47) % 94) if "!" <= c <= "~" else c for c in secret
    )


@lru_cache(maxsize=32)
def _moved(places: int) -> dict[int, str]:
    moved = {}
    for alphabet in (string.ascii_lowercase, string.ascii_uppercase):
        for at, letter in enumerate(alphabet):
            moved[ord(letter)] = alphabet[(at + places) % 26]
    return moved


def _stands_out(secret: str) -> bool:
    """Whether a secret is no word that a text may have as well: it is one wherever it
    stands."""
    mixed = any(c.isdigit() for c in secret) and any(c.isalpha() for c in secret)
    signed = any(not c.isalnum() and c not in "._-/:" for c in secret)
    return len(secret) >= _LEAST_OWN and (mixed or signed)


def _middle(encoded: str, offset: int, length: int, bits: int) -> str:
    """What of an encoding hangs on nothing but the bytes behind ``offset``."""
    first = -(-offset * 8 // bits)
    last = (offset + length) * 8 // bits
    return encoded[first:last]
