"""Several servers in one look: replicas, and pairs of a prefill and a decode server."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.live.fleet.session import (
        is_several as is_several,
        look as diagnose_fleet,
        servers as servers_asked_for,
        with_servers as with_servers,
    )
    from mmrepro.live.fleet.through import look_through as look_through
else:
    __getattr__ = lazily(__name__)
