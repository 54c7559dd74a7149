"""``mmrepro kv-budget``: memory and a setting in, blocks and the longest prompt out;
and back."""

import typer
from mmrepro.base.errors import ExitCode, UnwritableOutput
from mmrepro.cli.options import command
from mmrepro.kv_budget.options import KvBudgetCommand


@command(KvBudgetCommand)
def kv_budget(asked: KvBudgetCommand) -> None:
    """Compute an engine's KV cache from its memory and its setting, and back.

    Exit codes: 0 the engine starts and the prompt fits some setting; 1 not so; 2 usage.

    Example:  mmrepro kv-budget --free 6784MiB --runtime 5061MiB --block-bytes 8388608
    --cache-max-entry-count 0.1 --need 3446
    """
    from mmrepro.base.machine import write_file
    from mmrepro.cli.console import emit
    from mmrepro.kv_budget import rendering
    from mmrepro.kv_budget.answer import answer
    from rich.console import Console

    result = answer(asked)
    curve = rendering.points(result.plan, min(asked.decimals, 2))
    if asked.svg is not None:
        try:
            write_file(asked.svg, rendering.svg_curve(result, curve))
        except OSError as error:
            raise UnwritableOutput(
                f"{asked.svg} cannot be written: {error.strerror}."
            ) from error
    if asked.json:
        points = [[str(point.setting), point.tokens] for point in curve]
        emit({**result.document(), "curve": points}, "kv-budget")
    else:
        rendering.show(result, curve, Console(), full=asked.full)
    if not result.works:
        raise typer.Exit(ExitCode.NOT_AS_EXPECTED)
