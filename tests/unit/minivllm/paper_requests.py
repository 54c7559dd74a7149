"""What the paper engine is asked in tests, and the right answers."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from mmrepro.reproducers.minivllm.paper import VOCABULARY, next_token, rows_of
from mmrepro.reproducers.minivllm.sequence import Image


def reference(ids: list[int], images: Seq[Image], max_tokens: int) -> list[int]:
    """The right answer, computed without any engine."""
    content = [*rows_of(images), *((token,) for token in ids)]
    for _ in range(max_tokens):
        content.append((next_token(content),))
    return [token for (token,) in content[len(content) - max_tokens :]]  # type: ignore[misc]


@dataclass(frozen=True)
class Request:
    """Something to ask for: ``text`` token ids, ``images`` as (seed, rows, columns)."""

    text: int = 1
    images: tuple[tuple[int, int, int], ...] = ()
    max_tokens: int = 1
    seed: int = 0

    @property
    def ids(self) -> list[int]:
        """Requests of one seed share their beginning."""
        return [(self.seed * 7 + i * i) % VOCABULARY for i in range(self.text)]

    @property
    def pictures(self) -> tuple[Image, ...]:
        return tuple(
            Image.of(b"picture %d" % s, rows, cols) for s, rows, cols in self.images
        )

    @property
    def tokens(self) -> int:
        return (
            self.text
            + sum(rows * cols for _, rows, cols in self.images)
            + self.max_tokens
        )
