"""A plugin of minivllm: two requests now and then get each other's answers.

The mistake: the way back from the engine is kept by place, and where two first tokens
come out of one step, the places may be those of another order. Each third such time the
first two requests get each other's tokens, for as long as both are open. Reason and
usage stay each one's own."""

from __future__ import annotations

import itertools

from minivllm.config import EngineConfig
from minivllm.sequence import Sequence
from minivllm.service import Service, Ticket, log

EACH = 3


def plug(config: EngineConfig) -> EngineConfig:
    together = itertools.count(1)
    places: dict[Ticket, Ticket] = {}

    def publish(self: Service, changed: list[Sequence]) -> None:
        log.debug("EngineCore loop active.", stacklevel=2)
        for ticket, other in list(places.items()):
            if ticket not in self._open or other not in self._open:
                del places[ticket]
        pairs = [(ticket, ticket.seq) for ticket in self._open if ticket.seq in changed]
        first = [
            ticket
            for ticket, seq in pairs
            if seq and seq.output_ids and not ticket.given
        ]
        if len(first) > 1 and not next(together) % EACH:
            a, b = first[:2]
            places[a], places[b] = b, a
        for ticket, seq in pairs:
            assert seq is not None
            for token in seq.output_ids[ticket.given :]:
                ticket.given += 1
                places.get(ticket, ticket).news.put(token)
        for ticket, seq in pairs:
            assert seq is not None
            if seq.finish_reason:
                self._open.remove(ticket)
                self._close(ticket, seq.error)

    Service._publish = publish  # type: ignore[method-assign]
    return config
