"""How much of a prompt an earlier one can share: upper bounds, whatever the chat template does.

A prompt is what its messages say, in order: text and pictures. What a template puts around them is
not known, and need not be: an upper bound of the shared tokens is all of the prompt's tokens, as
the server counted them, less those that certainly lie behind the place where the two part.

Whatever could make two prompts more alike than they look counts as alike. White space is left out
(templates trim and join), roles and the borders of messages too (the tokens between them may be
equal or not), and the order is tried as it is, with each message's pictures first, and with all
pictures first (engines do all three).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mmrepro.capture.texts import common
from mmrepro.case.model import Message
from mmrepro.evidence import ImageSent, RequestRecord
from mmrepro.models.qwen import FACTOR
from mmrepro.oracle.judged import Sent

LONGEST_TOKEN = 64
"""Bytes: no vocabulary has longer tokens but for runs of one character, which count once."""
WHOLE_TOKENS = 64
"""Pictures of up to so many tokens, with sides of whole tokens, no tiny model's processor resizes.
"""
COARSE_STEP = 4
"""Levels of 256: mean colours of a part of a picture that differ by so much differ after any
resizing as well."""
_MARKUP = re.compile(
    r"<\|[^|>]{1,40}\|>|<t\d+>|</?s>|\[/?INST\]|</?think>|<image>|<(?:start|end)_of_"
)
"""What a tokenizer takes for more than its characters, or a template cuts out."""


@dataclass(frozen=True)
class Prompt:
    """What was sent before an answer.

    Attributes:
        name: the operation's id, or the label of another request.
        orders: its text and pictures in each order that an engine may put them.
        tokens: as the server counted them.
        generated: most tokens of its answer; None: not known.
        salt: sets its entries of the prefix cache apart.
        told: False: only the beginning of its text is known.
    """

    name: str
    orders: tuple[tuple[str | ImageSent, ...], ...]
    tokens: int | None = None
    generated: int | None = None
    salt: str = ""
    told: bool = True
    ids: tuple[int, ...] | None = None
    odd: bool = field(default=False)
    """It holds markup, or parts of unknown form: what it shares with others cannot be told."""


@dataclass(frozen=True)
class Rules:
    """How tokens and pictures compare on a server.

    Attributes:
        bytewise: a byte of text is a token, as for tiny models.
        by_features: pictures that are equal after the processor's resizing are one to the cache,
            as for SGLang and LMDeploy; vLLM and minivllm go by the picture itself.
    """

    bytewise: bool
    by_features: bool

    def least_tokens(self, items: Sequence[str | ImageSent]) -> int:
        """Tokens that certainly stand for ``items``."""
        total = 0
        for item in items:
            if isinstance(item, str):
                total += self._of_text(item)
            else:
                total += self._of_picture(item)
        return total

    def _of_text(self, text: str) -> int:
        if self.bytewise:
            return len(text.encode("utf-8", "replace"))
        once = re.sub(r"(.)\1+", r"\1", text)
        return len(once.encode("utf-8", "replace")) // LONGEST_TOKEN

    def _of_picture(self, picture: ImageSent) -> int:
        return picture.width * picture.height // FACTOR**2 if self._is_whole(picture) else 1

    def _is_whole(self, picture: ImageSent) -> bool:
        sides = (picture.width, picture.height)
        return (
            self.bytewise
            and min(sides) > 0
            and not any(side % FACTOR for side in sides)
            and sides[0] * sides[1] <= WHOLE_TOKENS * FACTOR**2
        )

    def may_be_one(self, one: ImageSent, other: ImageSent) -> bool:
        """Whether a sound cache may take the two pictures for one."""
        if one.sha256 == other.sha256 or not one.pixels or not other.pixels:
            return True
        if one.pixels == other.pixels:
            return True
        if not self.by_features:
            return False
        if self._is_whole(one) and self._is_whole(other):
            return False
        a, b = bytes.fromhex(one.coarse), bytes.fromhex(other.coarse)
        return all(abs(x - y) < COARSE_STEP for x, y in zip(a, b, strict=True))

    def _pictures_match(self, item: str | ImageSent, other: str | ImageSent) -> bool:
        if isinstance(item, str) or isinstance(other, str):
            return False
        return self.may_be_one(item, other)

    def most_shared(self, prompt: Prompt, earlier: Prompt) -> int | None:
        """Most tokens of ``prompt`` that a sound cache takes from ``earlier``; None: unknown."""
        assert prompt.tokens is not None
        if prompt.salt != earlier.salt:
            return 0
        if prompt.ids is not None or earlier.ids is not None:
            return self._of_ids(prompt, earlier)
        if prompt.odd or earlier.odd:
            return None
        limits = [self._limit(prompt, *pair, earlier) for pair in _pairs(prompt, earlier)]
        return max(0, *limits)

    def _of_ids(self, prompt: Prompt, earlier: Prompt) -> int | None:
        if prompt.ids is None or earlier.ids is None:
            return None
        same = common(prompt.ids, earlier.ids)
        if same < len(earlier.ids) or earlier.generated is not None:
            more = (earlier.generated or 0) if same == len(earlier.ids) else 0
            return same + more
        return None

    def _limit(
        self,
        prompt: Prompt,
        mine: Sequence[str | ImageSent],
        theirs: Sequence[str | ImageSent],
        earlier: Prompt,
    ) -> int:
        rest, ended = self._behind(mine, theirs, told=earlier.told)
        tokens = prompt.tokens or 0
        if ended:  # the answer that follows is in the cache as well
            if earlier.generated is None:
                return tokens
            return min(tokens, tokens - self.least_tokens(rest) + earlier.generated)
        return tokens - self.least_tokens(rest)

    def _behind(
        self, mine: Sequence[str | ImageSent], theirs: Sequence[str | ImageSent], *, told: bool
    ) -> tuple[Sequence[str | ImageSent], bool]:
        """What of ``mine`` lies behind the place where they part; whether ``theirs`` ends there."""
        for place, item in enumerate(mine):
            if place == len(theirs):
                return mine[place:], True
            other = theirs[place]
            if isinstance(item, str) and isinstance(other, str):
                same = common(item, other)
                last = place == len(theirs) - 1
                if same == len(other) and last:
                    if not told:  # the rest of it may be equal
                        return [], True
                    return [item[same:], *mine[place + 1 :]], True
                if same < len(item) or same < len(other):
                    return [item[same:], *mine[place + 1 :]], False
            elif not self._pictures_match(item, other):
                return mine[place:], False
        return [], len(mine) >= len(theirs)


def _pairs(
    one: Prompt, other: Prompt
) -> Iterator[tuple[Sequence[str | ImageSent], Sequence[str | ImageSent]]]:
    pictures = any(not isinstance(item, str) for item in (*one.orders[0], *other.orders[0]))
    pairs = list(zip(one.orders, other.orders, strict=True))
    yield from pairs if pictures else pairs[:1]


# ---------------------------------------------------------------------- prompts of a play


def prompt_of(sent: Sent, *, bytewise: bool, salted: bool) -> Prompt:
    """Of an operation.

    Args:
        bytewise: the tokenizer takes every byte as it is.
        salted: the engine knows ``cache_salt``.
    """
    record = sent.record
    messages = sent.op.messages or []
    pictures = list(record.images)
    odd = len(pictures) != len(sent.op.images)
    groups: list[list[str | ImageSent]] = []
    if isinstance(sent.op.prompt, str):
        odd = odd or bool(_MARKUP.search(sent.op.prompt))
        groups.append([_key(sent.op.prompt, bytewise=bytewise)])
    for message in messages:
        group, strange = _group(message, pictures, bytewise=bytewise)
        odd = odd or strange
        groups.append(group)
    ids = tuple(sent.op.prompt) if isinstance(sent.op.prompt, list) else None
    salt = [sent.parameter(name, "") for name in ("cache_salt", "extra_key")] if salted else ""
    return Prompt(
        sent.op.id,
        _orders(groups),
        record.prompt_tokens,
        _generated(record, sent.limit),
        salt=repr(salt) if salt and any(salt) else "",
        ids=ids,
        odd=odd or sent.parameter("truncate_prompt_tokens") is not None,
    )


def prompt_of_record(record: RequestRecord, *, bytewise: bool) -> Prompt:
    """Of another request of the harness, as far as its record tells: one message, and of its text
    the beginning."""
    text = _key(record.prompt_head, bytewise=bytewise)
    return Prompt(
        record.label,
        _orders([[*record.images, text]]),
        record.prompt_tokens,
        _generated(record, record.max_tokens),
        told=record.prompt_chars <= len(record.prompt_head),
        odd=bool(_MARKUP.search(record.prompt_head)),
    )


NOTHING = Prompt("", ((), (), ()), generated=0)
"""What may always be in a cache: what a template puts before everything."""


def _generated(record: RequestRecord, limit: int | None) -> int | None:
    told = record.completion_tokens if record.answered else None
    return limit if told is None else told


def _group(
    message: Message, pictures: list[ImageSent], *, bytewise: bool
) -> tuple[list[str | ImageSent], bool]:
    """Its text and pictures, the latter taken from ``pictures``; whether it has anything odd."""
    group: list[str | ImageSent] = []
    odd = False
    for part in message.parts():
        if part.text is not None:
            odd = odd or bool(_MARKUP.search(part.text))
            group.append(_key(part.text, bytewise=bytewise))
        elif part.image is not None and pictures:
            group.append(pictures.pop(0))
        else:
            odd = True
    return group, odd


def _orders(groups: list[list[str | ImageSent]]) -> tuple[tuple[str | ImageSent, ...], ...]:
    flat = [item for group in groups for item in group]
    by_message = [item for group in groups for item in _pictures_first(group)]
    return tuple(_merged(items) for items in (flat, by_message, _pictures_first(flat)))


def _pictures_first(items: list[str | ImageSent]) -> list[str | ImageSent]:
    return sorted(items, key=lambda item: isinstance(item, str))


def _merged(items: Sequence[str | ImageSent]) -> tuple[str | ImageSent, ...]:
    """Texts beside each other are one."""
    merged: list[str | ImageSent] = []
    for item in items:
        if isinstance(item, str) and merged and isinstance(merged[-1], str):
            merged[-1] += item
        elif item != "":
            merged.append(item)
    return tuple(merged)


def _key(text: str, *, bytewise: bool) -> str:
    """What of a text counts when two are compared."""
    plain = "".join(text.split())
    return plain if bytewise else unicodedata.normalize("NFKC", plain).casefold()
