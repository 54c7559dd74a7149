"""What a server says of its sizes, in its log and its metrics: context, KV cache,
block, batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mmrepro.base.machine import read_file
from mmrepro.failure.documents.replay import Learnt
from mmrepro.probes import parse_metrics

CONTEXT = "context"
KV = "KV cache"
BLOCK = "block"
BATCH = "batch"
_LOG_BYTES = 8 << 20
_LOG = (
    (KV, re.compile(r"GPU KV cache size: ([\d,]+) tokens")),
    (KV, re.compile(r"max_total_num_tokens=(\d+)")),
    (BATCH, re.compile(r"(?:chunked_prefill_size|max_num_batched_tokens)=(\d+)")),
    (CONTEXT, re.compile(r"(?:context_len|max_session_len|max_model_len)[=: ]+(\d+)")),
)
_BLOCK_COUNT = ("num_gpu_blocks", "kv_cache_blocks")
_BLOCK_SIZE = ("block_size", "kv_cache_block_size")


def by_metrics(text: str) -> Iterator[Learnt]:
    """vLLM has blocks as labels of one metric, minivllm as metrics."""
    values: dict[str, int] = {}
    for sample in parse_metrics(text)[0]:
        if sample.value is not None:
            values[sample.name.partition(":")[2]] = int(sample.value)
        for name, label in sample.labels.items():
            if label.isdigit():
                values.setdefault(name, int(label))

    size = _first_of(values, _BLOCK_SIZE)
    count = _first_of(values, _BLOCK_COUNT)
    if size:
        yield Learnt(name=BLOCK, tokens=size, source="/metrics")
    if size and count:
        yield Learnt(name=KV, tokens=size * count, source="/metrics: blocks")


def _first_of(values: Mapping[str, int], names: Sequence[str]) -> int:
    """The first of these values that is there; 0: none."""
    for name in names:
        if values.get(name):
            return values[name]

    return 0


def by_log(log: Path) -> Iterator[Learnt]:
    """What the log prints of its sizes. A log that cannot be read has none."""
    try:
        text = read_file(log, _LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return

    for name, pattern in _LOG:
        # Each process of an engine prints it once; more says nothing new.
        for match in list(pattern.finditer(text))[:3]:
            tokens = int(match[1].replace(",", ""))
            yield Learnt(name=name, tokens=tokens, source=f"the log: {match[0][:60]}")
