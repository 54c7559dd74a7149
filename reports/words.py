"""The words and marks in which every format tells outcomes, truths, numbers and times."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from mmrepro.base.records import HostFacts, Moment
from mmrepro.base.units import duration
from mmrepro.failure.documents import (
    ClaimResult,
    ClaimStatus,
    Fidelity,
    MitigationFacts,
    ScenarioFacts,
    StandIn,
)
from mmrepro.failure.documents.ledger import Attempt
from mmrepro.failure.signature import ConditionResult, Outcome, Truth
from mmrepro.reports.blocks import Block, Inline, Tone, code, row, slug, table, toned

OUTCOME_WORDS: Final[dict[Outcome, str]] = {
    Outcome.REPRODUCED: "Reproduced",
    Outcome.DIFFERENT_FAILURE: "Different failure",
    Outcome.NOT_REPRODUCED: "Not reproduced",
    Outcome.INCONCLUSIVE: "Inconclusive",
}
OUTCOME_SENTENCES: Final[dict[Outcome, str]] = {
    Outcome.REPRODUCED: "This run reproduced it on {engine}",
    Outcome.DIFFERENT_FAILURE: "This run saw a different failure on {engine}",
    Outcome.NOT_REPRODUCED: "This run did not reproduce it on {engine}",
    Outcome.INCONCLUSIVE: "This run on {engine} is inconclusive",
}
FIDELITY_WORDS: Final[dict[Fidelity, str]] = {
    Fidelity.GPU: "the engine's own GPU build on a real GPU, as in production",
    Fidelity.GPU_STAND_IN: "the engine's own GPU build on a real GPU, with a stand-in that answers "
    "for its memory (listed below)",
    Fidelity.CPU: "the engine's own CPU backend: its real server, scheduler and caches; "
    "no GPU kernel ran",
    Fidelity.CPU_STAND_IN: "the real engine on a CPU, behind stand-ins that replace its device "
    "operations (listed below)",
    Fidelity.EMULATED_STREAM: "the real engine on a CPU, behind stand-ins that also reorder device "
    "work as a GPU stream would (listed below)",
    Fidelity.IN_PROCESS: "the engine's real classes called in one process, without a server",
    Fidelity.TEACHING_ENGINE: "mmrepro's own teaching engine: it shows what a fault planted in it "
    "does, and nothing of another engine",
    Fidelity.LIVE: "a live server that mmrepro did not start and only looked at",
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
    return text[:1].upper() + text[1:]


def footer(name: str, created: Moment, file: str, rest: str) -> Inline:
    """``name``, when it was made, of which ``file``, and what lies beside it."""
    return (f"{name}, {created.wall:%Y-%m-%d %H:%M:%S} UTC, from ", code(file), f"; {rest}.")


RUNS: Final = "each run's incident lies in its own folder"


def made_on(host: HostFacts, version: str) -> list[tuple[str, str]]:
    """The last rows of a set-up."""
    where = f"{host.cpu}, {host.cores} cores, {host.os}"
    return [("host", where), ("made by", f"mmrepro {version}")]


def fidelity_words(*fidelities: Fidelity | None) -> str:
    """Each one's name and what it means."""
    known = dict.fromkeys(one for one in fidelities if one is not None)
    return "; ".join(f"{one}: {FIDELITY_WORDS[one]}" for one in known) or "unknown"


def stand_ins(given: Iterable[tuple[StandIn, str]], where: str) -> list[Block]:
    """A table of stand-ins. Each text stands in the column called ``where``."""
    rows = [(code(one.name), one.replaces, one.why, text) for one, text in given]
    return table(["stand-in:name", "replaces", "why", where], rows, "stand-ins")


def claim_counts(given: Iterable[ClaimResult], one: str, several: str) -> Iterator[str]:
    """``3 claims confirmed``, for each status that there is."""
    found = Counter(claim.status for claim in given)
    for status, (_, word, _) in CLAIMS.items():
        if number := found[status]:
            yield f"{number} {one if number == 1 else several} {word}"


def claims(given: Iterable[ClaimResult], first: str, said: str, plural: str) -> list[Block]:
    """A table of claims: ``first`` and ``said`` are the names of its columns."""
    rows = []
    for one in given:
        mark, word, tone = CLAIMS[one.status]
        cells = (toned(f"{mark} {word}", tone), one.observed, one.text, one.source)
        rows.append(row(*cells, status=word, anchor=slug(f"{said}-{one.id}")))
    return table([f"{first}:name", "observed", said, "source:name"], rows, plural)


def outcome(outcome: Outcome) -> str:
    """Within a sentence."""
    return OUTCOME_WORDS[outcome].lower()


def attempt(attempt: Attempt, none: str) -> str:
    """What came of a run; ``none``: it has no verdict."""
    if attempt.outcome is not None:
        return outcome(attempt.outcome)
    return f"{none} ({attempt.lost})" if attempt.lost else none


def scenario_name(scenario: ScenarioFacts) -> str:
    """``ghost-key-eviction (long)``: with its variant, where it has one."""
    return f"{scenario.name} ({scenario.variant})" if scenario.variant else scenario.name


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
    return {
        True: "prevented the failure",
        False: "did not prevent it",
        None: "applied; its effect could not be told",
    }[mitigation.effective]


def sane(number: float) -> bool:
    """A number that a picture can be drawn of: finite, and of a size that runs produce."""
    return math.isfinite(number) and abs(number) < 1e12


def span(values: Iterable[float]) -> str:
    """``31 ms`` or ``31–52 ms`` of finite values; empty when there are none."""
    known = sorted(v for v in values if sane(v))
    if not known:
        return ""
    low, high = duration(known[0]), duration(known[-1])
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number}–{high}" if unit == high.partition(" ")[2] else f"{low} – {high}"
