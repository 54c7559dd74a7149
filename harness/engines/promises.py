"""What an engine's API promises, as its ``promises.toml`` has it: oracles ask it.

A promise is listed for those engines alone whose sources make it (vLLM 0.11 to 0.32,
SGLang 0.5.6 to 0.5.23 were read)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from mmrepro.engines.folders import made_of, table


@dataclass(frozen=True)
class ApiPromises:
    """What an engine's API promises. An engine without a table promises nothing.

    Attributes:
        several_answers: it gives several answers to one request; others take ``n`` for
            one.
        known_limit: it ends an answer of a tiny model for its length at its own limit
            or the server's, and nowhere else; a real model's own configuration may have
            another one.
        holds_back: its streams do not tell the logprobs of tokens at the end that are
            half a character.
        tells_usage: its answers tell how many tokens they have.
        exact: its greedy answers are the same for any batch, chunk and cache.
        prompt_gauges: it sets its gauges at each step, the last one included.
        kv_use: names of the metric of the KV cache's share that requests hold; cached
            prefixes are free blocks in it.
        preemptions: its counter of requests that are started again, which then find
            their own tokens in the cache; "": it counts none.
        by_picture: its caches go by the picture, not by what the processor makes of it.
        salted_since: the first release whose caches go by ``cache_salt``; "": none.
        cached_option: the option with which it reports cached tokens; "": none.
        cached_option_given: mmrepro's own servers have that option in any case.
        allowed_tokens: it keeps ``allowed_token_ids`` and ``bad_words``.
        bad_words_since: the first release that keeps ``bad_words`` of plain
            completions; of chats every one does.
        logit_bias: it keeps ``logit_bias``.
        stop_text: no stop word is in its text.
        stop_at_limit: that holds of the longest answer as well.
        stop_chars: the longest stop word that it surely finds, in characters; 0: any.
        text_offsets: its ``text_offset`` tells where each token begins.
        structured: a structured output fits what was asked for.
        structured_outputs: it is asked for with ``structured_outputs``, too.
        structured_fields: other fields that ask for one, and their form.
        structured_fields_until: the first release that ignores those; "": none does.
        tool_choice: a tool that must be called is called, with arguments that fit.
        one_call_since: the first release that calls one tool at most where a request
            rules parallel calls out; "": none does.
    """

    several_answers: bool = False
    known_limit: bool = False
    holds_back: bool = False
    tells_usage: bool = False
    exact: bool = False
    prompt_gauges: bool = False
    kv_use: tuple[str, ...] = ()
    preemptions: str = ""
    by_picture: bool = False
    salted_since: str = ""
    cached_option: str = ""
    cached_option_given: bool = False
    allowed_tokens: bool = False
    bad_words_since: str = "0"
    logit_bias: bool = False
    stop_text: bool = False
    stop_at_limit: bool = True
    stop_chars: int = 0
    text_offsets: bool = False
    structured: bool = False
    structured_outputs: bool = False
    structured_fields: Mapping[str, str] = field(default_factory=dict)
    structured_fields_until: str = ""
    tool_choice: bool = False
    one_call_since: str = ""


@cache
def promises_of(engine: str) -> ApiPromises:
    """What the API of ``engine`` promises."""
    return made_of(ApiPromises, table(engine, "promises.toml"))
