"""What logs tell, from files to one document: read once, each server judged."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from mmrepro import __version__
from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES, Engine, get_engine, log_marks
from mmrepro.failure.documents.cause import LogReading
from mmrepro.live.diagnose import cause, cause_rules
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.probes.base import run_probe
from mmrepro.probes.log_files import kept, logs_in, with_rotated
from mmrepro.probes.logs import LogsProbe, identify

PEEK_BYTES = 1 << 20


def read_logs(
    paths: Sequence[Path], engine: str = "auto", *, alone: bool = False, deadline_s: float = 600.0
) -> LogReading:
    """Read ``paths`` as one timeline, and judge each server in it.

    Args:
        paths: files, folders of them, or ``-`` for the standard input.
        engine: its name; "auto": by the form of the lines.
        alone: without what was rotated away from them.

    Raises:
        UsageError: no such engine, or nothing could be read.
    """
    with tempfile.TemporaryDirectory(prefix="mmrepro-logs-") as folder:
        files = kept(paths, Path(folder))
        chosen = get_engine(engine) if engine != "auto" else _written_by(files)
        probe = LogsProbe(
            files,
            {**cause_rules.PATTERNS, **scenario_patterns(chosen)},
            chosen.progress_pattern if chosen else None,
            added=chosen.added_pattern or None if chosen else None,
            rotated=not alone,
            marks=log_marks(),
            around=cause_rules.ANCHORS,
        )
        result = run_probe(probe, Path(folder), deadline_s)
    data = result.data
    if data is None or not data.bytes_read:
        raise UsageError(f"No log could be read: {result.reason}.", hint="mmrepro logs FILE")
    if engine != "auto":
        data = data.model_copy(update={"engine": engine})
    found = cause.servers(data)
    first = found[0]
    own = {name: lines for name, lines in data.matches.items() if name not in cause_rules.PATTERNS}
    return LogReading(
        mmrepro_version=__version__,
        engine=first.engine,
        release=first.release,
        cause=first.cause,
        others=first.others,
        last_progress=first.last_progress,
        first_error=first.first_error,
        servers=found,
        unread="" if result.ok else result.reason,
        log=data.model_copy(update={"excerpt": [], "matches": own, "servers": []}),
    )


def _written_by(files: Iterable[Path]) -> Engine | None:
    """The engine whose form the lines have with which the logs begin."""
    for file in logs_in(files):
        for path in dict.fromkeys((file, with_rotated(file)[0])):
            if found := identify(path, log_marks(), PEEK_BYTES):
                return ENGINES[found.engine]
    return None


def scenario_patterns(engine: Engine | None) -> dict[str, str]:
    """The engine's and those of its scenarios; of every engine's where it is not known.

    A name that two scenarios give to different expressions goes with the second one's own name.
    """
    patterns = dict(engine.log_patterns) if engine else {}
    for scenario in all_scenarios():
        if engine is None or scenario.engine == engine.name:
            for name, expression in scenario.log_patterns.items():
                taken = patterns.setdefault(name, expression) != expression
                if taken and expression not in patterns.values():
                    patterns[f"{scenario.full_name}: {name}"] = expression
    return patterns
