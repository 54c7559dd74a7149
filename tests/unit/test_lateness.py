"""How late a thread wakes that only sleeps."""

import threading

import pytest
from mmrepro.base.machine import host
from mmrepro.base.machine.host import STEP_S, Lateness


class Clock:
    """Each wait for a step takes ``steps`` in turn; then it is over."""

    def __init__(self, *steps: float) -> None:
        self.now, self.steps, self.over = 100.0, [*steps], threading.Event()

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        assert seconds == STEP_S
        if not self.steps:
            return True
        self.now += self.steps.pop(0)
        return False


@pytest.mark.parametrize(
    ("steps", "share"),
    [
        ([STEP_S] * 20, 0.0),
        ([0.5] * 4, 0.9),
        ([STEP_S] * 19 + [STEP_S + 1], 0.5),
        ([], 0.0),
    ],
)
def test_what_a_sleeper_waits_for_beyond_its_sleep(
    monkeypatch: pytest.MonkeyPatch, steps: list[float], share: float
) -> None:
    clock = Clock(*steps)
    monkeypatch.setattr(host, "time", clock)
    made = Lateness()
    made._over = clock  # type: ignore[assignment]
    made._run()
    assert made.share == pytest.approx(share)


def test_it_ends_with_what_it_measures() -> None:
    with Lateness() as made:
        thread = made._thread
        assert thread.is_alive()
    thread.join(5)
    assert not thread.is_alive()
    assert 0 <= made.share <= 1
