"""Imposters of what one request to vLLM kills: other deaths, other requests, other processes."""

import re
from collections.abc import Iterator
from itertools import starmap

from mmrepro.failure.documents import Incident
from mmrepro.failure.signature import Outcome
from mmrepro.scenario.vllm_killed import FATAL, KILLER, SENT, THROUGH

from imposters import Imposter
from imposters.prefill_edits import first_error, logs, of, unlogged, without

OTHER, UNDECIDED = Outcome.DIFFERENT_FAILURE, Outcome.INCONCLUSIVE
DIES = ("one-request", "dead")
"""Claims that the death alone confirms, whatever it was of."""
FIXED = {
    "stop-token-oov": "0.32.0",
    "grammar-backend-latch": "one-backend",
    "embeds-mrope": "refuse-embeds",
    "text-only-placeholder": "0.23.0",
    "seeded-chunk": "larger-budget",
}
"""The recording that is not reproduced."""
SEEN = {
    "stop-token-oov": "0.23.0",
    "grammar-backend-latch": "0.23.0",
    "embeds-mrope": "0.23.0",
    "text-only-placeholder": "0.14.0",
    "seeded-chunk": "0.32.0",
}


def anothers(*patterns: str):  # type: ignore[no-untyped-def]
    """Lines of a server that ran before in the same log."""

    def edit(incident: Incident) -> None:
        for data in logs(incident):
            for pattern in patterns:
                for line in data.matches.get(pattern, ()):
                    line.process = re.sub(r"pid=\d+", "pid=7", line.process)

    return edit


def every() -> Iterator[Imposter]:
    for name, release in SEEN.items():
        run, fixed = f"{name}-{release}", f"{name}-{FIXED[name]}"
        yield from starmap(Imposter, (
            (f"{name}: of another exception", run, "other-cause",
             "EngineCore had another exception first",
             first_error("RuntimeError: out of memory"), OTHER, DIES),
            (f"{name}: through another place", run, "stale-log",
             "the traceback through the bug is of a server before this one",
             anothers(THROUGH), OTHER, (*DIES, "latched")),
            (f"{name}: the exception is an old one", run, "stale-log",
             "the exception is of a server before this one",
             anothers(FATAL, "exception"), OTHER, DIES),
            (f"{name}: another request", run, "trigger-failed",
             "no request came in as it was meant", unlogged(SENT), UNDECIDED),
            (f"{name}: no log", run, "absent-probe",
             "the log could not be read", without("logs"), UNDECIDED),
            (f"{name}: refused for something else", fixed, "healthy",
             "the request is refused for its model",
             of(KILLER, status=400, error="the model is not known", prompt_tokens=None),
             UNDECIDED),
        ))  # fmt: skip


IMPOSTERS = [*every()]
