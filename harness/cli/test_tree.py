"""``mmrepro test-tree``: an engine's own tests on one tree, in a box."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from mmrepro.campaign.bisect import TreeTestCommand
from mmrepro.cli.console import say
from mmrepro.cli.options import command

if TYPE_CHECKING:
    from pathlib import Path

    from mmrepro.runs import UpstreamRun


@command(TreeTestCommand)
def test_tree(asked: TreeTestCommand) -> None:
    """Run tests of an engine's own tree on a CPU, in a box.

    It is green, red, or untestable, by its cause: a GPU, a model of a hub, a package,
    an operator, skipped.

    Example:  mmrepro test-tree tests/v1/core/test_scheduler.py --source ~/vllm@abc123
    """
    from mmrepro.base.errors import ExitCode
    from mmrepro.base.machine import write_file
    from mmrepro.base.records import DocumentHead
    from mmrepro.base.text import one_line
    from mmrepro.campaign.bisect import TESTS_FILE
    from mmrepro.cli.console import emit
    from mmrepro.failure.documents import prepared_folder
    from mmrepro.runs import TreeTestState

    made = tested(asked)
    if asked.out is not None:
        folder = prepared_folder(asked.out)
        write_file(folder / TESTS_FILE, made.model_dump_json(indent=1) + "\n")
    codes = {
        TreeTestState.GREEN: ExitCode.AS_EXPECTED,
        TreeTestState.RED: ExitCode.NOT_AS_EXPECTED,
        TreeTestState.UNTESTABLE: ExitCode.INCONCLUSIVE,
    }
    code = codes[made.state]
    cause = f" ({made.cause.value})" if made.cause else ""
    summary = f"{made.state.upper()}{cause}: {made.counts}"
    if asked.json:
        emit(made, DocumentHead(status=made.state, exit_code=code, summary=summary))
    else:
        say(summary)
        say(one_line(made.why, 400))
    raise typer.Exit(code)


def tested(asked: TreeTestCommand) -> UpstreamRun:
    """Run the tests that are asked for.

    Raises:
        UsageError: the tree is none of a git clone, or git refuses.
        NoBox: there is none here.
        EnvironmentBuildError: its environment cannot be made.
    """
    import tempfile
    from pathlib import Path

    from mmrepro.base.machine import device_of
    from mmrepro.engines import spec_for
    from mmrepro.engines.environments import (
        TreeLabel,
        engine_of_clone,
        ensure,
        resolve_source,
    )
    from mmrepro.runs import UpstreamSide, run_tests, unpack_tests

    place, rev = split_revision(asked.tree)
    engine = engine_of_clone(place, rev or "HEAD")
    device = device_of(asked.device)
    release = asked.release
    if TreeLabel.of(release) is None:
        source = resolve_source(
            asked.tree, kernels=asked.kernels, device=device, lender=ensure
        )
        release = source.release
        say(f"{engine} {source.tree.version}: {source.words}", stderr=True)
    environment = ensure(spec_for(engine, release, device))
    files = [test.partition("::")[0] for test in asked.tests]
    with tempfile.TemporaryDirectory(prefix="mmrepro-test-") as name:
        folder = Path(name)
        unpack_tests(place, rev or "HEAD", folder, newer=asked.newer, files=files)
        side = UpstreamSide(environment, folder, asked.tests)
        [made] = run_tests([side], limit_s=asked.timeout_s)
    return made


def split_revision(text: str) -> tuple[Path, str]:
    """The clone and the revision of ``DIR[@REV]``."""
    from pathlib import Path

    place = Path(text).expanduser()
    if place.exists() or "@" not in text:
        return place, ""
    before, _, rev = text.rpartition("@")
    return Path(before).expanduser(), rev
