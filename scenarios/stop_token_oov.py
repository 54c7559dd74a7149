"""vLLM: a stop token beyond the vocabulary ends the engine."""

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Severity,
    Upstream,
    UpstreamState,
    claim,
    issue,
    pull,
    quote,
    upgrade,
    vllm_killed as killed,
)
from mmrepro.scenario.more import crash

OUT, WITHIN = 1_151_935, 100
"""Token ids; the tiny model has 320, and no model a million."""
REPORT = issue(
    "vllm#54195", "Out-of-vocab stop_token_ids crashes the whole engine (single-request DoS)"
)
FIX = pull("vllm#54196", "Validate stop_token_ids against vocab size")


def stopping_at(token: int) -> dict[str, object]:
    return {"stop_token_ids": [token], "min_tokens": 1}


class StopTokenOov(killed.KilledByRequest):
    """One request with a stop token beyond the vocabulary ends the engine.

    What: A request brings `stop_token_ids` with a number that the model's vocabulary does not
    have, and `min_tokens`. It gets HTTP 500, EngineCore is dead, and the server ends some seconds
    later. With a token of the vocabulary the same request is answered.

    Why: Until `min_tokens` are generated, the logits of all stop tokens are set to minus infinity
    by an indexed write. Nothing holds the numbers against the vocabulary before: the write raises
    on a CPU and is a device-side assert on a GPU, in EngineCore, where no request is to blame for
    what its step raises.
    """

    name = "stop-token-oov"
    release, affected = "0.23.0", ">=0.12.0,<0.29.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    upstream = Upstream(UpstreamState.FIXED, FIX, "2026-11-24", "0.29.0", note="by runs")
    references = (REPORT, FIX)
    refusal, died_of = r"stop_token_ids?", "an index out of bounds"
    log_patterns = killed.of_the_killer(
        sent=rf"Received request .*stop_token_ids=\[{OUT}\]",
        raised=r"index \d+ is out of bounds for dimension 1 with size \d+"
        r"|index out of bounds. failed",
        through=r"logits\.index_put_\(self\.logits_slice",
    )
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
        await drive.ask(killed.CONTROL, extra=stopping_at(WITHIN))
        await drive.ask(killed.KILLER, extra=stopping_at(OUT))
        await crash.watch(drive)

    claims = (
        claim(
            "unchecked",
            "stop_token_ids are used as an index of the logits without a check",
            REPORT,
            by=("first-error", killed.THROUGH),
            given="arrived",
            refutable_on=affected,
        ),
        claim("one-request", "a single request ends the whole engine", REPORT, by="symptom",
              given="arrived", refutable_on=affected),
        claim("fixed", "the request is refused", FIX, given="arrived", releases=">=0.29.0",
              by=killed.refused),
    )  # fmt: skip


SCENARIO = StopTokenOov()
