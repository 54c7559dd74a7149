"""When an engine answers nobody and is well: its operator holds it back, or it compiles
or takes weights. Each engine's ``held.toml`` has how that shows.

A server that is held back says so in a metric or at an endpoint, and may be so for
hours. Upkeep (a compiler, a transfer of weights) only shows in its stacks, and ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mmrepro.engines.folders import folders, made_of, table
from mmrepro.engines.waits import COMPILERS
from mmrepro.probes import Frame, MetricsData


@dataclass(frozen=True)
class HeldSign:
    """What shows that an operator holds a server back.

    Attributes:
        what: ``asleep``, ``paused``.
        metric: it is held back where the sum of this metric, over the samples with
            ``labels``, is ``value``; "": ``path`` tells.
        path: endpoint that costs the engine nothing.
        field: of that endpoint's JSON answer, true where it is held back.
        status: that endpoint's status where it is held back; 0: ``field`` tells.
        answers: with ``status``: an endpoint that the engine itself answers with 200
            then. A server that is hung may have the same status.
    """

    what: str
    metric: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    value: float = 1.0
    path: str = ""
    field: str = ""
    status: int = 0
    answers: str = ""

    def shown_by(self, metrics: MetricsData) -> bool:
        """Whether these metrics show it."""
        if not self.metric:
            return False
        values = []
        for sample in metrics.samples:
            ours = self.labels.items() <= sample.labels.items()
            if sample.name == self.metric and ours and sample.value is not None:
                values.append(sample.value)
        return bool(values) and sum(values) == self.value


@dataclass(frozen=True)
class Upkeep:
    """Code that takes minutes in one place, and ends.

    Attributes:
        what: ``takes weights``.
        file: the end of a path, as py-spy shortens it.
        functions: bare names, any of which is on the stack.
        calls: the next inner frame's bare name; "": whatever it calls.
    """

    what: str
    file: str
    functions: tuple[str, ...]
    calls: str = ""


@cache
def held_signs(engine: str) -> tuple[HeldSign, ...]:
    """How ``engine`` shows that it is held back; (): it does not, or is not known."""
    rows = table(engine, "held.toml").get("held", ())
    return tuple(made_of(HeldSign, row) for row in rows)


@cache
def _all_metrics() -> tuple[HeldSign, ...]:
    signs: list[HeldSign] = []
    for engine in folders():
        signs += [sign for sign in held_signs(engine) if sign.metric]
    return tuple(signs)


def held_by_metrics(metrics: MetricsData) -> str:
    """What an operator does with the server by its metrics, of any engine; "":
    nothing."""
    for sign in _all_metrics():
        if sign.shown_by(metrics):
            return sign.what
    return ""


@cache
def upkeep_of(engine: str) -> tuple[Upkeep, ...]:
    rows = table(engine, "held.toml").get("upkeep", ())
    return tuple(made_of(Upkeep, row) for row in rows)


def upkeep(engine: str, frames: Sequence[Frame]) -> str:
    """What a thread with these frames, innermost first, does besides serving; "":
    nothing that is known."""
    inner = ""
    for frame in frames:
        if COMPILERS.search(frame.file):
            return "compiles"
        for work in upkeep_of(engine):
            named = frame.name in work.functions and frame.file.endswith(work.file)
            if named and work.calls in ("", inner):
                return work.what
        inner = frame.name
    return ""


@dataclass(frozen=True)
class HalfOfPair:
    """What a small request needs where the server is one half of a prefill and decode
    pair, so that it does not wait for the other one.

    Attributes:
        option: of its command line.
        values: of that option that make it a half.
        fields: of the request's body.
    """

    option: str
    values: tuple[str, ...]
    fields: Mapping[str, Any]


def request_fields(engine: str, command: Sequence[str]) -> dict[str, Any]:
    """What a small request to the server with this command line has besides; {}:
    nothing."""
    fields: dict[str, Any] = {}
    for row in table(engine, "held.toml").get("half", ()):
        half = made_of(HalfOfPair, row)
        for word, after in zip(command, [*command[1:], ""], strict=True):
            value = (
                after if word == half.option else word.removeprefix(half.option + "=")
            )
            if word.startswith(half.option) and value in half.values:
                fields.update(half.fields)
    return fields
