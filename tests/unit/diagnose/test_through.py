"""Which hop of a gateway's chain is wrong. What gateways list was copied from real ones;
benchmarks/chain.py asks them."""

import asyncio
import json

import pytest
from fake_server import Reply, answering, completion, http, serving
from mmrepro.base.errors import UsageError
from mmrepro.base.records import Moment
from mmrepro.cli.app import app
from mmrepro.failure.documents.chain import GatewayChain, Hop, HopState
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.fleet.through import conclude, look_through, of_answer, registered
from mmrepro.probes.data import InferenceData
from typer.testing import CliRunner

GATEWAY, ONE, TWO = "http://g:1", "http://w:1", "http://w:2"
MODELS = http(200, json.dumps({"data": [{"id": "tiny"}]}).encode())


def chain(
    gateway: HopState, *workers: HopState, told: str = "", **more: int
) -> GatewayChain:
    hops = []
    for url, state in zip((ONE, TWO), workers, strict=False):
        hops.append(Hop(url=url, state=state, told="told", seconds=0.1))
    made = GatewayChain(
        taken=Moment.now(),
        gateway=Hop(url=GATEWAY, state=gateway, told=told, seconds=0.1),
        workers=hops,
        asked=6,
        answered=more.get("answered", 0),
    )
    conclude(made)
    return made


WELL, DEAD, HUNG = HopState.WELL, HopState.DEAD, HopState.HUNG


@pytest.mark.parametrize(
    ("gateway", "workers", "at", "between", "code"),
    [
        (WELL, (WELL, WELL), [], False, 0),
        (WELL, (WELL, DEAD), [TWO], False, 1),
        (HopState.FAILING, (DEAD, WELL), [ONE], False, 1),
        (HUNG, (HUNG, HUNG), [ONE, TWO], False, 1),
        (DEAD, (WELL, WELL), [GATEWAY], False, 1),
        (HopState.HALF_OPEN, (), [GATEWAY], False, 1),
        (HopState.REFUSING, (WELL, WELL), [GATEWAY], False, 1),
        (HUNG, (WELL, WELL), [GATEWAY], False, 1),
        (HopState.FAILING, (WELL, WELL), [], True, 1),
        (HopState.FAILING, (), [GATEWAY], False, 1),
        (WELL, (HopState.WRONG_MODEL, WELL), [ONE], False, 1),
    ],
)
def test_the_hop_that_is_wrong_is_named(
    gateway: HopState,
    workers: tuple[HopState, ...],
    at: list[str],
    between: bool,
    code: int,
) -> None:
    found = chain(gateway, *workers, told="a small request: 502")
    assert (found.at, found.between, found.exit_code) == (at, between, code)
    assert found.sentence.endswith(".")
    for url in at:
        assert url in found.sentence


def test_servers_that_only_the_gateway_reaches_are_not_blamed() -> None:
    away = HopState.UNREACHABLE
    found = chain(WELL, away, away, answered=6)
    assert (found.at, found.exit_code) == ([], 0)
    assert "cannot be reached from here" in found.sentence
    assert chain(HopState.FAILING, away, away).at == [ONE, TWO]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ((["tiny"], ["other"]), True),
        ((["tiny"], ["tiny", "other"]), False),
        ((["tiny"], ["unknown"]), False),
        ((["tiny"], []), False),
    ],
)
def test_servers_of_different_models_are_told_of_and_not_blamed(
    names: tuple[list[str], list[str]], told: bool
) -> None:
    made = chain(WELL, WELL, WELL, answered=6)
    for hop, listed in zip(made.workers, names, strict=True):
        hop.models = listed
    conclude(made)
    assert (made.at, made.exit_code) == ([], 0)
    assert ("They serve different models: other, tiny." in made.sentence) is told


def test_the_slow_one_of_two_is_found() -> None:
    made = chain(WELL, WELL, WELL, answered=6)
    made.workers[1].seconds = 3.2
    conclude(made)
    assert made.at == [TWO]
    made.workers[1].seconds = 0.4
    made.workers[1].state = WELL
    conclude(made)
    assert made.at == []


# ------------------------------------------------------------------ what is listed

LISTS = {
    "sglang-router 0.3.2": (
        "/workers",
        '{"workers":[{"id":"ce17","url":"http://127.0.0.1:18802","model_id":"unknown",'
        '"is_healthy":true},{"url":"http://127.0.0.1:18801","is_healthy":false}]}',
        [True, False],
    ),
    "vllm-router 0.1.17": (
        "/list_workers",
        '{"urls":["http://127.0.0.1:18802@1","http://127.0.0.1:18801"]}',
        [None, None],
    ),
    "litellm": (
        "/v1/model/info",
        '{"data":[{"model_name":"tiny","litellm_params":{"model":"openai/tiny",'
        '"api_base":"http://127.0.0.1:18802/v1"}},{"litellm_params":{"api_base":'
        '"http://127.0.0.1:18801/v1"}}]}',
        [None, None],
    ),
}


def only(path: str, body: str) -> Reply:
    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        known = request.startswith(f"GET {path} ".encode())
        raw = http(200, body.encode()) if known else http(404, b"{}")
        await answering(raw)(request, writer)

    return reply


@pytest.mark.parametrize("name", LISTS)
def test_what_a_gateway_lists_is_read(name: str) -> None:
    path, body, healthy = LISTS[name]

    async def main() -> object:
        async with serving(only(path, body)) as server:
            return await asyncio.to_thread(registered, server.url, {})

    found = asyncio.run(main())
    assert found is not None
    workers, told = found  # type: ignore[misc]
    assert told == path
    urls = [f"http://127.0.0.1:{port}" for port in (18802, 18801)]
    assert [worker.url for worker in workers] == urls
    assert [worker.healthy for worker in workers] == healthy


@pytest.mark.parametrize("body", ["[]", '{"workers": 3}', '{"urls": [1, "x"]}', "{"])
def test_what_is_no_list_of_servers_is_none(body: str) -> None:
    async def main() -> object:
        async with serving(only("/workers", body)) as server:
            return await asyncio.to_thread(registered, server.url, {})

    assert not asyncio.run(main())


# ------------------------------------------------------------------ asked


def gateway_of(worker: str, post: Reply) -> Reply:
    listing = http(200, json.dumps({"urls": [worker]}).encode())

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        if request.startswith(b"POST"):
            return await post(request, writer)
        raw = http(404, b"{}")
        if request.startswith(b"GET /list_workers"):
            raw = listing
        if request.startswith(b"GET /v1/models"):
            raw = MODELS
        return await answering(raw)(request, writer)

    return reply


def through(worker: str, post: Reply) -> GatewayChain:
    async def main() -> GatewayChain:
        async with serving(gateway_of(worker, post)) as server:
            asked = DiagnoseCommand(url=server.url, deadline_s=1.0, through=True)
            return await asyncio.to_thread(look_through, asked)

    return asyncio.run(main())


def test_a_server_that_is_gone_and_still_registered_is_named() -> None:
    found = through("http://127.0.0.1:9", answering(http(502, b"bad gateway")))
    assert found.at == ["http://127.0.0.1:9"]
    assert "is dead" in found.sentence
    assert found.advice == ["mmrepro diagnose http://127.0.0.1:9"]


def test_a_gateway_that_fails_before_a_server_that_answers() -> None:
    async def main() -> GatewayChain:
        works = answering(http(200, completion()))
        async with serving(gateway_of("http://none:1", works)) as worker:
            bad = answering(http(503, b"no upstream"))
            async with serving(gateway_of(worker.url, bad)) as server:
                asked = DiagnoseCommand(url=server.url, deadline_s=2.0, through=True)
                return await asyncio.to_thread(look_through, asked)

    found = asyncio.run(main())
    assert found.between, found.sentence
    assert [hop.state for hop in found.workers] == [WELL]


def test_a_server_that_lists_none_is_no_gateway() -> None:
    async def main() -> None:
        async with serving(only("/v1/models", '{"data": []}')) as server:
            asked = DiagnoseCommand(url=server.url, deadline_s=1.0, through=True)
            await asyncio.to_thread(look_through, asked)

    with pytest.raises(UsageError, match="lists no servers"):
        asyncio.run(main())


def test_the_command_prints_the_sentence_and_each_hop() -> None:
    done = CliRunner().invoke(
        app, ["diagnose", "http://127.0.0.1:9", "http://127.0.0.1:9", "--through"]
    )
    assert done.exit_code == 1
    assert done.stdout.startswith("The gateway http://127.0.0.1:9 is dead")
    assert done.stdout.count("http://127.0.0.1:9") == 3


@pytest.mark.parametrize(
    ("seconds", "error", "state"),
    [
        (5.0, "", HUNG),
        (0.2, "ConnectError: [Errno 111] Connection refused", DEAD),
        (0.2, "RemoteProtocolError: the server disconnected", HopState.FAILING),
    ],
)
def test_only_a_hop_that_used_up_the_deadline_hangs(
    seconds: float, error: str, state: HopState
) -> None:
    asked = InferenceData(
        answered=False, status=None, seconds=seconds, deadline_s=5.0, error=error
    )
    assert of_answer(Hop(url=ONE, state=WELL), asked).state is state
