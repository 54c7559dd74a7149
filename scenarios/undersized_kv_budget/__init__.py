"""LMDeploy: a KV cache too small for the prompt, behind an error that says nothing of
it."""

from collections.abc import Mapping
from typing import Any, ClassVar

from mmrepro.base.errors import UsageError
from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Logs,
    Missing,
    Outcome,
    RequestRecord,
    Requests,
    Severity,
    Upstream,
    UpstreamState,
    cause,
    endpoints_green,
    issue,
    lmdeploy as kv,
    precondition,
    quote,
    some_requests_fail,
    symptom,
    with_variants,
)
from mmrepro.scenario.more import TinyQwen2VL, TinyText, answers
from mmrepro.scenarios.undersized_kv_budget import report
from packaging.specifiers import SpecifierSet

_OPAQUE_ANSWER = SpecifierSet(">=0.7.0,<0.10.0")
"""There the error is an answer with 200; from 0.10.0 on its text names the status."""
WAYS = {"the prompt": False, "the prompt, streamed": True}
"""Labels; whether it is streamed."""
_OTHERS = answers.given("short before", "short after")
_IMAGE_TOKENS = 1600
_VALIDATION = {
    "validation-error": r"validation errors? for ChatCompletionResponse\w*Choice",
    "finish-reason": r"Input should be .*input_value='error'",
    "choice-made": r"line \d+, in chat_completions_v1",
    "says-length": (
        r"- lmdeploy - .*(?:INPUT_LENGTH|max_session_len|num_gpu_blocks"
        r"|too long)"
    ),
}


def fewer_tokens(text: str) -> int:
    """The number in ``--option at-limit=N``. Raises UsageError."""
    if text and not text.isdecimal():
        raise UsageError(f"--option at-limit={text}: {text!r} is no number of tokens.")
    return int(text or 0)


def opaque_500(requests: Requests, witness: kv.Witness) -> Finding:
    told = witness.grade(requests.first("the prompt"))
    return Finding.of(told.kind == "opaque 500", str(told))


def stream_breaks(requests: Requests, witness: kv.Witness) -> Finding:
    sent = requests.first("the prompt, streamed")
    grade = witness.grade(sent)
    broken = grade.kind == "broken" and sent.status == 200 and not sent.timed_out
    return Finding.of(broken, str(grade))


def refused_for_length(witness: kv.Witness) -> Finding:
    """Of a live server; it has no witness as a rule."""
    refused = [request for request in witness.requests() if request.refused]
    if not refused:
        raise Missing("the witness saw no request refused for its length")
    text = f"{refused[0].tokens} tokens, at most {refused[0].limit}"
    return Finding.of(refused[0].tokens > refused[0].limit, text)


class UndersizedKvBudget(kv.SmallKvCache):
    """A prompt that the KV cache cannot hold gets an opaque HTTP 500.

    What: With a small --cache-max-entry-count every prompt above a limit that nobody
    set gets HTTP 500 “Internal Server Error” at once, while shorter ones and /health
    are fine and the same prompt is answered with a larger setting.

    Why: LMDeploy's PyTorch engine gives the KV cache a share (cache_max_entry_count) of
    the memory that weights and a reserve leave free, in whole blocks. The longest
    prompt is blocks × block size. A longer one is answered with the status
    INPUT_LENGTH_ERROR, which the server turns into the finish reason 'error'. Before
    0.7.0 the response's model does not allow that
    value: pydantic raises, and the client sees HTTP 500.
    """

    name, variant = "undersized-kv-budget", "text"
    release, affected = kv.RELEASE, report.AFFECTED
    failure_class, severity = FailureClass.NEVER_FITS, Severity.MEDIUM
    upstream = Upstream(
        UpstreamState.NOT_LOOKED_UP, kv.FIX, note="this is the fix, in 0.7.0"
    )
    references = (
        kv.FIX,
        issue(
            "lmdeploy#3977",
            "INPUT_LENGTH_ERROR with 32 images (0.10.0): the same limit, named",
        ),
    )
    sources = (
        kv.LIMIT_SOURCE,
        quote(
            "lmdeploy/pytorch/engine/engine_instance.py",
            "EngineInstance.async_stream_infer",
            "a longer prompt is answered with a status and no tokens",
            "max_input_len",
            "INPUT_LENGTH_ERROR",
        ),
    )
    options: ClassVar[Mapping[str, str]] = {
        "at-limit": (
            "[=N]: at last a prompt of as many tokens as the blocks hold, or N fewer"
        )
    }
    reproducers: ClassVar[tuple[str, ...]] = (report.CHAIN,)
    log_patterns = kv.SmallKvCache.log_patterns | _VALIDATION | report.OWN_LINES
    key_log_patterns = tuple(log_patterns)
    prompt_tokens: ClassVar[int] = report.PROMPT
    predicted, larger = kv.larger_setting(
        report.PROMPT + kv.ANSWER, f"{report.PROMPT} tokens and an answer"
    )
    mitigations = (larger,)
    rows = report.rows(report.PROMPT)
    claims = report.claims(predicted)
    outgrowing = tuple(WAYS)

    def asked(self, witness: kv.Witness) -> int:
        return min(sent.tokens for sent in self.admitted(witness))

    @precondition(
        "the prompt came to the engine, whole and streamed, as long as it was meant to "
        "be"
    )
    def prompt_arrived(self, witness: kv.Witness) -> Finding:
        tokens = ", ".join(str(sent.tokens) for sent in self.admitted(witness))
        return Finding.of(True, f"the engine counted {tokens} tokens")

    def admitted(self, witness: kv.Witness) -> list[kv.Admission]:
        """The prompt as the engine took it, in both ways. Raises Missing: it did not,
        or one."""
        requests = witness.requests(self.prompt_tokens)
        if len(requests) < len(WAYS):
            raise Missing(
                f"the prompt came {len(requests)} times to the engine, not {len(WAYS)}"
            )
        return requests

    async def outgrow(self, drive: Drive, where: str, short: RequestRecord) -> None:
        text = kv.filling(self.prompt_tokens, short)
        for label, stream in WAYS.items():
            await kv.ask(drive, where + label, text, stream=stream)

    async def gate(self, drive: Drive) -> None:
        for number in (1, 2):
            await kv.ask(drive, f"gate: short {number}")

    async def trigger(self, drive: Drive) -> None:
        await super().trigger(drive)
        if (fewer := drive.options.get("at-limit")) is not None:
            most = self.plan_of(drive.release).forward(kv.SMALL).max_tokens
            await report.at_limit(drive, most - fewer_tokens(fewer))

    def expected(
        self, release: str, mitigations: frozenset[str]
    ) -> tuple[Outcome, str]:
        if not _OPAQUE_ANSWER.contains(release, prereleases=True):
            return super().expected(release, mitigations)
        if "kv-budget" in mitigations:
            return Outcome.NOT_REPRODUCED, "mitigation kv-budget is said to prevent it"
        why = (
            "answers 200 with the text “internal error happened”: as opaque, "
            "but no HTTP 500"
        )
        return Outcome.DIFFERENT_FAILURE, f"{release} {why}"

    symptoms = (
        symptom(
            (
                "the prompt gets HTTP 500, and nothing tells the client that it is "
                "too long"
            ),
            opaque_500,
        ),
        symptom(
            "streamed, the answer begins with HTTP 200 and breaks off", stream_breaks
        ),
        kv.control_answers("the prompt", "prompt"),
        symptom(
            "short prompts are answered before and after it",
            _OTHERS,
            id="others-answered",
        ),
        endpoints_green(),
    )
    live_only = some_requests_fail()
    works_after = (answers.given(*WAYS, or_explained=True), _OTHERS)

    @cause(
        "HTTP 500 ← the log holds pydantic's error: the finish reason may not be "
        "'error'"
    )
    def validation_error(self, logs: Logs) -> Finding:
        raised = kv.since_start(logs, "validation-error")
        reasons = kv.since_start(logs, "finish-reason")
        if raised and reasons:
            return Finding.of(True, f"{len(raised)} × {reasons[0].text.strip()}")
        if (other := kv.first_error(logs)) is None:
            return Finding.unknown(
                "the log holds no error at all: none was, or it keeps them back"
            )
        observed = (
            "the log holds no such error of a response; its first: "
            f"{other.text.strip()}"
        )
        return Finding.of(False, observed)

    @cause(
        "finish reason 'error' ← the engine answered the prompt with "
        "INPUT_LENGTH_ERROR, because "
        "it has more tokens than max_input_len",
        live=cause(
            "finish reason 'error' ← the engine answered a prompt longer than "
            "max_input_len with INPUT_LENGTH_ERROR",
            refused_for_length,
            id="input-length-error",
        ),
    )
    def input_length_error(self, witness: kv.Witness) -> Finding:
        admitted = self.admitted(witness)
        odd = [
            sent for sent in admitted if not (sent.tokens > sent.limit and sent.refused)
        ]
        sent = (odd or admitted)[0]
        text = f"{sent.tokens} tokens, max_input_len {sent.limit}: status {sent.status}"
        return Finding.of(not odd, text)

    @cause(
        "max_input_len = max_session_len ← num_gpu_blocks × block_size, on both servers"
    )
    def limit_from_blocks(self, witness: kv.Witness) -> Finding:
        ours, other = witness.sizing(), witness.sizing("control")
        sent = self.admitted(witness)[0]
        fits = ours.max_session_len < sent.tokens <= other.max_session_len
        one_limit = ours.max_session_len == sent.limit
        return Finding.of(
            fits and one_limit and ours.limit_adds_up and other.limit_adds_up,
            f"{ours.num_gpu_blocks:g} blocks × {ours.block_size:g} → "
            f"{ours.max_session_len:g} "
            f"tokens, for a prompt of {sent.tokens}; control server: "
            f"{other.num_gpu_blocks:g} "
            f"blocks → {other.max_session_len:g} tokens",
        )

    @cause(
        "num_gpu_blocks ← (free − runtime) × cache_max_entry_count / bytes a block, on "
        "both servers"
    )
    def blocks_from_bytes(self, witness: kv.Witness) -> Finding:
        ours, other = witness.sizing(), witness.sizing("control")
        same = all(
            getattr(ours, n) == getattr(other, n)
            for n in ("free", "runtime", "block_bytes")
        )
        smaller = ours.cache_max_entry_count < other.cache_max_entry_count
        holds = same and smaller and ours.blocks_add_up and other.blocks_add_up
        return Finding.of(holds, f"{ours}; control server: {other}")


class WithImage(UndersizedKvBudget):
    """An image too large for the KV cache is encoded in full, then refused."""

    variant = "image"
    needs = ("images",)
    # Attention over the patches grows with the square of their number: not larger than
    # needed.
    model = TinyQwen2VL(
        image_tokens=_IMAGE_TOKENS,
        hidden=256,
        vocab_size=1446,
        vision_width=32,
        vision_depth=1,
    )
    reproducers = ()
    prompt_tokens = _IMAGE_TOKENS
    # The chat template's tokens take one block.
    predicted, larger = kv.larger_setting(
        _IMAGE_TOKENS + 64, f"{_IMAGE_TOKENS} tokens and an answer"
    )
    mitigations = (larger,)
    rows = report.rows(_IMAGE_TOKENS)
    claims = tuple(c for c in report.claims(predicted) if c.id not in report.OF_TEXT)

    async def outgrow(self, drive: Drive, where: str, short: RequestRecord) -> None:
        for label, stream in WAYS.items():
            await drive.chat(
                where + label, images=[drive.picture("large", 7)], stream=stream
            )

    @cause("the vision encoder had done its work by the time the prompt was refused")
    def encoder_first(self, witness: kv.Witness) -> Finding:
        """By the order of the witness's lines, each written when the work was done: as
        many times as the prompt was refused so far, it had been encoded."""
        refused = [sent for sent in self.admitted(witness) if sent.refused]
        if not refused:
            raise Missing("the engine refused no prompt")
        by_step: dict[object, list[dict[str, Any]]] = {}
        for values in witness.values("vision"):
            by_step.setdefault(values.get("step"), []).append(values)
        # 0.6.4 encodes in `forward`; later ones have `async_infer` only, which calls
        # the model.
        encoded = by_step.get("forward") or by_step.get("async_infer") or []
        if not encoded:
            raise Missing("the witness saw no work of the vision encoder")

        first = True
        for number, sent in enumerate(refused, 1):
            before = [work for work in encoded if work["line"] < sent.line]
            first = first and len(before) >= number
        spent = ", ".join(f"{work['seconds']:.2f} s" for work in encoded)
        order = "before each refusal" if first else "not before each refusal"
        took = f"{refused[0].seconds * 1000:.1f} ms"
        return Finding.of(
            first, f"vision encoder: {spent}, {order}; the first took {took}"
        )


class FullSizeBudget(UndersizedKvBudget):
    """The same with the report's own sizes: blocks of 8 MiB (takes minutes)."""

    variant = "full-size"
    scale = 1
    model = TinyText(
        architecture="gemma", layers=32, kv_heads=8, vocab_size=kv.VOCABULARY
    )


SCENARIO = with_variants(UndersizedKvBudget(), WithImage(), FullSizeBudget())
