"""Made-up evidence of engine deaths and of the encoder-cache hang, modelled on real
runs."""

from typing import Any

from made_up import at, http, probed, processes, request
from mmrepro.probes.data import (
    Frame,
    LogLine,
    LogsData,
    StackSample,
    StacksData,
    ThreadStack,
)
from mmrepro.scenarios import encoder_cache_overflow as overflow
from mmrepro.traffic.evidence import Evidence, ImageSent, RequestRecord

CORE, API = "EngineCore_DP0 pid=1764", "APIServer pid=22101"
DEAD = (
    '{"error":{"message":"EngineCore encountered an issue. See stack trace (above)…"}}'
)
MISMATCH_TEXT = "RuntimeError: Number of elements of source < number of ones in mask"
ASSIGN = (
    "ValueError: Attempted to assign 225 = 225 multimodal tokens to 226 placeholders"
)
DEAD_TEXT = (
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
)


def line(number: int, process: str, text: str) -> LogLine:
    return LogLine(number=number, process=process, level="ERROR", text=text)


def said(data: LogsData, **lines: str) -> LogsData:
    """``data`` with the last of these lines, by the names of patterns; "": none, but
    searched."""
    for name, text in lines.items():
        name = name.replace("_", "-")
        data.match_counts[name] = int(bool(text))
        data.matches[name] = [line(40, API, text)] if text else []
    return data


def configured(data: LogsData) -> LogsData:
    """``data`` with what vLLM logs of the configuration that both scenarios run
    with."""
    config = (
        "Initializing a V1 LLM engine (v0.11.0) with config: model='m', "
        "enforce_eager=True, x"
    )
    said(
        data,
        engine_config=config,
        arguments="non-default args: {'enforce_eager': True}",
    )
    said(data, budget="Chunked prefill is enabled with max_num_batched_tokens=2048.")
    data.match_counts |= {"batch": 30, "graph-batch": 0}
    return data


def death_log(
    first: str = MISMATCH_TEXT,
    process: str = CORE,
    *,
    echo: str = CORE,
    dead: bool = True,
) -> LogsData:
    """The first error, its echo in vLLM's own words, and the API server's."""
    root, again = line(226, process, first), line(280, echo, ASSIGN)
    last = [line(290, API, DEAD_TEXT)] if dead else []
    mismatches = [
        entry
        for entry in (root, again)
        if "mask" in entry.text or "assign" in entry.text
    ]
    matches = {
        "exception": [root, again, *last],
        "mask-mismatch": mismatches,
        "engine-dead": last,
    }
    return configured(
        LogsData(
            file="engine.log",
            bytes_read=1,
            lines=400,
            matches={name: lines for name, lines in matches.items() if lines},
            match_counts={name: len(lines) for name, lines in matches.items()},
        )
    )


def quiet_log() -> LogsData:
    names = ("exception", "mask-mismatch", "engine-dead")
    return configured(
        LogsData(
            file="engine.log",
            bytes_read=1,
            lines=300,
            match_counts=dict.fromkeys(names, 0),
        )
    )


def later(
    record: RequestRecord, seconds: float, latency_s: float = 0.1
) -> RequestRecord:
    record.sent, record.latency_s = at(seconds), latency_s
    return record


def gate() -> list[RequestRecord]:
    sent = ImageSent(sha256="0" * 64, width=420, height=420, bytes=1000)
    return [
        request("gate", "gate: image 1 (cold)", images=[sent]),
        request("gate", "gate: image 2", images=[sent]),
        request("gate", "gate: text only"),
    ]


def death_run(failing: str, *before: RequestRecord) -> Evidence:
    """EngineCore died of the request called ``failing``, and the server ended."""
    return Evidence(
        requests=[
            *gate(),
            *before,
            later(request("trigger", failing, 500, error=DEAD), 3),
            later(request("trigger", "health after the failure", 503), 4),
            later(request("trigger", "after: a new text", 500, error=DEAD), 5),
            later(request("trigger", "health after the failure", 503), 6),
            later(
                request("trigger", "health after the failure", None, error="refused"), 8
            ),
        ],
        probes=[probed(processes(user=0.4), "gate"), probed(death_log())],
        engine_exit=0,
    )


def survived_run(failing: str, *before: RequestRecord) -> Evidence:
    """The same trigger on a release that answers."""
    return Evidence(
        requests=[
            *gate(),
            *before,
            later(request("trigger", failing), 3),
            later(request("trigger", "health after the failure"), 4),
            later(request("trigger", "after: a new text"), 5),
        ],
        probes=[
            probed(processes(user=0.4), "gate"),
            probed(processes(user=3.0)),
            probed(http(200, 200)),
            probed(quiet_log()),
        ],
    )


# --------------------------------------------------------------- encoder-cache-overflow


def image(
    label: str, size: tuple[int, int], status: int | None = 200, **more: Any
) -> RequestRecord:
    sent = ImageSent(sha256="0" * 64, width=size[0], height=size[1], bytes=1000)
    return request("trigger", label, status, images=[sent], **more)


def scheduling(**numbers: str) -> StackSample:
    """A sample of EngineCore's busy loop, inside ``schedule`` with these locals."""
    names = (
        "Scheduler.schedule",
        "EngineCore.step",
        "EngineCoreProc._process_engine_step",
    )
    frames = [
        Frame(function=name, file="vllm/v1/engine/core.py", line=1)
        for name in (*names, "EngineCoreProc.run_busy_loop")
    ]
    frames[0].locals = numbers
    thread = ThreadStack(
        tid=1, name="MainThread", active=True, owns_gil=True, frames=frames
    )
    return StackSample(pid=1764, taken=at(21), blocking=False, threads=[thread])


NOTHING = {"encoder_compute_budget": "512", "total_num_scheduled_tokens": "0"}


TOO_LARGE = (
    "The decoder prompt contains a(n) image item with 544 embedding tokens, which "
    "exceeds the pre-allocated encoder cache size 512."
)


def overflow_run() -> Evidence:
    """encoder-cache-overflow on vLLM 0.11.0, as it reproduces on two busy cores."""
    hung = {"timed_out": True, "latency_s": 20.6, "error": "no answer"}
    return Evidence(
        requests=[
            *gate(),
            image(overflow.CONTROL, overflow.FITS, prompt_tokens=518),
            image(overflow.BIG, overflow.TOO_LARGE, None, **hung),
            request("trigger", overflow.TEXT, None, **hung),
            request("trigger", overflow.OTHER, None, **hung),
        ],
        probes=[
            probed(processes(user=0.4), "gate"),
            probed(processes(user=97.0)),
            probed(http(200, 200)),
            probed(StacksData(samples=[scheduling(**NOTHING)] * 4)),
        ],
    )


def refused_run() -> Evidence:
    """The same on 0.16.0, which refuses the image."""
    evidence = overflow_run()
    for record in evidence.requests:
        if record.timed_out:
            refused = record.label == overflow.BIG
            record.timed_out, record.latency_s = False, 0.1
            record.status, record.error = (400, TOO_LARGE) if refused else (200, "")
    return evidence


# ---------------------------------------------------------------- async-race

STREAM_LINES = {
    "stream-overwrite": "step 2: overwrite: the host writes is_mm_embed.cpu[0:256] "
    "while the copy of [0:256] of step 1 is queued",
    "stream-steps": "steps: 16 begun, 9 with the device still busy",
    "stream-mask": (
        "step 1: mask: 254 embeddings, 254 image rows prepared, 256 read, 2 rows differ"
    ),
    "stream-silent": "step 1: silent: no error, but 254 embeddings went by a mask with "
    "5 wrong rows",
    "stream-error": "step 7: device error with 254 embeddings, 254 image rows "
    f"prepared, 256 read: {MISMATCH_TEXT}",
}


def with_stream(data: LogsData, **counts: int) -> LogsData:
    """``data`` with ``counts`` of the stand-in's lines, e.g. ``mask=3``; the others not
    at all.

    Each is of a step of its own, but that the seventh fails.
    """
    for name, text in STREAM_LINES.items():
        count = counts.get(name.removeprefix("stream-"), 0)
        data.match_counts[name] = count
        texts = (text.replace("step 1", f"step {n}") for n in range(1, count + 1))
        if count:
            data.matches[name] = [
                LogLine(number=200, process=CORE, text=f"mmrepro-stream: {text}")
                for text in texts
            ]
    return data


def race_run(silent: str, first: str, second: str) -> Evidence:
    """async-race on vLLM 0.12.0: one image answered wrongly, the next one kills
    EngineCore."""
    evidence = death_run(first, later(request("trigger", silent), 2))
    evidence.requests.append(request("trigger", second, None, error="refused"))
    log = with_stream(death_log(), steps=1, overwrite=7, mask=4, silent=2, error=1)
    evidence.probes[-1] = probed(log)
    return evidence


def ordered_run(
    silent: str, first: str, second: str, *, overwrite: int = 0, ordered: int = 0
) -> Evidence:
    """The same where the engine orders its work, or (``overwrite``) only seems to."""
    evidence = survived_run(first, later(request("trigger", silent), 2))
    evidence.requests.append(request("trigger", second))
    log = with_stream(quiet_log(), steps=1, overwrite=overwrite, mask=8)
    log.match_counts["ordered"] = ordered
    evidence.probes[-1] = probed(log)
    return evidence
