"""Simpler forms of a case: of its requests, and of its server's command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mmrepro.case.model import Case, Content, Image, Message, Noise, Operation, Part
from mmrepro.replay.seen import Seen

WORDS = 3
KEPT = frozenset({"max_tokens", "max_completion_tokens", "prompt_logprobs", "n"})
"""Parameters that bound an answer: without them it would be a longer one, and no simpler."""


@dataclass(frozen=True)
class Change:
    """One simplification. ``name``: what it takes away, where it takes one thing away."""

    what: str
    made: Callable[[Case], Case]
    name: str = ""


def changes(case: Case, seen: Seen) -> list[Change]:
    """Those that change ``case``, the ones that tell a reader the most first."""
    refused = {op for op, answer in seen.answers.items() if answer.startswith("4")}
    offered = (
        Change("one request after another", in_order),
        Change("no streams, and no client that goes away", _whole_answers),
        Change("no parameters but those that bound the answer", _few_parameters),
        Change("short texts", lambda c: _short(c, refused)),
        Change("noise of the same size in the place of the pictures", lambda c: _noise(c, seen)),
    )
    return [change for change in offered if change.made(case) != case]


def all_at_once(case: Case, seen: Seen) -> Change | None:
    """All of :func:`changes` together; None: there are none."""
    single = changes(case, seen)
    if not single:
        return None

    def made(case: Case) -> Case:
        for change in single:
            case = change.made(case)
        return case

    return Change("; ".join(change.what for change in single), made)


def all_options_left_out(case: Case) -> Change | None:
    """None: there are not several."""
    if len(_options(case.server.args)) < 2:
        return None
    server = case.server.model_copy(update={"args": []})
    return Change("without any option", lambda c: c.model_copy(update={"server": server}))


def options_left_out(case: Case) -> Iterator[Change]:
    """The same server without one of its options, with the values that follow it."""
    for words in _options(case.server.args):
        name = " ".join(words)
        yield Change(f"without the option {name}", _without(words), name)


def _options(args: list[str]) -> list[tuple[str, ...]]:
    groups: list[list[str]] = []
    for word in args:
        if word.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(word)
    return [tuple(group) for group in groups]


def _without(words: tuple[str, ...]) -> Callable[[Case], Case]:
    def made(case: Case) -> Case:
        left = [group for group in _options(case.server.args) if group != words]
        args = [word for group in left for word in group]
        return case.model_copy(update={"server": case.server.model_copy(update={"args": args})})

    return made


def in_order(case: Case) -> Case:
    """One request after another."""
    operations: list[Operation] = []
    for op in case.operations:
        after = [f"{operations[-1].id}.end"] if operations else []
        operations.append(op.model_copy(update={"after": after}))
    return case.model_copy(update={"operations": operations})


def _whole_answers(case: Case) -> Case:
    return _each(case, lambda op: op.model_copy(update={"stream": False, "leave": ""}))


def _few_parameters(case: Case) -> Case:
    def fewer(op: Operation) -> Operation:
        kept = {name: value for name, value in op.parameters.items() if name in KEPT}
        return op.model_copy(update={"parameters": kept})

    return _each(case, fewer)


def _short(case: Case, refused: set[str]) -> Case:
    """Of each message the first words; of a request that was refused, perhaps for its length, the
    text stays."""

    def shorter(op: Operation) -> Operation:
        if op.id in refused or op.messages is None:
            return op
        messages = [m.model_copy(update={"content": _cut(m)}) for m in op.messages]
        return op.model_copy(update={"messages": messages})

    return _each(case, shorter)


def _cut(message: Message) -> str | list[Part]:
    if isinstance(message.content, str):
        return _words(message.content)
    return [
        part if part.text is None else part.model_copy(update={"text": _words(part.text)})
        for part in message.content
    ]


def _words(text: str) -> str:
    words = text.split()
    return text if len(words) <= WORDS else " ".join(words[:WORDS])


def _noise(case: Case, seen: Seen) -> Case:
    """Only where a play told the size; what is one picture stays one."""
    sizes = _sizes(case, seen)
    images: dict[str, Image] = {}
    seeds: dict[str, int] = {}
    for name, image in case.images.items():
        size = sizes.get(name)
        if isinstance(image, Content) and size is not None:
            seed = seeds.setdefault(image.sha256, len(seeds) + 1)
            images[name] = Noise(seed=seed, size=size)
        else:
            images[name] = image
    return case.model_copy(update={"images": images})


def _sizes(case: Case, seen: Seen) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for op in case.operations:
        told = seen.sizes.get(op.id, "").split()
        if len(told) != len(op.images):
            continue
        for name, text in zip(op.images, told, strict=True):
            width, height = (int(side) for side in text.split("x"))
            if width and height:
                found[name] = (width, height)
    return found


def _each(case: Case, change: Callable[[Operation], Operation]) -> Case:
    return case.model_copy(update={"operations": [change(op) for op in case.operations]})
