"""What a scenario's ``gate`` and ``trigger`` may do to a running engine."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrepro.traffic.pictures import Picture, noise

# An HTTP client takes a while to import, and a scenario is often only read.
if TYPE_CHECKING:
    from mmrepro.traffic.client import Traffic
    from mmrepro.traffic.evidence import RequestRecord
    from mmrepro.traffic.evidence.recorder import Recorder

_GATE_DEADLINE_S = 60.0
"""For requests of the gate: nothing is known of latencies yet, and the first one warms
up."""


@dataclass
class Drive:
    """The scenario's hands.

    Attributes:
        image_size: (width, height) in pixels of an image that fills the model's token
            budget.
        max_model_len: tokens that prompt and answer may have.
        release: of the engine, e.g. ``0.23.0``.
        mitigations: names of those applied.
        flips: names of the factors that are not left as in the failing baseline.
        deadline_s: seconds after which a request counts as unanswered; derived from the
            warm-up check.
        options: of the scenario, as given with ``--option``.
        python: the interpreter of the engine's environment.
        model: the folder of the served model.
        reproducer_env: variables for the scenario's reproducers, besides the server's.
        suspect_s: seconds after which an unanswered request makes the trigger stop and
            look, while the request itself keeps waiting for its full deadline.
    """

    traffic: Traffic
    recorder: Recorder
    image_size: tuple[int, int]
    max_model_len: int
    release: str
    mitigations: frozenset[str] = frozenset()
    flips: frozenset[str] = frozenset()
    deadline_s: float = _GATE_DEADLINE_S
    suspect_s: float = _GATE_DEADLINE_S
    options: Mapping[str, str] = field(default_factory=dict)
    python: Path | None = None
    model: Path | None = None
    reproducer_env: dict[str, str] = field(default_factory=dict)
    pending: list[asyncio.Task[RequestRecord]] = field(default_factory=list)

    def picture(
        self, name: str, seed: int, size: tuple[int, int] | None = None
    ) -> Picture:
        """Make a picture of noise, the same for the same seed."""
        return noise(name, seed, size or self.image_size)

    def note(self, text: str) -> None:
        """Put a line into the timeline."""
        self.recorder.event(text, source="scenario")

    def fact(self, name: str, value: str | int | float | bool | None) -> None:
        """Keep a measured value for the signature."""
        self.recorder.evidence.facts[name] = value

    def attach(self, name: str, data: bytes) -> Path:
        """Keep a file below ``evidence/``; returns where."""
        from mmrepro.base.machine import write_file

        path = self.recorder.dir / name
        write_file(path, data)
        return path

    async def chat(
        self,
        label: str,
        *,
        text: str = "hi",
        images: Sequence[Picture] = (),
        max_tokens: int = 4,
        stream: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> RequestRecord:
        """One request, waited for until the full deadline."""
        return await self.traffic.chat(
            label,
            text=text,
            images=images,
            max_tokens=max_tokens,
            deadline_s=self.deadline_s,
            stream=stream,
            extra=extra,
        )

    async def ask(self, label: str, **request: Any) -> RequestRecord | None:
        """One request of the trigger (see :meth:`chat`); None: it is stuck, and waits
        on.

        ``image``: a picture, or the size in pixels of one that is made for the label.
        """
        image = request.pop("image", None)
        if isinstance(image, tuple):
            image = self.picture(label, zlib.crc32(label.encode()) % 100_000, image)
        if image is not None:
            request["images"] = [image]
        elif "images" not in request:
            request.setdefault("text", "hello")
        return await self.unless_stuck(self.chat(label, **request))

    async def unless_stuck(
        self, request: Awaitable[RequestRecord]
    ) -> RequestRecord | None:
        """Return the record of ``request``; None when it is unanswered after ``suspect_s``.

        A suspect keeps waiting in the background, beyond its deadline if need be, so
        that the check looks at the engine while the request still hangs; ``collect``
        ends that."""
        task = asyncio.ensure_future(request)
        # At once: a trigger that is cancelled here leaves no orphan.
        self.pending.append(task)
        done, _ = await asyncio.wait({task}, timeout=self.suspect_s)
        if not done:
            self.traffic.hold(task)
            return None
        self.pending.remove(task)
        return task.result()

    async def collect(self) -> None:
        """Wait for what still runs, each until its own deadline."""
        for task in self.pending:
            self.traffic.release(task)
        await asyncio.gather(*self.pending)

    async def metric(self, name: str) -> float | None:
        """Return the sum of a metric over all label sets, now; None if it cannot be
        read."""
        from mmrepro.probes import parse_metrics

        text = await self.traffic.scrape(deadline_s=min(5.0, self.deadline_s))
        samples, _ = parse_metrics(text)
        values: list[float] = []
        for sample in samples:
            if sample.name == name and sample.value is not None:
                values.append(sample.value)
        return sum(values) if values else None

    async def text_of_tokens(self, tokens: int) -> str:
        """Return a plain text of about ``tokens`` tokens by the server's own tokenizer, not
        above."""
        unit = "a "
        sample = 256
        counted = await self.traffic.count_tokens(unit * sample)
        per_unit = counted / sample if counted else 2.0
        return unit * int(tokens / per_unit)
