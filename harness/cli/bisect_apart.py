"""The process in which ``bisect-run`` runs a scenario that is not mmrepro's own.

See :mod:`mmrepro.campaign.bisect.apart`, which starts ``python -m
mmrepro.cli.bisect_apart FD``."""

from __future__ import annotations

import os
import pickle
import signal
import sys

from mmrepro.base.errors import BrokenScenario, MmreproError
from mmrepro.campaign import ByRun
from mmrepro.campaign.bisect import AnswerPipe, TestOrder, tested_tree
from mmrepro.cli import interrupt
from mmrepro.cli.bisect import scenario_of


def main() -> None:
    order: TestOrder = pickle.load(sys.stdin.buffer)  # noqa: S301 - mmrepro itself wrote it
    answers = AnswerPipe(int(sys.argv[1]), order.secret)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        _carry_out(order, answers)
    except MmreproError as error:
        answers.send(
            "refused",
            message=error.message,
            hint=error.hint,
            detail=error.detail,
            exit_code=int(error.exit_code),
        )
    finally:
        # Threads of the scenario's that never end, and what it registered for the end,
        # are left.
        os._exit(0)


def _carry_out(order: TestOrder, answers: AnswerPipe) -> None:
    """Raises MmreproError: the command line is wrong, or the machine is at fault."""
    before = os.fstat(1)
    try:
        scenario = scenario_of(order.asked)
    except BrokenScenario as error:
        cause = error.__cause__
        if _closed(before):
            answers.send("untestable", why="closes standard output")
        elif cause is not None and not isinstance(cause, Exception):
            answers.send(
                "untestable", why=f"raises {type(cause).__name__}, which ends a process"
            )
        else:
            raise
        return
    if _closed(before):
        answers.send("untestable", why="closes standard output")
        return
    answers.send("loaded")
    made = tested_tree(scenario, order.asked, ByRun(), order.root)
    answers.send("tested", tested=made.model_dump(mode="json"))


def _closed(before: os.stat_result) -> bool:
    """Whether standard output is another one than ``before``, or closed."""
    try:
        now = os.fstat(1)
    except OSError:
        return True
    same = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
    return not same or sys.stdout is None or sys.stdout.closed


if __name__ == "__main__":
    main()
