"""Secrets by their names: which names say so, and what stands behind a name in a text.

A name is taken apart at its joints and humps (``SLACK_BOT_TOKEN``, ``dbPassword``,
``x-key``); its last words decide. What a model's vocabulary or a cache calls ``token``
and ``key`` is no secret: ``image_token``, ``cache_key``. A value is found however it is
written: ``name=value``, ``name: 'value'``, ``"name": "value"`` with any depth of
escapes, ``--name value``, ``['--name', 'value']``, ``(b'name', b'value')``,
``name%3Dvalue``, ``<name>value</name>``, lines of an environment, and a name beside its
value as Kubernetes has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final


class Secrecy(IntEnum):
    """How much a name says of its value.

    ``TOKEN`` and ``WEAK`` are words of other things, too: only a value that looks like
    it is one."""

    NONE = 0
    WEAK = 1
    TOKEN = 2
    STRONG = 3


_OF_CODES: Final = (
    "recovery|backup|mfa|2fa|verification|login|access|one[_-]?time|seed|unlock"
)
_ABROAD: Final = (
    r"contrase[ñn]a|senha|mot[ _-]?de[ _-]?passe|wachtwoord|l[öo]senord"
    r"|has[łl]o(?![a-z])|пароль"
    r"|密码|密碼|口令|パスワード|비밀번호"
)
"""Password, as other languages have it."""
HINT: Final = re.compile(
    r"key|token|secret|pass|pwd|cred|auth|cookie|sig(?:nature)?\b|session|bearer|jwt"
    r"|otp|dsn"
    r"|connection|conn_?str|sas|mnemonic|webhook|license|vault|[cx]srf|pswd|psk|cvv|cvc"
    r"|ssn|iban"
    r"|(?:p[sw]?w|pat|pin|tok|kubeconfig)(?![a-z])"
    rf"|(?:{_OF_CODES})[ _-]?(?:codes?|phrases?)(?![a-z])|{_ABROAD}"
)
"""Some part of every name that says something, in small letters."""

_JOINTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def words_of(text: str) -> frozenset[str]:
    """A table of words that is written as one text."""
    return frozenset(text.split())


_STRONG_ENDS: Final = tuple(
    words_of("""
    password passwd passwort kennwort passphrase passcode passkey pswd secret credential cred pwd
    apikey accesskey secretkey privatekey authkey accountkey masterkey authorization cookie
    connectionstring connstr mnemonic bearer vault kubeconfig keytab psk requirepass masterauth
""")
)
_TOKEN_ENDS: Final = tuple(
    words_of("""
    authtoken accesstoken refreshtoken apitoken bottoken hftoken idtoken usertoken sessiontoken
    csrftoken xsrftoken sastoken bearertoken
""")
)
_WHOLE: Final = words_of("pw psw sas cvv cvc ssn iban totp mfa")
"""Names, or last words of names, that are secrets and nothing else."""
_FIRM: Final = words_of("pass otp pin dsn csrf xsrf webhook webhookurl tok")
_WEAK: Final = _FIRM | words_of(
    "auth sig signature session sessionid license authentication"
)
_PLACES: Final = words_of(
    "prod production dev staging stage test qa old new backup live ci main"
)
"""What stands behind a name, for one of several: ``OPENAI_API_KEY_PROD``."""
_LOGINS: Final = words_of("""
    db smtp user root admin mysql pg postgres redis mail ftp ldap basic auth http proxy mongo
    rabbitmq amqp login ssh sudo become
""")
_KEYS: Final = words_of("""
    api access private secret account subscription encryption signing master shared storage auth
    ssh service admin app application client deploy host function hmac aes rsa jwt session
    webhook root server tls ssl gpg pgp age vault license licence user project org team fernet
    django flask rails openai anthropic azure gemini google mistral cohere groq stripe sendgrid
    wandb datadog dd sentry twilio github gh gitlab git azdo ado devops personal pat slack hf
    vllm sglang aws gcp s3 minio bearer
    security primary secondary
""")
_PLAIN_KEYS: Final = words_of("""
    cache kv mm sort hash index lookup evict group item dict foreign public block image prefix
    extra query value torch pool config env num no any ghost partition shape map layer head
""")
_MODEL_TOKENS: Final = words_of("""
    image video audio eos bos pad unk sep cls mask start end stop vision next new last first per
    max min num prompt output input special boi eoi soi generated sampled single think draft
    target bonus modality placeholder text speech one each a img the this that by of decode
    prefill mm accepted time replacement newline fim added current total row begin every
""")
_ABOUT: Final = words_of("""
    file path dir length len type name ref policy url uri count min max field manager store
    provider rotation expiry version arn required enabled prompt size format header headers env
    var mode hook class func error errors valid set missing empty check server scheme level
    tokens ids stdin factory params usage only none true false is a was and or for to in
""")
_INNER: Final = frozenset(
    {"password", "passwd", "passphrase", "secret", "secrets", "credential"}
)
_HEADER_KEYS: Final = re.compile(
    r"(?:x-[a-z0-9-]{1,40}-|private-|job-|deploy-)(?:key|token|signature)",
    re.IGNORECASE,
)


_CODE: Final = re.compile(
    rf"(?:^|[^a-z])(?:{_OF_CODES})[ _-]?(?:codes?|phrases?)$|(?:{_ABROAD})$"
)


def joints(name: str) -> list[str]:
    """The words of a name, without numbers: ``dbPassword`` has two."""
    return [word for word in _JOINTS.findall(name) if not word.isdigit()]


@lru_cache(maxsize=1 << 14)
def secrecy(name: str) -> Secrecy:
    """What ``name`` says of its value."""
    name = name.rsplit(".", 1)[-1][-80:]
    if _HEADER_KEYS.fullmatch(name):
        return Secrecy.STRONG
    if _CODE.search(name.lower()):
        return Secrecy.STRONG
    if " " in name:  # a sentence
        return Secrecy.NONE
    words = [word.lower() for word in joints(name)]
    while len(words) > 1 and words[-1] in _PLACES:
        del words[-1]
    if not words:
        return Secrecy.NONE
    plural = words[-1]
    last = plural[:-1] if plural.endswith("s") and not plural.endswith("ss") else plural
    before = words[-2] if len(words) > 1 else ""
    joined = before + last
    if last == "jwt" or last.endswith(_STRONG_ENDS) or joined.endswith(_STRONG_ENDS):
        return Secrecy.STRONG
    if plural in _WHOLE or (last.endswith("pw") and len(last) <= 8):
        return Secrecy.STRONG
    if last.endswith("pat") and len(last) <= 5 and (name.isupper() or before in _KEYS):
        return Secrecy.STRONG  # a personal access token
    if last == "key":
        shouted = name.isupper() and before and before not in _PLAIN_KEYS
        return Secrecy.STRONG if before in _KEYS or shouted else Secrecy.NONE
    if last == "pass" and (before in _LOGINS or (before and name.isupper())):
        return Secrecy.STRONG
    if last == "token" and plural == "token":
        return Secrecy.NONE if before in _MODEL_TOKENS else Secrecy.TOKEN
    if joined.endswith(_TOKEN_ENDS):
        return Secrecy.TOKEN
    if (
        name.isupper()
        and last in _KEYS
        and {"key", "token", "pat", "pw"}.intersection(words[:-1])
    ):
        return Secrecy.STRONG  # TOKEN_GITHUB
    if _INNER.intersection(words[:-1]) and last not in _ABOUT and plural not in _ABOUT:
        return Secrecy.STRONG
    if last in _WEAK or joined in ("sessionid", "webhookurl", "sharedaccesssignature"):
        return (
            Secrecy.NONE
            if before in ("forward", "backward", "multi", "two")
            else Secrecy.WEAK
        )
    return Secrecy.NONE


def firm(name: str) -> bool:
    """Whether a weak name, where a value is assigned to it, means a secret all the
    same."""
    words = [word.lower() for word in _JOINTS.findall(name.rsplit(".", 1)[-1])]
    return bool(words) and (words[-1] in _FIRM or "".join(words[-2:]) in _FIRM)


def kind_of(name: str) -> str:
    """What its placeholder is called."""
    name = name.lower()
    if "cookie" in name:
        return "cookie"
    return "password" if re.search(r"pass|pwd|pw\b|credential", name) else "key"


# -------------------------------------------------------------- the value behind a name

_MAX_VALUE: Final = 4096
_MAX_NAME: Final = 64
_MAX_ITEMS: Final = 32

_QUOTE: Final = r"""(?:\\{0,15}["'`]|%2[27]|&quot;|&\#(?:3[49]|x2[27]);)"""
_GAP: Final = r"(?:\s|\\{1,15}[nrt]){0,24}"
_SIGN: Final = r"(?:=>|:=|={1,2}|:(?!/)|：|%3[aAdD](?:%20|\+){0,2})"
_VALUE: Final = r"(?:[vV]alue|VALUE|val)"
"""What a value beside its name is called."""
_IS_KEY: Final = re.compile(r"[ \t]{0,4}:(?!:)")
"""Behind a text in quotes: it is a name itself."""
_TAG: Final = r"(?:!{1,2}[A-Za-z][\w./-]{0,40}[ \t]{1,8})?"
"""A tag of YAML, which stands before a value: ``!!binary``, ``!vault``."""
_AFTER: Final = re.compile(
    rf"""(?:(?P<close>{_QUOTE})\]?)? (?:\[\w{{0,16}}\](?=[ \t]{{0,8}}[=:]))? [ \t]{{0,8}}
    (?: (?P<beside>[,;]?{_GAP}(?:-[ ])?{_QUOTE}?{_VALUE}{_QUOTE}?[ \t]{{0,4}}[:=][ \t]{{0,4}})
      | (?P<sign>{_SIGN}) [ \t]{{0,8}} {_TAG} (?:[|>][-+]?{_GAP})?
      | (?P<comma>,) \s{{0,24}}
      | (?P<angle>>)
      | (?P<space>[ \t]) [ \t]{{0,8}}
    )
    (?:(?:Secret\w{{0,8}}|str|bytes)\()? (?P<open>[\[({{]{{0,2}}) \s{{0,24}}""",
    re.VERBOSE,
)
_OPENING: Final = re.compile(rf"""(?:[bBrRuUfF]{{1,2}}(?=\\*["']))?({_QUOTE})""")
_BEFORE: Final = re.compile(rf"{_QUOTE}\Z")
_NEXT_ITEM: Final = re.compile(
    rf"""\s{{0,24}},\s{{0,24}}(?:[bBrRuUfF]{{1,2}})?({_QUOTE})"""
)
_BARE: Final = re.compile(
    r"""(?!["'&\[(\\])(?:(?!\\+[nrtfbux0"'`]|%2[0267cC]|%0[aAdD]|,[A-Za-z_][\w.-]*[=:])"""
    r"""[^\s"'`&<>\x00-\x1f])+"""
)
_MORE: Final = re.compile(
    r"((?:[ \t]{1,8}(?!-)[^\s\"'\[\]{}]+){1,8})(?=[ \t]+-|[ \t]*(?:[\r\n\"']|$))"
)
_ENVIRONMENT: Final = re.compile(
    r"(?:\A|[\n\0])[ \t]*(?:export |declare -x |setenv |set )?\Z"
)
_PART: Final = re.compile(r"[A-Za-z0-9_-]")
_OPTION_AROUND: Final = re.compile(
    r"(?<![\w-])--?[A-Za-z][\w-]{0,32}\.(?:[\w-]{1,32}\.){0,4}\Z"
)
"""What stands before the last part of ``--spring.datasource.password``."""
_TAIL: Final = re.compile(r"(?:\.[A-Za-z][\w-]{0,32}){1,3}(?=[\"']?[ \t]{0,8}[=:])")
"""The rest of a name whose first part says it: ``secret.value``."""
_END_OF_LINE: Final = re.compile(r"[\r\n\0]|\\+[nr]")


@dataclass(frozen=True)
class Value:
    """A value's place in the text.

    Attributes:
        assigned: by a sign that prose has not: quotes, ``=`` or an option.
        quoted: it fills its quotes; a bare one of a header may have other words behind
            it.
    """

    start: int
    end: int
    name: str
    assigned: bool
    quoted: bool


def values(
    text: str,
    hint: re.Pattern[str],
    wanted: Callable[[str], bool],
    *,
    whole_line: Callable[[str], bool] = lambda name: False,
    quoted: bool = False,
) -> Iterator[Value]:
    """The values of the names in ``text`` that hold ``hint`` and are ``wanted``, in
    order.

    Args:
        hint: tried on small letters: one that asks for both cases takes six times as
            long.
        whole_line: of such a name a value without quotes goes to the end of its line.
        quoted: only values in quotes, and no options.
    """
    position = 0
    for hit_start, hit_end in hits(text, hint):
        if hit_start < position:
            continue
        start, end = name_around(text, hit_start, hit_end)
        name = text[start:end]
        position = max(end, hit_end)
        if not wanted(name.lstrip("-")):
            continue
        if (tail := _TAIL.match(text, end)) and wanted(
            name + tail[0].replace(".", "_")
        ):
            end = tail.end()
        for value in _behind(
            text, start, end, name, whole_line(name.lstrip("-")), quoted
        ):
            yield value
            position = max(position, value.end)


@lru_cache(maxsize=4)
def hits(text: str, hint: re.Pattern[str]) -> tuple[tuple[int, int], ...]:
    """Where ``hint`` stands in ``text``, in whatever case. Several rules ask for the
    same."""
    return tuple(found.span() for found in hint.finditer(_lowered(text)))


def _lowered(text: str) -> str:
    """``text`` in small letters, each in its place: some would become two."""
    small = text.lower()
    if len(small) == len(text):
        return small
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


def name_around(text: str, start: int, end: int) -> tuple[int, int]:
    least, most = max(0, start - _MAX_NAME), min(len(text), end + _MAX_NAME)
    while start > least and _PART.match(text, start - 1):
        start -= 1
    while end < most and _PART.match(text, end):
        end += 1
    if (
        start > 0
        and text[start - 1] == "\\"
        and text[start] in "nrt"
        and end - start > 3
    ):
        start += 1
    return start, end


def _behind(
    text: str, start: int, end: int, name: str, line: bool, quoted: bool
) -> Iterator[Value]:
    dotted = _OPTION_AROUND.search(text[max(0, start - _MAX_NAME) : start])
    option = (name.startswith("-") or dotted is not None) and not quoted
    if (after := _AFTER.match(text, end)) is None or "{" in after["open"]:
        return
    closed = after["close"]
    if after["comma"] and not (closed and not quoted):
        return
    if after["angle"] and (quoted or text[start - 1 : start] not in ("<", ".", closed)):
        return
    if after["space"] and not option:
        return
    at = after.end()
    opening = _OPENING.match(text, at)
    assigned = (
        bool(opening) or option or "=" in (after["sign"] or "") or bool(after["beside"])
    )
    if opening is not None:
        stop = _closing(text, opening.end(), opening[1])
        if after["comma"] and _IS_KEY.match(text, stop + len(opening[1])):
            return
        yield Value(opening.end(), stop, name, assigned, True)
        several = after["open"] or (
            after["comma"] and option and name.lower().endswith("key")
        )
        for _ in range(_MAX_ITEMS if several else 0):
            item = _NEXT_ITEM.match(text, min(stop + len(opening[1]), len(text)))
            if item is None or (
                after["comma"] and text[item.end() : item.end() + 1] == "-"
            ):
                return
            stop = _closing(text, item.end(), item[1])
            yield Value(item.end(), stop, name, True, True)
        return
    if quoted or after["open"] or after["comma"]:
        return
    sign = after["sign"] or ""
    held = (
        _BEFORE.search(text[max(0, start - 16) : start])
        if sign and not closed
        else None
    )
    if held is not None:  # "K=V with spaces", 'Name: value'
        stop = _closing(text, at, held[0])
    else:
        stop = _bare_end(
            text, at, line or ("=" in sign and _in_environment(text, start))
        )
    if stop <= at:
        return
    yield Value(at, stop, name, assigned or held is not None, False)
    if after["space"] and name.lower().endswith(("key", "keys")):
        more = _MORE.match(text, stop)
        for word in re.finditer(r"\S+", more[1]) if more else ():
            yield Value(stop + word.start(), stop + word.end(), name, True, False)


def _in_environment(text: str, start: int) -> bool:
    """Whether a line of an environment begins at ``start``, whose value has no quotes
    to end it."""
    head = text[max(0, start - 24) : start]
    return text[start : start + 1].isupper() and bool(_ENVIRONMENT.search(head))


def _bare_end(text: str, at: int, line: bool) -> int:
    """Where a value without quotes ends; ``line``: with its line."""
    limit = min(len(text), at + _MAX_VALUE)
    if line:
        found = _END_OF_LINE.search(text, at, limit)
        return found.start() if found else limit
    bare = _BARE.match(text, at, limit)
    return at + len(bare[0].rstrip(",;)}]")) if bare else at


def _closing(text: str, at: int, quote: str) -> int:
    """Where the quote that opened before ``at`` is closed; else the end of the line."""
    limit = min(len(text), at + _MAX_VALUE)
    line = text.find("\n", at, limit)
    limit = line if line >= 0 else limit
    depth = quote.count("\\")
    sign = quote.lstrip("\\")
    search = at
    while (found := text.find(sign, search, limit)) >= 0:
        slashes = 0
        while found - slashes > at and text[found - slashes - 1] == "\\":
            slashes += 1
        if sign[0] in "%&" or (slashes % 2 == 0 if depth == 0 else slashes <= depth):
            return found - slashes if depth else found
        search = found + len(sign)
    return limit
