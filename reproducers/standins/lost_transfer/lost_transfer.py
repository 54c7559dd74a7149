"""A KV connector of vLLM whose transfers never arrive: the prefill server is gone.

It runs inside vLLM (``kv_connector_module_path``). A request whose prompt was computed
elsewhere (``do_remote_prefill`` of its ``kv_transfer_params``) waits for its KV cache,
as with NIXL or Mooncake; nothing is ever sent. ``gives_up_s`` of
``kv_connector_extra_config``: seconds after which it reports that a transfer has
failed, as a transport with a deadline of its own does; 0: never. Any other request is
computed here."""

from __future__ import annotations

import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)


class _TransferMetadata(KVConnectorMetadata):
    """Requests whose transfers begin with a step: the blocks of each, by its id."""

    def __init__(self, blocks: dict[str, list[int]]) -> None:
        self.blocks = blocks


class LostTransfer(KVConnectorBase_V1):
    def __init__(
        self, vllm_config: Any, role: Any, kv_cache_config: Any = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.gives_up_s = float(extra.get("gives_up_s", 0))
        self.asked: dict[str, list[int]] = {}
        self.under_way: dict[str, tuple[float, list[int]]] = {}
        self.failed: set[int] = set()

    def get_num_new_matched_tokens(
        self, request: Any, computed: int
    ) -> tuple[int, bool]:
        remote = (request.kv_transfer_params or {}).get("do_remote_prefill")
        count = request.num_prompt_tokens - 1 - computed
        return (count, True) if remote and count > 0 else (0, False)

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        if num_external_tokens > 0:
            self.asked[request.request_id] = blocks.get_block_ids()[0]

    def build_connector_meta(self, scheduler_output: Any) -> _TransferMetadata:
        asked, self.asked = self.asked, {}
        return _TransferMetadata(asked)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for one, blocks in self._get_connector_metadata().blocks.items():
            self.under_way[one] = time.monotonic(), blocks

    def get_finished(
        self, finished_req_ids: set[str]
    ) -> tuple[set[str] | None, set[str] | None]:
        limit = time.monotonic() - self.gives_up_s
        over = {
            one
            for one, (at, _) in self.under_way.items()
            if self.gives_up_s and at < limit
        }
        for one in over:
            self.failed.update(self.under_way.pop(one)[1])
        return None, over or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self.failed = self.failed, set()
        return failed

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_for_save(self) -> None: ...
