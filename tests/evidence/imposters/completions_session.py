"""LMDeploy: lists of prompts that fail at the same time, and what looks like it."""

from functools import partial

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.probes.data import InferenceData
from mmrepro.scenarios.completions_session import LONG, OWN_ID, TEXT

from imposters import Imposter
from imposters.lmdeploy import absent, forget, log_of, one, reply, sent

RUN, CURED = "completions-session-0.14.0", "completions-session-text-prompts"
DIFFERENT, INCONCLUSIVE = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
STOP = "no-stop"


def own_session(incident: Incident) -> None:
    """Two clients name session 77: that one is refused, and every word but the id is
    the same."""
    log = log_of(incident)
    for line in log.matches["id-taken"]:
        line.text = f"ValueError: User session id {OWN_ID} already exists"
    forget(incident, ("numbered",))


def named_one(incident: Incident) -> None:
    """They name session 1, which is a place in a list as well."""
    for line in log_of(incident).matches["id-taken"]:
        line.text = "ValueError: User session id 1 already exists"
    forget(incident, ("numbered",))


def too_late(incident: Incident) -> None:
    incident.evidence.facts["pieces_at_two"] = sent(incident, (LONG,))[0].pieces


def too_early(incident: Incident) -> None:
    incident.evidence.facts["pieces_at_two"] = 5


def busy(incident: Incident) -> None:
    reply(incident, 429, "Too Many Requests", (TEXT,))
    for probe in incident.evidence.probes:
        if isinstance(probe.data, InferenceData):
            probe.data.status, probe.data.error = 429, "HTTP 429: Too Many Requests"


IMPOSTERS: list[Imposter] = [
    one(
        "session-own",
        RUN,
        "other-cause",
        DIFFERENT,
        "clients named the session 77 themselves, and two of them at the same time",
        own_session,
        "second-fails",
        "texts-spared",
        "lost-for-good",
        STOP,
    ),
    one(
        "session-named-1",
        RUN,
        "other-cause",
        DIFFERENT,
        "clients named the session 1 themselves: no traceback has a list's place",
        named_one,
        "second-fails",
        "own-id-ignored",
        "texts-spared",
        "lost-for-good",
        STOP,
    ),
    one(
        "session-other-exception",
        RUN,
        "other-cause",
        DIFFERENT,
        "the HTTP 500 comes of another exception",
        partial(forget, patterns=("id-taken", "numbered")),
        "second-fails",
        "texts-spared",
        "lost-for-good",
        STOP,
    ),
    one(
        "session-no-log",
        RUN,
        "absent-probe",
        INCONCLUSIVE,
        "the server's log could not be read",
        absent,
        "second-fails",
        "texts-spared",
        "lost-for-good",
    ),
    one(
        "session-too-many",
        RUN,
        "overload",
        DIFFERENT,
        "a proxy refused the text beside it with 429",
        busy,
        "second-fails",
        "own-id-ignored",
        "lost-for-good",
        STOP,
    ),
    one(
        "session-came-late",
        CURED,
        "trigger-failed",
        INCONCLUSIVE,
        "the two came when the long answer had ended",
        too_late,
        STOP,
    ),
    one(
        "session-came-early",
        CURED,
        "trigger-failed",
        INCONCLUSIVE,
        "the two came while the long one was at its first prompt",
        too_early,
        STOP,
    ),
    one(
        "session-unmeasured",
        CURED,
        "torn-sample",
        INCONCLUSIVE,
        "nobody counted the pieces of the long answer",
        lambda incident: incident.evidence.facts.clear(),
        STOP,
    ),
]
