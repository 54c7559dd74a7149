"""vLLM: an image larger than the encoder cache is scheduled for ever and never
computed."""

import re
from collections import Counter
from collections.abc import Sequence

from mmrepro.scenario import (
    Drive,
    Evidence,
    FailureClass,
    Finding,
    Requests,
    Scenario,
    Severity,
    Upstream,
    UpstreamState,
    cause,
    claim,
    common,
    cure,
    issue,
    precondition,
    pull,
    quote,
    row,
    symptom,
    upgrade,
    vllm,
)
from mmrepro.scenario.more import HttpData, StackSample, StacksData, TinyDotsOCR, checks

BUDGET = 512
"""Tokens of a step. The encoder cache is sized by the larger of it and the model's own
largest image, which has 225
(v1/core/encoder_cache_manager.py:compute_encoder_budget)."""
FITS, TOO_LARGE = (896, 448), (896, 476)
"""(width, height) in pixels of an image that fills the encoder cache, 32 x 16 tokens,
and of one that has a row of tokens more."""
ROW_TOKENS = 32
LIFTED = TinyDotsOCR(image_tokens=4 * BUDGET)
"""The model's image processor as the request sets it: the limit is lifted for this
image only."""
KWARGS = {"mm_processor_kwargs": {"max_pixels": LIFTED.max_pixels}}

CONTROL = "image that fills the encoder cache"
BIG = "image larger than the encoder cache"
TEXT = "meanwhile: text only"
OTHER = "meanwhile: an ordinary image"
_MIN_SAMPLES = 3
_MIN_LOCALS = 2
_BUDGET_NAME = "encoder_compute_budget"
_REFUSAL = re.compile(
    r"item with (\d+) embedding tokens, which exceeds .*encoder cache size (\d+)"
)
"""What vllm#33110 says: tokens of the image, and of the cache."""

_REPORT = issue(
    "vllm#26223",
    "Requests with multimodal data larger than the encoder cache hang",
    "the report",
)
_FIX = pull(
    "vllm#33110",
    "Early-reject requests with MM data longer than encode cache capacity",
    release="0.16.0",
)
_ARRIVED = ("not-resized", "larger-than-the-cache")


def tokens_sent(requests: Requests) -> tuple[int, int]:
    """The tokens of the control's image, and of the large one."""
    small = requests.first(CONTROL).images[0]
    large = requests.first(BIG).images[0]
    return (
        LIFTED.tokens_of(small.width, small.height),
        LIFTED.tokens_of(large.width, large.height),
    )


class EncoderCacheOverflow(Scenario):
    """An image larger than the encoder cache is never answered.

    What: A request raises the image processor's limit for itself (mm_processor_kwargs),
    and its image becomes more tokens than the encoder cache was sized for. It is
    neither refused nor
    answered: EngineCore uses a whole core for nothing, for as long as the client waits,
    and on a small machine starves every other request and /health.

    Why: The encoder cache is sized at start-up, for the model's largest image or the
    chunk budget. An image is encoded whole, so one that is larger never fits: in each
    step the scheduler cuts the request down to the tokens before the image, then to
    none, and tries again in the next step, which follows at once. Nothing checks the
    image's size when the request arrives; since vllm#33110 it is refused with 400."""

    name = "encoder-cache-overflow"
    release, affected = "0.11.0", ">=0.11.0,<0.16.0"
    """Run: 0.11.0, 0.12.0, 0.14.0, and 0.23.0 as fixed (tests/evidence). The upper end
    is the fix's (vllm#33110); 0.13.0 and 0.15.x lie between and were not run."""
    failure_class, severity = FailureClass.SILENT_HANG, Severity.CRITICAL
    needs = ("images",)
    upstream = Upstream(UpstreamState.FIXED, _FIX, "2026-11-24", "0.16.0")
    log_patterns = vllm.ENCODER_CACHE_LINES
    model = TinyDotsOCR()
    max_model_len = 4096
    server = f"""--trust-remote-code --max-num-seqs 8 --max-num-batched-tokens {BUDGET}
        --limit-mm-per-prompt '{{"image":1}}'"""
    server_if_known = "--trust-request-mm-kwargs"
    """Where it is there (0.31.0 and later), a request's mm_processor_kwargs are refused
    without."""
    references = (_REPORT, _FIX)
    sources = (
        quote(
            "vllm/v1/core/sched/scheduler.py",
            "Scheduler._try_schedule_encoder_inputs",
            (
                "no room for the image: no token of it is scheduled, in this step as "
                "in the next"
            ),
            "can_allocate(",
            "num_new_tokens = 0",
        ),
        quote(
            "vllm/v1/core/encoder_cache_manager.py",
            "EncoderCacheManager.can_allocate",
            "an image above the cache's size gets False for ever",
            "return False",
        ),
    )
    mitigations = (
        cure(
            "larger-budget",
            f"--max-num-batched-tokens {4 * BUDGET}",
            "--max-num-batched-tokens above the image's tokens: the encoder cache is "
            "sized by it; a still larger image hangs again",
        ),
        cure(
            "limit-at-start",
            f"""--mm-processor-kwargs '{{"max_pixels":{LIFTED.max_pixels}}}'""",
            "raise the limit when the server starts instead of in the request: the "
            "encoder cache is sized for it",
        ),
        upgrade(
            "0.16.0", "upgrade to 0.16.0: the request is refused with 400 (vllm#33110)"
        ),
    )

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(CONTROL, image=FITS, extra=KWARGS)
        await drive.ask(BIG, image=TOO_LARGE, extra=KWARGS)
        await drive.ask(TEXT)
        await drive.ask(OTHER, image=drive.image_size)

    @precondition("the image arrives as large as it was sent: nothing makes it smaller")
    def not_resized(self, requests: Requests) -> Finding:
        """By the count of prompt tokens, or the refusal's own; the request that hangs
        gives none, and then it counts that the same limit held for the control."""
        fits, big = requests.first(CONTROL), requests.first(BIG)
        if not fits.answered or fits.prompt_tokens is None:
            return Finding.unknown(f"{CONTROL}: {fits.reply}")
        small, large = tokens_sent(requests)
        text = fits.prompt_tokens - small
        observed = f"{CONTROL}: {small} tokens in a prompt of {fits.prompt_tokens}"
        if not 0 < text < ROW_TOKENS:
            return Finding.of(False, observed)
        if big.answered and big.prompt_tokens is not None:
            seen = big.prompt_tokens - text
        elif refused := _REFUSAL.search(big.error):
            seen = int(refused[1])
        elif big.timed_out:
            return Finding.of(True, f"{observed}; {BIG}: not answered")
        else:
            return Finding.unknown(f"{BIG}: {big.reply}")
        return Finding.of(seen == large, f"{BIG}: {large} tokens sent, {seen} arrived")

    @precondition(
        "the image is larger than the encoder cache",
        removed_by=("larger-budget", "limit-at-start"),
    )
    def larger_than_the_cache(self, evidence: Evidence, requests: Requests) -> Finding:
        """The cache's size as the refusal names it, as the log does, or by the
        scheduler's locals."""
        large = tokens_sent(requests)[1]
        if refused := _REFUSAL.search(requests.first(BIG).error):
            sizes = [int(refused[2])]
        else:
            sizes = vllm.encoder_cache_sizes(evidence)
        if not sizes and requests.first(BIG).timed_out:
            sizes = vllm.step_budgets(evidence)
        if not sizes:
            return Finding.unknown(
                "neither the log nor a stack tells the encoder cache's size"
            )
        shown = ", ".join(str(size) for size in sorted(set(sizes)))
        smaller = sum(size < large for size in sizes)
        return Finding.of(
            smaller > len(sizes) // 2, f"{large} tokens, the cache holds {shown}"
        )

    symptoms = (
        common.never_answered(BIG, f"the {BIG} gets no answer and no refusal"),
        common.process_alive(),
        common.counted_as_running(
            "the scheduler counts the request as running, in two readings",
            required=False,
        ),
        common.core_burns_cpu(required=False, live=False),
    )
    live_only = (common.tokens_stand_still(),)

    @symptom(
        "other requests and /health are starved as well: each empty step sends the API "
        "server a message",
        required=False,
    )
    def others_starve(self, requests: Requests, http: HttpData) -> Finding:
        """How far the flood of empty outputs goes depends on the machine: shown, never
        decisive."""
        starved = [
            label for label in (TEXT, OTHER) if not requests.first(label).answered
        ]
        starved += [answer.path for answer in http.answers if answer.status != 200]
        return Finding.of(
            bool(starved), f"not answered: {', '.join(starved) or 'none'}"
        )

    @cause(
        "an image of exactly the encoder budget is answered; the one that hangs is a "
        "row of tokens larger",
        live=cause(
            (
                "the image that the scheduler has no room for is larger than the "
                "whole encoder budget"
            ),
            vllm.item_above_the_budget,
            id="larger-than-the-budget",
        ),
    )
    def larger_than_the_budget(
        self, requests: Requests, stacks: StacksData, evidence: Evidence
    ) -> Finding:
        """The scheduler's own number, from its locals, against the tokens of the two
        images; where it sleeps between steps (0.14.0) no sample sees it, and the log
        tells by what it is sized.

        The control's count of prompt tokens shows that the arithmetic is the server's
        own."""
        fits = requests.first(CONTROL)
        if not fits.answered or fits.prompt_tokens is None:
            return Finding.unknown(f"{CONTROL}: {fits.status} {fits.error[:120]}")
        small, large = tokens_sent(requests)
        if not 0 < fits.prompt_tokens - small < ROW_TOKENS:
            return Finding.unknown(
                f"{small} image tokens in a prompt of {fits.prompt_tokens}"
            )
        name, budgets = _BUDGET_NAME, stacks.numbers(_BUDGET_NAME, frame="schedule")
        if not budgets:
            name, budgets = "the logged budget of a step", vllm.step_budgets(evidence)
        if not budgets:
            return Finding.unknown(
                f"no sample caught the scheduler's local {_BUDGET_NAME}"
            )
        shown = ", ".join(f"{b} ({n} ×)" for b, n in Counter(budgets).most_common())
        text = f"{name} is {shown}; {small} tokens were answered, {large} were sent"
        between = sum(small <= budget < large for budget in budgets)
        # A single reading may be torn.
        return Finding.of(between > len(budgets) // 2, text)

    @cause("EngineCore's busy loop goes round and schedules 0 tokens each time")
    def schedules_nothing(self, stacks: StacksData) -> Finding:
        loop = stacks.threads("run_busy_loop")
        if len(loop) < _MIN_SAMPLES:
            return Finding.unknown(f"{len(loop)} samples of the busy loop")
        stepping = sum(thread.within("_process_engine_step") for thread in loop)
        nothing, scheduled = _steps(stacks)
        text = (
            f"{stepping} of {len(loop)} samples inside a step of the busy loop; in "
            f"{nothing} of {scheduled} that caught its locals, 0 tokens were scheduled "
            "or no model was run"
        )
        spins = stepping >= len(loop) // 2
        if spins and scheduled < _MIN_LOCALS:
            return Finding.unknown(text)
        return Finding.of(spins and nothing > scheduled // 2, text)

    def enough_stacks(self, samples: Sequence[StackSample]) -> bool:
        stacks = StacksData(samples=list(samples))
        budgets = stacks.numbers(_BUDGET_NAME, frame="schedule")
        return bool(budgets) and _steps(stacks)[1] >= _MIN_LOCALS

    works_after = (
        common.refused_or_answered(BIG),
        common.answered(CONTROL, TEXT, OTHER),
    )
    rows = (
        row(BIG, "no-answer", common.answered_row(CONTROL)),
        row(TEXT, common.answered_row(TEXT), "200", abnormal_if=False),
        row(OTHER, common.answered_row(OTHER), "200", abnormal_if=False),
        row(
            "/health, /v1/models", checks.endpoints_green, "200, 200", abnormal_if=False
        ),
        row("requests running", "counted-as-running", "0 when idle"),
        row("EngineCore CPU", "core-burns-cpu", common.idle_cpu),
    )
    claims = (
        claim(
            "hang",
            "a request with an image above the encoder cache hangs",
            _REPORT,
            by="no-answer",
            given=_ARRIVED,
            refutable_on=affected,
        ),
        claim(
            "cause",
            "the scheduler retries an item that is larger than the budget for ever",
            _FIX,
            by=("larger-than-the-budget", "schedules-nothing"),
            given="no-answer",
        ),
        claim("cpu", "the CPU spins", _FIX, by="core-burns-cpu", given="no-answer"),
    )

    @claim(
        "fixed",
        "the request is refused with 400",
        _FIX,
        given=_ARRIVED,
        releases=">=0.16.0",
    )
    def refused(self, requests: Requests) -> Finding:
        """For its image, and for nothing else."""
        big = requests.first(BIG)
        named = _REFUSAL.search(big.error)
        if big.status == 400 and not named:
            return Finding.unknown(f"refused for something else: {big.reply}")
        return Finding.of(big.status == 400, f"{big.status} {big.error[:160]}".rstrip())


def _steps(stacks: StacksData) -> tuple[int, int]:
    """Samples in which the scheduler scheduled nothing, and those that tell how
    much."""
    # Before the encoder's budget is asked, num_new_tokens holds what is left of the
    # prompt.
    scheduled = stacks.numbers("total_num_scheduled_tokens", frame="schedule")
    left = stacks.numbers("num_new_tokens", frame="schedule")
    nothing = max(scheduled.count(0), left.count(0))
    caught = nothing + len(scheduled) - scheduled.count(0)
    # After a step: was the model run at all?
    ran = stacks.texts("model_executed", frame="_process_engine_step")
    idle = ran.count("False")
    return nothing + idle, caught + idle + ran.count("True")


SCENARIO = EncoderCacheOverflow()
