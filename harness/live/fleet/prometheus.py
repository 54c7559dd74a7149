"""What a Prometheus server knows of inference servers: their addresses, and metrics
that it holds.

Its HTTP API is read, nothing else: ``/api/v1/targets`` and ``/api/v1/query``
(prometheus.io/docs/prometheus/latest/querying/api). What stores metrics without
scraping (Thanos, Mimir, VictoriaMetrics) has the second one alone; the label
``instance`` is the address then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES
from mmrepro.failure.documents import Scraped
from mmrepro.probes.http import Fetched, fetch

_ANSWER_S = 10.0
_MAX_BYTES = 32 << 20
_APART_S = 60.0
"""Between the two moments whose metrics are compared: longer than usual scrape
intervals."""
_RECENT = "1h"
"""A server that is down has no metrics of now."""
_MOST = 64
"""Servers that are looked at."""
_Key = tuple[str, str]
"""Job and instance."""


@dataclass
class Known:
    """``found``: address of each server, and what is known of it."""

    found: dict[str, Scraped] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)


def _names(*shorts: str) -> list[str]:
    """Names of metrics that any engine has for one of these."""
    names: list[str] = []
    for engine in ENGINES.values():
        for short in shorts:
            names += engine.metrics.get(short, ())
    return names


def known(url: str) -> Known:
    """The inference servers that a Prometheus server watches.

    No header goes there: those that a command is given are the inference servers' own.
    A user and a password stand in ``url``.

    Raises:
        UsageError: it is no Prometheus server, or watches no inference server.
    """
    root = url.rstrip("/").removesuffix("/api/v1").rstrip("/")
    held = _held(root)
    targets, refused = _targets(root)
    watched = Known()
    if refused:
        watched.unseen.append(
            f"the targets of {bare(root)}: {refused}; taken by their metrics"
        )

    jobs = {job for job, _ in held}
    for key, (address, health, error) in targets.items():
        if key[0] in jobs:
            watched.found[address] = _scraped(key, health, error, held.get(key))
    # A server whose targets cannot be asked for is known by its metrics alone.
    for key, readings in held.items():
        address = "" if key in targets else _address(key[1])
        if address:
            watched.found.setdefault(address, _scraped(key, "", "", readings))

    if not watched.found:
        raise UsageError(
            f"{bare(root)} holds no metrics of a server of a known engine from the "
            "last hour.",
            hint="mmrepro diagnose URL URL, with the servers' own addresses",
        )
    if len(watched.found) > _MOST:
        watched.unseen.append(
            f"{len(watched.found) - _MOST} more servers that {bare(root)} watches"
        )
    watched.found = dict(sorted(watched.found.items())[:_MOST])
    return watched


# ------------------------------------------------------------------ its API


def _ask(root: str, path: str, **words: str) -> Any:
    """The ``data`` of an answer. Raises UsageError."""
    query = f"?{urlencode(words)}" if words else ""
    fetched = fetch(
        "GET",
        f"{root}/api/v1/{path}{query}",
        timeout_s=_ANSWER_S,
        max_bytes=_MAX_BYTES,
    )
    answer = _json(fetched)
    succeeded = isinstance(answer, dict) and answer.get("status") == "success"
    if fetched.status == 200 and succeeded:
        return answer.get("data")
    why = fetched.error or f"it answers {fetched.status}, and not as Prometheus does"
    raise UsageError(
        f"{bare(root)} is no Prometheus server that can be asked: {why}.",
        hint="mmrepro diagnose --prometheus http://127.0.0.1:9090",
    )


def _json(got: Fetched) -> Any:
    try:
        return json.loads(got.body)
    except (ValueError, RecursionError):
        return None


def _series(data: Any) -> Iterator[tuple[dict[str, str], float]]:
    """Labels and value of what a query found; what is malformed is left out."""
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        return
    for series in result:
        try:
            labels = {str(name): str(value) for name, value in series["metric"].items()}
            yield labels, float(series["value"][1])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue


def _targets(root: str) -> tuple[dict[_Key, tuple[str, str, str]], str]:
    """The address, the health and the last error of each target; why there are none."""
    try:
        data = _ask(root, "targets", state="active")
    except UsageError as error:
        return {}, error.message
    active = data.get("activeTargets") if isinstance(data, dict) else None
    if not isinstance(active, list):
        return {}, ""

    targets: dict[_Key, tuple[str, str, str]] = {}
    for target in active:
        labels = target.get("labels") if isinstance(target, dict) else None
        if not labels or not isinstance(labels, dict):
            continue
        address = _address(str(target.get("scrapeUrl", "")))
        if address:
            last_error = str(target.get("lastError", ""))[:300]
            targets[_key(labels)] = address, str(target.get("health", "")), last_error
    return targets, ""


def _key(labels: Mapping[str, object]) -> _Key:
    return str(labels.get("job", "")), str(labels.get("instance", ""))


_Held = dict[str, list[float | None]]


def _held(root: str) -> dict[_Key, _Held]:
    """The running and waiting requests and the tokens of each server, a minute ago and
    now, where it has them."""
    kinds = {
        "running": _names("running"),
        "waiting": _names("waiting"),
        "tokens": _names("prompt_tokens", "generation_tokens"),
    }
    names: set[str] = set()
    for of_kind in kinds.values():
        names.update(of_kind)
    every = "|".join(sorted(names))

    now = time.time()
    held: dict[_Key, _Held] = {}
    recent = (
        f'count by (job, instance) (last_over_time({{__name__=~"{every}"}}[{_RECENT}]))'
    )
    for labels, _ in _series(_ask(root, "query", query=recent)):
        held[_key(labels)] = {kind: [None, None] for kind in kinds}

    query = f'sum by (job, instance, __name__) ({{__name__=~"{every}"}})'
    for index, moment in enumerate((now - _APART_S, now)):
        data = _ask(root, "query", query=query, time=f"{moment:.3f}")
        for labels, value in _series(data):
            of_server = held.get(_key(labels))
            if of_server is None:
                continue
            for kind, of_kind in kinds.items():
                if labels.get("__name__") in of_kind:
                    of_server[kind][index] = (of_server[kind][index] or 0.0) + value
    return held


def _scraped(key: _Key, health: str, error: str, held: _Held | None) -> Scraped:
    readings: dict[str, list[float]] = {}
    for kind, values in (held or {}).items():
        readings[kind] = [value for value in values if value is not None]
    twice = bool(readings) and len(readings["tokens"]) == 2
    return Scraped(
        job=key[0],
        instance=key[1],
        health=health,
        last_error=error,
        seconds=_APART_S if twice else 0.0,
        **readings,
    )


def bare(url: str) -> str:
    """The address without user and password."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    host = place.rpartition("@")[2]
    return f"{scheme}{mark}{host}{slash}{path}"


def _address(text: str) -> str:
    """``http://host:8000`` of ``http://host:8000/metrics`` or ``host:8000``; "": it is
    none."""
    has_scheme = "://" in text
    try:
        parts = urlsplit(text if has_scheme else f"http://{text}")
        port = parts.port
    except ValueError:
        return ""
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return ""
    # A word without scheme and port is some other label, e.g. the name of a pod.
    if port == 0 or (port is None and not has_scheme):
        return ""
    path = parts.path.rstrip("/").removesuffix("/metrics")
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{path}"
