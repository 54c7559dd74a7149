"""A MADE-UP greedy model for tests of oracles, no engine: what it answers follows from
the prompt, and from how much noise there is on its logits."""

import math
import random
from collections.abc import Callable, Mapping
from functools import cache

from mmrepro.base.records import Moment
from mmrepro.traffic.case.model import Case, Operation
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence import ChoiceSeen, Evidence, RequestRecord

VOCABULARY = [chr(ord("a") + i) for i in range(26)]
TOP = 5


@cache
def logits_after(context: str) -> dict[str, float]:
    """Each token's, which follow from the context alone: plays ask for the same ones
    again and again."""
    source = random.Random(context)
    return {letter: source.gauss(0, 1.2) for letter in VOCABULARY}


def answered(
    prompt: str,
    tokens: int = 8,
    *,
    noise: float = 0.0,
    chance: random.Random | None = None,
) -> ChoiceSeen:
    """The greedy answer to ``prompt``: each logit follows from the prompt and what was
    said so far, and ``chance`` moves it by up to ``noise``."""
    choice = ChoiceSeen(index=0, finish_reason="length")
    for _ in range(tokens):
        logits = logits_after(f"{prompt}|{choice.text}")
        if chance is not None:
            logits = {
                t: value + chance.uniform(-noise, noise) for t, value in logits.items()
            }
        total = math.log(sum(math.exp(value) for value in logits.values()))
        likeliest = sorted(logits.items(), key=lambda pair: -pair[1])[:TOP]
        choice.top.append([(token, value - total) for token, value in likeliest])
        token, logprob = choice.top[-1][0]
        choice.text += token
        choice.tokens.append(token)
        choice.logprobs.append(logprob)
    return choice


def record(
    op: Operation,
    choice: ChoiceSeen | None,
    prompt_tokens: int | None,
    **changed: object,
) -> RequestRecord:
    seen = RequestRecord(
        id=1,
        phase="trigger",
        label=op.id,
        sent=Moment.now(),
        deadline_s=10.0,
        status=200,
    )
    if choice is not None:
        seen.choices = [choice]
        seen.text, seen.finish_reason = choice.text, choice.finish_reason
        seen.prompt_tokens, seen.completion_tokens = prompt_tokens, len(choice.tokens)
    return seen.model_copy(update=changed)


def prompt_of(op: Operation) -> str:
    return " ".join(part.text or "" for m in op.messages or [] for part in m.parts())


def play(
    case: Case,
    *,
    noise: float = 0.0,
    seed: int = 0,
    tokens: int = 8,
    answers: Mapping[str, str] | None = None,
    change: Callable[[Operation, RequestRecord], RequestRecord] | None = None,
) -> Played:
    """What a play of ``case`` would show.

    Args:
        answers: operations that get the answer to another prompt.
        change: what becomes of each record in the end.
    """
    chance = random.Random(f"noise {seed}")
    records = []
    for op in case.operations:
        prompt = (answers or {}).get(op.id, prompt_of(op))
        choice = answered(prompt, tokens, noise=noise, chance=chance)
        seen = record(op, choice, len(prompt))
        records.append(change(op, seen) if change is not None else seen)
    return Played(state=PlayState.ENDED, evidence=Evidence(requests=records))
