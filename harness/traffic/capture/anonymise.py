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
from mmrepro.traffic.case.model import Case, Operation, Recorded

_WORDS = re.compile(r"[^\W\d_]{4,}")
_LIMIT = re.compile(r"maximum context length is (\d{1,9})", re.IGNORECASE)
_BASE64: Final = string.ascii_letters + string.digits + "+/"
_DATA_URL: Final = re.compile(
    r"data:[a-z]{1,20}/[a-z0-9.+-]{1,40}(?=[;,])", re.IGNORECASE
)
_T = TypeVar("_T")


class _Anonymised(Changes):
    """Puts something made up in the place of each text, name and content."""

    def __init__(
        self, gathered: Gathered, made: MadeUp, looks: Looks, seed: int, said: str
    ) -> None:
        """``said``: what the model's scripts say, which goes out as it is written."""
        self._said = said
        self.dropped: Counter[str] = Counter()
        self._made = made
        self._looks = looks
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
        # A tool that a script calls must be there under its name.
        return name if name in self._said else self._names[name]

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
        """Make up a name of the same length, if there is room; letters never stand side
        by side."""
        taken = set(self._names.values())
        while True:
            for _ in range(20):
                digits = self._chance.choices(string.digits, k=max(0, length - 1))
                name = "n" + "".join(digits)
                if name not in taken:
                    return name
            length += 1

    def _new_data(self, payload: str) -> str:
        """Make up a content, as a data URL where it was one."""
        head, comma, body = payload.rpartition(",")
        kind = _DATA_URL.match(head) if comma else None
        if kind is not None:
            # What else stands in a data URL may be the name of a file.
            encoded = ";base64" if head.lower().endswith(";base64") else ""
            head = kind[0] + encoded
        data = canonical(body)
        if data:
            drawn = self._looks.data(data)
            return head + comma + base64.b64encode(drawn).decode()
        mixed: list[str] = []
        for sign in body:
            known = sign in _BASE64
            mixed.append(self._chance.choice(_BASE64) if known else sign)
        return head + comma + "".join(mixed)


def anonymise(captured: Captured, seed: int = 0, model: Path | None = None) -> Captured:
    """Replace every text by random text of the same token length and the same sharing
    of prefixes, and every picture by noise of the same size and identity.

    Args: model: folder with the ``tokenizer.json`` whose tokens count. None: the tiny
        models', of about one token a byte.

    Raises:
        UsageError: there is no such tokenizer.
    """
    case = captured.case
    gathered = Gathered()
    for operation in case.operations:
        rewritten(operation, gathered)
    texts = {*gathered.prompts, *gathered.texts}
    avoid = _words_of([*texts, *gathered.names])
    vocabulary = Vocabulary(model, case.server.model, avoid)
    made = MadeUp(texts, gathered.of_ids, vocabulary, seed)
    kept = Contents()
    looks = Looks(case, captured.contents, kept, seed)
    changes = _Anonymised(gathered, made, looks, seed, _said(case))
    operations = [_shown_less(rewritten(op, changes)) for op in case.operations]
    notes = [*case.origin.notes, *_notes(made, looks, changes)]
    origin = case.origin.model_copy(
        update={"anonymised": True, "file": "", "notes": notes}
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


def _said(case: Case) -> str:
    """All that the case's model says; "": its weights are random."""
    scripts = case.server.scripts
    if scripts is None:
        return ""
    return "\n".join(a.text or "".join(a.pieces) for a in scripts.script)


def _words_of(texts: Iterable[str]) -> set[str]:
    """Return the words that random text must not hold, by chance, again."""
    words: set[str] = set()
    for text in texts:
        words.update(word.lower() for word in _WORDS.findall(text))
    return words


def _shown_less(operation: Operation) -> Operation:
    """Drop the answer's text; what a refusal says of the longest prompt stays. Nor is
    anything expected of the words of an answer."""
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


def _notes(made: MadeUp, looks: Looks, changes: _Anonymised) -> Iterator[str]:
    """Yield sentences on what became of the case."""
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
    for what, count in changes.dropped.items():
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
        special = vocabulary.special
        self._ordinary = [id for id in range(vocabulary.size) if id not in special]
        self._texts: dict[str, str] = {"": ""}
        self._prompts: dict[tuple[int, ...], list[int]] = {(): []}
        self._make_texts(set(texts) - {""})
        self._make_prompts({tuple(prompt) for prompt in prompts} - {()})

    def text(self, text: str) -> str:
        return self._texts[text]

    def ids(self, ids: Sequence[int]) -> list[int]:
        return self._prompts[tuple(ids)]

    def _make_texts(self, texts: set[str]) -> None:
        # Texts that are the same tokens get one stand-in.
        by_ids: dict[tuple[int, ...], list[str]] = {}
        for text in sorted(texts):
            ids = tuple(self._vocabulary.encode(text))
            by_ids.setdefault(ids, []).append(text)

        branched = self._branched(sorted(by_ids), self._pieces, self._other_piece)
        for prompt, pieces in branched:
            made = self._vocabulary.text(pieces)
            # A tokenizer may join pieces of random text that it never joined before.
            self.uneven += len(self._vocabulary.encode(made)) != len(prompt)
            for text in by_ids[tuple(prompt)]:
                self._texts[text] = made

    def _make_prompts(self, prompts: set[tuple[int, ...]]) -> None:
        """Ids that the vocabulary lacks become others that it lacks."""
        for ids, made in self._branched(sorted(prompts), self._ids, self._other_id):
            self._prompts[tuple(ids)] = made

    def _branched(
        self,
        ordered: Sequence[tuple[int, ...]],
        units: Callable[[Sequence[int]], list[_T]],
        other: Callable[[int, _T, set[_T]], _T],
    ) -> Iterator[tuple[Sequence[int], list[_T]]]:
        """Yield each of the sorted prompts with its stand-in, made of ``units``; where it
        parts from those that begin alike, ``other`` gives what none of them has in that
        place."""
        before: list[_T] = []
        # By depth: the units that stand there behind the beginning that is shared now.
        used: dict[int, set[_T]] = {}
        for ids, shared in branches(ordered):
            for depth in list(used):
                if depth > shared:
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
        for place, id in enumerate(ids):
            pieces[place] = self._vocabulary.special.get(id, pieces[place])
        return pieces

    def _other_piece(self, real: int, made: str, taken: set[str]) -> str:
        if real in self._vocabulary.special:
            return made
        other = self._vocabulary.other(taken, self._chance)
        self.alike += other is None
        return other or made

    def _ids(self, ids: Sequence[int]) -> list[int]:
        size = self._vocabulary.size
        made: list[int] = []
        for id in ids:
            if id in self._vocabulary.special:
                made.append(id)
            elif 0 <= id < size:
                made.append(self._chance.choice(self._ordinary))
            else:
                made.append(size + self._chance.randrange(1 << 24))
        return made

    def _other_id(self, real: int, made: int, taken: set[int]) -> int:
        if made not in taken or made in self._vocabulary.special:
            return made
        if made >= self._vocabulary.size:
            return max(taken) + 1
        left = [id for id in self._ordinary if id not in taken]
        if left:
            return self._chance.choice(left)
        self.alike += 1
        return made
