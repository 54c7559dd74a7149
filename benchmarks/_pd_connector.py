"""A KV connector of vLLM that moves nothing: a decode server's scheduler is real, the rest is not.

It runs inside vLLM (``kv_connector_module_path``). ``kind`` of ``kv_connector_extra_config``:
``arrives``: the cache of a remote prefill is there after a moment (its content is whatever the
blocks held); ``never``: it never is; ``local``: there is none, and the server computes the prompt.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

MOMENT_S = 0.2


class Loads(KVConnectorMetadata):
    def __init__(self, ids: list[str]) -> None:
        self.ids = ids


class Planted(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.kind = vllm_config.kv_transfer_config.kv_connector_extra_config["kind"]
        self.asked: list[str] = []
        self.since: dict[str, float] = {}

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        remote = (request.kv_transfer_params or {}).get("do_remote_prefill")
        count = request.num_prompt_tokens - 1 - computed
        if not remote or self.kind == "local" or count <= 0:
            return 0, False
        return count, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self.asked.append(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Loads:
        ids, self.asked = self.asked, []
        return Loads(ids)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for one in self._get_connector_metadata().ids:
            self.since[one] = time.monotonic()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        now = time.monotonic()
        done = {i for i, at in self.since.items() if self.kind == "arrives" and now > at + MOMENT_S}
        for one in done:
            del self.since[one]
        return None, done or None

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
