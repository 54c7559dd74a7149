"""From evidence to truth: conditions, and the verdict that follows from them."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily
from mmrepro.failure.signature.decide import (
    Checker as Checker,
    Condition as Condition,
    ConditionResult as ConditionResult,
    Finding as Finding,
    Outcome as Outcome,
    Part as Part,
    Truth as Truth,
    Verdict as Verdict,
    combine as combine,
    decide as decide_outcome,
    evaluate as evaluate,
)

if TYPE_CHECKING:
    from mmrepro.failure.signature.comparison import (
        CACHED_TOTAL as CACHED_TOTAL,
        ComparedAnswers as ComparedAnswers,
        first_difference as first_difference,
        spelled as spelled,
    )
    from mmrepro.failure.signature.decide import (
        FLIP as FLIP,
        all_met as all_met,
        guarded as guarded,
        trigger_arrived as trigger_arrived,
    )
    from mmrepro.failure.signature.views import (
        BEGUN_AT as BEGUN_AT,
        Logs as Logs,
        Measured as Measured,
        Metrics as Metrics,
        Processes as Processes,
        Reproducers as Reproducers,
        Requests as Requests,
        View as View,
        core_processes as core_processes,
        log_count as log_count,
        log_lines as log_lines,
        metric_readings as metric_readings,
        spinning as spinning,
    )
else:
    __getattr__ = lazily(__name__)
