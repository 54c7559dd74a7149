"""A case: a server and the requests that are played on it, as readable JSON.

What runs beside what is said by barriers ("after r3's first token", "when two run"),
never in
milliseconds: a case plays the same on a slower machine. The times of a recording are
kept beside it, and count only with ``--time real``."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from typing import Annotated, Any, Final, Literal, Self

from mmrepro.base.records import Record
from mmrepro.base.text import goes_out
from mmrepro.engines.models import SCRIPT_BASES, TINY, Scripts, TinyModel
from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

CASE_FILE = "case.json"
CASE_DIR = "case"
"""Below a bisection's folder: the case that its runs replay."""
SCRIPT_FILE = "reproduce.py"
CASE_VERSION: Final = 2
"""A case of version 1 is one of version 2 without what an operation may have since: it
is read as such."""
IMAGES_DIR = "images"
"""Beside ``case.json``: pictures kept by content."""
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LEAVE_S = re.compile(r"^(\d{1,4}(?:\.\d{1,3})?)s$")
"""``leave`` of a client that goes away so many seconds after its request was sent."""

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]
_VariableName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")
]
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
    """Tiles of one seed; other rows and columns are another layout of the same
    pixels."""

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

    Of an operation: ``r1.sent``, ``r1.first-token``, ``r1.tokens>=4``, ``r1.end``; of
    all: ``running>=2`` and ``running<=2`` (requests sent by this case and not yet
    ended). Tokens are counted by the client, pieces of a stream; a request that does
    not stream has none before it ends. The end of an operation fulfils all its
    barriers."""

    op: Annotated[
        str, Field(description='operation; "" of the barriers over all, and of leave')
    ]
    event: Literal["sent", "first-token", "tokens", "end", "running>=", "running<="]
    count: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError: the text is no barrier."""
        found = _BARRIER.match(text)
        if found is None or (found["sign"] and found["op"]):
            raise ValueError(
                f"{text!r} is no barrier; barriers are r1.sent, r1.first-token, "
                "r1.tokens>=4, r1.end, running>=2 and running<=2"
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
        str | None,
        Field(description="of an image: the name that vLLM's caches shall give it"),
    ] = None
    detail: Annotated[
        str | None, Field(description="of an image: low, high, auto …")
    ] = None
    raw: Annotated[
        dict[str, Any] | None,
        Field(
            description="any other part, sent as it is; no address but of this machine"
        ),
    ] = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(value is not None for value in (self.text, self.image, self.raw)) != 1:
            raise ValueError("a part has exactly one of text, image and raw")
        for name in ("uuid", "detail"):
            if getattr(self, name) is not None and self.image is None:
                raise ValueError(f"a {name} is an image's")
        if self.raw is not None and (address := _address(self.raw)):
            raise ValueError(
                f"a part holds the address {address[:80]!r}, which a server may fetch"
            )
        return self


def _address(value: object, named: bool = False) -> str:
    """Return the first address in a part that is no ``data:``; "": there is none.

    ``named``: the field is called so; a text that merely is one fetches nothing.
    """
    if isinstance(value, str):
        return value if named and goes_out(value) else ""
    addresses: list[str] = []
    if isinstance(value, dict):
        addresses = [_address(v, "url" in k.lower()) for k, v in value.items()]
    elif isinstance(value, list):
        addresses = [_address(item, named) for item in value]
    for address in addresses:
        if address:
            return address
    return ""


def _bytes(text: str | None) -> None:
    """Raises ValueError: it is no Base64."""
    if text is not None:
        base64.b64decode(text, validate=True)


class Message(Record):
    role: str
    content: Annotated[
        str | list[Part] | None,
        Field(description="a plain text goes over the wire as one, and null as null"),
    ]
    more: Annotated[
        dict[str, Any], Field(description="other fields, e.g. tool_calls")
    ] = {}

    def parts(self) -> list[Part]:
        if isinstance(self.content, str):
            return [Part(text=self.content)]
        return self.content or []


class Recorded(Record):
    """What the recording's server answered; only shown, and held against what a play
    shows."""

    status: int | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    pieces: Annotated[int | None, Field(description="of its stream, with text")] = None
    text: Annotated[str, Field(description="of the answer, cut at 200")] = ""
    seconds: float | None = None


class FormPart(Record):
    """One field of a multipart form."""

    name: str
    text: str | None = None
    data: Annotated[str | None, Field(description="Base64 of a file's bytes")] = None
    filename: str | None = None
    media_type: str = ""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.text is None) == (self.data is None):
            raise ValueError("a field of a form has exactly one of text and data")
        _bytes(self.data)
        return self


class Layout(Record):
    """How a body of JSON was written, so that it is written so again, byte for byte."""

    keys: Annotated[list[str], Field(description="fields of the body, in order")]
    compact: Annotated[bool, Field(description="no space after , and :")] = False
    ascii: Annotated[bool, Field(description="other characters are escaped")] = True


class Expect(Record):
    """What a sound server's answer to the request is; all that is given must hold."""

    status: Annotated[
        str | None,
        StringConstraints(pattern=r"^[1-5](?:\d\d|xx)$"),
        Field(description="200, or 4xx"),
    ] = None
    text: Annotated[
        str | None, Field(description="regular expression, found in each answer")
    ] = None
    not_text: Annotated[str | None, Field(description="the same, found in none")] = None
    tokens: Annotated[
        int | str | list[int] | None,
        Field(
            description=(
                "of each answer: how many (16, <=16, >=1), or which, by their ids"
            )
        ),
    ] = None
    json_schema: Annotated[
        dict[str, Any] | bool | None, Field(description="that each answer's text fits")
    ] = None
    same_as: Annotated[
        Name | None,
        Field(
            description=(
                "operation with the same answer: text, tool calls, reasoning, end"
            )
        ),
    ] = None
    only: Annotated[
        list[int | str] | None,
        Field(description="each token is one of these: ids, or texts"),
    ] = None
    never: Annotated[
        list[int | str] | None, Field(description="no token is one of these")
    ] = None
    finish: Annotated[
        str | None, Field(description="reason with which each answer ends")
    ] = None
    ends_after: Annotated[
        list[Name], Field(description="operations that end before it")
    ] = []

    @field_validator("status", mode="before")
    @classmethod
    def _text(cls, status: object) -> object:
        return str(status) if type(status) is int else status

    @model_validator(mode="after")
    def _sound(self) -> Self:
        for pattern in filter(None, (self.text, self.not_text)):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"{pattern!r} is no regular expression: {error}"
                ) from error
        if isinstance(self.tokens, str) and not re.fullmatch(
            r"(?:[<>]=)?\d{1,9}", self.tokens
        ):
            raise ValueError(
                f"tokens {self.tokens!r} is none of 16, <=16, >=1 and [1, 2, 3]"
            )
        return self

    @property
    def others(self) -> list[str]:
        """Operations that it is about besides its own."""
        return [*filter(None, [self.same_as]), *self.ends_after]


class Operation(Record):
    """One request, when it is sent, and when its client goes away.

    Its body is what ``messages``, ``prompt``, ``parameters`` and ``stream`` say, or one
    of ``body``, ``data`` and ``form``."""

    id: Name
    after: Annotated[
        list[str], Field(description="barriers that must all hold; [] at once")
    ] = []
    method: Literal["POST", "GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS"] = "POST"
    path: Annotated[str, StringConstraints(pattern=r"^/[^\s?#]*$")] = CHAT
    query: Annotated[
        str,
        StringConstraints(pattern=r"^[^\s#]*$"),
        Field(description="what stands behind ?"),
    ] = ""
    headers: Annotated[
        dict[Annotated[str, StringConstraints(pattern=r"^[!-9;-~]+$")], str],
        Field(description="besides those of any request"),
    ] = {}
    model: Annotated[
        str | None,
        Field(
            description=(
                "that the body names; null: the served one; empty: it names none"
            )
        ),
    ] = None
    body: Annotated[
        str | None,
        Field(description="the body's text, sent as it is, but for the model's name"),
    ] = None
    data: Annotated[
        str | None, Field(description="Base64 of a body that is no text")
    ] = None
    form: Annotated[list[FormPart] | None, Field(description="a multipart body")] = None
    layout: Annotated[
        Layout | None, Field(description="null: as mmrepro writes it")
    ] = None
    messages: Annotated[
        list[Message] | None, Field(description="of a chat completion")
    ] = None
    prompt: Annotated[
        str | Annotated[list[int], Field(fail_fast=True)] | None,
        Field(description="of a plain completion"),
    ] = None
    parameters: Annotated[
        dict[str, Any],
        Field(description="other fields of the body: max_tokens, n, cache_salt …"),
    ] = {}
    stream: bool = False
    leave: Annotated[
        str,
        Field(
            description="barrier on this request itself (sent, first-token, tokens>=4), or seconds "
            'after it was sent (2s), at which its client goes away; "": it stays'
        ),
    ] = ""
    values: Annotated[
        dict[
            Name,
            Annotated[str, StringConstraints(pattern=r"^[A-Za-z][\w-]*(?:\.[\w-]+)*$")],
        ],
        Field(
            description="name, and where its value stands in an earlier answer: r1.id; ${name} in "
            "path, query, headers and body is replaced by it"
        ),
    ] = {}
    expect: Expect | None = None
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
                raise ValueError(
                    f"{self.id} waits for {text}, which names no operation"
                )
        if self.leave and not LEAVE_S.match(self.leave):
            own = Barrier.parse(self.leave)
            if own.op or own.event in ("end", "running>=", "running<="):
                raise ValueError(
                    "leave is sent, first-token, tokens>=K or seconds, as 2s"
                )
        structured = (
            self.messages is not None
            or self.prompt is not None
            or bool(self.parameters)
        )
        given = [
            structured,
            self.body is not None,
            self.data is not None,
            self.form is not None,
        ]
        if sum(given) > 1:
            raise ValueError(
                f"{self.id} has one of body, data and form, or messages, prompt and "
                "parameters"
            )
        _bytes(self.data)
        return self

    @property
    def apart(self) -> bool:
        """Whether its body is told by its fields, and not as it is written."""
        return self.body is None and self.data is None and self.form is None

    @property
    def sources(self) -> list[str]:
        """Operations whose answers it takes values from."""
        sources: dict[str, None] = {}
        for value in self.values.values():
            id, _, _ = value.partition(".")
            sources[id] = None
        return list(sources)

    @property
    def images(self) -> list[str]:
        """Names of its images, in order, with repetitions."""
        names: list[str] = []
        for message in self.messages or []:
            for part in message.parts():
                if part.image is not None:
                    names.append(part.image)
        return names


_ANOTHER_SERVER = re.compile(
    r"/(?:sleep|pause\w*|release_\w+|terminate|scale_elastic_ep|.*weights?\b.*"
    r"|update_weights_\w+"
    r"|\w*_weight_\w+|merge_lora\w*|set_lora\w*|load_model|resume_memory_occupation)"
)
"""Paths of requests after which a server answers others otherwise, or not at all, as it
is asked to."""


# ---------------------------------------------------------------------- the case


class ServerWanted(Record):
    """The server that the case needs."""

    engine: str
    release: str
    model: Annotated[
        str,
        Field(description=f"a tiny model's name ({', '.join(TINY)}), or a folder"),
    ] = "qwen2-vl"
    scripts: Annotated[
        Scripts | None,
        Field(
            description="what the model says: its weights are a table, not random",
            exclude_if=lambda scripts: scripts is None,
        ),
    ] = None
    max_model_len: Annotated[int, Field(ge=16)] = 2048
    args: Annotated[list[str], Field(description="options of the server")] = []
    env: dict[_VariableName, str] = {}
    mitigation: Annotated[
        str,
        # Names alone: a path ending in .py would be a scenario file, which is run.
        StringConstraints(
            pattern=r"^(?:[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9][A-Za-z0-9_.-]*)?$"
        ),
        Field(
            description="a known scenario's mitigation, SCENARIO/NAME, that keeps a known fatal "
            'failure away; "": none'
        ),
    ] = ""

    @model_validator(mode="after")
    def _sayable(self) -> Self:
        if self.scripts is not None and self.model not in SCRIPT_BASES:
            known = ", ".join(SCRIPT_BASES)
            raise ValueError(f"{self.model} says no scripts; {known} do")
        return self

    @property
    def label(self) -> str:
        return f"{self.engine} {self.release}".strip()

    @property
    def tiny(self) -> TinyModel | None:
        """The tiny model that it serves; None: somebody's own. Raises UsageError: a
        script is none."""
        if self.scripts is not None:
            return self.scripts.model(self.model)
        return TINY.get(self.model)


class Origin(Record):
    """Where the case comes from, and what was done to it on the way."""

    format: str = "case"
    file: Annotated[str, Field(description="name of the file, without folders")] = ""
    sha256: Annotated[str, Field(description="of that file")] = ""
    read: Annotated[int, Field(description="entries that were read")] = 0
    left_out: Annotated[
        dict[str, int], Field(description="entries left out: why, how many")
    ] = {}
    dropped: Annotated[
        dict[str, int],
        Field(description="what was never kept: header, cookie, credential"),
    ] = {}
    notes: Annotated[list[str], Field(description="sentences on what was changed")] = []
    anonymised: bool = False
    scaled: bool = False


class Case(Record):
    """A server and the requests that are played on it, in the order in which they are
    sent."""

    schema_version: Annotated[
        Literal[2],
        BeforeValidator(lambda version: CASE_VERSION if version == 1 else version),
    ] = CASE_VERSION
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
                    what = (
                        "comes later in the file" if before in ids else "is not there"
                    )
                    raise ValueError(f"{op.id} waits for {text}, but {before} {what}")
            if missing := set(op.images) - self.images.keys():
                raise ValueError(f"{op.id}: there is no image {min(missing)}")
            if early := [source for source in op.sources if source not in seen]:
                what = "comes later in the file" if early[0] in ids else "is not there"
                raise ValueError(f"{op.id} takes a value from {early[0]}, which {what}")
            others = op.expect.others if op.expect is not None else []
            if missing := set(others) - ids:
                raise ValueError(
                    f"{op.id} is held against {min(missing)}, which is not there"
                )
            seen.add(op.id)
        made: set[str] = set()
        for name, image in self.images.items():
            of = getattr(image, "of", None)
            if of is not None and of not in made:
                raise ValueError(
                    f"the image {name} is made of {of}, which does not come before it"
                )
            if isinstance(image, Relayout) and not isinstance(
                self.images[image.of], Tiles
            ):
                raise ValueError(
                    f"the image {name} is a relayout of {of}, which is not of tiles"
                )
            made.add(name)
        return self

    @property
    def changes_server(self) -> bool:
        """Whether it asks the server for what makes it another one: other weights, or
        sleep."""
        return any(_ANOTHER_SERVER.fullmatch(op.path) for op in self.operations)

    def operation(self, id: str) -> Operation:
        """Raises KeyError."""
        return {op.id: op for op in self.operations}[id]

    def keeping(self, ids: Collection[str]) -> Case:
        """Return the case with only these operations; nothing else starts earlier relative
        to the rest.

        Who waited for one that is gone waits for what that one waited for, and images
        that nobody needs are gone as well. Who takes a value from one that is gone is
        gone with it."""
        ids = set(ids)
        for op in self.operations:
            if not ids.issuperset(op.sources):
                ids.discard(op.id)
        inherited: dict[str, list[str]] = {}
        """Of each operation so far: what it waits for, of those that stay."""
        operations: list[Operation] = []
        for op in self.operations:
            barriers: dict[str, None] = {}
            for text in op.after:
                before = Barrier.parse(text).op
                if before and before not in ids:
                    barriers.update(dict.fromkeys(inherited[before]))
                else:
                    barriers[text] = None
            inherited[op.id] = list(barriers)
            if op.id in ids:
                expect = None if op.expect is None else _held(op.expect, ids)
                update = {"after": list(barriers), "expect": expect}
                operations.append(op.model_copy(update=update))

        names = {name for op in operations for name in op.images}
        # An image stands behind the one that it is made of.
        for name, image in reversed(self.images.items()):
            of = getattr(image, "of", None)
            if name in names and of is not None:
                names.add(of)
        images = {name: image for name, image in self.images.items() if name in names}
        return self.model_copy(update={"operations": operations, "images": images})


def _held(expect: Expect, ids: Collection[str]) -> Expect:
    """Drop what it says of operations that are gone."""
    same = expect.same_as if expect.same_as in ids else None
    after = [id for id in expect.ends_after if id in ids]
    return expect.model_copy(update={"same_as": same, "ends_after": after})
