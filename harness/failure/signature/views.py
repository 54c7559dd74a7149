"""Evidence as a check asks for it: typed, and loud where something is missing.

A check names what it reads by the types of its parameters. What is not there raises
:class:`Missing`, which makes the condition unknown: no check needs to ask first.
"""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TypeVar

from mmrepro.base.units import count
from mmrepro.failure.signature.decide import Finding
from mmrepro.probes import (
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
    readings = [data for _, data in evidence.results(MetricsData, *phases)]
    if not readings:
        return []
    last_begun = readings[-1].total(BEGUN_AT)
    of_one_process = [
        data for data in readings if data.total(BEGUN_AT) in (None, last_begun)
    ]

    for name in names:
        totals = [data.total(name) for data in of_one_process]
        values = [total for total in totals if total is not None]
        if values:
            return values
    return []


def core_processes(evidence: Evidence, role: str, *phases: Phase) -> list[ProcessUse]:
    """One entry a reading for the process with that role."""
    cores: list[ProcessUse] = []
    for _, data in evidence.results(ProcessesData, *phases):
        cores += [process for process in data.processes if role in process.role]
    return cores


def spinning(evidence: Evidence, pids: set[int]) -> bool:
    """Whether one of the processes was seen to spin in user space."""
    for _, data in evidence.results(SyscallsData, "check"):
        if data.pid in pids and data.verdict == "spinning-in-user-space":
            return True
    return False


def log_count(evidence: Evidence, pattern: str) -> int | None:
    """How many lines match a named pattern, of all logs; None if no log was searched
    for it, or if there is none in one of which only the end was read."""
    counts: dict[str, int] = {}
    read_in_part = False
    for _, data in evidence.results(LogsData):
        if pattern in data.match_counts:
            counts[data.file] = data.match_counts[pattern]
            read_in_part = read_in_part or data.skipped_bytes > 0

    total = sum(counts.values())
    if not counts:
        return None
    # None in the end of a log is not none in the log.
    if total == 0 and read_in_part:
        return None
    return total


def log_lines(evidence: Evidence, pattern: str) -> list[LogLine]:
    """Kept lines that match a named pattern, of the last reading of each log."""
    by_file: dict[str, list[LogLine]] = {}
    for _, data in evidence.results(LogsData):
        if pattern in data.matches:
            by_file[data.file] = data.matches[pattern]

    lines: list[LogLine] = []
    for of_file in by_file.values():
        lines += of_file
    return lines


class View:
    """Part of the evidence. Whether an observer has it too, who sent no request of the
    trigger and ran nothing in the engine's environment, is ``observable``."""

    observable = True

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence


class Requests(View):
    """What the scenario itself sent, and what came back."""

    observable = False

    def all(self, label: str) -> list[RequestRecord]:
        """The requests called ``label``, or ``label`` and more words. Raises Missing:
        none was sent."""
        sent = self.evidence.labelled(label)
        if not sent:
            raise Missing(f"{label} was not sent")
        return sent

    def first(self, label: str) -> RequestRecord:
        """The first of those that ``all`` gives. Raises Missing as it."""
        return self.all(label)[0]

    def last(self, label: str) -> RequestRecord:
        """The last of those that ``all`` gives. Raises Missing as it."""
        return self.all(label)[-1]

    def failed(self, label: str, message: str) -> Finding:
        """Whether the first request called ``label`` got HTTP 500 with ``message``."""
        sent = self.first(label)
        return Finding.of(sent.status == 500 and message in sent.error, sent.reply)

    def pair(self, label: str) -> tuple[RequestRecord, RequestRecord]:
        """What this server and what the control server answered. Raises Missing: not
        both did."""
        first_of: dict[str, RequestRecord] = {}
        for request in self.evidence.requests:
            if request.label == label and request.answered:
                first_of.setdefault(request.phase, request)

        mine, right = first_of.get("trigger"), first_of.get("control")
        if mine is None or right is None:
            raise Missing(f"{label} was not answered by this and by a control server")
        return mine, right

    def within(self, *phases: Phase) -> list[RequestRecord]:
        """All requests of these phases: ``gate``, ``trigger``, ``check``, ``control``."""
        return self.evidence.requests_in(*phases)


class Measured(View):
    """What the scenario measured itself (``Drive.fact``)."""

    observable = False

    def number(self, name: str) -> float:
        """The number that was measured. Raises Missing: there is none."""
        value = self.evidence.facts.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Missing(f"{name} was not measured")
        return value


class Reproducers(View):
    """What single-file reproducers printed inside the engine's environment."""

    observable = False

    def facts(self, name: str) -> dict[str, str | int | float | bool | None]:
        """All that it printed, by name. Raises Missing: it was not run, or failed."""
        reproducer = self.evidence.reproducer(name)
        if reproducer is None:
            raise Missing(f"the reproducer {name} was not run")
        if reproducer.exit_code != 0:
            raise Missing(reproducer.error or f"the reproducer {name} failed")
        return reproducer.facts

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
        """How many lines match a named pattern. Raises Missing: no log was searched for
        it, or none was read whole."""
        lines = log_count(self.evidence, pattern)
        if lines is None:
            raise Missing(self.evidence.why_missing("logs", "check"))
        return lines

    def lines(self, pattern: str) -> list[LogLine]:
        """The lines that were kept; there may be more (``count``). Raises Missing as
        ``count``."""
        self.count(pattern)
        return log_lines(self.evidence, pattern)

    def search(self, pattern: str, wanted: str) -> list[re.Match[str]]:
        """The places where regular expression ``wanted`` is in those lines. Raises
        Missing as ``count``."""
        matches = [re.search(wanted, line.text) for line in self.lines(pattern)]
        return [match for match in matches if match]


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
        of_phases = phases or ("check",)
        values = metric_readings(self.evidence, tuple(names), *of_phases)
        known = metric_names(self.evidence, *of_phases)
        if not values and known:
            raise Missing(
                f"the server has no metric {names[0]}; {_nearest(names, known)}"
            )
        if len(values) < least:
            why = self.evidence.why_missing("metrics", *of_phases)
            raise Missing(f"{count(len(values), 'reading')} of {names[0]}; {why}")
        return values


_NAMED_AT_MOST = 5


def metric_names(evidence: Evidence, *phases: Phase) -> set[str]:
    """Names of the metrics that the server has."""
    names: set[str] = set()
    for _, data in evidence.results(MetricsData, *phases):
        names.update(sample.name for sample in data.samples)
    return names


def _nearest(wanted: Sequence[str], known: set[str]) -> str:
    """``it has minivllm:kv_cache_blocks, …``: what comes closest to what was asked
    for."""
    near: list[str] = []
    for name in wanted:
        bare = name.rpartition(":")[2]
        near += sorted(one for one in known if bare in one)
        near += get_close_matches(name, sorted(known), _NAMED_AT_MOST)
    shown = list(dict.fromkeys([*near, *sorted(known)]))[:_NAMED_AT_MOST]
    more = ", …" if len(known) > len(shown) else ""
    return f"it has {', '.join(shown)}{more}"


class Processes(View):
    """The server's processes, measured."""

    def of(self, role: str, *phases: Phase) -> list[ProcessUse]:
        """One entry for each reading; without phases of the check. Raises Missing: no
        such process was measured."""
        processes = core_processes(self.evidence, role, *(phases or ("check",)))
        if not processes:
            raise Missing(f"no process {role} was measured")
        return processes
