"""``mmrepro matrix simulate``: what a night would take on so many machines."""

from __future__ import annotations

from mmrepro.cli.options import command
from mmrepro.matrix.options import SimulateCommand


@command(SimulateCommand)
def simulate(asked: SimulateCommand) -> None:
    """Say what a night would take on several machines: nothing is run or fetched.

    The cells are given out as matrix run does it, with the times that were measured.

    Example:  mmrepro matrix simulate nightly.toml --machines 1,2,4 --ledger nights
    """
    from mmrepro.cli.matrix_simulated import execute

    execute(asked)
