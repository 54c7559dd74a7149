"""What a run says of itself, and the words in which its evidence is doubted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from mmrepro.base.records import Moment
from mmrepro.engines import Engine
from mmrepro.probes import LogLine, LogsData, ProbeResult
from mmrepro.traffic.evidence import Evidence

Doubts = Iterator[tuple[str, str]]
"""What is doubted (a field of Evidence, or a kind of probe data; EVERYTHING), and
why."""

EVERYTHING = "*"
SLACK_S = 0.1
"""Moments and durations are taken by different threads, and rounded."""
CLOCK_S = 1.0
"""Wall and monotonic clock of one run may drift so far apart."""
_ENVIRONMENT = re.compile(r"environments/([^/\s]+)/")


@dataclass(frozen=True)
class Run:
    """What a run says of itself, for its evidence to be held against.

    Attributes:
        known: why the engine or the variant is none that this mmrepro has; "": it is.
        wheel: the file's name.
        kernels: release of the wheel, where it lends its compiled files to another's
            Python.
        packages: ``name==version`` of all that was resolved.
        command: of its server, as a cold start runs it.
        began, ended: of the run; None: not known yet.
        passed: whether the gate was noted to pass; None: there was none.
        deadline_s: after which silence counts, by the gate's rule; None: the gate did
            not pass.
        waited_s: deadline of the check, where the scenario made another of it.
        sources: file and qualified name of definitions that the scenario is about.
        utc_offset_s: of the machine's local time; None: not noted.
    """

    engine: Engine
    release: str
    known: str = ""
    wheel: str = ""
    kernels: str = ""
    packages: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    began: Moment | None = None
    ended: Moment | None = None
    passed: bool | None = None
    deadline_s: float | None = None
    waited_s: float | None = None
    sources: tuple[tuple[str, str], ...] = ()
    utc_offset_s: float | None = None

    def option(self, *names: str) -> str:
        """Value of the first of these options that the command has; "": none."""
        for word, value in pairwise(self.command):
            if word in names:
                return value
        return ""

    def of_kernels(self, environment: str) -> bool:
        """Whether that environment is the one that lends its compiled files and
        packages."""
        lender = f"{self.engine.name}-{self.kernels}-"
        return bool(self.kernels) and environment.startswith(lender)

    @property
    def number(self) -> str:
        """The release, without what a build adds to it."""
        return self.release.partition("+")[0]

    @property
    def environment(self) -> str:
        """The environment that the server's program lies in; "": unknown."""
        match = _ENVIRONMENT.search(" ".join(self.command[:1]))
        return match[1] if match else ""

    def other_environments(self, text: str) -> Iterator[str]:
        """Environments that a text names, and that are not the run's."""
        if not self.environment:
            return
        for other in _ENVIRONMENT.findall(text):
            if other != self.environment and not self.of_kernels(other):
                yield other


def of_this_server(evidence: Evidence) -> list[ProbeResult]:  # type: ignore[type-arg]
    """Results of the run's own server: those of the phase "control" are another's."""
    return [r for r in evidence.probes if r.data is not None and r.phase != "control"]


def kind_of(result: ProbeResult) -> str:  # type: ignore[type-arg]
    """The kind of a result's data; of one without data its probe's name."""
    return result.data.kind if result.data is not None else result.probe


def kept_lines(data: LogsData) -> list[LogLine]:
    """All lines that were kept of a log; one may be there several times."""
    kept: list[LogLine] = []
    for lines in data.matches.values():
        kept += lines
    kept += [*data.errors, *data.stuck_requests, *data.last_by_process.values()]

    ends = (data.first_line, data.last_line, data.last_progress)
    kept += [line for line in ends if line is not None]
    return kept


def beyond(later: float, earlier: float, slack: float = SLACK_S) -> bool:
    """Whether one moment or duration is beyond another by more than ``slack``
    seconds."""
    return later > earlier + slack


def apart(moment: float, other: float, slack: float = CLOCK_S) -> bool:
    """Whether two moments differ by more than ``slack`` seconds."""
    return abs(moment - other) > slack
