"""Runs text: prefill and decode by token id. Knows nothing of images (``images`` adds
them)."""

import logging
import time
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .batch import Batch, BatchBuilder, Guard
from .caches import NULL_BLOCK
from .config import EngineConfig
from .model import Context, KVCache, Qwen3
from .scheduler import Chunk, Step
from .sequence import Sequence

log = logging.getLogger(__name__)

_GRAPH_BATCHES = (1, 2, 4, 8, 16, 32)


def sample(logits: torch.Tensor, temperatures: Seq[float]) -> list[int]:
    """One token a row of ``logits`` (rows, vocabulary); temperature 0 takes the most
    likely."""
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    warm = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if warm:
        scale = torch.tensor([temperatures[row] for row in warm], device=logits.device)
        probabilities = torch.softmax(logits[warm].float() / scale[:, None], dim=-1)
        for row, token in zip(warm, torch.multinomial(probabilities, 1)[:, 0].tolist()):  # noqa: B905
            tokens[row] = token
    return tokens


class ModelRunner:
    """The text path.

    Args:
        model: with its weights, on the config's device.
        cache: an existing one is taken over; None: a new one.
    """

    def __init__(
        self, config: EngineConfig, model: Qwen3, cache: KVCache | None = None
    ) -> None:
        self.config = config
        self.model = model
        self.builder = BatchBuilder(config, self._mask_buffer())
        self.guard = Guard(config)
        weight = model.embed_tokens.weight
        self.cache = cache or KVCache(
            model.config,
            config.num_blocks,
            config.block_size,
            config.device,
            weight.dtype,
        )
        self.graphs: dict[int, tuple[Any, dict[str, Tensor], Tensor]] = {}
        self.warm_up()

    # ------------------------------------------------------------------ warm-up

    def warm_up(self) -> None:
        """One prefill in the null block: the first request is not the first to run the
        code."""
        with torch.inference_mode():
            self.prefill(self.warm_up_batch(self.warm_up_sequences()))
            if self.config.device == "cuda" and not self.graphs:
                self._capture()

    def warm_up_sequences(self) -> list[Sequence]:
        return [Sequence(-1, [0] * self.config.block_size, self.config.block_size)]

    def warm_up_batch(self, seqs: list[Sequence]) -> Batch:
        for seq in seqs:
            seq.block_table = [NULL_BLOCK] * seq.num_blocks
        return self.builder.build(
            Step([Chunk(s, 0, s.num_tokens) for s in seqs], prefill=True)
        )

    def _mask_buffer(self) -> memoryview | None:
        """Fault reused-mask on a GPU: memory that it copies from while the host goes
        on."""
        config = self.config
        if config.device == "cpu" or "reused-mask" not in config.faults:
            return None
        pinned = torch.zeros(
            config.max_batched_tokens, dtype=torch.uint8, pin_memory=True
        )
        return memoryview(pinned.numpy())

    # ------------------------------------------------------------------ steps

    def begin(self, batch: Batch) -> None:
        """Nothing: of text the host waits for the device at each step's end only."""

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[int]:
        """One new token for each sequence that samples. Raises what the model
        raises."""
        hidden = self.prefill(batch) if batch.step.prefill else self.decode(batch)
        if not batch.last:
            return []
        logits = self.model.logits(hidden[batch.last])
        temperatures = [c.seq.temperature for c in batch.step.chunks if c.samples]
        return sample(logits, temperatures)

    def prefill(self, batch: Batch) -> Tensor:
        """Hidden states (N, hidden)."""
        self.guard.check(batch)
        ids = self._tensor(batch.token_ids)
        return self.model(
            ids, self._tensor(batch.positions), self.cache, self.context(batch)
        )

    def decode(self, batch: Batch) -> Tensor:
        """By token id, whatever the prompt was: images are in the cache by now."""
        self.guard.check(batch)
        ids, positions = self._tensor(batch.token_ids), self._tensor(batch.positions)
        context = self.context(batch)
        if self.graphs and batch.num_tokens <= max(self.graphs):
            return self._replay(ids, positions, context)
        return self.model(ids, positions, self.cache, context)

    def context(self, batch: Batch) -> Context:
        width = max(map(len, batch.block_tables))
        tables = [[*t, *[NULL_BLOCK] * (width - len(t))] for t in batch.block_tables]
        starts = batch.cu_seqlens_q if batch.step.prefill else None
        slots, lens = self._tensor(batch.slot_mapping), self._tensor(batch.context_lens)
        return Context(slots, lens, self._tensor(tables), starts, batch.context_lens)

    def _tensor(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.config.device)

    # ------------------------------------------------------------------ CUDA graphs

    def _capture(self) -> None:
        """Decode for a few batch sizes, at the widest block table; smaller batches are
        padded.

        The largest first, so that the others fit into its memory; no two run at a time.
        """
        began = time.monotonic()
        width = -(-self.config.max_model_len // self.config.block_size)
        most = self.config.max_num_seqs
        side, pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        for size in [most, *reversed([b for b in _GRAPH_BATCHES if b < most])]:
            inputs = {
                name: torch.zeros(size, dtype=torch.int64, device="cuda")
                for name in ("ids", "positions", "slots")
            }
            inputs["lens"] = torch.ones(size, dtype=torch.int64, device="cuda")
            inputs["tables"] = torch.zeros(
                (size, width), dtype=torch.int64, device="cuda"
            )
            context = Context(inputs["slots"], inputs["lens"], inputs["tables"])
            arguments = (inputs["ids"], inputs["positions"], self.cache, context)
            side.wait_stream(torch.cuda.current_stream())
            # What comes up with a first run must not be captured.
            with torch.cuda.stream(side):
                self.model(*arguments)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                hidden = self.model(*arguments)
            self.graphs[size] = (graph, inputs, hidden)
        took = time.monotonic() - began
        log.info(
            "decode graphs of %s sequences captured in %.2f s",
            sorted(self.graphs),
            took,
        )

    def _replay(self, ids: Tensor, positions: Tensor, context: Context) -> Tensor:
        count = len(ids)
        size = min(b for b in self.graphs if b >= count)
        graph, inputs, hidden = self.graphs[size]
        for (
            name
        ) in inputs:  # rows of padding write to the null block and see one token of it
            inputs[name].fill_(1 if name == "lens" else 0)
        given = {
            "ids": ids,
            "positions": positions,
            "slots": context.slots,
            "lens": context.lens,
        }
        for name, values in given.items():
            inputs[name][:count] = values
        inputs["tables"][:count, : context.tables.shape[1]] = context.tables
        graph.replay()
        return hidden[:count]


def read_weights(folder: Path, prefix: str = "") -> dict[str, Tensor]:
    """Tensors of ``model.safetensors`` whose names start with ``prefix``."""
    from safetensors import safe_open

    with safe_open(str(folder / "model.safetensors"), "pt") as file:
        names = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
        return {name: file.get_tensor(name) for name in names}
