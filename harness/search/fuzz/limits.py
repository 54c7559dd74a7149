"""What a server tells of its limits: lengths are chosen at them, one less and one
more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

from mmrepro.base.records import Record
from mmrepro.failure.documents.replay import Learnt
from mmrepro.probes.http import fetch
from mmrepro.runs.play import (
    BATCH_LIMIT,
    BLOCK_LIMIT,
    CONTEXT_LIMIT,
    KV_LIMIT,
    limits_by_log,
    limits_by_metrics,
)
from mmrepro.search.replay.store import LiveLook
from mmrepro.traffic.case import (
    CHAT,
    Case,
    Image,
    Message,
    Noise,
    Operation,
    Origin,
    Part,
    Played,
    ServerWanted,
)
from mmrepro.traffic.evidence import RequestRecord
from pydantic import Field

REFUSAL = "refusal"
SHORT, LONGER = 8, 72
"""Letters of two prompts, by which the template's tokens and the tokens a letter are
learnt."""
_LADDER = (0.35, 0.6, 0.9, 1.3, 3.0)
"""Of the context that the server was started with: prompts whose answers tell what it
takes."""
_RUNGS = 6
"""Lengths that a further learning episode asks for, between what is served and what is
not."""
NARROW = 24
"""Tokens between the two from which on that is told well enough."""
_LADDER_BASE = 2048
"""The context, at most: where it is longer, the KV cache of a tiny model ends before
it."""
_LETTERS = "defghijk"
SIZES = ((28, 28), (56, 56), (56, 112), (112, 112), (196, 308), (280, 420), (420, 420))
"""Width and height of the pictures whose tokens are learnt; most engines count 28 x 28
as one."""
_PER_TOKEN = 28 * 28
_MOST_LIMITS = 12
_GET_S, _GET_BYTES = 5.0, 4 << 20
_NUMBER = re.compile(r"\b\d{2,7}\b")


class ServerLimits(Record):
    """What is known of a server. ``overhead``, ``per_letter``: tokens of a chat's
    template, and of a letter, as its usage told."""

    learnt: list[Learnt] = []
    overhead: float = 12.0
    per_letter: float = 1.0
    images: Annotated[
        dict[str, int],
        Field(description='"56x112": tokens of such a picture, as its usage told'),
    ] = {}
    served: Annotated[
        int, Field(description="longest prompt that was answered, in tokens")
    ] = 0
    refused: Annotated[
        int | None,
        Field(description="shortest one that was not, of those longer than that"),
    ] = None

    def named(self, name: str) -> list[int]:
        return [limit.tokens for limit in self.learnt if limit.name == name]

    @property
    def context(self) -> int:
        return min(self.named(CONTEXT_LIMIT) or [1024])

    @property
    def room(self) -> int:
        """Tokens of the KV cache; the context's, where it is not told."""
        return min(self.named(KV_LIMIT) or [self.context])

    @property
    def longest(self) -> int:
        """A prompt that is rather served than not."""
        return min(self.context, self.room, self.refused or self.context)

    def letters(self, tokens: int, images: Iterable[tuple[int, int]] = ()) -> int:
        """Letters of a text that makes a prompt of ``tokens``, 1 at least."""
        left = tokens - self.overhead - sum(map(self.of_image, images))
        return max(1, round(left / self.per_letter))

    def of_image(self, size: tuple[int, int]) -> int:
        width, height = size
        tokens = self.images.get(f"{width}x{height}")
        if tokens is not None:
            return tokens
        return max(1, round(width * height / _PER_TOKEN))

    @property
    def untold(self) -> bool:
        """Something that the server does not tell of ends between what it serves and
        what not."""
        if self.refused is None or not self.served:
            return False
        if self.refused - self.served <= NARROW:
            return False
        between = range(self.served, self.refused + 1)
        return not any(limit.tokens in between for limit in self.learnt)

    def edges(self) -> list[int]:
        """Lengths where something ends, smallest first."""
        edges = {limit.tokens for limit in self.learnt if limit.name != BLOCK_LIMIT}
        if self.refused is not None and self.served:
            edges |= {self.served, (self.served + self.refused) // 2, self.refused}
        return sorted(edges)


# ---------------------------------------------------------------------- asking


def learning_case(server: ServerWanted, *, pictures: bool) -> Case:
    """Requests one after another: short ones, longer and longer ones, a picture of each
    size."""
    images: dict[str, Image] = {}
    asked: list[str | list[Part]] = ["a" * SHORT, "b" * LONGER]
    for number, size in enumerate(SIZES if pictures else ()):
        images[f"size{number}"] = Noise(seed=number, size=size)
        asked.append([Part(image=f"size{number}"), Part(text="c" * SHORT)])
    base = min(_LADDER_BASE, server.max_model_len)
    lengths = [max(LONGER, round(base * share)) for share in _LADDER]
    asked += _of_letters(lengths)
    return _asking(server, asked, images)


def narrowing_case(server: ServerWanted, limits: ServerLimits) -> Case:
    """Prompts of text between the longest that was served and the shortest that was
    not, each a step longer."""
    refused = limits.refused or limits.served
    # Each further episode leaves a seventh of what lies between.
    step = (refused - limits.served) / (_RUNGS + 1)
    lengths: list[int] = []
    for rung in range(1, _RUNGS + 1):
        tokens = round(limits.served + step * rung)
        lengths.append(limits.letters(tokens))
    return _asking(server, _of_letters(lengths), {})


def _of_letters(lengths: Iterable[int]) -> Iterator[str]:
    """Texts of which no two begin alike."""
    return (letter * length for letter, length in zip(_LETTERS, lengths, strict=False))


def _asking(
    server: ServerWanted, asked: Iterable[str | list[Part]], images: dict[str, Image]
) -> Case:
    """Make a case of prompts, one after another."""
    operations: list[Operation] = []
    for number, content in enumerate(asked, 1):
        operation = Operation(
            id=f"r{number}",
            after=[f"r{number - 1}.end"] if number > 1 else [],
            path=CHAT,
            messages=[Message(role="user", content=content)],
            parameters={"max_tokens": 1, "temperature": 0},
        )
        operations.append(operation)

    return Case(
        title="what the server tells of its limits",
        server=server,
        images=images,
        operations=operations,
        origin=Origin(format="fuzz", anonymised=True),
    )


def look_at_limits(url: str, pid: int, log: Path) -> LiveLook:
    """What the endpoints of a server that is about to be stopped tell."""
    return LiveLook(learnt=[*_models(url), *_metrics(url), *_info(url)])


def learn(
    server: ServerWanted, played: Played, log: Path, asked: list[Learnt]
) -> ServerLimits:
    """What a play of :func:`learning_case` told, its log, and its endpoints."""
    records = [r for r in played.evidence.requests if r.phase == "trigger"]
    started_with = Learnt(
        name=CONTEXT_LIMIT, tokens=server.max_model_len, source="--max-model-len"
    )
    every = [started_with, *asked, *limits_by_log(log), *_refusals(records)]
    kept: dict[int, Learnt] = {}
    for limit in every:  # each number once, under the first name that it has
        if limit.tokens > 1:
            kept.setdefault(limit.tokens, limit)
    limits = ServerLimits(learnt=list(kept.values())[:_MOST_LIMITS])
    _learn_letters(limits, records)
    _learn_images(limits, records)
    return narrowed(limits, records)


def _learn_letters(limits: ServerLimits, records: Iterable[RequestRecord]) -> None:
    """Two prompts of known lengths tell what the template takes, and what a letter."""
    by_letters: dict[int, int | None] = {}
    for record in records:
        if record.answered and not record.images:
            by_letters[record.prompt_chars] = record.prompt_tokens
    short, longer = by_letters.get(SHORT), by_letters.get(LONGER)
    # A server that counts no letters, or not by them, tells nothing here.
    if short and longer and longer > short:
        limits.per_letter = (longer - short) / (LONGER - SHORT)
        limits.overhead = short - SHORT * limits.per_letter


def _learn_images(limits: ServerLimits, records: Iterable[RequestRecord]) -> None:
    """What a prompt has beyond its text is its picture."""
    for record in records:
        if record.answered and record.prompt_tokens and record.images:
            image = record.images[0]
            text = limits.overhead + record.prompt_chars * limits.per_letter
            tokens = round(record.prompt_tokens - text)
            limits.images[f"{image.width}x{image.height}"] = max(1, tokens)


def narrowed(limits: ServerLimits, records: Iterable[RequestRecord]) -> ServerLimits:
    """With what further answers to prompts of text tell of what is served and what is
    not."""
    served = limits.served
    too_long = [] if limits.refused is None else [limits.refused]
    for record in records:
        if record.path != CHAT or record.images or record.left:
            continue
        if record.answered:
            served = max(served, record.prompt_tokens or 0)
        if record.status is not None and record.status >= 400:
            tokens = limits.overhead + record.prompt_chars * limits.per_letter
            too_long.append(round(tokens))

    # Shorter ones were refused for something else than their length.
    longer = [tokens for tokens in too_long if tokens > served]
    refused = min(longer, default=None)
    return limits.model_copy(update={"served": served, "refused": refused})


# ---------------------------------------------------------------------- hearing


def _json(url: str, path: str) -> Mapping[str, object]:
    answer = fetch("GET", url + path, timeout_s=_GET_S, max_bytes=_GET_BYTES)
    try:
        body = json.loads(answer.body) if answer.status == 200 else {}
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _models(url: str) -> Iterator[Learnt]:
    cards = _json(url, "/v1/models").get("data")
    if not isinstance(cards, list):
        return
    for card in cards:
        if not isinstance(card, dict):
            continue
        length = card.get("max_model_len")
        if isinstance(length, int):
            yield Learnt(name=CONTEXT_LIMIT, tokens=length, source="/v1/models")


def _info(url: str) -> Iterator[Learnt]:
    """SGLang's."""
    names = {
        "max_total_num_tokens": KV_LIMIT,
        "page_size": BLOCK_LIMIT,
        "chunked_prefill_size": BATCH_LIMIT,
        "context_length": CONTEXT_LIMIT,
    }
    body = _json(url, "/get_server_info")
    for field, name in names.items():
        value = body.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            yield Learnt(name=name, tokens=value, source=f"/get_server_info: {field}")


def _metrics(url: str) -> Iterator[Learnt]:
    answer = fetch("GET", url + "/metrics", timeout_s=_GET_S, max_bytes=_GET_BYTES)
    if answer.status == 200:
        yield from limits_by_metrics(answer.body.decode("utf-8", "replace"))


def _refusals(records: Iterable[RequestRecord]) -> Iterator[Learnt]:
    """Numbers in what is said of prompts that are too long, but for the prompt's own
    length."""
    for record in records:
        if record.status is None or not 400 <= record.status < 500:
            continue
        for number in _NUMBER.findall(record.error):
            tokens = int(number)
            # The refusal repeats how long the prompt was: that is no limit.
            own = abs(tokens - record.prompt_chars) <= 2 * LONGER
            if tokens >= SHORT and tokens != record.status and not own:
                yield Learnt(
                    name=REFUSAL,
                    tokens=tokens,
                    source=f"a refusal: {record.reply[:80]}",
                )
