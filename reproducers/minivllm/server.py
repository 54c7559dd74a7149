"""OpenAI-compatible HTTP front: ``python -m minivllm.server --model FOLDER --port
8000``."""

import argparse
import ctypes
import json
import logging
import select
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .chat import BadRequest, Chat, Prompt
from .config import FAULTS, EngineConfig, ModelConfig, by_chance, chosen, plugged
from .engine import Engine

log = logging.getLogger(__name__)

VERSION = "0.1"
MAX_BODY_BYTES = 32 << 20


class Gone(Exception):
    """The client closed the connection."""


class Front(ThreadingHTTPServer):
    """One thread a connection."""

    daemon_threads = True
    request_queue_size = 128
    model = "minivllm"
    chat: Chat
    service: Any

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write what a thread of a connection raised; a client that closes it while it
        is answered is no error."""
        error = sys.exc_info()[1]
        if isinstance(error, ConnectionError):
            log.info("%s - the client left: %s", client_address[0], error)
        else:
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Front
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        service = self.server.service
        if self.path == "/health":
            self._answer(
                503 if service.dead else 200,
                {"error": service.dead} if service.dead else {},
            )
        elif self.path == "/v1/models":
            config = service.engine.config
            card = {"id": self.server.model, "object": "model", "owned_by": "minivllm"}
            card |= {"max_model_len": config.max_model_len}
            self._answer(200, {"object": "list", "data": [card]})
        elif self.path == "/version":
            self._answer(200, {"version": VERSION})
        elif self.path == "/metrics":
            self._send(200, service.metrics().encode(), "text/plain; version=0.0.4")
        else:
            self._error(404, f"there is no {self.path}")

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.close_connection = True
            return self._error(411, "a Content-Length is needed")
        if not 0 <= length <= MAX_BODY_BYTES:
            self.close_connection = True
            return self._error(413, f"a body has at most {MAX_BODY_BYTES} bytes")
        body = self.rfile.read(length)
        try:
            if self.path == "/tokenize":
                return self._tokenize(body)
            if self.path == "/v1/chat/completions":
                return self._complete(body)
            self._error(404, f"there is no {self.path}")
        except BadRequest as error:
            self._error(400, str(error))
        except (Gone, OSError):
            self.close_connection = True
        return None

    def _tokenize(self, body: bytes) -> None:
        try:
            text = json.loads(body)["prompt"]
            ids = self.server.chat.tokenize(text)
        except (ValueError, LookupError, TypeError) as error:
            raise BadRequest(f"not a request to tokenize: {error}") from error
        config = self.server.service.engine.config
        self._answer(
            200,
            {"count": len(ids), "tokens": ids, "max_model_len": config.max_model_len},
        )

    # ------------------------------------------------------------------ completions

    def _complete(self, body: bytes) -> None:
        from .service import EngineFailed

        prompt = self.server.chat.prompt(body)
        begun = False
        try:
            ticket = self.server.service.submit(prompt)
            news = self._watched(ticket)
            if not prompt.stream:
                return self._whole(prompt, ticket, list(news))
            # Headers wait for the first token.
            for text, reason in self._pieces(news, ticket):
                if not begun:
                    self._begin_stream()
                    begun = True
                self._event(
                    ticket,
                    {"choices": [self._choice({"content": text}, reason, "delta")]},
                )
            if prompt.include_usage:
                self._event(
                    ticket, {"choices": [], "usage": self._usage(prompt, ticket)}
                )
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except EngineFailed as error:
            if not begun:
                return self._error(500, str(error))
            failure = {"message": str(error), "type": "InternalServerError"}
            self._event(ticket, {"error": failure})
            self._chunk(b"")
        return None

    def _watched(self, ticket: Any) -> Iterator[int]:
        """The tokens of ``ticket``; it is aborted when the client closes the
        connection."""
        service = self.server.service
        ended = False
        try:
            for token in service.tokens(ticket):
                if token is not None:
                    yield token
                elif self._client_is_gone():
                    raise Gone
            ended = True
        finally:
            # Also when writing what was yielded failed, which closes this generator.
            if not ended:
                service.abort(ticket)

    def _client_is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

    def _whole(self, prompt: Prompt, ticket: Any, ids: list[int]) -> None:
        text = self.server.chat.text(ids)
        choice = self._choice(
            {"role": "assistant", "content": text}, ticket.seq.finish_reason
        )
        self._answer(
            200, self._frame(ticket, [choice]) | {"usage": self._usage(prompt, ticket)}
        )

    def _pieces(
        self, news: Iterator[int], ticket: Any
    ) -> Iterator[tuple[str, str | None]]:
        """Text as it becomes known; a character that is not whole yet waits."""
        ids: list[int] = []
        told = ""
        for token in news:
            ids.append(token)
            text = self.server.chat.text(ids)
            if not text.endswith("\ufffd"):
                yield text[len(told) :], None
                told = text
        yield self.server.chat.text(ids)[len(told) :], ticket.seq.finish_reason

    def _usage(self, prompt: Prompt, ticket: Any) -> dict[str, Any]:
        count = len(ticket.seq.output_ids)
        return {
            "prompt_tokens": prompt.num_tokens,
            "completion_tokens": count,
            "total_tokens": prompt.num_tokens + count,
            "prompt_tokens_details": {"cached_tokens": ticket.seq.num_cached},
        }

    def _choice(
        self, content: dict[str, Any], reason: str | None, key: str = "message"
    ) -> dict[str, Any]:
        return {"index": 0, key: content, "finish_reason": reason}

    def _frame(
        self, ticket: Any, choices: list[dict[str, Any]], kind: str = "chat.completion"
    ) -> dict[str, Any]:
        return {
            "id": ticket.name,
            "object": kind,
            "created": int(time.time()),
            "model": self.server.model,
            "choices": choices,
        }

    # ------------------------------------------------------------------ bytes

    def _begin_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, ticket: Any, content: dict[str, Any]) -> None:
        event = self._frame(ticket, [], "chat.completion.chunk") | content
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _answer(self, status: int, content: dict[str, Any]) -> None:
        self._send(status, json.dumps(content).encode(), "application/json")

    def _error(self, status: int, message: str) -> None:
        kind = "BadRequestError" if status < 500 else "InternalServerError"
        self._answer(
            status, {"error": {"message": message, "type": kind, "code": status}}
        )

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        log.info("%s - %s", self.client_address[0], format % args)


class _LineFormatter(logging.Formatter):
    """vLLM's form, on every line of a traceback: ``(EngineCore pid=1) ERROR 11-21
    02:44:01 …``."""

    def format(self, record: logging.LogRecord) -> str:
        role = "EngineCore" if record.threadName == "EngineCore" else "APIServer"
        when = time.strftime("%m-%d %H:%M:%S", time.localtime(record.created))
        where = f"[{record.filename}:{record.lineno}]"
        head = f"({role} pid={record.process}) {record.levelname} {when} {where} "
        return "\n".join(head + line for line in super().format(record).splitlines())


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    default = EngineConfig()
    parser = argparse.ArgumentParser(prog="minivllm", description=__doc__)
    parser.add_argument(
        "--model", type=Path, required=True, help="folder with a tiny Qwen3"
    )
    parser.add_argument("--served-model-name", default="minivllm")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    for name in (
        "num-blocks",
        "block-size",
        "max-model-len",
        "max-num-seqs",
        "mm-cache-tokens",
    ):
        field = name.replace("-", "_")
        parser.add_argument(f"--{name}", type=int, default=getattr(default, field))
    parser.add_argument(
        "--max-batched-tokens", type=int, default=default.max_batched_tokens
    )
    parser.add_argument(
        "--no-prefix-caching", dest="prefix_caching", action="store_false"
    )
    parser.add_argument("--async-scheduling", action="store_true")
    parser.add_argument("--vision", choices=("fake", "tower"), default=default.vision)
    told = "keep a GPU busy so long before an image's embeddings, as a real tower does"
    parser.add_argument("--vision-ms", type=int, default=default.vision_ms, help=told)
    told = "token ids beside an image's embeddings, which nobody reads: how many"
    parser.add_argument(
        "--placeholder-ids", choices=("all", "text"), default="all", help=told
    )
    parser.add_argument("--text-only", dest="multimodal", action="store_false")
    told = "make the image runner as the server starts, not when the first image comes"
    parser.add_argument("--images-at-start", action="store_true", help=told)
    told = "the picture that the image runner warms up with (default: a black one)"
    parser.add_argument("--warm-up-image", type=Path, metavar="FILE", help=told)
    parser.add_argument(
        "--check-contract",
        nargs="?",
        const="raise",
        default="off",
        choices=("off", "log", "raise"),
        help="hold every step against the contract",
    )
    parser.add_argument(
        "--paper", action="store_true", help="no torch: answers are hashes"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="auto: float32",
    )
    told = "; ".join(f"{name}: {text}" for name, text in FAULTS.items())
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help=told
    )
    parser.add_argument(
        "--fix", action="append", default=[], metavar="NAME", help="undo --fault"
    )
    parser.add_argument(
        "--fault-probability",
        type=_probability,
        default=1.0,
        metavar="P",
        help=(
            "this server has the faults with probability P, and none of them otherwise"
        ),
    )
    parser.add_argument(
        "--fault-seed", type=int, metavar="N", help="draw that from N, not anew"
    )
    told = (
        "a Python file whose plug(config) returns the config to use; run "
        "before the engine is made"
    )
    parser.add_argument("--plugin", type=Path, metavar="FILE", help=told)
    return parser.parse_args(argv)


def _probability(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} does not lie between 0 and 1")
    return value


def config_of(options: argparse.Namespace) -> EngineConfig:
    """Raises ValueError."""
    device = "cpu" if options.paper else options.device
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    faults = by_chance(
        chosen(options.fault, options.fix),
        options.fault_probability,
        options.fault_seed,
    )
    names = EngineConfig.__dataclass_fields__.keys() - {
        "device",
        "faults",
        "async_scheduling",
    }
    return EngineConfig(
        device=device,
        faults=faults,
        async_scheduling=options.async_scheduling or "reused-mask" in options.fault,
        **{name: getattr(options, name) for name in names},
    )


def _engine(options: argparse.Namespace, config: EngineConfig) -> Engine:
    if options.paper:
        from .paper import paper_engine

        return paper_engine(config)
    from .loading import load

    return load(options.model, config)


def main(argv: Sequence[str] | None = None) -> int:
    options = arguments(argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter())
    logging.basicConfig(level=logging.DEBUG, handlers=[handler])
    logging.getLogger("PIL").setLevel(logging.INFO)
    # PR_SET_NAME: how tools call us.
    ctypes.CDLL(None).prctl(15, b"MV::EngineCore", 0, 0, 0)
    try:
        front = Front((options.host, options.port), Handler)
        config = config_of(options)
        asked = config.faults
        if options.plugin is not None:
            config = plugged(options.plugin, config)
            log.info("plugin %s is in", options.plugin.name)
        from .service import Service

        log.info("placeholder ids: %s", config.placeholder_ids)
        for name in sorted(asked):
            log.warning("fault %s is on: %s", name, FAULTS[name])
        for name in sorted(chosen(options.fault, options.fix) - asked):
            log.warning(
                "fault %s is off: its probability is %g",
                name,
                options.fault_probability,
            )
        front.model = options.served_model_name
        front.chat = Chat(options.model, ModelConfig.read(options.model).vision)
        front.service = Service(_engine(options, config))
    except Exception as error:  # its own module may be what is broken
        log.exception("minivllm cannot start")
        print(f"minivllm: {error}", file=sys.stderr)
        return 1
    log.info("ready on port %d", front.server_address[1])
    try:
        front.serve_forever(poll_interval=0.1)
    except KeyboardInterrupt:
        pass
    finally:
        front.service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
