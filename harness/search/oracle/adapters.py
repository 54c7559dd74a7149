"""An adapter is there from its loading until its unloading: no earlier, no later.

A server takes an adapter at run time, and gives it back. Whoever asks it between the
two is served; whoever asks before or afterwards is told that there is no such model.
Only what certainly lies between or outside is judged: requests that were sent while an
adapter was coming or going may be answered either way. That the answer is this
adapter's own is the reference's to say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmrepro.base.records import FindingClass
from mmrepro.engines import SERVED_MODEL, Engine
from mmrepro.engines.plain import plain_server
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.oracle.judged import OracleReport, Sent, sent_of, sighting
from mmrepro.search.oracle.loud import NO_SUCH
from mmrepro.search.oracle.reference import CHANGES, LOADS, static_adapters
from mmrepro.traffic.case import Case, Operation, Played

EXPECTED = {
    "adapter-gone": "Nobody is served by an adapter that is not loaded.",
    "adapter-missing": "An adapter that is loaded serves whoever asks it.",
}


def adapter_of(op: Operation) -> str:
    """The adapter that a request asks, loads or unloads; "": the model itself."""
    if op.path in CHANGES:
        return str(op.parameters.get("lora_name", ""))
    # SGLang has the model's name before.
    return (op.model or "").removeprefix(f"{SERVED_MODEL}:")


def adapters(case: Case, played: Played, engine: Engine) -> OracleReport:
    """Whether adapters were there as they were loaded and unloaded."""
    sent = sent_of(case, played)
    changes = [request for request in sent if request.op.path in CHANGES]
    if not changes:
        return OracleReport()
    static = {word.partition("=")[0] for word in static_adapters(case.server.args)}
    plain = plain_server(engine.name)
    reloads = plain is not None and plain.reloads
    wrong: dict[str, list[tuple[str, str]]] = {}
    for request in sent:
        name = adapter_of(request.op)
        if (
            not request.generates
            or not name
            or request.record.left
            or request.record.status is None
        ):
            continue

        own = [change for change in changes if adapter_of(change.op) == name]
        there = _there(request, own, name in static, reloads=reloads)
        if there is False and request.record.status == 200:
            said = f"{request.op.id} was answered by {name}, which was not loaded"
            wrong.setdefault("adapter-gone", []).append((request.op.id, said))
        elif there and request.record.status in NO_SUCH:
            said = f"{request.op.id} asked {name}, which was loaded: HTTP {request.record.status}"
            wrong.setdefault("adapter-missing", []).append((request.op.id, said))

    return OracleReport(sightings=[*_sightings(wrong)])


def _sightings(wrong: dict[str, list[tuple[str, str]]]) -> Iterator[Sighting]:
    for kind, answers in sorted(wrong.items()):
        ids = [id for id, _ in answers]
        more = f" (and {len(ids) - 1} more)" if len(ids) > 1 else ""
        said = f"{answers[0][1]}{more}."
        yield sighting(FindingClass.PROTOCOL, kind, said, EXPECTED[kind], by=ids)


def _there(
    one: Sent, changes: Sequence[Sent], static: bool, *, reloads: bool
) -> bool | None:
    """Whether the adapter was there all the time that ``one`` took; None: it cannot be
    told."""
    there: bool | None = static
    for change in changes:  # in the order in which they were sent
        if change.begin >= one.end:
            break
        unanswered = change.record.status is None or change.record.left
        if change.end > one.begin or unanswered:
            return None
        if change.record.status == 200:
            gone = None if reloads else False
            there = True if change.op.path in LOADS else gone

    return there
