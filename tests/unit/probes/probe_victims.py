"""Processor time of a victim: how large a share of a core it gets is up to what runs
beside it."""

import time

from mmrepro.base import processes

RAN_S = 0.2
"""Processor time after which enough was measured."""


def cpu_s(pid: int) -> float:
    """Processor time that it has had, in user space and in the kernel."""
    stat = processes.stat(pid)
    assert stat is not None
    return (stat.user_ticks + stat.system_ticks) / processes.TICKS_PER_S


def wait_until_it_ran(pid: int) -> None:
    enough, end = cpu_s(pid) + RAN_S, time.monotonic() + 60
    while cpu_s(pid) < enough:
        assert time.monotonic() < end
        time.sleep(0.01)
