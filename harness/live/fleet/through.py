"""A gateway, and the servers behind it: each hop is asked by itself, and the request
goes through all of them.

A gateway's answer says little of who is wrong: it answers 200 from a cache, 502 for a
worker that is dead, or routes around it. What its workers answer to the same request
says it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from mmrepro.base.errors import UsageError
from mmrepro.base.records import Moment
from mmrepro.base.units import count
from mmrepro.failure.documents import HOP_WORDS, Certainty, GatewayChain, Hop, HopState
from mmrepro.live.diagnose.discover import parse_url
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.probes import InferenceData, run_probe
from mmrepro.probes.http import (
    Fetched,
    InferenceProbe,
    api_root,
    connection_refused,
    fetch,
)

_LIST_S = 5.0
_PATIENT_S = 20.0
"""Time limit for the list of servers of a gateway that answers other requests:
LiteLLM's first list may come late."""
_MAX_BYTES = 4 << 20
_MOST_WORKERS = 64
_EACH = 3
"""Requests through the gateway for each worker: each of two is met by six of them but
once in 32 times, and a gateway that goes round meets each."""
_SLOW_S, _SLOW_TIMES = 2.0, 5.0
"""A hop is slow that takes so much longer than the quickest of them, and so often."""
_PLACEHOLDERS = frozenset({"", "unknown", "default"})
"""Names that routers list for a model that they do not know."""


@dataclass(frozen=True)
class Registered:
    """A server behind a gateway, as that lists it."""

    url: str
    healthy: bool | None = None


# ------------------------------------------------------------------ who is behind


def registered(
    url: str, headers: Mapping[str, str], timeout_s: float = _LIST_S
) -> tuple[list[Registered], str] | None:
    """The servers that a gateway lists, and at which of its endpoints; None: it lists
    none anywhere, or none within ``timeout_s`` seconds each.

    SGLang's and vLLM's routers and smg have ``/workers`` (older ones
    ``/list_workers``), LiteLLM has ``/model/info``.
    """
    for path, read in (
        ("/workers", _of_workers),
        ("/list_workers", _of_urls),
        ("/v1/model/info", _of_litellm),
    ):
        document = _json(_get(url, path, headers, timeout_s))
        listed = read(document) if document is not None else None
        if listed is not None:
            known = {worker.url: worker for worker in listed}
            return [*known.values()][:_MOST_WORKERS], path
    return None


def _of_workers(document: Any) -> list[Registered] | None:
    rows = document.get("workers") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return None
    workers = []
    for row in rows:
        address = _address(row.get("url")) if isinstance(row, dict) else ""
        if address:
            healthy = row.get("is_healthy")
            told = healthy if isinstance(healthy, bool) else None
            workers.append(Registered(address, told))
    return workers


def _of_urls(document: Any) -> list[Registered] | None:
    urls = document.get("urls") if isinstance(document, dict) else None
    if not isinstance(urls, list):
        return None
    return [Registered(address) for url in urls if (address := _address(url))]


def _of_litellm(document: Any) -> list[Registered] | None:
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return None
    workers = []
    for row in rows:
        parameters = row.get("litellm_params") if isinstance(row, dict) else None
        base = parameters.get("api_base") if isinstance(parameters, dict) else None
        if address := _address(base):
            workers.append(Registered(address))
    return workers or None


def _address(value: object) -> str:
    """``http://host:port`` of what a gateway lists; "": it is no address."""
    if not isinstance(value, str):
        return ""
    # Routers name the rank of a data parallel worker behind an @.
    text = value.partition("@")[0]
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return ""
    return api_root(text)


# ------------------------------------------------------------------ one hop


def _get(
    url: str, path: str, headers: Mapping[str, str], timeout_s: float = _LIST_S
) -> Fetched:
    return fetch(
        "GET", url + path, timeout_s=timeout_s, max_bytes=_MAX_BYTES, headers=headers
    )


def _json(got: Fetched) -> Any:
    if got.status != 200:
        return None
    try:
        return json.loads(got.body)
    except (ValueError, RecursionError):
        return None


def _models(got: Fetched) -> list[str] | None:
    """The names that a list of models has; None: it is no such list."""
    document = _json(got)
    rows = document.get("data") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        return None
    names = [row.get("id") for row in rows if isinstance(row, dict)]
    return [name for name in names if isinstance(name, str) and len(name) < 500]


def ask(
    url: str, model: str, deadline_s: float, headers: Mapping[str, str]
) -> InferenceData | None:
    """Send one small request to a hop."""
    probe = InferenceProbe(url, model, deadline_s, headers=headers)
    with tempfile.TemporaryDirectory(prefix="mmrepro-hop-") as folder:
        data = run_probe(probe, Path(folder), deadline_s + 1.0).data
    return data if isinstance(data, InferenceData) else None


def _served(names: Sequence[str], wanted: str) -> str:
    """The model to ask for: as wanted, else the first that has a name."""
    known = [name for name in names if name not in _PLACEHOLDERS]
    return wanted or (known[0] if known else "")


def look_at(
    worker: Registered, model: str, deadline_s: float, headers: Mapping[str, str]
) -> Hop:
    """Ask one server by itself."""
    listing = _get(worker.url, "/v1/models", headers)
    hop = Hop(url=worker.url, state=HopState.WELL, called_healthy=worker.healthy)
    if listing.status is None:
        return _without_answer(hop, listing.error, timed_out=listing.timed_out)
    names = _models(listing)
    if names is None:
        if listing.status in (401, 403):
            return _told(hop, HopState.REFUSING, f"/v1/models: {listing.status}")
        if listing.status >= 500:
            return _told(hop, HopState.FAILING, f"/v1/models: {listing.status}")
        return _told(hop, HopState.OTHER_SERVER, f"/v1/models: {listing.status}")
    hop.models = names
    if model and model not in names and names:
        return _told(hop, HopState.WRONG_MODEL, f"it serves {', '.join(names[:3])}")
    return of_answer(hop, ask(worker.url, _served(names, model), deadline_s, headers))


def of_answer(hop: Hop, data: InferenceData | None) -> Hop:
    """What the answer to the small request says of a hop that has listed its models."""
    if data is None:
        return _told(hop, HopState.UNREACHABLE, "the request could not be sent")
    hop.seconds = data.seconds
    if data.answered:
        return hop
    if data.cached:
        return _told(hop, HopState.FAILING, f"a cache answered ({data.cached})")
    if data.status is None:
        late = data.seconds >= 0.9 * data.deadline_s
        if late:
            return _told(hop, HopState.HUNG, f"no answer in {data.seconds:.0f} s")
        return _without_answer(hop, data.error, timed_out=False)
    state = HopState.FAILING if data.status in (200, *range(500, 600)) else None
    return _told(hop, state or HopState.REFUSING, f"a small request: {data.status}")


def _without_answer(hop: Hop, error: str, *, timed_out: bool) -> Hop:
    if timed_out:
        return _told(hop, HopState.HALF_OPEN, f"nothing in {_LIST_S:.0f} s")
    if connection_refused(error):
        return _told(hop, HopState.DEAD, "the connection is refused")
    if error.startswith("ConnectError"):
        return _told(hop, HopState.UNREACHABLE, "no connection")
    return _told(hop, HopState.FAILING, "it broke the connection")


def _told(hop: Hop, state: HopState, told: str) -> Hop:
    hop.state, hop.told = state, told
    return hop


# ------------------------------------------------------------------ the whole chain


def look_through(asked: DiagnoseCommand) -> GatewayChain:
    """Ask a gateway, each server that it lists, and the request through all of them.

    Raises:
        UsageError: no address, or a gateway that answers and lists no servers, of which
            none was named either.
    """
    parse_url(asked.url)
    url = api_root(asked.url)
    listing = _get(url, "/v1/models", asked.headers)
    patience_s = _LIST_S if listing.status is None else _PATIENT_S
    listed = registered(url, asked.headers, patience_s)
    named = [Registered(api_root(more)) for more in asked.more]
    workers, path = listed or ([], "")
    known = {worker.url for worker in workers}
    workers += [worker for worker in named if worker.url not in known]

    gateway = Hop(url=url, state=HopState.WELL, models=_models(listing) or [])
    if listing.status is None:
        _without_answer(gateway, listing.error, timed_out=listing.timed_out)
    elif not workers and listed is None:
        raise UsageError(
            f"{url} lists no servers behind it.",
            hint="mmrepro diagnose GATEWAY SERVER… --through, with their addresses",
        )
    # The gateway's key is none of its servers' business.
    model = _served(gateway.models, asked.model)
    hops = _all_hops(workers, model, asked.deadline_s)
    chain = GatewayChain(taken=Moment.now(), gateway=gateway, workers=hops)
    chain.found_by = f"the gateway's {path}" if path else "as named"
    if gateway.state is HopState.WELL:
        _send_through(chain, model, asked)
    conclude(chain)
    return chain


def _all_hops(
    workers: Sequence[Registered], model: str, deadline_s: float
) -> list[Hop]:
    if not workers:
        return []
    with ThreadPoolExecutor(len(workers), "through") as pool:
        return list(
            pool.map(lambda worker: look_at(worker, model, deadline_s, {}), workers)
        )


def _send_through(chain: GatewayChain, model: str, asked: DiagnoseCommand) -> None:
    """Send so many requests that each server should be met."""
    names = [name for hop in chain.workers for name in hop.models]
    wanted = model or _served(names, "")
    if not wanted:
        return
    read = _answers(chain, wanted, asked)
    took = _median(read)
    if took > _SLOW_S:
        # A gateway may be slow with its first requests, while it loads what it needs.
        again = _answers(chain, wanted, asked)
        took = min(took, _median(again))
        read = [*read, *again]
    chain.asked = len(read)
    chain.answered = sum(hop.state is HopState.WELL for hop in read)
    # The worst answer: a gateway that fails for one of two servers fails.
    worst = max(
        read, key=lambda hop: (hop.state is not HopState.WELL, hop.seconds or 0)
    )
    if worst.state is not HopState.WELL:
        _told(chain.gateway, worst.state, worst.told)
    chain.gateway.seconds = took


def _answers(chain: GatewayChain, model: str, asked: DiagnoseCommand) -> list[Hop]:
    """What the gateway answers to some requests, all at once."""
    count = _EACH * max(1, len(chain.workers))
    url = chain.gateway.url

    def send(_: int) -> Hop:
        data = ask(url, model, asked.deadline_s, asked.headers)
        return of_answer(Hop(url=url, state=HopState.WELL), data)

    with ThreadPoolExecutor(min(16, count), "through") as pool:
        return list(pool.map(send, range(count)))


def _median(hops: Sequence[Hop]) -> float:
    return median(hop.seconds or 0.0 for hop in hops)


# ------------------------------------------------------------------ who is wrong


def conclude(chain: GatewayChain) -> None:
    """Say which hop is wrong, by what each of them answered. Pure but for ``chain``."""
    chain.at, chain.between, chain.advice = [], False, []
    _mark_slow(chain)
    wrong = [hop for hop in chain.workers if hop.state is not HopState.WELL]
    gateway = chain.gateway
    if gateway.state in (HopState.DEAD, HopState.HALF_OPEN, HopState.UNREACHABLE):
        # What does not answer at all cannot be what a server behind it does.
        chain.at, chain.certainty = [gateway.url], Certainty.CERTAIN
        chain.sentence = f"The gateway {gateway.url} {HOP_WORDS[gateway.state]}."
        return
    if wrong:
        _blame_workers(chain, wrong)
        return
    if gateway.state is HopState.WELL:
        chain.certainty = Certainty.CERTAIN
        servers = f"each of its {len(chain.workers)} servers"
        if len(chain.workers) == 1:
            servers = "its server"
        chain.sentence = (
            f"All is well: the gateway answered {chain.answered} of "
            f"{count(chain.asked, 'request')}, and {servers} answers."
        )
        chain.sentence += _unlike(chain.workers)
        return
    _blame_gateway(chain)


def _unlike(workers: Sequence[Hop]) -> str:
    """That servers list no model in common: meant so, or one of them is the wrong one,
    which only who has set the gateway up can tell."""
    lists = [set(hop.models) - _PLACEHOLDERS for hop in workers]
    known = [names for names in lists if names]
    if len(known) < 2 or set.intersection(*known):
        return ""
    names = sorted(set.union(*known))
    return f" They serve different models: {', '.join(names[:5])}."


def _mark_slow(chain: GatewayChain) -> None:
    """A hop that answers, far later than the quickest of them."""
    times = [hop.seconds for hop in chain.workers if hop.state is HopState.WELL]
    known = [seconds for seconds in times if seconds is not None]
    if not known:
        return
    quickest = min(known)
    for hop in (*chain.workers, chain.gateway):
        # The gateway waits for its slowest server.
        floor = max(known) if hop is chain.gateway else quickest
        seconds = hop.seconds or 0.0
        late = seconds > floor + _SLOW_S and seconds > _SLOW_TIMES * floor
        if hop.state is HopState.WELL and late:
            _told(hop, HopState.SLOW, f"{seconds:.1f} s")
    alone = len(chain.workers) == 1 and quickest > _SLOW_S
    if alone and chain.workers[0].state is HopState.WELL:
        _told(chain.workers[0], HopState.SLOW, f"{quickest:.1f} s for one token")


def _blame_workers(chain: GatewayChain, wrong: Sequence[Hop]) -> None:
    chain.at = [hop.url for hop in wrong]
    unreachable = all(hop.state is HopState.UNREACHABLE for hop in wrong)
    chain.certainty = Certainty.POSSIBLE if unreachable else Certainty.CERTAIN
    told = [f"{hop.url} {HOP_WORDS[hop.state]} ({hop.told})" for hop in wrong[:3]]
    chain.sentence = "; ".join(told) + "."
    if len(wrong) > 3:
        chain.sentence += f" So are {len(wrong) - 3} more."
    stale = [hop for hop in wrong if hop.called_healthy]
    if stale:
        chain.sentence += f" The gateway calls {_count(stale)} healthy all the same."
    if unreachable and chain.answered == chain.asked and chain.asked:
        # It answers through the gateway: only this machine has no way to them.
        chain.at, chain.certainty = [], Certainty.LIKELY
        chain.sentence = (
            "All requests through the gateway were answered; its servers cannot be "
            "reached from here."
        )
        return
    chain.advice = [f"mmrepro diagnose {hop.url}" for hop in wrong[:3]]


def _count(hops: Sequence[Hop]) -> str:
    return "it" if len(hops) == 1 else f"{len(hops)} of them"


def _blame_gateway(chain: GatewayChain) -> None:
    """Each server answers by itself, and the request through the gateway does not."""
    gateway = chain.gateway
    if not chain.workers:
        chain.at, chain.certainty = [gateway.url], Certainty.CERTAIN
        chain.sentence = f"The gateway {gateway.url} has no server behind it."
        return
    status = gateway.told.rpartition(": ")[2]
    own = gateway.state in (HopState.REFUSING, HopState.SLOW, HopState.HUNG)
    if own:
        chain.at, chain.certainty = [gateway.url], Certainty.LIKELY
        chain.sentence = (
            f"The gateway {gateway.url} {HOP_WORDS[gateway.state]} ({gateway.told}); "
            "each of its servers answers by itself."
        )
        return
    chain.between = True
    chain.sentence = (
        f"Between the gateway {gateway.url} and its servers: it answers {status}, and "
        "each of them answers by itself."
    )
    chain.advice = ["compare the addresses that the gateway has with those used here"]
