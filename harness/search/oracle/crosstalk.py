"""Does an answer depend on what its neighbours hold? The same case with other contents
beside it.

A batch changes an answer by rounding, whatever is in it. So the control changes nothing
but
content: every neighbour's text and pictures become others of the same length and size,
sent at the same barriers, and what the target sends, or shares with them, stays. Where
the target's answers then differ between the two sides, and not within them, content has
crossed over."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, count
from math import comb
from pathlib import Path

from mmrepro.base.records import FindingClass
from mmrepro.search.oracle import near_ties
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.near_ties import TieVerdict, TokenAnswer
from mmrepro.search.oracle.reference import comparable
from mmrepro.traffic import Picture
from mmrepro.traffic.capture import common_prefix
from mmrepro.traffic.case import Case, Message, Noise, Operation, Part, Played, pictures

LEAST_RUNS = 5
_SIGNIFICANCE = 0.01
_MOST_SUSPECTS = 3
"""Each wants plays of its own."""


def crosstalk(
    case: Case,
    suspects: Sequence[str],
    play: Callable[[Case], Played],
    *,
    contents: Path | None = None,
) -> OracleReport:
    """Play ``case`` some times as it is, and as often with other neighbours, for each
    of ``suspects``.

    Args:
        suspects: operations whose answers are not those of the reference.
        contents: folder of the case's pictures.

    Raises:
        UsageError: a picture of the case cannot be read.
    """
    tested = list(suspects)[:_MOST_SUSPECTS]
    judged: list[OracleReport] = []
    for id in suspects[_MOST_SUSPECTS:]:
        said = f"{id}: whether its neighbours' content matters was not tried."
        judged.append(OracleReport(unseen=[said]))
    each = runs_needed(len(tested))
    asked = comparable(case)
    sizes = pictures(case, contents)
    as_it_is: list[Played] = []
    for id in tested:
        swapped: list[Played] = []
        # In turn: what drifts with time drifts on both sides.
        for number in range(1, each + 1):
            if len(as_it_is) < each:
                as_it_is.append(play(asked))
            swapped.append(play(other_neighbours(asked, id, number, sizes)))
        judged.append(_depends(id, as_it_is, swapped, _SIGNIFICANCE / len(tested)))

    return OracleReport.of(judged)


def runs_needed(suspects: int) -> int:
    """Plays of each side with which the test can be significant for so many suspects at
    once."""
    runs = LEAST_RUNS
    while 2 / comb(2 * runs, runs) >= _SIGNIFICANCE / max(suspects, 1):
        runs += 1
    return runs


def _depends(
    id: str, as_it_is: Sequence[Played], swapped: Sequence[Played], significance: float
) -> OracleReport:
    """Judge what two sides of plays say of the operation ``id``. Pure."""
    ours, theirs = list(_answers(id, as_it_is)), list(_answers(id, swapped))
    if min(len(ours), len(theirs)) < LEAST_RUNS:
        said = (
            f"{id}: whether its neighbours' content matters: {len(ours)} and "
            f"{len(theirs)} answers, at least {LEAST_RUNS} a side are needed."
        )
        return OracleReport(unseen=[said])

    drifts: list[float] = []
    for answer, other in combinations(ours, 2):
        drifts += near_ties.drift(answer, other)
    bound = near_ties.bound_of(drifts)
    if bound is None:
        said = f"{id}: its answers differ by noise alone, with the same neighbours."
        return OracleReport(unseen=[said])

    apart = _apart([*ours, *theirs], bound)
    chance = permutation_test(apart, len(ours), len(ours) + len(theirs))
    if chance >= significance:
        return OracleReport(
            counted={"cross-talk tried: content of neighbours does not matter": 1}
        )

    between = 0.0
    for (first, second), far in apart.items():
        if first < len(ours) <= second:
            between += far
    share = f"{between:.0f} of {len(ours) * len(theirs)} pairs of answers differ"
    return OracleReport.found(
        FindingClass.CROSS_TALK,
        "neighbours' content",
        f"The answer to {id} depends on what other requests hold: with other contents "
        f"of the same shape beside it {share} ({len(ours)} and {len(theirs)} plays, p "
        f"= {chance:.2g}).",
        "The same answer, whatever other requests of the same shape hold.",
        by=[id],
    )


def _apart(
    answers: Sequence[TokenAnswer], bound: float
) -> dict[tuple[int, int], float]:
    """1 for each two answers that differ, by their places; else 0."""
    # Without logprobs a near-tie cannot be told, and the two sides say what chance
    # does.
    differ = (TieVerdict.DIFFERS, TieVerdict.NOT_COMPARABLE)
    apart: dict[tuple[int, int], float] = {}
    for i, j in combinations(range(len(answers)), 2):
        verdict = near_ties.compare(answers[i], answers[j], bound).verdict
        apart[i, j] = float(verdict in differ)
    return apart


def permutation_test(
    apart: dict[tuple[int, int], float], first: int, total: int
) -> float:
    """The chance of two sides that are as far apart, if it does not matter who is on
    which: exact, over all ways to choose the ``first`` side.

    ``apart``: how far each two are from each other, of 0 to ``total`` - 1; the lower
    one first."""

    def distance(chosen: frozenset[int]) -> float:
        sums = [0.0, 0.0, 0.0]
        for (i, j), far in apart.items():
            sums[(i in chosen) + (j in chosen)] += far
        second = total - first
        within = sums[2] / max(comb(first, 2), 1) + sums[0] / max(comb(second, 2), 1)
        return 2 * sums[1] / (first * second) - within

    seen = distance(frozenset(range(first)))
    ways = combinations(range(total), first)
    # Sums in another order differ in the last bits of a float.
    as_far = sum(distance(frozenset(chosen)) >= seen - 1e-9 for chosen in ways)
    return as_far / comb(total, first)


def _answers(id: str, plays: Sequence[Played]) -> Iterator[TokenAnswer]:
    for played in plays:
        record = played.record(id)
        if record is not None and (record.answered or record.left):
            yield from near_ties.answers(record)[:1]


# --------------------------------------------------------------------- other neighbours


def other_neighbours(
    case: Case, target: str, seed: int, sizes: dict[str, Picture]
) -> Case:
    """The case with other contents of the same shapes in all operations but ``target``.

    What a neighbour shares with the target stays: the beginning of its prompt as far as
    it is the target's, and the target's pictures. What neighbours share with each other
    they still share."""
    return _Others(case, target, seed, sizes).case()


class _Others:
    def __init__(
        self, case: Case, target: str, seed: int, sizes: dict[str, Picture]
    ) -> None:
        self.source, self.seed, self.sizes = case, seed, sizes
        self.target = case.operation(target)
        ids: set[int] = set()
        for op in case.operations:
            if isinstance(op.prompt, list):
                ids.update(op.prompt)
        self.ids = sorted(ids)
        own = {sizes[name].png for name in self.target.images}
        self.names: dict[str, str] = {}
        numbers = count(1)
        for name in case.images:
            if sizes[name].png in own:
                continue
            # Under names of their own: one of the target's pictures may be made of the old
            # one.
            self.names[name] = self._free_name(numbers)

    def _free_name(self, numbers: Iterator[int]) -> str:
        while (name := f"other-{next(numbers)}") in self.source.images:
            pass
        return name

    def case(self) -> Case:
        operations = [self._other(op) for op in self.source.operations]
        images = dict(self.source.images)
        for old, new in self.names.items():
            # The seed follows from the picture: pictures that were the same still are.
            picture, key = self.sizes[old], str(self.seed).encode()
            digest = hashlib.blake2b(picture.png, digest_size=4, key=key).digest()
            size = (max(picture.width, 1), max(picture.height, 1))
            images[new] = Noise(seed=int.from_bytes(digest, "big"), size=size)

        update = {"operations": operations, "images": images}
        changed = self.source.model_copy(update=update)
        # Without pictures that nobody needs.
        return changed.keeping({op.id for op in operations})

    def _other(self, op: Operation) -> Operation:
        """All of the target's is shared with it, so that it comes out as it was."""
        changed: dict[str, object] = {}
        if op.messages is not None:
            changed["messages"] = self._messages(op.messages)
        if isinstance(op.prompt, str):
            own = self.target.prompt if isinstance(self.target.prompt, str) else ""
            changed["prompt"] = reworded(
                op.prompt, self.seed, common_prefix(op.prompt, own)
            )
        elif op.prompt is not None:
            changed["prompt"] = self._numbers(op.prompt)

        return op.model_copy(update=changed)

    def _messages(self, messages: list[Message]) -> list[Message]:
        """Texts are other ones from the first place on that is not the target's."""
        own: list[tuple[str, Part]] = []
        for message in self.target.messages or []:
            own += [(message.role, part) for part in message.parts()]
        place, shared, before = 0, True, ""
        changed: list[Message] = []
        for message in messages:
            parts: list[Part] = []
            for part in message.parts():
                theirs = own[place] if shared and place < len(own) else None
                place += 1
                if part.text is not None:
                    keep = 0
                    if theirs is not None and theirs[0] == message.role:
                        keep = common_prefix(part.text, theirs[1].text or "")
                    text = reworded(part.text, self.seed, keep, before)
                    before += part.text
                    parts.append(Part(text=text))
                else:
                    before += json.dumps(part.model_dump(mode="json"))
                    image = self.names.get(part.image or "", part.image)
                    parts.append(part.model_copy(update={"image": image}))

                shared = shared and (message.role, part) == theirs

            plain = isinstance(message.content, str)
            content = (parts[0].text or "") if plain else parts
            changed.append(message.model_copy(update={"content": content}))

        return changed

    def _numbers(self, prompt: list[int]) -> list[int]:
        own = self.target.prompt if isinstance(self.target.prompt, list) else []
        keep = common_prefix(prompt, own)
        digest = hashlib.blake2b(str(self.seed).encode())
        made = []
        for place, id in enumerate(prompt):
            digest.update(f"{id} ".encode())
            chosen = int.from_bytes(digest.copy().digest()[:8], "big") % len(self.ids)
            made.append(id if place < keep else self.ids[chosen])
        return made


_RANGES = (
    ("a", 26),
    ("A", 26),
    ("0", 10),
    ("\u0430", 32),  # Cyrillic: two bytes, as for all that has two
    ("\u4e00", 0x5000),  # ideographs: three
    ("\U0001f300", 0x200),  # pictographs: four
)


def reworded(text: str, seed: int, keep: int, before: str = "") -> str:
    """Another text with as many bytes in UTF-8, which to the tiny models' tokenizers
    are tokens.

    Spaces and punctuation stay, as do the first ``keep`` characters. Two texts that
    begin alike, behind the same ``before``, still do."""
    digest = hashlib.blake2b(before.encode("utf-8", "replace"), key=str(seed).encode())
    made = []
    for place, letter in enumerate(text):
        digest.update(letter.encode("utf-8", "replace"))
        first, count = _range(letter)
        if place < keep or not count:
            made.append(letter)
        else:
            number = int.from_bytes(digest.copy().digest()[:4], "big")
            made.append(chr(ord(first) + number % count))

    return "".join(made)


def _range(letter: str) -> tuple[str, int]:
    """Letters that may stand in its place."""
    if letter.isascii():
        for first, count in _RANGES[:3]:
            if 0 <= ord(letter) - ord(first) < count:
                return first, count
        return letter, 0
    size = len(letter.encode("utf-8", "replace"))
    return _RANGES[size + 1] if size > 1 else (letter, 0)
