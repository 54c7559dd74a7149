"""A case whose lengths fit a model of a shorter context."""

from __future__ import annotations

import hashlib
import io
import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from mmrepro.traffic.capture.looks import look
from mmrepro.traffic.capture.messages import Captured, Contents
from mmrepro.traffic.capture.texts import (
    Changes,
    Gathered,
    Vocabulary,
    places,
    rewritten,
)
from mmrepro.traffic.case.bodies import opened
from mmrepro.traffic.case.model import (
    LEAVE_S,
    Barrier,
    Case,
    Content,
    Image,
    Near,
    Noise,
    Operation,
    Resized,
    Solid,
)

U = TypeVar("U")

_LIMIT = re.compile(
    r"maximum context length is (\d{1,9})|context length of (\d{1,9})", re.IGNORECASE
)
_LENGTH = re.compile(
    r"context length|too long|max_model_len|maximum.{0,40}length", re.IGNORECASE
)
_ANSWER: Final = ("max_tokens", "max_completion_tokens", "min_tokens")
_UNIT = re.compile(r"<\|\w{1,40}\|>|.", re.DOTALL)
PATCH: Final = 28
"""Side in pixels of what becomes about one token (Qwen2-VL)."""
AROUND: Final = 24
"""Tokens that a chat template puts around a conversation, and a third of it around a
message."""
_STEPS: Final = 60


class _Prompts(Changes):
    """Prompts in their place; all else stays."""

    def __init__(
        self,
        becomes: Callable[[str], str],
        become: Callable[[list[int]], list[int]] = lambda ids: ids,
    ) -> None:
        self._becomes, self._become = becomes, become

    def prompt(self, text: str) -> str:
        return self._becomes(text)

    def ids(self, ids: list[int]) -> list[int]:
        return self._become(ids)


def _prompts(operation: Operation) -> tuple[list[str], list[list[int]]]:
    """Texts of its prompt, in order, and prompts of token ids."""
    gathered = Gathered()
    rewritten(operation, gathered)
    return gathered.prompts, gathered.of_ids


class Lengths:
    """Counts tokens of requests, as a model's tokenizer and Qwen2-VL's patches make
    them."""

    def __init__(
        self, case: Case, contents: Mapping[str, bytes], vocabulary: Vocabulary
    ) -> None:
        self._vocabulary = vocabulary
        self._known: dict[str, Sequence[int]] = {}
        self.images = {n: _tokens(_size(n, case.images, contents)) for n in case.images}

    def ids(self, text: str) -> Sequence[int]:
        if text not in self._known:
            self._known[text] = array("q", self._vocabulary.encode(text))
        return self._known[text]

    def text(self, text: str) -> int:
        return len(self.ids(text))

    def prompt(self, operation: Operation) -> int:
        operation = opened(operation)
        total = AROUND + AROUND // 3 * len(operation.messages or [])
        texts, ids = _prompts(operation)
        total += sum(map(self.text, texts)) + sum(
            self.images[n] for n in operation.images
        )
        return total + sum(map(len, ids))

    def whole(self, operation: Operation) -> int:
        """With the answer that is asked for."""
        operation = opened(operation)
        asked = [operation.parameters.get(name) for name in _ANSWER[:2]]
        return self.prompt(operation) + max(
            (n for n in asked if type(n) is int), default=1
        )


def scale(
    captured: Captured, max_model_len: int, *, model: Path | None = None
) -> Captured:
    """Texts, answers and pictures shortened by one factor, so that the longest prompt
    that was answered fits ``max_model_len``; what was too long stays too long.

    Args:
        model: folder with the ``tokenizer.json`` whose tokens count, as of
            ``anonymise``.

    Raises:
        UsageError: there is no such tokenizer.
    """
    case, contents = captured.case, captured.contents
    vocabulary = Vocabulary(model, case.server.model)
    lengths = Lengths(case, contents, vocabulary)
    refusals = (
        _LIMIT.search(op.recorded.text) for op in case.operations if op.recorded
    )
    limit = next((int(one[1] or one[2]) for one in refusals if one), None)
    refused = {op.id for op in case.operations if _too_long(op, lengths, limit)}
    answered = [op for op in case.operations if op.id not in refused]
    longest = max(map(lengths.whole, answered), default=1)
    factor = min(1.0, max_model_len / longest)
    units = _Units(case)
    for _ in range(_STEPS):
        scaled = _scaled(case, contents, units, factor)
        measured = Lengths(scaled.case, scaled.contents, vocabulary)
        kept = [op for op in scaled.case.operations if op.id not in refused]
        over = [op.id for op in kept if measured.whole(op) > max_model_len]
        if not over:
            break
        factor *= 0.9
    operations = [
        _lengthened(op, measured, max_model_len) if op.id in refused else op
        for op in scaled.case.operations
    ]
    notes = list(case.origin.notes)
    if factor < 1:
        notes.append(
            "Lengths of texts and answers, and areas of pictures, are scaled by "
            f"{factor:.3g}, so that what was answered fits {max_model_len} tokens; "
            "what began alike still does."
        )
    if refused:
        notes.append(f"{len(refused)} requests that were too long are too long again.")
    if over:
        notes.append(
            f"{len(over)} requests could not be made to fit: {', '.join(over[:5])}."
        )
    origin = case.origin.model_copy(update={"notes": notes, "scaled": factor < 1})
    shown = scaled.case.model_copy(update={"operations": operations, "origin": origin})
    return replace(scaled, case=shown)


def _too_long(operation: Operation, lengths: Lengths, limit: int | None) -> bool:
    recorded = operation.recorded
    if recorded is None or recorded.status not in (400, 413, 422):
        return False
    longer = limit is not None and lengths.whole(operation) > limit
    return longer or bool(_LENGTH.search(recorded.text))


def _lengthened(
    operation: Operation, lengths: Lengths, max_model_len: int
) -> Operation:
    """Its last text goes on, until it does not fit: what it shares with others
    stays."""
    missing = max_model_len + AROUND * 4 - lengths.prompt(operation)
    if missing <= 0:
        return operation
    left = len(_prompts(operation)[0])

    def longer(text: str) -> str:
        nonlocal left
        left -= 1
        return text if left else text + " 0" * missing

    return rewritten(operation, _Prompts(longer))


# ---------------------------------------------------------------------- shorter


class _Units:
    """The prompts of a case: characters, marks such as ``<|image_pad|>`` as one; or ids."""

    def __init__(self, case: Case) -> None:
        texts: set[str] = set()
        prompts: set[tuple[int, ...]] = set()
        for operation in case.operations:
            some, ids = _prompts(operation)
            texts.update(some)
            prompts.update(map(tuple, ids))
        self._texts = sorted(tuple(_UNIT.findall(text)) for text in texts)
        self._prompts = sorted(prompts)
        self._parted = places(self._texts), places(self._prompts)

    def shorter(self, factor: float) -> _Prompts:
        """Between two places at which others part, the first of the units stay: what
        began alike still does, and what parted still parts with the same one."""
        texts = {
            "".join(units): "".join(_between(units, parted, factor, _letters))
            for units, parted in zip(self._texts, self._parted[0], strict=True)
        }
        prompts = {
            ids: _between(ids, parted, factor, _some)
            for ids, parted in zip(self._prompts, self._parted[1], strict=True)
        }
        return _Prompts(lambda text: texts[text], lambda ids: prompts[tuple(ids)])


def _between(
    units: Sequence[U],
    parted: Sequence[int],
    factor: float,
    first: Callable[[Sequence[U], float], list[U]],
) -> list[U]:
    ends = [*(place for place in parted if place < len(units)), len(units)]
    pairs = zip([0, *ends[:-1]], ends, strict=True)
    return [unit for begin, end in pairs for unit in first(units[begin:end], factor)]


def _some(units: Sequence[U], factor: float) -> list[U]:
    return list(units[: math.ceil(len(units) * factor)])


def _letters(units: Sequence[str], factor: float) -> list[str]:
    """Marks stay, all of them."""
    left = math.ceil(sum(len(u) == 1 for u in units) * factor)
    kept = []
    for unit in units:
        left -= len(unit) == 1
        if len(unit) > 1 or left >= 0:
            kept.append(unit)
    return kept


def _scaled(
    case: Case, contents: Mapping[str, bytes], units: _Units, factor: float
) -> Captured:
    kept = Contents()
    if factor >= 1:
        for name, data in contents.items():
            assert kept.add(data) == name
        return Captured(case, kept)
    changes = units.shorter(factor)
    smaller = _Smaller(contents, kept, factor)
    operations = [_fewer(rewritten(op, changes), factor) for op in case.operations]
    images = {name: smaller.image(image) for name, image in case.images.items()}
    return Captured(
        case.model_copy(update={"operations": operations, "images": images}), kept
    )


def _fewer(operation: Operation, factor: float) -> Operation:
    """Tokens that are asked for, and that barriers count."""
    parameters: dict[str, Any] = {
        name: max(1, round(value * factor))
        if name in _ANSWER and type(value) is int and value > 0
        else value
        for name, value in operation.parameters.items()
    }
    update = {
        "parameters": parameters,
        "after": [_barrier(text, factor) for text in operation.after],
        "leave": operation.leave
        if not operation.leave or LEAVE_S.match(operation.leave)
        else _barrier(operation.leave, factor),
    }
    return operation.model_copy(update=update)


def _barrier(text: str, factor: float) -> str:
    barrier = Barrier.parse(text)
    if barrier.event != "tokens":
        return text
    count = max(1, round(barrier.count * factor))
    return f"{barrier.op}.tokens>={count}" if barrier.op else f"tokens>={count}"


# ---------------------------------------------------------------------- pictures


def _size(
    name: str, images: Mapping[str, Image], contents: Mapping[str, bytes]
) -> tuple[int, int]:
    image: Any = images[name]
    if isinstance(image, Content):
        return look(contents[image.sha256]).size or (0, 0)
    if isinstance(image, Noise | Solid | Resized):
        return image.size
    if isinstance(image, Near):
        return _size(image.of, images, contents)
    return (getattr(image, "columns", 4) * PATCH, getattr(image, "rows", 4) * PATCH)


def _tokens(size: tuple[int, int]) -> int:
    return 2 + round(size[0] / PATCH) * round(size[1] / PATCH) if all(size) else 0


class _Smaller:
    """Pictures of a smaller area; those that differ still do."""

    def __init__(
        self, contents: Mapping[str, bytes], kept: Contents, factor: float
    ) -> None:
        self._contents, self._kept, self._factor = contents, kept, factor
        self._made: dict[str, str] = {}

    def image(self, image: Image) -> Image:
        """Tiles and colliding pictures stay: in another size they would be others."""
        if isinstance(image, Content):
            if image.sha256 not in self._made:
                self._made[image.sha256] = self._resized(self._contents[image.sha256])
            digest = self._made[image.sha256]
            told = "image/png" if digest != image.sha256 else image.media_type
            return Content(sha256=digest, media_type=told)
        if isinstance(image, Noise | Solid | Resized):
            return image.model_copy(update={"size": self._sides(image.size)})
        if isinstance(image, Near):
            pixels = max(1, round(image.pixels * self._factor))
            return image.model_copy(update={"pixels": pixels})
        return image

    def _sides(self, size: tuple[int, int]) -> tuple[int, int]:
        width, height = (
            min(n, max(PATCH, round(n * math.sqrt(self._factor)))) for n in size
        )
        return width, height

    def _resized(self, data: bytes) -> str:
        from PIL import Image as Pillow

        seen = look(data)
        if seen.size is None or seen.pixels is None:
            return self._kept.add(data)
        small = Pillow.fromarray(seen.pixels).resize(self._sides(seen.size))
        for number in range(256):
            buffer = io.BytesIO()
            small.save(buffer, "PNG")
            if hashlib.sha256(buffer.getvalue()).hexdigest() not in self._kept:
                break
            small.putpixel((0, 0), (number, 255 - number, number))  # two became one
        return self._kept.add(buffer.getvalue())
