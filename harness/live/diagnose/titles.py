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
from mmrepro.failure.documents.diagnosis import TargetFacts
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
ELSEWHERE = (
    "--nnodes",
    "--node-rank",
    "--data-parallel-size-local",
    "--headless",
    "--distributed-executor-backend",
    "--enable-dp-attention",
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
    words = [part for word in facts.command for part in word.split("=", 1)]
    if any(word in ELSEWHERE for word in words):
        return {}
    sizes = {}
    for group, names in SIZES.items():
        for name, value in pairwise(words):
            if name in names and value.isdigit() and int(value) > 1:
                sizes[group] = int(value)
    return sizes


def named(prefix: str, rank: Mapping[str, int]) -> str:
    """``Worker_PP1_TP0``."""
    return "_".join([prefix, *(f"{k}{v}" for k, v in rank.items())])


def every(
    sizes: Mapping[str, int], groups: Sequence[str] = ORDER
) -> list[dict[str, int]]:
    """The ranks of these groups, in the order in which engines count and start them."""
    kept = [name for name in groups if name in sizes]
    return [
        dict(zip(kept, numbers, strict=True))
        for numbers in product(*(range(sizes[name]) for name in kept))
    ]


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
    if engine is None or not any(p.state in "ZX" for p in facts.processes):
        return facts
    sizes = expected(facts)
    prefixes = [name for name in (engine.core_role, engine.worker_role) if name]
    titles = [*prefixes, *(name for name, _ in KINDS)]
    roles = {p.pid: p.role for p in facts.processes}
    roles |= {p.pid: _title(p.role, titles) for p in facts.processes if p.state in "ZX"}
    for process in facts.processes:
        said = (logged or {}).get(process.inner_pid or process.pid, "")
        title = roles[process.pid]
        if (
            process.state in "ZX"
            and title in titles
            and said.startswith(title)
            and labels(said)
        ):
            roles[process.pid] = said
    for prefix in prefixes:
        outer = prefix == engine.core_role and bool(engine.worker_role)
        inner = every(sizes, ("DP",) if outer else ("PP", "TP"))
        own = [p for p in facts.processes if roles[p.pid].startswith(prefix)]
        for parent in dict.fromkeys(p.ppid for p in own):
            above = {} if outer else labels(roles.get(parent, ""))
            data = {"DP": above["DP"]} if {"DP"} <= sizes.keys() & above.keys() else {}
            wanted = [data | one for one in inner]
            if not any(wanted) and (outer or not sizes):
                continue
            there = [p for p in own if p.ppid == parent]
            below = {p.inner_pid or p.pid: labels(roles[p.pid]) for p in there}
            counted = "DP" not in sizes or "DP" in wanted[0]
            order = in_order(facts.engine, prefix, facts.release)
            found = _ranks(below, wanted, died or {}, in_order=order) if counted else {}
            for process in [
                p for p in there if not labels(roles[p.pid]) and p.state in "ZX"
            ]:
                rank = found.get(process.inner_pid or process.pid)
                roles[process.pid] = named(prefix, rank) if rank else prefix + UNKNOWN
    processes = [p.model_copy(update={"role": roles[p.pid]}) for p in facts.processes]
    return facts.model_copy(update={"processes": processes})


def absent(facts: TargetFacts) -> list[str]:
    """Cores that the command line asks for and that are no process, nor one that has
    ended."""
    engine, sizes = ENGINES.get(facts.engine), expected(facts)
    if engine is None:
        return []
    wanted = [named(engine.core_role, one) for one in every(sizes, _groups(engine))]
    there = [p.role for p in facts.cores]
    known = all(role in wanted for role in there)
    return [role for role in wanted if role not in there] if known else []


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
    known = {
        pid: {k: v for k, v in rank.items() if k in groups}
        for pid, rank in below.items()
    }
    if any(rank and rank not in wanted for rank in known.values()):
        return {}
    said = {pid: wanted[number] for pid, number in died.items() if number < len(wanted)}
    found: dict[int, Mapping[str, int]] = {
        pid: rank or said.get(pid, {}) for pid, rank in known.items()
    }
    cut = [pid for pid, rank in found.items() if not rank]
    there = [*found.values(), *(rank for pid, rank in said.items() if pid not in known)]
    lost = [rank for rank in wanted if rank not in there]
    if len(cut) == len(lost):
        every_one = found | dict(zip(cut, lost, strict=True))
        if len(cut) < 2 or (in_order and list(every_one.values()) == list(wanted)):
            found = every_one
    return {pid: rank for pid, rank in found.items() if rank and not known[pid]}
