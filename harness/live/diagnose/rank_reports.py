"""What others say of the ranks of a server: NCCL, PyTorch's Flight Recorder, and core
dumps of its GPUs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mmrepro.base.units import size
from mmrepro.failure.documents import TargetFacts
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.probes import FlightData, FlightRank, GpuCoreData, NcclRank, RasData


def behind(view: DiagnosisView) -> tuple[list[str], list[str]]:
    """Roles of the ranks that have launched fewer operations than the rest of a
    communicator, in the same way in two reports of NCCL's RAS service, and what the
    last report says."""
    reports = [data for _, data in view.evidence.results(RasData, "check")]
    if not reports:
        return [], []
    last = reports[-1]
    roles = _roles_by_pid(view.facts)
    lines = [f"NCCL: {text}" for text in last.troubles[:6]]
    missing = [rank for rank in last.ranks if rank.missing]
    for rank in missing[:6]:
        how = "is considered dead" if rank.dead else "gives no data"
        who = roles.get(rank.pid, f"process {rank.pid}")
        lines.append(f"NCCL: {who} (rank {rank.rank}) {how}")
    if len(reports) < 2:
        return [], lines

    # Ranks of a server at work are apart by an operation or two at any moment: only
    # what is the same in the first and the last report is a rank that lags.
    lagging = _lagging(last, roles)
    if _lagging(reports[0], roles) != lagging:
        return [], lines
    for role, text in lagging.items():
        lines.append(f"NCCL: {role} {text}")
    return list(lagging), lines


def flight(view: DiagnosisView) -> list[str]:
    """Who entered the last collective operation of a group and who did not, by
    PyTorch's Flight Recorder. A group of one file says nothing."""
    groups: dict[str, list[FlightRank]] = {}
    for _, data in view.evidence.results(FlightData, "check"):
        for rank in data.ranks:
            for group in rank.entered:
                groups.setdefault(group, []).append(rank)

    lines: list[str] = []
    for group, members in groups.items():
        line = _entered(group, members)
        if line:
            lines.append(line)
    return lines[:6]


def _entered(group: str, members: Sequence[FlightRank]) -> str:
    """Who of a group entered its last operation and who did not; "": all did."""
    last = max(rank.entered[group] for rank in members)
    entered: list[str] = []
    late: list[str] = []
    operation = ""
    for rank in members:
        number = rank.entered[group]
        if number < last:
            late.append(f"{rank.rank} (at {number})")
            continue
        entered.append(str(rank.rank))
        operation = operation or rank.operation[group]
    if not late:
        return ""
    return (
        f"Flight Recorder: in group {group} rank {', '.join(entered)} entered "
        f"{operation} (number {last}), rank {', '.join(late)} did not"
    )


def on_gpu(view: DiagnosisView) -> dict[int, str]:
    """The kernel that a GPU's core dump shows at work, by process."""
    kernels = {}
    for _, dump in view.evidence.results(GpuCoreData, "check"):
        if dump.kernels:
            kernels[dump.pid] = dump.kernels[0]
    return kernels


def dumped(view: DiagnosisView) -> list[str]:
    """A line for each core dump of a GPU."""
    lines = []
    for _, dump in view.evidence.results(GpuCoreData, "check"):
        who = view.facts.role_of(dump.pid) or f"process {dump.pid}"
        what = f"runs {dump.kernels[0]}" if dump.kernels else "has a core dump"
        if len(dump.kernels) > 1:
            what += f" and {len(dump.kernels) - 1} more kernels"
        lines.append(f"the GPU of {who} {what}: {dump.file}, {size(dump.bytes)}")
    return lines


def _roles_by_pid(facts: TargetFacts) -> dict[int, str]:
    """Roles by both numbers of a process: in a container NCCL knows the inner one."""
    roles = {}
    for process in facts.processes:
        if process.inner_pid is not None:
            roles[process.inner_pid] = process.role
        if process.pid is not None:
            roles[process.pid] = process.role
    return roles


def _lagging(report: RasData, roles: dict[int, str]) -> dict[str, str]:
    """Role: what it has launched, of the ranks that are behind the most of their
    communicator."""
    communicators: dict[str, list[NcclRank]] = {}
    for rank in report.ranks:
        ranks = communicators.setdefault(rank.communicator, [])
        if not rank.missing:
            ranks.append(rank)

    lagging: dict[str, str] = {}
    for communicator, ranks in communicators.items():
        kinds: set[str] = set()
        for rank in ranks:
            kinds.update(rank.counts)
        for kind in sorted(kinds):
            launched = _launched(report, communicator, ranks, kind)
            lagging |= _lagging_in(ranks, kind, launched, roles)
    return lagging


def _lagging_in(
    ranks: Sequence[NcclRank], kind: str, launched: Counter[int], roles: dict[int, str]
) -> dict[str, str]:
    """The same for one kind of operation in one communicator."""
    lagging: dict[str, str] = {}
    top = max(launched, default=0)
    what = "operations" if kind == "all" else kind
    for rank in ranks:
        count = rank.counts.get(kind, 0)
        # A single rank that is ahead does not make all others late.
        is_behind = count < top and launched[count] < launched[top]
        if is_behind and rank.pid in roles:
            lagging[roles[rank.pid]] = (
                f"has launched {count} {what}, {launched[top]} others {top}"
            )
    return lagging


def _launched(
    report: RasData, communicator: str, ranks: Sequence[NcclRank], kind: str
) -> Counter[int]:
    """How many ranks have launched each number of operations of ``kind``."""
    # The JSON form lists every rank; the text form only those that differ, and sums.
    if report.form == "json" and len(ranks) > 1:
        return Counter(rank.counts.get(kind, 0) for rank in ranks)
    return Counter(report.launched.get(f"{communicator} {kind}", {}))
