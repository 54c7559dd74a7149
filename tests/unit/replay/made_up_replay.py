"""MADE UP replays: no engine was run, nothing here happened."""

from datetime import UTC, datetime, timedelta
from typing import Any

from mmrepro.base.records import Fidelity, FindingClass, HostFacts, Moment, Setting
from mmrepro.failure.documents.replay import (
    Expectation,
    Finding,
    Needed,
    PlayFacts,
    Rate,
    Replay,
    Sighting,
    Step,
)
from mmrepro.traffic.case.model import (
    Case,
    Image,
    Message,
    Noise,
    Operation,
    Origin,
    Part,
    ServerWanted,
)

BEGAN = Moment(wall=datetime(2026, 11, 23, 3, 0, tzinfo=UTC), mono=1000.0)
SERVER = ServerWanted(
    engine="vllm",
    release="0.23.0",
    args=["--mm-processor-cache-gb", "0.02"],
    max_model_len=2048,
)
HOST = HostFacts(
    os="Debian 12",
    kernel="6.1",
    cpu="Made-up CPU",
    cores=2,
    memory_bytes=8 << 30,
    python="3.11",
)
SECRET = "the patient's name is Erika Mustermann"


def asking(text: str, *images: str) -> list[Message]:
    return [
        Message(
            role="user", content=[*(Part(image=i) for i in images), Part(text=text)]
        )
    ]


def operation(
    id: str, *after: str, text: str = "hi", images: tuple[str, ...] = (), **more: Any
):
    return Operation(
        id=id,
        after=list(after),
        messages=asking(text, *images),
        parameters={"max_tokens": 4, "temperature": 0},
        **more,
    )


def ghost_case(fills: int = 3) -> Case:
    """A refused image, the same again, then new ones."""
    images: dict[str, Image] = {"X": Noise(seed=777, size=(42, 28))}
    operations = [
        operation("r1", text="x" * 2100, images=("X",)),
        operation("r2", "r1.end", text=SECRET, images=("X",)),
    ]
    for number in range(fills):
        images[f"F{number}"] = Noise(seed=1000 + number, size=(42, 28))
        before = operations[-1].id
        operations.append(
            operation(f"r{number + 3}", f"{before}.end", images=(f"F{number}",))
        )
    return Case(title="made up", server=SERVER, images=images, operations=operations)


def finding(
    case: Case | None = None, kind: FindingClass = FindingClass.HANG, **more: Any
) -> Finding:
    case = case or ghost_case()
    last = case.operations[-1].id if case.operations else ""
    told = {
        "finding_class": kind,
        "bucket": (
            f"vllm/{kind.value}/process_input_sockets > get_and_update_item > popitem"
        ),
        "said": f"{last} has no answer after 6.0 s, and nothing moves",
        "operations": [last],
        "also": ["metrics: the counter of prompts says 7"],
        "confirmed": True,
        "shrunk": True,
        "rate": Rate(failed=3, plays=3, low=0.292, high=1.0),
        "requests": len(case.operations),
        "requests_before": 200,
        "steps": [
            Step(what="the tail", kept=True, requests=40, failed=1, plays=1),
            Step(
                what="r2",
                kept=False,
                requests=4,
                failed=0,
                plays=2,
                why="all are answered",
            ),
        ],
        "needed": [
            Needed(what="r1", why="without it every request is answered, 2 of 2"),
            Needed(what="r4", why="as r3", by="r3"),
        ],
        "starts": 12,
        "seconds": 71.5,
        "observed": {
            "r1": "400 the prompt is longer than the model's limit",
            "r2": "500 Expected a cached item",
            **{op.id: "200 4 tokens" for op in case.operations[2:-1]},
            last: "no answer in 6.0 s",
        },
        "stack": ["LRUCache.popitem (vllm/utils/cache.py:195)", "Cache.__setitem__"],
        "log_lines": ["AssertionError: Expected a cached item for mm_hash='ab12'"],
        "limits": ["Two plays left each request out"],
        "folder": "f1",
        "case_file": "f1/case.json",
        "server": case.server,
    }
    return Finding(**{"id": "f1", **told, **more})


def replay(*findings: Finding, **more: Any) -> Replay:
    plays = [
        PlayFacts(
            number=1,
            what="first play",
            requests=200,
            state="hung",
            seconds=21,
            start_s=4,
        ),
        *(
            PlayFacts(
                number=n,
                what="confirm",
                requests=200,
                state="hung",
                seconds=12,
                start_s=4,
            )
            for n in (2, 3, 4)
        ),
    ]
    told: dict[str, Any] = {
        "mmrepro_version": "1.0",
        "id": "replay-1",
        "created": BEGAN,
        "finished": Moment(wall=BEGAN.wall + timedelta(seconds=180), mono=1180.0),
        "state": "complete",
        "command": "mmrepro replay night.har --engine vllm",
        "resume": "mmrepro replay night.har --engine vllm --resume replays/r",
        "origin": Origin(
            format="har",
            file="night.har",
            read=203,
            left_out={"not a completion": 3},
            dropped={"header": 1400, "cookie": 2},
        ),
        "server": SERVER,
        "requests": 200,
        "images": 31,
        "host": HOST,
        "fidelity": Fidelity.CPU,
        "settings": [
            Setting(name="--enforce-eager", value="", why="no graph capture"),
            Setting(name="VLLM_CPU_KVCACHE_SPACE", value="1", why="a tiny model"),
            Setting(name="start mode", value="warm", why="many starts"),
            Setting(name="VLLM_CACHE_ROOT", value="/made/up", why="kept"),
        ],
        "start_mode": "warm",
        "deadline_s": 6.0,
        "plays": plays,
        "budget": 40,
        "findings": list(findings),
        "counted": {"near-tie": 2},
        "unseen": ["whether memory grows: too few requests"],
        "limits": ["A tiny random-weight model was served"],
    }
    return Replay(**{**told, **more})


def unconfirmed() -> Sighting:
    return Sighting(
        finding_class=FindingClass.METRICS, bucket="m", said="a counter is off by one"
    )


__all__ = ["Expectation", "finding", "ghost_case", "operation", "replay", "unconfirmed"]
