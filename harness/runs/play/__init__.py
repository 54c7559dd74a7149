"""A case on a fresh server: the requests of the case, by their barriers, and what came
of them."""

from typing import TYPE_CHECKING

from mmrepro.base.door import lazily

if TYPE_CHECKING:
    from mmrepro.runs.play.limits import (
        BATCH as BATCH_LIMIT,
        BLOCK as BLOCK_LIMIT,
        CONTEXT as CONTEXT_LIMIT,
        KV as KV_LIMIT,
        by_log as limits_by_log,
        by_metrics as limits_by_metrics,
    )
    from mmrepro.runs.play.observing import (
        CANARY_AFTER as CANARY_AFTER,
        CANARY_BEFORE as CANARY_BEFORE,
    )
    from mmrepro.runs.play.options import (
        Measuring as Measuring,
        PlayOptions as PlayOptions,
        Servers as Servers,
    )
    from mmrepro.runs.play.player import (
        RECORDED as RECORDED,
        Player as Player,
        replayed as replayed,
    )
    from mmrepro.runs.play.players import Players as Players
else:
    __getattr__ = lazily(__name__)
