"""What a failure is: the names that a scenario needs first; see
``mmrepro.scenario.more``."""

from typing import TYPE_CHECKING

from mmrepro.base.records import Reference as Reference
from mmrepro.failure.signature import (
    Finding as Finding,
    Logs as Logs,
    Measured as Measured,
    Metrics as Metrics,
    Outcome as Outcome,
    Processes as Processes,
    Reproducers as Reproducers,
    Requests as Requests,
    Truth as Truth,
    all_met as all_met,
)
from mmrepro.scenario.common import (
    answered as answered,
    endpoints_green as endpoints_green,
    some_requests_fail as some_requests_fail,
    unmitigated as unmitigated,
)
from mmrepro.scenario.definition import (
    Scenario as Scenario,
    with_variants as with_variants,
)
from mmrepro.scenario.parts import (
    Check as Check,
    Claim as Claim,
    Control as Control,
    Factor as Factor,
    FailureClass as FailureClass,
    LiveFacts as LiveFacts,
    RunFacts as RunFacts,
    Severity as Severity,
    Upstream as Upstream,
    UpstreamState as UpstreamState,
    cause as cause,
    claim as claim,
    cure as cure,
    issue as issue,
    precondition as precondition,
    pull as pull,
    quote as quote,
    row as row,
    symptom as symptom,
    upgrade as upgrade,
)
from mmrepro.traffic import Drive as Drive
from mmrepro.traffic.evidence import (
    Evidence as Evidence,
    Missing as Missing,
    RequestRecord as RequestRecord,
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Raises ImportError for a name of ``more``; a submodule is found by the import
        itself."""
        from importlib.util import find_spec

        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is None:
            from mmrepro.scenario import more

            if hasattr(more, name):
                raise ImportError(f"{name} is in {more.__name__}; import it from there")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
