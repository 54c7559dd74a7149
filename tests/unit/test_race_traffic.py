"""What async-race and literal-placeholder send, to a server that is only pretended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from made_up import request
from mmrepro.evidence import RequestRecord
from mmrepro.evidence.recorder import Recorder
from mmrepro.scenario import Scenario, crash
from mmrepro.scenarios.chunked_mm_prefill import async_race as race, placeholder, stream
from mmrepro.traffic.drive import Drive

Sent = tuple[str, list[int], dict[str, Any]]
"""Label, tokens of the images, and the rest."""


class Listening:
    """Answers everything and keeps what it was sent; ``health``: what ``/health`` says."""

    def __init__(self, *health: int | None) -> None:
        self.sent: list[Sent] = []
        self.health = [*health]

    async def chat(self, label: str, images: Any = (), **more: Any) -> RequestRecord:
        sizes = [(picture.width, picture.height) for picture in images]
        assert all(width % 28 == height % 28 == 0 for width, height in sizes)
        tokens = [width // 28 * (height // 28) for width, height in sizes]
        self.sent.append((label, tokens, more))
        return request("trigger", label)

    async def raw(self, label: str, **_: Any) -> RequestRecord:
        return request("trigger", label, self.health.pop(0))

    def hold(self, _: object) -> None:
        pass

    @property
    def images(self) -> list[tuple[str, list[int]]]:
        return [(label, tokens) for label, tokens, _ in self.sent if tokens]


def driven(
    scenario: Scenario, path: Path, *health: int | None, part: str = "trigger", flips: str = ""
) -> Listening:
    server = Listening(*health)
    drive = Drive(
        server,  # type: ignore[arg-type]
        Recorder(path),
        scenario.model.image_size(),
        scenario.max_model_len,
        scenario.release,
        flips=frozenset(flips.split()),
    )
    asyncio.run(getattr(scenario, part)(drive))
    return server


def test_the_race_sends_images_of_two_and_of_three_steps(tmp_path: Path) -> None:
    server = driven(race.AsyncRace(), tmp_path, 200)
    tokens = {race.SILENT: [300], race.FIRST: [602], race.SECOND: [602]}
    assert server.images == list(tokens.items())
    assert stream.IMAGE_TOKENS == 602 == 4819 // 8
    assert [label for label, *_ in server.sent][-1] == crash.AFTER
    for _, _, more in server.sent[:-1]:
        assert more["max_tokens"] == race.ANSWER_TOKENS == 6
        assert more["deadline_s"] == race.IMAGE_DEADLINE_S == 60.0


def test_its_gates_images_and_the_flipped_ones_take_one_step(tmp_path: Path) -> None:
    flipped = driven(race.AsyncRace(), tmp_path, 200, flips="image-size")
    assert [tokens for _, tokens in flipped.images] == [[144]] * 3
    other = driven(race.AsyncRace(), tmp_path, 200, flips="eager-mode")
    assert [tokens for _, tokens in other.images] == [[300], [602], [602]]
    gate = driven(race.AsyncRace(), tmp_path, part="gate")
    assert [tokens for _, tokens in gate.images] == [[144]] * 2
    assert gate.images[-1][0] == race.GATE


def test_the_budgets_make_so_many_steps_of_the_images() -> None:
    def steps(tokens: int, budget: int) -> int:
        return -(-(tokens + 2) // budget)

    budgets = (stream.BUDGET, stream.LARGE_BUDGET)
    assert [[steps(t, b) for b in budgets] for t in (602, 300, 144)] == [[3, 1], [2, 1], [1, 1]]
    assert [b * 8 for b in budgets] == [2048, 8192]
    assert race.AsyncRace().model.image_tokens == 4 * 602  # all images of a run fit in the cache
    assert race.AsyncRace().max_model_len == 4096


def test_the_literal_placeholder_is_sent_beside_an_image_of_the_gates_size(tmp_path: Path) -> None:
    scenario = placeholder.LiteralPlaceholder()
    server = driven(scenario, tmp_path, 200)
    (label, tokens, more), _ = server.sent
    assert label == placeholder.LITERAL
    assert tokens == [scenario.model.image_tokens] == [225]
    assert more["text"] == "hello <|imgpad|> world"
    gate = driven(scenario, tmp_path, part="gate")
    assert gate.images[-1] == (placeholder.SAME_SIZE, tokens)


@pytest.mark.parametrize(
    ("health", "left"),
    [
        ((200, 503), [503]),  # it answers: nothing died
        ((503, 503, None, 503), [503]),  # until nobody listens any more
        ((None, None, 503), [503]),
    ],
)
def test_a_death_is_watched_until_nobody_listens(
    tmp_path: Path, health: tuple[int | None, ...], left: list[int | None]
) -> None:
    server = driven(placeholder.LiteralPlaceholder(), tmp_path, *health)
    assert server.health == left
    assert [label for label, *_ in server.sent] == [placeholder.LITERAL, crash.AFTER]
