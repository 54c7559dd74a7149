"""What an answer's form says against itself: ends, counts, choices; and equal requests
alike.

Nothing here is a matter of quality: each rule holds for every sound server of the
OpenAI API, or for those engines that it names. A rule that an engine's release does not
promise is not asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from mmrepro.base.records import FindingClass
from mmrepro.engines import Engine
from mmrepro.engines.base import has_option
from mmrepro.engines.models.tiny import TINY
from mmrepro.search.oracle import promises
from mmrepro.search.oracle.adapters import adapter_of
from mmrepro.search.oracle.judged import Judged, Sent, sent_of, sighting
from mmrepro.search.oracle.loud import GRAMMARS, INVALID, NO_SUCH, error_object
from mmrepro.search.oracle.near_ties import HIDDEN
from mmrepro.search.oracle.reference import CHANGES
from mmrepro.traffic.case.model import Case
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.reading import ERROR_LIMIT, MAX_LOGPROBS, TEXT_LIMIT

SEVERAL = ("vllm", "sglang")
"""Engines that give several answers to one request; others take ``n`` for one."""
KNOWN_LIMIT = ("vllm", "sglang", "minivllm")
"""Engines that end an answer of a tiny model for its length at its own limit or the
server's, and nowhere else; a real model's own configuration may have another one."""
OWN_LIMITS = (
    "--max-model-len",
    "--context-length",
    "--max-total-tokens",
    "--mem-fraction-static",
    "--override-generation-config",
    "--generation-config",
)
"""Options that set another limit than the case's."""
HOLDS_BACK = ("sglang",)
"""Engines whose streams do not tell the logprobs of tokens at the end that are half a
character (0.5.6: 21 of 24 in a play of a sound server)."""
TELLS_USAGE = ("vllm", "sglang", "minivllm")
LEAVES = 16
"""Tokens that an engine may leave of the server's limit: SGLang stops some before
it."""
MALFORMED = ("not a chat completion", "a broken stream")
NO_DONE = "the stream ended without [DONE]"
FINISHES = (
    "stop",
    "length",
    "tool_calls",
    "content_filter",
    "function_call",
    "abort",
    "error",
)
PAIRS = 2000
"""Pairs of equal requests that are compared; all of some hundred are."""


def protocol(case: Case, played: Played, engine: Engine) -> Judged:
    """Every rule on every answer."""
    sent = [one for one in sent_of(case, played) if one.generates]
    found: dict[str, list[tuple[str, str]]] = {}
    for one in sent:
        for kind, said in _broken(one, case, engine):
            if kind == "no-done" and played.state is PlayState.DIED:
                continue  # the end of the server ended it
            found.setdefault(kind, []).append((one.op.id, said))
    for ids, kind, said in _unequal(sent, case):
        found.setdefault(kind, []).extend((id, said) for id in ids)
    sightings = []
    for kind, told in sorted(found.items()):
        ids = list(dict.fromkeys(id for id, _ in told))
        more = f" (and {len(ids) - 1} more)" if len(ids) > 1 else ""
        said = f"{ids[0]}{more}: {told[0][1]}."
        sightings.append(
            sighting(FindingClass.PROTOCOL, kind, said, EXPECTED[kind], by=ids)
        )
    return Judged(sightings=sightings)


EXPECTED = {
    "malformed": "Every answer is JSON of the form that was asked for.",
    "no-done": "A stream ends with [DONE], once.",
    "after-done": "Nothing comes after [DONE].",
    "finish-reason": "Each answer ends with one finish reason.",
    "finish-length": (
        "The reason is length where the answer is as long as asked for, only there."
    ),
    "finish-stop": "The reason is stop only where something could stop the answer.",
    "usage": "The total is the prompt's tokens and the completion's.",
    "usage-missing": "The usage is told where it was asked for.",
    "completion-tokens": "The completion's tokens are those that were sent.",
    "choices": "There are as many answers as were asked for, numbered from 0.",
    "error-shape": "An error is a JSON object that says what is wrong.",
    "prompt-tokens": "Equal prompts have equally many tokens.",
    "stream-text": (
        "A stream's text is the text of the whole answer with the same tokens."
    ),
    "refusal": "Equal requests are all refused, or all served.",
    **promises.EXPECTED,
}
"""What a sound server does, for each kind of finding."""

Rule = Callable[[Sent, Case, Engine], Iterator[tuple[str, str]]]


def _broken(one: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Kinds and sentences of what is wrong with one answer."""
    record = one.record
    if record.left or record.timed_out or record.status is None:
        return
    if record.status >= 400:
        yield from _error_shape(one)
    elif record.error.startswith(MALFORMED):
        yield "malformed", record.error[:200]
    elif record.error == NO_DONE:
        yield "no-done", "the stream ended without [DONE]"
    if record.error not in ("", NO_DONE) or record.status != 200:
        return
    rules: tuple[Rule, ...] = (
        _ends,
        _length,
        _stops,
        _usage,
        _counts,
        _choices,
        promises.promises,
    )
    for rule in rules:
        yield from rule(one, case, engine)


def _error_shape(one: Sent) -> Iterator[tuple[str, str]]:
    """Of refusals alone: of an endpoint that is not there, or of a failure, no form is
    promised."""
    record = one.record
    if (
        record.status not in INVALID
        or record.status in NO_SUCH
        or len(record.error) >= ERROR_LIMIT
    ):
        return
    error = error_object(record) or {}
    if not any(error.get(name) for name in ("message", "detail", "error")):
        yield "error-shape", f"HTTP {record.status} with {record.error[:120]!r}"


def _ends(one: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    record = one.record
    if record.after_done:
        yield "after-done", f"{record.after_done} lines of data came after [DONE]"
    for choice in one.record.choices:
        name = f"choice {choice.index}" if one.n > 1 else "the answer"
        if choice.finish_reason is None:
            yield "finish-reason", f"{name} ended without a finish reason"
        elif choice.finish_reason not in FINISHES:
            yield (
                "finish-reason",
                f"{name} ended with the reason {choice.finish_reason[:40]!r}",
            )
        elif record.stream and choice.finishes > 1:
            yield (
                "finish-reason",
                f"{name} told its finish reason {choice.finishes} times",
            )


def _length(one: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Of the answers, whose tokens the usage counts."""
    record, limit = one.record, one.limit
    tokens, reason = record.completion_tokens, record.finish_reason
    if (
        limit is not None
        and tokens is not None
        and one.n > 1
        and tokens > limit * one.n
    ):
        yield (
            "max-tokens",
            f"{tokens} tokens in {one.n} answers, and {limit} each were asked for",
        )
    if limit is None or tokens is None or one.n > 1 or one.parameter("echo"):
        return
    if tokens > limit:
        yield "finish-length", f"{tokens} tokens, and at most {limit} were asked for"
    elif reason == "length" and tokens < limit and _limit_is_known(case, engine):
        whole = (record.prompt_tokens or 0) + tokens
        if (
            record.prompt_tokens is not None
            and whole < case.server.max_model_len - LEAVES
        ):
            yield (
                "finish-length",
                (
                    f"ended for its length after {tokens} tokens of {limit}, {whole} "
                    "with its prompt"
                ),
            )


def _stops(one: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """With the end token ignored, and nothing else that ends an answer, there is no
    stop."""
    ends = ("stop", "stop_token_ids", "tools", *GRAMMARS)
    if one.parameter("ignore_eos") is not True or any(
        one.parameter(name) for name in ends
    ):
        return
    for choice in one.record.choices:
        if choice.finish_reason == "stop":
            yield (
                "finish-stop",
                "it stopped, with ignore_eos, and no stop word or token was given",
            )


def _limit_is_known(case: Case, engine: Engine) -> bool:
    server = case.server
    own = any(has_option(server.args, option) for option in OWN_LIMITS)
    return engine.name in KNOWN_LIMIT and server.model in TINY and not own


def _usage(one: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    record = one.record
    counts = (record.prompt_tokens, record.completion_tokens, record.total_tokens)
    if None not in counts:
        prompt, completion, total = (count or 0 for count in counts)
        if prompt + completion != total:
            yield "usage", f"{prompt} and {completion} tokens, and {total} in total"
        if not prompt and one.op.prompt != []:
            yield "usage", "a prompt of no tokens"
    default = {"include_usage": True} if one.op.layout is None else {}
    options = one.parameter("stream_options", default)
    asked = not record.stream or (
        isinstance(options, dict) and options.get("include_usage")
    )
    if (
        engine.name in TELLS_USAGE
        and asked
        and record.done is not False
        and not record.usages
    ):
        yield "usage-missing", "the answer tells no usage"


def _counts(one: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Pieces and logprobs against the usage; a piece is at least one token, but for the
    last: what was held back (half a character, a possible stop word) may come by
    itself."""
    record = one.record
    tokens = record.completion_tokens
    if tokens is None or one.parameter("echo"):
        return
    choices = one.record.choices
    parsed = any(choice.tool_calls or choice.reasoning for choice in choices)
    if record.pieces > tokens + len(choices) and not parsed:
        yield (
            "completion-tokens",
            f"{record.pieces} pieces, and {tokens} tokens in the usage",
        )
    shown = sum(len(choice.tokens) for choice in choices)
    cut = any(len(choice.tokens) >= MAX_LOGPROBS for choice in choices)
    told = all(choice.tokens for choice in choices) and engine.name in SEVERAL
    held_back = record.stream and engine.name in HOLDS_BACK
    least = 0 if held_back else tokens - len(choices)
    if told and choices and not cut and not least <= shown <= tokens:
        yield (
            "completion-tokens",
            f"{shown} tokens with logprobs, and {tokens} in the usage",
        )


def _choices(one: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    record = one.record
    indexes = [choice.index for choice in record.choices]
    wanted = one.n if engine.name in SEVERAL else 1
    if wanted > 1 and one.parameter("best_of", 1) != 1:
        return
    if indexes and indexes != list(range(wanted)):
        yield "choices", f"choices {indexes}, and {wanted} were asked for"


# ---------------------------------------------------------------------- equal requests


def _unequal(sent: Sequence[Sent], case: Case) -> Iterator[tuple[list[str], str, str]]:
    """Requests with one body whose answers contradict each other: ids, kind,
    sentence."""
    groups: dict[str, list[Sent]] = {}
    for one in sent:
        groups.setdefault(one.body, []).append(one)
    changed = {adapter_of(op) for op in case.operations if op.path in CHANGES}
    for group in groups.values():
        yield from _prompt_tokens(group)
        # Or it may be there for one of them only.
        if adapter_of(group[0].op) not in changed:
            yield from _refused_once(group)
        for done, (one, other) in enumerate(combinations(group, 2)):
            if done >= PAIRS:
                break
            yield from _stream_text(one, other)


def _prompt_tokens(group: Sequence[Sent]) -> Iterator[tuple[list[str], str, str]]:
    told = {
        one.op.id: one.record.prompt_tokens
        for one in group
        if one.record.answered and one.record.prompt_tokens is not None
    }
    if len(set(told.values())) > 1:
        counts = ", ".join(f"{id}: {tokens}" for id, tokens in list(told.items())[:6])
        yield (
            list(told),
            "prompt-tokens",
            f"equal prompts of different lengths ({counts})",
        )


def _refused_once(group: Sequence[Sent]) -> Iterator[tuple[list[str], str, str]]:
    served = [one.op.id for one in group if one.record.answered]
    refused = [one.op.id for one in group if one.record.status in INVALID]
    if served and refused:
        yield (
            [*served, *refused],
            "refusal",
            (
                f"{served[0]} was served, and {refused[0]}, which asks for the same, "
                "refused"
            ),
        )


def _stream_text(one: Sent, other: Sent) -> Iterator[tuple[list[str], str, str]]:
    """A stream and a whole answer of one request, with the same tokens."""
    records = (one.record, other.record)
    if one.op.stream == other.op.stream or not all(
        record.answered for record in records
    ):
        return
    for a, b in zip(one.record.choices, other.record.choices, strict=False):
        comparable = a.tokens and a.tokens == b.tokens and len(a.tokens) < MAX_LOGPROBS
        if any(token in HIDDEN for token in a.tokens):
            continue  # half a character: other tokens look the same
        if a.tool_calls or b.tool_calls or a.reasoning or b.reasoning:
            # Of an answer that is cut short a parser has a part, and of the whole none.
            whole = a.finish_reason != "length" and b.finish_reason != "length"
            if comparable and whole and (why := promises.unlike(a, b)):
                yield (
                    [one.op.id, other.op.id],
                    "stream-parts",
                    f"of the same tokens {why}",
                )
            continue
        short = max(len(a.text), len(b.text)) < TEXT_LIMIT
        if (
            comparable
            and short
            and a.text != b.text
            and a.finish_reason == b.finish_reason
        ):
            yield (
                [one.op.id, other.op.id],
                "stream-text",
                (
                    f"the same {len(a.tokens)} tokens are {a.text[:60]!r} and "
                    f"{b.text[:60]!r}"
                ),
            )
