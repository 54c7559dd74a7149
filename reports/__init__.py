"""From a folder alone: Markdown, HTML, JSON, JUnit and the end screen, of every kind of
document.

A kind composes blocks once; four renderers do the rest. What a kind needs is imported
when one of its documents is read: ``mmrepro show`` prints blocks without it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.failure.documents import Incident


def load(place: Path | str) -> Incident:
    """The incident in a folder, a file or a bundle. Raises BadIncident."""
    from mmrepro.reports.incident import load as read

    return read(Path(place))


if TYPE_CHECKING:
    from mmrepro.reports.ablation import KIND as ABLATION_REPORT
    from mmrepro.reports.bisection import KIND as BISECTION_REPORT
    from mmrepro.reports.bundle import write_bundle as write_bundle
    from mmrepro.reports.diagnosis import compose_diagnosis as compose_diagnosis
    from mmrepro.reports.documents import write_reports as write_reports
    from mmrepro.reports.finding import (
        script_of as script_of,
        upstream_test_of as upstream_test_of,
    )
    from mmrepro.reports.fleet import compose_fleet as compose_fleet
    from mmrepro.reports.fuzz import KIND as FUZZ_REPORT
    from mmrepro.reports.incident import KIND as INCIDENT_REPORT, load as load_incident
    from mmrepro.reports.issue_form import (
        incident_issue as incident_issue,
        public_issue as public_issue,
    )
    from mmrepro.reports.log_issue import issue_of_log as issue_of_log
    from mmrepro.reports.logs import compose_logs as compose_logs
    from mmrepro.reports.nightly import (
        HTML_FILE as NIGHT_HTML_FILE,
        KIND as NIGHT_REPORT,
        compose as compose_night,
        events_table as events_table,
        history_blocks as history_blocks,
        write_night as write_night,
    )
    from mmrepro.reports.profiles import PROFILES as PROFILES
    from mmrepro.reports.replay import (
        KIND as REPLAY_REPORT,
        origin as origin_sentences,
        write_replay as write_replay,
    )
    from mmrepro.reports.repro import COMMENT_FILE as COMMENT_FILE
    from mmrepro.reports.share import write_shared as write_shared
    from mmrepro.reports.upgrade import KIND as UPGRADE_REPORT
    from mmrepro.reports.words import CLAIMS as CLAIM_MARKS
else:
    __getattr__ = lazily(__name__)
