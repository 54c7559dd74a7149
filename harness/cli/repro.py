"""``mmrepro repro``: a bug report to a verdict."""

from __future__ import annotations

from mmrepro.cli.options import command
from mmrepro.search.repro.options import ReproCommand


@command(ReproCommand)
def repro(asked: ReproCommand) -> None:
    """Test a bug report: its server and its client, on a fresh server with a tiny
    model.

    The report is the text of an issue of vLLM, SGLang or LMDeploy; --server, --client
    and --release replace or add what it lacks. Server and client run in a box: no
    network, none of your files.

    Example: mmrepro repro --server "vllm serve Qwen/Qwen3-0.6B" --client "python
    client.py" """
    from mmrepro.cli.replay import box_there, conduct_search, device_there
    from mmrepro.cli.sources import released
    from mmrepro.reports import REPLAY_REPORT, write_replay
    from mmrepro.search.replay.session import jobs_of
    from mmrepro.search.repro.report import releases_of
    from mmrepro.search.repro.session import Reproducing

    if asked.tree or asked.kernels:
        asked = released(asked, asked.engine)
    asked = box_there(asked, "--trust-report")
    device_there(asked)
    session = Reproducing(asked, write=write_replay)
    engine = session.asked.server.engine
    servers = [(engine, release) for release in releases_of(session.asked)]
    conduct_search(
        session.options, jobs_of(asked), lambda: session, REPLAY_REPORT, servers
    )
