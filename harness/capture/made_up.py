"""Random text in the place of real text: as many tokens, and beginning alike as long."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from mmrepro.capture.prefixes import branches
from mmrepro.capture.vocabulary import Vocabulary


class MadeUp:
    """Stand-ins of ``texts`` and of ``prompts`` of token ids, all made at once.

    Two texts that begin with the same n tokens have stand-ins that begin with the same n tokens,
    and differ in the one after them as the texts do. Special tokens stay.
    """

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
        self._ordinary = [i for i in range(vocabulary.size) if i not in vocabulary.special]
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
        ordered = sorted(encoded)
        before: list[str] = []
        used: dict[int, set[str]] = {}
        for branch in branches(ordered):
            pieces = self._pieces(branch.units, branch.shared, before, used)
            made = self._vocabulary.text(pieces)
            same = self._vocabulary.encode(made)
            self.uneven += len(same) != len(branch.units)
            for text in encoded[tuple(branch.units)]:
                self._texts[text] = made
            before = pieces

    def _pieces(
        self, ids: Sequence[int], shared: int, before: list[str], used: dict[int, set[str]]
    ) -> list[str]:
        """``used``: by depth, what stands there behind the same beginning."""
        for depth in [d for d in used if d > shared]:
            del used[depth]
        special = self._vocabulary.special
        pieces = [
            *before[:shared],
            *self._chance.choices(self._vocabulary.pieces, k=len(ids) - shared),
        ]
        for place in range(shared, len(ids)):
            if ids[place] in special:
                pieces[place] = special[ids[place]]
        if shared < len(ids):
            taken = used.setdefault(shared, set())
            taken.update(before[shared : shared + 1])
            if ids[shared] not in special:
                other = self._vocabulary.other(taken, self._chance)
                self.alike += other is None
                pieces[shared] = other or pieces[shared]
            taken.add(pieces[shared])
        return pieces

    def _of_prompts(self, prompts: set[tuple[int, ...]]) -> None:
        """Ids that the vocabulary lacks become others that it lacks."""
        before: list[int] = []
        used: dict[int, set[int]] = {}
        for branch in branches(sorted(prompts)):
            shared = branch.shared
            for depth in [d for d in used if d > shared]:
                del used[depth]
            made = [*before[:shared], *map(self._id, branch.units[shared:])]
            if shared < len(made):
                taken = used.setdefault(shared, set())
                taken.update(before[shared : shared + 1])
                made[shared] = self._other_id(made[shared], taken)
                taken.add(made[shared])
            self._prompts[tuple(branch.units)] = made
            before = made

    def _id(self, real: int) -> int:
        if real in self._vocabulary.special:
            return real
        if 0 <= real < self._vocabulary.size:
            return self._chance.choice(self._ordinary)
        return self._vocabulary.size + self._chance.randrange(1 << 24)

    def _other_id(self, made: int, taken: set[int]) -> int:
        if made not in taken or made in self._vocabulary.special:
            return made
        if made >= self._vocabulary.size:
            return max(taken) + 1
        left = [i for i in self._ordinary if i not in taken]
        self.alike += not left
        return self._chance.choice(left) if left else made
