"""Imposters of lora-reload and lora-added: wrong answers of other causes, and loads
that failed."""

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.scenarios.lora_runtime import (
    AFTER,
    AGAIN,
    ALONE,
    FIRST,
    LATER,
    LONG,
    OF_A,
    OF_B,
    RELOADED,
    REPRODUCER,
    SALTED,
    SWAPPED,
    THIRD,
    A,
    B,
)

from imposters import Imposter
from imposters.vllm_edits import Edit, fact, labelled, reproducer, unread
from imposters.vllm_silent import answered_as

RELOAD, OFF = "lora-reload-0.25.0", "lora-reload-no-prefix-caching"
ADDED, SPARE = "lora-added-0.25.0", "lora-added-spare-slots"
DIFFERENT, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE


def asked(label: str, **fields: object) -> Edit:
    def edit(incident: Incident) -> None:
        for record in labelled(incident, label):
            for name, value in fields.items():
                setattr(record, name, value)

    return edit


def turned_early(incident: Incident) -> None:
    """One of the answers is another one from its first token on, before anything was
    loaded."""
    for record in labelled(incident, LONG[A]):
        record.tokens[0] = "<t9>"


def one_adapter(incident: Incident) -> None:
    for labels in (ALONE, LONG, LATER):
        answered_as(labels[A], labels[B])(incident)


def loaded_late(incident: Incident) -> None:
    """The load ended after both answers."""
    for record in labelled(incident, f"load {THIRD}"):
        record.latency_s = 900.0


IMPOSTERS = [
    Imposter(
        "reload: hashed by more than the name",
        RELOAD,
        "other-cause",
        "another path gives another hash: what was shared is of something else",
        reproducer(REPRODUCER, another_path_same_key=False),
        DIFFERENT,
        ("stale", "salt"),
    ),
    Imposter(
        "reload: the script was not run",
        RELOAD,
        "absent-probe",
        "nobody asked the engine's own function",
        unread(REPRODUCER),
        UNDECIDED,
        ("stale", "salt"),
    ),
    Imposter(
        "reload: nothing of it was cached",
        RELOAD,
        "other-cause",
        "the prompt was computed anew, and the answer is wrong: not by the cache",
        asked(RELOADED, cached_tokens=0),
        DIFFERENT,
        ("key", "salt"),
    ),
    Imposter(
        "reload: wrong with a salt as well",
        RELOAD,
        "other-cause",
        "the new adapter was loaded wrong: no answer is its own",
        answered_as(SALTED, RELOADED),
        DIFFERENT,
        ("stale", "key"),
    ),
    Imposter(
        "reload: the adapter is spoilt",
        RELOAD,
        "other-cause",
        "under its own name the adapter answers otherwise, too",
        answered_as(AFTER, RELOADED),
        DIFFERENT,
        ("stale", "key", "salt"),
    ),
    Imposter(
        "reload: the second load was refused",
        RELOAD,
        "trigger-failed",
        "the name is still the first adapter's",
        asked(f"load {SWAPPED}", status=400, error="no"),
        UNDECIDED,
    ),
    Imposter(
        "reload: never asked before",
        OFF,
        "trigger-failed",
        "under the name another prompt was asked first",
        answered_as(FIRST, OF_B),
        UNDECIDED,
    ),
    Imposter(
        "reload: the cache changes answers",
        RELOAD,
        "other-cause",
        "what comes from the cache is answered otherwise, by any adapter",
        answered_as(AGAIN, OF_A),
        UNDECIDED,
    ),
    Imposter(
        "added: slots are looked at",
        ADDED,
        "other-cause",
        "the engine's function notices the move: the answers turn of something else",
        reproducer(REPRODUCER, refreshed_after_a_move=1),
        DIFFERENT,
        ("passes",),
    ),
    Imposter(
        "added: the script was not run",
        ADDED,
        "absent-probe",
        "nobody asked the engine's own function",
        unread(REPRODUCER),
        UNDECIDED,
        ("passes",),
    ),
    Imposter(
        "added: wrong from its first token",
        ADDED,
        "other-cause",
        "an answer was another one before anything was loaded",
        turned_early,
        DIFFERENT,
        ("passes",),
    ),
    Imposter(
        "added: wrong for good",
        ADDED,
        "other-cause",
        "asked again, an adapter answers otherwise",
        answered_as(LATER[B], LONG[B]),
        DIFFERENT,
    ),
    Imposter(
        "added: loaded after them",
        SPARE,
        "trigger-failed",
        "both answers had ended when the third one was loaded",
        loaded_late,
        UNDECIDED,
    ),
    Imposter(
        "added: the load was refused",
        SPARE,
        "trigger-failed",
        "no third adapter was loaded",
        asked(f"load {THIRD}", status=400, error="no"),
        UNDECIDED,
    ),
    Imposter(
        "added: before an answer began",
        SPARE,
        "trigger-failed",
        "nobody had begun to answer",
        fact("pieces_before", 0),
        UNDECIDED,
    ),
    Imposter(
        "added: both are one adapter",
        SPARE,
        "trigger-failed",
        "the two adapters answer alike, so that a swap shows nothing",
        one_adapter,
        UNDECIDED,
    ),
]
