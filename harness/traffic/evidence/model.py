"""Everything that a run saw: what signatures judge and incidents keep."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from mmrepro.base.records import Moment, Record
from mmrepro.probes import AnyProbeResult, ProbeData
from pydantic import Field, PrivateAttr

Phase = Literal["start", "control", "gate", "trigger", "check", "after", "stop"]
P = TypeVar("P", bound=ProbeData)

_MESSAGE = re.compile(r'"message": "((?:[^"\\]|\\.)*)"')
_FILES_EACH = 3
"""Raw files of one probe result that are named as evidence: stacks have dozens."""


class Missing(Exception):
    """Evidence that a check needs is not there; the text says what. It makes a
    condition unknown, once, in the evaluator."""


_Noted = ContextVar[list[str] | None]
_files: _Noted = ContextVar("files", default=None)
_doubted: _Noted = ContextVar("doubted", default=None)


@contextmanager
def _noting(kind: _Noted) -> Iterator[list[str]]:
    found: list[str] = []
    token = kind.set(found)
    try:
        yield found
    finally:
        kind.reset(token)
        _note(found, kind)


def files_read() -> AbstractContextManager[list[str]]:
    """Collects the raw files (below ``evidence/``) behind what is asked of evidence
    meanwhile."""
    return _noting(_files)


def doubts_read() -> AbstractContextManager[list[str]]:
    """Collects why what is read of :class:`Held` evidence meanwhile is doubted."""
    return _noting(_doubted)


def _note(names: Iterable[str], kind: _Noted = _files) -> None:
    found = kind.get()
    if found is not None:
        found += (name for name in names if name not in found)


class ImageSent(Record):
    """An image by its digest: the picture itself is not kept in the incident."""

    sha256: Annotated[
        str, Field(description="SHA-256 of the encoded file's bytes, hex")
    ]
    width: int
    height: int
    bytes: int
    name: Annotated[
        str, Field(description="the scenario's name for it, e.g. X or fill-7")
    ] = ""
    pixels: Annotated[
        str,
        Field(
            description=(
                "SHA-256 of its pixels and size, of one colour of that alone, hex"
            )
        ),
    ] = ""
    coarse: Annotated[str, Field(description="4 x 4 mean colours of it, RGB, hex")] = ""


class ToolCall(Record):
    """A call of a tool in an answer."""

    index: int = 0
    name: str = ""
    arguments: Annotated[str, Field(description="JSON as it came, cut at 4000")] = ""


class ChoiceSeen(Record):
    """One of the answers to a request, as far as it came."""

    index: int
    text: Annotated[str, Field(description="cut at 4000")] = ""
    finish_reason: str | None = None
    pieces: Annotated[int, Field(description="of a stream that carried content")] = 0
    finishes: Annotated[
        int, Field(description="pieces of a stream with a finish reason")
    ] = 0
    tokens: Annotated[list[str], Field(description="if logprobs were asked for")] = []
    logprobs: list[float] = []
    top: Annotated[
        list[list[tuple[str, float]]],
        Field(
            description=(
                "the likeliest tokens in each one's place, if they were asked for"
            )
        ),
    ] = []
    token_ids: Annotated[list[int], Field(description="if the server tells them")] = []
    text_offsets: Annotated[
        list[int],
        Field(description="of tokens in the text, of a plain completion's logprobs"),
    ] = []
    reasoning: Annotated[
        str, Field(description="told beside the text, cut at 4000")
    ] = ""
    tool_calls: list[ToolCall] = []


class RequestRecord(Record):
    """One request as the client saw it.

    From ``choices`` on: of a played case's requests only.
    """

    id: int
    phase: Phase
    label: Annotated[str, Field(description="what it is for, e.g. 'image X, too long'")]
    method: str = "POST"
    path: str = "/v1/chat/completions"
    sent: Moment
    images: list[ImageSent] = []
    prompt_chars: int = 0
    prompt_head: Annotated[
        str, Field(description="first 200 characters of the text")
    ] = ""
    max_tokens: int | None = None
    stream: bool = False
    status: Annotated[
        int | None, Field(description="HTTP status; None without an answer")
    ] = None
    latency_s: float = 0.0
    ttft_s: Annotated[
        float | None, Field(description="time to first token, streaming only")
    ] = None
    deadline_s: float
    timed_out: bool = False
    text: Annotated[str, Field(description="the completion's text, cut at 4000")] = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: Annotated[
        int | None,
        Field(description="prompt tokens taken from the KV cache, if the server tells"),
    ] = None
    tokens: Annotated[
        list[str], Field(description="of the answer, if logprobs were asked for")
    ] = []
    logprobs: Annotated[
        list[float], Field(description="of those tokens, natural logarithm")
    ] = []
    error: Annotated[
        str, Field(description="error body or transport error, cut at 2000")
    ] = ""
    choices: Annotated[list[ChoiceSeen], Field(description="by index")] = []
    pieces: Annotated[
        int, Field(description="of a stream, with content; all choices")
    ] = 0
    done: Annotated[
        bool | None, Field(description="a stream said [DONE]; None: no stream")
    ] = None
    after_done: Annotated[
        int, Field(description="lines of data that came after [DONE]")
    ] = 0
    usages: Annotated[
        int, Field(description="times that the answer carried a usage")
    ] = 0
    total_tokens: int | None = None
    left: Annotated[
        bool,
        Field(description="the client went away on purpose, before the answer's end"),
    ] = False

    @property
    def answered(self) -> bool:
        """A well-formed completion came back in time."""
        failed = self.timed_out or bool(self.error) or self.left
        return self.status == 200 and not failed

    @property
    def cut_short(self) -> bool:
        """A stream that began well and has no end: all that it can show of an exception
        in vLLM's core."""
        known = self.path.endswith("/completions")
        return self.answered and self.stream and known and self.finish_reason is None

    @property
    def broken(self) -> bool:
        """Its connection was refused, or ended before the answer did."""
        lost = bool(self.error) and self.status in (None, 200)
        return lost and not self.timed_out and not self.left

    @property
    def told(self) -> str:
        """Its line of the timeline: ``image X, too long: 400 in 0.05 s (…)``."""
        if self.timed_out:
            return f"{self.label}: no answer in {self.latency_s:.1f} s"
        if self.left:
            return f"{self.label}: the client went away after {self.latency_s:.2f} s"
        status = "no HTTP answer" if self.status is None else str(self.status)
        tail = f" ({self.error[:160]})" if self.error else ""
        if self.cached_tokens is not None:
            tail += (
                f", {self.cached_tokens} of {self.prompt_tokens} prompt tokens cached"
            )
        return f"{self.label}: {status} in {self.latency_s:.2f} s{tail}"

    @property
    def reply(self) -> str:
        """For people: the status, and the message of an error."""
        if self.timed_out:
            return f"no answer in {self.latency_s:.1f} s"
        if self.left:
            return f"the client went away after {self.latency_s:.2f} s"
        named = _MESSAGE.search(self.error)
        message = named[1] if named else self.error
        return f"{self.status or 'no answer'} {message[:160]}".strip()


BUILD, BUILD_NOTICE = "environment", "environment notice"
"""Sources of an event while an environment is built; a notice is still to be seen
afterwards."""


class Event(Record):
    """One line of the timeline."""

    at: Moment
    phase: Phase
    source: Annotated[str, Field(description="harness, client, engine, probe")]
    text: str
    level: Literal["info", "warning", "error"] = "info"


class SeriesPoint(Record):
    """One reading of the running sampler (about four a second)."""

    mono: float
    cpu_pct: Annotated[
        dict[str, float], Field(description="process role: % of one core")
    ] = {}
    metrics: Annotated[
        dict[str, float], Field(description="a few gauges and counters")
    ] = {}
    gpu_pct: Annotated[
        dict[str, float],
        Field(description="GPU's number: utilisation, %; a point of its own"),
    ] = {}
    gpu_bytes: Annotated[
        dict[str, float],
        Field(description="GPU's number (MIG: 0/1): memory that processes hold"),
    ] = {}


class ReproducerResult(Record):
    """What a single-file reproducer printed inside the engine's environment."""

    name: str
    exit_code: int | None
    seconds: float
    facts: dict[str, str | int | float | bool | None] = {}
    error: str = ""
    forked: bool = False
    """From the server's fork server; else it was a process of its own."""


class Evidence(Record):
    requests: list[RequestRecord] = []
    probes: list[AnyProbeResult] = []
    events: list[Event] = []
    series: list[SeriesPoint] = []
    reproducers: list[ReproducerResult] = []
    facts: Annotated[
        dict[str, str | int | float | bool | None],
        Field(
            description=(
                "what the scenario measured itself, e.g. a counter before and after"
            )
        ),
    ] = {}
    engine_exit: Annotated[
        int | None,
        Field(description="exit code if the server ended by itself; negative: signal"),
    ] = None
    never_ready: Annotated[
        str, Field(description='why the run\'s own server was never ready; "": it was')
    ] = ""

    def reads(self, what: str | None) -> None:
        """Somebody reads ``what``: a kind of probe data, or a field."""

    def requests_in(self, *phases: Phase) -> list[RequestRecord]:
        return [r for r in self.requests if r.phase in phases]

    def labelled(self, label: str) -> list[RequestRecord]:
        """Return requests whose label is ``label`` or starts with ``label`` and a space."""
        longer = f"{label} "
        requests: list[RequestRecord] = []
        for request in self.requests:
            if request.label == label or request.label.startswith(longer):
                requests.append(request)
        return requests

    def results(
        self, data_type: type[P], *phases: Phase, partial: bool = False
    ) -> Iterator[tuple[AnyProbeResult, P]]:
        """Yield usable results of one kind of evidence, oldest first, of the given phases.

        Without phases: of all but "control", which tells of another server.

        Args: partial: also what a probe had when it failed or ran out of time. Good to
            show, never to judge: half a log does not tell that a line is absent.
        """
        self.reads(data_type.model_fields["kind"].default)
        # By __dict__: reading the field would note the doubts of all probes.
        for result in self.__dict__["probes"]:
            if not isinstance(result.data, data_type) or not (result.ok or partial):
                continue
            wanted = result.phase in phases if phases else result.phase != "control"
            if not wanted:
                continue
            files = result.raw[:_FILES_EACH]
            # A log is no copy: it is named itself.
            log = getattr(result.data, "file", "")
            if not files and log:
                files = [Path(log).name]
            _note(files)
            yield result, result.data

    def why_missing(self, probe: str, *phases: Phase) -> str:
        """Return why there is no usable result of ``probe``: for a condition that is
        unknown."""
        ran = False
        self.reads(probe)
        for result in self.__dict__["probes"]:
            if result.probe != probe or (phases and result.phase not in phases):
                continue
            if not result.ok:
                return f"probe {probe}: {result.status}: {result.reason}"
            ran = True
        if ran:
            return f"probe {probe} ran but does not tell"
        return f"probe {probe} was not run"

    def reproducer(self, name: str) -> ReproducerResult | None:
        for result in self.reproducers:
            if result.name == name:
                _note([f"{name}.json"])
                return result
        return None


class Held(Evidence):
    """Evidence that was held against itself: whoever reads what is doubted of it, is
    noted.

    ``_doubts``: why, by kind of probe data or by field; ``*``: all of it.
    """

    _doubts: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, evidence: Evidence, doubts: Mapping[str, str]) -> "Held":
        """The same evidence, not copied."""
        held = cls.model_construct(**evidence.__dict__)
        held._doubts = doubts
        return held

    def reads(self, what: str | None) -> None:
        if what in ("probes", None):
            fields = Evidence.model_fields
            _note(
                (w for name, w in self._doubts.items() if name not in fields), _doubted
            )
        else:
            _note((self._doubts[n] for n in (what, "*") if n in self._doubts), _doubted)

    def __getattribute__(self, name: str) -> Any:
        if name in _FIELDS:
            self.reads(name)
        return super().__getattribute__(name)


_FIELDS = frozenset(Evidence.model_fields)
