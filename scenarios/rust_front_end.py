"""vLLM behind its Rust front end: what that lets through, and the engine does not."""

import json
from functools import partial

from mmrepro.scenario import (
    Drive,
    Evidence,
    FailureClass,
    Finding,
    Missing,
    Requests,
    Scenario,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    answered,
    cause,
    claim,
    common,
    precondition,
    pull,
    quote,
    row,
    symptom,
    unmitigated,
    upgrade,
    vllm,
)
from mmrepro.scenario.more import (
    TINY,
    InferenceData,
    Mitigation,
    ProcessesData,
    StacksData,
    checks,
    in_log,
    live_server,
)

_FRONT = "RustFrontend"
"""The role of the process vllm-rs."""
_TAKES, _STEPS = "process_input_sockets", "run_busy_loop"
"""EngineCore's thread that reads requests, and its main thread."""
WITHIN, BEYOND = 0.5, 1.5
CONTROL, KILLER = f"min_p of {WITHIN}", f"min_p of {BEYOND}"
_ENDED, _CHECKED, _DECODED = "thread-ended", "value-checked", "as-decoded"
_PYTHON = "python-front-end"
_MIN_SAMPLES = 3
_FIX = pull(
    "vllm#47494",
    "[Rust Frontend] Align sampling validation with Python",
    "merged on 2026-07-28",
)


def _served_by_rust(evidence: Evidence) -> Finding:
    readings = [data for _, data in evidence.results(ProcessesData)]
    if not readings:
        raise Missing("the server's processes were not read")
    roles = {process.role for data in readings for process in data.processes}
    return Finding.of(_FRONT in roles, f"processes: {', '.join(sorted(roles))}")


class UncheckedSampling(Scenario):
    """A sampling value that vllm-rs lets through leaves the engine deaf for good.

    What: Behind vLLM's Rust front end a completion with `min_p: 1.5` gets no answer,
    and all requests after it get HTTP 500 ("Broken pipe"). /health stays 200, and
    EngineCore lives and idles. With `min_p: 0.5` the same completion is answered. The
    server in Python refuses 1.5 with HTTP 400.

    Why: A value is checked where `SamplingParams` is made. The server in Python makes
    it itself. vllm-rs sends bare numbers, and they become `SamplingParams` in the
    thread of EngineCore that reads requests, outside of all that this thread catches.
    The thread ends, the process goes on, and nobody asks whether requests are read."""

    name = "unchecked-sampling"
    release, affected = "0.23.0", ">=0.23.0,<0.33.0"
    """Run: 0.23.0, 0.24.0, and 0.33.0 as fixed; what lies between was not run."""
    failure_class, severity = FailureClass.SILENT_HANG, Severity.CRITICAL
    upstream = Upstream(
        UpstreamState.FIXED, _FIX, "2026-11-29", "0.33.0", note="by runs"
    )
    references = (_FIX,)
    model = TINY["qwen3-text"]
    server = "{feature:front-rust} --max-num-seqs 8"
    log_patterns = {
        _ENDED: rf"Exception in thread \S+ \({_TAKES}\)",
        # The exception's own words could be a client's: the log's reader hides them.
        _CHECKED: r'sampling_params\.py", line \d+, in _verify_args',
        _DECODED: r"add_request_decoder\.decode\(data_frames\)",
    }
    key_log_patterns = (_ENDED,)
    sources = (
        quote(
            "vllm/v1/engine/core.py",
            f"EngineCoreProc.{_TAKES}",
            "what a request that cannot be decoded raises ends the thread",
            "add_request_decoder.decode(data_frames)",
            "except Exception:",
        ),
        quote(
            "vllm/sampling_params.py",
            "SamplingParams._verify_args",
            "raised wherever SamplingParams is made, by the decoder as well",
            "if not 0.0 <= self.min_p <= 1.0:",
        ),
    )
    mitigations = (
        Mitigation(
            name=_PYTHON,
            env={"VLLM_USE_RUST_FRONTEND": "0"},
            description="VLLM_USE_RUST_FRONTEND=0: the server in Python refuses the "
            "value with HTTP 400",
        ),
        upgrade("0.33.0", "upgrade: vllm-rs refuses the value with HTTP 400"),
    )

    async def complete(self, drive: Drive, label: str, min_p: float) -> None:
        """Ask for a completion with that ``min_p``."""
        body = {
            "model": drive.traffic.model,
            "prompt": "hello",
            "max_tokens": 4,
            "temperature": 1.0,
            "min_p": min_p,
        }
        sent = drive.traffic.raw(
            label,
            path="/v1/completions",
            body=json.dumps(body).encode(),
            deadline_s=drive.deadline_s,
        )
        await drive.unless_stuck(sent)

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text", text="hello")
        await self.complete(drive, f"gate: min_p of {WITHIN}", WITHIN)

    def gate_check(self, evidence: Evidence) -> Finding:
        return vllm.gate_of_completions(evidence)

    async def trigger(self, drive: Drive) -> None:
        await self.complete(drive, CONTROL, WITHIN)
        await self.complete(drive, KILLER, BEYOND)

    @precondition(
        "the completion came in as it was meant, or was refused for its value"
    )
    def came_in(self, requests: Requests) -> Finding:
        control, sent = requests.first(CONTROL), requests.first(KILLER)
        refused = sent.status is not None and 400 <= sent.status < 500
        if refused and "min_p" not in sent.error:
            return Finding.of(False, f"{KILLER}: {sent.reply}")
        return Finding.of(
            control.answered, f"{CONTROL}: {control.reply}; {KILLER}: {sent.reply}"
        )

    preconditions = (
        precondition(
            "vllm-rs serves HTTP",
            _served_by_rust,
            id="served-by-rust",
            removed_by=(_PYTHON,),
        ),
    )
    live_only = (symptom("vllm-rs serves HTTP", _served_by_rust, id="served-by-rust"),)
    symptoms = (
        common.never_answered(KILLER, live=False),
        common.endpoints_green(),
        common.process_alive(),
        symptom(
            "the same completion, but for the value, is answered before",
            answered(CONTROL),
            id="control-answered",
            abnormal=False,
        ),
    )

    @symptom("a new text-only request fails with HTTP 500, or waits as well", live=True)
    def later_fails(self, inference: InferenceData) -> Finding:
        waits = checks.probe_unanswered(inference)
        return waits if waits.truth is Truth.MET else live_server.fails(inference)

    causes = (
        in_log("the thread that reads requests ended with an exception", _ENDED),
        in_log(
            "the check of a sampling value raised as a request was decoded",
            _CHECKED,
            _DECODED,
        ),
    )

    @cause("none of EngineCore's threads reads requests", live=True)
    def nobody_reads(self, stacks: StacksData) -> Finding:
        steps, takes = len(stacks.threads(_STEPS)), len(stacks.threads(_TAKES))
        observed = f"of {steps} samples of {_STEPS}, {takes} have a thread in {_TAKES}"
        if steps < _MIN_SAMPLES:
            return Finding.unknown(observed)
        return Finding.of(takes == 0, observed)

    works_after = (common.refused_or_answered(KILLER), answered(CONTROL))
    rows = (
        row(CONTROL, "control-answered", "200", abnormal_if=False),
        row(KILLER, "no-answer", "400"),
        row("a text after it", "later-fails", common.usual_latency),
        row("/health, /v1/models", "endpoints-green", "200, 200", abnormal_if=False),
    )
    said = partial(claim, given=("came-in", unmitigated), refutable_on=affected)
    claims = (
        said(
            "not-checked",
            "the front end does not check sampling values before it forwards a request",
            _FIX,
            by=("no-answer", _CHECKED),
        ),
        said(
            "one-request",
            "a single request ends the server for all clients, with /health green",
            "observation in the lab",
            by=("later-fails", "endpoints-green"),
        ),
    )

    @claim(
        "fixed",
        "the request is refused with 400",
        _FIX,
        given="came-in",
        releases=">=0.33.0",
    )
    def refused(self, requests: Requests) -> Finding:
        sent = requests.first(KILLER)
        return Finding.of(sent.status == 400, f"{KILLER}: {sent.reply}")


SCENARIO = UncheckedSampling()
