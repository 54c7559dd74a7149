"""What users wrote and where they called from, as engines and servers log it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from mmrepro.text.shapes import Span
from mmrepro.text.values import values

_LEAST: Final = 6

_SAID_HINT: Final = re.compile(
    r"text|content|message|input|output|quer|image_|reason|complet|answer|respon|question|instruct"
    r"|argument|document|transcript|caption|utterance"
)
_SAID: Final = re.compile(
    r"(?:(?:input|output|generated|prompt|user|system|full|delta|raw)_)?"
    r"(?:texts?|contents?|messages?|inputs?|outputs?|query|queries|reasoning|reasoning_content"
    r"|completions?|answers?|responses?|questions?|instructions?|arguments|documents?|transcripts?"
    r"|captions?|utterances?|image_data|image_url)"
)
_PROMPT_HINT: Final = re.compile(r"prompt|output|generated", re.IGNORECASE)
_PROMPT: Final = re.compile(
    r"(?:[a-z]{1,12}_)?prompts?|outputs?|(?:output|generated)_texts?", re.IGNORECASE
)
_CALLER_HINT: Final = re.compile(r"forwarded|real-?ip|client-?ip|connecting-?ip|remote.?addr", re.I)
_CALLER: Final = re.compile(
    r"(?:x-)?(?:original-)?forwarded(?:-for)?|x-real-ip|(?:true|x-cluster|x|fastly|fly)-client-ip"
    r"|(?:cf|do)-connecting-ip|remote_addr|x-envoy-external-address",
    re.IGNORECASE,
)
_IN_HEADER: Final = re.compile(r"[0-9A-Fa-f:.]{3,56}")
_V4: Final = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)")
_V6: Final = re.compile(r"(?<![\w:.])[0-9A-Fa-f:.]{4,56}(?:%\w{1,15})?(?![\w:])")
_PORT: Final = re.compile(r""":\d{2,5}\b|["']\s?,\s?(?:port=)?\d{1,5}\)?|["']?\]?\s-\s["\[-]""")
_CALLED: Final = re.compile(
    r"(?:client|peer|remote|host|addr(?:ess)?|\bip|from|caller|user|://|@)\W{0,6}\Z", re.IGNORECASE
)


def said(text: str) -> Iterator[Span]:
    """What users wrote and models answered, in quotes behind a name such as ``content``."""
    return _quoted(text, _SAID_HINT, _SAID)


def prompts(text: str) -> Iterator[Span]:
    """The same behind the few names that an engine's own log has for it."""
    return _quoted(text, _PROMPT_HINT, _PROMPT)


def _quoted(text: str, hint: re.Pattern[str], name: re.Pattern[str]) -> Iterator[Span]:
    for value in values(text, hint, lambda n: bool(name.fullmatch(n)), quoted=True):
        if len(text[value.start : value.end].strip()) >= _LEAST:
            yield value.start, value.end


def callers(text: str) -> Iterator[Span]:
    """Addresses that requests came from; this machine's own stay."""
    found = [*_forwarded(text), *_version_4(text), *_version_6(text)]
    end = 0
    for span in sorted(found, key=lambda s: (s[0], -s[1])):
        if span[0] >= end:
            yield span
            end = span[1]


def _forwarded(text: str) -> Iterator[Span]:
    for value in values(
        text, _CALLER_HINT, lambda n: bool(_CALLER.fullmatch(n)), whole_line=lambda _: True
    ):
        for match in _IN_HEADER.finditer(text, value.start, value.end):
            length = _foreign(match[0])
            if length:
                yield match.start(), match.start() + length


def _version_4(text: str) -> Iterator[Span]:
    for match in _V4.finditer(text):
        # A package's version may have four numbers as well.
        called = _PORT.match(text, match.end()) or _CALLED.search(
            text[max(0, match.start() - 24) : match.start()]
        )
        if called and _foreign(match[0]):
            yield match.span()


def _version_6(text: str) -> Iterator[Span]:
    if "::" not in text and text.count(":") < 5:
        return
    for match in _V6.finditer(text):
        if match[0].count(":") >= 2 and len(match[0]) >= 7:
            length = _foreign(match[0])
            if length:
                yield match.start(), match.start() + length


def _foreign(shown: str) -> int:
    """The length of the address of another machine that ``shown`` begins with; else 0."""
    address = shown.rstrip(":.")
    host, colon, port = address.rpartition(":")
    # uvicorn writes an IPv6 caller without brackets: ::1:51234
    for text in (host, address) if colon and port.isdigit() and len(port) > 1 else (address,):
        try:
            parsed = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            continue
        inner = getattr(parsed, "ipv4_mapped", None) or parsed
        return 0 if inner.is_loopback or inner.is_unspecified else len(text)
    return 0
