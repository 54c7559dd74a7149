"""vLLM: an image larger than the encoder cache is scheduled for ever and never computed."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mmrepro.engines.vllm import VllmEngine
from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, Reference, SymptomRow
from mmrepro.models import TinyDotsOCR
from mmrepro.models.qwen_images import FACTOR, smart_resize
from mmrepro.probes.data import StackSample, StacksData, ThreadStack
from mmrepro.scenario import LiveFacts, Mitigation, RunFacts, Scenario, SourceRef, unmet
from mmrepro.scenarios.chunked_mm_report import claim
from mmrepro.signature import Condition, Finding, Truth, checks
from mmrepro.signature import live_server as live
from mmrepro.traffic.drive import Drive
from packaging.specifiers import SpecifierSet

ROLE = VllmEngine.core_role
METRICS = VllmEngine.metrics
MODEL = TinyDotsOCR()

BUDGET = 512
"""Tokens of a step. The encoder cache is sized by the larger of it and the model's own largest
image, which has 225 (v1/core/encoder_cache_manager.py:compute_encoder_budget)."""
COLUMNS = 32
FITS = (COLUMNS * FACTOR, BUDGET // COLUMNS * FACTOR)
"""(width, height) in pixels of an image that fills the encoder cache exactly: 32 x 16 tokens."""
TOO_LARGE = (COLUMNS * FACTOR, (BUDGET // COLUMNS + 1) * FACTOR)
"""One row of tokens more."""
MAX_PIXELS = 4 * BUDGET * FACTOR * FACTOR
KWARGS = {"mm_processor_kwargs": {"max_pixels": MAX_PIXELS}}
"""A field of the request: it lifts the model's own limit for this image only."""

CONTROL = "image that fills the encoder cache"
BIG = "image larger than the encoder cache"
TEXT = "meanwhile: text only"
OTHER = "meanwhile: an ordinary image"
MIN_SAMPLES = 3
MIN_LOCALS = 2


class EncoderCacheOverflow(Scenario):
    """An image larger than the encoder cache is never answered.

    What: A request raises the image processor's limit for itself (mm_processor_kwargs), and its
    image becomes more tokens than the encoder cache was sized for. It is neither refused nor
    answered: EngineCore uses a whole core for nothing, for as long as the client waits, and on
    a small machine starves every other request and /health.

    Why: The encoder cache is sized at start-up, for the model's largest image or the chunk
    budget. An image is encoded whole, so one that is larger never fits: in each step the
    scheduler cuts the request down to the tokens before the image, then to none, and tries
    again in the next step, which follows at once. Nothing checks the image's size when the
    request arrives; since vllm#33110 it is refused with 400.
    """

    name = "encoder-cache-overflow"
    release = "0.11.0"
    affected = ">=0.11.0,<0.16.0"
    model = MODEL
    max_model_len = 4096
    server = shlex.join(
        (
            "--trust-remote-code",
            "--max-num-seqs",
            "8",
            "--max-num-batched-tokens",
            str(BUDGET),
            "--limit-mm-per-prompt",
            '{"image":1}',
        )
    )
    mitigations = (
        Mitigation(
            name="larger-budget",
            description="--max-num-batched-tokens above the image's tokens: the encoder cache is "
            "sized by it; a still larger image hangs again",
            server_args=("--max-num-batched-tokens", str(4 * BUDGET)),
        ),
        Mitigation(
            name="limit-at-start",
            description="raise the limit when the server starts instead of in the request: the "
            "encoder cache is sized for it",
            server_args=("--mm-processor-kwargs", f'{{"max_pixels":{MAX_PIXELS}}}'),
        ),
        Mitigation(
            name="release",
            description="upgrade to 0.16.0: the request is refused with 400 (vllm#33110)",
            release="0.16.0",
        ),
    )
    sources = (
        SourceRef(
            file="vllm/v1/core/sched/scheduler.py",
            qualname="Scheduler._try_schedule_encoder_inputs",
            note="no room for the image: no token of it is scheduled, in this step as in the next",
            highlight=("can_allocate(", "num_new_tokens = 0"),
        ),
        SourceRef(
            file="vllm/v1/core/encoder_cache_manager.py",
            qualname="EncoderCacheManager.can_allocate",
            note="an image above the cache's size gets False for ever",
            highlight=("return False",),
        ),
    )
    references = (
        Reference(
            id="vllm#26223",
            title="Requests with multimodal data larger than the encoder cache hang",
            url="https://github.com/vllm-project/vllm/issues/26223",
            note="the report",
        ),
        Reference(
            id="vllm#33110",
            title="Early-reject requests with MM data longer than encode cache capacity",
            url="https://github.com/vllm-project/vllm/pull/33110",
            note="the fix, in 0.16.0",
        ),
    )

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: image 1 (cold)", images=[drive.picture("gate-1", 11)])
        await drive.chat("gate: image 2", images=[drive.picture("gate-2", 12)])
        await drive.chat("gate: text only", text="hello")

    async def trigger(self, drive: Drive) -> None:
        fits, big = drive.picture("fits", 21, FITS), drive.picture("big", 22, TOO_LARGE)
        await drive.unless_stuck(drive.chat(CONTROL, images=[fits], extra=KWARGS))
        await drive.unless_stuck(drive.chat(BIG, images=[big], extra=KWARGS))
        await drive.unless_stuck(drive.chat(TEXT, text="hello"))
        await drive.unless_stuck(drive.chat(OTHER, images=[drive.picture("other", 23)]))

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        budgets = scheduler_locals(samples, "encoder_compute_budget")
        return bool(budgets) and _steps(samples)[1] >= MIN_LOCALS

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "no-answer",
                "symptom",
                "the image larger than the encoder cache gets no answer and no refusal",
                big_unanswered,
            ),
            Condition(
                "core-alive",
                "symptom",
                "EngineCore did not die of it",
                core_alive,
            ),
            Condition(
                "larger-than-the-budget",
                "cause",
                "an image of exactly the encoder budget is answered; the one that hangs is a row "
                "of tokens larger",
                larger_than_the_budget,
            ),
            Condition(
                "schedules-nothing",
                "cause",
                "EngineCore's busy loop goes round and schedules 0 tokens each time",
                schedules_nothing,
            ),
            Condition(
                "counted-as-running",
                "symptom",
                "the scheduler counts the request as running, in two readings",
                still_running,
                required=False,
            ),
            Condition(
                "core-burns-cpu",
                "symptom",
                "EngineCore uses a whole core in user space, idle before",
                lambda e: checks.core_burns_cpu(e, ROLE),
                required=False,
            ),
            Condition(
                "others-starve",
                "symptom",
                "other requests and /health are starved as well: each empty step sends the API "
                "server a message",
                others_starve,
                required=False,
            ),
        ]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        """Without the image's size: what the scheduler does about it is seen from its locals."""
        kept = {c.id: c for c in super().live_conditions(facts)}
        return [
            live.not_answered(),
            kept["core-alive"],
            replace(kept["counted-as-running"], required=True),
            live.no_progress(METRICS),
            kept["schedules-nothing"],
        ]

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        big = evidence.labelled(BIG)
        if not big:
            return Finding.unknown("the large image was not sent")
        refused = big[0].status == 400
        if not big[0].answered and not refused:
            return Finding.of(False, f"{BIG}: {big[0].status} {big[0].error[:120]}")
        for label in (CONTROL, TEXT, OTHER):
            sent = evidence.labelled(label)
            if not sent:
                return Finding.unknown(f"{label} was not sent")
            if not sent[0].answered:
                return Finding.of(False, f"{label}: {sent[0].status} {sent[0].error[:120]}")
        how = f"refused: {big[0].error[:160]}" if refused else "answered"
        return Finding.of(True, f"{BIG}: {how}; all others answered")

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        fits = evidence.labelled(CONTROL)
        before = checks.core_processes(evidence, ROLE, "gate")
        rows = [
            (BIG, f"{fits[0].status} ({CONTROL})" if fits else "", big_unanswered(evidence), True),
            (TEXT, "200", _answered(evidence, TEXT), False),
            (OTHER, "200", _answered(evidence, OTHER), False),
            ("/health, /v1/models", "200, 200", checks.endpoints_green(evidence), False),
            ("requests running", "0 when idle", still_running(evidence), True),
            (
                "EngineCore CPU",
                f"{before[-1].cpu_pct:.0f} % when idle" if before else "",
                checks.core_burns_cpu(evidence, ROLE),
                True,
            ),
        ]
        return [
            SymptomRow(
                check=check,
                healthy=healthy,
                observed=finding.observed,
                abnormal=None
                if finding.truth is Truth.UNKNOWN
                else (finding.truth is Truth.MET) == abnormal_if,
            )
            for check, healthy, finding, abnormal_if in rows
        ]

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        hung = big_unanswered(evidence)

        def of_hang(finding: Finding) -> Finding:
            return finding if hung.truth is Truth.MET else Finding.unknown("nothing hung")

        refused = evidence.labelled(BIG)
        fixed = (
            Finding.of(refused[0].status == 400, f"on {facts.release}: {refused[0].error[:160]}")
            if refused and facts.version in SpecifierSet(">=0.16.0")
            else Finding.unknown(f"this run is of {facts.release}")
        )
        report, fix = "vllm#26223", "vllm#33110"
        return [
            claim("hang", "a request with an image above the encoder cache hangs", hung, report),
            claim(
                "cause",
                "the scheduler retries an item that is larger than the budget for ever",
                of_hang(unmet(larger_than_the_budget(evidence), schedules_nothing(evidence))),
                fix,
            ),
            claim("cpu", "the CPU spins", of_hang(checks.core_burns_cpu(evidence, ROLE)), fix),
            claim("fixed", "the request is refused with 400", fixed, fix),
        ]


def big_unanswered(evidence: Evidence) -> Finding:
    sent = evidence.labelled(BIG)
    if not sent:
        return Finding.unknown("the large image was not sent")
    if sent[0].timed_out:
        gate = [r.latency_s for r in evidence.requests_in("gate") if r.answered]
        usual = f", against {max(gate):.2f} s at most in the gate" if gate else ""
        return Finding.of(True, f"no answer in {sent[0].latency_s:.1f} s{usual}")
    return Finding.of(False, f"{sent[0].status} {sent[0].error[:160]}".strip())


def core_alive(evidence: Evidence) -> Finding:
    found = checks.core_processes(evidence, ROLE, "check")
    if evidence.engine_exit is not None:
        return Finding.of(False, f"the server ended with {evidence.engine_exit}")
    if not found:
        return Finding.unknown(evidence.why_missing("processes", "check"))
    return Finding.of(found[-1].state not in ("Z", "X"), f"{ROLE} is in state {found[-1].state}")


def others_starve(evidence: Evidence) -> Finding:
    """How far the flood of empty outputs goes depends on the machine: shown, never decisive."""
    found = [_answered(evidence, TEXT), _answered(evidence, OTHER)]
    found.append(checks.endpoints_green(evidence))
    if any(f.truth is Truth.UNKNOWN for f in found):
        return next(f for f in found if f.truth is Truth.UNKNOWN)
    said = f"{TEXT}: {found[0].observed}; {OTHER}: {found[1].observed}; {found[2].observed}"
    return Finding.of(any(f.truth is Truth.NOT_MET for f in found), said)


def _answered(evidence: Evidence, label: str) -> Finding:
    sent = evidence.labelled(label)
    if not sent:
        return Finding.unknown(f"{label}: not sent")
    said = f"{sent[0].status} in" if sent[0].status is not None else "no answer in"
    return Finding.of(sent[0].answered, f"{said} {sent[0].latency_s:.2f} s")


def still_running(evidence: Evidence) -> Finding:
    values = checks.metric_readings(evidence, METRICS["running"], "check")
    if len(values) < 2:
        return Finding.unknown(evidence.why_missing("metrics", "check"))
    text = "num_requests_running " + " → ".join(f"{v:g}" for v in values)
    return Finding.of(all(v >= 1 for v in values), text)


def image_tokens(record: RequestRecord) -> int:
    """Tokens of the request's image, by the image processor's rule under ``KWARGS``."""
    sent = record.images[0]
    low, high = FACTOR * FACTOR, MAX_PIXELS
    h, w = smart_resize(sent.height, sent.width, min_pixels=low, max_pixels=high)
    return (h // FACTOR) * (w // FACTOR)


def larger_than_the_budget(evidence: Evidence) -> Finding:
    """The scheduler's own number, from its locals, against the tokens of the two images.

    The control's count of prompt tokens shows that the arithmetic is the server's own.
    """
    raw = _raw(evidence)
    fits, big = evidence.labelled(CONTROL), evidence.labelled(BIG)
    if not fits or not big:
        return Finding.unknown("one of the two images was not sent")
    if not fits[0].answered or fits[0].prompt_tokens is None:
        return Finding.unknown(f"{CONTROL}: {fits[0].status} {fits[0].error[:120]}")
    small, large = image_tokens(fits[0]), image_tokens(big[0])
    if not 0 < fits[0].prompt_tokens - small < COLUMNS:
        return Finding.unknown(f"{small} image tokens in a prompt of {fits[0].prompt_tokens}")
    budgets = scheduler_locals(_samples(evidence), "encoder_compute_budget")
    if not budgets:
        return Finding.unknown(
            "no sample caught the scheduler's local encoder_compute_budget", *raw
        )
    said = ", ".join(f"{b} ({n} ×)" for b, n in Counter(budgets).most_common())
    text = f"encoder_compute_budget is {said}; {small} tokens were answered, {large} were sent"
    between = sum(small <= b < large for b in budgets)  # a single reading may be torn
    return Finding.of(between > len(budgets) // 2, text, *raw)


def schedules_nothing(evidence: Evidence) -> Finding:
    raw = _raw(evidence)
    threads = [t for s in _samples(evidence) if (t := busy_loop(s)) is not None]
    if len(threads) < MIN_SAMPLES:
        return Finding.unknown(
            f"{len(threads)} usable samples; " + evidence.why_missing("stacks", "check"), *raw
        )
    stepping = sum(_within(t, "_process_engine_step") for t in threads)
    nothing, scheduled = _steps(_samples(evidence))
    text = (
        f"{stepping} of {len(threads)} samples inside a step of the busy loop; in {nothing} of "
        f"{scheduled} that caught the scheduler with its locals, 0 tokens were scheduled"
    )
    if stepping >= len(threads) // 2 and scheduled < MIN_LOCALS:
        return Finding.unknown(text, *raw)
    spins = stepping >= len(threads) // 2 and nothing > scheduled // 2
    return Finding.of(spins, text, *raw)


def _steps(samples: Sequence[StackSample]) -> tuple[int, int]:
    """Samples in which the scheduler scheduled nothing, and those that tell how much."""
    # Before the encoder's budget is asked, num_new_tokens holds what is left of the prompt.
    steps = scheduler_locals(samples, "total_num_scheduled_tokens")
    nothing = max(steps.count(0), scheduler_locals(samples, "num_new_tokens").count(0))
    return nothing, nothing + len(steps) - steps.count(0)


def scheduler_locals(samples: Sequence[StackSample], name: str) -> list[int]:
    """The number called ``name`` in the frame of ``schedule``, of each sample that shows it.

    A half-built frame shows other objects in their place; those are left out.
    """
    found = []
    for sample in samples:
        thread = busy_loop(sample)
        for frame in thread.frames if thread else ():
            if frame.function.rsplit(".", 1)[-1] == "schedule":
                value = frame.locals.get(name, "")
                found += [int(value)] if value.isdigit() else []
                break
    return found


def busy_loop(sample: StackSample) -> ThreadStack | None:
    return next((t for t in sample.threads if _within(t, "run_busy_loop")), None)


def _samples(evidence: Evidence) -> list[StackSample]:
    return [s for _, data in evidence.results(StacksData, "check") for s in data.samples]


def _raw(evidence: Evidence) -> list[str]:
    return [n for r, _ in evidence.results(StacksData, "check") for n in r.raw][:3]


def _within(thread: ThreadStack, function: str) -> bool:
    return any(f.function.rsplit(".", 1)[-1] == function for f in thread.frames)


SCENARIO = EncoderCacheOverflow()
