"""Evidence as a check asks for it: typed, and loud where something is missing.

A check names what it reads by the types of its parameters. What is not there raises
:class:`Missing`, which makes the condition unknown: no check needs to ask first.
"""

import re
from collections.abc import Sequence
from typing import TypeVar

from mmrepro.failure.signature import Finding
from mmrepro.probes.data import (
    LogLine,
    LogsData,
    MetricsData,
    ProcessesData,
    ProcessUse,
    SyscallsData,
)
from mmrepro.traffic.evidence import Evidence, Missing, Phase, RequestRecord

T = TypeVar("T")


BEGUN_AT = "process_start_time_seconds"
"""When the process that is counted began (prometheus_client's own metric)."""


def metric_readings(
    evidence: Evidence, names: tuple[str, ...], *phases: Phase
) -> list[float]:
    """Values of the first of ``names`` that the server knows, one a reading, oldest
    first: of the process that the last reading is of, where they tell (a balancer may
    ask another replica)."""
    read = [data for _, data in evidence.results(MetricsData, *phases)]
    begun = [data.total(BEGUN_AT) for data in read]
    read = [
        data for data, at in zip(read, begun, strict=True) if at in (None, begun[-1])
    ]
    for name in names:
        known = [v for data in read if (v := data.total(name)) is not None]
        if known:
            return known
    return []


def core_processes(evidence: Evidence, role: str, *phases: Phase) -> list[ProcessUse]:
    """One entry a reading for the process with that role."""
    return [
        process
        for _, data in evidence.results(ProcessesData, *phases)
        for process in data.processes
        if role in process.role
    ]


def spinning(evidence: Evidence, pids: set[int]) -> bool:
    """Whether one of the processes was seen to spin in user space."""
    return any(
        data.pid in pids and data.verdict == "spinning-in-user-space"
        for _, data in evidence.results(SyscallsData, "check")
    )


def log_count(evidence: Evidence, pattern: str) -> int | None:
    """How many lines match a named pattern, of all logs; None if no log was searched
    for it, or if there is none in one of which only the end was read."""
    counts: dict[str, int] = {}
    unsure = False
    for _, data in evidence.results(LogsData):
        if pattern in data.match_counts:
            counts[data.file] = data.match_counts[pattern]
            unsure = unsure or data.skipped_bytes > 0
    total = sum(counts.values())
    return None if not counts or (total == 0 and unsure) else total


def log_lines(evidence: Evidence, pattern: str) -> list[LogLine]:
    """Kept lines that match a named pattern, of the last reading of each log."""
    lines: dict[str, list[LogLine]] = {}
    for _, data in evidence.results(LogsData):
        if pattern in data.matches:
            lines[data.file] = data.matches[pattern]
    return [line for found in lines.values() for line in found]


class View:
    """Part of the evidence. Whether an observer has it too, who sent no request of the
    trigger and ran nothing in the engine's environment, is ``observable``."""

    observable = True

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence


class Requests(View):
    """What the scenario itself sent, and what came of it."""

    observable = False

    def all(self, label: str) -> list[RequestRecord]:
        """Those called ``label``, or ``label`` and more words. Raises Missing: none was
        sent."""
        found = self.evidence.labelled(label)
        if not found:
            raise Missing(f"{label} was not sent")
        return found

    def first(self, label: str) -> RequestRecord:
        return self.all(label)[0]

    def last(self, label: str) -> RequestRecord:
        return self.all(label)[-1]

    def failed(self, label: str, message: str) -> Finding:
        """Whether the first request called ``label`` got HTTP 500 with ``message``."""
        sent = self.first(label)
        return Finding.of(sent.status == 500 and message in sent.error, sent.reply)

    def pair(self, label: str) -> tuple[RequestRecord, RequestRecord]:
        """What this server and what the control server answered. Raises Missing: not
        both did."""
        answered = [
            r for r in self.evidence.requests if r.label == label and r.answered
        ]
        mine = next((r for r in answered if r.phase == "trigger"), None)
        right = next((r for r in answered if r.phase == "control"), None)
        if mine is None or right is None:
            raise Missing(f"{label} was not answered by this and by a control server")
        return mine, right

    def within(self, *phases: Phase) -> list[RequestRecord]:
        return self.evidence.requests_in(*phases)


class Measured(View):
    """What the scenario measured itself (``Drive.fact``)."""

    observable = False

    def number(self, name: str) -> float:
        """Raises Missing: it was not measured, or is no number."""
        value = self.evidence.facts.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Missing(f"{name} was not measured")
        return value


class Reproducers(View):
    """What single-file reproducers printed inside the engine's environment."""

    observable = False

    def facts(self, name: str) -> dict[str, str | int | float | bool | None]:
        """Raises Missing: it was not run, or failed."""
        found = self.evidence.reproducer(name)
        if found is None:
            raise Missing(f"the reproducer {name} was not run")
        if found.exit_code != 0:
            raise Missing(found.error or f"the reproducer {name} failed")
        return found.facts

    def truth(self, name: str, fact: str) -> bool:
        """A fact that is yes or no. Raises Missing."""
        return self._fact(name, fact, bool)

    def number(self, name: str, fact: str) -> int:
        """A fact that is a whole number. Raises Missing."""
        return self._fact(name, fact, int)

    def hash(self, name: str, fact: str) -> int:
        """A fact that is a number in hexadecimal digits. Raises Missing."""
        text = self._fact(name, fact, str)
        if not re.fullmatch(r"[0-9a-f]+", text):
            raise Missing(f"the reproducer {name} said {text!r} for {fact}")
        return int(text, 16)

    def _fact(self, name: str, fact: str, kind: type[T]) -> T:
        value = self.facts(name).get(fact)
        if type(value) is not kind:
            raise Missing(f"the reproducer {name} did not say {fact}")
        return value


class Logs(View):
    """Lines of the engine's logs, by the names of ``log_patterns``."""

    def count(self, pattern: str) -> int:
        """Raises Missing: no log was searched for it, or none was read whole."""
        found = log_count(self.evidence, pattern)
        if found is None:
            raise Missing(self.evidence.why_missing("logs", "check"))
        return found

    def lines(self, pattern: str) -> list[LogLine]:
        """Those that were kept; there may be more (``count``). Raises Missing as
        ``count``."""
        self.count(pattern)
        return log_lines(self.evidence, pattern)

    def search(self, pattern: str, wanted: str) -> list[re.Match[str]]:
        """Where regular expression ``wanted`` is in those lines. Raises Missing as
        ``count``."""
        found = (re.search(wanted, line.text) for line in self.lines(pattern))
        return [match for match in found if match]


class Metrics(View):
    """The engine's Prometheus metrics."""

    def readings(
        self, names: Sequence[str], *phases: Phase, least: int = 2
    ) -> list[float]:
        """Values of the first of ``names`` that the server knows, oldest first.

        Args:
            phases: of the readings; none: of the check.
            least: with fewer readings, Missing is raised.
        """
        asked = phases or ("check",)
        found = metric_readings(self.evidence, tuple(names), *asked)
        if len(found) < least:
            why = self.evidence.why_missing("metrics", *asked)
            raise Missing(f"{len(found)} readings of {names[0]}; {why}")
        return found


class Processes(View):
    """The server's processes, measured."""

    def of(self, role: str, *phases: Phase) -> list[ProcessUse]:
        """One entry a reading, of the check unless told otherwise. Raises Missing:
        none."""
        found = core_processes(self.evidence, role, *(phases or ("check",)))
        if not found:
            raise Missing(f"no process {role} was measured")
        return found
