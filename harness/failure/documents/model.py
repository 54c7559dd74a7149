"""The incident: one run, whole, as written to ``incident.json``. Reports are made from
it alone.

Its birthday problem (how soon two of n random values of b bits are equal) is the ideal
case: values drawn independently and uniformly from 2^bits. SHA-256 cut to 30 bits is
that as far as anybody can tell."""

from __future__ import annotations

import base64
import math
from typing import Annotated, Literal

from mmrepro.base.records import (
    ClaimStatus,
    Document,
    Fidelity,
    HostFacts,
    Moment,
    Record,
    Reference,
    Setting,
    StandIn,
    WheelFacts,
)
from mmrepro.failure.documents.diagnosis import Diagnosis
from mmrepro.failure.signature import Outcome, Verdict
from mmrepro.probes import ThreadStack
from mmrepro.traffic.evidence import Evidence
from pydantic import BeforeValidator, Field, PlainSerializer

INCIDENT_FILE = "incident.json"


class ScenarioFacts(Record):
    name: str
    variant: str = ""
    title: str
    summary: str
    affected: Annotated[
        str, Field(description="version specifier of the affected releases")
    ]
    where: Annotated[
        str,
        Field(
            description=(
                "the device on which alone it happens, in words; empty: everywhere"
            )
        ),
    ] = ""
    explanation: Annotated[str, Field(description="why it happens, in plain words")]


class WarmParentFacts(Record):
    """The process that had imported the engine, and that the server was forked from."""

    pid: int
    kept: Annotated[bool, Field(description="it outlives the command")] = False
    imports_s: Annotated[float, Field(description="seconds that its imports took")]
    memory_bytes: Annotated[
        int, Field(description="its share of memory (PSS) after them")
    ]
    threads: Annotated[
        dict[str, int], Field(description="its threads besides the first")
    ] = {}
    files: Annotated[
        list[str], Field(description="open besides the standard streams")
    ] = []
    missing: Annotated[
        list[str], Field(description="modules that the release lacks")
    ] = []
    served: Annotated[
        int, Field(description="servers forked from it before this one")
    ] = 0


class EngineFacts(Record):
    name: str
    release: str
    runner: Annotated[
        str,
        Field(
            description=(
                "model runner and front end, as the server's log shows them; empty: "
                "unknown"
            )
        ),
    ] = ""
    commit: Annotated[
        str, Field(description="of the engine, where its wheel is of one")
    ] = ""
    wheel: WheelFacts | None = None
    python_of: Annotated[
        str,
        Field(
            description=(
                "whose Python runs over whose compiled files; empty: one release's"
            )
        ),
    ] = ""
    kernels: Annotated[
        str, Field(description="with python_of: release of the compiled files")
    ] = ""
    misfit: Annotated[
        str,
        Field(
            description=(
                "what that Python asks of those files in vain, or the kernel that "
                "Triton's interpreter does not run: nothing is tested"
            )
        ),
    ] = ""
    python: str = ""
    resolved_until: Annotated[
        str, Field(description="the cutoff date of the resolution")
    ] = ""
    packages: Annotated[
        list[str], Field(description="name==version of everything resolved")
    ] = []
    packages_file: Annotated[
        str, Field(description="list with hashes, below evidence/")
    ] = ""
    command: Annotated[
        list[str], Field(description="as a cold start runs it; see start_mode")
    ] = []
    start_mode: Annotated[
        str,
        Field(description="cold, fork or warm; what it replaces is among the settings"),
    ] = ""
    warm_parent: WarmParentFacts | None = None
    environment: Annotated[
        dict[str, str], Field(description="variables set for it")
    ] = {}
    settings: Annotated[
        list[Setting], Field(description="what differs from the defaults")
    ] = []
    start_seconds: float | None = None
    start_stages: Annotated[
        dict[str, float], Field(description="seconds by stage")
    ] = {}


class ModelFacts(Record):
    kind: str
    path: str
    parameters: int | None = None
    seed: int | None = None
    image_tokens: int | None = None
    sha256: Annotated[str, Field(description="of the weights file")] = ""


class GateFacts(Record):
    passed: bool
    why: str
    latencies_s: list[float] = []
    deadline_s: Annotated[
        float | None, Field(description="deadline derived for the check")
    ] = None
    deadline_rule: str = ""


class SymptomRow(Record):
    """One row of the symptom table, as in the original bug report."""

    check: str
    healthy: Annotated[str, Field(description="value in the gate, same probe")]
    observed: str
    abnormal: Annotated[bool | None, Field(description="None: could not be told")]
    reported: Annotated[str, Field(description="what the original report says")] = ""


def _from_base64(value: object) -> object:
    """Bytes as they are; text (from JSON) is decoded. Raises ValueError: it is no
    base64."""
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


class Shown(Record):
    """One of several things side by side: a picture, or an answer, or both."""

    caption: str
    png: Annotated[
        bytes,
        BeforeValidator(_from_base64),
        PlainSerializer(_to_base64, return_type=str, when_used="json"),
        Field(
            description="a scenario's own picture, base64; may be empty",
            max_length=1 << 20,
        ),
    ] = b""
    file: Annotated[str, Field(description="the same below evidence/")] = ""
    text: Annotated[str, Field(description="e.g. the answer that came with it")] = ""
    facts: dict[str, str] = {}


class Pool(Record):
    """A number of images that matters."""

    images: int
    label: str = ""


class Birthday(Record):
    """What the curve of the birthday problem is drawn from."""

    bits: Annotated[
        int, Field(description="of the values that may be equal", ge=1, le=256)
    ]
    pools: Annotated[list[Pool], Field(description="marked on the curve")] = []
    seen: Annotated[
        list[Pool], Field(description="measured, such as a search's own")
    ] = []


class Exhibit(Record):
    """Things that are best seen side by side, or the curve of the birthday problem."""

    title: str
    note: str = ""
    shown: list[Shown] = []
    birthday: Birthday | None = None


class KeyFrame(Record):
    function: str
    file: str
    line: int
    locals: dict[str, str] = {}


class KeyStack(Record):
    """The stack that matters."""

    process: str
    thread: str
    active: bool
    owns_gil: bool
    frames: Annotated[list[KeyFrame], Field(description="innermost first")]
    seen: Annotated[int, Field(description="samples that show it")]
    samples: int
    note: str = ""

    @classmethod
    def of(
        cls,
        stack: ThreadStack,
        *,
        process: str,
        seen: int,
        samples: int,
        note: str = "",
    ) -> KeyStack:
        """A thread as one sample shows it."""
        return cls(
            process=process,
            thread=stack.name,
            active=bool(stack.active),
            owns_gil=bool(stack.owns_gil),
            frames=[KeyFrame(**frame.model_dump()) for frame in stack.frames],
            seen=seen,
            samples=samples,
            note=note,
        )


class LogExcerpt(Record):
    file: str
    number: int
    process: str = ""
    time: str = ""
    text: str
    note: str = ""


class SourceExcerpt(Record):
    """Lines of the installed engine, read from its environment."""

    file: str
    qualname: str
    first_line: int
    lines: list[str]
    highlight: Annotated[list[int], Field(description="line numbers that matter")] = []
    note: str


class ClaimResult(Record):
    id: str
    text: str
    source: Annotated[
        str, Field(description="where the claim is made, e.g. vllm#43941")
    ]
    status: ClaimStatus
    observed: str


class MitigationFacts(Record):
    name: str
    description: str
    applied: bool
    effective: Annotated[
        bool | None,
        Field(
            description="seen to prevent the failure in this run: symptom and cause "
            "are gone; None: not applied, or it could not be told"
        ),
    ] = None
    hides: Annotated[
        bool,
        Field(description="the symptom is gone, the cause was seen to be still there"),
    ] = False
    observed: Annotated[str, Field(description="what its effect was told by")] = ""
    command: Annotated[str, Field(description="how to try it")]


class ServerFacts(Record):
    url: str
    pid: int


class HashHead(Record):
    """Where the record of an incident's hashes ends (``hashes.jsonl``)."""

    sha256: Annotated[str, Field(description="of the last line of hashes.jsonl")]
    recorded_sha256: Annotated[
        str,
        Field(description="in a bundle: of the last line as the run wrote it"),
    ] = ""


class Incident(Document, kind="incident"):
    mmrepro_version: str
    id: str
    created: Moment
    finished: Moment | None = None
    state: Annotated[
        Literal["complete", "interrupted", "failed"],
        Field(description="failed: infrastructure; the rest is partial"),
    ]
    failure: Annotated[
        str, Field(description="what went wrong in the harness or set-up")
    ] = ""
    failure_detail: list[str] = []
    failure_class: Annotated[
        str, Field(description="of the error, e.g. UnloadableWheel")
    ] = ""
    key: Annotated[
        str,
        Field(
            description=(
                "digest of decided_by; runs with one key are the same experiment"
            )
        ),
    ] = ""
    decided_by: Annotated[
        dict[str, str], Field(description="all that decides the outcome, by name")
    ] = {}
    incident_dir: str = ""
    command: Annotated[str, Field(description="the one command that repeats this run")]
    scenario: ScenarioFacts
    engine: EngineFacts
    model: ModelFacts | None = None
    host: HostFacts
    fidelity: Fidelity
    stand_ins: list[StandIn] = []
    gate: GateFacts | None = None
    deadline_s: Annotated[
        float | None,
        Field(
            description=(
                "that the check went by: the gate's, or what the scenario made of it"
            )
        ),
    ] = None
    verdict: Verdict | None = None
    symptoms: list[SymptomRow] = []
    exhibits: list[Exhibit] = []
    key_stack: KeyStack | None = None
    log_lines: list[LogExcerpt] = []
    sources: list[SourceExcerpt] = []
    claims: list[ClaimResult] = []
    mitigations: list[MitigationFacts] = []
    references: list[Reference] = []
    stages: Annotated[
        dict[str, float], Field(description="seconds spent, by stage")
    ] = {}
    left_behind: Annotated[
        list[str],
        Field(description="processes, ports, shared memory left after the stop"),
    ] = []
    server: ServerFacts | None = None
    diagnosis: Annotated[
        Diagnosis | None,
        Field(description="of a live server; then there is no verdict"),
    ] = None
    hashes: Annotated[
        HashHead | None,
        Field(description="the record that shows changes; older incidents have none"),
    ] = None
    evidence: Evidence = Evidence()

    @property
    def outcome(self) -> Outcome | None:
        return self.verdict.outcome if self.verdict else None


_MAX_BITS = 256

_CERTAIN = 40.0
"""e^-40: the chance of no collision below which its complement is 1.0 in floating
point."""


def collision_probability(images: int, bits: int) -> float:
    """Probability that among ``images`` values of ``bits`` bits at least two are equal.

    1 - (1 - 1/m)(1 - 2/m)…(1 - (images-1)/m) with m = 2^bits, to about 12 digits.

    Raises:
        ValueError: ``images`` is negative, or ``bits`` is not in 1..256.
    """
    space = _space(bits)
    if images < 0:
        raise ValueError("the number of images must not be negative")
    if images > space:
        return 1.0
    return -math.expm1(_log_no_collision(images, space))


def images_for(probability: float, bits: int) -> int:
    """The fewest images that give at least ``probability`` of a collision.

    For 0.5 and 30 bits that is 38 582; the usual sqrt(2 m ln 2) gives 38 581.4, and 38
    581 images reach 0.499988.

    Raises:
        ValueError: ``probability`` is not between 0 and 1, or ``bits`` is not in
            1..256.
    """
    space = _space(bits)
    if not 0.0 <= probability <= 1.0:
        raise ValueError("a probability is between 0 and 1")
    if probability == 1.0:
        return space + 1  # the pigeonhole: before that it is never certain
    wanted = math.log1p(-probability)
    low, high = 0, 1
    while _log_no_collision(high, space) > wanted:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if _log_no_collision(middle, space) > wanted:
            low = middle
        else:
            high = middle
    return high if wanted < 0 else 0


def cross_probability(first: int, second: int, bits: int) -> float:
    """Probability that some value of one pool equals some value of another pool.

    ``first`` and ``second`` are the pools' sizes; equal values within a pool do not
    count. Given that the first pool's values differ (at 2^30, of 100 000 all but about
    five do) it is 1 - (1 - first/m)^second, which overstates the truth by less than
    first/m of itself.

    Raises:
        ValueError: a size is negative, or ``bits`` is not in 1..256.
    """
    space = _space(bits)
    if first < 0 or second < 0:
        raise ValueError("the number of images must not be negative")
    small, large = sorted((first, second))
    if small == 0:
        return 0.0
    if large >= space:
        return 1.0
    return -math.expm1(small * math.log1p(-large / space))


def _space(bits: int) -> int:
    if not 1 <= bits <= _MAX_BITS:
        raise ValueError(f"bits must be between 1 and {_MAX_BITS}")
    return 1 << bits


def _log_no_collision(images: int, space: int) -> float:
    """log of the product of (1 - i/space) for i < images; -inf where a factor is 0."""
    if images > space:
        return -math.inf
    # log1p(-x) = -(x + x²/2 + x³/3 + …), summed over i: the power sums are exact
    # integers.
    last = max(images - 1, 0)
    first = last * (last + 1) // 2
    log = -first / space
    if images << 10 > space and log > -_CERTAIN:
        # Four terms are not enough for such large x; and there are at most some 80 000
        # of them.
        return math.fsum(math.log1p(-i / space) for i in range(1, images))
    second = last * (last + 1) * (2 * last + 1) // 6
    third = first * first
    fourth = last * (last + 1) * (2 * last + 1) * (3 * last * last + 3 * last - 1) // 30
    log -= second / (2 * space**2)
    log -= third / (3 * space**3)
    return log - fourth / (4 * space**4)
