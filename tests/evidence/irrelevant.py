"""What of a run's evidence may be another without a word from anybody, field by field,
and why.

A field stands here if an edit of it may leave a run ``reproduced``; every other one may
not. ``VALUES`` are measurements: another value of one is noticed where a condition
reads it, and matters to nobody where none does. ``ANYWAY`` may be another even in
evidence that a condition reads. A key is ``Class.field``, or ``Class.field: change``
for one kind of edit alone."""

ANOTHER_PLACE = "a condition reads other entries of this list, and would notice there"
SENT_ONCE = (
    "of a picture that is sent once any other is as good; of one sent again it "
    "is noticed"
)
FOR_PEOPLE = "it is told to people, and nothing is judged by it"
SETUP = "how the server was set up: what it did is seen in the evidence itself"
NEVER_READY = (
    "of a server that never got ready no process was read, to hold its lines against"
)
PROTOCOL = "how a stream was cut into parts: the answer is the same"

VALUES: dict[str, str] = {
    "EndpointAnswer.path": (
        "which endpoint; the gate and the check must have asked the same"
    ),
    "EndpointAnswer.seconds": "how fast an endpoint was",
    "EndpointAnswer.status": "what an endpoint answered",
    "EndpointAnswer.timed_out": "whether an endpoint was late",
    "GpuDevice.cuda": "what a GPU is",
    "GpuDevice.driver": "what a GPU is",
    "GpuDevice.index": "what a GPU is",
    "GpuDevice.memory_total_bytes": "what a GPU is",
    "GpuDevice.memory_used_bytes": "what a GPU did meanwhile",
    "GpuDevice.mig": "what a GPU is",
    "GpuDevice.name": "what a GPU is",
    "GpuDevice.processes": "who used a GPU",
    "GpuDevice.utilization_pct": "what a GPU did meanwhile",
    "GpuDevice.uuid": "what a GPU is",
    "GpuData.devices": "which GPUs there are",
    "GpuProcess.graphics": "who used a GPU",
    "GpuProcess.name": "who used a GPU",
    "GpuProcess.pid": "who used a GPU",
    "GpuProcess.used_bytes": "who used a GPU",
    "HttpData.answers": "which endpoints were asked",
    "InferenceData.answered": "what came of the small request",
    "InferenceData.status": "what came of the small request",
    "ProcessesData.processes": "which processes there were",
    "ReproducerResult.name": "which reproducer it was",
    "StacksData.samples": "stacks of some moments",
    "Evidence.reproducers": "which reproducers were run",
    "Evidence.series": "the timeline's curves",
    "SeriesPoint.cpu_pct": "the timeline's curves",
    "SeriesPoint.gpu_bytes": "the timeline's curves",
    "SeriesPoint.gpu_pct": "the timeline's curves",
    "SeriesPoint.metrics": "the timeline's curves",
    "SeriesPoint.mono": (
        "the timeline's curves; with a GPU two samplers take turns in them"
    ),
    "Evidence.events": "a line of the timeline that tells of no request or probe",
    "Event.level": FOR_PEOPLE,
    "Event.phase": "of a line between two phases either is true",
    "Event.source": "of a line that tells of no request or probe",
    "Event.text": "of a line that tells of no request or probe",
}

ANYWAY: dict[str, str] = {
    # the run
    "EngineFacts.command": (
        "only its port, model and environment are held against the evidence"
    ),
    "EngineFacts.commit": SETUP,
    "EngineFacts.environment": SETUP,
    "EngineFacts.packages": (
        "only the engine's own and that of the wheel are held against the run"
    ),
    "EngineFacts.packages_file": FOR_PEOPLE,
    "EngineFacts.python": SETUP,
    "EngineFacts.python_of": (
        "the engine's own package and its release are held against the run"
    ),
    "EngineFacts.resolved_until": SETUP,
    "EngineFacts.settings": SETUP,
    "EngineFacts.start_mode": "any start mode gives the same server",
    "EngineFacts.start_seconds": "how long the start took: nothing was asked yet",
    "EngineFacts.start_stages": "how long the start took: nothing was asked yet",
    "Setting.name": SETUP,
    "Setting.value": SETUP,
    "Setting.why": FOR_PEOPLE,
    "WarmParentFacts.files": SETUP,
    "WarmParentFacts.imports_s": SETUP,
    "WarmParentFacts.kept": SETUP,
    "WarmParentFacts.memory_bytes": SETUP,
    "WarmParentFacts.missing": SETUP,
    "WarmParentFacts.pid": (
        "the process that the server was forked from is none of its own"
    ),
    "WarmParentFacts.served": SETUP,
    "WarmParentFacts.threads": SETUP,
    "WheelFacts.filename: none": "not every document names a wheel",
    "WheelFacts.origin": FOR_PEOPLE,
    "WheelFacts.project": (
        "the file's name has it as well, and that is held against the packages"
    ),
    "WheelFacts.sha256": "the wheel itself is not at hand to compare it with",
    "WheelFacts.uploaded": FOR_PEOPLE,
    "WheelFacts.filename: another": "on a teaching engine the wheel is of torch",
    "GateFacts.deadline_rule": FOR_PEOPLE,
    "GateFacts.deadline_s": (
        "the rule is applied again; more than it asks for matters to silence"
    ),
    "GateFacts.why": FOR_PEOPLE,
    "GateFacts.latencies_s": (
        "of a server that never got ready the gate is the control server's"
    ),
    "Incident.deadline_s": (
        "more than the gate's rule asks for matters to silence alone"
    ),
    "ScenarioFacts.affected": FOR_PEOPLE,
    "ScenarioFacts.where": FOR_PEOPLE,
    "ScenarioFacts.explanation": FOR_PEOPLE,
    "ScenarioFacts.name": (
        "evidence may be judged by another scenario, which is asked for by name"
    ),
    "ScenarioFacts.summary": FOR_PEOPLE,
    "ScenarioFacts.title": FOR_PEOPLE,
    "Evidence.engine_exit": (
        "a server may end itself with any code; a signal sent to it is noticed"
    ),
    "Evidence.facts": (
        "a measurement has no second witness; conditions read some of them"
    ),
    "Evidence.never_ready": FOR_PEOPLE,
    "ReproducerResult.facts": "it prints more than conditions read",
    "ReproducerResult.forked": SETUP,
    # requests
    "ChoiceSeen.finish_reason": PROTOCOL,
    "ChoiceSeen.finishes": PROTOCOL,
    "ChoiceSeen.logprobs": ANOTHER_PLACE,
    "ChoiceSeen.pieces": PROTOCOL,
    "ChoiceSeen.text": "answers are compared by their tokens",
    "ChoiceSeen.text_offsets": "where tokens stand in the text; the tokens are compared",
    "ChoiceSeen.token_ids": ANOTHER_PLACE,
    "ChoiceSeen.tokens": ANOTHER_PLACE,
    "ChoiceSeen.top": "how many there are is asked, not which",
    "ImageSent.bytes": SENT_ONCE,
    "ImageSent.coarse": SENT_ONCE,
    "ImageSent.height": SENT_ONCE,
    "ImageSent.name: another": SENT_ONCE,
    "ImageSent.pixels": SENT_ONCE,
    "ImageSent.sha256": SENT_ONCE,
    "ImageSent.width": SENT_ONCE,
    "RequestRecord.after_done": PROTOCOL,
    "RequestRecord.choices": "the answer itself stands beside them",
    "RequestRecord.completion_tokens": (
        "an answer has some; how many is asked of few requests"
    ),
    "RequestRecord.deadline_s: a minute more": (
        "of an answered request it was never reached"
    ),
    "RequestRecord.done": PROTOCOL,
    "RequestRecord.error: another": "beyond the characters that the timeline repeats",
    "RequestRecord.finish_reason": "why an answer ended is asked of few requests",
    "RequestRecord.images: emptied": (
        "a request whose label says nothing of a picture, sent once"
    ),
    "RequestRecord.logprobs": (
        "they are compared between few requests, and noticed there"
    ),
    "RequestRecord.max_tokens": (
        "how long an answer might have been; how long it is, stands there"
    ),
    "RequestRecord.method": "of a request without a prompt either is sent",
    "RequestRecord.path": "of a request without an answer nothing tells where it went",
    "RequestRecord.pieces": PROTOCOL,
    "RequestRecord.prompt_chars": (
        "within the first 200 the text itself is held against it"
    ),
    "RequestRecord.prompt_head: another": (
        "digits of a text are changed that nobody sent again"
    ),
    "RequestRecord.prompt_tokens": "how the server counts is asked of few requests",
    "RequestRecord.stream": "an error comes the same way in both",
    "RequestRecord.text": "answers are compared by their tokens",
    "RequestRecord.tokens": "they are compared between few requests, and noticed there",
    "RequestRecord.total_tokens": (
        "the sum is held against its parts where both are told"
    ),
    "RequestRecord.ttft_s": "when the first token came; silence has none",
    "RequestRecord.usages": PROTOCOL,
    # logs
    "LogLine.level in LogsData.first_line": "its time alone is read",
    "LogLine.level in LogsData.last_by_process": "its text is shown, and its time read",
    "LogLine.level in LogsData.last_line": "its time alone is read",
    "LogLine.level in LogsData.last_progress": "its time alone is read",
    "LogLine.level in LogsData.matches: another": "between the levels below an error",
    "LogLine.level in LogsData.matches: none": (
        "a line that Python prints itself has none"
    ),
    "LogLine.number in LogsData.errors": "one line further lies in the same order",
    "LogLine.number in LogsData.first_line": "one line further lies in the same order",
    "LogLine.number in LogsData.last_by_process": (
        "one line further lies in the same order"
    ),
    "LogLine.number in LogsData.last_line": "one line further lies in the same order",
    "LogLine.number in LogsData.last_progress": (
        "one line further lies in the same order"
    ),
    "LogLine.number in LogsData.matches: one more": (
        "one line further lies in the same order"
    ),
    "LogLine.process in LogsData.errors: none": "lines of the start name no process",
    "LogLine.process in LogsData.first_line: none": "lines of the start name no process",
    "LogLine.process in LogsData.last_by_process: none": (
        "lines of the start name no process"
    ),
    "LogLine.process in LogsData.last_line: none": "lines of the start name no process",
    "LogLine.process in LogsData.matches: none": (
        "a condition that needs it asks whose a line is"
    ),
    "LogLine.source in LogsData.errors": "an error that no pattern looks for",
    "LogLine.source in LogsData.first_line": "its time alone is read",
    "LogLine.source in LogsData.last_by_process": "its text is shown, and its time read",
    "LogLine.source in LogsData.last_line": "its time alone is read",
    "LogLine.source in LogsData.last_progress": "its time alone is read",
    "LogLine.source in LogsData.matches: none": (
        "a line that Python prints itself has none"
    ),
    "LogLine.source in LogsData.matches: another": (
        "places in the engine move between releases"
    ),
    **{
        f"LogLine.{name} in LogsData.{where}": why
        for name, why in {
            "engine": "whose form a line has; a run reads the log of one engine",
            "pid": "made of the process's name, which is read",
            "quoted": "a client's words, which a report leaves out",
            "rank": "made of the process's name, which is read",
            "when": "made of the line's time, which is read",
        }.items()
        for where in ("errors", "first_line", "last_by_process", "last_line", "matches")
    },
    "LogLine.text in LogsData.errors": "an error that no pattern looks for",
    "LogLine.text in LogsData.first_line": "its time alone is read",
    "LogLine.text in LogsData.last_by_process": "it is shown, and its time read",
    "LogLine.text in LogsData.last_line": "its time alone is read",
    "LogLine.text in LogsData.last_progress": "its time alone is read",
    "LogLine.text in LogsData.matches: another": (
        "numbers outside of what its pattern names"
    ),
    "LogLine.time in LogsData.errors": (
        "within the times of its neighbours either is true"
    ),
    "LogLine.time in LogsData.first_line": "a log may begin before the server does",
    "LogLine.time in LogsData.last_by_process": (
        "within the times of its neighbours either is true"
    ),
    "LogLine.time in LogsData.last_line": (
        "within the times of its neighbours either is true"
    ),
    "LogLine.time in LogsData.last_progress": (
        "within the times of its neighbours either is true"
    ),
    "LogLine.time in LogsData.matches": (
        "within the times of its neighbours either is true"
    ),
    "LogLine.process in LogsData.errors: another": NEVER_READY,
    "LogLine.process in LogsData.first_line: another": NEVER_READY,
    "LogLine.process in LogsData.last_by_process: another": NEVER_READY,
    "LogLine.process in LogsData.last_line: another": NEVER_READY,
    "LogLine.process in LogsData.last_progress: another": NEVER_READY,
    "LogLine.process in LogsData.last_progress: none": (
        "lines of the start name no process"
    ),
    "LogLine.process in LogsData.matches: another": NEVER_READY,
    "LogsData.bad_bytes": FOR_PEOPLE,
    "LogsData.bytes_read": FOR_PEOPLE,
    "LogsData.earlier_lines": "fewer than the first line that is kept",
    "LogsData.error_count": "of more errors than are kept, how many more",
    "LogsData.file": "what the file is called; a log is known by its lines",
    "LogsData.files": "what the file is called; a log is known by its lines",
    "LogsData.first_line": "the other lines have times as well",
    "LogsData.last_by_process": "they are shown, and their times read",
    "LogsData.last_line": "the other lines have times as well",
    "LogsData.last_progress": "it is shown, and its time read",
    "LogsData.lines": "more lines than are kept",
    "LogsData.match_counts": "of more lines than are kept, how many more",
    "LogsData.skipped_bytes": "a line that is there is there; absence is unknown then",
    "LogsData.stuck_count": "it is shown",
    "LogsData.stuck_requests": "they are shown",
    "LogsData.unread": "another file of a rotated log",
    # probes
    "EndpointAnswer.body": (
        "what an answer says beside its status; a page of a proxy is noticed"
    ),
    "EndpointAnswer.error": "why an endpoint did not answer, in words",
    "EndpointAnswer.status: one more": (
        "a condition asks for 200, in the check and not in the gate"
    ),
    "EndpointAnswer.seconds: none": "how fast an endpoint was; late ones say so",
    "Evidence.probes": "what was not looked at is unknown where it is needed",
    "Frame.file": ANOTHER_PLACE,
    "Frame.function": ANOTHER_PLACE,
    "Frame.line": "lines of the engine move between releases",
    "Frame.locals": ANOTHER_PLACE,
    "InferenceData.completion_tokens": "whether it was answered is asked, not with what",
    "InferenceData.cut": "of a request that ended otherwise it says nothing",
    "InferenceData.deadline_s": "of an answered request it was never reached",
    "InferenceData.error": "a request that failed has failed, in any words",
    "InferenceData.seconds": "an answer is an answer, however soon",
    "InferenceData.status: one more": "any status of 500 and more is the same failure",
    "InferenceData.text": "whether it was answered is asked, not with what",
    "MetricSample.labels": "series of one name are added up",
    "MetricSample.name": ANOTHER_PLACE,
    "MetricSample.value": ANOTHER_PLACE,
    "MetricsData.bad_lines": "lines that nobody could read are no evidence",
    "MetricsData.samples": ANOTHER_PLACE,
    "ProbeResult.raw": (
        "the raw files are for people; what was read of them stands here"
    ),
    "ProbeResult.reason": FOR_PEOPLE,
    "ProbeResult.seconds: none": "of a probe that has nothing in it, how long it took",
    "ProbeResult.probe": "which kind it is, its data says",
    "LogsData.engine: none": "not every reading knows whose form its lines have",
    "LogsData.engine_because": FOR_PEOPLE,
    "ProbeResult.status": "a reading that is not usable is unknown where it is needed",
    "ProcessUse.busiest": FOR_PEOPLE,
    "ProcessUse.cmdline": (
        "the environment and the port that it names are held against the run"
    ),
    "ProcessUse.involuntary_switches": FOR_PEOPLE,
    "ProcessUse.name": FOR_PEOPLE,
    "ProcessUse.pid: much more": (
        "a helper that one reading alone shows; the core's is noticed"
    ),
    "ProcessUse.pid: one more": (
        "a helper that one reading alone shows; the core's is noticed"
    ),
    "ProcessUse.ppid": "another process of the same tree",
    "ProcessUse.queued_pct": "a core that spins is told by what it used",
    "ProcessUse.role": "the core must keep its own; the others are no condition's",
    "ProcessUse.rss_bytes": FOR_PEOPLE,
    "ProcessUse.state": (
        "that core and front live and are not stopped is asked, no more"
    ),
    "ProcessUse.system_pct": "a core that spins is told by what it used in user space",
    "ProcessUse.threads": FOR_PEOPLE,
    "ProcessUse.user_pct": "of the other processes it is no condition's",
    "ProcessUse.voluntary_switches": FOR_PEOPLE,
    "ProcessesData.processes: reversed": "processes have no order",
    "ProcessesData.processes: one less": "a helper may have ended; the core may not",
    "ProcessesData.processes: emptied": "of a server that ended nothing is left",
    "ProcessesData.vanished": "of a server that ended, how much of it went meanwhile",
    "StackSample.blocking": "how a stack was read, not what it shows",
    "StackSample.error": "a sample that failed shows nothing",
    "StackSample.seconds": "how a stack was read, not what it shows",
    **dict.fromkeys(
        (
            "StackSample.file",
            "StackSample.line",
            "StackSample.title",
            "StackSample.tool",
        ),
        "where a text of stacks stood; a run takes its own",
    ),
    "StackSample.threads": ANOTHER_PLACE,
    "StacksData.samples: one less": "the others show the same",
    "SyscallsData.counts": "the verdict is made of them",
    "SyscallsData.method": "how it was counted, not what",
    "SyscallsData.system_pct": "the verdict is made of it",
    "SyscallsData.total": "the verdict is made of it",
    "SyscallsData.user_pct": "the verdict is made of it",
    "SyscallsData.verdict": (
        "a core that spins is asked for in the check, not in the gate"
    ),
    "SyscallsData.waiting_in": "the verdict is made of it",
    "SyscallsData.waits": "the verdict is made of it",
    "SyscallsData.why": FOR_PEOPLE,
    "ThreadStack.active": ANOTHER_PLACE,
    "ThreadStack.frames": ANOTHER_PLACE,
    "ThreadStack.name": "a thread is known by its functions",
    "ThreadStack.owns_gil": ANOTHER_PLACE,
    "ThreadStack.tid": "a thread is known by its functions",
    "ThreadUse.name": FOR_PEOPLE,
    "ThreadUse.queued_pct": FOR_PEOPLE,
    "ThreadUse.state": FOR_PEOPLE,
    "ThreadUse.system_pct": FOR_PEOPLE,
    "ThreadUse.tid": FOR_PEOPLE,
    "ThreadUse.user_pct": FOR_PEOPLE,
}


def why(field: str, change: str, *, read: bool) -> str:
    """Why such an edit may be of no consequence; "": it may not.

    Args:
        read: whether a required condition of the run reads the kind of evidence that
            was edited.
    """
    tables = (ANYWAY,) if read else (ANYWAY, VALUES)
    keys = (f"{field}: {change}", field)
    return next((table[key] for table in tables for key in keys if key in table), "")
