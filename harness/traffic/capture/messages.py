"""A request's body and path, as they were recorded, made into an operation and its
pictures.

What names somebody or something outside (credentials, users, addresses) goes no further
than here."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import math
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email import message_from_bytes
from email.policy import HTTP
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from mmrepro.base.machine import write_file
from mmrepro.base.text import goes_out, is_address, is_local, names_a_secret
from mmrepro.traffic.capture.parsing import no_constant
from mmrepro.traffic.case.bodies import JSON_TYPE, are_messages, body, is_prompt, opened
from mmrepro.traffic.case.fetching import HOSTS, fetches
from mmrepro.traffic.case.model import (
    CHAT,
    COMPLETIONS,
    Case,
    Content,
    FormPart,
    Image,
    Layout,
    Message,
    Noise,
    Operation,
    Part,
)
from mmrepro.traffic.pictures import Picture


class Contents(Mapping[str, bytes]):
    """Pictures by the SHA-256 of their bytes, each a file of its own: memory holds
    none.

    ``folder`` is where they lie, or shall lie. None: a temporary one, gone with this
    object."""

    def __init__(self, folder: Path | None = None) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="mmrepro-")
            folder = Path(self._temporary.name)
        self.folder = folder
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

MAX_DEPTH = 60
UNSEEN_SIZE = (224, 224)
"""Of a picture that the recording names by address only."""

_DATA_URL = re.compile(r"data:([^,;]*(?:;[^,;]+)*?);base64,", re.IGNORECASE)
_PLACE_NAME = re.compile(
    r"(?:.*_)?(?:url|uri|host|path|file|filename|address)s?", re.IGNORECASE
)
_FETCHED: Final = (
    "input",
    "messages",
    "images",
    "image",
    "documents",
    "query",
    "data_1",
    "data_2",
)
"""Fields of a body in which pictures and sounds may be given by address."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_WHO: Final = frozenset(
    {"user", "safety_identifier", "metadata", "prompt_cache_key", "conversation_id"}
)
_NOT_KEPT: Final = re.compile(
    # between two machines, or of the client's own: who sends the case has others
    r"host|content-length|connection|keep-alive|transfer-encoding|te|trailer|upgrade"
    r"|expect"
    r"|accept-encoding|proxy-.*|:.*|user-agent|origin|referer|forwarded|x-forwarded-.*"
    r"|x-real-ip"
    r"|via|cf-.*|sec-.*|dnt|x-stainless-.*|openai-(?:organization|project)|from"
    r"|priority"
)
_SECRET_HEADERS: Final = re.compile(
    r"(?:set-)?cookie2?|(?:proxy-)?authorization|.*api-?key.*"
)


class Unusable(Exception):
    """This request cannot be played; the text says why, in words of ours only."""


class AsItIs(Unusable):
    """This body cannot be taken apart without a change."""


_COMPACT = re.compile(r'\{"(?:[^"\\]|\\.)*":\S|\{\}')
_HEADER: Final = re.compile(r"[!-9;-~]+")
_PLAIN_HEADERS: Final = frozenset(
    {
        "content-type",
        "accept",
        "x-request-id",
        "x-data-parallel-rank",
        "anthropic-version",
    }
)
"""Headers of a recording that say nothing of who asked."""


_DROPPED: Final = {
    "credential": "fields and headers with credentials are left away",
    "query": "parts of a query with credentials are left away",
}
_CHANGED: Final = {
    "image-by-address": "pictures were given by address, and nothing is fetched: noise "
    f"of {UNSEEN_SIZE[0]} x {UNSEEN_SIZE[1]} pixels replaces each, the same for the "
    "same address",
    "part-by-address": (
        "other parts of messages were nothing but an address, and are left away"
    ),
    "image-raw": (
        "pictures are not in the usual Base64, and are sent exactly as they were"
    ),
    "host": "fields named another host, and name this machine",
    "who": "texts that tell who asked (user, metadata) are others of the same length",
    "prefix": "requests are sent without what a gateway put before the path",
}


class Bodies:
    """Makes operations of requests; the same picture has one name throughout.

    ``dropped`` and ``changed`` count what was left away, and what was replaced.
    ``own``: somebody wrote the requests down to show them (a report): names in them
    stay as they are. In a recording of other people's traffic texts of fields that tell
    who asked become others of the same length."""

    def __init__(self, contents: Contents, *, own: bool = False) -> None:
        self.contents, self.own = contents, own
        self.adapters: set[str] = set()
        """Names of models that a request loads: they stay."""
        self._stand_ins: dict[str, str] = {}
        self.images: dict[str, Image] = {}
        self.dropped: Counter[str] = Counter()
        self.changed: Counter[str] = Counter()
        self.models: set[str] = set()
        self._named: dict[tuple[str, str], str] = {}

    def request(
        self, method: str, target: str, headers: Iterable[tuple[str, str]], raw: bytes
    ) -> Operation:
        """Make an operation of any request; its body byte for byte, but for what must not
        go further. Raises Unusable."""
        path, query = self._target(target)
        headers = list(headers)
        kind = ""
        for name, value in headers:
            if name.lower() == "content-type":
                kind = value
                break
        kept_headers = self._headers(headers, json=kind.partition(";")[0] == JSON_TYPE)
        about: dict[str, Any] = {
            "method": method,
            "path": path,
            "query": query,
            "headers": kept_headers,
        }
        if not raw:
            return Operation(id="r", model="", **about)
        form = None
        if kind.lower().startswith("multipart/form-data"):
            form = _form(raw, kind)
        if form is not None:
            # Its boundary is another one when the form is sent again.
            kept_headers.pop("Content-Type", None)
            self.models.update(part.text or "" for part in form if part.name == "model")
            return Operation(id="r", form=form, **about)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            return Operation(id="r", data=base64.b64encode(raw).decode(), **about)
        return self._written(text, about)

    def _written(self, text: str, about: dict[str, Any]) -> Operation:
        """Make an operation of a body of text: taken apart where putting it together again
        gives the same bytes, or where something of it may not stay; else as it is. Raises
        Unusable."""
        before = self.dropped.copy(), self.changed.copy()
        as_it_is = Operation(id="r", body=text, **about)
        try:
            fields = json.loads(text, parse_constant=no_constant)
            apart = self.operation(about["path"], fields)
        except (ValueError, RecursionError, AsItIs):
            self.dropped, self.changed = before
            if fetches(text):
                raise Unusable(
                    "an address of another machine in a body that stays as it is"
                ) from None
            named = opened(as_it_is) if "model" in text else as_it_is
            return self._with_model(as_it_is, named.parameters.get("lora_name"))

        model = fields.get("model")
        layout = Layout(
            keys=list(fields),
            compact=_COMPACT.match(text) is not None,
            ascii=text.isascii(),
        )
        # None: the model of the server that is asked; "": none is named.
        server_model = None if "model" in fields else ""
        update = {**about, "layout": layout, "model": server_model}
        apart = apart.model_copy(update=update)
        may_not_stay = (self.dropped, self.changed) != before
        if may_not_stay or self._is_same(apart, model, text):
            return self._with_model(apart, model)
        return self._with_model(as_it_is, model)

    def _is_same(self, apart: Operation, model: object, text: str) -> bool:
        """Whether a body that was taken apart becomes the same bytes again."""
        if model is not None:
            if not isinstance(model, str):
                return False
            apart = apart.model_copy(update={"model": model})
        try:
            return body(apart, self._pictures(apart), "") == text.encode()
        except UnicodeEncodeError:
            return False

    def _with_model(self, operation: Operation, model: object) -> Operation:
        """Name the model that the request names, if that is one which stays."""
        if operation.path.endswith("load_lora_adapter"):
            loaded = opened(operation).parameters.get("lora_name")
            if isinstance(loaded, str):
                self.adapters.add(loaded)
        if isinstance(model, str) and model in self.adapters:
            return operation.model_copy(update={"model": model})
        return operation

    def _pictures(self, operation: Operation) -> dict[str, Picture]:
        pictures: dict[str, Picture] = {}
        for name in operation.images:
            image = self.images[name]
            if isinstance(image, Content):
                data = self.contents[image.sha256]
                pictures[name] = Picture(name, data, 0, 0, image.media_type)
        return pictures

    def printed(self, path: str, fields: object) -> Operation:
        """Make an operation of a body of JSON that a log printed. Raises Unusable."""
        if not isinstance(fields, dict):
            raise Unusable("a body that is no JSON object")
        try:
            return self.operation(path, fields)
        except AsItIs:
            return Operation(id="r", path=path, body=json.dumps(fields))
        except RecursionError as error:
            raise Unusable(f"a body nested deeper than {MAX_DEPTH}") from error

    def operation(self, path: str, body: object) -> Operation:
        """Take a body of JSON apart. Raises Unusable; AsItIs: it would be another one
        then."""
        if not isinstance(body, dict):
            raise AsItIs("a body that is no JSON object")
        fields = {str(name): value for name, value in body.items()}
        self.models.add(str(fields.pop("model", "")))
        stream = fields.pop("stream", None)
        if stream not in (None, False, True):
            raise AsItIs("stream is neither true nor false")
        messages: list[Message] | None = None
        prompt: Any = None
        if path == CHAT and are_messages(fields.get("messages")):
            messages = [self._message(message) for message in fields.pop("messages")]
        if path == COMPLETIONS and is_prompt(fields.get("prompt")):
            prompt = self._text(fields.pop("prompt"))
        self._only_here(fields)
        return Operation(
            id="r",
            path=path,
            messages=messages,
            prompt=prompt,
            parameters=self._kept(fields),
            stream=bool(stream),
        )

    def notes(self) -> Iterator[str]:
        """Yield sentences on what was changed."""
        for name, sentence in _CHANGED.items():
            if self.changed[name]:
                yield f"{self.changed[name]} {sentence}."
        named = len(self.models - {""} - self.adapters)
        if named > 1:
            yield f"The requests named {named} models; all go to the model that is started."
        for name, sentence in _DROPPED.items():
            if self.dropped[name]:
                yield f"{self.dropped[name]} {sentence}."

    # ----------------------------------------------------------------- path and headers

    def _target(self, target: str) -> tuple[str, str]:
        """Return path and query as they are played. Raises Unusable."""
        try:
            parts = urlsplit(target)
        except ValueError as error:
            raise Unusable("an entry without an address") from error
        path = _played_path(parts.path, whole=self.own)
        if not path.startswith("/"):
            raise Unusable("an entry without an address")
        self.changed["prefix"] += path.rstrip("/") != parts.path.rstrip("/")
        kept: list[str] = []
        for pair in parts.query.split("&") if parts.query else []:
            name, _, _ = pair.partition("=")
            if names_a_secret(name) or pair.startswith("key="):
                self.dropped["query"] += 1
            else:
                kept.append(pair)
        query = "&".join(kept)
        return re.sub(r"\s", "%20", path), re.sub(r"\s", "%20", query)

    def _headers(
        self, headers: Iterable[tuple[str, str]], *, json: bool
    ) -> dict[str, str]:
        """Return the headers that are sent again."""
        kept: dict[str, str] = {}
        for name, value in headers:
            low = name.lower()
            if _SECRET_HEADERS.fullmatch(low) or names_a_secret(low):
                self.dropped["cookie" if "cookie" in low else "credential"] += 1
            elif not self._may_keep(name):
                self.dropped["header"] += 1
            elif low == "content-type":
                if not json:
                    kept["Content-Type"] = value
            elif (low, value) != ("accept", "*/*"):
                kept[name] = value
        return kept

    def _may_keep(self, name: str) -> bool:
        """Whether a header that is no secret may go further."""
        low = name.lower()
        if _NOT_KEPT.fullmatch(low) or not _HEADER.fullmatch(name):
            return False
        return self.own or low in _PLAIN_HEADERS

    # ------------------------------------------------------------------ messages

    def _message(self, message: dict[str, Any]) -> Message:
        more = dict(message)
        more.pop("role", None)
        content = more.pop("content", None)
        role = self._text(message["role"])
        if isinstance(content, list):
            parts: list[Part] = []
            for part in content:
                parts += self._part(part)
            content = parts
        else:
            content = self._text(content)
        return Message(role=role, content=content, more=self._kept(more))

    def _part(self, part: dict[str, Any]) -> list[Part]:
        """Return the part; none where it was nothing but an address."""
        kind = part.get("type")
        if kind == "text" and isinstance(part.get("text"), str) and len(part) == 2:
            return [Part(text=self._text(part["text"]))]
        if kind == "image_url":
            return [self._image(part)]
        before = self.dropped["address"]
        kept = self._kept(part, fetched=True)
        if self.dropped["address"] > before:
            self.changed["part-by-address"] += 1
            return []
        return [Part(raw=kept)]

    def _image(self, part: dict[str, Any]) -> Part:
        shown = part.get("image_url")
        more = set(part) - {"type", "image_url"}
        if part.get("modalities") == "image":
            more.discard("modalities")  # SGLang adds it
        detail = None
        if isinstance(shown, dict):
            more |= set(shown) - {"url", "detail"}
            detail = shown.get("detail")
            shown = shown.get("url")
        if not isinstance(shown, str) or not isinstance(detail, str | None):
            return Part(raw=self._kept(part))
        if shown[:5].lower() != "data:":
            if self._stays(shown):
                return Part(raw=part)
            self.dropped["address"] += 1
            return Part(image=self._by_address(shown), detail=detail)

        # A picture has a name of its own only if its bytes give the same text again.
        head = _DATA_URL.match(shown)
        data = None
        if head is not None and not more:
            data = canonical(shown[head.end() :])
        if head is None or data is None:
            self.changed["image-raw"] += not more
            return Part(raw=self._kept(part))
        return Part(image=self._by_content(data, head[1]), detail=detail)

    def _by_content(self, data: bytes, media_type: str) -> str:
        digest = self.contents.add(data)
        content = Content(sha256=digest, media_type=media_type)
        return self._name(("content", f"{digest} {media_type}"), content)

    def _by_address(self, address: str) -> str:
        self.changed["image-by-address"] += 1
        number = sum(kind == "address" for kind, _ in self._named)
        noise = Noise(seed=number + 1, size=UNSEEN_SIZE)
        return self._name(("address", address), noise)

    def _name(self, identity: tuple[str, str], image: Image) -> str:
        name = self._named.setdefault(identity, f"i{len(self._named) + 1}")
        self.images.setdefault(name, image)
        return name

    # ------------------------------------------------------------------ anything

    def _only_here(self, fields: dict[str, Any]) -> None:
        """Refuse what a server would read elsewhere: pictures and sounds of SGLang's own
        requests are also read from paths on its machine. Raises Unusable."""
        for name in ("image_data", "video_data", "audio_data"):
            for value in _leaves(fields.get(name)):
                if not isinstance(value, str) or _carried(value) or self._stays(value):
                    continue
                raise Unusable("pictures or sounds by address or path")

    def _stays(self, address: str) -> bool:
        """Whether an address may stay: nobody is asked but this machine, and it names
        nobody."""
        if self.own:
            return not goes_out(address)
        return is_local(address)

    def _kept(
        self, fields: dict[str, Any], depth: int = 0, fetched: bool = False
    ) -> dict[str, Any]:
        """Drop credentials and addresses of others, to any depth; who asked gets another
        name. ``fetched``: within what a server fetches pictures and sounds for."""
        kept: dict[str, Any] = {}
        for name, value in fields.items():
            inside = fetched or (depth == 0 and name in _FETCHED)
            # Deeper, a name may be that of a tool's parameter, and what it holds a schema.
            own = depth == 0 or not isinstance(value, dict | list)
            if name in _WHO and own and not self.own:
                kept[name] = self._renamed(value)
            elif names_a_secret(name) and own:
                self.dropped["credential"] += 1
            elif _is_other_host(name, value):
                self.changed["host"] += 1
                kept[name] = "127.0.0.1"
            elif (inside or not self.own) and self._is_other_address(name, value):
                self.dropped["address"] += 1
            else:
                kept[self._text(name)] = self._value(value, depth + 1, inside)
        return kept

    def _is_other_address(self, name: str, value: Any) -> bool:
        """Whether a field is an address that may not stay."""
        return _is_address(name, value) and not self._stays(value)

    def _renamed(self, value: Any) -> Any:
        """Return the same shape, with other texts of the same lengths."""
        if isinstance(value, dict):
            return {
                self._text(name): self._renamed(item) for name, item in value.items()
            }
        if isinstance(value, list):
            return [self._renamed(item) for item in value]
        if not isinstance(value, str) or not value:
            return value
        self.changed["who"] += 1
        made = f"u{len(self._stand_ins) + 1}".ljust(len(value), "0")
        return self._stand_ins.setdefault(value, made[: len(value)])

    def _value(self, value: Any, depth: int, fetched: bool = False) -> Any:
        if depth > MAX_DEPTH:
            raise AsItIs(f"nested deeper than {MAX_DEPTH}")
        if isinstance(value, dict):
            return self._kept(value, depth, fetched)
        if isinstance(value, list):
            return [self._value(item, depth + 1, fetched) for item in value]
        if isinstance(value, float) and not math.isfinite(value):
            raise AsItIs("NaN or Infinity, which are no JSON")
        return self._text(value)

    def _text(self, value: Any) -> Any:
        """Return ``value``. Raises AsItIs: it is a text that no file can hold."""
        if isinstance(value, str) and _SURROGATE.search(value):
            raise AsItIs("halves of characters")
        return value


def _is_other_host(name: str, value: object) -> bool:
    """Whether a field names another machine as a host."""
    if not isinstance(value, str) or not HOSTS.fullmatch(name):
        return False
    return not is_local(value)


def canonical(text: str) -> bytes | None:
    """Return the bytes of a Base64 text; None where encoding them again gives another
    text."""
    try:
        data = base64.b64decode(text)
    except (binascii.Error, ValueError):
        return None
    return data if base64.b64encode(data).decode() == text else None


def _is_address(name: str, value: object) -> bool:
    if not isinstance(value, str) or value[:5].lower() == "data:":
        return False
    if name in ("text", "content", "prompt"):
        return False
    return bool(_PLACE_NAME.fullmatch(name) or is_address(value))


def _leaves(value: Any) -> list[Any]:
    """Return what lists within lists hold. Raises RecursionError: they are nested
    without end, which JSON that was parsed is not."""
    if isinstance(value, dict):
        return [value.get("url", "")]
    if not isinstance(value, list):
        return [] if value is None else [value]
    leaves: list[Any] = []
    for item in value:
        leaves += _leaves(item)
    return leaves


def _carried(value: str) -> bool:
    """Whether it is the picture or sound itself: a data: URL, or Base64 of some
    length."""
    if value[:5].lower() == "data:":
        return True
    return len(value) >= 64 and canonical(value) is not None


def _form(raw: bytes, kind: str) -> list[FormPart] | None:
    """Return the fields of a multipart body; None: it is none, or not as a server reads
    it."""
    head = f"Content-Type: {kind}\r\nMIME-Version: 1.0\r\n\r\n"
    message = head.encode("latin-1", "replace") + raw
    try:
        read = message_from_bytes(message, policy=HTTP)
    except RecursionError:  # forms within forms: no server reads that
        return None
    if not read.is_multipart() or read.defects:
        return None
    fields: list[FormPart] = []
    for part in read.iter_parts():
        name = part.get_param("name", header="content-disposition")
        data = part.get_payload(decode=True)
        if not isinstance(name, str) or not isinstance(data, bytes):
            return None
        given: dict[str, Any] = {"filename": part.get_filename()}
        if part.get("content-type") is not None:
            given["media_type"] = part.get_content_type()
        try:
            given["text"] = data.decode("utf-8")
        except UnicodeDecodeError:
            given["data"] = base64.b64encode(data).decode()
        fields.append(FormPart(name=name, **given))
    return fields


# ------------------------------------------------------------------ paths

_BEHIND_A_GATEWAY: Final = re.compile(
    r"(?:/[\w.~%-]+)+(?P<path>/v1/(?:chat/completions|completions))"
)
_WITHOUT_VERSION: Final = re.compile(r"(?:/[\w.~%-]+)*/chat/completions")


def _played_path(path: str, *, whole: bool) -> str:
    """Return the path under which it is played: as it is, whole; of a completion
    without what a gateway put before it. ``whole``: the slash at its end counts."""
    if not whole:
        path = path.rstrip("/")
    behind = _BEHIND_A_GATEWAY.fullmatch(path)
    if behind:
        return behind["path"]
    if _WITHOUT_VERSION.fullmatch(path):
        return CHAT
    return path or "/"
