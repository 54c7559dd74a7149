"""Fake plays: models of failures that answer as an engine would, without one."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.replay import Expectation, PlayFacts, Sighting
from mmrepro.search.replay.shrink import Spent
from mmrepro.search.replay.store import STUCK, UNSENT, CandidateVerdict, Observation
from mmrepro.traffic.case.files import case_digest
from mmrepro.traffic.case.model import (
    Case,
    Message,
    Noise,
    Operation,
    Part,
    ServerWanted,
)

SERVER = ServerWanted(engine="vllm", release="0.23.0", args=["--cache", "10"])
BUCKET = "fake hang"
OTHER = "fake error"

Answers = Callable[[Case], dict[str, str]]
"""A fake engine: each operation's answer ("200", "400", "500" or ``STUCK``), in
order."""


def fake_case(ops: Sequence[Operation], sizes: dict[str, int] | None = None) -> Case:
    """``sizes``: of its images, a side in pixels."""
    images = {
        name: Noise(seed=n, size=(side, side))
        for n, (name, side) in enumerate((sizes or {}).items())
    }
    return Case(server=SERVER, images=images, operations=list(ops))


def fake_op(
    id: str, *images: str, text: str = "hello", after: Sequence[str] = ()
) -> Operation:
    parts = [*(Part(image=name) for name in images), Part(text=text)]
    return Operation(
        id=id,
        after=list(after),
        messages=[Message(role="user", content=parts if images else text)],
        parameters={"max_tokens": 4, "temperature": 0},
    )


def fake_seen(case: Case, answers: dict[str, str], number: int = 1) -> Observation:
    stuck = [op for op, answer in answers.items() if answer == STUCK]
    errors = [op for op, answer in answers.items() if answer == "500"]
    sightings = []
    if stuck:
        sightings.append(
            Sighting(
                finding_class=FindingClass.HANG,
                bucket=BUCKET,
                operations=stuck,
                said="it hangs",
            )
        )
    if errors:
        sightings.append(
            Sighting(
                finding_class=FindingClass.SERVER_ERROR,
                bucket=OTHER,
                operations=errors,
                said="it fails",
                expectations=[Expectation(operation=op, text="right") for op in errors],
            )
        )
    state = "hung" if stuck else "ended"
    buckets = [s.bucket for s in sightings]
    ops = {op.id: op for op in case.operations}
    return Observation(
        play=PlayFacts(
            number=number, what="fake", requests=len(ops), state=state, buckets=buckets
        ),
        sightings=sightings,
        sent=[op for op in answers if answers[op] != UNSENT],
        times={
            op: (float(n), None if answer == STUCK else n + 0.5)
            for n, (op, answer) in enumerate(answers.items())
        },
        answers=answers,
        sizes={
            id: " ".join(
                f"{w}x{h}"
                for w, h in (
                    getattr(case.images[n], "size", (28, 28)) for n in op.images
                )
            )
            for id, op in ops.items()
            if op.images
        },
    )


class FakeTest:
    """Asks a fake engine, once for each case, as far as the budget goes."""

    def __init__(
        self, engine: Answers, bucket: str = BUCKET, budget: int = 1000
    ) -> None:
        self.engine, self.bucket, self.budget = engine, bucket, budget
        self.jobs = 1
        self.rounds = 0
        self.plays = 0
        self.known: dict[str, CandidateVerdict] = {}
        self.made: dict[str, CandidateVerdict] = {}
        self.asked: list[tuple[str, int, bool]] = []

    @property
    def left(self) -> int:
        return self.budget - self.plays

    @property
    def verdicts(self) -> dict[str, CandidateVerdict]:
        return {**self.known, **self.made}

    def __call__(self, case: Case, what: str) -> CandidateVerdict:
        digest = case_digest(case)
        if digest in self.known:
            return self.known[digest]._replace(again=True)
        if digest in self.made:
            return self.known.setdefault(digest, self.made.pop(digest))
        if self.left < 1:
            raise Spent
        self.plays += 1
        seen = fake_seen(case, self.engine(case), self.plays)
        fails = seen.has(self.bucket)
        self.asked.append((what, len(case.operations), fails))
        self.known[digest] = CandidateVerdict(fails, int(fails), 1, seen)
        return self.known[digest]

    def beside(self, candidates: Sequence[tuple[Case, str]]) -> None:
        """A place for each of them."""
        self.rounds += 1
        for case, what in candidates:
            if (digest := case_digest(case)) not in self.known:
                self(case, what)
                self.made[digest] = self.known.pop(digest)


def answered_until(
    case: Case, culprit: str | None, refused: Sequence[str] = ()
) -> dict[str, str]:
    """All is well up to ``culprit``, and nothing from there on is answered."""
    answers: dict[str, str] = {}
    hung = False
    for op in case.operations:
        hung = hung or op.id == culprit
        answers[op.id] = STUCK if hung else "400" if op.id in refused else "200"
    return answers


class FakeGhostKey:
    """vLLM's multimodal cache before 0.24.0, and its mirror in the front end: a picture
    that was refused is in the mirror alone, asked for again it is a ghost in the
    engine's order, and an eviction that comes to it never ends."""

    def __init__(self, capacity: int, too_long: str = "LONG") -> None:
        self.capacity, self.too_long = capacity, too_long

    def __call__(self, case: Case) -> dict[str, str]:
        front: OrderedDict[str, int] = OrderedDict()
        order: OrderedDict[str, int | None] = OrderedDict()
        answers: dict[str, str] = {}
        hung = False
        for op in case.operations:
            if hung:
                answers[op.id] = STUCK
                continue
            text = "".join(p.text or "" for m in op.messages or [] for p in m.parts())
            hits = [name in front for name in op.images]
            for name in op.images:
                size = case.images[name].size[0]  # type: ignore[union-attr]
                self._put(front, name, size)
            if self.too_long in text:
                answers[op.id] = "400"
                continue
            answers[op.id] = "200"
            for name, hit in zip(op.images, hits, strict=True):
                if hit and order.get(name) is None:
                    order[name] = None
                    order.move_to_end(name)
                    answers[op.id] = "500"
                    break
                if name in order and order[name] is not None:
                    order.move_to_end(name)
                    continue
                size = case.images[name].size[0]  # type: ignore[union-attr]
                if not self._room(order, size):
                    hung = True
                    answers[op.id] = STUCK
                    break
                order[name] = size
        return answers

    def _put(self, cache: OrderedDict[str, int], name: str, size: int) -> None:
        if name not in cache:
            while sum(cache.values()) + size > self.capacity and cache:
                cache.popitem(last=False)
        cache[name] = size
        cache.move_to_end(name)

    def _room(self, order: OrderedDict[str, int | None], size: int) -> bool:
        while sum(value or 0 for value in order.values()) + size > self.capacity:
            oldest = next(iter(order), None)
            if oldest is None or order[oldest] is None:
                return False
            del order[oldest]
        return True
