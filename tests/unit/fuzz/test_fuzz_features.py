"""What steers: each thing once, whatever the numbers in it."""

from pathlib import Path

import pytest
from fake_player import played
from fake_plays import fake_case, fake_op
from hypothesis import given, strategies as st
from mmrepro.search.fuzz.steering import ENOUGH, features, kinds, worth
from mmrepro.traffic.case.sending import Reading

NOWHERE = Path("/nowhere")
CASE = fake_case([fake_op("r1"), fake_op("r2", "p"), fake_op("r3")], {"p": 28})


def seen(answers: dict[str, str], log: Path = NOWHERE) -> set[str]:
    return features(CASE, played(CASE, answers), log)


WELL = {"r1": "200", "r2": "200", "r3": "200"}


def test_the_same_play_shows_the_same_things() -> None:
    assert seen(WELL) == seen(WELL)


def test_another_status_is_new_and_worth_more_of_it() -> None:
    new = seen(WELL | {"r2": "500"}) - seen(WELL)
    assert worth(new) >= ENOUGH
    assert kinds(new)["answer"] == 1
    assert kinds(new)["pair"] == 2


def test_log_lines_count_by_their_template(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(
        "(EngineCore pid=1) INFO 11-24 10:00:00 [core.py:1] took 13 blocks of 20\n"
    )
    first = seen(WELL, log)
    log.write_text(
        "(EngineCore pid=7) INFO 11-24 11:00:09 [core.py:1] took 7 blocks of 99\n"
        "(EngineCore pid=7) ERROR 11-24 11:00:09 [core.py:2] no block is left\n"
    )
    new = seen(WELL, log) - first
    assert kinds(new) == {"log": 1}
    assert worth(new) >= ENOUGH


@pytest.mark.parametrize(
    ("value", "same"), [(12.0, True), (11.0, True), (900.0, False), (0, False)]
)
def test_metrics_count_by_how_far_they_moved(value: float, same: bool) -> None:
    def moved(to: float) -> set[str]:
        made = played(CASE, WELL)
        made.before = Reading(mono=0.0, metrics={"x_total": 0.0, "y_created": 1.0})
        made.after = Reading(mono=1.0, metrics={"x_total": to, "y_created": 2.0})
        return features(CASE, made, NOWHERE)

    assert (moved(value) == moved(10.0)) is same


@given(st.binary(max_size=400))
def test_any_log_at_all(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    log = tmp_path_factory.mktemp("log") / "engine.log"
    log.write_bytes(content)
    assert all(len(text) < 24 for text in seen(WELL, log)), "no words of it are kept"
