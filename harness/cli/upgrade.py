"""``mmrepro upgrade``: two sides of an engine under the same traffic."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mmrepro.cli.options import command
from mmrepro.search.upgrade.options import UpgradeCommand


@command(UpgradeCommand)
def upgrade(asked: UpgradeCommand) -> None:
    """Compare two releases, trees or settings of an engine under your traffic.

    Starts, failures, answers, protocol, speed and memory, on servers that it starts
    itself, in turn.

    Example:  mmrepro upgrade 0.32.0 0.33.0 --engine vllm --traffic night.har
    """
    from mmrepro.campaign import TrialOptions
    from mmrepro.cli.campaign import announce_servers, carry_out, code_of_search
    from mmrepro.cli.sources import released
    from mmrepro.engines import get_engine
    from mmrepro.reports import UPGRADE_REPORT
    from mmrepro.reports.documents import keep
    from mmrepro.search.upgrade.session import Upgrading, with_servers

    old, new = asked.sides()
    before, after = (
        released(replace(asked, release=release, tree=tree), asked.engine)
        for release, tree in ((old, asked.tree), (new, asked.new_tree))
    )
    asked = with_servers(asked, before.release, after.release)
    for server in (asked.server, asked.new_server):
        get_engine(server.engine).given(server.args)
    session = Upgrading(asked, write=partial(keep, UPGRADE_REPORT))
    wanted = [(one.engine, one.release) for one in (asked.server, asked.new_server)]
    announce_servers(asked, wanted, new=session.folder)
    carry_out(
        session,
        UPGRADE_REPORT,
        asked,
        TrialOptions(),
        exit_code=code_of_search,
        jobs=None if asked.ray else 1,
        device=asked.device,
        budget_s=asked.budget_s,
    )
