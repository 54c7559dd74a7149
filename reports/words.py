"""The words and marks in which every format tells outcomes, truths, numbers and
times."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mmrepro.base.records import ClaimStatus, Fidelity, HostFacts, Moment, StandIn
from mmrepro.base.units import duration, sane as sane
from mmrepro.engines.folders import title
from mmrepro.failure.documents import (
    Attempt,
    ClaimResult,
    MitigationFacts,
    ScenarioFacts,
)
from mmrepro.failure.signature import ConditionResult, Outcome, Truth
from mmrepro.reports.blocks import (
    Block,
    Inline,
    Tone,
    code,
    codes,
    count,
    folded,
    link,
    prose,
    row,
    slug,
    table,
    toned,
)

OUTCOME_SENTENCES: Final[dict[Outcome, str]] = {
    Outcome.REPRODUCED: "Reproduced on {engine}",
    Outcome.DIFFERENT_FAILURE: "A different failure on {engine}",
    Outcome.NOT_REPRODUCED: "Not reproduced on {engine}",
    Outcome.INCONCLUSIVE: "Inconclusive on {engine}",
}
TRUTHS: Final[dict[Truth, tuple[str, Tone]]] = {
    Truth.MET: ("✔ met", "good"),
    Truth.NOT_MET: ("✘ not met", "bad"),
    Truth.UNKNOWN: ("? unknown", "unsure"),
}
CLAIMS: Final[dict[ClaimStatus, tuple[str, str, Tone]]] = {
    ClaimStatus.CONFIRMED: ("✔", "confirmed", "good"),
    ClaimStatus.REFUTED: ("✘", "refuted", "bad"),
    ClaimStatus.NOT_TESTED: ("–", "not tested", "soft"),
}
ABNORMAL: Final[dict[bool | None, tuple[str, str, Tone]]] = {
    True: ("yes", "abnormal", "bad"),
    False: ("no", "normal", ""),
    None: ("unknown", "unknown", "unsure"),
}
"""Of a symptom: whether it is abnormal, its state in one word, its tone."""


def sentence(text: str) -> str:
    """``text`` with a full stop, unless it has an end of its own."""
    text = text.strip()
    return text if not text or text[-1] in ".!?…" else text + "."


def capital(text: str) -> str:
    """Begin the text with a capital."""
    return text[:1].upper() + text[1:]


def product(engine: str, release: str = "") -> str:
    """``vLLM 0.23.0``: an engine as its makers write it."""
    return f"{title(engine)} {release}".strip()


def footer(name: str, created: Moment, file: str, rest: str) -> Inline:
    """``name``, when it was made, of which ``file``, and what lies beside it."""
    return (
        f"{name}, {created.wall:%Y-%m-%d %H:%M:%S} UTC, from ",
        code(file),
        f"; {rest}.",
    )


RUNS: Final = "each run's incident lies in its own folder"


def made_on(host: HostFacts, version: str) -> list[tuple[str, str]]:
    """The last rows of a set-up."""
    where = f"{host.cpu}, {host.cores} cores, {host.os}"
    return [("host", where), ("made by", f"mmrepro {version}")]


def fidelity_words(*fidelities: Fidelity | None) -> str:
    """Each one's name and what it means."""
    known = dict.fromkeys(fidelity for fidelity in fidelities if fidelity is not None)
    meanings = [f"{fidelity}: {fidelity.words}" for fidelity in known]
    return "; ".join(meanings) or "unknown"


def stand_ins(given: Iterable[tuple[StandIn, str]], where: str) -> list[Block]:
    """A table of stand-ins. Each text stands in the column called ``where``."""
    rows = []
    for stand_in, text in given:
        rows.append((code(stand_in.name), stand_in.replaces, stand_in.why, text))

    return table(f"stand-in:name | replaces | why | {where}", rows, "stand-ins")


def claim_counts(
    given: Iterable[ClaimResult], singular: str, plural: str
) -> Iterator[str]:
    """``27 claims: 16 confirmed, 2 refuted, 9 not tested``, or ``1 claim confirmed``."""
    counts = Counter(claim.status for claim in given)
    parts = []
    for status, (_, word, _) in CLAIMS.items():
        if counts[status]:
            parts.append(f"{counts[status]} {word}")
    total = counts.total()
    noun = singular if total == 1 else plural
    if len(parts) == 1:
        word = parts[0].partition(" ")[2]
        yield f"{total} {noun} {word}"
    elif parts:
        yield f"{total} {noun}: {', '.join(parts)}"


def claims(
    given: Iterable[ClaimResult], first: str, singular: str, plural: str
) -> list[Block]:
    """A table of claims: ``first`` and ``singular`` are the names of its columns."""
    rows = []
    for claim in given:
        mark, word, tone = CLAIMS[claim.status]
        cells = row(
            toned(f"{mark} {word}", tone),
            claim.observed,
            claim.text,
            claim.source,
            status=word,
            anchor=slug(f"{singular}-{claim.id}"),
        )
        rows.append(cells)

    heads = f"{first}:name | observed | {singular} | source:name"
    return table(heads, rows, plural)


def linked(references: Iterable[str]) -> list[Inline]:
    """Link each thread, ``vllm#1 https://…``; what has no address is a command."""
    links: list[Inline] = []
    for reference in references:
        name, has_address, url = reference.partition(" https://")
        if has_address:
            links.append((link(name, f"https://{url}"),))
        else:
            links.append((code(reference),))
    return links


def condition_tables(
    given: Sequence[ConditionResult], prefix: str = ""
) -> Iterator[Block]:
    """List the conditions that are open, then those that are met, folded. ``prefix``:
    of their anchors."""
    met = []
    others = []
    for condition in given:
        if condition.truth is Truth.MET:
            met.append(condition)
        else:
            others.append(condition)

    yield from _condition_table(others, prefix)
    # The sentence of a match counts the required ones alone.
    supporting = sum(not condition.required for condition in met)
    note = f", {supporting} of them supporting" if supporting else ""
    title = f"{count(len(met), 'condition')} met{note}"
    yield from folded(title, _condition_table(met, prefix))


def _condition_table(conditions: Sequence[ConditionResult], prefix: str) -> list[Block]:
    rows = []
    for condition in conditions:
        files = []
        for file in condition.evidence[:4]:
            files.append(f"evidence/{file.removeprefix('evidence/')}")
        cells = row(
            toned(*TRUTHS[condition.truth]),
            condition.observed,
            (*prose(condition.statement), " ", code(condition.id)),
            part_words(condition),
            codes(files),
            status=condition.truth.value,
            anchor=slug(f"condition-{prefix}{condition.id}"),
        )
        rows.append(cells)

    heads = "truth:name | observed | condition | part | evidence"
    return table(heads, rows, "conditions")


def attempt(attempt: Attempt, none: str) -> str:
    """What came of a run; ``none``: it has no verdict."""
    if attempt.outcome is not None:
        return attempt.outcome.words
    return f"{none} ({attempt.lost})" if attempt.lost else none


def scenario_name(scenario: ScenarioFacts) -> str:
    """Name the scenario with its variant, where it has one: ``ghost-key-eviction
    (long)``."""
    if not scenario.variant:
        return scenario.name
    return f"{scenario.name} ({scenario.variant})"


def run_link(folder: str) -> Inline:
    """A run's folder, below the page's; a page links the run's own page."""
    return code(folder, f"{folder}/report.html") if folder else ""


def part_words(condition: ConditionResult) -> str:
    """Which part of the signature a condition is of, and what it counts for."""
    if condition.waived:
        return f"{condition.part}, taken away by {condition.waived}"
    return condition.part if condition.required else f"{condition.part}, supporting"


def effective_words(mitigation: MitigationFacts) -> str:
    """What a run says of a mitigation; one that was not applied says nothing of it."""
    if not mitigation.applied:
        return "not tried in this run"
    if mitigation.hides:
        return "hid the failure: the cause is still there"
    if mitigation.effective is None:
        return "applied; its effect is unknown"
    return "prevented the failure" if mitigation.effective else "did not prevent it"


def span(values: Iterable[float]) -> str:
    """``31 ms`` or ``31–52 ms`` of finite values; empty when there are none."""
    known = sorted(value for value in values if sane(value))
    if not known:
        return ""
    low = duration(known[0])
    high = duration(known[-1])
    if low == high:
        return low
    number, _, low_unit = low.partition(" ")
    _, _, high_unit = high.partition(" ")
    # One unit is written once.
    return f"{number}–{high}" if low_unit == high_unit else f"{low} – {high}"
