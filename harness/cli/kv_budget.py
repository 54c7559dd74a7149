"""``mmrepro kv-budget``: memory and a setting in, blocks and the longest prompt out;
and back."""

import typer
from mmrepro.base.errors import ExitCode, UnwritableOutput
from mmrepro.cli.options import command
from mmrepro.kv_budget.options import KvBudgetCommand


@command(KvBudgetCommand)
def kv_budget(asked: KvBudgetCommand) -> None:
    """Compute an engine's KV cache from its memory and its setting, and back.

    Example:  mmrepro kv-budget --free 6784MiB --runtime 5061MiB --block-bytes 8388608
    --cache-max-entry-count 0.1 --need 3446
    """
    from mmrepro.base.machine import write_file
    from mmrepro.base.records import DocumentHead
    from mmrepro.cli.console import emit, table_console
    from mmrepro.kv_budget import rendering
    from mmrepro.kv_budget.answer import answer

    result = answer(asked)
    curve = rendering.points(result.plan, min(asked.decimals, 2))
    if asked.svg is not None:
        try:
            write_file(asked.svg, rendering.svg_curve(result, curve))
        except OSError as error:
            raise UnwritableOutput(
                f"{asked.svg} cannot be written: {error.strerror}."
            ) from error
    code = ExitCode.AS_EXPECTED if result.works else ExitCode.NOT_AS_EXPECTED
    if asked.json:
        points = [[str(point.setting), point.tokens] for point in curve]
        title = result.plan.engine.title
        words = "works" if result.works else "does not work"
        head = DocumentHead(
            status="works" if result.works else "does-not-work",
            exit_code=code,
            summary=f"{title} {result.plan.release} {words} at this setting.",
        )
        emit({**result.document(), "curve": points}, head, "kv-budget")
    else:
        rendering.show(result, curve, table_console(), full=asked.full)
    raise typer.Exit(code)
