"""Opaque tokens: what nobody would have written by hand, and no engine's template
holds.

A text that leaves may hold words, identifiers, numbers, versions, paths and digests
that something calls a digest. Any other long token is a secret until shown otherwise,
whatever it is called. How surprising a token is, is the cost in bits of each of its
characters after the one before, under the pairs of letters of 50 MB of engines' sources
(vLLM, SGLang, LMDeploy, PyTorch, transformers), less what a word costs; the sum over
the most surprising stretch decides. Words and identifiers stay below 15 of it; twenty
random letters and digits reach 80.

Costs of single letters, with what follows a vowel, a consonant or a digit, do not do:
for the same recall they replace three times as many names in Python sources, for the
same names they miss 4.5 % of 20 random letters where pairs miss 0.3 %
(docs/lab/hardening.md)."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Final

Span = tuple[int, int]

# Half bits of a letter (column) after another one (row): separators, digits, a to z.
_LETTERS: Final = " 0abcdefghijklmnopqrstuvwxyz"
_PAIRS: Final = """
7b9a89a9ab9ica89b8e968cbchkj 33dcdbdchjgsjhchfemhefibheqq 9flb89jgaobnf687i9p775beicam
7e5ffg5geg7bl5eg8fpbah7lgnbp 8f6lej6il6ds89hk4dpbd7ahqogq 4h8ig83hin6lndeibdmd9b9kkdfn
4hag98dddldpj7a6fbd679iceafi 3f8ihh89hq5zp9hd6cjabc9rhfhx 3ibhih4ec98voaccdbo78cblnqfo
4g5lgi4dkn7zlhei8encd79kgqel dkbe87bd7olnj9846cld87nczds8 3j9gjk4iik9lhnhc8cmn6nbmmplo
3gfdjh3ghjbrlfiggdqg8ig89qir 5h6ggb66hl7uj8bi6eoi9abfkmds 5d59ih5jgj9yjbag67jiagbgihgr
5f9h98787iancfgc9anj76ablmhn 9mdc87ddckdeaa94b9m59b8ecflm 7d6lge5lhbawg8hi79p6a97hmmbx
4echfejelmgsa9gdiijfbj2g7mog 5i6iaa5gam8ped9a7elc99cfflbu 3ibmai5eha7ubffhaagg96bkfrfp
4f7jbg5fka6ooffe7am899bihjap bjabaa7bdqcsk777h8t884lkohom 685hfj4hep4kr8afafhlffnlslpk
5a5njd5mjc6uiei98hg8ciplgopp 3bcgah7dgi9lkcejj6mhe4ojjgft 3jgcfc6jknetnebaa4pga9elhnok
bi8kon0ophdsnfgleevmjokesnff
"""
_ROWS: Final = _PAIRS.split()
_CASE: Final = {"UU": 1.0, "Ul": 1.0, "lU": 2.5, "ll": 0.0, " U": 1.0, " l": 0.2}
_WORD_COST: Final = 4.8
_DIGIT_IN_WORD: Final = 3.0
_SYMBOL: Final = 2.0
_ENOUGH: Final = 27.0
"""Bits more than a word of the same length would have."""
_ONE_PIECE: Final = 18
_ENOUGH_OF_ONE: Final = (18.0, 10.0)
"""Of that many letters and digits in one piece, or of letters of one case alone, less
says it."""
_FALL: Final = 20.0
_LEAST: Final = 12

_RUN: Final = re.compile(r"[A-Za-z0-9_+/=.~%!@#$^&*-]{16,}")
_ESCAPE: Final = re.compile(r"[nrtbf0](?=[A-Za-z0-9])|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}")
# `name=value`, `&`, and what a URL writes for = & space quote comma: a token ends
# there.
_CUT: Final = re.compile(r"=(?=[^=&%])|&|%(?:3[aAdD]|2[0267cC]|0[aAdD])")
_PART: Final = re.compile(rf"\S{{{_LEAST},}}")
_PIECE: Final = re.compile(r"[A-Za-z0-9]+")
_REQUEST: Final = (
    r"(?:chatcmpl|cmpl|embd|embd_rerank|pool|score|rerank|classify|tokn|resp|msg"
    r"|modelperm"
    r"|generate-tokens|beam_search|chatcmpl-tool|request|req|rid)[-_]"
)
_SAFE: Final = re.compile(
    rf"""
      0x[0-9a-fA-F]{{4,16}}(?![A-Za-z0-9])
    | (?<![A-Za-z0-9])[0-9a-f]{{6,16}}(?![A-Za-z0-9])          # a digest's beginning
    | (?<=[+-])g[0-9a-f]{{7,12}}(?![A-Za-z0-9])                # a commit, as git describes it
    | (?<![A-Za-z0-9])src[0-9a-f]{{12}}(?![A-Za-z0-9])         # a source tree, in a version
    | (?<=/)e\d{{4}}(?:/f\d{{1,3}})?(?![A-Za-z0-9])             # of our own: an episode, a finding
    | (?<![A-Za-z0-9]){_REQUEST}[A-Za-z0-9]{{8,40}}(?:-[0-9a-f]{{4,12}}){{0,5}}
    | sha(?:1|256|384|512)[-=:][A-Za-z0-9+/_-]{{27,90}}={{0,2}}
    | (?<![A-Za-z0-9])_Z[A-Z]{{0,3}}\d[A-Za-z0-9_.]*           # a mangled C++ name
    | (?<![A-Za-z0-9])(?:(?:cp|py|pp)\d{{1,3}}|abi3|(?:many|musl)linux(?:_\d+_\d+|\d+)|x86_64
      |(?:mx|nv)?(?:bf|fp|int|uint|float)\d{{1,3}})(?![A-Za-z0-9])
    | (?<=[0-9])\+(?:g[0-9a-f]{{7,9}}\.)?(?:d\d+\.)?src[0-9a-f]{{12}}\.on\.(?=\d)  # a source tree
    | (?<![A-Za-z0-9])[A-Za-z]{{2,20}}/[A-Za-z]{{2,12}}\d{{0,2}}(?:\.\d{{1,2}})?  # ORG/NAME-8B
      (?:-\d{{1,4}}(?:\.\d{{1,2}})?[BM])(?:-A\d{{1,3}}B)?(?![A-Za-z0-9])
    | (?<![A-Za-z0-9.])\d\.\d+e[+-]?\d+(?![A-Za-z0-9])
    | (?<![A-Za-z0-9])(.)\1{{7,}}(?![A-Za-z0-9])
    """,
    re.VERBOSE,
)
_SYMBOLS: Final = "!@#$%^&*~"
_WORDS: Final = re.compile(r"[A-Z][a-z]{3,}|[a-z]{4,}")
_CONSTANT: Final = re.compile(r"[A-Z][A-Z0-9]{0,11}(?:_[A-Z0-9]{1,12}){2,}")
_HEX: Final = re.compile(
    r"(?:(?<![A-Za-z0-9])|(?<=%[0-9a-fA-F]{2}))(?:[0-9a-f]{17,}|[0-9A-F]{17,}"
    r"|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})(?![A-Za-z0-9])"
)
_DIGEST_WORD: Final = re.compile(
    r"hash|sha-?\d|digest|md5|blake|checksum|commit|revision|\brev\b|git|snapshots?/"
    r"|blobs?/|refs/"
    rf"""|tree/|etag|identifier|\bipc:|boot.id|"repr": "'?$|{_REQUEST}$""",
    re.IGNORECASE,
)
_IS_KEY: Final = re.compile(r"""\ [ *][\w./+~-]+\.\w|["']:[ ]None\b""")
"""Behind a digest: the file that ``sha256sum`` read; what an ordered set is printed
with."""
_DIGEST_NAME: Final = re.compile(
    r"(?:.*[_\W])?(?:key|hash(?:es)?|sha\d+|digests?|rid|u?u?id|identifier|commit"
    r"|revision|git"
    r"|checksum|etag|model|path|file|dir|version|case)s?|[a-z]*_?sha|",
    re.IGNORECASE,
)
DIGEST: Final = re.compile(r"""["']?[0-9a-fA-F]{16,128}(?:/\d{1,9})?[.…]*["']?""")
"""A digest, cut or not, or one with the number of a step."""


def opaque_spans(text: str) -> list[Span]:
    """Where opaque tokens stand in ``text``, in order."""
    spans: list[Span] = []
    for run in _RUN.finditer(text):
        start = run.start()
        if text[start - 1 : start] == "\\" and (escape := _ESCAPE.match(text, start)):
            start = escape.end()
        for begin, end, is_hex in _within(text[start : run.end()]):
            span = (start + begin, start + end)
            if not (is_hex and called_digest(text, *span)):
                spans.append(span)
    return spans


def is_opaque(token: str) -> bool:
    """Whether ``token`` by itself is one, whatever surrounds it."""
    return bool(opaque_spans(token))


def names_a_digest(name: str) -> bool:
    """Whether a field of that name may hold a digest; a text without a name may,
    too."""
    return bool(_DIGEST_NAME.fullmatch(name))


def called_digest(text: str, start: int, end: int) -> bool:
    """Whether ``text`` says that the hexadecimal token there is a digest or an id, not
    a secret."""
    line = max(text.rfind("\n", 0, start) + 1, start - 400)
    before = _HEX.sub("", text[line:start])[-48:]
    return bool(_DIGEST_WORD.search(before) or _IS_KEY.match(text, end))


@lru_cache(maxsize=1 << 16)
def _within(run: str) -> tuple[tuple[int, int, bool], ...]:
    """The opaque parts of a run of token characters; whether one is only so as
    hexadecimal."""
    found: list[tuple[int, int, bool]] = []
    for match in _HEX.finditer(run):
        digits = sum(c.isdigit() for c in match[0])
        if 0 < digits < len(match[0].replace("-", "")):
            found.append((*match.span(), True))
    masked = _SAFE.sub(_blank, _HEX.sub(_blank, run))
    # Else the = may be part of a password.
    if sum(symbol in run for symbol in _SYMBOLS) < 3:
        masked = _CUT.sub(_blank, masked)
    for part in _PART.finditer(masked):
        for begin, end in _hot(part[0]):
            found.append((part.start() + begin, part.start() + end, False))
    return tuple(sorted(found))


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def _hot(part: str) -> list[Span]:
    if _is_of_words(part):
        return []
    gains = [0.0] * len(part)
    whole: list[Span] = []
    for piece in _PIECE.finditer(part):
        word, begin, end = piece[0], *piece.span()
        mixed = not word.isalpha() and not word.isdigit()
        previous, total = " ", 0.0
        for at, letter in enumerate(word, begin):
            gains[at] = gain = _gain(previous, letter, mixed)
            total = max(0.0, total + gain)
            previous = letter
        if end - begin >= _ONE_PIECE and total >= _enough_of_one(word):
            whole.append((begin, end))
    for at, letter in enumerate(part):
        if letter in _SYMBOLS:
            gains[at] = _SYMBOL
    hot = _stretches(gains) + whole
    if sum(end - begin for begin, end in hot) * 10 >= len(part) * 6:
        end = len(part.rstrip(".!*"))
        return [(len(part) - len(part.lstrip("-=.")), end)]
    return sorted({_to_joints(part, *span) for span in hot})


def _enough_of_one(word: str) -> float:
    if word.isalpha():
        return _ENOUGH_OF_ONE[1] if word.islower() or word.isupper() else _ENOUGH
    return _ENOUGH_OF_ONE[0] if sum(c.isdigit() for c in word) >= 3 else _ENOUGH


def _is_of_words(part: str) -> bool:
    """Whether half of it is words, as in a class's name: GPT2LMHeadModel. Or
    NVML_FI_DEV_C0_L2."""
    if _CONSTANT.fullmatch(part):
        return True
    letters = sum(c.isalnum() for c in part)
    words = 0
    for match in _WORDS.finditer(part):
        word = match[0]
        gain = sum(_gain(a, b, False) for a, b in pairwise(word))
        words += len(word) if gain < 0 else 0
    return words * 2 >= letters


@lru_cache(maxsize=1 << 14)
def _gain(previous: str, letter: str, mixed: bool) -> float:
    """Bits of ``letter`` after ``previous`` beyond what one of a word has."""
    row, column = (_LETTERS.index(_folded(c)) for c in (previous, letter))
    bits = int(_ROWS[row][column], 36) / 2 - _WORD_COST
    if letter.isdigit():
        return bits + (_DIGIT_IN_WORD if mixed else 0.0)
    kind = "U" if previous.isupper() else "l" if previous.islower() else " "
    return bits + _CASE[kind + ("U" if letter.isupper() else "l")]


def _folded(letter: str) -> str:
    return "0" if letter.isdigit() else letter.lower()


def _stretches(gains: list[float]) -> list[Span]:
    """The stretches whose gains sum up to enough, each up to where it stops to gain."""
    spans: list[Span] = []
    total = best = 0.0
    begin = end = 0
    for at, gain in enumerate([*gains, -1e9]):
        if total <= 0.0:
            total, begin = 0.0, at
        total += gain
        if total > best:
            best, end = total, at + 1
        if total <= max(0.0, best - _FALL):
            if best >= _ENOUGH and end - begin >= _LEAST:
                spans.append((begin, end))
            total = best = 0.0
    return spans


def _to_joints(part: str, begin: int, end: int) -> Span:
    """Up to the dots and slashes around: what a path or a name is joined with."""
    while begin > 0 and part[begin - 1] not in "/.@":
        begin -= 1
    while end < len(part) and part[end] not in "/.@":
        end += 1
    return begin, end
