"""Recorded runs in short: what was run, when, and what came of it.

The file that an installed mmrepro has (``scenarios/data/recorded_runs.json``) is made
of the recordings in ``tests/evidence`` and of ledgers by ``tests/evidence/record.py
--table``."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from mmrepro.base.common_options import FEATURE_OPTIONS
from mmrepro.base.errors import InfrastructureError
from mmrepro.base.machine import read_file
from mmrepro.base.records import Fidelity, Moment, Record, Unfit, parsed
from mmrepro.engines.environments import TreeLabel
from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.history import History
from packaging.version import InvalidVersion, Version
from pydantic import Field

_R = TypeVar("_R", bound=Record)

_VERSION: Final = 1
_MAX_BYTES: Final = 8 << 20
_CHANGES: Final = ("--mitigation", "--flip", "--server-arg", "--option")
"""Options of ``mmrepro run`` that make another experiment of a scenario."""
_PAIR: Final = re.compile(
    rf"\{{feature:((?:{'|'.join(FEATURE_OPTIONS.values())})[\w.]+)\}}$"
)
"""A change by --runner or --front."""
UPGRADE: Final = "release"
"""The mitigation that is another release: a plain run of that one."""
ON_GPU: Final = (Fidelity.GPU, Fidelity.GPU_STAND_IN)


class RecordedRun(Record):
    scenario: str
    variant: str = ""
    engine: str
    release: str
    at: Annotated[datetime, Field(description="when it began, UTC")]
    outcome: Outcome
    fidelity: Fidelity | None = None
    mitigations: Annotated[list[str], Field(description="that were applied")] = []
    changes: Annotated[
        list[str],
        Field(description="other words of its command that made it another experiment"),
    ] = []
    helped: Annotated[
        bool | None,
        Field(
            description=(
                "the mitigation was seen to take the cause away; None: not judged"
            )
        ),
    ] = None
    runner: Annotated[
        str,
        Field(
            description="model runner and front end that ran, as its log shows them; "
            "empty: not known"
        ),
    ] = ""
    source: Annotated[
        str, Field(description="where the run is kept, in mmrepro's repository")
    ] = ""

    @property
    def plain(self) -> bool:
        """The scenario as it is declared, on that release."""
        return not self.changes and set(self.mitigations) <= {UPGRADE}

    @property
    def asked_pair(self) -> str:
        """The model runner and front end that were asked for, where nothing else makes
        it another experiment; "": none was."""
        if not self.changes or not set(self.mitigations) <= {UPGRADE}:
            return ""
        asked = []
        for change in self.changes:
            match = _PAIR.search(change)
            if match is None:
                return ""
            asked.append(match[1])
        return self.runner or ", ".join(asked)

    @property
    def version(self) -> Version:
        return Version(self.release)


class _RecordedRuns(Record):
    schema_version: Literal[1] = _VERSION
    runs: list[RecordedRun]


def load(path: Path) -> list[RecordedRun]:
    """The runs of a data file.

    Raises:
        InfrastructureError: it is not there, or is none.
    """
    return shipped(path, _RecordedRuns, "recorded runs").runs


def shipped(path: Path, of: type[_R], what: str) -> _R:
    """A data file that comes with mmrepro; ``what`` it lists.

    Raises:
        InfrastructureError: it is not there, or is none.
    """
    hint = "it comes with mmrepro: install that again"
    try:
        return parsed(of, read_file(path, _MAX_BYTES))
    except OSError as error:
        why = f"{path.name} cannot be read: {error.strerror or error}."
    except Unfit as error:
        why = f"{path.name} holds no {what}: {error}."

    raise InfrastructureError(f"The list of {what} in {why}", hint=hint)


def dumped(runs: Iterable[RecordedRun]) -> str:
    """The data file's text: a run a line, in an order that does not depend on how they
    came."""
    ordered = sorted(runs, key=_order)
    lines = [run.model_dump_json(exclude_defaults=True) for run in ordered]
    head = json.dumps({"schema_version": _VERSION})[:-1]
    return f'{head}, "runs": [\n' + ",\n".join(lines) + "\n]}\n"


def _order(run: RecordedRun) -> tuple[object, ...]:
    try:
        version = run.version
    except InvalidVersion:
        version = Version("0")
    return run.scenario, run.variant, version, run.at, run.source


def of_incident(incident: Incident, source: str) -> RecordedRun | None:
    """The run in short; None: it reached no verdict, or is of a commit, a source tree,
    a file's scenario or a live server."""
    engine = incident.engine
    command = shlex.split(incident.command)
    if incident.verdict is None or command[:2] != ["mmrepro", "run"]:
        return None
    if "--commit" in command or TreeLabel.of(engine.release):
        return None
    name = "".join(command[2:3])
    if ".py" in name:
        return None

    applied = [known for known in incident.mitigations if known.applied]
    # Of several together nobody knows which one helped.
    helped = applied[0].effective if len(applied) == 1 else None
    return RecordedRun(
        scenario=incident.scenario.name,
        variant=incident.scenario.variant,
        engine=engine.name,
        release=engine.release,
        at=_began(incident.created),
        outcome=incident.verdict.outcome,
        fidelity=incident.fidelity,
        mitigations=sorted(mitigation.name for mitigation in applied),
        changes=list(_changes(command)),
        helped=helped,
        runner=engine.runner,
        source=source,
    )


def _began(created: Moment) -> datetime:
    return created.wall.astimezone(UTC).replace(microsecond=0)


def of_history(history: History, source: str) -> Iterator[RecordedRun]:
    """Every attempt that reached a verdict on a released engine."""
    for night in history.nights:
        for attempt in night.attempts:
            cell = night.cells[attempt.cell]
            unreleased = cell.commit or TreeLabel.of(cell.release)
            if attempt.outcome is None or unreleased or cell.scenario.endswith(".py"):
                continue

            options = [f"--option={option}" for option in cell.options]
            yield RecordedRun(
                scenario=cell.scenario,
                variant=cell.variant,
                engine=cell.engine,
                release=cell.release,
                at=_began(attempt.created),
                outcome=attempt.outcome,
                fidelity=attempt.fidelity,
                mitigations=sorted(cell.mitigations),
                changes=[*cell.server_args, *options],
                runner=attempt.runner,
                source=source,
            )


def _changes(command: Sequence[str]) -> Iterator[str]:
    """The words that change the experiment, mitigations apart; ``--flip X`` is
    ``--flip=X``."""
    words = iter(command)
    for word in words:
        name, equals, value = word.partition("=")
        if name in _CHANGES:
            text = value if equals else next(words, "")
            if name != "--mitigation":
                yield f"{name}={text}"
