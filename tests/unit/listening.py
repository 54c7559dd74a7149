"""A server that is only pretended, and that keeps what it was sent."""

import asyncio
from pathlib import Path
from typing import Any

from made_up import request
from mmrepro.scenario import Scenario
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.evidence import RequestRecord
from mmrepro.traffic.evidence.recorder import Recorder

Sent = tuple[str, list[int], dict[str, Any]]
"""Label, tokens of the images, and the rest."""


class Listening:
    """Answers everything and keeps what it was sent; ``health``: what ``/health``
    says."""

    def __init__(self, *health: int | None) -> None:
        self.sent: list[Sent] = []
        self.health = [*health]

    async def chat(self, label: str, images: Any = (), **more: Any) -> RequestRecord:
        sizes = [(picture.width, picture.height) for picture in images]
        assert all(width % 28 == height % 28 == 0 for width, height in sizes)
        tokens = [width // 28 * (height // 28) for width, height in sizes]
        self.sent.append((label, tokens, more))
        return request("trigger", label)

    async def raw(self, label: str, **_: Any) -> RequestRecord:
        return request("trigger", label, self.health.pop(0))

    def hold(self, _: object) -> None:
        pass

    @property
    def images(self) -> list[tuple[str, list[int]]]:
        return [(label, tokens) for label, tokens, _ in self.sent if tokens]


def driven(
    scenario: Scenario,
    path: Path,
    *health: int | None,
    part: str = "trigger",
    flips: str = "",
) -> Listening:
    server = Listening(*health)
    drive = Drive(
        server,  # type: ignore[arg-type]
        Recorder(path),
        scenario.model.image_size(),
        scenario.max_model_len,
        scenario.release,
        flips=frozenset(flips.split()),
    )
    asyncio.run(getattr(scenario, part)(drive))
    return server
