"""One consistent mapping of what is private to placeholders, for everything a run writes.

The same secret has the same placeholder everywhere (``[redacted:key-1]``), so that a reader can
still see that two places hold the same value. What is evidence survives: SHA-256 digests, package
hashes, git ids, mm_hash values, file names, token counts.

Every pattern either starts at a literal and takes a run of one character class, or has bounded
repetition, so that time is linear in the text. Nothing here raises on any string.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_origin

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)

PLACEHOLDER: Final = re.compile(r"\[redacted:[a-z]{1,20}-\d{1,9}\]")
# Shorter registered secrets would redact ordinary words: a prompt "hi" is in every "while".
MIN_SECRET: Final = 6
MAX_TEXT: Final = 8 << 20
_CUT: Final = " [cut: too long to redact]"
# What a client keeps of a prompt, and what engines log of it.
_HEADS: Final = (200, 100)

_TOKENS: Final = re.compile(
    r"""(?<![A-Za-z0-9]) (?:
      sk-[A-Za-z0-9_-]{12,}                                    # OpenAI, Anthropic and alike
    | hf_[A-Za-z0-9]{16,}
    | gh[pousr]_[A-Za-z0-9]{16,} | github_pat_[A-Za-z0-9_]{16,}
    | glpat-[A-Za-z0-9_-]{16,} | xox[abeoprs]-[A-Za-z0-9-]{10,}
    | (?:AKIA|ASIA)[A-Z0-9]{16}
    | AIza[A-Za-z0-9_-]{30,} | nvapi-[A-Za-z0-9_-]{16,}
    | eyJ[A-Za-z0-9_-]{5,512}\.[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*  # JSON Web Token
    )""",
    re.VERBOSE,
)
_HEADER: Final = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token)"
    r"""(["']?[ \t]{0,8}[:=][ \t]{0,8})(["']?)([^\r\n]+)""",
    re.IGNORECASE,
)
_SCHEME: Final = re.compile(
    r"(?:bearer|basic|token|apikey|negotiate|digest)(?:[ \t]+|$)", re.IGNORECASE
)
_WORD: Final = re.compile(r"""[^\s"',}]+""")
_BEARER: Final = re.compile(r"\b(bearer[ \t]{1,4})([A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE)
_NAME: Final = (
    r"(?:[A-Za-z0-9]{1,24}[_-]){0,4}"
    r"(?:api[_-]?keys?|access[_-]?keys?|private[_-]?key|secret(?:[_-]?key)?|passw(?:or)?d|passwd"
    r"|passphrase|pwd|credentials?"
    r"|(?:access|refresh|auth|hf|hub|api|session|bearer|github|gitlab|slack|csrf|client|id)"
    r"[_-]?token|(?<![A-Za-z0-9_-])token)"
)
_ASSIGNED: Final = re.compile(
    rf"""(?<![A-Za-z0-9])({_NAME})(["']?[ \t]{{0,8}}(?:=>|[:=])[ \t]{{0,8}}[\[(]?)"""
    r"""(?:(["'])((?:\\.|(?!\3)[^\\\r\n])+)|([^\s"'&\[(][^\s"'&]*))""",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(
    rf"(?<![A-Za-z0-9-])(--?{_NAME})"
    r"""([ \t]{1,8})(?:(["'])((?:(?!\3)[^\r\n])+)|([^\s"'\[-]\S*))""",
    re.IGNORECASE,
)
_SENSITIVE: Final = re.compile(
    rf"-{{0,2}}(?:{_NAME}|(?:proxy-)?authorization|(?:set-)?cookie)", re.IGNORECASE
)
_URL: Final = re.compile(r"""(://)([^\s/?#"'<>\[\]]{1,2048})(?=@[^\s/?#@])""")
_KEY_BEGIN: Final = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_DATA_URL: Final = re.compile(
    r"(data:[a-z]{1,20}/[A-Za-z0-9.+-]{1,80}(?:;[a-z-]{1,20}=[A-Za-z0-9-]{1,40}){0,4};base64,)"
    r"([A-Za-z0-9+/_=%-]+)",
    re.IGNORECASE,
)
# What engines log of a request: vLLM's `prompt: '...'`, SGLang's and LMDeploy's token ids.
_PROMPT: Final = re.compile(
    r"""\b((?:[a-z]{1,12}_)?prompts?)(["']?[ \t]{0,4}[:=][ \t]{0,4})(["'])"""
    r"""((?:\\.|(?!\3)[^\\\r\n])+)""",
    re.IGNORECASE,
)
_TOKEN_IDS: Final = re.compile(
    r"""\b((?:prompt_)?token_ids|(?:origin_)?input_ids)(["']?[ \t]{0,4}[:=][ \t]{0,4}\[)"""
    r"""([\d, \t\[\]]{12,})"""
)
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_-]{56,}={0,2}")
# A whole UUID is one GPU's in the world; its beginning, which reports show, tells two apart.
_GPU: Final = re.compile(
    r"\b(?:MIG-)?(?:GPU|MIG)-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.IGNORECASE
)
_HOMES: Final = re.compile(r"""([\\/](?:home|Users)[\\/]{1,2})([^\s\\/"'`:;,<>()\[\]{}|&*?]+)""")
_LOCAL: Final = re.compile(r"[\w.%+-]")
_DOMAIN: Final = re.compile(r"(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-])")
_NO_SECRET: Final = frozenset({"none", "null", "true", "false", "nil", "undefined", "str", "***"})


class Redactor:
    """The mapping of one run.

    Args:
        home: the current user's home, shown as ``~``; by default the real one.
    """

    def __init__(self, home: Path | str | None = None) -> None:
        path = str(Path.home() if home is None else home).rstrip("/")
        # Digests, not the secrets themselves: a mapping that leaks into a dump gives nothing away.
        self._placeholders: dict[bytes, str] = {}
        self._counts: dict[str, int] = {}
        self._registered: list[tuple[str, str]] = []
        self._cache: dict[str, str] = {}
        self._home = (
            re.compile(rf"(?:(?<![\w./~-])|(?<=://)){re.escape(path)}(?![\w.-])")
            if len(path) > 1
            else None
        )

    def add(self, secret: str, kind: str = "secret") -> str:
        """Register a secret that no pattern would know; returns its placeholder.

        Also its forms as JSON and Python print it, and its beginning (prompts are logged cut).
        Of fewer than ``MIN_SECRET`` characters: not registered, returns an empty string.
        """
        if len(secret.strip()) < MIN_SECRET:
            return ""
        kind = re.sub(r"[^a-z]", "", kind.lower())[:20] or "secret"
        placeholder = self.placeholder(kind, secret)
        forms = {secret, secret.strip()} | {secret[:n] for n in _HEADS if len(secret) > n}
        for form in list(forms):
            forms |= {json.dumps(form)[1:-1], json.dumps(form, ensure_ascii=False)[1:-1]}
            forms.add(repr(form)[1:-1])
        known = {text for text, _ in self._registered}
        self._registered += [(form, placeholder) for form in forms - known]
        self._registered.sort(key=lambda pair: (-len(pair[0]), pair))
        self._cache.clear()
        return placeholder

    def reserve(self, text: str) -> None:
        """Number new placeholders after those in ``text``: another mapping made them."""
        for match in PLACEHOLDER.finditer(text):
            kind, _, number = match[0][len("[redacted:") : -1].rpartition("-")
            self._counts[kind] = max(self._counts.get(kind, 0), int(number))

    def redact(self, text: str) -> str:
        """``text`` with everything private replaced. Idempotent; at most 8 MiB are kept."""
        if len(text) < MIN_SECRET:
            return text
        known = self._cache.get(text)
        if known is not None:
            return known
        result = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + _CUT
        # A replacement changes the neighbourhood of what is next to it, so once more until
        # nothing changes; two rounds in practice.
        for _ in range(8):
            before = result
            for step in self._steps():
                result = _outside(step, result)
            if result == before:
                break
        if len(text) <= 4096 and len(self._cache) < 50_000:
            self._cache[text] = result
        return result

    def redact_model(self, model: M) -> M:
        """A copy of ``model`` with every string in it redacted, dictionary keys as well.

        The value of a field or key whose name says that it is a secret (``api_key``), or that
        follows such an option in a list (``--api-key``, …), is redacted whatever it looks like.
        """
        return self._model(model)

    # -------------------------------------------------------------- steps

    def _steps(self) -> Iterator[Callable[[str], str]]:
        if self._registered:
            yield self._known
        yield self._private_keys
        yield lambda t: _DATA_URL.sub(self._data_url, t) if ";base64," in t.lower() else t
        yield lambda t: _URL.sub(self._url, t) if "://" in t and "@" in t else t
        yield lambda t: _TOKENS.sub(lambda m: self.placeholder("key", m[0]), t)
        yield lambda t: _HEADER.sub(self._header, t)
        yield lambda t: _BEARER.sub(lambda m: m[1] + self.placeholder("key", m[2]), t)
        yield lambda t: _ASSIGNED.sub(self._assigned, t) if "=" in t or ":" in t else t
        yield lambda t: _OPTION.sub(self._assigned, t) if "-" in t else t
        yield lambda t: _PROMPT.sub(self._prompt, t) if "rompt" in t or "ROMPT" in t else t
        yield lambda t: _TOKEN_IDS.sub(self._token_ids, t) if "_ids" in t else t
        yield lambda t: _GPU.sub(lambda m: self.placeholder("gpu", m[0]), t) if "-" in t else t
        yield lambda t: _BASE64.sub(self._base64, t)
        yield self._emails
        yield self._home_paths

    def _known(self, text: str) -> str:
        for secret, placeholder in self._registered:
            if secret in text:
                # Between placeholders only: a secret "redacted" must not break them.
                text = _outside(lambda t, s=secret, p=placeholder: t.replace(s, p), text)  # type: ignore[misc]
        return text

    def _private_keys(self, text: str) -> str:
        if "PRIVATE KEY" not in text:
            return text
        out, position = [], 0
        while begin := _KEY_BEGIN.search(text, position):
            end = _KEY_END.search(text, begin.end())
            stop = end.end() if end else len(text)
            out += [text[position : begin.start()]]
            out += [self.placeholder("privatekey", text[begin.start() : stop])]
            position = stop
        return "".join([*out, text[position:]])

    def _data_url(self, match: re.Match[str]) -> str:
        return match[1] + self.placeholder("image", match[2])

    def _url(self, match: re.Match[str]) -> str:
        user, colon, password = match[2].partition(":")
        if not colon:
            return match[1] + self.placeholder("password", user)
        shown = self.placeholder("user", user) if user else ""
        return (
            match[1] + shown + colon + (self.placeholder("password", password) if password else "")
        )

    def _header(self, match: re.Match[str]) -> str:
        name, separator, quote, rest = match.groups()
        value, tail = rest, ""
        if quote:
            value, closing, after = rest.partition(quote)
            tail = closing + after
        scheme = _SCHEME.match(value)
        lead = scheme[0] if scheme else ""
        value = value[len(lead) :]
        if lead and not lead.lower().startswith("digest"):
            # One word is the secret; what follows it may be the rest of a command line.
            word = first[0] if (first := _WORD.match(value)) else ""
            value, tail = word, value[len(word) :] + tail
        if not value.strip(" \t\"'"):  # the quote before a placeholder, say
            return match[0]
        kind = "cookie" if "cookie" in name.lower() else "key"
        return f"{name}{separator}{quote}{lead}{self.placeholder(kind, value)}{tail}"

    def _assigned(self, match: re.Match[str]) -> str:
        name, separator, quote, quoted, bare = match.groups()
        value, tail = quoted or "", ""
        if bare:
            value = bare.rstrip(",;)}]")
            tail = bare[len(value) :]
        if not _may_be_secret(name, value, assigned=bool(quote) or "=" in separator):
            return match[0]
        return f"{name}{separator}{quote or ''}{self.placeholder(_kind(name), value)}{tail}"

    def _prompt(self, match: re.Match[str]) -> str:
        name, separator, quote, value = match.groups()
        if len(value.strip()) < MIN_SECRET:
            return match[0]
        return f"{name}{separator}{quote}{self.placeholder('prompt', value)}"

    def _token_ids(self, match: re.Match[str]) -> str:
        name, separator, ids = match.groups()
        inside = ids.rstrip("], \t")
        return f"{name}{separator}{self.placeholder('tokens', inside)}{ids[len(inside) :]}"

    def _base64(self, match: re.Match[str]) -> str:
        return self.placeholder("base64", match[0]) if _is_base64(match[0]) else match[0]

    def _emails(self, text: str) -> str:
        if "@" not in text:
            return text
        out, position = [], 0
        at = text.find("@")
        while at >= 0:
            start = at
            while start > max(position, at - 64) and _LOCAL.match(text[start - 1]):
                start -= 1
            domain = _DOMAIN.match(text, at + 1) if start < at else None
            if domain:
                out += [
                    text[position:start],
                    self.placeholder("email", text[start : domain.end()]),
                ]
                position = domain.end()
            at = text.find("@", max(at + 1, position))
        return "".join([*out, text[position:]])

    def _home_paths(self, text: str) -> str:
        if self._home is not None:
            text = self._home.sub("~", text)
        return _HOMES.sub(lambda m: m[1] + self.placeholder("user", m[2]), text)

    # -------------------------------------------------------------- mapping and models

    def placeholder(self, kind: str, secret: str) -> str:
        """What stands for ``secret``, here and wherever it comes up again."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        known = self._placeholders.get(digest)
        if known is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            known = self._placeholders[digest] = f"[redacted:{kind}-{self._counts[kind]}]"
        return known

    def _model(self, model: M) -> M:
        changes: dict[str, Any] = {}
        label = getattr(model, "name", "")
        for name, field in type(model).model_fields.items():
            value = getattr(model, name)
            if get_origin(field.annotation) is Literal:
                continue
            told = name if name != "value" or not isinstance(label, str) else label
            new = self.redact_value(value, told)
            if new is not value:
                changes[name] = new
        return model.model_copy(update=changes) if changes else model

    def redact_value(self, value: Any, name: str = "") -> Any:
        """``value`` with every string in it redacted, however deep; ``name``: what it is called."""
        if isinstance(value, Enum):
            return value
        if isinstance(value, str):
            return self.redact_named(value, name)
        if isinstance(value, BaseModel):
            return self._model(value)
        if isinstance(value, dict):
            return {
                self.redact_value(k): self.redact_value(v, k if isinstance(k, str) else "")
                for k, v in value.items()
            }
        if isinstance(value, (list, tuple, set, frozenset)):
            items, previous = [], name
            for item in value:
                items.append(self.redact_value(item, previous))
                previous = item if isinstance(item, str) and item.startswith("-") else name
            return type(value)(items)
        return value

    def redact_named(self, value: str, name: str) -> str:
        """``value`` redacted; altogether if ``name`` says that it is a secret."""
        if names_a_secret(name):
            bare = value.strip("\"'")
            if not PLACEHOLDER.fullmatch(bare) and _may_be_secret(name, bare, assigned=True):
                cleaned = self.redact(value)
                if not PLACEHOLDER.search(cleaned):
                    return value.replace(bare, self.placeholder(_kind(name), bare))
                return cleaned
        return self.redact(value)


def names_a_secret(name: str) -> bool:
    """Whether a field of that name (``api_key``, ``Authorization``) holds a secret."""
    return bool(_SENSITIVE.fullmatch(name))


def _outside(step: Callable[[str], str], text: str) -> str:
    """Apply ``step`` to what lies between placeholders."""
    if "[redacted:" not in text:
        return step(text)
    out, position = [], 0
    for match in PLACEHOLDER.finditer(text):
        out += [step(text[position : match.start()]), match[0]]
        position = match.end()
    return "".join([*out, step(text[position:])])


def _kind(name: str) -> str:
    name = name.lower()
    if "cookie" in name:
        return "cookie"
    return "password" if re.search(r"pass|pwd|credential", name) else "key"


def _may_be_secret(name: str, value: str, *, assigned: bool) -> bool:
    """False for ``api_key=None``, for token ids and for prose such as ``token: expected``.

    Args:
        assigned: by a sign that prose has not: quotes or ``=``.
    """
    if not value or value.lower() in _NO_SECRET:
        return False
    if name.lower().endswith("pwd") and value.startswith(("/", "~")):
        return False  # the working directory
    if name.lower().endswith(("token", "tokens")):
        if value.isdigit() and len(value) < 9:
            return False
        if not assigned:
            return len(value) >= 8 and any(c.isdigit() for c in value)
    return True


def _is_base64(run: str) -> bool:
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
