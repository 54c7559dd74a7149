"""Several sockets that listen on one port (SO_REUSEPORT): the kernel hands a connection
to any of them, and one that is silent shows in some connections only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mmrepro.failure.documents import TargetFacts
from mmrepro.live.diagnose import discover
from mmrepro.probes.http import Fetched, fetch

_CONNECTIONS = 5
"""For each socket: of 5 connections for each of two, one misses all of them once in a
thousand times."""
_ANSWER_S = 1.0
_PATH = "/v1/models"


@dataclass(frozen=True)
class ListenerAnswers:
    """``silent`` of ``asked`` connections got no answer from ``sockets`` sockets."""

    sockets: int
    asked: int
    silent: int

    @property
    def one_is_silent(self) -> bool:
        """Where all are silent, it is the server that is."""
        return 0 < self.silent < self.asked

    @property
    def sentence(self) -> str:
        return (
            f"{self.silent} of {self.asked} connections got no answer: one of "
            f"{self.sockets} sockets that listen on its port is silent"
        )


def listening_sockets(facts: TargetFacts) -> int:
    """How many sockets of one address listen on its port; 0: not to be seen. One that
    several processes share is one."""
    if facts.place == "remote" or facts.port is None:
        return 0
    sockets = discover.listeners(facts.port, facts.root_pid or "self")
    # IPv4 and IPv6 are two sockets of one listener.
    by_address = Counter(socket.words for socket in sockets)
    return max(by_address.values(), default=0)


def ask_all(url: str, sockets: int, headers: Mapping[str, str]) -> ListenerAnswers:
    """Ask for the list of models on so many connections that each socket gets one."""

    def ask(_: int) -> Fetched:
        return fetch(
            "GET",
            f"{url}{_PATH}",
            timeout_s=_ANSWER_S,
            max_bytes=1 << 20,
            headers=headers,
        )

    count = _CONNECTIONS * sockets
    with ThreadPoolExecutor(count, thread_name_prefix="listeners") as pool:
        answers = list(pool.map(ask, range(count)))
    silent = sum(answer.timed_out for answer in answers)
    return ListenerAnswers(sockets, count, silent)
