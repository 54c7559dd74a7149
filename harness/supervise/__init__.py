"""Processes of an engine: started, watched and ended by a supervisor of their own."""

from mmrepro.supervise.client import (
    EngineProcess as EngineProcess,
    answers as answers,
    free_port as free_port,
    start_engine as start_engine,
)
from mmrepro.supervise.supervisor import (
    Entry as Entry,
    LaunchOrder as LaunchOrder,
    StopReport as StopReport,
)
