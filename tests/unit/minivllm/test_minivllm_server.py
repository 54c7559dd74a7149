"""minivllm's HTTP front over the paper engine, spoken to by the harness's own client
and probes."""

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mmrepro.engines import get_engine
from mmrepro.engines.models.base import write_tokenizer
from mmrepro.probes.metrics import parse_metrics
from mmrepro.reproducers.minivllm.chat import BadRequest, Chat, grid_of
from mmrepro.reproducers.minivllm.config import EngineConfig, VisionConfig
from mmrepro.reproducers.minivllm.paper import paper_engine
from mmrepro.reproducers.minivllm.server import Front, Handler, arguments, config_of
from mmrepro.reproducers.minivllm.service import Service
from mmrepro.traffic import Traffic
from mmrepro.traffic.evidence import RequestRecord
from mmrepro.traffic.evidence.recorder import Recorder
from mmrepro.traffic.pictures import noise

ENGINE = get_engine("minivllm")
VISION = VisionConfig(max_tokens=16)
SMALL = EngineConfig(num_blocks=40, block_size=4, max_model_len=128)
X = noise("X", 1, (56, 56))


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder, 320)
    return Chat(folder, VISION)


class Client:
    """A running front."""

    def __init__(self, front: Front, folder: Path) -> None:
        self.front, self.folder = front, folder
        self.port = front.server_address[1]

    def chat(self, label: str, **options: Any) -> RequestRecord:
        async def ask() -> RequestRecord:
            recorder = Recorder(self.folder)
            traffic = Traffic(f"http://127.0.0.1:{self.port}", "tiny", recorder)
            try:
                given = {"text": "hi", "max_tokens": 5, **options}
                return await traffic.chat(label, deadline_s=10, **given)
            finally:
                await traffic.close()

        return asyncio.run(ask())

    def get(self, path: str) -> tuple[int, str]:
        return self.send("GET", path)

    def send(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def metric(self, short: str) -> float:
        name = ENGINE.metrics[short][0]
        values = [
            s.value for s in parse_metrics(self.get("/metrics")[1])[0] if s.name == name
        ]
        assert values, f"no {name}"
        return sum(value or 0.0 for value in values)


Start = Callable[..., Client]


@pytest.fixture
def start(chat: Chat, tmp_path: Path) -> Iterator[Start]:
    fronts: list[Front] = []

    def run(config: EngineConfig = SMALL) -> Client:
        front = Front(("127.0.0.1", 0), Handler)
        front.chat, front.service = chat, Service(paper_engine(config))
        threading.Thread(target=front.serve_forever, args=(0.01,), daemon=True).start()
        fronts.append(front)
        return Client(front, tmp_path)

    yield run
    for front in fronts:
        front.shutdown()
        front.server_close()
        front.service.stop()


def test_the_front_answers_as_the_harness_asks(start: Start) -> None:
    server = start()
    for path in (*ENGINE.endpoints, ENGINE.metrics_path, "/version"):
        assert server.get(path)[0] == 200, path
    whole = server.chat("image", images=[X])
    streamed = server.chat("image, streamed", images=[X], stream=True)
    text = server.chat("text")
    for record in (whole, streamed, text):
        assert record.answered, record.error
        assert (record.completion_tokens, record.finish_reason) == (5, "length")
    assert whole.text == streamed.text != text.text
    assert (
        whole.prompt_tokens == streamed.prompt_tokens == (text.prompt_tokens or 0) + 4
    )
    assert streamed.ttft_s is not None
    assert server.get("/no-such")[0] == 404
    assert [
        server.metric(n) for n in ("finished", "mm_cache_queries", "mm_cache_hits")
    ] == [
        3,
        2,
        1,
    ]
    assert server.metric("generation_tokens") == 15
    assert server.metric("running") == server.metric("waiting") == 0


@pytest.mark.parametrize("metric", ENGINE.metrics)
def test_the_adapter_names_metrics_that_are_there(start: Start, metric: str) -> None:
    assert start().metric(metric) == 0


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "not a chat request"),
        ("[]", "not a chat request"),
        ('{"messages": []}', "at least one message"),
        ('{"messages": [{"role": "user", "content": [{"type": "video"}]}]}', "'video'"),
        (
            '{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
            "out of range",
        ),
        (
            '{"messages": [{"role": "user", "content": "' + "x" * 200 + '"}]}',
            "context length",
        ),
        ("[" * 100_000, "not a chat request"),
    ],
)
def test_what_is_not_a_request_is_a_400(start: Start, body: str, says: str) -> None:
    status, text = start().send("POST", "/v1/chat/completions", body)
    assert status == 400
    assert says in json.loads(text)["error"]["message"]


@pytest.mark.parametrize(
    "url", ["https://host/x.png", "data:image/png;base64,AAAA", "file:///x"]
)
def test_an_image_that_is_none_is_refused(chat: Chat, url: str) -> None:
    with pytest.raises(BadRequest, match=r"data:image|not a picture"):
        chat.image(url)


def test_an_image_becomes_the_tokens_that_it_is_resized_to() -> None:
    assert grid_of(56, 56, VISION) == (2, 2)
    assert grid_of(84, 56, VISION) == (2, 3)
    assert grid_of(1, 1, VISION) == (1, 1)
    rows, cols = grid_of(2000, 1000, VISION)
    assert rows * cols <= VISION.max_tokens
    assert cols > rows
    with pytest.raises(ValueError, match="pixels"):
        grid_of(1000, 4, VISION)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_is_aborted(start: Start, stream: bool) -> None:
    server = start()
    gate, original = threading.Event(), server.front.service.engine.runner.run

    def held(batch: Any) -> Any:
        gate.wait(10)
        return original(batch)

    server.front.service.engine.runner.run = held
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60}
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body | {"stream": stream})
    )
    connection.close()
    service = server.front.service
    wait_until(lambda: any(ticket.aborted for ticket in service._open))
    gate.set()
    wait_until(lambda: not service._open)
    assert service.engine.counts["finished_abort"] == 1
    assert not service.engine.scheduler.blocks.users
    assert server.chat("after").answered


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError("not within ten seconds")


def test_a_desynchronised_image_cache_is_a_500(start: Start) -> None:
    """The first half of vllm#43941; its second, the endless eviction, is in the caches'
    tests."""
    server = start(
        EngineConfig(**{**vars(SMALL), "faults": frozenset({"ghost-key-lru"})})
    )
    refused = server.chat("too long", text="x" * 200, images=[X])
    again = server.chat("short", images=[X])
    other = server.chat("another", images=[noise("Y", 2, (56, 56))])
    assert (refused.status, again.status, other.status) == (400, 500, 200)
    assert "Expected a cached item for mm_hash=" in again.error
    right = start()
    assert [right.chat("r", text=t, images=[X]).status for t in ("x" * 200, "hi")] == [
        400,
        200,
    ]


def test_a_budget_that_is_too_small_ends_the_loop(start: Start) -> None:
    faults = frozenset({"kv-budget"})
    server = start(
        EngineConfig(num_blocks=81, block_size=4, max_model_len=320, faults=faults)
    )
    prompt = server.chat("short prompt", max_tokens=1)
    assert prompt.answered, prompt.error
    too_long = server.chat("no room", text="x" * 60)
    assert (too_long.status, "internal error" in too_long.error) == (500, True)
    assert server.get("/health")[0] == 200
    grows = server.chat("grows", max_tokens=100)
    assert grows.status == 500
    assert "nothing is left to preempt" in grows.error
    assert server.get("/health")[0] == 503
    assert server.chat("later").status == 500


def test_the_options_are_the_config_s() -> None:
    options = arguments(["--model", "x", "--fault", "kv-budget", "--check-contract"])
    assert (options.fault, options.check_contract) == (["kv-budget"], "raise")
    assert options.block_size == EngineConfig().block_size
    for name in EngineConfig.__dataclass_fields__.keys() - {
        "faults",
        "check_contract",
        "device",
    }:
        assert getattr(options, name) == getattr(EngineConfig(), name), name


@pytest.mark.parametrize("wrong", ["1.5", "-0.1", "often", "nan"])
def test_a_probability_lies_between_0_and_1(wrong: str) -> None:
    given = ["--model", "x", "--fault", "kv-budget"]
    with pytest.raises(SystemExit):
        arguments([*given, f"--fault-probability={wrong}"])
    on = config_of(arguments([*given, "--paper", "--fault-probability", "1"]))
    off = config_of(arguments([*given, "--paper", "--fault-probability", "0"]))
    assert (on.faults, off.faults) == (frozenset({"kv-budget"}), frozenset())


@pytest.mark.parametrize(("error", "shown"), [(BrokenPipeError, 0), (OSError, 1)])
def test_a_client_that_leaves_is_no_error(
    error: type[Exception], shown: int, capsys: pytest.CaptureFixture[str]
) -> None:
    front = Front(("127.0.0.1", 0), Handler)
    try:
        raise error("gone")
    except OSError:
        front.handle_error(None, ("127.0.0.1", 1))
    finally:
        front.server_close()
    assert capsys.readouterr().err.count("Traceback") == shown
