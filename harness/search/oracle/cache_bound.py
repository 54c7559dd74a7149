"""No prompt takes more from the prefix cache than an earlier prompt shares with it.

A server that reports how many tokens of a prompt came from its cache can be held to it
without a second server: the most that a sound cache can give is the longest prefix that
the prompt shares, in text, in its pictures and under its salt, with any one that was
sent before it was answered, and with that one's answer. Blocks and pages only make it
less. Where the bound cannot be found, nothing is said.

A prompt is what its messages say, in order: text and pictures. What a template puts
around them is not known, and need not be: an upper bound of the shared tokens is all of
the prompt's tokens, as the server counted them, less those that certainly lie behind
the place where the two part.

Whatever could make two prompts more alike than they look counts as alike. White space
is left out (templates trim and join), roles and the borders of messages too (the tokens
between them may be equal or not), and the order is tried as it is, with each message's
pictures first, and with all pictures first (engines do all three)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mmrepro.base.records import FindingClass
from mmrepro.base.units import count
from mmrepro.engines import Engine, has_option
from mmrepro.engines.features import paired
from mmrepro.engines.models import FACTOR, TINY
from mmrepro.engines.promises import promises_of
from mmrepro.failure.documents.replay import Expectation, Sighting
from mmrepro.failure.signature.answers import grade
from mmrepro.search.oracle.adapters import adapter_of
from mmrepro.search.oracle.judged import OracleReport, Sent, sent_of, sighting
from mmrepro.search.oracle.loud import INVALID
from mmrepro.search.oracle.reference import CHANGES
from mmrepro.traffic.capture import common_prefix
from mmrepro.traffic.case import Case, Message, Played, PlayState
from mmrepro.traffic.evidence import ImageSent, RequestRecord
from packaging.version import Version

_LONGEST_TOKEN = 64
"""Bytes: no vocabulary has longer tokens but for runs of one character, which count
once."""
_WHOLE_TOKENS = 64
"""Pictures of up to so many tokens, with sides of whole tokens, no tiny model's
processor resizes. """
_COARSE_STEP = 4
"""Levels of 256: mean colours of a part of a picture that differ by so much differ
after any resizing as well."""
_Item: TypeAlias = str | ImageSent
_MARKUP = re.compile(
    r"<\|[^|>]{1,40}\|>|<t\d+>|</?s>|\[/?INST\]|</?think>|<image>|<(?:start|end)_of_"
)
"""What a tokenizer takes for more than its characters, or a template cuts out."""


@dataclass(frozen=True)
class _Prompt:
    """What was sent before an answer.

    Attributes:
        name: the operation's id, or the label of another request.
        orders: its text and pictures in each order that an engine may put them.
        tokens: as the server counted them.
        generated: most tokens of its answer; None: not known.
        salt: sets its entries of the prefix cache apart.
        told: False: only the beginning of its text is known.
        odd: it holds markup, or parts of unknown form: what it shares cannot be told.
        began: when it was sent, monotonic seconds.
    """

    name: str
    orders: tuple[tuple[_Item, ...], ...]
    tokens: int | None = None
    generated: int | None = None
    salt: str = ""
    told: bool = True
    ids: tuple[int, ...] | None = None
    odd: bool = False
    began: float = 0.0


@dataclass(frozen=True)
class _Rules:
    """How tokens and pictures compare on a server.

    Attributes:
        bytewise: a byte of text is a token, as for tiny models.
        by_features: pictures that are equal after the processor's resizing are one to
            the cache, as for SGLang and LMDeploy; vLLM and minivllm go by the picture
            itself.
    """

    bytewise: bool
    by_features: bool

    def least_tokens(self, items: Sequence[_Item]) -> int:
        """Tokens that certainly stand for ``items``."""
        total = 0
        for item in items:
            if not isinstance(item, str):
                total += (
                    item.width * item.height // FACTOR**2 if self._is_whole(item) else 1
                )
            elif self.bytewise:
                total += len(item.encode("utf-8", "replace"))
            else:
                once = re.sub(r"(.)\1+", r"\1", item)
                total += len(once.encode("utf-8", "replace")) // _LONGEST_TOKEN

        return total

    def _is_whole(self, picture: ImageSent) -> bool:
        sides = (picture.width, picture.height)
        return (
            self.bytewise
            and min(sides) > 0
            and not any(side % FACTOR for side in sides)
            and sides[0] * sides[1] <= _WHOLE_TOKENS * FACTOR**2
        )

    def may_be_one(self, one: ImageSent, other: ImageSent) -> bool:
        """Whether a sound cache may take the two pictures for one."""
        if one.sha256 == other.sha256 or not one.pixels or not other.pixels:
            return True
        if one.pixels == other.pixels or not self.by_features:
            return one.pixels == other.pixels
        if self._is_whole(one) and self._is_whole(other):
            return False
        a, b = bytes.fromhex(one.coarse), bytes.fromhex(other.coarse)
        return all(abs(x - y) < _COARSE_STEP for x, y in zip(a, b, strict=True))

    def most_shared(self, prompt: _Prompt, earlier: _Prompt) -> int | None:
        """Most tokens of ``prompt`` that a sound cache takes from ``earlier``; None:
        unknown."""
        assert prompt.tokens is not None
        if prompt.salt != earlier.salt:
            return 0
        if prompt.ids is not None or earlier.ids is not None:
            return self._of_ids(prompt, earlier)
        if prompt.odd or earlier.odd:
            return None
        pairs = list(zip(prompt.orders, earlier.orders, strict=True))
        if all(
            isinstance(item, str) for item in (*prompt.orders[0], *earlier.orders[0])
        ):
            pairs = pairs[:1]  # without pictures the orders are one

        return max(
            0, *(self._limit(prompt, mine, theirs, earlier) for mine, theirs in pairs)
        )

    def _of_ids(self, prompt: _Prompt, earlier: _Prompt) -> int | None:
        if prompt.ids is None or earlier.ids is None:
            return None
        same = common_prefix(prompt.ids, earlier.ids)
        if same < len(earlier.ids):
            return same
        return None if earlier.generated is None else same + earlier.generated

    def _limit(
        self,
        prompt: _Prompt,
        mine: Sequence[_Item],
        theirs: Sequence[_Item],
        earlier: _Prompt,
    ) -> int:
        rest, ended = self._behind(mine, theirs, told=earlier.told)
        tokens = prompt.tokens or 0
        if ended and earlier.generated is None:
            return tokens
        # Its answer is in the cache as well.
        more = (earlier.generated or 0) if ended else 0
        return min(tokens, tokens - self.least_tokens(rest) + more)

    def _behind(
        self, mine: Sequence[_Item], theirs: Sequence[_Item], *, told: bool
    ) -> tuple[Sequence[_Item], bool]:
        """What of ``mine`` lies behind the place where they part; whether ``theirs``
        ends there."""
        for place, item in enumerate(mine):
            if place == len(theirs):
                return mine[place:], True
            other = theirs[place]
            if isinstance(item, str) and isinstance(other, str):
                same = common_prefix(item, other)
                last = place == len(theirs) - 1
                if same == len(other) and last:
                    if not told:  # the rest of it may be equal
                        return [], True
                    return [item[same:], *mine[place + 1 :]], True
                if same < len(item) or same < len(other):
                    return [item[same:], *mine[place + 1 :]], False
            elif (
                isinstance(item, str)
                or isinstance(other, str)
                or not self.may_be_one(item, other)
            ):
                return mine[place:], False

        return [], len(mine) >= len(theirs)


# -------------------------------------------------------------------- prompts of a play


def _prompt_of(
    sent: Sent, *, bytewise: bool, salted: bool, adapted: bool = False
) -> _Prompt:
    """Of an operation.

    Args:
        bytewise: the tokenizer takes every byte as it is.
        salted: the engine knows ``cache_salt``.
        adapted: the server has adapters, and the model that a request names may be one.
    """
    record, prompt = sent.record, sent.op.prompt
    pictures = list(record.images)
    odd = len(pictures) != len(sent.op.images)
    groups: list[list[_Item]] = []
    if isinstance(prompt, str):
        odd = odd or bool(_MARKUP.search(prompt))
        groups.append([_key(prompt, bytewise=bytewise)])
    for message in sent.op.messages or []:
        group, strange = _group(message, pictures, bytewise=bytewise)
        odd = odd or strange
        groups.append(group)

    salt = (
        [sent.parameter(name, "") for name in ("cache_salt", "extra_key")]
        if salted
        else []
    )
    # What an adapter computed is its own.
    salt += [adapter_of(sent.op)] if adapted else []
    return _Prompt(
        sent.op.id,
        _orders(groups),
        record.prompt_tokens,
        _generated(record, sent.limit),
        salt=repr(salt) if any(salt) else "",
        ids=tuple(prompt) if isinstance(prompt, list) else None,
        odd=odd
        or sent.parameter("truncate_prompt_tokens") is not None
        or (sent.op.prompt is None and not groups),
        began=sent.begin,
    )


def _prompt_of_record(record: RequestRecord, *, bytewise: bool) -> _Prompt:
    """Of another request of the harness, as far as its record tells: one message, and
    of its text the beginning."""
    text = _key(record.prompt_head, bytewise=bytewise)
    return _Prompt(
        record.label,
        _orders([[*record.images, text]]),
        record.prompt_tokens,
        _generated(record, record.max_tokens),
        told=record.prompt_chars <= len(record.prompt_head),
        odd=bool(_MARKUP.search(record.prompt_head)),
        began=record.sent.mono,
    )


_NOTHING = _Prompt("", ((), (), ()), generated=0)
"""What may always be in a cache: what a template puts before everything."""


def _generated(record: RequestRecord, limit: int | None) -> int | None:
    tokens = record.completion_tokens if record.answered else None
    return limit if tokens is None else tokens


def _group(
    message: Message, pictures: list[ImageSent], *, bytewise: bool
) -> tuple[list[_Item], bool]:
    """Its text and pictures, the latter taken from ``pictures``; whether it has
    anything odd."""
    group: list[_Item] = []
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


def _orders(groups: list[list[_Item]]) -> tuple[tuple[_Item, ...], ...]:
    flat = [item for group in groups for item in group]
    by_message = [item for group in groups for item in _pictures_first(group)]
    return tuple(_merged(items) for items in (flat, by_message, _pictures_first(flat)))


def _pictures_first(items: list[_Item]) -> list[_Item]:
    return sorted(items, key=lambda item: isinstance(item, str))


def _merged(items: Sequence[_Item]) -> tuple[_Item, ...]:
    """Texts beside each other are one."""
    merged: list[_Item] = []
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


# ---------------------------------------------------------------------------- the bound


_PROMPTLESS = CHANGES | {
    "/tokenize",
    "/detokenize",
    "/reset_prefix_cache",
    "/flush_cache",
}
"""Paths of requests that put no prompt into a cache; of what is no completion nothing
is known."""


def cache_bound(case: Case, played: Played, engine: Engine) -> OracleReport:
    """Whether any operation took more from the cache than there can have been for
    it."""
    reported = [
        request
        for request in sent_of(case, played)
        if request.generates
        and request.n == 1
        and request.record.answered
        and None not in (request.record.cached_tokens, request.record.prompt_tokens)
    ]
    if not reported:
        if not any(
            request.generates and request.record.answered
            for request in sent_of(case, played)
        ):
            return OracleReport()
        promised = promises_of(case.server.engine)
        option = promised.cached_option
        given = promised.cached_option_given
        in_force = given or has_option(case.server.args, option)
        how = (
            f" ({case.server.engine} does with {option})"
            if option and not in_force
            else ""
        )
        why = (
            f"No answer tells how many tokens came from the cache{how}: its bound was "
            "not judged."
        )
        return OracleReport(unseen=[why])

    if played.state is not PlayState.ENDED:
        return OracleReport(
            unseen=["The play did not end: the cache bound was not judged."]
        )
    if paired(case.server.args):
        return OracleReport(
            unseen=[
                "A decode server has a prompt's tokens from its prefill server: the "
                "cache bound was not judged."
            ]
        )

    if _preempted(played, engine):
        return OracleReport(
            unseen=[
                "Requests were preempted, and find their own tokens in the cache when "
                "they come again: the cache bound was not judged."
            ]
        )

    rules = _Rules(
        bytewise=case.server.model in TINY and case.server.scripts is None,
        by_features=not engine.promises.by_picture,
    )
    since = engine.promises.salted_since
    salted = bool(since) and Version(case.server.release) >= Version(since)
    earlier = _prompts(case, played, rules, salted=salted)
    sightings, unknown = [], 0
    for request in reported:
        found, known = _judged(request, earlier, rules)
        sightings += [found] if found else []
        unknown += not known

    unseen = [
        f"For {count(unknown, 'prompt')}, prefix sharing could not be determined."
    ]
    return OracleReport(
        sightings=_by_bucket(sightings), unseen=unseen if unknown else []
    )


def _preempted(played: Played, engine: Engine) -> bool:
    """Whether a request may have been; where the engine counts that, and nothing tells,
    it may."""
    counter = engine.promises.preemptions
    if not counter:
        return False
    if played.before is None or played.after is None:
        return True
    before, after = (
        reading.metrics.get(counter) for reading in (played.before, played.after)
    )
    return before is None or after is None or after > before


def _prompts(
    case: Case, played: Played, rules: _Rules, *, salted: bool
) -> list[_Prompt]:
    """All that was sent to the server, by the case and by the harness, but for what was
    refused for its length before it ran: such a prompt is in no cache."""
    sent = sent_of(case, played)
    names = {request.op.id for request in sent}
    adapted = "--enable-lora" in case.server.args
    ours = [
        _prompt_of(request, bytewise=rules.bytewise, salted=salted, adapted=adapted)
        for request in sent
        if request.op.path not in _PROMPTLESS
        and request.op.method == "POST"
        and not (
            request.record.status in INVALID and grade(request.record).kind == "refusal"
        )
    ]
    others = [
        _prompt_of_record(record, bytewise=rules.bytewise)
        for record in played.evidence.requests
        if record.label not in names and record.prompt_chars
    ]
    return [*ours, *others]


def _judged(
    one: Sent, earlier: Sequence[_Prompt], rules: _Rules
) -> tuple[Sighting | None, bool]:
    """What is wrong with an answer, and whether it could be judged."""
    record = one.record
    mine = next(prompt for prompt in earlier if prompt.name == one.op.id)
    cached, tokens = record.cached_tokens or 0, record.prompt_tokens or 0
    if cached > tokens:
        return _sighting(one, "whole", tokens, f"its prompt has {tokens}"), True
    if not cached:
        return None, True
    best, whose = rules.most_shared(mine, _NOTHING), ""
    if best is None:
        return None, False
    for other in earlier:
        if other is mine or other.began >= one.end:
            continue
        shared = rules.most_shared(mine, other)
        if shared is None:
            return None, False
        if shared > best:
            best, whose = shared, other.name
        if best >= cached:
            return None, True

    with_whom = (
        f"{whose} shares" if whose else "what a template puts before a prompt has"
    )
    pictures = any(not isinstance(item, str) for item in mine.orders[0])
    kind = "salt" if mine.salt else "picture" if pictures else "text"
    return _sighting(one, kind, best, f"{with_whom} at most {best} with it"), True


def _sighting(one: Sent, kind: str, most: int, bound: str) -> Sighting:
    record = one.record
    shown = sighting(
        FindingClass.CACHE_BOUND,
        kind,
        f"{one.op.id}: {record.cached_tokens} of {record.prompt_tokens} prompt tokens "
        f"came from the prefix cache; {bound}.",
        "No more tokens come from the cache than an earlier prompt shares.",
        by=[one.op.id],
    )
    shown.expectations = [Expectation(operation=one.op.id, cached_at_most=most)]
    return shown


def _by_bucket(sightings: Sequence[Sighting]) -> list[Sighting]:
    """One for each bucket, with all operations; the first one's words."""
    merged: dict[str, Sighting] = {}
    for one in sightings:
        if one.bucket in merged:
            merged[one.bucket].operations += one.operations
            merged[one.bucket].expectations += one.expectations
        else:
            merged[one.bucket] = one.model_copy(deep=True)
    return list(merged.values())
