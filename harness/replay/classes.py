"""Operations that look alike: what is left out together, and what may stand for what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mmrepro.case.model import Case, Collision, Content, Operation
from mmrepro.replay.seen import Seen


class Kind(NamedTuple):
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


def kinds(case: Case, seen: Seen) -> dict[str, Kind]:
    """The kind of each operation, by what the play ``seen`` showed of it."""
    shared = shared_images(case)
    return {op.id: _kind(op, seen.answers, shared) for op in case.operations}


def grouped(kinds: Mapping[str, Kind], ids: Iterable[str]) -> dict[Kind, list[str]]:
    """``ids`` by their kind, the largest group first."""
    groups: dict[Kind, list[str]] = {}
    for op in ids:
        groups.setdefault(kinds[op], []).append(op)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


def alike(case: Case, seen: Seen) -> list[list[str]]:
    """Operations of which one may stand for the others: of one kind, with as many images of the
    same sizes that no other operation has, the same parameters and about as long a text."""
    shared, kind = shared_images(case), kinds(case, seen)
    groups: dict[object, list[str]] = {}
    for number, op in enumerate(case.operations):
        looks = (
            kind[op.id],
            seen.sizes.get(op.id, ""),
            tuple(sorted((name, repr(value)) for name, value in op.parameters.items())),
            op.stream,
            op.leave,
            len(text_of(op)).bit_length(),
        )
        own = op.id in seen.sent and not shared.intersection(op.images)
        groups.setdefault(looks if own else number, []).append(op.id)
    return list(groups.values())


def sharing(case: Case, ids: Iterable[str]) -> set[str]:
    """Those that have an image in common with one of ``ids``; these themselves as well."""
    chosen = set(ids)
    seeds = {name for op in case.operations if op.id in chosen for name in op.images}
    groups = _families(case)
    wanted = {groups[name] for name in seeds}
    return chosen | {
        op.id for op in case.operations if any(groups[name] in wanted for name in op.images)
    }


def shared_images(case: Case) -> set[str]:
    """Images that are used more than once, under whatever name, or that others are made of."""
    groups = _families(case)
    uses = Counter(groups[name] for op in case.operations for name in op.images)
    return {name for name, group in groups.items() if uses[group] > 1}


def _families(case: Case) -> dict[str, str]:
    """Each image's first relative: one with the same bytes, or that it is made of."""
    found: dict[str, str] = {}
    contents: dict[str, str] = {}
    for name, image in case.images.items():
        if isinstance(image, Content):
            found[name] = contents.setdefault(image.sha256, name)
        elif isinstance(image, Collision):
            found[name] = contents.setdefault(image.family, name)
        else:
            found[name] = found.get(getattr(image, "of", ""), name)
    return found


def text_of(op: Operation) -> str:
    """All its text, for its length."""
    parts = [part.text or "" for message in op.messages or [] for part in message.parts()]
    return "".join([*parts, str(op.prompt or "")])


def _kind(op: Operation, answers: Mapping[str, str], shared: set[str]) -> Kind:
    answer = answers.get(op.id, "")
    # One that is stuck would have been answered.
    known = answer if answer[:1] in ("4", "5") else "200"
    images = "none" if not op.images else "shared" if shared.intersection(op.images) else "new"
    return Kind(op.path, known, images, bool(op.leave))


def abnormal(seen: Seen) -> list[str]:
    """Operations with another answer than 200, and none that is stuck."""
    return [op for op in seen.sent if seen.answers.get(op, "")[:1] in ("4", "5")]
