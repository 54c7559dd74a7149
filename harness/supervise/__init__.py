"""Processes of an engine: started, watched and ended by a supervisor of their own."""

from mmrepro.supervise.client import (
    EngineProcess as EngineProcess,
    free_port as free_port,
    start_engine as start_engine,
)
from mmrepro.supervise.protocol import (
    MARKER_VARIABLE as MARKER_VARIABLE,
    LaunchOrder as LaunchOrder,
    StopReport as StopReport,
)
