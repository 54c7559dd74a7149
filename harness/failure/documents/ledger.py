"""What is written of many runs, night after night: one record a line, appended, never
changed.

A night runs cells; a cell is one square of the matrix and has one attempt or more. What
follows from them (states, flakiness, what changed since the night before) is in
``mmrepro.history``."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from enum import StrEnum
from typing import Annotated, Final, Literal

from mmrepro.base.common_options import options_as_typed
from mmrepro.base.records import Fidelity, HostFacts, Moment, Record
from mmrepro.failure.signature import Outcome, Truth
from pydantic import ConfigDict, Field

LEDGER_FILE = "ledger.jsonl"
LEDGER_VERSION: Final = 1


class Cell(Record):
    """One square of the matrix: what is run, as the command line has it."""

    model_config = ConfigDict(frozen=True)

    scenario: Annotated[str, Field(description="name, or the file that was given")]
    variant: str = ""
    engine: str
    release: str
    commit: Annotated[
        str, Field(description="of the engine, where its wheel is of one")
    ] = ""
    device: Literal["cpu", "cuda"]
    mitigations: tuple[str, ...] = ()
    server_args: tuple[str, ...] = ()
    options: Annotated[tuple[str, ...], Field(description="the scenario's own")] = ()
    flips: Annotated[
        tuple[str, ...],
        Field(description="factors that are not left as in the failing baseline"),
    ] = ()

    @property
    def row(self) -> str:
        """The scenario and all that is set for it: the same on every release."""
        words = [f"{self.scenario} ({self.variant})" if self.variant else self.scenario]
        words += [f"+{mitigation}" for mitigation in self.mitigations]
        words += [f"--flip {factor}" for factor in self.flips]
        words += [*self.options, shlex.join(options_as_typed(self.server_args))]
        return " ".join(words).strip()

    @property
    def id(self) -> str:
        """Readable, a valid file name, and different for different cells."""
        words = [self.scenario, self.variant, *self.mitigations, *self.flips]
        words += [self.release, self.commit[:9], self.device]
        name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(word for word in words if word))
        # Without flips the id is that of before there were any: a ledger goes by it.
        fields = self.model_dump(mode="json", exclude=None if self.flips else {"flips"})
        text = json.dumps(fields, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        return f"{name.strip('-.')[:100]}-{digest[:8]}"

    @property
    def line(self) -> str:
        """The cell without its release or commit: a bug's history is told along it."""
        return self.model_copy(update={"release": "", "commit": ""}).id


class Lost(StrEnum):
    """Why an attempt has no outcome: nothing was learnt about the engine."""

    INFRASTRUCTURE = "infrastructure"
    UNLOADABLE = "unloadable"
    """The wheel's code cannot be loaded on this machine: trying again does not help."""
    TIMEOUT = "timeout"
    USAGE = "usage"
    """The command line is wrong, or there is no such release."""


Role = Literal["planned", "retry", "confirm"]
"""``planned``: the night's own (as often as ``repeat``); ``retry``: after
infrastructure failed;
``confirm``: after a surprise. All are kept."""


class NightState(StrEnum):
    RUNNING = "running"
    """Or killed: nothing was written at its end."""
    COMPLETE = "complete"
    INTERRUPTED = "interrupted"
    OUT_OF_TIME = "out-of-time"


class Night(Record):
    """One campaign over a plan. Written as it begins and again as it ends; the last one
    counts."""

    kind: Literal["night"] = "night"
    schema_version: Literal[1] = LEDGER_VERSION
    id: Annotated[
        str,
        Field(description="e.g. 2026-11-22", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    ]
    created: Moment
    finished: Moment | None = None
    state: NightState = NightState.RUNNING
    command: Annotated[str, Field(description="that runs it, and goes on with it")]
    mmrepro_version: str
    machine: Annotated[str, Field(description="label of the machine it ran on")] = ""
    host: HostFacts
    repeat: int = 1
    confirm: int = 3
    every_h: Annotated[
        float | None, Field(description="hours until the next one is due")
    ] = None
    shard: Annotated[str, Field(description="e.g. 1/3; empty: the whole plan")] = ""
    cells: Annotated[
        int | None, Field(description="of its plan, which follows; None: not counted")
    ] = None


class Planned(Record):
    """A cell that a night is to run."""

    kind: Literal["cell"] = "cell"
    night: str
    cell: Cell
    expected: Annotated[
        Outcome | None, Field(description="by the scenario; None: nothing")
    ] = None
    affected: Annotated[
        str,
        Field(
            description="releases that the scenario declares, a specifier: >=0.14,<0.24"
        ),
    ] = ""
    title: Annotated[str, Field(description="of the scenario, one line")] = ""


class Measured(Record):
    """What a comparison measured of one metric."""

    metric: str
    change: Annotated[
        float,
        Field(
            description=(
                "logarithm of new over old, turned so that more is worse: a mean"
            )
        ),
    ]
    error: Annotated[float, Field(description="standard error of that mean")]
    blocks: Annotated[int, Field(description="pairs of servers it is the mean of")]


class Attempt(Record):
    """One run of a cell, or what was to be one."""

    kind: Literal["attempt"] = "attempt"
    night: str
    cell: Annotated[str, Field(description="its id")]
    index: Annotated[int, Field(description="within the night and cell, from 1", ge=1)]
    role: Role = "planned"
    created: Moment
    seconds: Annotated[float, Field(description="wall clock, the environment included")]
    outcome: Annotated[Outcome | None, Field(description="None: lost")] = None
    expected: Outcome | None = None
    explanation: str = ""
    conditions: Annotated[dict[str, Truth], Field(description="by id")] = {}
    lost: Annotated[Lost | None, Field(description="why there is no outcome")] = None
    error: str = ""
    key: Annotated[
        str, Field(description="runs with one key are the same experiment")
    ] = ""
    parts: Annotated[
        dict[str, str], Field(description="what the key is made of, by name")
    ] = {}
    fidelity: Fidelity | None = None
    start_mode: str = ""
    runner: Annotated[
        str,
        Field(
            description="model runner and front end that ran, as its log shows them; "
            "empty: not known"
        ),
    ] = ""
    machine: str = ""
    gpus: list[str] = []
    measured: Measured | None = None
    incident: Annotated[str, Field(description="its folder, below the ledger's")] = ""
    command: Annotated[str, Field(description="that repeats this one run")] = ""


class EventKind(StrEnum):
    BUG_RETURNED = "bug-returned"
    """A new release or commit has a failure that an earlier one did not have any
    more."""
    FIXED_IN = "fixed-in"
    """A new release or commit no longer has it."""
    NEW_RELEASE = "new-release"
    NEW_RELEASE_AFFECTED = "new-release-affected"
    DIFFERENT_FAILURE = "different-failure"
    DRIFT = "drift"
    """The same release has another verdict: the key's parts say what changed beside it,
    or, under an unchanged key, something that is not in the key did."""
    FLAKY = "flaky"
    """Both verdicts under one key."""
    COVERAGE_LOST = "coverage-lost"
    NIGHT_MISSING = "night-missing"


class Event(Record):
    """Something that changed from the nights before to this one."""

    kind: Literal["event"] = "event"
    night: str
    what: EventKind
    identity: Annotated[
        str, Field(description="the same every night that it is still so")
    ]
    cell: Annotated[
        str, Field(description="id of the cell that shows it; empty: of none")
    ] = ""
    engine: str = ""
    release: str = ""
    text: Annotated[str, Field(description="one plain sentence")]
    before: str = ""
    now: str = ""
    changed: Annotated[
        list[str], Field(description="parts of the key that changed")
    ] = []


Line = Annotated[Night | Planned | Attempt | Event, Field(discriminator="kind")]
