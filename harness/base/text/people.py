"""Whose it is: users, their machines, their numbers and their folders in any text.

Time is linear in the text, as in ``looks``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from mmrepro.base.text.named import Value, values, words_of
from mmrepro.base.text.opaque import Span

_Private = tuple[int, int, str]
"""Begin, end, and what its placeholder is called."""


def private(text: str) -> Iterator[_Private]:
    """Where something of a person or of a machine of theirs stands, in order, none in
    another."""
    found: list[_Private] = []
    for kind, spans in _FINDERS:
        found += [(*span, kind) for span in spans(text)]
    end = 0
    for start, stop, kind in sorted(found, key=lambda one: (one[0], -one[1])):
        if start >= end:
            yield start, stop, kind
            end = stop


# ------------------------------------------------------------------ users

_PEOPLES: Final = re.compile(
    r"""[\\/](?i:homes?|users?|people|staff|students?|(?P<store>scratch|lustre|gpfs|beegfs))[\\/]{1,2}([^\s\\/"'`:;,<>()\[\]{}|&*?#=@]+)"""
)
_NOBODY: Final = re.compile(
    r"(?:root|nobody|nobodys?|none|null|nil|true|false|users?|assistant|system|tool"
    r"|developer|admin"
    r"|anonymous|default|unknown|all|any|me|self|str|string|public|shared|ubuntu"
    r"|[\W_]*(?:\d{1,6}[\W_]*){0,2}"
    r"|[\w.-]+\.(?:py|cc?|cpp|cuh?|h|rs|js|ts|json|ya?ml|toml|html?))",
    re.IGNORECASE,
)
_TILDE: Final = re.compile(
    r"""(?<![\w/.~\\])~([a-z_][a-z0-9_.-]{0,31})(?=[/\s"'`:;,)\]]|\Z)"""
)
_USER_HINT: Final = re.compile(
    r"user|login|logname|owner|author|account|tenant|customer"
)
_USER: Final = re.compile(
    r"(?:[A-Za-z0-9_.-]{0,40}?[_.-])?(?:[a-z]{0,8}user|user_?(?:name|id)|login|logname"
    r"|owner|author"
    r"|account|tenant|customer)(?:[_-]?(?:name|id))?",
    re.IGNORECASE,
)
_SSH: Final = re.compile(
    r"\b(?:ssh|scp|sftp|rsync|mosh|sshfs|ssh-copy-id|sshd?\[\d+\]:)(?=\s)"
)
_AT: Final = re.compile(
    r"(?<![\w.@/-])([A-Za-z_][\w.-]{0,31})@([A-Za-z0-9][\w.-]{0,253})"
)
_PROMPT: Final = re.compile(
    r"(?<![\w.@/-])([a-z_][\w.-]{0,31})@([\w.-]{1,64})(?=:[~/]| ~)"
)
_SPOKEN: Final = re.compile(
    r"(?:(?<=\s)-[lu] |\bsu - |\bsudo: +|\b(?:Accepted"
    r"|Failed) \w{1,20} for (?:invalid user )?"
    r"|\b(?:opened|closed) for user |\b[Ii]nvalid user |\bDisconnected from (?:user )?"
    r"|\bUser |\blogged in as )([A-Za-z_][\w.-]{0,31})"
)
_IS: Final = re.compile(
    r"\b[ug]id=\d{1,10}\(([^()\s]{1,64})\)|\b[Ll]ogged in as:? ([A-Za-z_][\w.-]{0,63})"
    r"|\blogin \S{1,64} password (\S{1,128})"
)
"""What id, a service that was logged in to, and a netrc file say."""
_SYSTEM_LOG: Final = re.compile(
    r"\b(?:ssh|sshd|sudo|su|pam_\w+|login|systemd-logind)\b"
)
_SPOKEN_CHARS: Final = 400


def _users(text: str) -> Iterator[Span]:
    for match in _PEOPLES.finditer(text):
        name, of_all = match[match.lastindex or 1], match["store"] is not None
        if not (_NOBODY.fullmatch(name) or (of_all and _is_usual(name))):
            yield match.span(match.lastindex or 1)
    if "~" in text:
        yield from (match.span(1) for match in _TILDE.finditer(text))
    for value in values(text, _USER_HINT, lambda name: bool(_USER.fullmatch(name))):
        if _in_a_row(text, value):
            continue
        shown = text[value.start : value.end].strip(" \t\"'")
        means = value.assigned or not value.name.lower().endswith(
            ("account", "owner", "author")
        )
        if (
            means
            and shown
            and shown[:1] not in "<$%{*"
            and not _NOBODY.fullmatch(shown)
        ):
            yield value.start, value.end
    yield from (match.span(1) for match in _logins(text))
    yield from (match.span(1) for match in _PROMPT.finditer(text))
    for match in _IS.finditer(text):
        name = match[match.lastindex or 1]
        if not _NOBODY.fullmatch(name):
            yield match.span(match.lastindex or 1)
    end = 0
    while found := _SYSTEM_LOG.search(text, end):
        end = text.find("\n", found.end())
        end = min(end if end >= 0 else len(text), found.end() + _SPOKEN_CHARS)
        for match in _SPOKEN.finditer(text, found.start(), end):
            if not _NOBODY.fullmatch(match[1]):
                yield match.span(1)


def _logins(text: str) -> Iterator[re.Match[str]]:
    """``name@machine`` behind a command that takes it, in its line."""
    end = 0
    while (ssh := _SSH.search(text, end)) is not None:
        end = text.find("\n", ssh.end())
        end = min(end if end >= 0 else len(text), ssh.end() + _SPOKEN_CHARS)
        yield from _AT.finditer(text, ssh.end(), end)


_COMMA: Final = re.compile(r"""["'],\s*[brRuUfF]{0,2}["']\Z""")
_PAIR: Final = re.compile(r"""[\[(][brRuUfF]{0,2}["']\Z""")


def _in_a_row(text: str, value: Value) -> bool:
    """``"role": "user", "content": …``: the name is a value itself. A pair has a
    bracket."""
    if not _COMMA.search(text[max(0, value.start - 12) : value.start]):
        return False
    name = text.rfind(value.name, 0, value.start)
    return not _PAIR.search(text[max(0, name - 4) : name])


# ------------------------------------------------------------------ machines

_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62}[A-Za-z0-9_])?"
_DOTTED: Final = rf"{_LABEL}(?:\.{_LABEL}){{1,8}}"
_URL_HOST: Final = re.compile(
    rf"(?<=://)({_DOTTED}|{_LABEL}(?=:\d{{2,5}}(?!\d)))(?=[:/?#\"'`\s)>\],;.]|\Z)"
)
_A_PORT: Final = re.compile(r"(?<=[A-Za-z0-9]):\d{2,5}(?![\w.])")
_BEFORE_PORT: Final = re.compile(rf"(?<![\w./@:\\-])({_DOTTED})\Z")
_INNER: Final = re.compile(
    r"(?<=[A-Za-z0-9])\.(?:internal|local|localdomain|lan|corp|intranet|svc|home\.arpa)"
    r"(?:\.cluster\.local)?(?![\w-]|\.\w)"
)
_BEFORE_SUFFIX: Final = re.compile(rf"(?<![\w./@\\-])({_LABEL}(?:\.{_LABEL}){{0,7}})\Z")
_LONGEST: Final = 128
_SUFFIX: Final = re.compile(
    r"(?:com|org|net|io|ai|dev|cloud|app|edu|gov|info|biz|tech|xyz|site|online|internal"
    r"|local|lan"
    r"|corp|svc|example|test|[a-z]{2})\Z"
)
_FILES: Final = words_of("py cc rs sh md cu ml so js ts go pl rb hh cs")
"""Endings of files that are a country's as well."""
_OPEN: Final = re.compile(
    r"(?:[\w-]+\.)*(?:localhost|github\.com|githubusercontent\.com|github\.io"
    r"|gitlab\.com"
    r"|huggingface\.co|hf\.co|modelscope\.cn|pytorch\.org|python\.org|vllm\.ai"
    r"|sglang\.ai"
    r"|sgl-project\.github\.io|lmsys\.org|openmmlab\.com|nvidia\.com|amd\.com"
    r"|intel\.com"
    r"|readthedocs\.io|readthedocs-hosted\.com|pydantic\.dev|json-schema\.org|w3\.org"
    r"|ray\.io"
    r"|fastapi\.tiangolo\.com|opentelemetry\.io|prometheus\.io|kernel\.org|arxiv\.org"
    r"|wikipedia\.org|osv\.dev|kubernetes\.io|numpy\.org|jinja\.palletsprojects\.com"
    r"|example\.(?:com|org|net))",
    re.IGNORECASE,
)
"""Where engines and their libraries point to."""
_HOST_HINT: Final = re.compile(
    r"addr|host|endpoint|gateway|(?:node|machine|computer)_?name"
    r"|(?<![a-z])(?:node_?)?ip(?![a-z])|node_?list|peer"
)
_HOST: Final = re.compile(
    r"(?:[A-Za-z0-9_.-]{0,60}?[_.-])?(?:address|addr|host(?:_?name)?s?|endpoint|gateway"
    r"|(?:node|machine|computer)_?name"
    r"|peer|(?:node_?)?ip|node_?list)",
    re.IGNORECASE,
)
_AN_ADDRESS: Final = re.compile(
    rf"(?:[a-z][a-z0-9+.-]{{1,12}}://)?({_LABEL}(?:\.{_LABEL}){{0,8}})(?::\d{{1,5}})?(?:/.*)?"
)
_NO_HOST: Final = re.compile(
    r"(?:[\d.]+|0x.*|none|null|true|false|auto|local|localhost|default|str|string|any"
    r"|unknown|host"
    r"|cpu|cuda|gpu|server|client|peer|address|ipv[46]|tcp|http|https)",
    re.IGNORECASE,
)


def _hosts(text: str) -> Iterator[Span]:
    if "://" in text:
        for match in _URL_HOST.finditer(text):
            if not _is_open(match[1]):
                yield match.span(1)
    if ":" in text:
        for port in _A_PORT.finditer(text):
            begin = max(0, port.start() - _LONGEST)
            name = _BEFORE_PORT.search(text[begin : port.start()])
            last = name[1].rpartition(".")[2].lower() if name else ""
            if (
                name
                and _SUFFIX.match(last)
                and last not in _FILES
                and not _is_open(name[1])
            ):
                yield begin + name.start(1), port.start()
    for suffix in _INNER.finditer(text):
        begin = max(0, suffix.start() - _LONGEST)
        if name := _BEFORE_SUFFIX.search(text[begin : suffix.start()]):
            yield begin + name.start(1), suffix.end()
    for value in values(text, _HOST_HINT, lambda name: bool(_HOST.fullmatch(name))):
        shown = text[value.start : value.end]
        found = _AN_ADDRESS.fullmatch(shown.strip(" \t\"'")) if value.assigned else None
        if found and not _NO_HOST.fullmatch(found[1]) and not _is_open(found[1]):
            begin = value.start + shown.index(found[1])
            yield begin, begin + len(found[1])
    for match in _logins(text):
        if not _is_open(match[2]):
            yield match.start(2), match.start(2) + len(match[2].rstrip(".-"))
    yield from (match.span(2) for match in _PROMPT.finditer(text))


def _is_open(host: str) -> bool:
    """A name that everybody knows, this machine's own, or a number (an address is one,
    too)."""
    return bool(_OPEN.fullmatch(host)) or host.replace(".", "").isdigit()


_CALLER_HINT: Final = re.compile(
    r"forwarded|real-?ip|client|connecting-?ip|remote|peer|source|src|caller|ip.?addr"
    r"|user.?ip"
)
_CALLER: Final = re.compile(
    r"(?:x-)?(?:original-)?forwarded(?:-for)?|x-real-ip|x-envoy-external-address"
    r"|(?:[a-z]{1,12}[_-]){0,3}(?:client|connecting|remote|peer|source|src|caller|user"
    r"|real)"
    r"[_-]?(?:ip|addr|address|host)(?:[_-]?addr(?:ess)?)?|ip_?addr(?:ess)?|clientip"
    r"|remoteaddr",
    re.IGNORECASE,
)
_IN_HEADER: Final = re.compile(r"[0-9A-Fa-f:.]{3,56}")
_V4: Final = re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\w)")
_INNER_V4: Final = re.compile(
    r"10\.|192\.168\.|169\.254\.|172\.(?:1[6-9]|2\d|3[01])\.|100\.(?:6[4-9]|[7-9]\d"
    r"|1[01]\d|12[0-7])\."
)
"""Networks of one's own: RFC 1918, 3927 and 6598."""
_V6: Final = re.compile(r"(?<![\w:.])[0-9A-Fa-f:.]{4,56}(?:%\w{1,15})?(?![\w:])")
_PORT: Final = re.compile(
    r""":\d{2,5}\b|["']\s?,\s?(?:port=)?\d{1,5}\)?|["']?\]?\s-\s["\[-]"""
)
_CALLED: Final = re.compile(
    r"(?:client|peer|remote|host|addr(?:ess)?|(?<![a-z])ip|from|caller|user|node|server"
    r"|worker|port"
    r"|to|at|by|://|@)\W{0,6}\Z",
    re.IGNORECASE,
)
_RELEASE: Final = re.compile(
    r"(?:[<>~!=]=|\b(?:nvidia|cuda)[\w-]* |version\W{1,3}|\bv)\Z", re.IGNORECASE
)
_NOWHERE: Final = "2.2.2.2"
"""SGLang's FAKE_BOOTSTRAP_HOST: a transfer of KV cache to nobody."""


def _addresses(text: str) -> Iterator[Span]:
    """Addresses of other machines; this one's own stay."""
    yield from _forwarded(text)
    if text.count(".") > 2:
        yield from _version_4(text)
    yield from _version_6(text)
    yield from (match.span() for match in _NETWORK_CARDS.finditer(text))


_NETWORK_CARDS: Final = re.compile(
    r"(?<![\w:-])[0-9A-Fa-f]{2}([:-])[0-9A-Fa-f]{2}(?:\1[0-9A-Fa-f]{2}){4}(?![\w:-])"
)
"""Addresses of network cards (MAC), with colons or dashes."""


def _forwarded(text: str) -> Iterator[Span]:
    for value in values(
        text,
        _CALLER_HINT,
        lambda n: bool(_CALLER.fullmatch(n)),
        whole_line=lambda _: True,
    ):
        for match in _IN_HEADER.finditer(text, value.start, value.end):
            length = _foreign(match[0])
            if length:
                yield match.start(), match.start() + length


def _version_4(text: str) -> Iterator[Span]:
    for match in _V4.finditer(text):
        # A package's version may have four numbers as well.
        before = text[max(0, match.start() - 24) : match.start()]
        if match[0] == _NOWHERE or _RELEASE.search(before) or not _foreign(match[0]):
            continue
        if (
            _INNER_V4.match(match[0])
            or _PORT.match(text, match.end())
            or _CALLED.search(before)
        ):
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
    """The length of the address of another machine that ``shown`` begins with; else
    0."""
    address = shown.rstrip(":.")
    host, colon, port = address.rpartition(":")
    # uvicorn writes an IPv6 caller without brackets: ::1:51234
    for text in (
        (host, address) if colon and port.isdigit() and len(port) > 1 else (address,)
    ):
        try:
            parsed = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            continue
        inner = getattr(parsed, "ipv4_mapped", None) or parsed
        return 0 if inner.is_loopback or inner.is_unspecified else len(text)
    return 0


# ------------------------------------------------------------------ numbers of people

_CARD: Final = re.compile(
    r"(?<![\w.+/-])(?:(?:4\d{3}|5[1-5]\d\d|2[2-7]\d\d|6(?:011|5\d\d|2\d\d)|35\d\d)"
    r"([ -]?)\d{4}\1\d{4}\1\d{4}|3[47]\d\d([ -]?)\d{6}\2\d{5}"
    r"|3(?:0[0-5]|[68]\d)\d([ -]?)\d{6}\3\d{4})"
    r"(?![\w/-]|\.\d)"
)
"""Visa, MasterCard, Discover, UnionPay and JCB; American Express; Diners: ISO/IEC
7812."""
_PHONE: Final = re.compile(
    r"(?<![\w.+/-])(?:"
    r"(?:\+|00)[1-9]\d{0,2}[ .-]?(?:\(0?\d{1,4}\)[ .-]?)?\d{1,5}(?:[ ./-]?\d{2,5}){1,4}"
    r"|(?:\([2-9]\d\d\) ?|[2-9]\d\d[ .-])[2-9]\d\d[ .-]\d{4}"
    r"|0\d{2,4}[ /-]\d{3,4}[ -]?\d{3,5})(?![\w/-]|\.\d|:\d)"
)
_PHONE_HINT: Final = re.compile(
    r"phone|mobile|cell|fax|whatsapp|(?<![a-z])tel(?![a-z])"
)
_PHONE_NAME: Final = re.compile(
    r"(?:[A-Za-z0-9_.-]{0,40}?[_.-])?(?:(?:tele)?phone|mobile|cell|fax|whatsapp|tel)"
    r"(?:[_-]?(?:no|nr|number))?",
    re.IGNORECASE,
)
_DIGITS: Final = re.compile(r"\+?[\d ()./-]{6,24}")


def _cards(text: str) -> Iterator[Span]:
    for match in _CARD.finditer(text):
        if _luhn(match[0]):
            yield match.span()


def _luhn(shown: str) -> bool:
    """Whether the check digit is right: ISO/IEC 7812-1, annex B."""
    digits = [int(c) for c in reversed(shown) if c.isdigit()]
    doubled = [sum(divmod(2 * d, 10)) if n % 2 else d for n, d in enumerate(digits)]
    return sum(doubled) % 10 == 0


def _phones(text: str) -> Iterator[Span]:
    for match in _PHONE.finditer(text):
        if 8 <= sum(map(str.isdigit, match[0])) <= 15:
            yield match.span()
    for value in values(
        text,
        _PHONE_HINT,
        lambda n: bool(_PHONE_NAME.fullmatch(n)),
        whole_line=lambda _: True,
    ):
        number = _DIGITS.match(text, value.start, value.end)
        if number and sum(map(str.isdigit, number[0])) >= 6:
            yield value.start, value.start + len(number[0].rstrip(" (./-"))


# ------------------------------------------------------------------ folders and files

_FOLDER_HINT: Final = re.compile(
    r"(?:home|cache|dir|path|root|folder|prefix|pwd|tmp)(?![a-z0-9])"
)
_FOLDER: Final = re.compile(r"[A-Z][A-Z0-9_]*")
_USUAL: Final = words_of("""
    usr bin sbin lib lib64 libexec etc proc sys dev run var opt tmp root mnt home data srv nix store
    cache caches local share include src app apps workspace work models model hub datasets torch
    huggingface hf transformers triton vllm sglang lmdeploy mmrepro flashinfer ray cuda nvidia conda
    miniconda miniconda3 anaconda3 envs env venv site-packages dist-packages config logs log nfs
    environments incidents evidence scratch projects users volumes snapshots blobs kernels inductor
    torchinductor compile nvcc rocm x86_64-linux-gnu stubs pyenv versions shims cargo go uv pip
    state standins reproducers boot
""")
"""Parts of paths that say nothing of whose machine it is."""
_NUMBERED: Final = re.compile(
    r"\.{0,2}|[.v-]{0,2}\d[\d.]*|(?:python|cuda|torch|gcc|rocm)[-_]?[\d.]+|[\[~].*"
)
_PART: Final = re.compile(r"[^/]+")
_ABSOLUTE: Final = re.compile(r"(?<![\w.~\]-])/[^\s:;,\"'\\]*")


def _folders(text: str) -> Iterator[Span]:
    """In a variable that holds paths, the folders that are named after somebody or
    something."""
    if "/" not in text:
        return
    for value in values(
        text,
        _FOLDER_HINT,
        lambda name: bool(_FOLDER.fullmatch(name)),
        whole_line=lambda _: True,
    ):
        shown = text[value.start : value.end]
        for path in _ABSOLUTE.finditer(shown):
            parts = [*_PART.finditer(path[0])]
            for part in parts if len(parts) > 1 else ():
                if not _is_usual(part[0]):
                    begin = value.start + path.start()
                    yield begin + part.start(), begin + part.end()


def _is_usual(part: str) -> bool:
    """Whether a part of a path is one that many machines have."""
    return part.strip("._").lower() in _USUAL or bool(_NUMBERED.fullmatch(part))


_FINDERS: Final = (
    ("user", _users),
    ("host", _hosts),
    ("address", _addresses),
    ("card", _cards),
    ("phone", _phones),
    ("path", _folders),
)
