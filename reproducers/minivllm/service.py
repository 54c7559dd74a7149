"""The engine's thread, and what the HTTP front may ask of it."""

import logging
import queue
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from .caches import ImageCache
from .chat import BadRequest, Prompt
from .engine import Engine
from .sequence import Image, Sequence

log = logging.getLogger(__name__)


class EngineFailed(RuntimeError):
    """The engine could not answer; the text is what it said."""


@dataclass(eq=False)
class Ticket:
    """A request on its way; tokens come out of ``news``, then None. ``error``: why it
    failed."""

    prompt: Prompt
    images: list[Image]
    name: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex[:16]}")
    news: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)
    seq: Sequence | None = None
    error: str = ""
    given: int = 0
    aborted: bool = False


class Service:
    """Runs ``engine`` in a thread of its own; every other method may be called from any
    thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sent = ImageCache(engine.config.mm_cache_tokens, engine.config.faults)
        self.dead = ""
        self._inbox: deque[Ticket] = deque()
        self._wake = threading.Condition()
        self._open: list[Ticket] = []
        self._stopping = False
        self._thread = threading.Thread(
            target=self._loop, name="EngineCore", daemon=True
        )
        self._thread.start()

    def submit(self, prompt: Prompt) -> Ticket:
        """Raises BadRequest or EngineFailed."""
        engine = self.engine
        with self._wake:
            if self.dead:
                raise EngineFailed(f"the engine is dead: {self.dead}")
            early = "ghost-key-lru" in engine.config.faults
            # With the fault, as in vLLM up to 0.32: remembered before the length is
            # looked at.
            images = [self.sent.to_send(i) for i in prompt.images] if early else []
            refusal = engine.refusal(
                prompt.num_tokens, prompt.max_tokens, images=bool(prompt.images)
            )
            if refusal:
                raise BadRequest(refusal)
            if not early:
                images = [self.sent.to_send(i) for i in prompt.images]
            ticket = Ticket(prompt, images)
            log.info("Added request %s: %d tokens", ticket.name, prompt.num_tokens)
            self._inbox.append(ticket)
            self._wake.notify()
        return ticket

    def tokens(self, ticket: Ticket, poll_s: float = 0.2) -> Iterator[int | None]:
        """New tokens as they come; None now and then, so that the caller can look
        around.

        Raises:
            EngineFailed: the request ended in an error.
        """
        while True:
            try:
                token = ticket.news.get(timeout=poll_s)
            except queue.Empty:
                yield None
                continue
            if token is None:
                break
            yield token
        if ticket.error:
            raise EngineFailed(ticket.error)

    def abort(self, ticket: Ticket) -> None:
        """The client is gone."""
        with self._wake:
            ticket.aborted = True
            self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(5)

    def metrics(self) -> str:
        """In Prometheus' form, named as vLLM's are."""
        engine, scheduler = self.engine, self.engine.scheduler
        counts, blocks = engine.counts, scheduler.blocks
        finished = {
            k.removeprefix("finished_"): v
            for k, v in counts.copy().items()
            if k.startswith("finished_")
        }
        gauges = {
            "num_requests_running": len(scheduler.running),
            "num_requests_waiting": len(scheduler.waiting),
            "kv_cache_usage_perc": 1 - len(blocks.free) / blocks.usable,
            "kv_cache_blocks": blocks.usable,
            "kv_cache_block_size": blocks.block_size,
            "kv_cache_blocks_configured": engine.config.num_blocks - 1,
        }
        counters = {
            "prompt_tokens_total": counts["prompt_tokens"],
            "generation_tokens_total": counts["generation_tokens"],
            "num_preemptions_total": scheduler.preemptions,
            "prefix_cache_queries_total": counts["prefix_cache_queries"],
            "prefix_cache_hits_total": counts["prefix_cache_hits"],
            "mm_cache_queries_total": self.sent.queries,
            "mm_cache_hits_total": self.sent.hits,
            "mm_cache_evictions_total": engine.images.evictions,
            "image_steps_ahead_total": counts["image_steps_ahead"],
        }
        lines = []
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, value in values.items():
                lines += [
                    f"# TYPE minivllm:{name} {kind}",
                    f"minivllm:{name} {float(value)}",
                ]
        lines.append("# TYPE minivllm:request_success_total counter")
        for reason in ("stop", "length", "abort", "error"):
            label = f'{{finished_reason="{reason}"}}'
            lines.append(
                f"minivllm:request_success_total{label} "
                f"{float(finished.get(reason, 0))}"
            )
        return "\n".join(lines) + "\n"

    # ------------------------------------------------------------------ the thread

    def _loop(self) -> None:
        try:
            while True:
                with self._wake:
                    while not (self._inbox or self._stopping or self.engine.busy):
                        log.debug("EngineCore waiting for work.")
                        self._wake.wait()
                    if self._stopping:
                        return
                    incoming = list(self._inbox)
                self._take(incoming)
                self._abort_unwanted()
                if self.engine.busy:
                    self._publish(self.engine.step())
        except Exception as error:
            log.exception("the engine's loop ended")
            with self._wake:
                self.dead = f"{type(error).__name__}: {error}"
                for ticket in [*self._open, *self._inbox]:
                    self._close(ticket, f"the engine is dead: {self.dead}")

    def _take(self, incoming: list[Ticket]) -> None:
        for ticket in incoming:
            prompt = ticket.prompt
            try:
                ticket.seq = self.engine.add(
                    prompt.token_ids,
                    ticket.images,
                    max_tokens=prompt.max_tokens,
                    temperature=prompt.temperature,
                    ignore_eos=prompt.ignore_eos,
                )
                self._open.append(ticket)
            except Exception as error:
                log.exception("a request could not be added")
                self._close(ticket, f"{type(error).__name__}: {error}")
            with self._wake:
                self._inbox.popleft()

    def _abort_unwanted(self) -> None:
        for ticket in [t for t in self._open if t.aborted]:
            assert ticket.seq is not None
            log.info("Aborted request %s", ticket.name)
            self.engine.abort(ticket.seq)
            self._open.remove(ticket)

    def _publish(self, changed: list[Sequence]) -> None:
        log.debug("EngineCore loop active.")
        for ticket in [t for t in self._open if t.seq in changed]:
            seq = ticket.seq
            assert seq is not None
            for token in seq.output_ids[ticket.given :]:
                ticket.given += 1
                ticket.news.put(token)
            if seq.finish_reason:
                self._open.remove(ticket)
                self._close(ticket, seq.error)

    def _close(self, ticket: Ticket, error: str) -> None:
        ticket.error = error
        ticket.news.put(None)
