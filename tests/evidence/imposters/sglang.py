"""Imposters of pad-value-collision, and what changes a recording of SGLang."""

from collections.abc import Callable
from typing import Any

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.data import LogsData

from . import Imposter, Kind

Edit = Callable[[Incident], object]
INCONCLUSIVE, DIFFERENT = Outcome.INCONCLUSIVE, Outcome.DIFFERENT_FAILURE
NOT_REPRODUCED = Outcome.NOT_REPRODUCED


def asked(*labels: str, **fields: Any) -> Edit:
    """Fields of the requests called so."""

    def edit(incident: Incident) -> None:
        for record in incident.evidence.requests:
            if record.label in labels:
                for name, value in fields.items():
                    setattr(record, name, value)

    return edit


def answered_as(label: str, other: str, **fields: Any) -> Edit:
    """The request got the answer that another one got."""

    def edit(incident: Incident) -> None:
        found = next(r for r in incident.evidence.requests if r.label == other)
        answer = {name: getattr(found, name) for name in ("text", "tokens", "logprobs")}
        asked(label, **answer, **fields)(incident)

    return edit


def facts(**changed: Any) -> Edit:
    """What the engine's own code gave, in its environment."""
    return lambda incident: incident.evidence.reproducers[0].facts.update(changed)


def unrun(incident: Incident) -> None:
    incident.evidence.reproducers.clear()


def by_hand(incident: Incident) -> None:
    """The option was given, but not as a mitigation."""
    for mitigation in incident.mitigations:
        mitigation.applied = False


def mitigated(name: str) -> Edit:
    def edit(incident: Incident) -> None:
        for mitigation in incident.mitigations:
            mitigation.applied = mitigation.applied or mitigation.name == name

    return edit


def logged(**counts: int) -> Edit:
    """How often lines of a pattern are in the log; ``_`` for ``-``."""

    def edit(incident: Incident) -> None:
        for result in incident.evidence.probes:
            if isinstance(result.data, LogsData):
                for name, count in counts.items():
                    result.data.match_counts[name] = count
                    result.data.matches.pop(name, None)

    return edit


def unread(incident: Incident) -> None:
    """The log could not be read."""
    for result in incident.evidence.probes:
        if isinstance(result.data, LogsData):
            result.data = None


def both(*edits: Edit) -> Edit:
    """What one cause changes in more than one place."""

    def edit(incident: Incident) -> None:
        for one in edits:
            one(incident)

    return edit


def called(release: str) -> Edit:
    """The engine says that it is this release."""
    return lambda incident: setattr(incident.engine, "release", release)


VICTIMS = ("B after A", "A after B")
LOADED, CALLED = "sgl_kernel_stub-loaded", "sgl_kernel_stub-called"
RANGE = ("pad-range", "widened-2256")

Row = (
    tuple[str, str, Kind, str, Edit, Outcome]
    | tuple[str, str, Kind, str, Edit, Outcome, Any]
)

PAD: list[Row] = [
    (
        "own-answers-of-pretended-kernels",
        "0.5.23",
        "other-cause",
        "the stand-in was called: the answers may not be the engine's",
        logged(**{CALLED: 12}),
        INCONCLUSIVE,
    ),
    (
        "cured-with-pretended-kernels",
        "disable-radix-cache",
        "other-cause",
        "the stand-in was called: the answers may not be the engine's",
        logged(**{CALLED: 1}),
        INCONCLUSIVE,
        RANGE,
    ),
    (
        "salted-and-flushed-in-between",
        "0.5.17-cache-salt",
        "trigger-failed",
        "a watchdog flushed the cache after each request, and the salt was dropped",
        logged(**{"cache-flushed": 27}),
        INCONCLUSIVE,
    ),
    (
        "cured-by-the-log-of-another-start",
        "0.5.17-cache-salt",
        "stale-log",
        "the log is of a start without the stand-in",
        logged(**{LOADED: 0}),
        INCONCLUSIVE,
    ),
    (
        "patched-build",
        "0.5.23",
        "healthy",
        "a build with the fix that calls itself 0.5.6",
        called("0.5.6"),
        NOT_REPRODUCED,
    ),
    (
        "another-pair",
        "0.5.23",
        "trigger-failed",
        "the pictures of --option pair=FOLDER do not agree in the low 30 bits",
        facts(hash_b="e20742764e1f2440"),
        INCONCLUSIVE,
    ),
    (
        "a-pair-that-is-one-picture",
        "0.5.23",
        "trigger-failed",
        "B.png is a copy of A.png",
        facts(hash_b="3a1640464e1f2441"),
        INCONCLUSIVE,
    ),
    (
        "cache-off-by-hand",
        "disable-radix-cache",
        "trigger-failed",
        (
            "--disable-radix-cache was in the server's own options, and nobody tried "
            "a mitigation"
        ),
        by_hand,
        INCONCLUSIVE,
        RANGE,
    ),
    (
        "cache-on-after-all",
        "disable-radix-cache",
        "trigger-failed",
        (
            "the release ignores --disable-radix-cache: what is sent again comes from "
            "the cache"
        ),
        asked("gate: A again", "gate: B again", cached_tokens=54),
        INCONCLUSIVE,
        RANGE,
    ),
    (
        "cache-emptied-in-between",
        "0.5.23",
        "trigger-failed",
        "a watchdog flushed the cache after each request of the trigger",
        asked(*VICTIMS, "control after A", "control after B", cached_tokens=0),
        INCONCLUSIVE,
    ),
    (
        "cache-not-emptied",
        "0.5.23",
        "trigger-failed",
        "the flush before the first order was answered and not done",
        asked("A first", cached_tokens=54),
        INCONCLUSIVE,
    ),
    (
        "salt-dropped-and-another-pair",
        "0.5.17-cache-salt",
        "trigger-failed",
        "the salted pictures are no pair",
        facts(hash_b="e20742764e1f2440"),
        INCONCLUSIVE,
    ),
    (
        "salt-dropped",
        "0.5.17-cache-salt",
        "trigger-failed",
        "the scheduler dropped the salt: the text before the pictures is shared",
        asked(*VICTIMS, cached_tokens=7),
        INCONCLUSIVE,
    ),
    (
        "salt-on-a-release-with-the-fix",
        "0.5.23",
        "other-release",
        "cache_salt was sent to 0.5.23, which has the fix, and nothing was shared",
        both(mitigated("cache-salt"), asked(*VICTIMS, cached_tokens=0)),
        NOT_REPRODUCED,
    ),
    (
        "fixed-release-judged-by-another",
        "0.5.6",
        "other-release",
        "the engine's own code is 0.5.23's, and gives two pad values",
        facts(
            pads_equal=False,
            pad_b=3769088496191061461,
            match_b_after_a=3,
            pad_of_2_30=77,
        ),
        DIFFERENT,
    ),
    (
        "answered-by-a-proxy",
        "0.5.6",
        "other-cause",
        "B's answer is A's, but only the text came from the prefix cache",
        asked(*VICTIMS, cached_tokens=7),
        DIFFERENT,
        RANGE,
    ),
    (
        "wrong-in-one-order",
        "0.5.6",
        "other-cause",
        "A, sent after B, gets its own answer",
        answered_as("A after B", "gate: A alone", cached_tokens=7),
        DIFFERENT,
        RANGE,
    ),
    (
        "every-picture-is-taken-for-another",
        "0.5.6",
        "other-cause",
        "the control gets A's answer as well, and from the cache",
        answered_as("control after A", "gate: A alone", cached_tokens=54),
        INCONCLUSIVE,
        RANGE,
    ),
    (
        "no-reproducer",
        "0.5.6",
        "absent-probe",
        "the reproducer was not run",
        unrun,
        INCONCLUSIVE,
    ),
    (
        "no-reproducer-on-a-healthy-run",
        "0.5.23",
        "absent-probe",
        "the reproducer was not run: nobody knows that the pictures are a pair",
        unrun,
        INCONCLUSIVE,
    ),
    (
        "no-log",
        "0.5.6",
        "absent-probe",
        "the log could not be read",
        unread,
        INCONCLUSIVE,
        RANGE,
    ),
    (
        "log-of-another-start",
        "0.5.6",
        "stale-log",
        "the log is of a start without the stand-in",
        logged(**{LOADED: 0}),
        INCONCLUSIVE,
        RANGE,
    ),
    (
        "torn-usage",
        "0.5.6",
        "torn-sample",
        (
            "B's answer does not say what came from the cache, and the counter is of "
            "another moment"
        ),
        asked("B after A", cached_tokens=None),
        INCONCLUSIVE,
        RANGE,
    ),
    (
        "cut-short",
        "0.5.6",
        "overload",
        "the overloaded server gives up B after some tokens",
        asked("B after A", finish_reason="abort"),
        DIFFERENT,
        (*RANGE, "kv-reused", "a-features"),
    ),
    (
        "refused-when-busy",
        "0.5.23",
        "overload",
        "the busy server refuses B after A",
        asked("B after A", status=503, error="", tokens=[], logprobs=[]),
        DIFFERENT,
    ),
    (
        "one-usage-lost",
        "0.5.23",
        "torn-sample",
        "an answer of the gate does not say what came from the cache",
        asked("gate: A again", cached_tokens=None),
        INCONCLUSIVE,
    ),
]


def listed(scenario: str, rows: list[Row]) -> list[Imposter]:
    found = []
    for name, recording, kind, change, edit, outcome, *true in rows:
        run = f"{scenario}-{recording}"
        found.append(
            Imposter(f"{scenario}-{name}", run, kind, change, edit, outcome, *true)
        )
    return found


IMPOSTERS = listed("pad-value-collision", PAD)
