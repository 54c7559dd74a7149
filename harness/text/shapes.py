"""What is private by its looks alone: vendors' tokens, keys, addresses, encoded bytes, and opaque
tokens, which nobody would have written by hand and no engine's template holds.

Every pattern either starts at a literal and takes a run of one character class, or has bounded
repetition, so that time is linear in the text.

A text that leaves may hold words, identifiers, numbers, versions, paths and digests that something
calls a digest. Any other long token is a secret until shown otherwise, whatever it is called. How
surprising a token is, is the cost in bits of each of its characters after the one before, under the
pairs of letters of 50 MB of engines' sources (vLLM, SGLang, LMDeploy, PyTorch, transformers), less
what a word costs; the sum over the most surprising stretch decides. Words and identifiers stay
below 15 of it; twenty random letters and digits reach 80.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

# A token begins where no word goes on: also behind an escape (`\\n`, `%3D`) or a colour's end.
_BEGIN: Final = (
    r"(?:(?<![A-Za-z0-9])|(?<=\\[nrtbf0])|(?<=\\x[0-9a-fA-F]{2})|(?<=\\u[0-9a-fA-F]{4})"
    r"|(?<=%[0-9A-Fa-f]{2})|(?<=\[\dm)|(?<=\[\d\dm))"
)
TOKENS: Final = re.compile(
    _BEGIN
    + r"""(?:
      sk-[A-Za-z0-9_-]{12,}                                    # OpenAI, Anthropic and alike
    | (?:sk|rk|pk|whsec|sess)_(?:live_|test_)?[A-Za-z0-9]{16,}  # Stripe
    | hf_[A-Za-z0-9]{16,} | api_org_[A-Za-z0-9]{16,}
    | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_[A-Za-z0-9_]{16,}
    | gl(?:pat|rt|dt|cbt|ptt|ft|soat|agent|imt|ffct|oas)-[A-Za-z0-9_-]{16,}
    | xox[abceoprs]-[A-Za-z0-9-]{10,} | xapp-[A-Za-z0-9-]{10,}
    | (?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}
    | AIza[A-Za-z0-9_-]{30,} | ya29\.[A-Za-z0-9_.-]{12,} | GOCSPX-[A-Za-z0-9_-]{12,}
    | 1//0[A-Za-z0-9_-]{16,}
    | nvapi-[A-Za-z0-9_-]{16,} | xai-[A-Za-z0-9]{16,} | gsk_[A-Za-z0-9]{16,} | r8_[A-Za-z0-9]{16,}
    | pplx-[A-Za-z0-9]{16,} | fw_[A-Za-z0-9]{16,} | tgp_v1_[A-Za-z0-9_-]{16,}
    | jina_[A-Za-z0-9_]{16,}
    | npm_[A-Za-z0-9]{16,} | pypi-[A-Za-z0-9_-]{16,} | rubygems_[a-f0-9]{16,}
    | dckr_[a-z]{2,4}_[A-Za-z0-9_-]{12,} | dop_v1_[a-f0-9]{16,} | do[or]_v1_[a-f0-9]{16,}
    | SG\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]{10,})? | dapi[a-f0-9]{16,}(?:-\d)?
    | hv[sbr]\.[A-Za-z0-9_-]{12,} | key-[a-f0-9]{32} | [AS][CK][a-f0-9]{32}
    | shp(?:at|ss|ca|pa)_[A-Fa-f0-9]{16,} | sq0[a-z]{3}-[A-Za-z0-9_-]{16,} | EAA[A-Za-z0-9]{24,}
    | lin_api_[A-Za-z0-9]{16,} | ntn_[A-Za-z0-9]{16,} | secret_[A-Za-z0-9]{24,}
    | figd_[A-Za-z0-9_-]{16,}
    | gl(?:sa|c)_[A-Za-z0-9_+/=]{16,} | sntry[su]_[A-Za-z0-9_+/=]{16,} | dt0[cs]01\.[A-Z0-9.]{20,}
    | NR(?:AK|JS|II|RA)-[A-Za-z0-9]{16,} | PMAK-[a-f0-9]{16,}(?:-[a-f0-9]{16,})? | pul-[a-f0-9]{16,}
    | sbp_[a-f0-9]{16,} | sb_(?:secret|publishable)_[A-Za-z0-9_-]{16,} | ph[cx]_[A-Za-z0-9]{16,}
    | AT(?:ATT3x|CTT3x|BB)[A-Za-z0-9_=-]{16,} | xkeysib-[a-f0-9]{16,}(?:-[A-Za-z0-9]{1,24})?
    | CFPAT-[A-Za-z0-9_-]{16,} | tvly-[A-Za-z0-9-]{16,} | LTAI[A-Za-z0-9]{12,}
    | AKID[A-Za-z0-9]{16,}
    | AGE-SECRET-KEY-1[A-Z0-9]{20,} | \d{8,10}:AA[A-Za-z0-9_-]{24,}                # Telegram
    | eyJ[A-Za-z0-9_-]{5,512}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*  # JSON Web Token
    )""",
    re.VERBOSE,
)
BEARER: Final = re.compile(
    r"\b(bearer(?:[ \t]{1,4}|%20|\+))([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE
)
SCHEME: Final = re.compile(
    r"(?:bearer|basic|token|apikey|negotiate|digest)(?:(?:[ \t]|%20)+|$)", re.IGNORECASE
)
_HIDDEN: Final = r"""(?!\d{1,9}(?![^\s"'`]))([^\s"'`]{4,256})"""
SPOKEN: Final = (
    # What commands take without a name that says so.
    re.compile(r"""((?<![\w-])(?:-u|--user|--proxy-user)[ =]["']?[\w.@+-]{1,64}:)""" + _HIDDEN),
    re.compile(
        r"(\b(?:mysql\w{0,12}|mariadb\w{0,12}|mongo\w{0,12}|sshpass|(?:docker|podman|skopeo) login)"
        r"(?: [^\s|;&]{1,64}){0,8}? -p[ =]?)" + _HIDDEN
    ),
    # What people write: "the password is x1y2z3". It is a secret if no word of a language is.
    re.compile(
        r"(\b(?:pass(?:word|wd|phrase)|secret|api[ _-]?key)(?: (?:for|of) [\w.@'-]{1,40})?"
        r"(?: ?(?:is|was|:))? {1,4})"
        r"""((?=[^\s"'`,;]{0,64}\d)(?=[^\s"'`,;]{0,64}[A-Za-z])[^\s"'`,;()\[\]/=]{6,256})""",
        re.IGNORECASE,
    ),
    re.compile(r"""(\bSecretStr\(["'])(?!\*+["'])([^"'\n]{1,256})(?=["']\))"""),
)
"""What stands before a secret, and the secret."""
WORD: Final = re.compile(r"""[^\s"',}]+""")
# A user's part has no slash; of a store's address, where no path has an @, it may.
URL: Final = re.compile(
    r"""(://)([^\s/?#"'<>\[\]]{1,2048}|[^\s/?#"'<>\[\]:@]{0,256}:[^\s/"'<>]{1,512})(?=@[^\s/?#@])"""
)
STORE_URL: Final = re.compile(
    r"""(\b(?!https?:|file:|git)[a-z][a-z0-9+.-]{1,20}://)([^\s/"'<>:@]{0,256}:[^\s"'<>]{1,512})"""
    r"(?=@[^\s/?#@])",
    re.IGNORECASE,
)
KEY_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
DATA_URL: Final = re.compile(
    r"(data:[a-z]{1,20}/[A-Za-z0-9.+-]{1,80}(?:;[a-z-]{1,20}=[A-Za-z0-9-]{1,40}){0,4};base64,)"
    r"([A-Za-z0-9+/_=%-]+)",
    re.IGNORECASE,
)
BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{56,}={0,2}")
# A whole UUID is one GPU's in the world; its beginning, which reports show, tells two apart.
GPU: Final = re.compile(
    r"\b(?:MIG-)?(?:GPU|MIG)-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE
)
HOMES: Final = re.compile(r"""([\\/](?:home|Users)[\\/]{1,2})([^\s\\/"'`:;,<>()\[\]{}|&*?]+)""")
# What engines log of a request: vLLM's `prompt: '...'`, SGLang's and LMDeploy's token ids.
TOKEN_IDS: Final = re.compile(
    r"""\b((?:[a-z]{1,12}_){0,2}(?:token|input|output)_ids)"""
    r"""((?:\\{0,7}["'])?[ \t]{0,4}[:=][ \t]{0,4}(?:array\('\w', ?)?[\[(])([\d, \t\[\]]{12,})"""
)

_LOCAL: Final = re.compile(r"[\w.%+-]")
_DOMAIN: Final = re.compile(r"(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])")


def key_blocks(text: str) -> Iterator[Span]:
    """Where private keys stand; one without an end goes to the end of the text."""
    position = 0
    while begin := KEY_BEGIN.search(text, position):
        end = KEY_END.search(text, begin.end())
        position = end.end() if end else len(text)
        yield begin.start(), position


def emails(text: str) -> Iterator[Span]:
    """Where addresses of people stand."""
    position = 0
    at = text.find("@")
    while at >= 0:
        start = at
        while start > max(position, at - 64) and _LOCAL.match(text[start - 1]):
            start -= 1
        domain = _DOMAIN.match(text, at + 1) if start < at else None
        if domain:
            position = domain.end()
            yield start, position
        at = text.find("@", max(at + 1, position))


def is_base64(run: str) -> bool:
    """Encoded bytes, told from hex digests, paths, identifiers and rulers of dashes."""
    upper = sum("A" <= c <= "Z" for c in run)
    lower = sum("a" <= c <= "z" for c in run)
    if run.startswith("_Z"):  # a mangled C++ name
        return False
    if len(run) >= 160:
        return upper >= 8 and lower >= 8
    digits = sum(c.isdigit() for c in run)
    words = run.count("/") + run.count("_") + run.count("-")
    return min(upper, lower) >= 8 and digits >= 3 and words * 10 < len(run)


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
ENOUGH: Final = 27.0
"""Bits more than a word of the same length would have."""
_ONE_PIECE: Final = 18
_ENOUGH_OF_ONE: Final = (18.0, 10.0)
"""Of that many letters and digits in one piece, or of letters of one case alone, less says it."""
_FALL: Final = 20.0
_LEAST: Final = 12

_RUN: Final = re.compile(r"[A-Za-z0-9_+/=.~%!@#$^&*-]{16,}")
_ESCAPE: Final = re.compile(r"[nrtbf0](?=[A-Za-z0-9])|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}")
# `name=value`, `&`, and what a URL writes for = & space quote comma: a token ends there.
_CUT: Final = re.compile(r"=(?=[^=&%])|&|%(?:3[aAdD]|2[0267cC]|0[aAdD])")
_PART: Final = re.compile(rf"\S{{{_LEAST},}}")
_PIECE: Final = re.compile(r"[A-Za-z0-9]+")
_REQUEST: Final = (
    r"(?:chatcmpl|cmpl|embd|embd_rerank|pool|score|rerank|classify|tokn|resp|msg|modelperm"
    r"|generate-tokens|beam_search|chatcmpl-tool|request|req|rid)[-_]"
)
_SAFE: Final = re.compile(
    rf"""
      0x[0-9a-fA-F]{{4,16}}(?![A-Za-z0-9])
    | (?<![A-Za-z0-9])[0-9a-f]{{6,16}}(?![A-Za-z0-9])          # a digest's beginning
    | (?<![A-Za-z0-9]){_REQUEST}[A-Za-z0-9]{{8,40}}(?:-[0-9a-f]{{4,12}}){{0,5}}
    | sha(?:1|256|384|512)[-=:][A-Za-z0-9+/_-]{{27,90}}={{0,2}}
    | (?<![A-Za-z0-9])_Z[A-Z]{{0,3}}\d[A-Za-z0-9_.]*           # a mangled C++ name
    | (?<![A-Za-z0-9])(?:(?:cp|py|pp)\d{{1,3}}|abi3|(?:many|musl)linux(?:_\d+_\d+|\d+)|x86_64
      |(?:mx|nv)?(?:bf|fp|int|uint|float)\d{{1,3}})(?![A-Za-z0-9])
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
    r"hash|sha-?\d|digest|md5|blake|checksum|commit|revision|\brev\b|git|snapshots?/|blobs?/|refs/"
    rf"""|tree/|etag|identifier|\bipc:|boot.id|"repr": "'?$|{_REQUEST}$""",
    re.IGNORECASE,
)
_IS_KEY: Final = re.compile(r"""\ [ *][\w./+~-]+\.\w|["']:[ ]None\b""")
"""Behind a digest: the file that ``sha256sum`` read; what an ordered set is printed with."""
_DIGEST_NAME: Final = re.compile(
    r"(?:.*[_\W])?(?:key|hash(?:es)?|sha\d+|digests?|rid|u?u?id|identifier|commit|revision|git"
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
    """Whether a field of that name may hold a digest; a text without a name may, too."""
    return bool(_DIGEST_NAME.fullmatch(name))


def called_digest(text: str, start: int, end: int) -> bool:
    """Whether ``text`` says that the hexadecimal token there is a digest or an id, not a secret."""
    line = max(text.rfind("\n", 0, start) + 1, start - 400)
    before = _HEX.sub("", text[line:start])[-48:]
    return bool(_DIGEST_WORD.search(before) or _IS_KEY.match(text, end))


@lru_cache(maxsize=1 << 16)
def _within(run: str) -> tuple[tuple[int, int, bool], ...]:
    """The opaque parts of a run of token characters; whether one is only so as hexadecimal."""
    found: list[tuple[int, int, bool]] = []
    for match in _HEX.finditer(run):
        digits = sum(c.isdigit() for c in match[0])
        if 0 < digits < len(match[0].replace("-", "")):
            found.append((*match.span(), True))
    masked = _SAFE.sub(_blank, _HEX.sub(_blank, run))
    if sum(symbol in run for symbol in _SYMBOLS) < 3:  # else the = may be part of a password
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
        return _ENOUGH_OF_ONE[1] if word.islower() or word.isupper() else ENOUGH
    return _ENOUGH_OF_ONE[0] if sum(c.isdigit() for c in word) >= 3 else ENOUGH


def _is_of_words(part: str) -> bool:
    """Whether half of it is words, as in a class's name: GPT2LMHeadModel. Or NVML_FI_DEV_C0_L2."""
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
            if best >= ENOUGH and end - begin >= _LEAST:
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
