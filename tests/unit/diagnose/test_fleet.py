"""Several servers in one look: made-up diagnoses and metrics. No server made them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from made_up import NOW, at, http, probed
from mmrepro.base.records import Moment
from mmrepro.failure.documents.diagnosis import Assessment, Diagnosis, ServerState
from mmrepro.failure.documents.fleet import Fleet, FleetState, Part, Scraped
from mmrepro.live.fleet.look import Look, part_of
from mmrepro.live.fleet.reading import read, summary
from mmrepro.probes.data import InferenceData, MetricSample, MetricsData
from mmrepro.reports.documents import render
from mmrepro.reports.fleet import KIND, compose_fleet
from mmrepro.reports.terminal import LINES, print_page
from mmrepro.traffic.evidence import Evidence
from rich.console import Console
from seen import answer, target

PREFILL = (
    "--kv-transfer-config",
    '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}',
)
DECODE = (
    "--kv-transfer-config",
    '{"kv_connector": "NixlConnector", "kv_role": "kv_consumer"}',
)
FETCH = "vllm:num_requests_kv_fetch_by_stage"
SOURCE = "vllm:prompt_tokens_by_source_total"
WELL = ServerState.HEALTHY


def metrics(seconds: float, **values: float) -> Any:
    """One reading; a name is a metric's, ``:`` and a label's value after ``__``."""
    samples = []
    for name, value in values.items():
        metric, _, label = name.partition("__")
        full = {"fetch": FETCH, "source": SOURCE}.get(metric, f"vllm:{metric}")
        key = {"fetch": "stage", "source": "source"}.get(metric, "x")
        labels = {key: label} if label else {}
        samples.append(MetricSample(name=full, labels=labels, value=value))
    data = MetricsData(url="http://x/metrics", samples=samples)
    return probed(data).model_copy(update={"started": at(seconds)})


def looked(
    port: int,
    state: ServerState = WELL,
    *readings: Any,
    command: tuple[str, ...] = (),
    answered: InferenceData | None = None,
    scraped: Scraped | None = None,
    **facts: Any,
) -> Look:
    url = f"http://127.0.0.1:{port}"
    words = ["python", "-m", "vllm", "--port", str(port), *command]
    found = Diagnosis(
        taken=Moment(wall=NOW, mono=0),
        target=target(url=url, port=port, command=words, **facts),
        assessment=Assessment(
            state=state, sentence=f"It is {state.value}.", process="EngineCore"
        ),
    )
    said = [probed(answered)] if answered else []
    evidence = Evidence(probes=[probed(http(200, 200)), *said, *readings])
    return Look(url, found, evidence, scraped=scraped)


def fleet(*looks: Look) -> Fleet:
    members, findings = read(looks)
    state, sentence = summary(members, findings)
    taken = Moment(wall=NOW, mono=0)
    return Fleet(
        taken=taken, state=state, sentence=sentence, findings=findings, members=members
    )


# ---------------------------------------------------------------- what each is for


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (PREFILL, Part.PREFILL),
        (DECODE, Part.DECODE),
        ((f"{DECODE[0]}={DECODE[1]}",), Part.DECODE),
        (("--kv-transfer-config.kv_role", "kv_producer"), Part.PREFILL),
        (("--kv-transfer-config", '{"kv_role": "kv_both"}'), Part.REPLICA),
        (("--kv-transfer-config", "{"), Part.REPLICA),
        (("--kv-transfer-config", "[1]"), Part.REPLICA),
        (("--disaggregation-mode", "decode"), Part.DECODE),
        (("--disaggregation-mode=prefill",), Part.PREFILL),
        (("--disaggregation-mode", "null"), Part.REPLICA),
        (("--role", "Prefill"), Part.PREFILL),
        (("--role", "Hybrid"), Part.REPLICA),
        ((), Part.REPLICA),
    ],
)
def test_a_command_line_says_what_a_server_is_for(
    command: tuple[str, ...], part: Part
) -> None:
    found, because = part_of(command)
    assert (found, bool(because)) == (part, part is not Part.REPLICA)


@pytest.mark.parametrize("kind", ["prefill", "decode", "unified"])
def test_so_does_a_label_of_sglang(kind: str) -> None:
    sample = MetricSample(name="sglang:x", labels={"engine_type": kind}, value=1)
    found, _ = part_of((), [MetricsData(url="", samples=[sample])])
    assert found == (Part.REPLICA if kind == "unified" else Part(kind))


# ---------------------------------------------------------------- replicas


def test_all_well() -> None:
    found = fleet(looked(1), looked(2))
    assert (found.state, found.exit_code) == (FleetState.ALL_WELL, 0)
    assert found.sentence == "All 2 servers are well."


@pytest.mark.parametrize(
    "state", [ServerState.FROZEN_PYTHON, ServerState.WORKER_STUCK, ServerState.DEAD]
)
def test_the_odd_one_out(state: ServerState) -> None:
    found = fleet(looked(1), looked(2, state), looked(3))
    assert (found.state, found.exit_code) == (FleetState.ODD_ONE_OUT, 1)
    assert found.findings[0].servers == ["127.0.0.1:2"]
    assert found.sentence == (
        f"127.0.0.1:2 is the odd one out, 2 of 3 servers answer: It is {state.value}."
    )


def test_several_are_unwell_and_one_answers() -> None:
    found = fleet(looked(1), looked(2, ServerState.DEAD), looked(3, ServerState.SLOW))
    assert found.sentence == (
        "2 of 3 servers are unwell: 127.0.0.1:2: dead; 127.0.0.1:3: slow but alive."
    )


def test_all_are_unwell() -> None:
    found = fleet(looked(1, ServerState.FROZEN), looked(2, ServerState.FROZEN))
    assert (found.state, found.exit_code) == (FleetState.ALL_UNWELL, 1)
    assert found.sentence == "All 2 servers are unwell: frozen."
    assert "127.0.0.1:2: dead" in fleet(looked(1, ServerState.FROZEN), dead(2)).sentence
    alone = fleet(
        looked(1, ServerState.FROZEN, command=PREFILL), looked(2, command=DECODE)
    )
    assert (
        alone.sentence
        == "127.0.0.1:1, the only prefill server, is unwell: It is frozen."
    )


def dead(port: int) -> Look:
    return looked(port, ServerState.DEAD)


def test_what_could_not_be_told_is_neither_well_nor_odd() -> None:
    blind = Look("http://10.0.0.9:8000", error="mmrepro failed (OSError)")
    found = fleet(looked(1), looked(2, ServerState.UNREACHABLE), blind)
    assert (found.state, found.exit_code) == (FleetState.UNKNOWN, 3)
    assert "1 of 3 servers are well" in found.sentence
    assert fleet(looked(1, ServerState.DEAD), blind).sentence.startswith(
        "No server is seen"
    )


def test_prometheus_speaks_for_a_server_that_is_too_far_away() -> None:
    held = Scraped(
        health="up", seconds=60, running=[2, 2], waiting=[0, 1], tokens=[900, 900]
    )
    far = looked(2, ServerState.UNREACHABLE, scraped=held)
    found = fleet(looked(1), far)
    assert found.findings[0].servers == ["127.0.0.1:2"]
    assert "no token was counted in 60 s, by Prometheus" in found.sentence
    for moves in (
        {"tokens": [900, 901]},
        {"running": [0, 2]},
        {"running": [], "waiting": []},
    ):
        other = held.model_copy(update=moves)
        assert fleet(
            looked(1), looked(2, ServerState.UNREACHABLE, scraped=other)
        ).state is (FleetState.UNKNOWN)
    near = fleet(looked(1), looked(2, scraped=held))
    assert near.state is FleetState.ALL_WELL, (
        "what was looked at itself is better known"
    )


def test_in_what_one_is_unlike_the_others() -> None:
    same = ("--max-num-seqs", "8")
    found = fleet(
        looked(1, command=same, answered=answer(0.1)),
        looked(
            2,
            command=("--max-num-seqs", "4", "--enforce-eager"),
            release="0.12.0",
            answered=answer(6.0),
        ),
        looked(3, command=same, answered=answer(0.2)),
    )
    assert found.state is FleetState.ALL_WELL, "a difference is no fault"
    assert [m.differs for m in found.members] == [[], found.members[1].differs, []]
    told = "\n".join(found.members[1].differs)
    assert "release 0.12.0, where the others have 0.23.0" in told
    assert "--max-num-seqs is 4, where the others have 8" in told
    assert "--enforce-eager is given, where the others do not have it" in told
    assert "a small request takes 6.0 s, with the others 0.2 s" in told
    assert "--port" not in told


def test_of_two_that_differ_neither_is_the_usual_one() -> None:
    found = fleet(looked(1, release="0.12.0"), looked(2, release="0.23.0"))
    assert [m.differs for m in found.members] == [[], []]


# ---------------------------------------------------------------- prefill and decode


def waiting(seconds: float = 9.0, *, made: float = 4, count: float = 1) -> list[Any]:
    """Readings of a decode server: requests that wait for a KV cache."""
    return [
        metrics(20, fetch__in_progress=count, generation_tokens_total=100),
        metrics(
            20 + seconds, fetch__in_progress=count, generation_tokens_total=100 + made
        ),
    ]


def pair(prefill: Look, decode: Look) -> Fleet:
    return fleet(prefill, decode)


def test_a_transfer_that_does_not_end_while_both_answer() -> None:
    decode = looked(2, WELL, *waiting(), command=DECODE, answered=answer())
    found = pair(looked(1, command=PREFILL), decode)
    assert (found.state, found.exit_code) == (FleetState.TRANSFER_STANDS, 1)
    assert found.findings[0].servers == ["127.0.0.1:2"]
    assert "does not arrive" in found.sentence
    assert "not at fault as far as can be seen" in found.sentence, (
        "its prefill has no such metric"
    )


@pytest.mark.parametrize(
    "readings",
    [
        pytest.param(waiting(seconds=2.0), id="too short a time"),
        pytest.param(waiting(made=9), id="others' tokens"),
        pytest.param(waiting(count=0), id="none on its way"),
        pytest.param(waiting()[:1], id="read once"),
    ],
)
def test_a_transfer_may_be_on_its_way(readings: list[Any]) -> None:
    decode = looked(2, WELL, *readings, command=DECODE, answered=answer())
    assert pair(looked(1, command=PREFILL), decode).state is FleetState.ALL_WELL


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            ServerState.SLOW,
            "127.0.0.1:1 is not at fault as far as can be seen (127.0.0.1:1: slow",
        ),
        (ServerState.UNKNOWN, "the state of 127.0.0.1:1 is undecided."),
    ],
)
def test_a_prefill_server_that_is_slow_or_unknown_is_not_at_fault(
    state: ServerState, said: str
) -> None:
    """Of real servers on a busy machine: the prefill one was slow, and was called at
    fault."""
    decode = looked(2, WELL, *waiting(), command=DECODE, answered=answer())
    deferred = [
        metrics(s, num_requests_waiting_by_reason=0, generation_tokens_total=1)
        for s in (20, 29)
    ]
    found = pair(looked(1, state, *deferred, command=PREFILL), decode)
    assert found.state is FleetState.TRANSFER_STANDS
    assert said in found.sentence


def test_the_side_that_stands_is_named() -> None:
    decode = looked(2, WELL, *waiting(), command=DECODE, answered=answer())
    frozen = looked(1, ServerState.FROZEN_PYTHON, command=PREFILL)
    found = pair(frozen, decode)
    assert found.state is FleetState.TRANSFER_STANDS
    assert found.sentence.startswith(
        "The transfer is stuck on the prefill side: 127.0.0.1:1"
    )
    assert [one.state for one in found.findings] == [FleetState.TRANSFER_STANDS], (
        "said once"
    )


def test_a_prefill_server_with_caches_that_nobody_fetches() -> None:
    def sglang(port: int, kind: str, name: str, count: float) -> Look:
        samples = [
            MetricSample(name=name, labels={"engine_type": kind}, value=count),
            MetricSample(name="sglang:generation_tokens_total", labels={}, value=7),
        ]
        data = MetricsData(url="", samples=samples)
        read_at = [probed(data).model_copy(update={"started": at(s)}) for s in (20, 29)]
        return looked(
            port, WELL, *read_at, engine="sglang", core_role="sglang::scheduler"
        )

    held = "sglang:num_prefill_inflight_queue_reqs"
    asked = "sglang:num_decode_transfer_queue_reqs"
    for sends, waits, side in (
        (1, 1, "between the two sides"),
        (1, 0, "on the decode side"),
        (0, 1, "on the prefill side"),
    ):
        found = fleet(
            sglang(1, "prefill", held, sends), sglang(2, "decode", asked, waits)
        )
        assert found.state is FleetState.TRANSFER_STANDS
        assert side in found.sentence
    none = fleet(sglang(1, "prefill", held, 0), sglang(2, "decode", asked, 0))
    assert none.state is FleetState.ALL_WELL


def test_a_decode_server_that_prefills_itself_and_says_nothing() -> None:
    def decode(local: float, remote: float, requests: float = 10) -> Look:
        reading = metrics(
            20,
            source__local_compute=local,
            source__external_kv_transfer=remote,
            request_prompt_tokens_sum=local + remote,
            request_prompt_tokens_count=requests,
        )
        return looked(2, WELL, reading, command=DECODE, answered=answer())

    prefill = looked(1, WELL, metrics(20, prompt_tokens_total=3), command=PREFILL)
    found = pair(prefill, decode(1500, 0))
    assert (found.state, found.exit_code) == (FleetState.PREFILLS_LOCALLY, 1)
    assert "computes 100% of its prompt tokens itself" in found.sentence
    assert "does not ask the prefill side" in found.findings[0].advice[0]
    busy = looked(1, WELL, metrics(20, prompt_tokens_total=1500), command=PREFILL)
    assert "the transfer fails" in pair(busy, decode(1500, 0)).findings[0].advice[0]
    assert pair(prefill, decode(10, 1490)).state is FleetState.ALL_WELL
    assert pair(prefill, decode(400, 0)).state is FleetState.ALL_WELL, "too few"
    checks = decode(1500, 0, requests=100)
    assert pair(prefill, checks).state is FleetState.ALL_WELL, (
        "health checks go past the router"
    )


# ---------------------------------------------------------------- its report


def test_the_first_screen_and_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    many = [looked(port) for port in range(1, 20)] + [
        looked(99, ServerState.FROZEN_PYTHON)
    ]
    found = fleet(*many)
    print_page(compose_fleet(found), Console(width=100))
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) <= LINES
    assert "127.0.0.1:99" in "\n".join(shown)
    for format in ("md", "html", "junit"):
        assert "127.0.0.1:99" in render(KIND, found, format)
    again = Fleet.model_validate_json(render(KIND, found, "json"))
    assert again == found
    assert json.loads(again.model_dump_json())["$id"] == "urn:mmrepro:fleet:1"
