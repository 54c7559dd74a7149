"""What is wrong with a live server: found, looked at, compared with every known
failure.

:func:`mmrepro.live.diagnose.session.diagnose` is the whole; the parts: ``discover``
(from a URL to processes, engine, release and logs), ``collect`` (the probes, side by
side), ``general`` (what is wrong, from evidence alone), ``match`` (which known failure
it is), ``incident`` (for the report).

Nothing here writes to the target, signals it or calls an endpoint made for debugging.
"""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.live.diagnose.cause import judge as judge_log
    from mmrepro.live.diagnose.cause_advice import (
        advice_of_class as advice_of_class,
    )
    from mmrepro.live.diagnose.cause_input import MISMATCHES as MISMATCHES
    from mmrepro.live.diagnose.cause_rules import with_rules as with_rules
    from mmrepro.live.diagnose.classes_logged import CLASS_FACTS as CLASS_FACTS
    from mmrepro.live.diagnose.fall import diagnose_fall as diagnose_fall
    from mmrepro.live.diagnose.later import (
        later_fixes_in as later_fixes_in,
        later_fixes_of as later_fixes_of,
    )
    from mmrepro.live.diagnose.log_reading import (
        NO_CAUSE as NO_CAUSE,
        matched_in as matched_in,
        read_logs as read_logs,
    )
    from mmrepro.live.diagnose.match import (
        all_scenarios as all_scenarios,
        fixing_release as fixing_release,
        match_all as match_all,
        setting_until_fixed as setting_until_fixed,
        union as union_of_patterns,
    )
    from mmrepro.live.diagnose.options import DiagnoseCommand as DiagnoseCommand
    from mmrepro.live.diagnose.session import (
        Diagnosed as Diagnosed,
        diagnose as diagnose,
    )
    from mmrepro.live.diagnose.starts import (
        StartReading as StartReading,
        StartState as StartState,
        read_start as read_start,
        watch_start as watch_start,
    )
else:
    __getattr__ = lazily(__name__)
