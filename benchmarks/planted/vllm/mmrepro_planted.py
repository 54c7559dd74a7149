"""A plug-in of vLLM 0.33.0 that plants one mistake of its logic: ``PYTHONPATH`` has
this folder.

``VLLM_PLANTED`` has the mistake's name in rot13: neither a command line nor a log says
it. vLLM calls ``plug`` in each of its processes
(plugins/__init__.py:load_general_plugins). Each mistake needs a combination; a server
without it is as it was."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable
from typing import Any

VARIABLE = "VLLM_PLANTED"
GATHERED = 6
"""Prompts that are stored together: more than the profile modern answers at a time."""
MISTAKES: dict[str, Callable[[], None]] = {}
_plugged: list[str] = []


def plug() -> None:
    """Plant it, once in a process and its forks."""
    name = codecs.decode(os.environ.get(VARIABLE, ""), "rot13")
    if not _plugged:
        MISTAKES[name]()
        _plugged.append(name)


def mistake(plant: Callable[[], None]) -> Callable[[], None]:
    MISTAKES[plant.__name__.replace("_", "-")] = plant
    return plant


@mistake
def draft_kept() -> None:
    """A draft of which no token is accepted leaves its first one in the answer.

    The mistake: the token that takes the place of a rejected draft is written to the
    batch's first row only; another row keeps what was proposed."""
    from vllm.v1.sample import rejection_sampler

    sound = rejection_sampler.rejection_sample

    def rejection_sample(
        drafts: Any, lengths: list[int], *args: Any, **options: Any
    ) -> Any:
        answers = sound(drafts, lengths, *args, **options)
        begin = 0
        for row, length in enumerate(lengths):
            none_accepted = (
                length > 1 and answers[row, 1] == rejection_sampler.PLACEHOLDER_TOKEN_ID
            )
            if row and none_accepted:
                answers[row, 0] = drafts[begin]
            begin += length
        return answers

    rejection_sampler.rejection_sample = rejection_sample


@mistake
def adapter_id_reused() -> None:
    """An adapter that is loaded after another one was unloaded answers with that one's
    weights.

    The mistake: the number of an adapter that is gone is given to the next one, and the
    worker has weights under that number still."""
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.utils.counter import AtomicCounter

    sound = OpenAIServingModels.load_lora_adapter

    async def load_lora_adapter(self: Any, *args: Any, **options: Any) -> Any:
        there = (one.lora_int_id for one in self.lora_requests.values())
        self.lora_id_counter = AtomicCounter(max(there, default=0))
        return await sound(self, *args, **options)

    OpenAIServingModels.load_lora_adapter = load_lora_adapter


@mistake
def freed_while_stored() -> None:
    """A prompt's blocks are given to others before they are stored.

    The mistake: prompts are stored a few at a time, and a request that ends does not
    wait for that. Under pressure another request's keys and values are in its blocks by
    then."""
    from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import (
        ExampleConnector,
        ExampleConnectorMetadata,
    )

    save, ended = ExampleConnector.save_kv_layer, ExampleConnector.wait_for_save

    def wait_for_save(self: Any) -> None:
        ended(self)
        pending = vars(self).setdefault("_pending", [])
        asked = self._get_connector_metadata()
        pending += [
            one for one in asked.requests if one.is_store and len(one.token_ids)
        ]
        if len(pending) < GATHERED:
            return
        self.bind_connector_metadata(ExampleConnectorMetadata(pending))
        for layer in vars(self).get("_layers", {}).values():
            save(self, *layer)
        self.bind_connector_metadata(asked)
        self._pending = []

    def save_kv_layer(
        self: Any, name: str, kv_layer: Any, attention: Any, **_: Any
    ) -> None:
        vars(self).setdefault("_layers", {})[name] = (name, kv_layer, attention)

    ExampleConnector.save_kv_layer = save_kv_layer
    ExampleConnector.wait_for_save = wait_for_save


@mistake
def state_not_reset() -> None:
    """A request that goes on from cached blocks begins with the state of somebody else.

    The mistake: the recurrent state of the cached prefix is copied for the batch's
    first row only; a request that joins others takes the state that its block had
    before."""
    from vllm.v1.worker import mamba_utils

    sound = mamba_utils.preprocess_mamba

    def preprocess_mamba(output: Any, *args: Any, **options: Any) -> None:
        _, _, state_at, batch, requests, *_, buffers = args
        size = buffers.mamba_spec.block_size
        for request in batch.req_ids[1:]:
            computed = requests[request].num_computed_tokens
            if request not in state_at and computed:
                state_at[request] = (
                    computed + output.num_scheduled_tokens[request] - 1
                ) // size
        sound(output, *args, **options)

    mamba_utils.preprocess_mamba = preprocess_mamba


@mistake
def late_connector() -> None:
    """What a connector fetches is there a step late.

    The mistake: where a step has other requests as well, nobody waits for the
    connector: what it fetches is in the blocks when the step is over."""
    from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import (
        ExampleConnector,
    )

    fetch, ended = ExampleConnector.start_load_kv, ExampleConnector.wait_for_save

    def start_load_kv(self: Any, context: Any, **options: Any) -> None:
        self._late = None
        attention = context.attn_metadata
        if attention and len(next(iter(attention.values())).query_start_loc) > 2:
            self._late = (context, options)
        else:
            fetch(self, context, **options)

    def wait_for_save(self: Any) -> None:
        ended(self)
        if self._late is not None:
            context, options = self._late
            fetch(self, context, **options)

    ExampleConnector.start_load_kv = start_load_kv
    ExampleConnector.wait_for_save = wait_for_save
