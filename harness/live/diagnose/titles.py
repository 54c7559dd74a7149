"""Which rank a process is, by its title; one that has ended keeps 15 characters of it
(proc_pid_stat(5)), and its rank follows from the others. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from typing import Literal

from mmrepro.base.common_options import RANK_OPTIONS
from mmrepro.engines import ENGINES, Engine
from mmrepro.failure.documents import TargetFacts, TargetProcess
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

LABEL = re.compile(r"(?:^|_)(ATTN_CP|MOE_DP|DCP|PCP|DP|PP|TP|EP)(\d+)(?=_|$)")
"""In vLLM's titles (``Worker_DP0_PP1_TP0_EP3``, ``EngineCore_DP1``; v1/executor/
multiproc_executor.py, v1/engine/core.py) and SGLang's (``scheduler_DP0_TP1``;
srt/managers/scheduler.py)."""
SIZES = {group: names for group, names in RANK_OPTIONS.items() if group != "EP"}
"""Ranks of expert parallelism are those of the other groups."""
ORDER = ("DP", "PP", "TP")
"""In which titles name their groups, and in which engines count ranks: outermost
first."""
_ELSEWHERE = frozenset(
    {
        "--nnodes",
        "--node-rank",
        "--data-parallel-size-local",
        "--headless",
        "--distributed-executor-backend",
        "--enable-dp-attention",
    }
)
"""With these options not every rank is a process below this server."""
KINDS: Sequence[tuple[str, Literal["coordinator", "detokenizer"]]] = (
    ("DPCoordinator", "coordinator"),
    ("data_parallel_controller", "coordinator"),
    ("detokenizer", "detokenizer"),
)
LEAST = 6
"""Characters of a title that tell what a process was."""
UNKNOWN = " of unknown rank"
DIED = re.compile(
    r"Worker proc (?:VllmWorker-(?P<worker>\d+)|\S+) died unexpectedly|"
    r"Subprocess scheduler_(?P<scheduler>\d+) \(pid=(?P<pid>\d+)\) crashed"
)
"""Lines of vLLM's MultiprocExecutor (v1/executor/multiproc_executor.py, 0.11 to 0.33)
and SGLang's SubprocessWatchdog (srt/utils/watchdog.py, 0.5.17 and later): the number of
a rank below its parent."""


def labels(role: str) -> dict[str, int]:
    """``{"PP": 1, "TP": 0}`` of ``Worker_PP1_TP0``."""
    return {name: int(number) for name, number in LABEL.findall(role)}


def expected(facts: TargetFacts) -> dict[str, int]:
    """Sizes of the groups that the command line asks for; {}: it says nothing, or some
    ranks are not processes of this server."""
    words = _words(facts)
    if not _ELSEWHERE.isdisjoint(words):
        return {}
    sizes = {}
    for group, names in SIZES.items():
        for name, value in pairwise(words):
            if name in names and value.isdigit() and int(value) > 1:
                sizes[group] = int(value)
    return sizes


def runs_alone(facts: TargetFacts) -> bool:
    """Whether the command line is known, and asks for one rank."""
    words = _words(facts)
    return bool(words) and _ELSEWHERE.isdisjoint(words) and not expected(facts)


def _words(facts: TargetFacts) -> list[str]:
    """The command line, with the value of an option as a word of its own."""
    words: list[str] = []
    for word in facts.command:
        words += word.split("=", 1)
    return words


def named(prefix: str, rank: Mapping[str, int]) -> str:
    """``Worker_PP1_TP0``."""
    title = prefix
    for group, number in rank.items():
        title += f"_{group}{number}"
    return title


def every(
    sizes: Mapping[str, int], groups: Sequence[str] = ORDER
) -> list[dict[str, int]]:
    """The ranks of these groups, in the order in which engines count and start them."""
    kept = [name for name in groups if name in sizes]
    numbers = product(*(range(sizes[name]) for name in kept))
    return [dict(zip(kept, place, strict=True)) for place in numbers]


def in_order(engine: str, prefix: str, release: str) -> bool:
    """Whether the engine is known to start these ranks in their order."""
    known = ENGINES[engine].starts_in_order if engine in ENGINES else {}
    if prefix not in known:
        return False
    try:
        return SpecifierSet(known[prefix]).contains(Version(release), prereleases=True)
    except InvalidVersion:
        return False


def whole(
    facts: TargetFacts,
    died: Mapping[int, int] | None = None,
    logged: Mapping[int, str] | None = None,
) -> TargetFacts:
    """With the whole title of each process that has ended, as far as the others tell
    it.

    The command line has the number of ranks: a single one that no other process has is
    that of a single process without one. Where the engine starts them in their order,
    so it is of several. A process whose rank nothing tells is of unknown rank.

    Args:
        facts: processes below one parent stand in the order of their start.
        died: pid, as the engine's log has it: number of the rank below its parent.
        logged: pid, as the engine's log has it: role.
    """
    engine = ENGINES.get(facts.engine)
    if engine is None or not any(_has_ended(process) for process in facts.processes):
        return facts
    roles = _roles(facts, engine, logged or {})
    # The cores first: in which of them a worker is follows from the core's own rank.
    for prefix in filter(None, (engine.core_role, engine.worker_role)):
        _complete(facts, engine, prefix, roles, died or {})
    processes = []
    for process in facts.processes:
        update = {"role": roles[process.pid]}
        processes.append(process.model_copy(update=update))
    return facts.model_copy(update={"processes": processes})


def _has_ended(process: TargetProcess) -> bool:
    return process.state in "ZX"


def _logged_pid(process: TargetProcess) -> int:
    """As the engine's log has it: in a container the inner one."""
    return process.inner_pid or process.pid


def _roles(
    facts: TargetFacts, engine: Engine, logged: Mapping[int, str]
) -> dict[int, str]:
    """Pid: role, with the whole titles of those that ended, and the ranks that the log
    has of them."""
    titles = [name for name in (engine.core_role, engine.worker_role) if name]
    titles += [name for name, _ in KINDS]
    roles = {}
    for process in facts.processes:
        role = process.role
        if _has_ended(process):
            role = _title(role, titles)
            in_log = logged.get(_logged_pid(process), "")
            if role in titles and in_log.startswith(role) and labels(in_log):
                role = in_log
        roles[process.pid] = role
    return roles


def _complete(
    facts: TargetFacts,
    engine: Engine,
    prefix: str,
    roles: dict[int, str],
    died: Mapping[int, int],
) -> None:
    """Give a rank to those with this title that have ended, parent by parent."""
    sizes = expected(facts)
    outer = prefix == engine.core_role and bool(engine.worker_role)
    inner = every(sizes, ("DP",) if outer else ("PP", "TP"))
    in_their_order = in_order(facts.engine, prefix, facts.release)
    families: dict[int, list[TargetProcess]] = {}
    for process in facts.processes:
        if roles[process.pid].startswith(prefix):
            families.setdefault(process.ppid, []).append(process)

    for parent, family in families.items():
        above = {} if outer else labels(roles.get(parent, ""))
        data = {}
        if "DP" in sizes and "DP" in above:
            data["DP"] = above["DP"]
        wanted = [data | place for place in inner]
        if not any(wanted) and (outer or not sizes):
            continue
        ranks: Mapping[int, Mapping[str, int]] = {}
        # Of a worker whose core's rank is not known no whole rank can be told.
        if "DP" not in sizes or "DP" in wanted[0]:
            below = {_logged_pid(p): labels(roles[p.pid]) for p in family}
            ranks = _ranks(below, wanted, died, in_order=in_their_order)
        for process in family:
            if _has_ended(process) and not labels(roles[process.pid]):
                rank = ranks.get(_logged_pid(process))
                role = named(prefix, rank) if rank else prefix + UNKNOWN
                roles[process.pid] = role


def absent(facts: TargetFacts) -> list[str]:
    """Cores that the command line asks for and that are no process, nor one that has
    ended."""
    engine, sizes = ENGINES.get(facts.engine), expected(facts)
    if engine is None:
        return []
    wanted = [named(engine.core_role, rank) for rank in every(sizes, _groups(engine))]
    there = {process.role for process in facts.cores}
    if not there.issubset(wanted):
        return []
    return [role for role in wanted if role not in there]


def _groups(engine: Engine) -> tuple[str, ...]:
    """Those of the core's title: workers beside it have the others in theirs."""
    return ("DP",) if engine.worker_role else ORDER


def _title(role: str, titles: Sequence[str]) -> str:
    """The title that ``role`` is the beginning of, without its rank; of another one
    itself."""
    for title in titles:
        cut = len(role) >= LEAST and title.startswith(role)
        if cut or (role.startswith(title) and not labels(role)):
            return title
    return role


def _ranks(
    below: Mapping[int, Mapping[str, int]],
    wanted: Sequence[Mapping[str, int]],
    died: Mapping[int, int],
    *,
    in_order: bool,
) -> dict[int, Mapping[str, int]]:
    """Pid: rank of each that has none in ``below``, which is in the order of their
    start."""
    groups = wanted[0].keys()
    known: dict[int, dict[str, int]] = {}
    for pid, rank in below.items():
        known[pid] = {group: at for group, at in rank.items() if group in groups}
        if known[pid] and known[pid] not in wanted:
            return {}
    logged: dict[int, Mapping[str, int]] = {}
    for pid, number in died.items():
        if number < len(wanted):
            logged[pid] = wanted[number]

    ranks: dict[int, Mapping[str, int]] = {}
    for pid, rank in known.items():
        ranks[pid] = rank or logged.get(pid, {})
    cut = [pid for pid, rank in ranks.items() if not rank]
    there = [*ranks.values()]
    for pid, rank in logged.items():
        if pid not in known:
            there.append(rank)
    lost = [rank for rank in wanted if rank not in there]
    if len(cut) == len(lost):
        filled = ranks | dict(zip(cut, lost, strict=True))
        # A single one can only be the one that is missing; several only where the
        # order of the whole family agrees.
        if len(cut) < 2 or (in_order and list(filled.values()) == list(wanted)):
            ranks = filled
    return {pid: rank for pid, rank in ranks.items() if rank and not known[pid]}
