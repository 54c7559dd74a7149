"""A case: a server and the requests that are played on it, as readable JSON.

What runs beside what is said by barriers ("after r3's first token", "when two run"), never in
milliseconds: a case plays the same on a slower machine. The times of a recording are kept beside
it, and count only with ``--time real``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Final, Literal, Self

from mmrepro.base.records import Record
from pydantic import Field, StringConstraints, model_validator

CASE_FILE = "case.json"
SCRIPT_FILE = "reproduce.py"
CASE_VERSION: Final = 1
IMAGES_DIR = "images"
"""Beside ``case.json``: pictures kept by content."""
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
Size = Annotated[
    tuple[Annotated[int, Field(ge=1, le=8192)], Annotated[int, Field(ge=1, le=8192)]],
    Field(description="width and height in pixels"),
]

# ---------------------------------------------------------------------- images


class Content(Record):
    """A picture by its bytes, in a file of the folder ``images``."""

    kind: Literal["content"] = "content"
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    media_type: str = "image/png"


class Noise(Record):
    """Noise of one seed: any two seeds look different."""

    kind: Literal["noise"] = "noise"
    seed: int
    size: Size


class Tiles(Record):
    """Tiles of one seed; other rows and columns are another layout of the same pixels."""

    kind: Literal["tiles"] = "tiles"
    seed: int
    rows: Annotated[int, Field(ge=1, le=64)]
    columns: Annotated[int, Field(ge=1, le=64)]


class Solid(Record):
    """One colour."""

    kind: Literal["solid"] = "solid"
    colour: tuple[int, int, int]
    size: Size


class Near(Record):
    """Another image, with a few of its pixels changed: a near duplicate."""

    kind: Literal["near"] = "near"
    of: Name
    seed: int
    pixels: Annotated[int, Field(ge=1)] = 1


class Resized(Record):
    """Another image in another size."""

    kind: Literal["resized"] = "resized"
    of: Name
    size: Size


class Relayout(Record):
    """The tiles of another image (kind ``tiles``) in other rows and columns."""

    kind: Literal["relayout"] = "relayout"
    of: Name
    rows: Annotated[int, Field(ge=1, le=64)]
    columns: Annotated[int, Field(ge=1, le=64)]


class Collision(Record):
    """A member of a family of pictures that an engine takes for one."""

    kind: Literal["collision"] = "collision"
    family: Literal["pad-value"] = "pad-value"
    member: Literal[0, 1]


Image = Annotated[
    Content | Noise | Tiles | Solid | Near | Resized | Relayout | Collision,
    Field(discriminator="kind"),
]

# ---------------------------------------------------------------------- barriers

_BARRIER = re.compile(
    r"^(?:(?P<op>[A-Za-z][A-Za-z0-9_-]*)\.)?"
    r"(?:(?P<event>sent|first-token|end)|tokens>=(?P<tokens>[1-9]\d{0,5})"
    r"|running(?P<sign>>=|<=)(?P<running>\d{1,4}))$"
)


class Barrier(Record):
    """One barrier, read from its text.

    Of an operation: ``r1.sent``, ``r1.first-token``, ``r1.tokens>=4``, ``r1.end``; of all:
    ``running>=2`` and ``running<=2`` (requests sent by this case and not yet ended). Tokens are
    counted by the client, pieces of a stream; a request that does not stream has none before it
    ends. The end of an operation fulfils all its barriers.
    """

    op: Annotated[str, Field(description='operation; "" of the barriers over all, and of leave')]
    event: Literal["sent", "first-token", "tokens", "end", "running>=", "running<="]
    count: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError: the text is no barrier."""
        found = _BARRIER.match(text)
        if found is None or (found["sign"] and found["op"]):
            raise ValueError(
                f"{text!r} is no barrier; barriers are r1.sent, r1.first-token, r1.tokens>=4, "
                "r1.end, running>=2 and running<=2"
            )
        sign = f"running{found['sign']}" if found["sign"] else ""
        event: Any = found["event"] or sign or "tokens"
        count = int(found["tokens"] or found["running"] or 0)
        return cls(op=found["op"] or "", event=event, count=count)


# ---------------------------------------------------------------------- operations


class Part(Record):
    """A part of a message: exactly one of the three."""

    text: str | None = None
    image: Annotated[Name | None, Field(description="name in the case's images")] = None
    uuid: Annotated[
        str | None, Field(description="of an image: the name that vLLM's caches shall give it")
    ] = None
    raw: Annotated[
        dict[str, Any] | None, Field(description="any other part, sent as it is; no address")
    ] = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(value is not None for value in (self.text, self.image, self.raw)) != 1:
            raise ValueError("a part has exactly one of text, image and raw")
        if self.uuid is not None and self.image is None:
            raise ValueError("a uuid is an image's")
        if self.raw is not None and (address := _address(self.raw)):
            raise ValueError(f"a part holds the address {address[:80]!r}, which a server may fetch")
        return self


def _address(value: object, named: bool = False) -> str:
    """The first address in a part that is no ``data:``; "": there is none.

    ``named``: the field is called so; a text that merely is one fetches nothing.
    """
    if isinstance(value, dict):
        found = (_address(v, "url" in k.lower()) for k, v in value.items())
        return next(filter(None, found), "")
    if isinstance(value, list):
        return next(filter(None, (_address(one, named) for one in value)), "")
    fetched = named and isinstance(value, str) and not value.startswith("data:")
    return str(value) if fetched else ""


class Message(Record):
    role: str
    content: Annotated[
        str | list[Part], Field(description="a plain text goes over the wire as one")
    ]
    more: Annotated[dict[str, Any], Field(description="other fields, e.g. tool_calls")] = {}

    def parts(self) -> list[Part]:
        return [Part(text=self.content)] if isinstance(self.content, str) else self.content


class Recorded(Record):
    """What the recording's server answered; only shown, and held against what a play shows."""

    status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    text: Annotated[str, Field(description="of the answer, cut at 200")] = ""
    seconds: float | None = None


class Operation(Record):
    """One request, when it is sent, and when its client goes away."""

    id: Name
    after: Annotated[list[str], Field(description="barriers that must all hold; [] at once")] = []
    path: Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9/_.-]*$")] = CHAT
    messages: Annotated[list[Message] | None, Field(description="of a chat completion")] = None
    prompt: Annotated[
        str | Annotated[list[int], Field(fail_fast=True)] | None,
        Field(description="of a plain completion"),
    ] = None
    parameters: Annotated[
        dict[str, Any], Field(description="other fields of the body: max_tokens, n, cache_salt …")
    ] = {}
    stream: bool = False
    leave: Annotated[
        str,
        Field(
            description="barrier on this request itself (sent, first-token, tokens>=4) at which "
            'its client goes away; "": it stays'
        ),
    ] = ""
    at_s: Annotated[
        float | None, Field(description="seconds after the recording's first request")
    ] = None
    recorded: Recorded | None = None

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for text in self.after:
            barrier = Barrier.parse(text)
            if barrier.op == self.id:
                raise ValueError(f"{self.id} waits for itself: {text}")
            if not barrier.op and not barrier.event.startswith("running"):
                raise ValueError(f"{self.id} waits for {text}, which names no operation")
        if self.leave:
            own = Barrier.parse(self.leave)
            if own.op or own.event in ("end", "running>=", "running<="):
                raise ValueError("leave is sent, first-token or tokens>=K")
        return self

    @property
    def images(self) -> list[str]:
        """Names of its images, in order, with repetitions."""
        return [p.image for m in self.messages or [] for p in m.parts() if p.image is not None]


# ---------------------------------------------------------------------- the case


class ServerWanted(Record):
    """The server that the case needs."""

    engine: str
    release: str
    model: Annotated[
        str,
        Field(description="a tiny model's name (qwen2-vl, dots-ocr, qwen3, text), or a folder"),
    ] = "qwen2-vl"
    max_model_len: Annotated[int, Field(ge=16)] = 2048
    args: Annotated[list[str], Field(description="options of the server")] = []
    env: dict[str, str] = {}
    mitigation: Annotated[
        str,
        Field(
            description="a known scenario's mitigation, SCENARIO/NAME, that keeps a known fatal "
            'failure away; "": none'
        ),
    ] = ""

    @property
    def label(self) -> str:
        return f"{self.engine} {self.release}".strip()


class Origin(Record):
    """Where the case comes from, and what was done to it on the way."""

    format: str = "case"
    file: Annotated[str, Field(description="name of the file, without folders")] = ""
    sha256: Annotated[str, Field(description="of that file")] = ""
    read: Annotated[int, Field(description="entries that were read")] = 0
    left_out: Annotated[dict[str, int], Field(description="entries left out: why, how many")] = {}
    dropped: Annotated[
        dict[str, int], Field(description="what was never kept: header, cookie, credential")
    ] = {}
    notes: Annotated[list[str], Field(description="sentences on what was changed")] = []
    anonymised: bool = False
    scaled: bool = False


class Case(Record):
    """A server and the requests that are played on it, in the order in which they are sent."""

    schema_version: Literal[1] = CASE_VERSION
    title: str = ""
    server: ServerWanted
    images: dict[Name, Image] = {}
    operations: list[Operation] = []
    origin: Origin = Origin()

    @model_validator(mode="after")
    def _sound(self) -> Self:
        seen: set[str] = set()
        ids = {op.id for op in self.operations}
        for op in self.operations:
            if op.id in seen:
                raise ValueError(f"two operations are called {op.id}")
            for text in op.after:
                before = Barrier.parse(text).op
                if before and before not in seen:
                    what = "comes later in the file" if before in ids else "is not there"
                    raise ValueError(f"{op.id} waits for {text}, but {before} {what}")
            if missing := set(op.images) - self.images.keys():
                raise ValueError(f"{op.id}: there is no image {min(missing)}")
            seen.add(op.id)
        made: set[str] = set()
        for name, image in self.images.items():
            of = getattr(image, "of", None)
            if of is not None and of not in made:
                raise ValueError(f"the image {name} is made of {of}, which does not come before it")
            if isinstance(image, Relayout) and not isinstance(self.images[image.of], Tiles):
                raise ValueError(f"the image {name} is a relayout of {of}, which is not of tiles")
            made.add(name)
        return self

    def operation(self, id: str) -> Operation:
        """Raises KeyError."""
        return {op.id: op for op in self.operations}[id]

    def keeping(self, ids: Collection[str]) -> Case:
        """The case with only these operations; nothing else starts earlier relative to the rest.

        Who waited for one that is gone waits for what that one waited for, and images that nobody
        needs are gone as well.
        """
        inherited: dict[str, list[str]] = {}
        operations = []
        for op in self.operations:
            after: list[str] = []
            for text in op.after:
                gone = (before := Barrier.parse(text).op) and before not in ids
                after += inherited[before] if gone else [text]
            inherited[op.id] = after = list(dict.fromkeys(after))
            if op.id in ids:
                operations.append(op.model_copy(update={"after": after}))
        names = {name for op in operations for name in op.images}
        for name, image in reversed(self.images.items()):  # what is made of others comes later
            if name in names and (of := getattr(image, "of", None)) is not None:
                names.add(of)
        images = {name: image for name, image in self.images.items() if name in names}
        return self.model_copy(update={"operations": operations, "images": images})
