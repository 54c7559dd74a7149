"""What a Prometheus server knows of inference servers: their addresses, and metrics
that it holds.

Its HTTP API is read, nothing else: ``/api/v1/targets`` and ``/api/v1/query``
(prometheus.io/docs/prometheus/latest/querying/api). What stores metrics without
scraping (Thanos, Mimir, VictoriaMetrics) has the second one alone; the label
``instance`` is the address then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES
from mmrepro.failure.documents.fleet import Scraped
from mmrepro.probes.http import Fetched, fetch

ANSWER_S = 10.0
MAX_BYTES = 32 << 20
APART_S = 60.0
"""Between the two moments whose metrics are compared: longer than usual scrape
intervals."""
_RECENT = "1h"
"""A server that is down has no metrics of now."""
MOST = 64
"""Servers that are looked at."""
Key = tuple[str, str]
"""Job and instance."""


@dataclass
class Known:
    """``found``: address of each server, and what is known of it."""

    found: dict[str, Scraped] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)


def _names(*shorts: str) -> list[str]:
    return [n for e in ENGINES.values() for s in shorts for n in e.metrics.get(s, ())]


def known(url: str) -> Known:
    """The inference servers that a Prometheus server watches.

    No header goes there: those that a command is given are the inference servers' own.
    A user and a password stand in ``url``.

    Raises:
        UsageError: it is no Prometheus server, or watches no inference server.
    """
    root = url.rstrip("/").removesuffix("/api/v1").rstrip("/")
    held, apart = _held(root)
    targets, refused = _targets(root)
    told = Known()
    if refused:
        told.unseen.append(
            f"the targets of {bare(root)}: {refused}; taken by their metrics"
        )
    jobs = {job for job, _ in held}
    for key, (address, health, error) in targets.items():
        if key[0] not in jobs:
            continue
        told.found[address] = _scraped(key, health, error, held.get(key), apart)
    for key in held:
        if key not in targets and (address := _address(key[1])):
            told.found.setdefault(address, _scraped(key, "", "", held[key], apart))
    if not told.found:
        raise UsageError(
            (
                f"{bare(root)} holds no metrics of a server of a known engine from the "
                "last hour."
            ),
            hint="mmrepro diagnose URL URL, with the servers' own addresses",
        )
    if len(told.found) > MOST:
        told.unseen.append(
            f"{len(told.found) - MOST} more servers that {bare(root)} watches"
        )
    told.found = dict(sorted(told.found.items())[:MOST])
    return told


# ------------------------------------------------------------------ its API


def _ask(root: str, path: str, **words: str) -> Any:
    """The ``data`` of an answer. Raises UsageError."""
    query = f"?{urlencode(words)}" if words else ""
    got = fetch(
        "GET",
        f"{root}/api/v1/{path}{query}",
        timeout_s=ANSWER_S,
        max_bytes=MAX_BYTES,
    )
    answer = _json(got)
    if (
        got.status == 200
        and isinstance(answer, dict)
        and answer.get("status") == "success"
    ):
        return answer.get("data")
    told = got.error or f"it answers {got.status}, and not as Prometheus does"
    raise UsageError(
        f"{bare(root)} is no Prometheus server that can be asked: {told}.",
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
    for series in result if isinstance(result, list) else []:
        try:
            labels = {str(k): str(v) for k, v in series["metric"].items()}
            yield labels, float(series["value"][1])
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue


def _targets(root: str) -> tuple[dict[Key, tuple[str, str, str]], str]:
    """Of each target its address, its health and its last error; why there are none."""
    try:
        data = _ask(root, "targets", state="active")
    except UsageError as error:
        return {}, error.message
    active = data.get("activeTargets") if isinstance(data, dict) else None
    targets = {}
    for target in active if isinstance(active, list) else []:
        labels = target.get("labels") if isinstance(target, dict) else None
        if not labels or not isinstance(labels, dict):
            continue
        address = _address(str(target.get("scrapeUrl", "")))
        if address:
            key = str(labels.get("job", "")), str(labels.get("instance", ""))
            last_error = str(target.get("lastError", ""))[:300]
            targets[key] = (address, str(target.get("health", "")), last_error)
    return targets, ""


Held = dict[str, list[float | None]]


def _held(root: str) -> tuple[dict[Key, Held], float]:
    """By server: running, waiting and tokens, a minute ago and now, where it has
    them."""
    kinds = {
        "running": _names("running"),
        "waiting": _names("waiting"),
        "tokens": _names("prompt_tokens", "generation_tokens"),
    }
    every = "|".join(sorted({name for names in kinds.values() for name in names}))
    now = time.time()
    found: dict[Key, Held] = {}
    recent = (
        f'count by (job, instance) (last_over_time({{__name__=~"{every}"}}[{_RECENT}]))'
    )
    for labels, _ in _series(_ask(root, "query", query=recent)):
        key = labels.get("job", ""), labels.get("instance", "")
        found[key] = {kind: [None, None] for kind in kinds}
    for index, moment in enumerate((now - APART_S, now)):
        query = f'sum by (job, instance, __name__) ({{__name__=~"{every}"}})'
        data = _ask(root, "query", query=query, time=f"{moment:.3f}")
        for labels, value in _series(data):
            key, name = (
                (labels.get("job", ""), labels.get("instance", "")),
                labels.get("__name__"),
            )
            for kind, names in kinds.items():
                if key in found and name in names:
                    found[key][kind][index] = (found[key][kind][index] or 0.0) + value
    return found, APART_S


def _scraped(
    key: Key, health: str, error: str, held: Held | None, apart: float
) -> Scraped:
    whole = {
        k: [v for v in values if v is not None] for k, values in (held or {}).items()
    }
    return Scraped(
        job=key[0],
        instance=key[1],
        health=health,
        last_error=error,
        seconds=apart if whole and len(whole["tokens"]) == 2 else 0.0,
        **whole,
    )


def bare(url: str) -> str:
    """Without user and password."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}{mark}{place.rpartition('@')[2]}{slash}{path}"


def _address(text: str) -> str:
    """``http://host:8000`` of ``http://host:8000/metrics`` or ``host:8000``; "": it is
    none."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError:
        return ""
    whole = port is not None or "://" in text
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not whole
        or port == 0
    ):
        return ""
    path = parts.path.rstrip("/").removesuffix("/metrics")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
