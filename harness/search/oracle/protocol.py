"""What an answer's form says against itself: ends, counts, choices; and equal requests
alike.

Nothing here is a matter of quality: each rule holds for every sound server of the
OpenAI API, or for those engines that it names. A rule that an engine's release does not
promise is not asked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, islice

from mmrepro.base.records import FindingClass
from mmrepro.engines import Engine, has_option
from mmrepro.engines.models import TINY
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.oracle import promises, scripted
from mmrepro.search.oracle.adapters import adapter_of
from mmrepro.search.oracle.judged import OracleReport, Sent, sent_of, sighting
from mmrepro.search.oracle.loud import GRAMMARS, INVALID, NO_SUCH, error_object
from mmrepro.search.oracle.near_ties import HIDDEN
from mmrepro.search.oracle.reference import CHANGES
from mmrepro.traffic import ERROR_LIMIT, MAX_LOGPROBS, TEXT_LIMIT
from mmrepro.traffic.case import Case, Played, PlayState

_OWN_LIMITS = (
    "--max-model-len",
    "--context-length",
    "--max-total-tokens",
    "--mem-fraction-static",
    "--override-generation-config",
    "--generation-config",
)
"""Options that set another limit than the case's."""
_LEAVES = 16
"""Tokens that an engine may leave of the server's limit: SGLang stops some before
it."""
_MALFORMED = ("not a chat completion", "a broken stream")
_NO_DONE = "the stream ended without [DONE]"
FINISHES = (
    "stop",
    "length",
    "tool_calls",
    "content_filter",
    "function_call",
    "abort",
    "error",
)
_PAIRS = 2000
"""Pairs of equal requests that are compared; all of some hundred are."""


def protocol(case: Case, played: Played, engine: Engine) -> OracleReport:
    """Hold every answer against every rule."""
    requests = [sent for sent in sent_of(case, played) if sent.generates]
    broken: dict[str, list[tuple[str, str]]] = {}
    for sent in requests:
        for kind, said in _broken(sent, case, engine):
            if kind == "no-done" and played.state is PlayState.DIED:
                continue  # the end of the server ended it
            broken.setdefault(kind, []).append((sent.op.id, said))

    for sent in sent_of(case, played):
        of_any_api = promises.one_call(sent, case, engine)
        for kind, said in (*scripted.said_in_items(sent, case), *of_any_api):
            broken.setdefault(kind, []).append((sent.op.id, said))

    for ids, kind, said in _unequal(requests, case):
        broken.setdefault(kind, []).extend((id, said) for id in ids)

    sightings: list[Sighting] = []
    for kind, answers in sorted(broken.items()):
        ids = list(dict.fromkeys(id for id, _ in answers))
        more = f" (and {len(ids) - 1} more)" if len(ids) > 1 else ""
        said = f"{ids[0]}{more}: {answers[0][1]}."
        expected = EXPECTED[kind]
        parser = scripted.parser_of(kind, case)
        bucket = f"{FindingClass.PROTOCOL}/{parser}/{kind}" if parser else kind
        sightings.append(
            sighting(FindingClass.PROTOCOL, bucket, said, expected, by=ids)
        )

    return OracleReport(sightings=sightings)


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
    "usage-missing": "The usage is reported where it was asked for.",
    "completion-tokens": "The completion's tokens are those that were sent.",
    "choices": "There are as many answers as were asked for, numbered from 0.",
    "error-shape": "An error is a JSON object that says what is wrong.",
    "prompt-tokens": "Equal prompts have equally many tokens.",
    "stream-text": (
        "A stream's text is the text of the whole answer with the same tokens."
    ),
    "stream-finish": "A stream ends for the reason for which the whole answer ends.",
    "refusal": "Equal requests are all refused, or all served.",
    **promises.EXPECTED,
    **scripted.EXPECTED,
}
"""What a sound server does, for each kind of finding."""

_Rule = Callable[[Sent, Case, Engine], Iterator[tuple[str, str]]]


def _broken(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Kinds and sentences of what is wrong with one answer."""
    record = sent.record
    if record.left or record.timed_out or record.status is None:
        return
    if record.status >= 400:
        yield from _error_shape(sent)
    elif record.error.startswith(_MALFORMED):
        yield "malformed", record.error[:200]
    elif record.error == _NO_DONE:
        yield "no-done", "the stream ended without [DONE]"

    if record.error not in ("", _NO_DONE) or record.status != 200:
        return
    rules: tuple[_Rule, ...] = (
        _ends,
        _length,
        _stops,
        _usage,
        _counts,
        _choices,
        promises.promises,
        scripted.said_by_script,
    )
    for rule in rules:
        yield from rule(sent, case, engine)


def _error_shape(sent: Sent) -> Iterator[tuple[str, str]]:
    """Of refusals alone: of an endpoint that is not there, or of a failure, no form is
    promised."""
    record = sent.record
    if record.status not in INVALID or record.status in NO_SUCH:
        return
    if len(record.error) >= ERROR_LIMIT:
        return  # it was cut short
    error = error_object(record) or {}
    if not any(map(error.get, ("message", "detail", "error"))):
        yield "error-shape", f"HTTP {record.status} with {record.error[:120]!r}"


def _ends(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    record = sent.record
    if record.after_done:
        yield "after-done", f"{record.after_done} lines of data came after [DONE]"
    for choice in sent.record.choices:
        name = f"choice {choice.index}" if sent.n > 1 else "the answer"
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


def _length(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Of the answers, whose tokens the usage counts."""
    record, limit = sent.record, sent.limit
    tokens, reason = record.completion_tokens, record.finish_reason
    if limit is None or tokens is None:
        return
    if sent.n > 1:
        if tokens > limit * sent.n:
            said = (
                f"{tokens} tokens in {sent.n} answers, and {limit} each were asked for"
            )
            yield "max-tokens", said
        return

    if sent.parameter("echo"):
        return
    if tokens > limit:
        yield "finish-length", f"{tokens} tokens, and at most {limit} were asked for"
        return
    if reason != "length" or tokens == limit or record.prompt_tokens is None:
        return
    if not _limit_is_known(case, engine):
        return
    # Near the end of the context it may have ended for that.
    whole = record.prompt_tokens + tokens
    if whole < case.server.max_model_len - _LEAVES:
        said = f"ended for its length after {tokens} tokens of {limit}, {whole} with "
        yield "finish-length", f"{said}its prompt"


def _stops(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """With the end token ignored, and nothing else that ends an answer, there is no
    stop."""
    ends = ("stop", "stop_token_ids", "tools", *GRAMMARS)
    if sent.parameter("ignore_eos") is not True or any(map(sent.parameter, ends)):
        return
    said = "it stopped, with ignore_eos, and no stop word or token was given"
    for choice in sent.record.choices:
        if choice.finish_reason == "stop":
            yield "finish-stop", said


def _limit_is_known(case: Case, engine: Engine) -> bool:
    server = case.server
    own = any(has_option(server.args, option) for option in _OWN_LIMITS)
    return engine.promises.known_limit and server.model in TINY and not own


def _usage(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    record = sent.record
    counts = (record.prompt_tokens, record.completion_tokens, record.total_tokens)
    if None not in counts:
        prompt, completion, total = (count or 0 for count in counts)
        if prompt + completion != total:
            yield "usage", f"{prompt} and {completion} tokens, and {total} in total"
        if not prompt and sent.op.prompt != []:
            yield "usage", "a prompt of no tokens"

    if not engine.promises.tells_usage or record.usages or record.done is False:
        return
    if not record.stream or _asks_usage(sent):
        yield "usage-missing", "the answer tells no usage"


def _asks_usage(sent: Sent) -> bool:
    """Whether a stream is asked for its usage: our client does, unless a recording says
    how the request was laid out."""
    default = {"include_usage": True} if sent.op.layout is None else {}
    options = sent.parameter("stream_options", default)
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _counts(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    """Pieces and logprobs against the usage; a piece is at least one token, but for the
    last: what was held back (half a character, a possible stop word) may come by
    itself."""
    record = sent.record
    tokens = record.completion_tokens
    if tokens is None or sent.parameter("echo"):
        return
    choices = sent.record.choices
    parsed = any(choice.tool_calls or choice.reasoning for choice in choices)
    # A piece is a token at least, but a parser sends its own pieces.
    if record.pieces > tokens + len(choices) and not parsed:
        yield (
            "completion-tokens",
            f"{record.pieces} pieces, and {tokens} tokens in the usage",
        )

    shown = sum(len(choice.tokens) for choice in choices)
    cut = any(len(choice.tokens) >= MAX_LOGPROBS for choice in choices)
    is_told = (
        all(choice.tokens for choice in choices) and engine.promises.several_answers
    )
    held_back = record.stream and engine.promises.holds_back
    least = 0 if held_back else tokens - len(choices)
    if is_told and choices and not cut and not least <= shown <= tokens:
        yield (
            "completion-tokens",
            f"{shown} tokens with logprobs, and {tokens} in the usage",
        )


def _choices(sent: Sent, case: Case, engine: Engine) -> Iterator[tuple[str, str]]:
    record = sent.record
    indexes = [choice.index for choice in record.choices]
    # Other engines take n for one.
    wanted = sent.n if engine.promises.several_answers else 1
    if wanted > 1 and sent.parameter("best_of", 1) != 1:
        return
    if indexes and indexes != list(range(wanted)):
        yield "choices", f"choices {indexes}, and {wanted} were asked for"


# ---------------------------------------------------------------------- equal requests


def _unequal(
    requests: Sequence[Sent], case: Case
) -> Iterator[tuple[list[str], str, str]]:
    """Requests with one body whose answers contradict each other: ids, kind,
    sentence."""
    groups: dict[str, list[Sent]] = {}
    for sent in requests:
        groups.setdefault(sent.body, []).append(sent)
    changed = {adapter_of(op) for op in case.operations if op.path in CHANGES}
    for group in groups.values():
        yield from _prompt_tokens(group)
        # An adapter that comes and goes may be there for one of them only.
        if adapter_of(group[0].op) not in changed:
            yield from _refused_once(group)
        for sent, other in islice(combinations(group, 2), _PAIRS):
            yield from _stream_text(sent, other)
            yield from _stream_finish(sent, other, case)
            for kind, said in scripted.said_otherwise(sent, other, case):
                yield [sent.op.id, other.op.id], kind, said


def _prompt_tokens(group: Sequence[Sent]) -> Iterator[tuple[list[str], str, str]]:
    lengths: dict[str, int] = {}
    for sent in group:
        record = sent.record
        if record.answered and record.prompt_tokens is not None:
            lengths[sent.op.id] = record.prompt_tokens

    if len(set(lengths.values())) > 1:
        shown = list(lengths.items())[:6]
        counts = ", ".join(f"{id}: {tokens}" for id, tokens in shown)
        said = f"equal prompts of different lengths ({counts})"
        yield list(lengths), "prompt-tokens", said


def _refused_once(group: Sequence[Sent]) -> Iterator[tuple[list[str], str, str]]:
    served = [sent.op.id for sent in group if sent.record.answered]
    refused = [sent.op.id for sent in group if sent.record.status in INVALID]
    if served and refused:
        said = f"{served[0]} was served, and {refused[0]}, which asks for the same, "
        yield [*served, *refused], "refusal", f"{said}refused"


def _stream_text(sent: Sent, other: Sent) -> Iterator[tuple[list[str], str, str]]:
    """A stream and a whole answer of one request, with the same tokens."""
    if sent.op.stream == other.op.stream:
        return
    if not (sent.record.answered and other.record.answered):
        return
    ids = [sent.op.id, other.op.id]
    for a, b in zip(sent.record.choices, other.record.choices, strict=False):
        if not a.tokens or a.tokens != b.tokens or len(a.tokens) >= MAX_LOGPROBS:
            continue
        if not HIDDEN.isdisjoint(a.tokens):
            continue  # half a character: other tokens look the same
        if a.tool_calls or b.tool_calls or a.reasoning or b.reasoning:
            # Of an answer that is cut short a parser has a part, and of the whole none.
            if "length" in (a.finish_reason, b.finish_reason):
                continue
            why = promises.unlike(a, b)
            if why:
                yield ids, "stream-parts", f"of the same tokens {why}"
            continue

        short = max(len(a.text), len(b.text)) < TEXT_LIMIT
        if short and a.text != b.text and a.finish_reason == b.finish_reason:
            said = f"the same {len(a.tokens)} tokens are {a.text[:60]!r} and "
            yield ids, "stream-text", f"{said}{b.text[:60]!r}"


def _stream_finish(
    sent: Sent, other: Sent, case: Case
) -> Iterator[tuple[list[str], str, str]]:
    """A greedy stream and the whole answer of the same request, both as long as was
    asked for: what ended them is the length."""
    if sent.op.stream == other.op.stream or not (sent.greedy and other.greedy):
        return
    if not (sent.record.answered and other.record.answered):
        return
    stream, whole = (sent, other) if sent.op.stream else (other, sent)
    tokens = stream.record.completion_tokens
    # A model that says scripts says the same twice: the stream need not tell its length.
    if tokens is None and case.server.scripts is not None:
        tokens = whole.record.completion_tokens
    if not tokens == whole.record.completion_tokens == sent.limit:
        return
    ended, right = stream.record.finish_reason, whole.record.finish_reason
    if right == "length" and ended not in (right, None):
        said = (
            f"a stream of {sent.limit} tokens ended with {ended}, and the whole answer "
            f"with {right}"
        )
        yield [sent.op.id, other.op.id], "stream-finish", said
