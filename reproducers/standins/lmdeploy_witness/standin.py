"""Reads LMDeploy's live values as a debugger would, and changes none.

Each value becomes a line of the server's log: ``mmrepro-witness-EVENT {json}``. Events:

* ``budget``: what the engine's own sizing of the KV cache returned, function by
  function.
* ``limit``: the configuration of the cache and the longest prompt that follows from it.
* ``request``: tokens of a request, the instance's limit, and the status that the engine
  answered.
* ``vision``: how long the vision encoder took, and how long the request's text and
  image together were prepared.
"""

import functools
import inspect
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from types import FrameType
from typing import Any

from mmrepro_boot import after_import

_SIZING = {
    "get_gpu_memory": "memory",  # (free, total) bytes, as torch.cuda.mem_get_info says
    "__get_runtime_size": "runtime",  # (bytes kept back, prefill tokens): up to 0.7.1
    "_get_runtime_size": "runtime",  # later
    "get_cache_block_size": "block_bytes",
    "__get_free_gpu_mem_size": "pool",  # (free - kept back) x cache_max_entry_count: up to 0.7.1
    "gather_free_mem": "free_mems",
    "_get_rank_cache_block_sizes": "rank_block_bytes",  # 0.18.0
}


def say(event: str, values: dict[str, Any]) -> None:
    line = f"\nmmrepro-witness-{event} {json.dumps(values, default=str)}\n"
    os.write(2, line.encode())  # at once, whatever other threads write


def plain(value: Any) -> Any:
    """Numbers as they are, tuples as lists; anything else by its text."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return (
        value if isinstance(value, (int, float, str)) or value is None else str(value)
    )


def _watch_sizing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Note what the functions named in ``_SIZING`` return while ``function`` runs."""

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        seen: dict[str, Any] = {}
        before = sys.getprofile()

        def profile(frame: FrameType, event: Any, value: Any) -> None:
            if before is not None:  # somebody else is looking as well
                before(frame, event, value)
            name = _SIZING.get(frame.f_code.co_name)
            if event == "return" and name and "lmdeploy" in frame.f_code.co_filename:
                seen[name] = plain(value)

        sys.setprofile(profile)
        try:
            return function(*args, **kwargs)
        finally:
            sys.setprofile(before)
            say("budget", seen)

    return watched


def _in_model_agent(module: Any) -> None:
    """Where the cache is sized up to 0.7.1."""
    if hasattr(module, "_update_cache_config"):
        module._update_cache_config = _watch_sizing(module._update_cache_config)


def _in_executor(module: Any) -> None:
    """Where it is sized later."""
    module.ExecutorBase.update_configs = _watch_sizing(
        module.ExecutorBase.update_configs
    )


_CACHE_CONFIG = (
    "cache_max_entry_count",
    "num_gpu_blocks",
    "num_reserved_gpu_blocks",
    "block_size",
    "max_prefill_token_num",
    "window_size",
)


def _in_engine(module: Any) -> None:
    original = module.Engine._get_max_session_len

    @functools.wraps(original)
    def get_max_session_len(self: Any) -> Any:
        limit = original(self)
        config = {n: plain(getattr(self.cache_config, n, None)) for n in _CACHE_CONFIG}
        say("limit", {**config, "max_session_len": limit})
        return limit

    module.Engine._get_max_session_len = get_max_session_len


def _in_instance(module: Any) -> None:
    original = module.EngineInstance.async_stream_infer

    @functools.wraps(original)
    async def async_stream_infer(
        self: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        bound = inspect.signature(original).bind(self, *args, **kwargs)
        began, status, generated = time.perf_counter(), None, 0
        try:
            async with aclosing(original(self, *args, **kwargs)) as outputs:
                async for output in outputs:
                    status = getattr(output.status, "name", output.status)
                    generated = getattr(output, "num_token", None) or generated
                    yield output
        finally:
            values = {
                "input_tokens": len(bound.arguments["input_ids"]),
                "max_input_len": self.max_input_len,
                "status": status,
                "generated": generated,
                "seconds": round(time.perf_counter() - began, 4),
            }
            say("request", values)

    module.EngineInstance.async_stream_infer = async_stream_infer


def _in_vision(module: Any) -> None:
    encoder = module.ImageEncoder
    for name in ("preprocess", "forward", "async_infer"):
        if hasattr(encoder, name):
            setattr(encoder, name, timed(getattr(encoder, name), name))


def timed(function: Callable[..., Any], step: str) -> Callable[..., Any]:
    def done(began: float) -> None:
        say("vision", {"step": step, "seconds": round(time.perf_counter() - began, 4)})

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waited(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return await function(*args, **kwargs)
            finally:
                done(began)

        return waited

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            done(began)

    return called


after_import("lmdeploy.pytorch.engine.model_agent", _in_model_agent)
after_import("lmdeploy.pytorch.engine.executor.base", _in_executor)
after_import("lmdeploy.pytorch.engine.engine", _in_engine)
after_import("lmdeploy.pytorch.engine.engine_instance", _in_instance)
after_import("lmdeploy.vl.engine", _in_vision)
