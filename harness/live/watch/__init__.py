"""A deep health check: a real small inference at an interval, and a diagnosis when it
fails."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.live.watch.health import Health as Health
    from mmrepro.live.watch.loop import (
        ServerWatch as ServerWatch,
        Together as Together,
        WatchDiagnosis as WatchDiagnosis,
        default_deadline as default_deadline,
        diagnosed as diagnosed_server,
        watch_of as watch_of,
    )
    from mmrepro.live.watch.options import WatchCommand as WatchCommand
    from mmrepro.live.watch.server import (
        WatchServer as WatchServer,
        parse_address as parse_address,
    )
else:
    __getattr__ = lazily(__name__)
