"""One run, from what was asked for to the verdict and the incident."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.runs.changes import (
        BUSY as BUSY,
        CONFIDENCE as CONFIDENCE,
        FEWEST as FEWEST,
        LOOKS as LOOKS,
        METRICS as METRICS,
        Metric as Metric,
        changes as metric_changes,
        difference as difference_of,
        enough as enough_blocks,
        metric_of as metric_of,
        quantile as quantile,
        thresholds as thresholds,
    )
    from mmrepro.runs.commits import (
        CLASS_SCOPE as CLASS_SCOPE,
        MODULE_SCOPE as MODULE_SCOPE,
        CommitReader as CommitReader,
        CommitReading as CommitReading,
        CommitResult as CommitResult,
        change_of as change_of,
        functions_at as functions_at,
        old_lines as old_lines,
        read_commit as read_commit,
        scopes_at as scopes_at,
    )
    from mmrepro.runs.judge import (
        FACTOR as FACTOR,
        Deadlines as Deadlines,
        JudgedAgain as JudgedAgain,
        JudgeDocument as JudgeDocument,
        Rejudged as Rejudged,
        derive as derive_deadlines,
        excerpt as log_excerpt,
        facts_of as facts_of,
        log_excerpts as log_excerpts,
        rejudge as rejudge,
    )
    from mmrepro.runs.key import (
        code_digest as code_digest,
        decisive_parts as decisive_parts,
        folder_of as folder_of_part,
        gpu_models as gpu_models,
        run_key as run_key,
    )
    from mmrepro.runs.options import (
        RunCommand as RunCommand,
        ScenarioCommand as ScenarioCommand,
        SeveralRuns as SeveralRuns,
        StartMode as StartMode,
        split_variant as split_variant,
    )
    from mmrepro.runs.runner import begin as begin_run, execute as execute_run
    from mmrepro.runs.start import (
        ServerSpec as ServerSpec,
        check as check_options,
        chosen_release as chosen_release,
        target as target,
    )
    from mmrepro.runs.starter import (
        Starter as Starter,
        fork_server_spec as fork_server_spec,
        warm_root as warm_root,
    )
    from mmrepro.runs.tree_tests import (
        TreeTestState as TreeTestState,
        UntestableCause as UntestableCause,
        UpstreamRun as UpstreamRun,
        UpstreamSide as UpstreamSide,
        UpstreamTest as UpstreamTest,
        run_tests as run_tests,
        test_tools as test_tools,
        unpack_tests as unpack_tests,
    )
else:
    __getattr__ = lazily(__name__)
