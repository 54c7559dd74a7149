"""Whatever a server sends is an observation: no crash, nothing lost, and no more said
than seen."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from fake_server import Reply, answering, completion, endless, http as said, serving
from made_up import http
from mmrepro.base.errors import RunTimeout
from mmrepro.failure.documents.diagnosis import Assessment, ServerState
from mmrepro.failure.signature.live_server import LATENESS
from mmrepro.live.diagnose import collect, frozen, general, session
from mmrepro.live.diagnose.collect import Collector
from mmrepro.live.diagnose.frozen import Stance
from mmrepro.live.diagnose.options import DiagnoseCommand
from mmrepro.live.diagnose.readings import DiagnosisView
from mmrepro.live.diagnose.session import Diagnosed, diagnose
from mmrepro.probes.data import AnyProbeData, EndpointAnswer, HttpData, ThreadStack
from mmrepro.probes.http import fetch, field_of, first_model
from seen import (
    CORE,
    FRONT,
    IDLE,
    TID,
    evidence,
    failed,
    frames,
    sampled,
    target,
    thread,
    use,
    waiting,
)

UNNAMED = {"core_role": "", "engine": "", "root_pid": CORE}
FROZEN = {s for s in ServerState if "frozen" in s or s is ServerState.BLOCKED_ON_LOCK}


def assessed(*data: AnyProbeData, **facts: object) -> Assessment:
    return general.assess(evidence(*data), target(**facts))


def errors(*errors: str, body: str = "", timed_out: bool = False) -> HttpData:
    """None of the endpoints gave a whole answer."""
    answers = [
        EndpointAnswer(
            path=path,
            status=None,
            seconds=0.1,
            error=error,
            body=body,
            timed_out=timed_out,
        )
        for path, error in zip(("/health", "/v1/models"), errors, strict=True)
    ]
    return HttpData(base_url="http://127.0.0.1:8000", answers=answers)


def five(*threads: ThreadStack, pid: int = CORE) -> AnyProbeData:
    return sampled(*[list(threads)] * 5, pid=pid)


SLEEPS = five(thread(frames("main app.py:7", "<module> app.py:9"), active=False))
CLOSED = errors("RemoteProtocolError: Server disconnected", "ReadError: reset")

# ---------------------------------------------------------------- no more than was seen


@pytest.mark.parametrize("place", ["local", "container", "remote"])
@pytest.mark.parametrize(
    "front",
    [
        CLOSED,
        errors("RemoteProtocolError: illegal status line", "ReadError: reset"),
        errors("no complete answer in 3.0 s", "ReadError: reset"),
        errors(
            *["no complete answer in 3.0 s in the body"] * 2, body="{", timed_out=True
        ),
    ],
    ids=["closed", "garbage", "one is reset", "begins and never ends"],
)
def test_what_is_sent_back_is_not_frozen(front: HttpData, place: str) -> None:
    facts = {**UNNAMED, "place": place}
    if place == "remote":
        facts |= {"root_pid": None, "processes": [], "listening": None}
    for more in ([], [failed(None, "ReadError: reset")]):
        found = assessed(
            front, SLEEPS, use(0.0), waiting("clock_nanosleep"), *more, **facts
        )
        assert found.state is ServerState.UNKNOWN
        assert "no whole HTTP answer" in found.sentence


def test_a_name_that_does_not_resolve_is_not_a_dead_server() -> None:
    remote = {"place": "remote", "root_pid": None, "processes": [], "listening": None}
    for error in (
        "[Errno -2] Name or service not known",
        "[SSL: WRONG_VERSION_NUMBER] wrong",
    ):
        found = assessed(errors(*[f"ConnectError: {error}"] * 2), **remote)
        assert found.state is ServerState.UNREACHABLE
    refused = errors(*["ConnectError: [Errno 111] Connection refused"] * 2)
    assert assessed(refused, **remote).state is ServerState.DEAD


def test_a_main_thread_that_sleeps_is_not_the_engine() -> None:
    silent = http(None, None)
    asleep = [SLEEPS, use(0.0), waiting("clock_nanosleep")]
    found = assessed(silent, *asleep, **UNNAMED)
    assert (found.state, found.frames) == (ServerState.UNKNOWN, [])
    assert (
        assessed(silent, *asleep, core_role="EngineCore").state
        is ServerState.FRONT_FROZEN
    )
    # It is the engine's process, or the sleep is inside the event loop: then it tells.
    named = assessed(silent, *asleep, root_pid=CORE)
    assert named.state is ServerState.FROZEN_PYTHON
    looped = five(
        thread(frames("handler a.py:7", "_run_once base_events.py:1"), active=False)
    )
    asleep[0] = looped
    assert assessed(silent, *asleep, **UNNAMED).state is ServerState.FROZEN_PYTHON


# ---------------------------------------------------------------- where its stacks are


def stance(*data: AnyProbeData, **facts: object) -> tuple[Stance, str]:
    return frozen.stance(DiagnosisView(target(**facts), evidence(*data)))


STEPS = [
    [thread(frames(f"op layer.py:{n}", *["f m.py:1"] * 7, f"step s.py:{n}"))]
    for n in (1, 2)
]


def test_where_a_silent_engine_stands() -> None:
    idle = five(thread(IDLE, active=False))
    stands = five(thread(frames("popitem cache.py:195", "loop core.py:1"), gil=True))
    moves = sampled(*STEPS * 3)
    assert stance(idle) == (Stance.IDLES, "wait (threading.py:320)")
    assert stance(stands) == (Stance.STANDS, "popitem (cache.py:195)")
    assert stance(moves)[0] is Stance.MOVES
    assert stance() == stance(sampled(*STEPS)) == (Stance.UNSEEN, "")
    assert stance(stands, states="S") == (Stance.UNSEEN, ""), (
        "which process is the core?"
    )


def test_an_engine_that_idles_while_its_front_computes_is_kept_from_work() -> None:
    idle, front = five(thread(IDLE, active=False)), sampled(*STEPS * 3, pid=FRONT)
    assert stance(idle, front)[0] is Stance.MOVES
    waits = five(thread(IDLE, active=False, tid=TID + 1), pid=FRONT)
    assert stance(idle, waits)[0] is Stance.IDLES


# ---------------------------------------------------------- whole looks at FAKE servers

MODELS = json.dumps({"data": [{"id": "tiny"}]}).encode()


SOON = {
    "APART_S": 0.1,
    "SOONEST_S": 0.3,
    "LAST_S": 0.1,
    "BESIDE_S": 1.0,
    "EVIDENCE_S": 0.5,
}
"""What a look waits for, shortened: a FAKE server's answers are the same a second
later."""


def looked(reply: Reply, tmp_path: Path, **options: object) -> Diagnosed:
    async def main() -> Diagnosed:
        async with serving(reply) as server:
            asked = DiagnoseCommand(
                url=server.url,
                out=tmp_path / "kept",
                deadline_s=1.0,
                samples=1,
                **options,
            )  # type: ignore[arg-type]
            return await asyncio.to_thread(diagnose, asked)

    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in SOON.items():
            patch.setattr(collect, name, seconds)
        return asyncio.run(main())


DEEP = b'{"data": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    "body",
    [
        DEEP[:200_000],
        DEEP,
        b'{"data": [{"id": ' + b"9" * 5000 + b"}]}",
        b'{"data": [{"id": NaN}], "version": 1e999}',
        b'{"data": [{"id": "\\ud800"}], "version": "\\ud800"}',
        b'{"data": [{"id": {"id": []}}], "version": ["0.1"]}',
        b'"data"',
        b"\xff\xfe{\0}\0",
        b'{"data": [{"id": "'
        + b"x" * 100_000
        + b'"}], "version": "'
        + b"1" * 100_000
        + b'"}',
    ],
    ids=[
        "cut",
        "deep",
        "huge int",
        "NaN",
        "surrogate",
        "types",
        "text",
        "utf-16",
        "long",
    ],
)
def test_what_is_no_model_and_no_version_is_none(body: bytes) -> None:
    assert first_model(body) == first_model(body.decode("utf-8", "replace")) == ""
    assert field_of(body, "version") == ""


def test_json_that_is_nested_deeply_is_an_observation(tmp_path: Path) -> None:
    found = looked(answering(said(200, DEEP)), tmp_path, engine="vllm")
    assert found.folder is not None
    assert (found.folder / "incident.json").is_file()
    assert found.diagnosis.state not in FROZEN
    assert not any("mmrepro failed" in text for text in found.diagnosis.unseen)


def test_a_list_of_very_many_models_names_the_first(tmp_path: Path) -> None:
    many = json.dumps(
        {"data": [{"id": f"m{n}", "permission": [{}]} for n in range(10_000)]}
    )

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        right = completion() if b'"model":"m0"' in request else b"{}"
        body = right if request.startswith(b"POST") else many.encode()
        await answering(said(200, body))(request, writer)

    found = looked(reply, tmp_path)
    assert found.diagnosis.target.model == "m0"
    # Of a busy machine.
    assert found.diagnosis.state in (
        ServerState.HEALTHY,
        ServerState.SLOW,
    )


def test_what_was_collected_is_kept_when_mmrepro_itself_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Collector) -> None:
        raise TypeError("what a server said")

    monkeypatch.setattr(Collector, "ask_release", broken)
    found = looked(answering(said(200, MODELS)), tmp_path)
    assert found.folder is not None
    assert (found.folder / "evidence" / "check-http-health.body").read_bytes() == MODELS
    assert "the rest of the look: mmrepro failed (TypeError)" in found.diagnosis.unseen
    assert "what a server said" not in (found.folder / "incident.json").read_text()


def test_an_end_that_is_meant_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        raise RunTimeout("used up")

    monkeypatch.setattr(session, "_collect", ended)
    with pytest.raises(RunTimeout):
        looked(answering(said(200, MODELS)), tmp_path)


KEY = 'sk-planted/0123+4567"89abc'


def test_a_key_that_is_echoed_is_in_no_file(tmp_path: Path) -> None:
    forms = [
        KEY,
        json.dumps(KEY)[1:-1],
        "sk-planted%2F0123%2B4567%2289abc",
        KEY.upper(),
    ]
    told: list[str] = []

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        await answering(said(200, json.dumps({"data": forms}).encode()))(
            request, writer
        )

    async def main() -> Path:
        async with serving(reply) as server:
            asked = DiagnoseCommand(
                url=server.url,
                out=tmp_path / "kept",
                deadline_s=1.0,
                samples=1,
                model="tiny",
                headers={"X-Key": f"Bearer {KEY}"},
            )
            found = await asyncio.to_thread(
                diagnose, asked, lambda e: told.append(e.text)
            )
            assert found.folder is not None
            return found.folder

    folder = asyncio.run(main())
    kept = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert any(b"[redacted:header-" in data for data in kept)
    for form in forms:
        assert not [
            d for d in [*kept, *(t.encode() for t in told)] if form.encode() in d
        ], form


# ---------------------------------------------------------------- our own threads

FLOOD = endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 100)


def test_a_server_that_floods_keeps_no_thread_of_ours() -> None:
    async def main() -> str:
        async with serving(FLOOD) as server:
            got = await asyncio.to_thread(
                fetch, "GET", server.url, timeout_s=0.3, max_bytes=1 << 20
            )
            assert got.timed_out
            for one in threading.enumerate():
                if one.name == "probe-fetch":
                    await asyncio.to_thread(one.join, 5)
            return ", ".join(t.name for t in threading.enumerate())

    assert "probe-fetch" not in asyncio.run(main())


# -------------------------------------------------------- a machine without a processor


def test_on_a_machine_short_of_processors_nobody_stands_still() -> None:
    spins = five(thread(frames("pop c.py:5", "loop core.py:1"), gil=True))
    hung = evidence(http(200, 200), failed(None, "late", 15.1), spins, use(98.0))
    assert general.assess(hung, target()).state is ServerState.FROZEN_PYTHON
    hung.facts[LATENESS] = 0.4
    found = general.assess(hung, target())
    assert (found.state, found.why[-1]) == (
        ServerState.UNKNOWN,
        "mmrepro itself waited for one 40% of its time",
    )
    dead = evidence(**{LATENESS: 0.9})
    assert general.assess(dead, target(states="SZ")).state is ServerState.PART_DEAD
