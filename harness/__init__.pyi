from mmrepro.api import (
    diagnose as diagnose,
    judge as judge,
    load as load,
    logs as logs,
    replay as replay,
    run as run,
)

__version__: str
