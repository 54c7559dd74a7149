"""vLLM: five requests, each of which ends EngineCore, and with it the server."""

import asyncio
import json
from functools import partial

from mmrepro.reproducers.grammar_backends import FIRST, SECOND
from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    LiveFacts,
    Logs,
    Outcome,
    Reference,
    Reproducers,
    Requests,
    RunFacts,
    Severity,
    Upstream,
    UpstreamState,
    answered,
    claim,
    cure,
    issue,
    precondition,
    pull,
    quote,
    upgrade,
    vllm,
    vllm_killed as killed,
)
from mmrepro.scenario.more import crash
from packaging.version import Version

_OUT, _WITHIN = 1_151_935, 100
"""Token ids; the tiny model has 320, and no model a million."""
_STOP_REPORT = issue(
    "vllm#54195",
    "Out-of-vocab stop_token_ids crashes the whole engine (single-request DoS)",
)
_STOP_FIX = pull("vllm#54196", "Validate stop_token_ids against vocab size")


def _stopping_at(token: int) -> dict[str, object]:
    return {"stop_token_ids": [token], "min_tokens": 1}


class StopTokenOov(killed.KilledByRequest):
    """One request with a stop token beyond the vocabulary ends the engine.

    What: A request brings `stop_token_ids` with a number that the model's vocabulary
    does not have, and `min_tokens`. It gets HTTP 500, EngineCore is dead, and the
    server ends some seconds later. With a token of the vocabulary the same request is
    answered.

    Why: Until `min_tokens` are generated, the logits of all stop tokens are set to
    minus infinity by an indexed write. Nothing holds the numbers against the vocabulary
    before: the write raises on a CPU and is a device-side assert on a GPU, in
    EngineCore, where no request is to blame for what its step raises."""

    name = "stop-token-oov"
    release, affected = "0.23.0", ">=0.12.0,<0.29.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("stop_token_ids",)
    upstream = Upstream(
        UpstreamState.FIXED, _STOP_FIX, "2026-11-24", "0.29.0", note="by runs"
    )
    references = (_STOP_REPORT, _STOP_FIX)
    refusal, died_of = r"stop_token_ids?", "an index out of bounds"
    log_patterns = killed.of_the_killer(
        sent=rf"Received request .*stop_token_ids=\[{_OUT}\]",
        raised=r"index \d+ is out of bounds for dimension 1 with size \d+",
        through=r"logits\.index_put_\(self\.logits_slice",
    )
    asserted = (
        r"/cuda/IndexKernel\.cu:\d+: .* "
        r"Assertion `-sizes\[i\] <= index && index < sizes\[i\] && "
    )
    """PyTorch's kernel of indexed reads and writes, index_put_ among them; not those of
    index_select, gather, scatter and masked_scatter, which print other words."""
    step = r"stop_token_ids=\[\d[^\]]*\], .* min_tokens=[1-9]"
    sources = (
        quote(
            "vllm/v1/sample/logits_processor/builtin.py",
            "MinTokensLogitsProcessor.apply",
            "the columns are the request's stop tokens, as it sent them",
            "index_put_",
        ),
    )
    mitigations = (upgrade("0.29.0", "upgrade: the request is refused with HTTP 400"),)

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(killed.CONTROL, extra=_stopping_at(_WITHIN))
        await drive.ask(killed.KILLER, extra=_stopping_at(_OUT))
        await crash.watch(drive)

    said = partial(claim, given="arrived", refutable_on=affected)
    claims = (
        said(
            "unchecked",
            "stop_token_ids are used as an index of the logits without a check",
            by=("first-error", killed.THROUGH),
        ),
        said("one-request", "a single request ends the whole engine", by="symptom"),
        claim(
            "fixed",
            "the request is refused",
            _STOP_FIX,
            given="arrived",
            releases=">=0.29.0",
            by=killed.refused,
        ),
    )


STOP_TOKEN_OOV = StopTokenOov()

_PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"
"""The special tokens that stand for an image in a Qwen2-VL's prompt."""
_BROKEN = _PLACEHOLDER.replace("pad", "pat")
_PLACEHOLDER_REPORT = issue(
    "vllm#32656", "an image placeholder in a text-only prompt crashes the engine"
)


class TextOnlyPlaceholder(killed.KilledByRequest):
    """An image placeholder typed into a text, without an image, ends the engine.

    What: A text-only request holds the model's image placeholder, as a user may type or
    paste it. It gets HTTP 500, EngineCore is dead, and the server ends some seconds
    later. With a letter of the placeholder changed the same text is answered.

    Why: The tokenizer makes special tokens of the text. The positions of M-RoPE are
    worked out by counting them: for each the next image's grid is taken from a list,
    which is empty."""

    name = "text-only-placeholder"
    release, affected = "0.14.0", ">=0.11.0,<0.15.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("images",)
    upstream = Upstream(
        UpstreamState.NOT_LOOKED_UP,
        _PLACEHOLDER_REPORT,
        note="by runs it is gone in 0.15.0",
    )
    references = (_PLACEHOLDER_REPORT,)
    refusal, died_of = "placeholder|image", "an index of an empty list"
    log_patterns = killed.of_the_killer(
        sent=r"details: prompt: '[^']*what is <\|vision_start\|><\|image_pad\|>",
        raised=(
            r"IndexError: list index out of range"
            r"|failed with error 'list index out of range'"
        ),
        through=r"t, h, w = image_grid_thw\[image_index\]",
    )
    sources = (
        quote(
            "vllm/model_executor/models/qwen2_vl.py",
            "Qwen2VLForConditionalGeneration.get_mrope_input_positions",
            "one grid for each placeholder among the tokens, wherever it comes from",
            "image_nums =",
            "image_grid_thw[image_index]",
        ),
    )
    mitigations = (
        upgrade(
            "0.15.0", "upgrade to 0.15.0: positions go by the images that came with it"
        ),
    )

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(killed.CONTROL, text=f"what is {_BROKEN} ?")
        await drive.ask(killed.KILLER, text=f"what is {_PLACEHOLDER} ?")
        await crash.watch(drive)

    def came_in(self, logs: Logs, requests: Requests, facts: RunFacts) -> Finding:
        """Where it is answered, that it became three tokens, and not one a letter."""
        sent, control = requests.first(killed.KILLER), requests.first(killed.CONTROL)
        if sent.prompt_tokens is None or control.prompt_tokens is None:
            return super().came_in(logs, requests, facts)
        fewer, expected = (
            control.prompt_tokens - sent.prompt_tokens,
            len("<|image_pat|>") - 1,
        )
        return Finding.of(
            fewer == expected, f"{fewer} tokens fewer than {killed.CONTROL}"
        )

    said = partial(claim, given="arrived", refutable_on=affected)
    claims = (
        said(
            "index",
            "M-RoPE's positions take the grid of an image that there is none of",
            by=("first-error", killed.THROUGH),
        ),
        said("one-request", "one text ends the engine", by="symptom"),
    )


TEXT_ONLY_PLACEHOLDER = TextOnlyPlaceholder()

_PATH = "/v1/completions"
_TENSOR = """
import base64, io, json, sys, torch
size = json.load(open(sys.argv[1] + "/config.json"))
size = size.get("text_config", size)["hidden_size"]
torch.save(torch.zeros(5, size, dtype=torch.bfloat16), file := io.BytesIO())
print(base64.b64encode(file.getvalue()).decode())
"""
"""Embeddings of five tokens (5 x hidden_size, bfloat16), as a client sends them."""
_EMBEDS_REPORT = Reference(
    id="PYSEC-2026-2303",
    title="prompt_embeds end EngineCore on models with M-RoPE (CVE-2026-55514)",
    url="https://osv.dev/vulnerability/PYSEC-2026-2303",
)
_EMBEDS_FIX = pull(
    "vllm#45252", "Fix DoS via prompt_embeds on M-RoPE models", release="0.24.0"
)


class EmbedsMrope(killed.KilledByRequest):
    """Prompt embeddings without tokens end the engine of a model with M-RoPE.

    What: On a server with `--enable-prompt-embeds` a completion brings `prompt_embeds`
    and no text. It gets HTTP 500, EngineCore is dead, and the server ends some seconds
    later. The same completion with a text is answered.

    Why: A model with multimodal rotary positions (Qwen2-VL and its successors) works
    them out from the prompt's token ids. A prompt of embeddings has none: the model
    runner asserts that there are some, in EngineCore, after the request was accepted.
    """

    name = "embeds-mrope"
    release, affected = "0.23.0", ">=0.17.0,<0.24.0"
    """Run: 0.23.0, and 0.24.0 as fixed. 0.14.0 dies of it too, and answers the request
    with HTTP 200 first; what lies between was not run."""
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("prompt_embeds",)
    upstream = Upstream(UpstreamState.FIXED, _EMBEDS_FIX, "2026-11-24", "0.24.0")
    references = (_EMBEDS_REPORT, _EMBEDS_FIX)
    server = f"{killed.KilledByRequest.server} --enable-prompt-embeds"
    refusal, died_of = (
        "prompt_embeds|enable-prompt-embeds",
        "the assertion on token ids",
    )
    log_patterns = killed.of_the_killer(
        sent=r"prompt_embeds shape: torch\.Size\(\[5, \d+\]\)",
        raised=r"M-RoPE requires prompt_token_ids to be available",
        through=r"assert req_state\.prompt_token_ids is not None",
    )
    sources = (
        quote(
            "vllm/v1/worker/gpu_model_runner.py",
            "GPUModelRunner._init_mrope_positions",
            "a request of embeddings has no token ids",
            "M-RoPE requires prompt_token_ids",
        ),
    )
    mitigations = (
        cure(
            "refuse-embeds",
            "--no-enable-prompt-embeds",
            "do not take prompt embeddings (the default): the request is refused",
        ),
        upgrade("0.24.0", "upgrade to 0.24.0: the request is answered (vllm#45252)"),
    )

    def exposure(self, facts: LiveFacts) -> Finding:
        """Only a server that takes prompt embeddings: it does not by default."""
        if facts.command and not facts.has(("--enable-prompt-embeds",)):
            return Finding.of(False, "the server takes no prompt embeddings")
        return super().exposure(facts)

    async def trigger(self, drive: Drive) -> None:
        making = await asyncio.create_subprocess_exec(
            str(drive.python),
            "-c",
            _TENSOR,
            str(drive.model),
            stdout=asyncio.subprocess.PIPE,
        )
        tensor, _ = await making.communicate()
        for label, prompt in (
            (killed.CONTROL, {"prompt": "hello"}),
            (killed.KILLER, {"prompt": None, "prompt_embeds": tensor.decode().strip()}),
        ):
            body = {
                "model": drive.traffic.model,
                "max_tokens": 4,
                "temperature": 0,
                **prompt,
            }
            await drive.unless_stuck(
                drive.traffic.raw(
                    label,
                    path=_PATH,
                    body=json.dumps(body).encode(),
                    deadline_s=drive.deadline_s,
                )
            )
        await crash.watch(drive)

    said = partial(claim, given="arrived", refutable_on=affected)
    claims = (
        said(
            "assertion",
            "an assertion that the prompt has token ids fails in _init_mrope_positions",
            by=("first-error", killed.THROUGH),
        ),
        said(
            "one-request",
            "a single request ends the server for all clients",
            by="symptom",
        ),
        claim(
            "fixed",
            "the request no longer ends the engine",
            _EMBEDS_FIX,
            given="arrived",
            releases=">=0.24.0",
            by=killed.survived,
        ),
    )


EMBEDS_MROPE = EmbedsMrope()

_BUDGET = 256
"""Tokens of a step."""
_LONG, _OTHER = "a " * 2 * _BUDGET, "b " * 2 * _BUDGET
"""Of one length, and with nothing in common: the prefix cache has none of it."""
_UNSEEDED = "the long prompt without a seed"
_SEED = 150
_SEEDED = {"seed": _SEED, "temperature": 1.0}
_DOWNSTREAM = Reference(
    id="vllm-rbln#1025",
    title="skip the discard offset rewind for CPU generators",
    url="https://github.com/RBLN-SW/vllm-rbln/pull/1025",
    note="the same line, copied into a plugin; no thread of vLLM's own was found "
    "(2026-11-24). Found here by mmrepro fuzz vllm --release 0.32.0 --blind --profile "
    "plain --seed 3",
)


class SeededChunk(killed.KilledByRequest):
    """A seed in a request whose prompt is prefilled in chunks ends a CPU's engine.

    What: On the CPU backend, a request with a `seed` and a prompt longer than a step's
    tokens gets HTTP 500: EngineCore is dead, and the server ends. With a short prompt
    it is answered, and so is the long one without a seed.

    Why: A step that prefills a part of a prompt samples a token and throws it away. So
    that the seed gives the same tokens with and without chunks, the request's generator
    is wound back by four. A generator of CUDA has such an offset; one of a CPU raises,
    in the worker."""

    name = "seeded-chunk"
    release, affected = "0.32.0", ">=0.14.0"
    devices = ("cpu",)
    """``set_offset`` and ``get_offset`` of a generator of CUDA are there (torch/_C;
    aten/src/ATen/ cuda/CUDAGeneratorImpl.cpp); a run of 0.23.0 on an H200 answered."""
    runner = "Model Runner V1"
    """A run of 0.33.0 with V2, which has no such line, answered."""
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("seed",)
    upstream = Upstream(UpstreamState.NOT_REPORTED, looked_up="2026-11-24")
    references = (_DOWNSTREAM,)
    server = f"{killed.KilledByRequest.server} --max-num-batched-tokens {_BUDGET}"
    refusal, died_of = "seed", "that of a CPU's generator, which has no offset"
    log_patterns = {vllm.STEP: r"max_num_batched_tokens=(\d+)"} | killed.of_the_killer(
        sent=rf"Received request .*seed={_SEED}, .*",
        raised=r"CPU Generator does not use offset",
        through=r"set_offset\(\w+\.get_offset\(\) - 4\)",
    )
    sources = (
        quote(
            "vllm/v1/worker/gpu_model_runner.py",
            "GPUModelRunner._bookkeeping_sync",
            "the generator of a request whose token is thrown away is wound back",
            "set_offset(",
        ),
    )
    mitigations = (
        cure(
            "larger-budget",
            "--max-num-batched-tokens 2048",
            (
                "--max-num-batched-tokens above what is prefilled at once: no prompt "
                "is cut"
            ),
        ),
    )

    @precondition("its prompt is longer than a step", removed_by=("larger-budget",))
    def in_chunks(self, requests: Requests, logs: Logs) -> Finding:
        """By what the engine says of a step, and counted of the prompt of the same
        length."""
        steps = [
            int(m[1]) for m in logs.search(vllm.STEP, r"max_num_batched_tokens=(\d+)")
        ]
        sent, like = requests.first(killed.KILLER), requests.first(_UNSEEDED)
        if (
            not steps
            or like.prompt_tokens is None
            or sent.prompt_chars != like.prompt_chars
        ):
            return Finding.unknown(
                f"steps of {steps} tokens; {_UNSEEDED}: {like.reply}"
            )
        return Finding.of(
            max(steps) < like.prompt_tokens,
            f"{like.prompt_tokens} tokens, steps of {max(steps)}",
        )

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(killed.CONTROL, text="hello", extra=_SEEDED)
        await drive.ask(_UNSEEDED, text=_OTHER, extra={"temperature": 1.0})
        await drive.ask(killed.KILLER, text=_LONG, extra=_SEEDED)
        await crash.watch(drive)

    said = partial(claim, given="arrived", refutable_on=affected)
    claims = (
        said(
            "rewound",
            "a chunk's request has its generator wound back, which a CPU's cannot be",
            by=("first-error", killed.THROUGH, answered(_UNSEEDED)),
        ),
        said("one-request", "one valid request ends the engine", by="symptom"),
    )


SEEDED_CHUNK = SeededChunk()

_REPRODUCER = "grammar_backends.py"
_GRAMMAR_REPORT = issue(
    "vllm#43920",
    (
        "V1 structured outputs: a malformed grammar request after a valid one crashes "
        "EngineCore"
    ),
)
_GRAMMAR_REFUSES = Version("0.33.0")
"""0.32.0 answers HTTP 500; this one, on what was run, HTTP 400: one backend per
engine."""


class GrammarBackendLatch(killed.KilledByRequest):
    """A structured output that the first one's backend cannot parse ends the engine.

    What: A request with a plain regular expression is answered. A later one, with an
    expression that xgrammar refuses and guidance takes, gets HTTP 500: EngineCore is
    dead, and the server ends some seconds later. Sent first, to a fresh server, the
    second one is answered.

    Why: With the backend `auto` each request is validated by itself and given the
    backend that can parse it. EngineCore makes one backend, of the first request with a
    grammar, and keeps it: what was validated for guidance is compiled by xgrammar. The
    compiler's exception comes out of a future in the middle of the scheduler's step,
    where nothing catches it."""

    name = "grammar-backend-latch"
    release, affected = "0.23.0", ">=0.14.0,<0.26.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    needs = ("a grammar",)
    upstream = Upstream(
        UpstreamState.OPEN,
        _GRAMMAR_REPORT,
        "2026-11-26",
        note="0.33.0 refuses it with HTTP 400",
    )
    references = (_GRAMMAR_REPORT,)
    refusal, died_of = r"grammar|regex", "the grammar compiler's"
    log_patterns = killed.of_the_killer(
        sent=r"Received request .*regex='\(\?i\)abc'",
        raised=r"RuntimeError: .*(?:regex_converter|grammar_parser)\.cc:\d+: ",
        through=r"structured_output/request\.py\"?, line \d+, in _check_grammar_completion",
    )
    sources = (
        quote(
            "vllm/v1/structured_output/__init__.py",
            "StructuredOutputManager.grammar_init",
            "the first request's backend is everybody's",
            "if self.backend is None",
        ),
        quote(
            "vllm/v1/structured_output/request.py",
            "StructuredOutputRequest._check_grammar_completion",
            "what the compiler raised is raised here, inside the scheduler's step",
            "self._grammar.result",
        ),
    )
    mitigations = (
        upgrade("0.26.0", "upgrade to 0.26.0: only the request itself gets HTTP 500"),
        cure(
            "one-backend",
            """--structured-outputs-config '{"backend":"guidance"}'""",
            "name one backend: requests are validated for the one that compiles them",
        ),
    )

    reproducers = (_REPRODUCER,)

    def expected(
        self, release: str, mitigations: frozenset[str]
    ) -> tuple[Outcome, str]:
        outcome, why = super().expected(release, mitigations)
        refuses = Version(release) >= _GRAMMAR_REFUSES
        if outcome is Outcome.NOT_REPRODUCED and not mitigations and not refuses:
            outcome = Outcome.DIFFERENT_FAILURE
            why = (
                f"by {release} the engine lives on; the latch is there: the request "
                "gets HTTP 500"
            )
        return outcome, why

    @precondition(
        "xgrammar takes the first expression and not the second one; guidance takes "
        "both"
    )
    def two_backends(self, reproducers: Reproducers) -> Finding:
        """Other releases of xgrammar read other expressions: without this there is no
        trigger."""
        first, second, other = (
            reproducers.truth(_REPRODUCER, fact)
            for fact in (
                "xgrammar_takes_first",
                "xgrammar_takes_second",
                "guidance_takes_second",
            )
        )
        text = (
            f"xgrammar: {FIRST} {first}, {SECOND} {second}; guidance: {SECOND} {other}"
        )
        return Finding.of(first and not second and other, text)

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(killed.CONTROL, extra={"structured_outputs": {"regex": FIRST}})
        await drive.ask(killed.KILLER, extra={"structured_outputs": {"regex": SECOND}})
        await crash.watch(drive)

    said = partial(claim, given="arrived", refutable_on=affected)
    claims = (
        said(
            "latched",
            "the backend of the first request compiles the grammars of all later ones",
            by=("first-error", "control-answered"),
        ),
        claim(
            "escapes",
            "the exception comes out of the future inside the scheduler's step",
            by=killed.THROUGH,
            given=("arrived", "first-error"),
        ),
        said("dead", "EngineCore is dead, and later requests fail", by="symptom"),
    )


GRAMMAR_BACKEND_LATCH = GrammarBackendLatch()
