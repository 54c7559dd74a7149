"""Processes of an engine: started, watched and ended by a supervisor of their own."""

from mmrepro.supervise.client import EngineProcess, free_port, start_engine
from mmrepro.supervise.protocol import MARKER_VARIABLE, LaunchOrder, StopReport

__all__ = [
    "MARKER_VARIABLE",
    "EngineProcess",
    "LaunchOrder",
    "StopReport",
    "free_port",
    "start_engine",
]
