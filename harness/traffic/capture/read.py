"""A recording of traffic, whatever its format, made into a case."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import is_file, is_folder, is_there, open_to_read
from mmrepro.traffic.capture.curl import CURL, curl_requests
from mmrepro.traffic.capture.engine_logs import (
    SGLANG,
    UNLOGGED,
    VLLM,
    SglangLog,
    VllmLog,
    messages,
)
from mmrepro.traffic.capture.exchanges import METHODS, Exchange, Hears
from mmrepro.traffic.capture.har import Har, settled
from mmrepro.traffic.capture.messages import Bodies, Captured, Contents, Unusable
from mmrepro.traffic.capture.mooncake import (
    WHOLE,
    RecordingExcerpt,
    Trace,
    in_sessions,
    is_trace,
    read_trace,
    requests_of,
)
from mmrepro.traffic.capture.parsing import MAX_TEXT, BadJson, TextLine, events, lines
from mmrepro.traffic.capture.profiles import PROFILES, trace_of
from mmrepro.traffic.capture.recorded import (
    SLACK_S,
    Latest,
    RecordedRequest,
    Tally,
    case_of,
)
from mmrepro.traffic.case.bodies import JSON_TYPE, members
from mmrepro.traffic.case.files import read_case
from mmrepro.traffic.case.model import (
    CASE_FILE,
    CHAT,
    COMPLETIONS,
    IMAGES_DIR,
    Case,
    Content,
    Operation,
    Origin,
    ServerWanted,
)
from mmrepro.traffic.reading import GENERATE

LIMIT = 20_000
"""Requests that are kept, the last ones."""
FORMATS = (
    "a HAR, an OpenAI batch file, a Mooncake trace, a script of curl commands, a "
    "request's JSON body, a request log of vLLM or SGLang, or a case of mmrepro"
)
RECIPE = (
    "mitmdump --mode reverse:http://127.0.0.1:8000 --set hardump=FILE records a HAR"
)

NAMES = {
    "har": "HAR",
    "batch": "batch file",
    "mooncake": "Mooncake trace",
    "profile": "profile",
    "curl": "script of curl commands",
    "body": "JSON body",
    "vllm-log": "log of vLLM",
    "sglang-log": "log of SGLang",
}
_MOST_EVENTS = 10_000


def read(
    file: Path,
    server: ServerWanted,
    *,
    host: str = "",
    concurrency: int | None = None,
    excerpt: RecordingExcerpt = WHOLE,
    seed: int = 0,
) -> Captured:
    """The requests in ``file``: HAR, OpenAI Batch JSONL, a Mooncake trace, curl
    commands, a JSON body, a vLLM or SGLang log, or a case, whatever its name is; or the
    name of a profile.

    Args:
        server: what they are played on. A case of ours (its file, or a finding's
            folder) keeps its own.
        host: ``HOST[:PORT]`` whose requests are read, where a HAR has those of several.
        concurrency: so many run at once, whatever the recording tells of that. None: as
            it tells; one after the other where it does not.
        excerpt: the part that is wanted.
        seed: of prompts that are made up, for a trace or a profile.

    Raises:
        UsageError: one sentence, which names the place in the file.
    """
    if str(file) in PROFILES and not is_there(file):
        trace = trace_of(str(file), seed, excerpt)
        return _of_trace(
            trace, server, Origin(format="profile", file=file.name), concurrency, seed
        )
    if is_folder(file):
        if not is_file(file / CASE_FILE):
            raise UsageError(f"{file} is a folder without a {CASE_FILE}.")
        file = file / CASE_FILE
    try:
        with open_to_read(file) as opened:
            kind = _sniffed(opened, file.name)
            opened.seek(0)
            if kind == "case":
                return _of_case(file, excerpt)
            if kind == "mooncake":
                trace = read_trace(lines(opened), file.name, LIMIT, excerpt)
                origin = Origin(format=kind, file=file.name, sha256=_digest(opened))
                return _of_trace(trace, server, origin, concurrency, seed)
            tally = Tally(file.name, kind)
            bodies = Bodies(Contents(), own=kind in ("batch", "curl", "body"))
            bodies.adapters |= adapters(server)
            requests = _requests(opened, bodies, tally, host, file.parent)
            moments: list[float | None] = []
            for request in requests:
                moments.append(request.begin if request.at_s is None else request.at_s)
            requests = [requests[place] for place in excerpt.places(moments)]
            tally.dropped.update(bodies.dropped)
            digest = _digest(opened)
            if not requests:
                raise _nothing_in(file.name)

        # Lines of a log have an order; the times of a HAR are rounded.
        slack = SLACK_S if kind == "har" else 0.0
        case, ordered = case_of(
            requests, server, bodies, concurrency=concurrency, slack=slack
        )
        origin = Origin(
            format=kind,
            file=tally.file,
            sha256=digest,
            read=tally.read,
            left_out=dict(+tally.left_out),
            dropped=dict(+tally.dropped),
            notes=[*ordered, *notes(tally, bodies)],
        )
        title = f"{len(case.operations)} requests from a {NAMES[kind]}"
        case = case.model_copy(update={"origin": origin, "title": title})
        bodies.contents.keep(_digests(case))
        return Captured(case, bodies.contents)
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror or error}."
        ) from error


def _digest(file: BufferedReader) -> str:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").hexdigest()


def _of_case(file: Path, excerpt: RecordingExcerpt) -> Captured:
    """Return a case that was captured before. Raises UsageError."""
    case, below = read_case(file)
    contents = Contents(below / IMAGES_DIR)
    contents.has(_digests(case))
    if excerpt:
        places = excerpt.places([op.at_s for op in case.operations])
        case = case.keeping({case.operations[place].id for place in places})
    return Captured(case, contents)


def _digests(case: Case) -> set[str]:
    """Return the digests of the pictures that it keeps by content."""
    digests: set[str] = set()
    for image in case.images.values():
        if isinstance(image, Content):
            digests.add(image.sha256)
    return digests


def _nothing_in(name: str) -> UsageError:
    return UsageError(
        f"{name} has no request in that time.",
        hint="--window counts seconds from its first one",
    )


def _of_trace(
    trace: Trace,
    server: ServerWanted,
    origin: Origin,
    concurrency: int | None,
    seed: int,
) -> Captured:
    """Raises UsageError."""
    if not trace.rows:
        raise _nothing_in(origin.file)
    requests, notes = requests_of(trace, server, seed)
    bodies = Bodies(Contents())
    case, order_notes = case_of(requests, server, bodies, concurrency=concurrency)
    case = in_sessions(case, trace.rows)
    # A trace has its order from its times; only another one needs a sentence.
    if concurrency is not None:
        notes = [*order_notes, *notes]
    origin = origin.model_copy(update={"read": len(trace.rows), "notes": notes})
    kind = NAMES[origin.format]
    if origin.format == "profile":
        kind += f" {origin.file}"
    title = f"{len(case.operations)} requests from a {kind}"
    case = case.model_copy(update={"origin": origin, "title": title})
    return Captured(case, bodies.contents)


def holds_case(place: Path) -> bool:
    """Whether a folder or a file, whatever its name is, holds a case of mmrepro."""
    if is_folder(place):
        return is_file(place / CASE_FILE)
    try:
        with open_to_read(place) as opened:
            head = opened.read(1 << 10).removeprefix(b"\xef\xbb\xbf").lstrip()
            opened.seek(0)
            return head.startswith(b"{") and _json_kind(opened) == "case"
    except OSError:
        return False


def _requests(
    file: BufferedReader, bodies: Bodies, tally: Tally, host: str, folder: Path
) -> list[RecordedRequest]:
    """Return the requests of a recording, at least one. Raises UsageError."""
    latest = Latest(tally, LIMIT)
    requests: list[RecordedRequest] | None = None
    match tally.format:
        case "har":
            har = Har(file, bodies, tally, host)
            for request in har.requests():
                latest.add(request)
            if len(har.hosts) > 1:
                raise _several_hosts(tally.file, har)
            requests = settled(list(latest), har.creator)
        case "batch":
            for request in _batch_requests(lines(file), bodies, tally):
                latest.add(request)
        case "curl" | "body":
            text = file.read(MAX_TEXT).decode("utf-8", "surrogateescape")
            text = text.removeprefix("\ufeff")
            is_curl = tally.format == "curl"
            exchanges = curl_requests(text, folder) if is_curl else _plain(text)
            hears = Hears(bodies)
            for exchange in exchanges:
                tally.read += 1
                try:
                    if isinstance(exchange, Unusable):
                        raise exchange
                    request, _ = hears.heard(exchange, None)
                    latest.add(request)
                except Unusable as why:
                    tally.left_out[str(why)] += 1
        case "vllm-log":
            VllmLog(bodies, tally, latest).read(messages(lines(file)))
        case _:
            SglangLog(bodies, tally, latest).read(messages(lines(file)))
    if not latest:
        reasons = tally.left_out.most_common(4)
        left = "; ".join(f"{count} × {why}" for why, count in reasons)
        shown = f" ({left})" if left else ""
        raise UsageError(
            f"{tally.file} has no request that can be played, of {tally.read} that "
            f"were read{shown}.",
            hint=RECIPE,
        )
    return requests or list(latest)


def _several_hosts(file: str, har: Har) -> UsageError:
    hosts = har.hosts.most_common(5)
    shown = ", ".join(f"{host} ({count})" for host, count in hosts)
    more = len(har.hosts) - 5
    if more > 0:
        shown += f" and {more} more"
    busiest, _ = hosts[0]
    return UsageError(
        f"{file} has requests to several hosts: {shown}.",
        hint=f"choose one: --host {busiest}",
    )


# ---------------------------------------------------------------------- which format


def _sniffed(file: BufferedReader, name: str) -> str:
    """Raises UsageError: it is none of the formats."""
    head = file.read(1 << 16).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not head:
        raise UsageError(f"{name} is empty.", hint=RECIPE)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        raise UsageError(
            (
                f"{name} is a pickle (a dump of SGLang's), which is not opened: "
                "reading one runs code."
            ),
            hint="record the log instead: --log-requests --log-requests-level 3",
        )
    if CURL.search(head.decode("utf-8", "replace")) and head[:1] != b"{":
        return "curl"
    if head[:1] == b"{":
        file.seek(0)
        if kind := _json_kind(file):
            return kind
    if b'"entries"' in head or name.lower().endswith(".har"):
        return "har"
    file.seek(0)
    for line in messages(lines(file)):
        if VLLM.match(line.text):
            return "vllm-log"
        if SGLANG.match(line.text):
            return "sglang-log"
    raise UsageError(f"{name} is none of what can be read: {FORMATS}.", hint=RECIPE)


def _json_kind(file: BufferedReader) -> str:
    """Return the format by the first keys of the first object; "": by none."""
    key = ""
    keys: set[str] = set()
    try:
        for count, (event, value, depth) in enumerate(events(file)):
            if event == "map_key" and depth == 1:
                key = value
                keys.add(key)
            elif event == "start_map" and depth == 1 and key == "log":
                return "har"
            kind = _by_keys(keys)
            # A body may still be a line of a batch: that has one inside.
            is_known = kind not in ("", "body")
            has_ended = count > 0 and not depth
            if is_known or has_ended or count > _MOST_EVENTS:
                return kind
    except BadJson:
        pass  # a file that is cut has its first keys
    return _by_keys(keys)


def _by_keys(keys: set[str]) -> str:
    if keys & {"operations", "schema_version"}:
        return "case"
    if keys & {"custom_id", "body"} or {"method", "url"} <= keys:
        return "batch"
    if {"timestamp", "event"} <= keys:
        return "sglang-log"
    if is_trace(keys):
        return "mooncake"
    return "body" if keys & _OF_A_BODY else ""


# ------------------------------------------------------------------ bodies

_OF_A_BODY: Final = {
    "messages",
    "prompt",
    "input",
    "text",
    "input_ids",
    "input_embeds",
    "token_ids",
    "query",
    "text_1",
    "lora_name",
    "image_data",
}
_BY_FIELDS: Final = (
    ({"messages", "max_tokens", "anthropic_version"}, "/v1/messages"),
    ({"messages"}, CHAT),
    ({"prompt"}, COMPLETIONS),
    ({"token_ids", "sampling_params"}, "/inference/v1/generate"),
    ({"text"}, GENERATE),
    ({"input_ids"}, GENERATE),
    ({"input_embeds"}, GENERATE),
    ({"lora_name"}, "/v1/load_lora_adapter"),
    ({"query", "documents"}, "/rerank"),
    ({"text_1"}, "/score"),
    ({"query", "items"}, "/v1/score"),
)
_OF_RESPONSES: Final = {
    "instructions",
    "max_output_tokens",
    "reasoning",
    "tools",
    "previous_response_id",
    "store",
    "text",
    "stream",
    "background",
    "temperature",
}


def _path_of(fields: Mapping[str, Any]) -> str:
    """Return where a body is sent that stands by itself, by its fields; "": no known
    place."""
    if "input" in fields:
        return "/v1/responses" if _OF_RESPONSES & fields.keys() else "/v1/embeddings"
    for names, path in _BY_FIELDS:
        if names <= fields.keys():
            return path
    return ""


def _plain(text: str) -> Iterator[Exchange | Unusable]:
    """Yield the request of a body, or of one on each line."""
    for body in _bodies(text):
        names = set(re.findall(r'"(\w+)"\s*:', body))
        with contextlib.suppress(ValueError, RecursionError):
            names = {name for name, *_ in members(body)}
        path = _path_of(dict.fromkeys(names))
        if path:
            yield Exchange("POST", path, [], body.encode("utf-8", "surrogateescape"))
        else:
            yield Unusable("a body whose path is not known")


def _bodies(text: str) -> list[str]:
    whole = text.strip("\n")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        lines = [line for line in text.splitlines() if line.strip()]
        objects = all(
            line.startswith("{") and line.rstrip().endswith("}") for line in lines
        )
        # Else it is one body that is broken.
        return lines if objects else [whole]
    return [whole]


def adapters(server: ServerWanted) -> set[str]:
    """Return names of models that the server's own options load."""
    words: list[str] = []
    for argument in server.args:
        words += [word for word in argument.split("=", 1) if word]

    # Such an option takes several words, up to the next option: NAME=PATH or NAME.
    names: set[str] = set()
    inside = False
    for word in words:
        if word in ("--lora-modules", "--lora-paths", "--adapters"):
            inside = True
        elif word.startswith("--"):
            inside = False
        elif inside:
            names.add(word.partition("=")[0])
    return names


# ------------------------------------------------------------------ batch files


def _batch_requests(
    lines: Iterator[TextLine], bodies: Bodies, tally: Tally
) -> Iterator[RecordedRequest]:
    """Raises UsageError: it is the file of the answers."""
    for line in lines:
        if not line.text.strip():
            continue
        tally.read += 1
        try:
            yield RecordedRequest(_operation(line, bodies, tally))
        except Unusable as why:
            tally.left_out[str(why)] += 1


def _operation(line: TextLine, bodies: Bodies, tally: Tally) -> Operation:
    """Return the operation of a line of a batch. Raises Unusable, UsageError."""
    if line.cut:
        raise Unusable("a line that is too long")
    try:
        request = json.loads(line.text)
    except (ValueError, RecursionError) as error:
        raise Unusable("a line that is no JSON") from error
    if not isinstance(request, dict):
        raise Unusable("a line that is no request")
    if "response" in request and "body" not in request:
        raise UsageError(
            f"{tally.file} holds the answers of a batch, not its requests.",
            hint=(
                "give the file that was uploaded: its lines have custom_id, "
                "url and body"
            ),
        )
    tally.dropped["custom_id"] += "custom_id" in request
    method = str(request.get("method", "POST")).upper()
    if method not in METHODS:
        raise Unusable("a method that is none of HTTP")
    body = _body_of(line.text, request)
    headers = [("Content-Type", JSON_TYPE)] if body else []
    given = request.get("headers")
    if isinstance(given, dict):
        headers += [(str(name), str(value)) for name, value in given.items()]
    try:
        target = urlsplit(str(request.get("url", "")) or "/")
    except ValueError as error:
        raise Unusable("an entry without an address") from error
    path = target._replace(scheme="", netloc="", fragment="").geturl()
    raw = body.encode("utf-8", "surrogateescape")
    return bodies.request(method, path, headers, raw)


def _body_of(text: str, request: dict[str, Any]) -> str:
    """Return the body of a line as it stands there, byte for byte; "": it has none."""
    body = ""
    for name, begin, end in members(text):
        if name == "body":
            body = text[begin:end]
            break
    if body == "null":
        return ""
    written = request.get("body")
    if isinstance(written, str):
        # Not the API's form: a body that may be broken.
        return written
    return body


# ------------------------------------------------------------------ what was lost


def notes(tally: Tally, bodies: Bodies) -> Iterator[str]:
    yield from bodies.notes()
    if tally.format == "vllm-log" and (count := tally.left_out[UNLOGGED]):
        yield (
            f"{count} requests were refused, and vLLM logs a prompt only once it is "
            "accepted: what a refused request leaves behind is not in this case."
        )
    if tally.format.endswith("-log"):
        yield (
            "Of a log, prompts stand after the chat template, unless it has "
            "whole bodies."
        )
