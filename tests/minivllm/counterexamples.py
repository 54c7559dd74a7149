"""The smallest examples that show each fault, found and shrunk by hypothesis.

``uv run python tests/minivllm/counterexamples.py`` prints the table of
docs/lab/minivllm.md; with ``--write`` it puts it there. Started by an interpreter
without torch it starts itself again in minivllm's environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs/lab/minivllm.md"
BEGIN, END = "<!-- counterexamples -->", "<!-- /counterexamples -->"

if importlib.util.find_spec("torch") is None:
    from mmrepro.base.machine.host import child_environment
    from mmrepro.engines.environments.build import ensure
    from mmrepro.engines.environments.spec import MINIVLLM, minivllm_spec

    python = str(ensure(minivllm_spec(MINIVLLM, "cpu")).python)
    os.execve(python, [python, __file__, *sys.argv[1:]], child_environment())

sys.path[:0] = [str(HERE), str(HERE.parents[1] / "reproducers")]

from hypothesis import (  # noqa: E402
    HealthCheck,
    Phase,
    find,
    settings,
    strategies as st,
)
from minivllm.caches import ImageCache  # noqa: E402
from minivllm.config import FAULTS, NOTE_FAULTS, PAD_RANGE, EngineConfig  # noqa: E402
from minivllm.sequence import Image  # noqa: E402
from small import engine, reference  # noqa: E402

SETTINGS = settings(
    max_examples=3000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class Ask:
    """A request: text ids, images as (number, rows, columns), new tokens."""

    text: int
    images: tuple[tuple[int, int, int], ...]
    max_tokens: int

    @property
    def arguments(self) -> tuple[list[int], list[Image], int]:
        pictures = [
            Image.of(b"picture %d" % n, rows, cols) for n, rows, cols in self.images
        ]
        return list(range(1, self.text + 1)), pictures, self.max_tokens

    def __str__(self) -> str:
        images = [f"picture {n} as {rows} x {cols}" for n, rows, cols in self.images]
        text = f"{self.text} text id{'s' * (self.text > 1)}"
        return f"{', '.join([*images, text])} → {self.max_tokens}"


@dataclass(frozen=True)
class Example:
    """Sizes of the engine and what it is asked, in this order."""

    block_size: int
    max_batched_tokens: int
    blocks: int
    asks: tuple[Ask, ...]

    def __str__(self) -> str:
        """Sizes only where they differ from the page's: blocks of 1, 40 of them, 32
        tokens a step."""
        sizes: list[str] = []
        if self.block_size != 1:
            sizes.append(f"blocks of {self.block_size}")
        if self.blocks != 40:
            sizes.append(f"{self.blocks} blocks")
        if self.max_batched_tokens != 32:
            sizes.append(f"{self.max_batched_tokens} tokens a step")
        return "; ".join([*sizes, *map(str, self.asks)])


def asks(
    pictures: st.SearchStrategy[int], *, images: int = 1
) -> st.SearchStrategy[Ask]:
    picture = st.tuples(pictures, st.integers(1, 2), st.integers(1, 2))
    some = st.lists(picture, max_size=images).map(tuple)
    return st.builds(Ask, st.integers(1, 6), some, st.integers(1, 3))


ONE_PICTURE = st.just(1)


def examples(
    pictures: st.SearchStrategy[int] = ONE_PICTURE,
) -> st.SearchStrategy[Example]:
    return st.builds(
        Example,
        block_size=st.integers(1, 4),
        max_batched_tokens=st.integers(1, 32).map(lambda n: 33 - n),
        blocks=st.just(40),
        asks=st.lists(
            asks(st.just(1) if pictures is None else pictures), min_size=1, max_size=2
        ).map(tuple),
    )


def outcome(example: Example, fault: str, **more: Any) -> str:
    """What goes wrong with ``fault`` on; "" if nothing does."""
    config = EngineConfig(
        num_blocks=example.blocks + 1,
        block_size=example.block_size,
        max_batched_tokens=example.max_batched_tokens,
        max_model_len=64,
        vision="fake",
        async_scheduling=fault == "reused-mask",
        faults=frozenset({fault} - {""}),
    )
    made = engine(replace(config, **more))
    try:
        for ask in example.asks:
            ids, pictures, count = ask.arguments
            seq = made.add(ids, pictures, max_tokens=count)
            if not more.get("together") and fault != "reused-mask":
                made.generate([seq])
            if seq.error:
                return str(seq.error)
            if fault == "reused-mask":
                continue
            if seq.output_ids != (wanted := reference(ids, pictures, count)):
                return f"{seq.output_ids} in place of {wanted}"
        seqs = list(made.scheduler.waiting)
        made.generate(seqs)
        for seq, ask in zip(seqs, example.asks, strict=False):
            if seq.error:
                return str(seq.error)
            if seq.output_ids != (wanted := reference(*ask.arguments)):
                return f"{seq.output_ids} in place of {wanted}"
    except AssertionError as error:
        return f"AssertionError: {error}, and the engine's loop ends"
    return ""


def smallest(
    fault: str,
    shows: Callable[[str], bool],
    strategy: st.SearchStrategy[Example],
    **more: Any,
) -> tuple[str, str]:
    found = find(
        strategy, lambda e: shows(outcome(e, fault, **more)), settings=SETTINGS
    )
    assert not outcome(found, "", **more), "without the fault nothing is wrong"
    return str(found), outcome(found, fault, **more)


# ------------------------------------------------------------------ one search a fault


def twins() -> tuple[int, int]:
    """Two pictures whose digests are equal modulo the pad range."""
    seen: dict[int, int] = {}
    for number in range(10_000):
        pad = int(Image.of(b"picture %d" % number, 1, 1).digest, 16) % PAD_RANGE
        if pad in seen:
            return seen[pad], number
        seen[pad] = number
    raise AssertionError("no two in ten thousand")


def small_budget() -> st.SearchStrategy[Example]:
    """A tenth of the blocks is what the fault leaves."""
    return st.builds(
        Example,
        block_size=st.integers(1, 4),
        max_batched_tokens=st.just(32),
        blocks=st.sampled_from([10, 20]),
        asks=st.lists(asks(st.just(1), images=0), min_size=1, max_size=1).map(tuple),
    )


def ghosts() -> tuple[str, str]:
    """Requests as (refused for its length, picture), over the two image caches."""
    capacity = 2

    class Stuck(Exception):
        pass

    class Counted(ImageCache):
        calls = 0

        def pop_oldest(self) -> None:
            self.calls += 1
            if self.calls > 50:
                raise Stuck
            super().pop_oldest()

    def hangs(sent: list[tuple[bool, int]], faults: frozenset[str]) -> bool:
        front, receiver = Counted(capacity, faults), Counted(capacity, faults)
        try:
            for refused, number in sent:
                image = Image.of(b"%d" % number, 1, 1)
                if refused and not faults:
                    continue  # looked at first, remembered only when it is sent
                try:
                    held = front.to_send(image)
                    if not refused:
                        receiver.received(held)
                except AssertionError:
                    pass  # HTTP 500
        except Stuck:
            return True
        return False

    faults = frozenset({"ghost-key-lru"})
    requests = st.lists(st.tuples(st.booleans(), st.integers(1, 4)), max_size=8)
    found = find(requests, lambda sent: hangs(sent, faults), settings=SETTINGS)
    assert not hangs(found, frozenset())
    told = [
        f"picture {n}{', too long: refused' if refused else ''}" for refused, n in found
    ]
    return f"room for {capacity} pictures; " + "; ".join(
        told
    ), "the last one is never answered"


def searches() -> dict[str, Callable[[], tuple[str, str]]]:
    said = {
        "warmup-sequence": "ImageRunner expects",
        "warmup-order": "inputs_embeds",
        "broken-module": "SyntaxError",
        "image-path": "FileNotFoundError",
        "pinned-placeholder": "can be pinned",
        "slot-mapping": "Slot mapping size",
    }

    def note(fault: str) -> Callable[[], tuple[str, str]]:
        return lambda: smallest(fault, lambda text: said[fault] in text, examples())

    one, other = twins()
    found = {fault: note(fault) for fault in NOTE_FAULTS}
    found["slot-mapping, unseen in prefill"] = lambda: smallest(
        "slot-mapping", lambda text: "in place of" in text, examples()
    )
    found["ghost-key-lru"] = ghosts
    found["pad-value-key"] = lambda: smallest(
        "pad-value-key",
        lambda text: "in place of" in text,
        examples(st.sampled_from([one, other])),
    )
    found["kv-budget, the prompt"] = lambda: smallest(
        "kv-budget", lambda text: "internal error" in text, small_budget()
    )
    found["kv-budget, the answer"] = lambda: smallest(
        "kv-budget", lambda text: "preempt" in text, small_budget()
    )
    mask = examples(st.integers(1, 2))
    found["reused-mask"] = lambda: smallest(
        "reused-mask", lambda text: "masked" in text or "ones in mask" in text, mask
    )
    found["reused-mask, silently"] = lambda: smallest(
        "reused-mask", lambda text: "in place of" in text, mask
    )
    found["reused-mask, with the contract"] = lambda: smallest(
        "reused-mask", lambda text: "mask-rows" in text, mask, check_contract="raise"
    )
    return found


def table() -> str:
    lines = ["| fault | smallest example | what happens |", "|---|---|---|"]
    for name, search in searches().items():
        assert name.partition(",")[0] in FAULTS
        example, happens = search()
        lines.append(f"| `{name}` | {example} | {happens.replace('|', ' ')} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    import logging

    logging.disable()
    made = table()
    if "--write" not in sys.argv:
        print(made, end="")
        return
    text = DOCS.read_text()
    head, tail = text.partition(BEGIN)[0], text.partition(END)[2]
    DOCS.write_text(f"{head}{BEGIN}\n{made}{END}{tail}")


if __name__ == "__main__":
    main()
