"""What a server says of its sizes, in its log and its metrics: context, KV cache,
block, batch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from mmrepro.base.machine.files import read_file
from mmrepro.failure.documents.replay import Learnt
from mmrepro.probes.metrics import parse_metrics

CONTEXT, KV, BLOCK, BATCH = "context", "KV cache", "block", "batch"
_LOG_BYTES = 8 << 20
_LOG = (
    (KV, re.compile(r"GPU KV cache size: ([\d,]+) tokens")),
    (KV, re.compile(r"max_total_num_tokens=(\d+)")),
    (BATCH, re.compile(r"(?:chunked_prefill_size|max_num_batched_tokens)=(\d+)")),
    (CONTEXT, re.compile(r"(?:context_len|max_session_len|max_model_len)[=: ]+(\d+)")),
)
_BLOCKS = ("num_gpu_blocks", "kv_cache_blocks"), ("block_size", "kv_cache_block_size")


def by_metrics(text: str) -> Iterator[Learnt]:
    """vLLM has blocks as labels of one metric, minivllm as metrics."""
    values: dict[str, int] = {}
    for sample in parse_metrics(text)[0]:
        if sample.value is not None:
            values[sample.name.partition(":")[2]] = int(sample.value)
        for name, text in sample.labels.items():
            if text.isdigit():
                values.setdefault(name, int(text))

    count = next((values[name] for name in _BLOCKS[0] if values.get(name)), None)
    size = next((values[name] for name in _BLOCKS[1] if values.get(name)), None)
    if size:
        yield Learnt(name=BLOCK, tokens=size, source="/metrics")
    if size and count:
        yield Learnt(name=KV, tokens=size * count, source="/metrics: blocks")


def by_log(log: Path) -> Iterator[Learnt]:
    try:
        text = read_file(log, _LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return
    for name, pattern in _LOG:
        for found in list(pattern.finditer(text))[:3]:
            tokens = int(found[1].replace(",", ""))
            yield Learnt(name=name, tokens=tokens, source=f"the log: {found[0][:60]}")
