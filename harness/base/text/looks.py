"""What is private by its looks: vendors' keys, addresses of mail and prompts in any
text.

Every pattern either starts at a literal and takes a run of one character class, or has
bounded repetition, so that time is linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from mmrepro.base.text.named import values
from mmrepro.base.text.opaque import Span

# A token begins where no word goes on: also behind an escape (`\\n`, `%3D`) or a
# colour's end.
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
    # What any command may take; what one is known to take has ``commands``.
    re.compile(
        r"""((?<![\w-])(?:-u|--user|--proxy-user)[ =]["']?[\w.@+-]{1,64}:)""" + _HIDDEN
    ),
    re.compile(r"((?<=\s)-pass(?:in|out) pass:)" + _HIDDEN),
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
_KEY_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
DATA_URL: Final = re.compile(
    r"(data:[a-z]{1,20}/[A-Za-z0-9.+-]{1,80}"
    r"(?:;[a-z-]{1,20}=[A-Za-z0-9-]{1,40}){0,4};base64,)"
    r"([A-Za-z0-9+/_=%-]+)",
    re.IGNORECASE,
)
BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{56,}={0,2}")
# A whole UUID is one GPU's in the world; its beginning, which reports show, tells two
# apart.
GPU: Final = re.compile(
    r"\b(?:MIG-)?(?:GPU|MIG)-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b",
    re.IGNORECASE,
)
# What engines log of a request: vLLM's `prompt: '...'`, SGLang's and LMDeploy's token
# ids.
TOKEN_IDS: Final = re.compile(
    r"""\b((?:[a-z]{1,12}_){0,2}(?:token|input|output)_ids)"""
    r"""((?:\\{0,7}["'])?[ \t]{0,4}[:=][ \t]{0,4}(?:array\('\w', ?)?[\[(])([\d, \t\[\]]{12,})"""
)

_AT: Final = re.compile(r"@|%40|&#(?:64|x40);|\\u0040|\\x40")
_LOCAL: Final = re.compile(r"[\w.%+-]")
_DOMAIN: Final = re.compile(
    r"(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])"
)


def key_blocks(text: str) -> Iterator[Span]:
    """Where private keys stand; one without an end goes to the end of the text."""
    position = 0
    while begin := _KEY_BEGIN.search(text, position):
        end = _KEY_END.search(text, begin.end())
        position = end.end() if end else len(text)
        yield begin.start(), position


def emails(text: str) -> Iterator[Span]:
    """Where addresses of people stand."""
    position = 0
    for at in _AT.finditer(text):
        start = at.start()
        while start > max(position, at.start() - 64) and _LOCAL.match(text[start - 1]):
            start -= 1
        domain = _DOMAIN.match(text, at.end()) if start < at.start() else None
        if domain:
            position = domain.end()
            yield start, position


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


# ------------------------------------------------------------------ what users wrote

_LEAST: Final = 6

_SAID_HINT: Final = re.compile(
    r"text|content|message|input|output|quer|image_|reason|complet|answer|respon"
    r"|question|instruct"
    r"|argument|document|transcript|caption|utterance"
)
_SAID: Final = re.compile(
    r"(?:(?:input|output|generated|prompt|user|system|full|delta|raw)_)?"
    r"(?:texts?|contents?|messages?|inputs?|outputs?|query|queries|reasoning"
    r"|reasoning_content"
    r"|completions?|answers?|responses?|questions?|instructions?|arguments|documents?"
    r"|transcripts?"
    r"|captions?|utterances?|image_data|image_url)"
)
_PROMPT_HINT: Final = re.compile(r"prompt|output|generated")
_PROMPT: Final = re.compile(
    r"(?:[a-z]{1,12}_)?prompts?|outputs?|(?:output|generated)_texts?", re.IGNORECASE
)


def conversation(text: str) -> Iterator[Span]:
    """What users wrote and models answered, in quotes behind a name such as
    ``content``."""
    return _quoted(text, _SAID_HINT, _SAID)


def prompts(text: str) -> Iterator[Span]:
    """The same behind the few names that an engine's own log has for it."""
    return _quoted(text, _PROMPT_HINT, _PROMPT)


def _quoted(text: str, hint: re.Pattern[str], name: re.Pattern[str]) -> Iterator[Span]:
    for value in values(text, hint, lambda n: bool(name.fullmatch(n)), quoted=True):
        if len(text[value.start : value.end].strip()) >= _LEAST:
            yield value.start, value.end
