"""A case without its words and pictures, and the same for an engine's caches."""

from __future__ import annotations

import base64
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from mmrepro.traffic.capture.looks import Looks
from mmrepro.traffic.capture.messages import Captured, Contents, canonical
from mmrepro.traffic.capture.texts import (
    Changes,
    Gathered,
    Vocabulary,
    branches,
    rewritten,
)
from mmrepro.traffic.case.model import Operation, Recorded

_WORDS = re.compile(r"[^\W\d_]{4,}")
_LIMIT = re.compile(r"maximum context length is (\d{1,9})", re.IGNORECASE)
_BASE64: Final = string.ascii_letters + string.digits + "+/"
_DATA_URL: Final = re.compile(
    r"data:[a-z]{1,20}/[a-z0-9.+-]{1,40}(?=[;,])", re.IGNORECASE
)
T = TypeVar("T")


class _Changed(Changes):
    """Puts something else in the place of each."""

    def __init__(
        self, gathered: Gathered, made: MadeUp, looks: Looks, seed: int
    ) -> None:
        self.dropped: Counter[str] = Counter()
        self._made, self._looks = made, looks
        self._chance = random.Random(f"names {seed}")  # noqa: S311
        self._names: dict[str, str] = {}
        self._payloads: dict[str, str] = {}
        for name in sorted(set(gathered.names)):
            self._names[name] = self._new_name(len(name))

    def prompt(self, text: str) -> str:
        return self._made.text(text)

    def text(self, text: str) -> str:
        return self._made.text(text)

    def name(self, name: str) -> str:
        return self._names[name]

    def ids(self, ids: list[int]) -> list[int]:
        return self._made.ids(ids)

    def code(self, text: str) -> bool:
        self.dropped["a pattern, grammar or template"] += 1
        return False

    def data(self, payload: str) -> str:
        if payload not in self._payloads:
            self._payloads[payload] = self._new_data(payload)
        return self._payloads[payload]

    def _new_name(self, length: int) -> str:
        """Of the same length, if there is room; letters never stand side by side."""
        taken = set(self._names.values())
        while True:
            for _ in range(20):
                name = "n" + "".join(
                    self._chance.choices(string.digits, k=max(0, length - 1))
                )
                if name not in taken:
                    return name
            length += 1

    def _new_data(self, payload: str) -> str:
        head, comma, body = payload.rpartition(",")
        if comma and (kind := _DATA_URL.match(head)):
            encoded = ";base64" if head.lower().endswith(";base64") else ""
            head = kind[0] + encoded  # without the name of a file
        data = canonical(body)
        if data:
            return head + comma + base64.b64encode(self._looks.data(data)).decode()
        mixed = "".join(
            self._chance.choice(_BASE64) if c in _BASE64 else c for c in body
        )
        return head + comma + mixed


def anonymise(captured: Captured, seed: int = 0, model: Path | None = None) -> Captured:
    """Every text replaced by random text of the same token length and the same sharing
    of prefixes, every picture by noise of the same size and identity.

    Args:
        model: folder with the ``tokenizer.json`` whose tokens count. None: the tiny
            models', of about one token a byte.

    Raises:
        UsageError: there is no such tokenizer.
    """
    case = captured.case
    gathered = Gathered()
    for operation in case.operations:
        rewritten(operation, gathered)
    texts = {*gathered.prompts, *gathered.texts}
    avoid = {
        w.lower() for text in (*texts, *gathered.names) for w in _WORDS.findall(text)
    }
    vocabulary = Vocabulary(model, case.server.model, avoid)
    made = MadeUp(texts, gathered.of_ids, vocabulary, seed)
    kept = Contents()
    looks = Looks(case, captured.contents, kept, seed)
    changed = _Changed(gathered, made, looks, seed)
    operations = [_shown_less(rewritten(op, changed)) for op in case.operations]
    notes = list(_notes(made, looks, changed))
    origin = case.origin.model_copy(
        update={"anonymised": True, "file": "", "notes": [*case.origin.notes, *notes]}
    )
    anonymous = case.model_copy(
        update={
            "operations": operations,
            "images": looks.images,
            "origin": origin,
            "title": "",
        }
    )
    return Captured(anonymous, kept)


def _shown_less(operation: Operation) -> Operation:
    """Without the answer's text; what a refusal says of the longest prompt stays. Nor
    is anything expected of the words of an answer."""
    if operation.expect is not None:
        words = {"text": None, "not_text": None, "json_schema": None}
        expect = operation.expect.model_copy(update=words)
        operation = operation.model_copy(update={"expect": expect})
    recorded = operation.recorded
    if recorded is None or not recorded.text:
        return operation
    limit = _LIMIT.search(recorded.text)
    text = f"maximum context length is {limit[1]} tokens" if limit else ""
    less: Recorded = recorded.model_copy(update={"text": text})
    return operation.model_copy(update={"recorded": less})


def _notes(made: MadeUp, looks: Looks, changed: _Changed) -> Iterator[str]:
    yield (
        "Texts are random, with as many tokens and beginning alike as long as the "
        "recorded ones; tools, files, unknown fields of forms and parts of paths have "
        "other names."
    )
    if looks.replaced:
        yield (
            f"{looks.replaced} pictures are noise of the same sizes. Pictures that an "
            "engine takes for one by a short digest of their pixels (SGLang's pad "
            "value) no longer are such a pair."
        )
    if looks.unread:
        yield (
            f"{looks.unread} sounds, films or files are random bytes of the same "
            "lengths, which no decoder reads: only pictures, WAV and MP3 are made anew."
        )
    for what, count in changed.dropped.items():
        yield f"{count} times {what} was left away."
    if made.uneven:
        yield (
            f"{made.uneven} texts have another number of tokens than the recorded ones."
        )
    if made.alike:
        yield f"{made.alike} texts begin alike longer than the recorded ones did."


# ------------------------------------------------------------------ random text


class MadeUp:
    """Stand-ins of ``texts`` and of ``prompts`` of token ids, all made at once.

    Two texts that begin with the same n tokens have stand-ins that begin with the same
    n tokens, and differ in the one after them as the texts do. Special tokens stay."""

    def __init__(
        self,
        texts: Iterable[str],
        prompts: Iterable[Sequence[int]],
        vocabulary: Vocabulary,
        seed: int,
    ) -> None:
        self.alike = 0
        """Texts that begin alike longer than they did: no other piece was left."""
        self.uneven = 0
        """Texts whose stand-in has another number of tokens."""
        self._vocabulary = vocabulary
        self._chance = random.Random(f"made up {seed}")  # noqa: S311 - no secret
        self._ordinary = [
            i for i in range(vocabulary.size) if i not in vocabulary.special
        ]
        self._texts: dict[str, str] = {"": ""}
        self._prompts: dict[tuple[int, ...], list[int]] = {(): []}
        self._of_texts(set(texts) - {""})
        self._of_prompts({tuple(prompt) for prompt in prompts} - {()})

    def text(self, text: str) -> str:
        return self._texts[text]

    def ids(self, ids: Sequence[int]) -> list[int]:
        return self._prompts[tuple(ids)]

    def _of_texts(self, texts: set[str]) -> None:
        encoded: dict[tuple[int, ...], list[str]] = {}
        for text in sorted(texts):
            encoded.setdefault(tuple(self._vocabulary.encode(text)), []).append(text)
        for ids, pieces in self._branched(
            sorted(encoded), self._pieces, self._other_piece
        ):
            made = self._vocabulary.text(pieces)
            self.uneven += len(self._vocabulary.encode(made)) != len(ids)
            self._texts |= dict.fromkeys(encoded[tuple(ids)], made)

    def _of_prompts(self, prompts: set[tuple[int, ...]]) -> None:
        """Ids that the vocabulary lacks become others that it lacks."""
        for ids, made in self._branched(sorted(prompts), self._ids, self._other_id):
            self._prompts[tuple(ids)] = made

    def _branched(
        self,
        ordered: Sequence[tuple[int, ...]],
        units: Callable[[Sequence[int]], list[T]],
        other: Callable[[int, T, set[T]], T],
    ) -> Iterator[tuple[Sequence[int], list[T]]]:
        """Each of the sorted prompts with its stand-in, made of ``units``; where it
        parts from those that begin alike, ``other`` gives what none of them has in that
        place."""
        before: list[T] = []
        used: dict[
            int, set[T]
        ] = {}  # by depth, what stands there behind the same beginning
        for ids, shared in branches(ordered):
            for depth in [d for d in used if d > shared]:
                del used[depth]
            made = [*before[:shared], *units(ids[shared:])]
            if shared < len(ids):
                taken = used.setdefault(shared, set())
                taken.update(before[shared : shared + 1])
                made[shared] = other(ids[shared], made[shared], taken)
                taken.add(made[shared])
            yield ids, made
            before = made

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        pieces = self._chance.choices(self._vocabulary.pieces, k=len(ids))
        special = self._vocabulary.special
        return [
            special.get(real, piece) for real, piece in zip(ids, pieces, strict=True)
        ]

    def _other_piece(self, real: int, made: str, taken: set[str]) -> str:
        if real in self._vocabulary.special:
            return made
        other = self._vocabulary.other(taken, self._chance)
        self.alike += other is None
        return other or made

    def _ids(self, ids: Sequence[int]) -> list[int]:
        size, made = self._vocabulary.size, []
        for real in ids:
            if real in self._vocabulary.special:
                made.append(real)
            elif 0 <= real < size:
                made.append(self._chance.choice(self._ordinary))
            else:
                made.append(size + self._chance.randrange(1 << 24))
        return made

    def _other_id(self, real: int, made: int, taken: set[int]) -> int:
        if made not in taken or made in self._vocabulary.special:
            return made
        if made >= self._vocabulary.size:
            return max(taken) + 1
        left = [i for i in self._ordinary if i not in taken]
        self.alike += not left
        return self._chance.choice(left) if left else made
