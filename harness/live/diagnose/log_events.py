"""What one line of a log, or one exception in it, says that can end a server. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection
from dataclasses import dataclass, replace

from mmrepro.failure.documents import CauseClass as C, Certainty
from mmrepro.live.diagnose import cause_rules as rules
from mmrepro.live.diagnose.cause_rules import LIKELY, CauseRule
from mmrepro.probes import LogLine, RaisedException, frames_text
from mmrepro.probes.log_words import public_line

SHOWN = 240

_NEAR_S = 10.0

_NEAR_LINES = 300
"""An explanation is looked for so far behind what it explains."""

_QUIET = frozenset({"INFO", "DEBUG"})

SETTINGS = re.compile(
    r"server_args=|non-default args|Namespace\(|Initializing a|Dumping |EngineArgs\(|"
    r"vLLM (?:API )?server version|engine_config|Received request|input_tokens="
    r"|prompt: "
)

_GONE = re.compile(
    r"(?:Worker proc|Engine core proc|[Pp]rocess|[Pp]roc|[Ss]ubprocess) "
    r"(?P<name>[\w.:-]+)"
    r"(?: \((?:pid[= ]|PID: )(?P<pid2>\d+)\))? (?:died|crashed)|"
    r"Engine process \(pid (?P<pid>\d+)\) died"
    r"|(?P<worker>\w*Worker\w*) pid (?P<wpid>\d+) died|"
    r"Rank (?P<rank>\d+) scheduler (?:is dead|died)|"
    r"rank=(?P<ranks>\[?[\d, ]+\]?) died|(?:DataParallelController"
    r"|TP process) (?P<proc>\d+) "
)

_STEPPED = re.compile(
    r"\[TM\]\[INFO\].{0,80}\bstep = |\bstep = \d+, .*\[TM\]|"
    r"EngineCore loop active|EngineCore waiting for work|Finished request "
)
"""Lines of work done that are no statistics."""

_KILLED = re.compile(r"[Kk]ill(?:ed)? process (?P<pid>\d+) \((?P<name>[^)]+)\)")

_EXIT = re.compile(
    r"[Ee]xit ?code[:= ]+(?P<code>-?\d{1,3})\b|terminated with (?P<ended>-\d{1,2})\b"
)

_OF_PROCESS = re.compile(
    r"[Kk]ill(?:ed)? process (?P<killed>\d+) \((?P<victim>[^)]*)\)|"
    r"(?:^|\s|traps: )(?P<crashed>[\w:.-]{1,32})\[(?P<pid>\d+)\]:? (?:segfault|trap |"
    r"general protection)|"
    r"Xid \([^)]*\): \d+, pid='?(?P<xpid>\d+)'?, name=(?P<xname>[^,\s]+)"
)
"""The kernel's lines of a process, by its id and the first 15 characters of its name."""

_UNIT = re.compile(
    r"(?P<unit>[\w@.-]+)\.service: (?:Main process exited|Failed with result|"
    r"A process of this unit|Killing process|Consumed|main process killed)"
)

_SERVES = re.compile(
    r"python|pt_main|ray|uvicorn|engine|worker|sched|api_?server|llm|lang|serve|model"
    r"|infer|gpu|turbomind",
    re.IGNORECASE,
)
"""Names that a process or a unit of a server may have."""

_RANK = re.compile(r"\[(?:Rank|PG .{0,80}Rank) (\d+)\]")


@dataclass(frozen=True)
class LogEvent:
    """What one line, or one exception, says that can end a server.

    Attributes:
        effect: whether it follows from something else as a rule.
        by: a sentence that says more than the class's own words; "": there is none.
    """

    name: C
    sure: Certainty
    text: str
    line: LogLine
    process: str = ""
    time: str = ""
    when: float | None = None
    effect: bool = False
    raised: RaisedException | None = None
    why: tuple[str, ...] = ()
    by: str = ""
    advice: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        """The place of its line among all lines."""
        return self.line.number

    @property
    def shown_with_frames(self) -> str:
        """The text, and of an exception its whole message and its frames."""
        if self.raised is None:
            return self.text
        return f"{self.raised.text}\n{frames_text(self.raised, 8)}"

    @property
    def shown(self) -> str:
        """The text, shortened for people."""
        return self.text[:SHOWN]


def shows_work(line: LogLine, text: str) -> bool:
    """Whether a line tells of work done."""
    stats = rules.STATS.search(text)
    if stats:
        return float(stats["prompt"]) > 0 or float(stats["generation"]) > 0
    return bool(rules.BATCH.search(text) or _STEPPED.search(text))


def event_of(line: LogLine, text: str) -> LogEvent | None:
    """What a line without an exception says; None: nothing that can end a server."""
    if SETTINGS.search(text) or "please ignore" in text:
        return None
    rule = rules.meaning(text, exception=False)
    if rule is None or not _loud(line, rule) or rules.HEARTBEAT.search(text):
        return None

    why: tuple[str, ...] = ()
    shown, process = _shown(line, rule), line.process
    xid, killed, rank = rules.XID.search(text), _KILLED.search(text), _RANK.search(text)
    if xid:
        code = int(xid["code"])
        meant = rules.XIDS.get(code, "see NVIDIA's table of Xid errors")
        shown = f"Xid {code}: {xid['rest'] or meant}"
        why = (f"Xid {code}: {meant}",)
        process = f"GPU {xid['bus']}"
        # What these two report follows from another error.
        if code in (43, 45):
            rule = replace(rule, effect=True, sure=LIKELY)
    elif killed:
        process = f"{killed['name']} pid={killed['pid']}"
    elif rank:
        process = process or f"rank {rank[1]}"
    return LogEvent(
        name=rule.name,
        sure=rule.sure,
        text=shown,
        line=line,
        process=process_gone(text) or process or line.rank,
        time=line.time,
        when=line.when,
        effect=rule.effect,
        why=why,
        by=rule.sentence or exit_words(text),
        advice=rule.advice,
    )


def of_another(text: str, pids: Collection[int], names: Collection[str]) -> bool:
    """Whether the kernel, or a supervisor, tells of a process that is none of the
    server's.

    Args:
        pids: of the server's processes, by their own lines.
        names: of the units and programs that print the server's lines.
    """
    unit = _UNIT.search(text)
    if unit is not None:
        own = any(name and name in unit["unit"] for name in names)
        return not own and not _SERVES.search(unit["unit"])
    match = _OF_PROCESS.search(text)
    if match is None:
        return False
    pid = match["killed"] or match["pid"] or match["xpid"]
    name = match["victim"] or match["crashed"] or match["xname"] or ""
    # A container's processes have other ids there than the kernel's log has.
    return int(pid) not in pids and not _SERVES.search(name)


def exit_words(text: str) -> str:
    """``exit code 136 is SIGFPE``; "": the line has no code that is a signal's."""
    match = _EXIT.search(text)
    if match is None:
        return ""
    code = int(match["code"] or match["ended"])
    number = -code if code < 0 else code - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        return ""
    return f"A process ended with {code}, which is {name}"


def _shown(line: LogLine, rule: CauseRule) -> str:
    """The line for people, from the words of the rule on where a bar of progress stands
    before them: a bar has no end of line."""
    public = public_line(line)
    if "%|" in public and rule.bounded is None:
        words = rule.expression.search(public)
        if words:
            return public[words.start() :].strip()
    return public.strip()


def _loud(line: LogLine, rule: CauseRule) -> bool:
    """Engines tell of a fault above INFO; of a signal they get, and of exit codes, also
    there."""
    return line.level not in _QUIET or rule.name in (C.KILLED_BY_SIGNAL, C.HANG)


def process_gone(text: str) -> str:
    """The process that a line says is gone; "": it says so of none."""
    match = _GONE.search(text)
    if match is None:
        return ""
    groups = match.groupdict()
    rank = groups["rank"] or groups["ranks"]
    if groups["pid"]:
        return f"engine process pid={groups['pid']}"
    if rank:
        return f"rank {rank.strip('[]')}"
    if groups["worker"]:
        return f"{groups['worker']} pid={groups['wpid']}"
    if groups["proc"]:
        return f"pid={groups['proc']}"
    if groups["pid2"]:
        return f"{groups['name']} pid={groups['pid2']}"
    return groups["name"]


def explains(first: LogEvent, other: LogEvent) -> bool:
    """Whether ``other`` came soon enough after ``first`` to be what it follows from."""
    if first.when is not None and other.when is not None:
        return other.when <= first.when + _NEAR_S
    return other.number <= first.number + _NEAR_LINES
