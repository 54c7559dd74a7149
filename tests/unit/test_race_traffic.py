"""What async-race and literal-placeholder send, to a server that is only pretended."""

from pathlib import Path

import pytest
from listening import driven
from made_up_race import ordered
from mmrepro.scenario import Logs
from mmrepro.scenario.more import crash
from mmrepro.scenarios.chunked_mm_prefill import async_race as race, placeholder, stream


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
    assert [[steps(t, b) for b in budgets] for t in (602, 300, 144)] == [
        [3, 1],
        [2, 1],
        [1, 1],
    ]
    assert [b * 8 for b in budgets] == [2048, 8192]
    rows = "at most 254 image rows in a step, of 256 tokens"
    assert stream.larger_steps(Logs(ordered())).observed == rows
    assert race.failing(ordered()) == race.FIRST
    # All images of a run fit in the cache.
    assert race.AsyncRace().model.image_tokens == 4 * 602
    assert race.AsyncRace().max_model_len == 4096


def test_the_literal_placeholder_is_sent_beside_an_image_of_the_gates_size(
    tmp_path: Path,
) -> None:
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
