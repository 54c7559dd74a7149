"""One consistent mapping of what is private to placeholders, for everything a run
writes.

What leaves is allowed, not what is forbidden removed: words, identifiers, numbers,
versions, paths, frames and whatever is called a digest stay; any other opaque token
goes (``text.opaque``). Beside that go what is named a secret (``text.named``,
``text.spoken``) or what a command takes as one (``text.commands``), however short, and
what is private by its looks (``text.looks``); all of it in other encodings as well
(``text.encoded``).

The same secret has the same placeholder everywhere (``[redacted:key-1]``), so that a
reader can still see that two places hold the same value. What is evidence survives:
SHA-256 digests, package hashes, git ids, mm_hash values, file names, token counts.

Time is linear in the text. Nothing here raises on any string.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_origin
from urllib.parse import quote

from mmrepro.base.text import encoded, looks, people
from mmrepro.base.text.commands import handed, in_commands
from mmrepro.base.text.named import HINT, Secrecy, Value, firm, kind_of, secrecy, values
from mmrepro.base.text.opaque import (
    DIGEST,
    Span,
    is_opaque,
    names_a_digest,
    opaque_spans,
)
from mmrepro.base.text.sanitize import without_disguise
from mmrepro.base.text.spoken import in_tables, spoken
from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)

_PLAIN: Final = frozenset({type(None), bool, int, float})
_CLEAN: Final[dict[str, set[str]]] = {}
"""By home: short texts of which nothing is private. A document is written again and
again."""

PLACEHOLDER: Final = re.compile(r"\[redacted:[a-z]{1,20}-\d{1,9}\]")
# Shorter registered secrets would redact ordinary words: a prompt "hi" is in every
# "while".
MIN_SECRET: Final = 6
MAX_CACHED: Final = 64 << 20
"""Characters of texts whose results are kept: long ones occur again and again."""
MAX_TEXT: Final = 8 << 20
_CUT: Final = " [cut: too long to redact]"
# What a client keeps of a prompt, and what engines log of it.
_HEADS: Final = (200, 100)

_SPELLED: Final = frozenset({"key", "password", "cookie", "secret"})
"""Kinds of which other spellings are looked for."""
_LONGEST_SPELLED: Final = 256
_MOST_KEPT: Final = 256

# A terminal's width breaks a token; what stands behind it on the next line is its rest.
_WRAPPED: Final = re.compile(
    rf"""({PLACEHOLDER.pattern}["'\\]{{0,3}}\r?\n[ \t>|]{{0,24}})([A-Za-z0-9+/=_-]{{4,}})"""
)
_BROKEN: Final = re.compile(
    r"(?<![A-Za-z0-9+/=_.:-])([A-Za-z0-9+/=_-]{6,256})"
    r"(\\?\r?\n[ \t]{0,24})([A-Za-z0-9+/=_-]{6,256})"
)
_NO_SECRET: Final = re.compile(
    r"none|null|true|false|nil|undefined|str|int|bool|any|optional|secretstr|string|\*+"
    r"|\.{3}|x{3,}"
    r"|\$\{\w{1,80}\}?|\$[A-Z_][A-Z0-9_]{0,80}|(?:self|cls|os|args|config|settings"
    r"|kwargs|request)\..*"
    r"|<[\w .-]{0,40}>|[(\[{]*<[\w. ]{1,80} at 0x[0-9a-f]+>.*"
    r"|\d{1,4}(?:\.\d{1,4}){1,3}",
    re.IGNORECASE | re.DOTALL,
)


class Redactor:
    """The mapping of one run.

    Args:
        home: the current user's home, shown as ``~``; by default the real one.
    """

    def __init__(self, home: Path | str | None = None) -> None:
        path = str(Path.home() if home is None else home).rstrip("/")
        # Digests, not the secrets themselves: a mapping that leaks into a dump gives
        # nothing away.
        self._placeholders: dict[bytes, str] = {}
        self._counts: dict[str, int] = {}
        self._registered: list[tuple[str, str]] = []
        self._cache: dict[str, str] = {}
        self._cached = 0
        self._digests: set[str] = set()
        self._sizes: dict[str, int] = {}
        """Characters of what each placeholder stands for."""
        self._secrets: dict[str, str] = {}
        """The last secrets that were found, and what stands for each: a text may spell
        one in other ways. As in the cache of texts, they are kept no longer than this
        object."""
        self._walks = False
        self._clean = _CLEAN.setdefault(path, set())
        self._home = (
            re.compile(rf"(?:(?<![\w./~-])|(?<=://)){re.escape(path)}(?![\w.-])")
            if len(path) > 1
            else None
        )

    def add(self, secret: str, kind: str = "secret") -> str:
        """Register a secret that no pattern would know; returns its placeholder.

        Also its forms as JSON, Python and URLs have it, and its beginning (prompts are
        logged cut). Of fewer than ``MIN_SECRET`` characters: not registered, returns an
        empty string."""
        if len(secret.strip()) < MIN_SECRET:
            return ""
        kind = re.sub(r"[^a-z]", "", kind.lower())[:20] or "secret"
        placeholder = self.placeholder(kind, secret)
        if len(secret) <= _LONGEST_SPELLED:
            self._remember(secret, placeholder)
        forms = {secret, secret.strip()} | {
            secret[:n] for n in _HEADS if len(secret) > n
        }
        for form in list(forms):
            forms |= {
                json.dumps(form)[1:-1],
                json.dumps(form, ensure_ascii=False)[1:-1],
            }
            forms |= {
                repr(form)[1:-1],
                without_disguise(form),
                quote(form, safe="", errors="replace"),
            }
        known = {text for text, _ in self._registered}
        self._registered += [
            (form, placeholder) for form in forms - known if form.strip()
        ]
        self._registered.sort(key=lambda pair: (-len(pair[0]), pair))
        self._cache.clear()
        self._cached = 0
        return placeholder

    def reserve(self, text: str) -> None:
        """Number new placeholders after those in ``text``: another mapping made
        them."""
        for match in PLACEHOLDER.finditer(text):
            kind, _, number = match[0][len("[redacted:") : -1].rpartition("-")
            self._counts[kind] = max(self._counts.get(kind, 0), int(number))

    def know(self, digests: Iterable[str]) -> None:
        """These are digests, as commits are, whatever field holds them."""
        self._digests.update(digests)

    def redact(self, text: str) -> str:
        """``text`` with everything private replaced. Idempotent; at most 8 MiB are
        kept."""
        return self._respelled(self._redacted(text))

    def _redacted(self, text: str) -> str:
        if len(text) < MIN_SECRET or (text in self._clean and not self._registered):
            return text
        if _is_digest(text):
            return text
        known = self._cache.get(text)
        if known is not None:
            return known
        result = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + _CUT
        seen = without_disguise(result)
        if seen != result and (shown := self._settled(seen)) != seen:
            result = (
                shown  # without its colours, since something private stands among them
            )
        result = self._settled(result)
        if result == text and len(text) <= 512 and not self._registered:
            if len(self._clean) < 50_000:
                self._clean.add(text)
        elif len(self._cache) < 50_000 and self._cached + len(text) <= MAX_CACHED:
            self._cache[text] = result
            self._cached += len(text)
        return result

    def redact_model(self, model: M) -> M:
        """A copy of ``model`` with every string in it redacted, dictionary keys as
        well.

        The value of a field or key whose name says that it is a secret (``api_key``),
        or that follows such an option in a list (``--api-key``, …), is redacted
        whatever it looks like."""
        outer, self._walks = self._walks, True
        try:
            made = self._model(model)
        finally:
            self._walks = outer
        # A field may spell a secret that a later one names.
        if outer or not self._secrets:
            return made
        listing = _Listing()
        listing._model(made)
        found = encoded.spelled("\n".join(listing.texts), self._secrets)
        spelled = {secret: self._secrets[secret] for _, _, secret in found}
        return _Respelling(spelled)._model(made) if spelled else made

    # -------------------------------------------------------------- steps

    def _settled(self, text: str) -> str:
        # What is encoded goes first, whole: of "password=68 75" a rule would take the
        # "68".
        text = _outside(self._decoded, text)
        for _ in range(4):
            before = text = self._ruled(text, self._steps())
            text = _outside(lambda part: self._decoded(part, all_of_it=True), text)
            if text == before:
                break
        return text

    def _ruled(self, text: str, steps: Iterable[Callable[[str], str]]) -> str:
        # A replacement changes the neighbourhood of what is next to it, so once more
        # until nothing changes; two rounds in practice.
        steps = list(steps)
        for _ in range(8):
            before = text
            for step in steps:
                text = _outside(step, text)
            text = self._rests(text)
            if text == before:
                break
        return text

    def _steps(self) -> Iterator[Callable[[str], str]]:
        """What is done to a text, in this order."""
        if self._registered:
            yield self._known
        yield from self._rules()
        yield self._home_paths

    def _rules(self) -> Iterator[Callable[[str], str]]:
        """Steps that put nothing but placeholders, each for what it replaces."""
        yield lambda t: self.hide("privatekey", t, looks.key_blocks(t))
        yield lambda t: _sub(looks.DATA_URL, self._second("image"), t, ";base64,")
        yield lambda t: _sub(looks.URL, self._url, t, "://")
        yield lambda t: _sub(looks.STORE_URL, self._url, t, "://")
        yield from self._keys()
        yield lambda t: self.hide("prompt", t, looks.prompts(t))
        yield lambda t: _sub(looks.TOKEN_IDS, self._token_ids, t, "_ids")
        yield lambda t: _sub(looks.GPU, lambda m: self.placeholder("gpu", m[0]), t, "-")
        yield lambda t: looks.BASE64.sub(self._base64, t)
        yield lambda t: self.hide("email", t, looks.emails(t))
        yield self._people
        yield lambda t: _sub(_BROKEN, self._broken, t, "\n")
        yield lambda t: self.hide("opaque", t, self._unknown(t))

    def _keys(self) -> Iterator[Callable[[str], str]]:
        """Steps for keys and passwords, by their looks, their names and what is said
        before them."""
        yield lambda t: looks.TOKENS.sub(lambda m: self.placeholder("key", m[0]), t)
        yield self._named
        yield self._spoken
        yield lambda t: looks.BEARER.sub(self._second("key"), t)
        for pattern in looks.SPOKEN:
            yield lambda t, p=pattern: p.sub(self._second("password"), t)  # type: ignore[misc]

    def secrets(self) -> Iterator[Callable[[str], str]]:
        """Steps for what is secret on the user's own screen as well: keys, passwords,
        pictures and prompts."""
        yield lambda t: self.hide("privatekey", t, looks.key_blocks(t))
        yield lambda t: _sub(looks.DATA_URL, self._second("image"), t, ";base64,")
        yield from self._keys()
        yield lambda t: self.hide("prompt", t, looks.prompts(t))
        yield lambda t: _sub(looks.TOKEN_IDS, self._token_ids, t, "_ids")

    def _decoded(self, text: str, *, all_of_it: bool = False) -> str:
        """``text`` without what its decoded views show to be private.

        Args:
            all_of_it: also where nothing is encoded, because a name before it is.
        """
        pieces: list[tuple[int, int, str]] = []
        for view in encoded.views(text):
            for start, end, placeholder in self._private_in(view.text):
                if all_of_it or view.decodes(start, end):
                    pieces.append((*view.source(start, end), placeholder))
        return _replaced(text, sorted(pieces, key=lambda piece: (piece[0], -piece[1])))

    def _private_in(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Where the rules hide something in ``text``, and what stands for it."""
        position = 0
        for own in [*PLACEHOLDER.finditer(text), None]:
            end = own.start() if own else len(text)
            yield from self._private_between(text[position:end], position)
            position = own.end() if own else end

    def _private_between(
        self, text: str, offset: int
    ) -> Iterator[tuple[int, int, str]]:
        """The same, of a text that has no placeholder yet."""
        ruled = self._ruled(text, self._rules())
        if ruled == text:
            return
        # Where a placeholder stands is told by the lengths of what the others stand
        # for.
        at = position = 0
        for match in PLACEHOLDER.finditer(ruled):
            at += match.start() - position
            size = self._sizes[match[0]]
            yield offset + at, offset + at + size, match[0]
            at += size
            position = match.end()

    def _respelled(self, text: str) -> str:
        """``text`` without other spellings of the secrets that are known."""
        if self._walks or not self._secrets:
            return text
        return _outside(lambda part: _without(part, self._secrets), text)

    def _remember(self, secret: str, placeholder: str) -> None:
        """Look for spellings of ``secret`` from now on."""
        bare = secret.strip("\"'")
        if encoded.LEAST_SECRET <= len(
            bare
        ) <= _LONGEST_SPELLED and not PLACEHOLDER.search(bare):
            self._secrets[bare] = placeholder
            if len(self._secrets) > _MOST_KEPT:
                del self._secrets[next(iter(self._secrets))]

    def _unknown(self, text: str) -> list[Span]:
        """Opaque tokens that are no digest that is known."""
        return [
            span
            for span in opaque_spans(text)
            if text[slice(*span)] not in self._digests
        ]

    def _known(self, text: str) -> str:
        for secret, placeholder in self._registered:
            if secret in text:
                # Between placeholders only: a secret "redacted" must not break them.
                replaced = functools.partial(
                    _secret_replaced, secret=secret, placeholder=placeholder
                )
                text = _outside(replaced, text)
        return text

    def _second(self, kind: str) -> Callable[[re.Match[str]], str]:
        return lambda match: match[1] + self.placeholder(kind, match[2])

    def _url(self, match: re.Match[str]) -> str:
        user, colon, password = match[2].partition(":")
        if not colon:
            return match[1] + self.placeholder("password", user)
        shown = self.placeholder("user", user) if user else ""
        return (
            match[1]
            + shown
            + colon
            + (self.placeholder("password", password) if password else "")
        )

    def _named(self, text: str) -> str:
        found = values(
            text, HINT, lambda name: secrecy(name) > 0, whole_line=_to_the_end
        )
        return _replaced(
            text,
            ((v.start, v.end, self._hidden(v, text[v.start : v.end])) for v in found),
        )

    def _spoken(self, text: str) -> str:
        """What a command takes, and what words, blanks or a table join to a name."""
        pieces: list[tuple[int, int, str]] = []
        for start, end in [*in_commands(text), *handed(text)]:
            secret = text[start:end]
            if not _NO_SECRET.fullmatch(secret):
                pieces.append((start, end, self.placeholder("password", secret)))
        for start, end, name in [*spoken(text), *in_tables(text)]:
            secret = text[start:end]
            if _may_be_secret(name, secret, assigned=True):
                pieces.append((start, end, self.placeholder(kind_of(name), secret)))
        return _replaced(text, sorted(pieces, key=lambda piece: (piece[0], -piece[1])))

    def _hidden(self, value: Value, text: str) -> str:
        scheme = looks.SCHEME.match(text)
        lead = scheme[0] if scheme else ""
        secret, tail = text[len(lead) :], ""
        if lead and not value.quoted and not lead.lower().startswith("digest"):
            # One word is the secret; what follows it may be the rest of a command line.
            word = first[0] if (first := looks.WORD.match(secret)) else ""
            secret, tail = word, secret[len(word) :]
        bare = secret.strip(" \t\"'")
        if not _may_be_secret(value.name, bare, assigned=value.assigned):
            return text
        return lead + self.placeholder(kind_of(value.name), secret) + tail

    def _token_ids(self, match: re.Match[str]) -> str:
        name, separator, ids = match.groups()
        inside = ids.rstrip("], \t")
        return (
            f"{name}{separator}{self.placeholder('tokens', inside)}{ids[len(inside) :]}"
        )

    def _base64(self, match: re.Match[str]) -> str:
        return (
            self.placeholder("base64", match[0])
            if looks.is_base64(match[0])
            else match[0]
        )

    def _home_paths(self, text: str) -> str:
        if self._home is not None:
            text = self._home.sub("~", text)
        return text

    def _people(self, text: str) -> str:
        """What belongs to a person, and machines that are not this one."""
        found = people.private(text)
        return _replaced(
            text, ((a, b, self.placeholder(kind, text[a:b])) for a, b, kind in found)
        )

    def _broken(self, match: re.Match[str]) -> str:
        """A token that is only one with what stands on the next line."""
        head, gap, tail = match.groups()
        joint = len(head)
        if DIGEST.fullmatch(head) or DIGEST.fullmatch(tail):
            return match[0]
        if not any(
            begin + 4 <= joint <= end - 4 for begin, end in opaque_spans(head + tail)
        ):
            return match[0]
        return self.placeholder("opaque", head) + gap + self.placeholder("opaque", tail)

    def _rests(self, text: str) -> str:
        """What a line's width cut off a token that is a placeholder already."""
        if "\n" not in text:
            return text
        return _WRAPPED.sub(
            lambda m: (
                m[1] + self.placeholder("opaque", m[2]) if _is_rest(m[2]) else m[0]
            ),
            text,
        )

    # -------------------------------------------------------------- mapping and models

    def placeholder(self, kind: str, secret: str) -> str:
        """What stands for ``secret``, here and wherever it comes up again."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        known = self._placeholders.get(digest)
        if known is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            known = self._placeholders[digest] = (
                f"[redacted:{kind}-{self._counts[kind]}]"
            )
            self._sizes[known] = len(secret)
        if kind in _SPELLED:
            self._remember(secret, known)
        return known

    def hide(self, kind: str, text: str, spans: Iterable[Span]) -> str:
        """``text`` with placeholders at ``spans``, which come in order."""
        return _replaced(
            text, ((*s, self.placeholder(kind, text[slice(*s)])) for s in spans)
        )

    def _model(self, model: M) -> M:
        changes: dict[str, Any] = {}
        label = getattr(model, "name", "")
        for name in _fields(type(model)):
            value = getattr(model, name)
            told = name if name != "value" or not isinstance(label, str) else label
            new = self.redact_value(value, told)
            if new is not value:
                changes[name] = new
        return model.model_copy(update=changes) if changes else model

    def redact_value(self, value: Any, name: str = "") -> Any:
        """``value`` with every string in it redacted, however deep; ``name``: what it
        is called.

        Where nothing in it changes, it is ``value`` itself.
        """
        if type(value) in _PLAIN or isinstance(value, Enum):
            return value
        if isinstance(value, str):
            return self.redact_named(value, name)
        if isinstance(value, BaseModel):
            return self._model(value)
        if isinstance(value, dict):
            pairs = [
                (self.redact_value(k), self.redact_value(v, _called(k, value)))
                for k, v in value.items()
            ]
            same = all(
                a is c and b is d
                for (a, b), (c, d) in zip(pairs, value.items(), strict=True)
            )
            return value if same else dict(pairs)
        if isinstance(value, (list, tuple, set, frozenset)):
            items = list(value)
            new = list(self._items(items, name))
            same = all(a is b for a, b in zip(new, items, strict=True))
            return value if same else type(value)(new)
        return value

    def _items(self, items: list[Any], name: str) -> Iterator[Any]:
        """Of a list: an option names what follows it, a header's name its value."""
        told = name
        pair = (
            len(items) == 2 and isinstance(items[0], str) and names_a_secret(items[0])
        )
        for number, item in enumerate(items):
            option = isinstance(item, str) and item.startswith("-")
            yield self.redact_value(
                item, items[0] if pair and number else name if option else told
            )
            if option:
                told = item
            elif not told.lower().endswith(("key", "keys")):  # vLLM takes several keys
                told = name

    def redact_named(self, value: str, name: str) -> str:
        """``value`` redacted; altogether if ``name`` says that it is a secret."""
        if value in self._digests:
            return value
        name = name.lstrip("-")
        told = secrecy(name)
        if not told and value in self._clean and not self._registered:
            return value
        bare = value.strip("\"'")
        if told and not PLACEHOLDER.search(bare):
            scheme = looks.SCHEME.match(bare)
            secret = bare[scheme.end() :] if scheme else bare
            if _may_be_secret(name, secret, assigned=True):
                return value.replace(secret, self.placeholder(kind_of(name), secret))
        if _is_digest(value) and not names_a_digest(name):
            return self.hide("opaque", value, opaque_spans(value))
        return self.redact(value)


class _Listing(Redactor):
    """Lists all texts of a model."""

    def __init__(self) -> None:
        super().__init__(home="/")
        self.texts: list[str] = []

    def redact_named(self, value: str, name: str) -> str:
        self.texts.append(value)
        return value


class _Respelling(Redactor):
    """Puts placeholders in the place of other spellings of secrets that are known, and
    no more."""

    def __init__(self, secrets: dict[str, str]) -> None:
        super().__init__(home="/")
        self._wanted = secrets

    def redact_named(self, value: str, name: str) -> str:
        return _outside(lambda part: _without(part, self._wanted), value)


@functools.cache
def _fields(model: type[BaseModel]) -> list[str]:
    """Fields that may hold any text."""
    fields = model.model_fields.items()
    return [
        name
        for name, field in fields
        if get_origin(field.annotation) is not Literal and field.alias != "$id"
    ]


def names_a_secret(name: str) -> bool:
    """Whether a field of that name (``api_key``, ``Authorization``) holds a secret."""
    return secrecy(name.lstrip("-")) >= Secrecy.TOKEN


def _is_digest(text: str) -> bool:
    """Digits alone are a number, of a card for example; bytes that can be read are a
    text."""
    if DIGEST.fullmatch(text) is None or text.isdecimal():
        return False
    return not encoded.is_readable(text.strip("\"'"))


def _called(key: Any, beside: dict[Any, Any]) -> str:
    """What a value is called: by its key, or by what stands beside it as in
    Kubernetes."""
    label = beside.get("name", beside.get("key"))
    if key in ("value", "Value") and isinstance(label, str):
        return label
    return key if isinstance(key, str) else ""


def _secret_replaced(text: str, *, secret: str, placeholder: str) -> str:
    return text.replace(secret, placeholder)


def _outside(step: Callable[[str], str], text: str) -> str:
    """Apply ``step`` to what lies between placeholders."""
    if "[redacted:" not in text:
        return step(text)
    out, position = [], 0
    for match in PLACEHOLDER.finditer(text):
        out += [step(text[position : match.start()]), match[0]]
        position = match.end()
    return "".join([*out, step(text[position:])])


def _without(text: str, secrets: dict[str, str]) -> str:
    """``text`` without other spellings of ``secrets``."""
    found = encoded.spelled(text, secrets)
    return _replaced(
        text, ((start, end, secrets[secret]) for start, end, secret in found)
    )


def _replaced(text: str, pieces: Iterable[tuple[int, int, str]]) -> str:
    """``text`` with something else at some places, given in order."""
    out, position = [], 0
    for start, end, new in pieces:
        if start >= position:
            out += [text[position:start], new]
            position = end
    return "".join([*out, text[position:]]) if out else text


def _sub(
    pattern: re.Pattern[str], new: Callable[[re.Match[str]], str], text: str, needs: str
) -> str:
    return pattern.sub(new, text) if needs in text else text


def _to_the_end(name: str) -> bool:
    return name.lower().endswith(("authorization", "cookie", "seed phrase", "mnemonic"))


def _is_rest(fragment: str) -> bool:
    """The end of a token, told from a word, a number and a date."""
    if is_opaque(fragment):
        return True
    letters, digits = (
        any(c.isalpha() for c in fragment),
        any(c.isdigit() for c in fragment),
    )
    mixed = fragment != fragment.lower() and fragment[1:] != fragment[1:].lower()
    return letters and (digits or (mixed and fragment != fragment.upper()))


def _may_be_secret(name: str, value: str, *, assigned: bool) -> bool:
    """False for ``api_key=None``, for token ids and for prose such as ``token:
    expected``.

    Args:
        assigned: by a sign that prose has not: quotes or ``=``.
    """
    if not value or _NO_SECRET.fullmatch(value):
        return False
    if name.lower().endswith("pwd") and value.startswith(("/", "~")):
        return False  # the working directory
    told = secrecy(name)
    numbered = len(value) >= 8 and any(c.isdigit() for c in value)
    if told is Secrecy.WEAK:
        if assigned and firm(name) and len(value) > 2:
            return not value.isdigit() or name.lower().endswith(("pin", "otp"))
        return numbered and any(c.isalpha() for c in value)
    if told is Secrecy.TOKEN:
        if value.isdigit() and len(value) < 9:
            return False
        return assigned or numbered or name.strip("-").lower() != "token"
    return True
