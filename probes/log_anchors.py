"""What a long log is searched for, derived from the expressions themselves.

A log of gigabytes cannot be tried line by line. From each expression follows a looser
one that Hyperscan finds in one pass with all others: its words in their order, with
anything between them. Only lines that hold those words are read and tried. A second
list of words beside the expressions would fall behind them: there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final

import hyperscan
from mmrepro.probes.data import LogPattern

# The parser of ``re`` has no stubs: an expression is read as Python itself reads it.
sre: Any = import_module("re._constants")
sre_parse: Any = import_module("re._parser")

MIN_CHARS: Final = 3
"""Words of fewer characters stand in too many lines."""
LONG_CHARS: Final = 8
"""A word of so many characters is looked for alone."""
MOST_WORDS: Final = 24
"""Of one place in an expression, where branches multiply."""
MOST_CHARS_OF_A_SET: Final = 4
ORDINARY: Final = (
    '(APIServer pid=71) INFO:     127.0.0.1:4711 - "POST /v1/chat/completions HTTP/1.1"'
    ' 200 OK "POST /v1/completions HTTP/1.1" 200 OK "GET /v1/models HTTP/1.1" 200 OK'
    ' "GET /health HTTP/1.1" 200 OK "GET /metrics HTTP/1.1" 200 OK'
)
"""What an HTTP server logs of each request: its words alone tell nothing."""
_COLOURS_BETWEEN: Final = ") "
"""Around a prefix there may be colours: a word does not go over its end."""

Pattern = re.Pattern[str] | str


class Chain(bytes):
    """Several words in their order, as an expression of Hyperscan."""


Anchor = bytes
"""A plain word, or a :class:`Chain`."""


def anchors_of(pattern: Pattern) -> tuple[Anchor, ...] | None:
    """What each line holds that ``pattern`` matches: one of these; None: every line has
    to be tried."""
    if isinstance(pattern, LogPattern) and pattern.texts:
        return tuple(text.encode() for text in pattern.texts)
    compiled = re.compile(pattern)
    if compiled.flags & (re.IGNORECASE | re.VERBOSE):
        return None
    return _anchors(compiled.pattern, compiled.flags)


def words_of(pattern: Pattern) -> list[str]:
    """Plain words of which each line holds one that ``pattern`` matches; []: there are
    none."""
    compiled = re.compile(pattern)
    found: list[str] = []
    for alternative in _ways(compiled.pattern, compiled.flags):
        best = _best(alternative.places())
        if best is None:
            return []
        found += best
    return found


def _ways(expression: str, flags: int) -> Iterator[_Words]:
    for items in _alternatives(list(sre_parse.parse(expression, flags))):
        yield _written(items)


@lru_cache(maxsize=4096)
def _anchors(expression: str, flags: int) -> tuple[Anchor, ...] | None:
    found: list[Anchor] = []
    for words in _ways(expression, flags):
        anchors = words.anchors()
        if anchors is None:
            return None
        found += anchors
    return tuple(dict.fromkeys(found))


def _alternatives(items: list[Any]) -> Iterator[list[Any]]:
    """The ways through the first branch at the top.

    The parser takes what branches begin with in common out of them."""
    for at, (op, value) in enumerate(items):
        if op is sre.BRANCH:
            for branch in value[1]:
                yield [*items[:at], *branch, *items[at + 1 :]]
            return
    yield items


class _Words:
    """The words of an expression, in its order: of each place the ways in which it can
    be written. The method is that of RE2's prefilter."""

    def __init__(self) -> None:
        self._places: list[list[str]] = []
        self._now = [""]
        self._exact = True

    def anchors(self) -> list[Anchor] | None:
        """The best place's words; where these are short, or stand in ordinary lines,
        all places' in their order; None: there are none."""
        places = self.places()
        best = _best(places)
        if best is None:
            return None
        telling = min(map(len, best)) >= LONG_CHARS and _is_rare(best)
        if telling or len(places) == 1:
            return [word.encode() for word in best]
        chain = [b"|".join(map(_escaped, words)) for words in places]
        return [Chain(b".*".join(b"(?:%s)" % words for words in chain))]

    def add(self, items: Iterable[Any]) -> None:
        for op, value in items:
            self._add(op, value)

    def _add(self, op: Any, value: Any) -> None:
        if op is sre.LITERAL:
            self._literal(value)
        elif op is sre.IN and (chars := _few(value)):
            self._extend(chars)
        elif op in (sre.AT, sre.ASSERT, sre.ASSERT_NOT):
            pass  # what it asks for is asked again of the line itself
        elif op is sre.SUBPATTERN and not value[1] and not value[2]:
            self.add(value[3])
        elif op is sre.ATOMIC_GROUP:
            self.add(value)
        elif op is sre.BRANCH:
            self._branch(value[1])
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            self._repeat(*value)
        else:
            self._gap()

    def _literal(self, code: int) -> None:
        if 0xD800 <= code <= 0xDFFF:  # no UTF-8 has it
            self._gap()
            return
        if any(word[-1:] + chr(code) == _COLOURS_BETWEEN for word in self._now):
            self._gap()
        self._extend([chr(code)])

    def _extend(self, ways: Sequence[str]) -> None:
        """Write one of ``ways`` behind what is there."""
        if len(self._now) * len(ways) > MOST_WORDS:
            self._end_place()
        written = [before + way for before in self._now for way in ways]
        self._now = list(dict.fromkeys(written))

    def _gap(self) -> None:
        self._exact = False
        self._end_place()

    def _end_place(self) -> None:
        if all(self._now):
            self._places.append(self._now)
        self._now = [""]

    def places(self) -> list[list[str]]:
        """Each place's words, when all of the expression is added."""
        self._end_place()
        return self._places

    def _branch(self, branches: Sequence[Any]) -> None:
        inner = [_written(branch) for branch in branches]
        if all(words._exact and not words._places for words in inner):
            ways = [way for words in inner for way in words._now]
            if len(ways) <= MOST_WORDS:
                self._extend(list(dict.fromkeys(ways)))
                return
        self._gap()
        best = [_best(words.places()) for words in inner]
        needed = [words for words in best if words is not None]
        if len(needed) == len(best):
            self._places.append([word for words in needed for word in words])

    def _repeat(self, least: int, most: Any, item: Any) -> None:
        inner = _written(item)
        exact = inner._exact and not inner._places
        if least == 0 and most == 1 and exact:
            self._extend(["", *inner._now])
            return
        if least > 0:
            self.add(item)
        if least != 1 or most != 1:
            self._gap()


def _escaped(word: str) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in word.encode())


def _written(items: Iterable[Any]) -> _Words:
    words = _Words()
    words.add(items)
    return words


def _best(places: Sequence[Sequence[str]]) -> Sequence[str] | None:
    """The place whose words are the rarest, by their length; None: all are too short,
    or too many."""
    usable = [
        words
        for words in places
        if min(map(len, words)) >= MIN_CHARS and len(words) <= 4 * MOST_WORDS
    ]
    return max(usable, key=_rarity, default=None)


def _rarity(words: Sequence[str]) -> tuple[bool, int, int]:
    return _is_rare(words), min(map(len, words)), -len(words)


def _is_rare(words: Sequence[str]) -> bool:
    return not any(word in ORDINARY for word in words)


def _few(members: Sequence[Any]) -> list[str]:
    """The characters of a set where they are few and plain; []: any may stand there."""
    chars = []
    for op, value in members:
        if op is not sre.LITERAL or not 0x20 <= value <= 0x7E:
            return []
        chars.append(chr(value))
    return chars if len(chars) <= MOST_CHARS_OF_A_SET else []


@lru_cache(maxsize=32)
def _database(anchors: tuple[Anchor, ...]) -> hyperscan.Database:
    expressions = [
        anchor if isinstance(anchor, Chain) else _escaped(anchor.decode())
        for anchor in anchors
    ]
    database = hyperscan.Database()
    database.compile(
        expressions=expressions,
        ids=list(range(len(anchors))),
        elements=len(anchors),
        flags=[0] * len(anchors),
    )
    return database


class Finder:
    """Finds many anchors in one pass (Hyperscan).

    Measured on 2 GiB with eight texts: 0.7 s; one expression of Python's ``re`` over
    all of them takes 10 s, ``bytes.find`` for each 4.4 s. A diagnosis looks for some
    hundred."""

    def __init__(self, anchors: Iterable[Anchor]) -> None:
        self._anchors = tuple(dict.fromkeys(anchors))
        self._database = _database(self._anchors)
        self._scratch = hyperscan.Scratch(self._database)

    def scan(self, data: bytes) -> Mapping[bytes, list[int]]:
        """For each anchor the offsets of the last byte of its occurrences."""
        found: list[list[int]] = [[] for _ in self._anchors]

        def note(
            row: int, _start: int, end: int, _flags: int, _context: object
        ) -> None:
            found[row].append(end - 1)

        self._database.scan(data, match_event_handler=note, scratch=self._scratch)
        return dict(zip(self._anchors, found, strict=True))
