"""A request's body and path, as they were recorded, made into an operation and its pictures.

What names somebody or something outside (credentials, users, addresses) goes no further than here.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import math
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from mmrepro.base.machine.files import write_file
from mmrepro.base.text.redact import names_a_secret
from mmrepro.traffic.case.model import (
    CHAT,
    COMPLETIONS,
    Case,
    Content,
    Image,
    Message,
    Noise,
    Operation,
    Part,
)


class Contents(Mapping[str, bytes]):
    """Pictures by the SHA-256 of their bytes, each a file of its own: memory holds none.
    ``folder``: where they lie, or shall lie. None: a temporary one, gone with this object."""

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="mmrepro-") if folder is None else None
        self.folder = (
            Path(self._temporary.name) if self._temporary is not None else Path(folder or "")
        )
        self._sizes: dict[str, int] = {}

    def add(self, data: bytes) -> str:
        """Keep ``data``; returns its SHA-256."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._sizes:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_file(self.folder / digest, data)
            self._sizes[digest] = len(data)
        return digest

    def has(self, digests: Iterable[str]) -> None:
        """These lie in the folder already."""
        for digest in digests:
            with contextlib.suppress(OSError):
                self._sizes[digest] = (self.folder / digest).stat().st_size

    def keep(self, digests: Collection[str]) -> None:
        """Remove all others."""
        for digest in self._sizes.keys() - set(digests):
            (self.folder / digest).unlink(missing_ok=True)
            del self._sizes[digest]

    def __getitem__(self, sha256: str) -> bytes:
        if sha256 not in self._sizes:
            raise KeyError(sha256)
        return (self.folder / sha256).read_bytes()

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


@dataclass(frozen=True)
class Captured:
    """A case, and the bytes of the pictures that it keeps by content."""

    case: Case
    contents: Mapping[str, bytes]


# ------------------------------------------------------------------ bodies

GENERATE = "/generate"
"""SGLang's own."""
MAX_DEPTH = 60
UNSEEN_SIZE = (224, 224)
"""Of a picture that the recording names by address only."""

_DATA_URL = re.compile(r"data:([^,;]*(?:;[^,;]+)*?);base64,", re.IGNORECASE)
_ADDRESS = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]{1,20}://\S*\s*")
_PLACE_NAME = re.compile(r"(?:.*_)?(?:url|uri|host|path|file|filename|address)s?", re.IGNORECASE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHO: Final = frozenset(
    {"user", "safety_identifier", "metadata", "prompt_cache_key", "conversation_id"}
)
_OTHERS: Final = (
    frozenset(  # other servers, which the engine would talk to; a request's own headers
        {
            *("kv_transfer_params", "ec_transfer_params", "extra_headers", "extra_query"),
            *("bootstrap_host", "bootstrap_port", "bootstrap_room", "bootstrap_pair_key"),
        }
    )
)


class Unusable(Exception):
    """This request cannot be played; the text says why, in words of ours only."""


class Bodies:
    """Makes operations of bodies; the same picture has one name throughout.

    ``dropped`` and ``changed`` count what was left away, and what was replaced.
    """

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.images: dict[str, Image] = {}
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.models: set[str] = set()
        self._named: dict[tuple[str, str], str] = {}

    def operation(self, path: str, body: object) -> Operation:
        """Raises Unusable."""
        if not isinstance(body, dict):
            raise Unusable("a body that is no JSON object")
        fields = {str(k): v for k, v in body.items()}
        self.models.add(str(fields.pop("model", "")))
        stream = fields.pop("stream", None)
        if stream not in (None, False, True):
            raise Unusable("stream is neither true nor false")
        messages, prompt = None, None
        if path == CHAT and _are_messages(fields.get("messages")):
            messages = [self._message(m) for m in fields.pop("messages")]
        if path == COMPLETIONS and _is_prompt(fields.get("prompt")):
            prompt = self._text(fields.pop("prompt"))
        if path == GENERATE:
            self._only_here(fields)
        return Operation(
            id="r",
            path=path,
            messages=messages,
            prompt=prompt,
            parameters=self._kept(fields),
            stream=bool(stream),
        )

    # ------------------------------------------------------------------ messages

    def _message(self, message: dict[str, Any]) -> Message:
        content = message.get("content")
        more = {k: v for k, v in message.items() if k not in ("role", "content")}
        if content is None:
            self.changed["content-null"] += 1
        return Message(
            role=self._text(message["role"]),
            content=(
                [part for one in content for part in self._part(one)]
                if isinstance(content, list)
                else self._text(content or "")
            ),
            more=self._kept(more),
        )

    def _part(self, part: dict[str, Any]) -> list[Part]:
        """The part; none where it was nothing but an address."""
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str) and len(part) == 2:
            return [Part(text=self._text(part["text"]))]
        if kind == "image_url":
            return self._image(part)
        before = self.dropped["address"]
        kept = self._kept(part)
        if self.dropped["address"] > before:
            self.changed["part-by-address"] += 1
            return []
        return [Part(raw=kept)]

    def _image(self, part: dict[str, Any]) -> list[Part]:
        shown = part.get("image_url")
        more = set(part) - {"type", "image_url"}
        more -= {"modalities"} if part.get("modalities") == "image" else set()  # SGLang adds it
        if isinstance(shown, dict):
            more |= set(shown) - {"url", "detail"}
            self.dropped["image detail"] += "detail" in shown
            shown = shown.get("url")
        if not isinstance(shown, str):
            return [Part(raw=self._kept(part))]
        if shown[:5].lower() != "data:":
            self.dropped["address"] += 1
            return [Part(image=self._by_address(shown))]
        found = _DATA_URL.match(shown)
        data = None if found is None or more else canonical(shown[found.end() :])
        if found is None or data is None:
            self.changed["image-raw"] += not more
            return [Part(raw=self._kept(part))]
        return [Part(image=self._by_content(data, found[1]))]

    def _by_content(self, data: bytes, media_type: str) -> str:
        digest = self.contents.add(data)
        return self._name(
            ("content", f"{digest} {media_type}"), Content(sha256=digest, media_type=media_type)
        )

    def _by_address(self, address: str) -> str:
        self.changed["image-by-address"] += 1
        number = sum(kind == "address" for kind, _ in self._named)
        return self._name(("address", address), Noise(seed=number + 1, size=UNSEEN_SIZE))

    def _name(self, identity: tuple[str, str], image: Image) -> str:
        name = self._named.setdefault(identity, f"i{len(self._named) + 1}")
        self.images.setdefault(name, image)
        return name

    # ------------------------------------------------------------------ anything

    def _only_here(self, fields: dict[str, Any]) -> None:
        """Pictures and sounds of SGLang's own requests are also read from paths on its machine.
        Raises Unusable."""
        for name in ("image_data", "video_data", "audio_data"):
            if not all(_carried(value) for value in _leaves(fields.get(name))):
                raise Unusable("pictures or sounds by address or path")

    def _kept(self, fields: dict[str, Any], depth: int = 0) -> dict[str, Any]:
        """Without what tells who asked, and without addresses; to any depth."""
        kept = {}
        for name, value in fields.items():
            # Deeper, a name may be that of a tool's parameter, and what it holds a schema.
            own = depth == 0 or not isinstance(value, dict | list)
            if name in _WHO and own:
                self.dropped["user"] += 1
            elif name in _OTHERS and own:
                self.dropped["address"] += 1
            elif names_a_secret(name) and own:
                self.dropped["credential"] += 1
            elif _is_address(name, value):
                self.dropped["address"] += 1
            else:
                kept[self._text(name)] = self._value(value, depth + 1)
        return kept

    def _value(self, value: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise Unusable(f"nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            return self._kept(value, depth)
        if isinstance(value, list):
            return [self._value(item, depth + 1) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise Unusable("NaN or Infinity, which are no JSON")
        return self._text(value)

    def _text(self, value: Any) -> Any:
        """``value``, if it is a text as it can be written to a file again."""
        if isinstance(value, str) and _SURROGATE.search(value):
            self.changed["surrogates"] += 1
            return _SURROGATE.sub("\ufffd", value)
        return value


def canonical(text: str) -> bytes | None:
    """The bytes of a Base64 text; None where encoding them again gives another text."""
    try:
        data = base64.b64decode(text)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == text else None


def _are_messages(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_message, value))


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    if isinstance(content, list):
        return all(isinstance(part, dict) for part in content)
    return isinstance(content, str | None)


def _is_prompt(value: object) -> bool:
    """Text, or ids of tokens; several prompts in one request are kept as they are."""
    return isinstance(value, str) or (
        isinstance(value, list) and bool(value) and all(type(item) is int for item in value)
    )


def _is_address(name: str, value: object) -> bool:
    if not isinstance(value, str) or value[:5].lower() == "data:":
        return False
    if name in ("text", "content", "prompt"):
        return False
    return bool(_PLACE_NAME.fullmatch(name) or _ADDRESS.fullmatch(value))


def _leaves(value: Any) -> list[Any]:
    """Raises RecursionError: it is nested without end, which JSON that was parsed is not."""
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, dict):
        return [value.get("url", "")]
    return [] if value is None else [value]


def _carried(value: object) -> bool:
    """The picture or sound itself: a data: URL, or Base64 of some length."""
    if not isinstance(value, str):
        return False
    return value[:5].lower() == "data:" or (len(value) >= 64 and canonical(value) is not None)


# ------------------------------------------------------------------ paths

_PLAYED: Final = (("/chat/completions", CHAT), ("/completions", COMPLETIONS), (GENERATE, GENERATE))
_KNOWN: Final = re.compile(
    r"/(?:v1/(?:models|embeddings|responses|messages|score|rerank)|health|metrics|tokenize|ping)/?$"
)


def played_path(address: str) -> str:
    """The path under which it is played, whatever a gateway put before it. Raises Unusable: it is
    no request of the kind; says so without the address."""
    try:
        path = urlsplit(address).path.rstrip("/")
    except ValueError as error:
        raise Unusable("an entry without an address") from error
    for end, played in _PLAYED:
        if path.endswith(end):
            return played
    known = _KNOWN.search(path)
    raise Unusable(f"POST to {known[0]}" if known else "POST to another path")
