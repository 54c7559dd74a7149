"""The engine: takes requests in, runs step after step, gives tokens out. One thread
uses it."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence as Seq
from typing import Protocol

from .batch import Batch, BatchBuilder, Guard
from .caches import ImageCache
from .config import EngineConfig
from .scheduler import Scheduler, Step
from .sequence import Image, ImageSequence, Sequence

log = logging.getLogger(__name__)


class Runner(Protocol):
    """What runs a batch: ``runner.ModelRunner`` in torch, in tests also one of plain
    Python."""

    builder: BatchBuilder
    guard: Guard

    def begin(self, batch: Batch) -> None:
        """Queue what a GPU can do while the host prepares the next step. Once, before
        ``run``."""

    def run(self, batch: Batch) -> list[int]:
        """One token for each sequence that samples."""


class Engine:
    """One runner, one scheduler, one cache of images.

    Args:
        runner: of text.
        with_images: makes the image runner out of it when the first image comes, if not
            at once; a text-only engine never imports that code.
        eos_token_id: ends an answer; -1: none does.

    Raises:
        Exception: whatever making the image runner at once ended with.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        with_images: Callable[[], Runner],
        eos_token_id: int = -1,
    ) -> None:
        self.config = config
        self.scheduler = Scheduler(config)
        self.runner = runner
        self.eos_token_id = eos_token_id
        self.images = ImageCache(config.mm_cache_tokens, config.faults)
        self.counts: Counter[str] = Counter()
        self._make_image_runner = with_images
        self._image_runner: Runner | None = None
        self._ahead: Batch | None = None
        self._next_id = 0
        if config.images_at_start:
            log.info("the image runner is made as the engine starts")
            self._with_images()

    # ------------------------------------------------------------------ requests

    def refusal(self, tokens: int, max_tokens: int, *, images: bool = False) -> str:
        """Why a prompt of ``tokens`` tokens cannot be served; "" if it can."""
        config = self.config
        if images and not config.multimodal:
            return "this model takes no images: it was started without multimodal code"
        if not tokens:
            return "an empty prompt"
        if tokens >= config.max_model_len:
            return (
                f"Input length ({tokens}) exceeds the maximum context length "
                f"({config.max_model_len})."
            )
        room = config.usable_blocks * config.block_size
        needed = min(tokens + max_tokens, config.max_model_len)
        if needed > room and "kv-budget" not in config.faults:
            return (
                f"The request needs {needed} tokens of KV cache; there is room "
                f"for {room}."
            )
        return ""

    def add(
        self,
        token_ids: list[int],
        images: Seq[Image] = (),
        *,
        max_tokens: int = 16,
        temperature: float = 0.0,
        ignore_eos: bool = False,
    ) -> Sequence:
        """Queue a request that ``refusal`` has nothing against.

        Raises:
            AssertionError: the front promised an image that is not in the cache.
        """
        self._next_id += 1
        config = self.config
        vision = sum(image.tokens for image in images)
        max_tokens = min(max_tokens, config.max_model_len - len(token_ids) - vision)
        if images:
            received = tuple(self.images.received(image) for image in images)
            seq: Sequence = ImageSequence(
                self._next_id,
                list(token_ids),
                config.block_size,
                max_tokens,
                images=received,
                faults=config.faults,
            )
        else:
            seq = Sequence(
                self._next_id, list(token_ids), config.block_size, max_tokens
            )
        seq.temperature, seq.ignore_eos = temperature, ignore_eos
        self.scheduler.add(seq)
        self.counts["prompt_tokens"] += seq.num_tokens
        return seq

    def abort(self, seq: Sequence) -> None:
        self._finish(seq, "abort")

    @property
    def busy(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running or self._ahead)

    # ------------------------------------------------------------------ steps

    def step(self) -> list[Sequence]:
        """Run one step; the sequences that got a token or ended.

        A step that fails ends its own sequences and no others.

        Raises:
            AssertionError: the scheduler cannot go on (fault kv-budget).
        """
        batch, self._ahead = self._ahead, None
        runner = self.runner
        if batch is None:
            step = self.scheduler.schedule()
            if step is None:
                return self._failed()
            batch = runner.builder.build(step)
        step = batch.step
        changed = [chunk.seq for chunk in step.chunks if chunk.samples]
        gone = [
            chunk for chunk in step.chunks if chunk.seq not in self.scheduler.running
        ]
        # Aborted after the step was prepared: its blocks may be somebody else's.
        if gone:
            self._undo(step)
            return self._failed()
        try:
            if step.with_images:
                runner = self._with_images()
            runner.begin(batch)
            if self.config.async_scheduling and step.prefill:
                ahead = self.scheduler.schedule_ahead()
                self._ahead = runner.builder.build(ahead) if ahead else None
                if step.with_images and self._ahead and any(self._ahead.mask or ()):
                    self.counts["image_steps_ahead"] += 1
            tokens = runner.run(batch)
        except Exception as error:
            log.exception("step failed")
            victims = {id(c.seq): c.seq for c in step.chunks}
            for seq in victims.values():
                self._finish(seq, "error", f"{type(error).__name__}: {error}")
            return [*victims.values(), *self._failed()]
        self.scheduler.computed(step)
        self._note(step)
        for seq, token in zip(changed, tokens, strict=True):
            self._append(seq, token)
        return changed + self._failed()

    def _undo(self, step: Step) -> None:
        """A step that was prepared is not run: what is left of it is scheduled anew."""
        for chunk in step.chunks:
            if chunk.seq in self.scheduler.running:
                chunk.seq.num_computed, chunk.seq.prefilling = chunk.start, True

    def _with_images(self) -> Runner:
        if self._image_runner is None:
            self.runner = self._image_runner = self._make_image_runner()
            log.info("image runner ready: vision %s", self.config.vision)
        return self._image_runner

    def _append(self, seq: Sequence, token: int) -> None:
        seq.token_ids.append(token)
        self.counts["generation_tokens"] += 1
        if token == self.eos_token_id and not seq.ignore_eos:
            self._finish(seq, "stop")
        elif len(seq.output_ids) >= seq.max_tokens:
            self._finish(seq, "length")

    def _note(self, step: Step) -> None:
        for chunk in step.chunks:
            seq = chunk.seq
            if isinstance(seq, ImageSequence) and not seq.prefilling:
                seq.rows = None
            if step.prefill and chunk.start == seq.num_cached:
                self.counts["prefix_cache_queries"] += seq.num_tokens
                self.counts["prefix_cache_hits"] += seq.num_cached

    def _failed(self) -> list[Sequence]:
        """Sequences that the scheduler gave up."""
        failed, self.scheduler.failed = self.scheduler.failed, []
        for seq in failed:
            self._finish(seq, "error", "internal error happened")
        return failed

    def _finish(self, seq: Sequence, reason: str, error: str = "") -> None:
        if seq.finish_reason:
            return
        self.scheduler.finish(seq, reason, error)
        self.runner.guard.history.forget(str(seq.id))
        if isinstance(seq, ImageSequence):
            seq.rows = None
        self.counts[f"finished_{seq.finish_reason}"] += 1

    def generate(self, seqs: Iterable[Sequence]) -> list[list[int]]:
        """Run until all of ``seqs`` have ended; their new tokens. For tests and
        examples."""
        wanted = list(seqs)
        while self.busy and not all(seq.finish_reason for seq in wanted):
            self.step()
        return [seq.output_ids for seq in wanted]
