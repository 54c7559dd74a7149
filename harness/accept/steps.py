"""A step: one child process, its time, and how what it left is judged."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mmrepro
from mmrepro.incident.acceptance import Row, Status
from mmrepro.machine.files import Device, digest
from mmrepro.reproducers import reproducer_path

EVERYWHERE: frozenset[Device] = frozenset({"cpu", "cuda"})
CPU_ONLY: frozenset[Device] = frozenset({"cpu"})
GPU_ONLY: frozenset[Device] = frozenset({"cuda"})


@dataclass(frozen=True)
class Needs:
    """An environment: one engine at one release."""

    engine: str
    release: str

    def __str__(self) -> str:
        return f"{self.engine} {self.release}"


@dataclass(frozen=True)
class Child:
    """What is started.

    Attributes:
        words: arguments of ``mmrepro``; or the file of a reproducer or of tests, and its arguments.
        needs: environments, of which the first that is there serves.
        script: a reproducer, run by that environment's interpreter.
        tests: run by its pytest.
        incident: it takes ``--out`` and leaves an incident there.
        device_option: it takes ``--device``.
    """

    words: tuple[str, ...]
    needs: tuple[Needs, ...] = ()
    script: bool = False
    tests: bool = False
    incident: bool = False
    device_option: bool = True

    @property
    def file(self) -> Path:
        """Of a script or of tests; these are in the repository, and not in an installed package."""
        name = self.words[0]
        if not self.tests:
            return reproducer_path(name)
        beside = reproducer_path("").parent / name
        return beside if beside.is_file() else Path(name).absolute()

    def arguments(self, device: Device) -> list[str]:
        if self.tests:
            return list(self.words)
        asked = ["--device", device] if self.device_option and "--device" not in self.words else []
        return [*self.words, *asked, "--json"]

    def shown(self, device: Device) -> str:
        """As a person types it; of a script the interpreter is any that has torch."""
        words = self.arguments(device)
        if self.tests:
            return shlex.join(["python", "-m", "pytest", *words])
        if self.script:
            return shlex.join(["python", f"reproducers/{words[0]}", *words[1:-1]])
        return shlex.join(["mmrepro", *words[:-1]])

    def key(self, device: Device) -> str:
        """Of what is run; of a script and of tests with their files and those beside them."""
        made_of = [mmrepro.__version__, *self.arguments(device), *map(str, self.needs)]
        if self.script or self.tests:
            beside = reproducer_path("minivllm").glob("*.py") if self.tests else ()
            made_of.append(digest(sorted([*self.file.parent.glob("*.py"), *beside])))
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Ended:
    """What became of a child.

    Attributes:
        exit_code: None: it was ended, being late.
        incident: the folder that it was given; ``report``: the file, of tests.
        words: its last ones on stderr.
        document: what it printed, if that is a JSON object.
        before: documents of the part's earlier steps, by name.
    """

    device: Device
    exit_code: int | None
    seconds: float
    limit_s: float
    incident: Path
    report: Path
    words: str = ""
    document: dict[str, Any] = field(default_factory=dict)
    before: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """``whole``: it came to its end, whatever came out; else a later command tries it again."""

    rows: list[Row]
    whole: bool = True


@dataclass(frozen=True)
class Step:
    """``estimate_s`` decides whether it still fits the budget; at ``limit_s`` it is ended.

    On a device that is not one of ``devices`` it is not tested: ``why_not`` says why.
    """

    name: str
    title: str
    child: Child
    judge: Callable[[Ended], Judged]
    estimate_s: float
    limit_s: float
    devices: frozenset[Device] = EVERYWHERE
    why_not: str = ""


@dataclass(frozen=True)
class Part:
    """Steps that show one thing together; ``shows`` in a sentence."""

    name: str
    shows: str
    steps: Sequence[Step]

    def estimate_s(self, device: Device) -> float:
        return sum(step.estimate_s for step in self.steps if device in step.devices)


def untested(step: Step, why: str) -> Row:
    return Row(asked=step.title, seen=why, status=Status.NOT_TESTED)


def broken(step: Step, why: str) -> Row:
    return Row(asked=step.title, seen=why, status=Status.BROKEN_OFF)
