"""What scenarios may use besides the names of ``mmrepro.scenario``.

A name is imported when it is asked for: a scenario loads what it uses, not what it
could use."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.base.records import (
        ClaimStatus as ClaimStatus,
        Fidelity as Fidelity,
        Setting as Setting,
        StandIn as StandIn,
    )
    from mmrepro.engines import (
        Engine as Engine,
        Mitigation as Mitigation,
        Patch as Patch,
    )
    from mmrepro.engines.models import (
        TINY as TINY,
        TinyDotsOCR as TinyDotsOCR,
        TinyModel as TinyModel,
        TinyQwen2VL as TinyQwen2VL,
        TinyQwen3 as TinyQwen3,
        TinyText as TinyText,
    )
    from mmrepro.failure.documents import (
        Birthday as Birthday,
        ClaimResult as ClaimResult,
        Exhibit as Exhibit,
        KeyFrame as KeyFrame,
        KeyStack as KeyStack,
        Pool as Pool,
        Shown as Shown,
        SymptomRow as SymptomRow,
        collision_probability as collision_probability,
        images_for as images_for,
    )
    from mmrepro.failure.signature import (
        ComparedAnswers as ComparedAnswers,
        Condition as Condition,
        answers as answers,
        checks as checks,
        crash as crash,
        first_difference as first_difference,
        guarded as guarded,
        live_server as live_server,
    )
    from mmrepro.probes import (
        Frame as Frame,
        GpuData as GpuData,
        HttpData as HttpData,
        InferenceData as InferenceData,
        LogLine as LogLine,
        LogsData as LogsData,
        MetricsData as MetricsData,
        ProcessesData as ProcessesData,
        StackSample as StackSample,
        StacksData as StacksData,
        SyscallsData as SyscallsData,
        ThreadStack as ThreadStack,
    )
    from mmrepro.scenario.common import (
        Label as Label,
        added_not_scheduled as added_not_scheduled,
        answered_alike as answered_alike,
        answered_row as answered_row,
        as_by_control as as_by_control,
        case_arrived as case_arrived,
        changed as changed,
        core_burns_cpu as core_burns_cpu,
        counted_as_running as counted_as_running,
        death_rows as death_rows,
        dies_of as dies_of,
        every_request_fails as every_request_fails,
        fails_in_server as fails_in_server,
        first_error as first_error,
        happened as happened,
        idle_cpu as idle_cpu,
        idle_while_asked as idle_while_asked,
        in_log as in_log,
        last_line as last_line,
        never_answered as never_answered,
        new_request_unanswered as new_request_unanswered,
        no_progress as no_progress,
        not_answered as not_answered,
        not_logged as not_logged,
        nothing_queued as nothing_queued,
        process_alive as process_alive,
        refused_or_answered as refused_or_answered,
        server_gone as server_gone,
        some_request_unanswered as some_request_unanswered,
        spins_in_user_space as spins_in_user_space,
        stands_in as stands_in,
        tokens_stand_still as tokens_stand_still,
        trigger_ended as trigger_ended,
        unchanged as unchanged,
        usual_latency as usual_latency,
    )
    from mmrepro.scenario.gpu import (
        gpu_idle as gpu_idle,
        gpu_memory_held as gpu_memory_held,
    )
    from mmrepro.scenario.parts import (
        REFUSED as REFUSED,
        Declared as Declared,
        Failure as Failure,
        Row as Row,
        SourceRef as SourceRef,
        hypothesis as hypothesis,
    )
    from mmrepro.traffic import (
        Picture as Picture,
        clip as clip,
        read_picture as read_picture,
        tiles as tiles,
    )
    from mmrepro.traffic.case import (
        play_case as play_case,
        scripted_model as scripted_model,
    )
    from mmrepro.traffic.evidence import ImageSent as ImageSent, Phase as Phase
else:
    __getattr__ = lazily(__name__)
