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

_U = TypeVar("_U")

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
_AROUND: Final = 24
"""Tokens that a chat template puts around a conversation, and a third of it around a
message."""
_STEPS: Final = 60


class _OtherPrompts(Changes):
    """Changes prompts, texts and ids of tokens; all else stays."""

    def __init__(
        self,
        change_text: Callable[[str], str],
        change_ids: Callable[[list[int]], list[int]] = lambda ids: ids,
    ) -> None:
        self._change_text = change_text
        self._change_ids = change_ids

    def prompt(self, text: str) -> str:
        return self._change_text(text)

    def ids(self, ids: list[int]) -> list[int]:
        return self._change_ids(ids)


def _prompts(operation: Operation) -> tuple[list[str], list[list[int]]]:
    """Return texts of its prompt, in order, and prompts of token ids."""
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
        self.images: dict[str, int] = {}
        """Tokens of each picture."""
        for name in case.images:
            self.images[name] = _tokens(_size(name, case.images, contents))

    def ids(self, text: str) -> Sequence[int]:
        if text not in self._known:
            self._known[text] = array("q", self._vocabulary.encode(text))
        return self._known[text]

    def text(self, text: str) -> int:
        return len(self.ids(text))

    def prompt(self, operation: Operation) -> int:
        operation = opened(operation)
        texts, prompts_of_ids = _prompts(operation)
        total = _AROUND + _AROUND // 3 * len(operation.messages or [])
        total += sum(self.text(text) for text in texts)
        total += sum(self.images[name] for name in operation.images)
        total += sum(len(ids) for ids in prompts_of_ids)
        return total

    def whole(self, operation: Operation) -> int:
        """Count its prompt and the answer that it asks for."""
        operation = opened(operation)
        limits: list[int] = []
        for name in _ANSWER[:2]:
            value = operation.parameters.get(name)
            if type(value) is int:
                limits.append(value)
        return self.prompt(operation) + max(limits, default=1)


def scale(
    captured: Captured, max_model_len: int, *, model: Path | None = None
) -> Captured:
    """Shorten texts, answers and pictures by one factor, so that the longest prompt
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
    limit = _limit_of(case)
    refused = {op.id for op in case.operations if _too_long(op, lengths, limit)}
    answered = [op for op in case.operations if op.id not in refused]
    longest = max((lengths.whole(op) for op in answered), default=1)
    factor = min(1.0, max_model_len / longest)

    # Marks and tiles stay whole, and stretches are rounded up: a scaled case is longer
    # than the factor says, so the factor falls until all fit.
    units = _Units(case)
    for _ in range(_STEPS):
        scaled = _scaled(case, contents, units, factor)
        measured = Lengths(scaled.case, scaled.contents, vocabulary)
        kept = [op for op in scaled.case.operations if op.id not in refused]
        over = [op.id for op in kept if measured.whole(op) > max_model_len]
        if not over:
            break
        factor *= 0.9

    operations: list[Operation] = []
    for operation in scaled.case.operations:
        if operation.id in refused:
            operation = _lengthened(operation, measured, max_model_len)
        operations.append(operation)
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
    update = {"operations": operations, "origin": origin}
    return replace(scaled, case=scaled.case.model_copy(update=update))


def _limit_of(case: Case) -> int | None:
    """Return the longest context of the recorded server, as its first refusal that
    names it says."""
    for operation in case.operations:
        if operation.recorded is None:
            continue
        refusal = _LIMIT.search(operation.recorded.text)
        if refusal is not None:
            return int(refusal[1] or refusal[2])
    return None


def _too_long(operation: Operation, lengths: Lengths, limit: int | None) -> bool:
    recorded = operation.recorded
    if recorded is None or recorded.status not in (400, 413, 422):
        return False
    longer = limit is not None and lengths.whole(operation) > limit
    return longer or bool(_LENGTH.search(recorded.text))


def _lengthened(
    operation: Operation, lengths: Lengths, max_model_len: int
) -> Operation:
    """Lengthen its last text until it does not fit: what it shares with others
    stays."""
    missing = max_model_len + _AROUND * 4 - lengths.prompt(operation)
    if missing <= 0:
        return operation
    left = len(_prompts(operation)[0])

    def longer(text: str) -> str:
        nonlocal left
        left -= 1
        return text if left else text + " 0" * missing

    return rewritten(operation, _OtherPrompts(longer))


# ---------------------------------------------------------------------- shorter


class _Units:
    """The prompts of a case: characters, marks such as ``<|image_pad|>`` as one; or ids."""

    def __init__(self, case: Case) -> None:
        texts: set[str] = set()
        prompts_of_ids: set[tuple[int, ...]] = set()
        for operation in case.operations:
            prompts, of_ids = _prompts(operation)
            texts.update(prompts)
            prompts_of_ids.update(tuple(ids) for ids in of_ids)
        self._texts = sorted(tuple(_UNIT.findall(text)) for text in texts)
        self._ids = sorted(prompts_of_ids)
        self._texts_part = places(self._texts)
        self._ids_part = places(self._ids)

    def shorter(self, factor: float) -> _OtherPrompts:
        """Keep the first units between two places at which others part: what began alike
        still does, and what parted still parts with the same unit."""
        texts: dict[str, str] = {}
        for units, parted in zip(self._texts, self._texts_part, strict=True):
            texts["".join(units)] = "".join(_between(units, parted, factor, _letters))
        prompts: dict[tuple[int, ...], list[int]] = {}
        for ids, parted in zip(self._ids, self._ids_part, strict=True):
            prompts[ids] = _between(ids, parted, factor, _some)
        return _OtherPrompts(lambda text: texts[text], lambda ids: prompts[tuple(ids)])


def _between(
    units: Sequence[_U],
    parted: Sequence[int],
    factor: float,
    first: Callable[[Sequence[_U], float], list[_U]],
) -> list[_U]:
    """Return what ``first`` keeps of each stretch between two places."""
    kept: list[_U] = []
    begin = 0
    for end in parted:
        if end < len(units):
            kept += first(units[begin:end], factor)
            begin = end
    kept += first(units[begin:], factor)
    return kept


def _some(units: Sequence[_U], factor: float) -> list[_U]:
    return list(units[: math.ceil(len(units) * factor)])


def _letters(units: Sequence[str], factor: float) -> list[str]:
    """Keep all marks, and the first of the letters."""
    letters = sum(1 for unit in units if len(unit) == 1)
    left = math.ceil(letters * factor)
    kept = []
    for unit in units:
        is_mark = len(unit) > 1
        if not is_mark:
            left -= 1
        if is_mark or left >= 0:
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

    prompts = units.shorter(factor)
    pictures = _SmallerPictures(contents, kept, factor)
    operations = [_fewer(rewritten(op, prompts), factor) for op in case.operations]
    images = {name: pictures.image(image) for name, image in case.images.items()}
    update = {"operations": operations, "images": images}
    return Captured(case.model_copy(update=update), kept)


def _fewer(operation: Operation, factor: float) -> Operation:
    """Scale the tokens that it asks for, and those that its barriers count."""
    parameters: dict[str, Any] = dict(operation.parameters)
    for name in _ANSWER:
        value = parameters.get(name)
        if type(value) is int and value > 0:
            parameters[name] = max(1, round(value * factor))

    leave = operation.leave
    if leave and not LEAVE_S.match(leave):  # a barrier, and no number of seconds
        leave = _barrier(leave, factor)
    after = [_barrier(text, factor) for text in operation.after]
    update = {"parameters": parameters, "after": after, "leave": leave}
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
    """Return the tokens of a picture, as Qwen2-VL's patches make them; two more stand
    around them."""
    width, height = size
    if not width or not height:
        return 0
    return 2 + round(width / PATCH) * round(height / PATCH)


class _SmallerPictures:
    """Makes pictures of a smaller area; those that differ still do."""

    def __init__(
        self, contents: Mapping[str, bytes], kept: Contents, factor: float
    ) -> None:
        self._contents = contents
        self._kept = kept
        self._factor = factor
        self._made: dict[str, str] = {}
        """Digest of a picture's bytes: digest of the smaller one's."""

    def image(self, image: Image) -> Image:
        """Return the smaller picture. Tiles and colliding pictures stay: in another
        size they would be others."""
        if isinstance(image, Content):
            return self._smaller_content(image)
        if isinstance(image, Noise | Solid | Resized):
            return image.model_copy(update={"size": self._sides(image.size)})
        if isinstance(image, Near):
            pixels = max(1, round(image.pixels * self._factor))
            return image.model_copy(update={"pixels": pixels})
        return image

    def _smaller_content(self, image: Content) -> Content:
        if image.sha256 not in self._made:
            self._made[image.sha256] = self._resized(self._contents[image.sha256])
        digest = self._made[image.sha256]
        unchanged = digest == image.sha256
        media_type = image.media_type if unchanged else "image/png"
        return Content(sha256=digest, media_type=media_type)

    def _sides(self, size: tuple[int, int]) -> tuple[int, int]:
        width, height = size
        return self._side(width), self._side(height)

    def _side(self, pixels: int) -> int:
        """Scale one side, so that the area is scaled by the factor; no side becomes
        less than a patch, or longer than it was."""
        smaller = round(pixels * math.sqrt(self._factor))
        return min(pixels, max(PATCH, smaller))

    def _resized(self, data: bytes) -> str:
        """Return the digest of the smaller picture, which is kept."""
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
            # Two pictures became one by getting smaller: a pixel tells them apart.
            small.putpixel((0, 0), (number, 255 - number, number))
        return self._kept.add(buffer.getvalue())
