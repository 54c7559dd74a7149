"""A KV connector of vLLM that moves nothing: a decode server's scheduler is real, the
rest is not.

It runs inside vLLM (``kv_connector_module_path``), beside
reproducers/standins/lost_transfer. ``kind`` of ``kv_connector_extra_config``:
``arrives``: the cache of a remote prefill is there after a moment (its content is
whatever the blocks held); ``never``: it never is; ``local``: there is none, and the
server computes the prompt."""

from __future__ import annotations

import time
from typing import Any

from lost_transfer import LostTransfer

MOMENT_S = 0.2


class Planted(LostTransfer):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.kind = vllm_config.kv_transfer_config.kv_connector_extra_config["kind"]

    def get_num_new_matched_tokens(
        self, request: Any, computed: int
    ) -> tuple[int, bool]:
        if self.kind == "local":
            return 0, False
        return super().get_num_new_matched_tokens(request, computed)

    def get_finished(
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        limit = time.monotonic() - MOMENT_S
        there = {one for one, (at, _) in self.under_way.items() if at < limit}
        if self.kind != "arrives" or not there:
            return None, None
        for one in there:
            del self.under_way[one]
        return None, there
