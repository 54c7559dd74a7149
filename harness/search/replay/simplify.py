"""Smaller and simpler forms of a case: which operations look alike, their order, their
options."""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from mmrepro.engines.models import ScriptedAnswer, Scripts
from mmrepro.failure.documents.replay import Sighting
from mmrepro.search.oracle.scripted import chosen_by
from mmrepro.search.replay.store import Observation
from mmrepro.traffic.case import (
    Case,
    Collision,
    Content,
    Image,
    Message,
    Noise,
    Operation,
    Part,
    opened_body,
)

T = TypeVar("T")


def as_sent(case: Case, seen: Observation) -> Case:
    """``case`` with its requests in the order in which they were sent; without those
    that never were, and without what they wait for."""
    operations = {op.id: op for op in case.operations}
    sent = [operations[id].model_copy(update={"after": []}) for id in seen.sent]
    kept = case.keeping([op.id for op in sent])
    return kept.model_copy(update={"operations": sent})


def restricted(seen: Observation, case: Case) -> Observation:
    """Return what an attempt showed of the operations that ``case`` has."""
    ids = {op.id for op in case.operations}
    sightings: list[Sighting] = []
    for sighting in seen.sightings:
        left = [op for op in sighting.operations if op in ids]
        sightings.append(sighting.model_copy(update={"operations": left}))
    update: dict[str, object] = {
        "times": _of(ids, seen.times),
        "answers": _of(ids, seen.answers),
        "sizes": _of(ids, seen.sizes),
        "sent": [op for op in seen.sent if op in ids],
        "sightings": sightings,
    }
    return seen.model_copy(update=update)


def _of(ids: Collection[str], by_operation: Mapping[str, T]) -> dict[str, T]:
    return {op: value for op, value in by_operation.items() if op in ids}


class _SentSpan(NamedTuple):
    sent: float
    end: float
    place: int


def as_it_went(case: Case, seen: Observation) -> Case:
    """``case`` in which each operation also waits for those that had ended when it was
    sent.

    How many run at a time puts requests in an order that is gone with those between
    them: without a hundred requests in between, the last ones are sent beside the
    first. What overlapped in the play may do so still. What had no answer is taken to
    have ended with the play, and what was never sent to come after it, one by one."""
    spans = _spans(case, seen)
    by_end = sorted(spans, key=lambda span: span.end)
    ends = [span.end for span in by_end]
    latest = list(accumulate((span.sent for span in by_end), max))
    ids = [op.id for op in case.operations]
    operations: list[Operation] = []
    for span, op in zip(spans, case.operations, strict=True):
        after = list(op.after)
        before = bisect_right(ends, span.sent)
        if before:
            # Whoever had ended before another of them was sent is waited for by that
            # one already.
            first = bisect_right(ends, latest[before - 1])
            last = _sent_at(latest[before - 1], by_end)
            places = {waited.place for waited in (*by_end[first:before], last)}
            for place in sorted(places):
                barrier = f"{ids[place]}.end"
                # A case waits for what stands before it: its barriers make no circle.
                if place < span.place and barrier not in after:
                    after.append(barrier)

        operations.append(op.model_copy(update={"after": after}))

    return case.model_copy(update={"operations": operations})


def _sent_at(moment: float, spans: Iterable[_SentSpan]) -> _SentSpan:
    """The first of the spans that was sent then."""
    return next(span for span in spans if span.sent == moment)


def _spans(case: Case, seen: Observation) -> list[_SentSpan]:
    """Of each operation, in the case's order; of what had none, a made-up one after all
    others."""
    known = list(seen.times.values())
    close = max((end for _, end in known if end is not None), default=0.0)
    close = max(close, *(sent for sent, _ in known)) + 1 if known else 1.0
    spans: list[_SentSpan] = []
    later = close
    for place, op in enumerate(case.operations):
        if op.id in seen.times:
            sent, end = seen.times[op.id]
            spans.append(_SentSpan(sent, close if end is None else end, place))
        else:
            spans.append(_SentSpan(later, later + 1, place))
            later += 2

    return spans


# ----------------------------------------------------------- operations that look alike


class _Kind(NamedTuple):
    """What decides whether two operations are dropped together."""

    path: str
    answer: str
    images: str
    leave: bool

    def __str__(self) -> str:
        with_images = {"none": "without image", "new": "with images of their own"}
        shown = with_images.get(self.images, "with an image that others have, too")
        left = ", whose client goes away" if self.leave else ""
        return f"{self.path} {shown}, answered {self.answer}{left}"


def kinds(case: Case, seen: Observation) -> dict[str, _Kind]:
    """Return the kind of each operation, by what the attempt ``seen`` showed of it."""
    shared = _shared_images(case)
    by_operation: dict[str, _Kind] = {}
    for op in case.operations:
        answer = seen.answers.get(op.id, "")
        # A stuck request would have been answered.
        known = answer if answer[:1] in ("4", "5") else "200"
        images = "none"
        if op.images:
            images = "new" if shared.isdisjoint(op.images) else "shared"
        by_operation[op.id] = _Kind(op.path, known, images, bool(op.leave))

    return by_operation


def grouped(kinds: Mapping[str, _Kind], ids: Iterable[str]) -> dict[_Kind, list[str]]:
    """``ids`` by their kind, the largest group first."""
    groups: dict[_Kind, list[str]] = {}
    for op in ids:
        groups.setdefault(kinds[op], []).append(op)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def stand_ins(case: Case, seen: Observation) -> list[list[str]]:
    """Group operations of which one may replace the others: of one kind, with as many
    images of the same sizes that no other operation has, the same parameters and about
    as long a text."""
    shared, kind = _shared_images(case), kinds(case, seen)
    groups: dict[object, list[str]] = {}
    for number, op in enumerate(case.operations):
        looks = (kind[op.id], seen.sizes.get(op.id, ""), _looks(op))
        own = op.id in seen.sent and shared.isdisjoint(op.images)
        groups.setdefault(looks if own else number, []).append(op.id)

    return list(groups.values())


def _looks(op: Operation) -> tuple[object, ...]:
    """What two operations have in common of which one may replace the other."""
    letters = len(str(op.prompt or ""))
    for message in op.messages or []:
        letters += sum(len(part.text or "") for part in message.parts())
    parameters = sorted((name, repr(value)) for name, value in op.parameters.items())
    return (
        tuple(parameters),
        op.method,
        op.query,
        op.body,
        op.data,
        str(op.form),
        op.expect and str(op.expect),
        op.stream,
        op.leave,
        letters.bit_length(),
    )


def sharing(case: Case, ids: Iterable[str]) -> set[str]:
    """Those that have an image in common with one of ``ids``; these themselves as
    well."""
    groups = _families(case)
    chosen = set(ids)
    wanted: set[str] = set()
    for op in case.operations:
        if op.id in chosen:
            wanted.update(groups[name] for name in op.images)
    for op in case.operations:
        if not wanted.isdisjoint(groups[name] for name in op.images):
            chosen.add(op.id)
    return chosen


def _shared_images(case: Case) -> set[str]:
    """Images that are used more than once, under whatever name, or that others are made
    of."""
    groups = _families(case)
    uses: Counter[str] = Counter()
    for op in case.operations:
        uses.update(groups[name] for name in op.images)
    return {name for name, group in groups.items() if uses[group] > 1}


def _families(case: Case) -> dict[str, str]:
    """Each image's first relative: one with the same bytes, or that it is made of."""
    relatives: dict[str, str] = {}
    contents: dict[str, str] = {}
    for name, image in case.images.items():
        if isinstance(image, Content):
            relatives[name] = contents.setdefault(image.sha256, name)
        elif isinstance(image, Collision):
            relatives[name] = contents.setdefault(image.family, name)
        else:
            relatives[name] = relatives.get(getattr(image, "of", ""), name)

    return relatives


def abnormal(seen: Observation) -> list[str]:
    """Operations with another answer than 200, and none that is stuck."""
    return [op for op in seen.sent if seen.answers.get(op, "")[:1] in ("4", "5")]


# ------------------------------------------------------------------------------ simpler

_WORDS = 3
_KEPT = frozenset(
    {
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "prompt_logprobs",
        "n",
        "prompt",
        "input",
        "text",
        "input_ids",
        "token_ids",
        "input_embeds",
        "sampling_params",
        "query",
        "documents",
        "text_1",
        "text_2",
        "lora_name",
        "lora_path",
        "messages",
    }
)
"""Parameters that bound an answer: without them it would be a longer one, and no
simpler; and what is asked in other forms than completions: without it there is no
request."""


_DECIDING = _KEPT | {
    "temperature",
    "seed",
    "top_p",
    "top_k",
    "min_p",
    "use_beam_search",
    "ignore_eos",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "return_token_ids",
    "echo",
    "chat_template_kwargs",
}
"""Parameters that decide which answer comes, and in which form: two requests whose
answers are held against each other keep them, else two sampled answers are compared."""


@dataclass(frozen=True)
class Simplification:
    """One simplification. ``name``: what it takes away, where it takes one thing
    away."""

    what: str
    made: Callable[[Case], Case]
    name: str = ""


def changes(case: Case, seen: Observation) -> list[Simplification]:
    """Those that change ``case``, the ones that tell a reader the most first."""
    refused = {op for op, answer in seen.answers.items() if answer.startswith("4")}

    compared = _compared(case)

    def patient(op: Operation) -> dict[str, Any]:
        # How an answer comes is what such a request is compared in.
        return {} if op.id in compared else {"stream": False, "leave": ""}

    def bounding(op: Operation) -> dict[str, Any]:
        kept = _DECIDING if op.id in compared else _KEPT
        return {"parameters": {k: v for k, v in op.parameters.items() if k in kept}}

    def short(op: Operation) -> dict[str, Any]:
        return _shorter(op, refused)

    offered = (
        Simplification("only the scripts that are asked for", _asked_scripts),
        Simplification("scripts in tokens as long as words", _scripts_in_words),
        Simplification("one request after another", in_order),
        Simplification(
            "no streams, and no client that goes away",
            functools.partial(_each, change=patient),
        ),
        Simplification(
            "no parameters but those that bound the answer",
            functools.partial(_each, change=bounding),
        ),
        Simplification("short texts", functools.partial(_each, change=short)),
        Simplification(
            "noise of the same size in the place of the pictures",
            functools.partial(_noise, seen=seen),
        ),
    )
    return [change for change in offered if change.made(case) != case]


def _compared(case: Case) -> set[str]:
    """Operations whose answers the case holds against each other."""
    compared: set[str] = set()
    for op in case.operations:
        if op.expect is not None and op.expect.same_as is not None:
            compared |= {op.id, op.expect.same_as}
    return compared


def _asked_scripts(case: Case) -> Case:
    """Without the scripts that no request is answered with."""
    scripts = case.server.scripts
    if scripts is None:
        return case
    asked: set[str] = set()
    for op in case.operations:
        answer = scripts.chosen(chosen_by(op))
        if answer is None:
            return case  # it may be any of them
        asked.add(answer.name)
    kept = [answer for answer in scripts.script if answer.name in asked]
    return _saying(case, scripts, kept)


def _scripts_in_words(case: Case) -> Case:
    """The same texts, cut into tokens where words end: not inside a character, a tag
    or a call."""
    scripts = case.server.scripts
    if scripts is None:
        return case
    kept: list[ScriptedAnswer] = []
    for answer in scripts.script:
        text = answer.script(scripts.shared).text
        in_words = answer.model_copy(update={"text": text, "pieces": []})
        same = in_words.script(scripts.shared) == answer.script(scripts.shared)
        kept.append(answer if same else in_words)
    return _saying(case, scripts, kept)


def _saying(case: Case, scripts: Scripts, answers: list[ScriptedAnswer]) -> Case:
    if not answers:
        return case
    said = scripts.model_copy(update={"script": answers})
    server = case.server.model_copy(update={"scripts": said})
    return case.model_copy(update={"server": server})


def _patient(op: Operation) -> dict[str, Any]:
    return {"stream": False, "leave": ""}


def _bounding(op: Operation) -> dict[str, Any]:
    kept = {name: value for name, value in op.parameters.items() if name in _KEPT}
    return {"parameters": kept}


def all_at_once(case: Case, seen: Observation) -> Simplification | None:
    """All of :func:`changes` together; None: there are none."""
    single = changes(case, seen)
    if not single:
        return None

    def made(case: Case) -> Case:
        for change in single:
            case = change.made(case)
        return case

    return Simplification("; ".join(change.what for change in single), made)


def all_options_left_out(case: Case) -> Simplification | None:
    """None: there are not several."""
    if len(_options(case.server.args)) < 2:
        return None
    server = case.server.model_copy(update={"args": []})
    return Simplification(
        "without any option", lambda c: c.model_copy(update={"server": server})
    )


def options_left_out(case: Case) -> Iterator[Simplification]:
    """Offer the same server without one of its options, with the values that follow
    it."""
    for words in _options(case.server.args):
        name = " ".join(words)
        without = functools.partial(_without, words)
        yield Simplification(f"without the option {name}", without, name)


_BEGINS_OPTION = re.compile(r"--?[A-Za-z]|\{feature:")
"""A feature's name stands for options of its own; it is no value of the one before."""


def _options(args: list[str]) -> list[tuple[str, ...]]:
    groups: list[list[str]] = []
    for word in args:
        if _BEGINS_OPTION.match(word) or not groups:
            groups.append([])
        groups[-1].append(word)
    return [tuple(group) for group in groups]


def _without(words: tuple[str, ...], case: Case) -> Case:
    args: list[str] = []
    for group in _options(case.server.args):
        if group != words:
            args += group
    server = case.server.model_copy(update={"args": args})
    return case.model_copy(update={"server": server})


def in_order(case: Case) -> Case:
    """One request after another."""
    operations: list[Operation] = []
    for op in case.operations:
        after = [f"{operations[-1].id}.end"] if operations else []
        operations.append(op.model_copy(update={"after": after}))
    return case.model_copy(update={"operations": operations})


def _shorter(op: Operation, refused: set[str]) -> dict[str, Any]:
    """Of each message the first words; of a request that was refused, perhaps for its
    length, the text stays."""
    if op.id in refused or op.messages is None:
        return {}
    messages: list[Message] = []
    for message in op.messages:
        content = message.content
        if isinstance(content, str):
            content = _words(content)
        elif content is not None:
            content = [_short_part(part) for part in message.parts()]
        messages.append(message.model_copy(update={"content": content}))

    return {"messages": messages}


def _short_part(part: Part) -> Part:
    if part.text is None:
        return part
    return part.model_copy(update={"text": _words(part.text)})


def _words(text: str) -> str:
    words = text.split()
    if len(words) <= _WORDS:
        return text
    return " ".join(words[:_WORDS])


def _noise(case: Case, seen: Observation) -> Case:
    """Only where an attempt told the size; what is one picture stays one."""
    sizes: dict[str, tuple[int, int]] = {}
    for op in case.operations:
        observed = seen.sizes.get(op.id, "").split()
        if len(observed) != len(op.images):
            continue
        for name, text in zip(op.images, observed, strict=True):
            width, height = map(int, text.split("x"))
            if width and height:
                sizes[name] = (width, height)

    images: dict[str, Image] = dict(case.images)
    seeds: dict[str, int] = {}
    for name, image in case.images.items():
        if isinstance(image, Content) and name in sizes:
            seed = seeds.setdefault(image.sha256, len(seeds) + 1)
            images[name] = Noise(seed=seed, size=sizes[name])

    return case.model_copy(update={"images": images})


def _each(case: Case, change: Callable[[Operation], dict[str, Any]]) -> Case:
    operations: list[Operation] = []
    for op in case.operations:
        plain = opened_body(op)
        changed = plain
        if plain.apart:
            changed = plain.model_copy(update=change(plain))
        # An operation that does not change keeps the form in which it was recorded.
        operations.append(op if changed == plain else changed)
    return case.model_copy(update={"operations": operations})
