"""What ``import mmrepro`` gives: the functions of :mod:`mmrepro.api`, and the errors
that they raise."""

from mmrepro.api import (
    diagnose as diagnose,
    judge as judge,
    load as load,
    logs as logs,
    replay as replay,
    run as run,
    upgrade as upgrade,
)
from mmrepro.base.errors import (
    BadIncident as BadIncident,
    BrokenScenario as BrokenScenario,
    ChangedIncident as ChangedIncident,
    EngineStartError as EngineStartError,
    InfrastructureError as InfrastructureError,
    MmreproError as MmreproError,
    UnknownRelease as UnknownRelease,
    UnknownScenario as UnknownScenario,
    UsageError as UsageError,
)

__version__: str
