"""What SGLang's scenarios send, and in which order, to a server that is only
pretended."""

from pathlib import Path
from typing import Any

import pytest
from made_up import request
from mmrepro.scenario import Scenario, sglang as sharing
from mmrepro.scenarios import shape_alias
from mmrepro.scenarios.pad_value_collision import SCENARIO as COLLISION
from mmrepro.traffic.evidence import RequestRecord

KV = shape_alias.SCENARIO
EMBEDDING = KV.with_variant("embedding-cache")


def test_options_are_read_refused_and_repeated() -> None:
    from mmrepro.base.errors import UsageError
    from mmrepro.runs.options import RunCommand

    assert COLLISION.read_options(["search"]) == {"search": ""}
    assert COLLISION.read_options(["pair=/a=b"]) == {"pair": "/a=b"}
    with pytest.raises(UsageError, match="no option 'find'; it has: search, pair"):
        COLLISION.read_options(["find"])
    with pytest.raises(UsageError, match="it has: none"):
        KV.read_options(["search"])
    command = RunCommand(
        scenario=COLLISION.name, options=("search", "pair=a b")
    ).command_line()
    assert (
        command == "mmrepro run pad-value-collision --option search --option 'pair=a b'"
    )


# ------------------------------------------------------------------ the traffic


class Scripted:
    """A server's side of a run, without a server: what was asked, in order."""

    def __init__(self, refusals: int) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.refusals = refusals

    async def raw(self, label: str, **_: Any) -> RequestRecord:
        self.refusals -= 1
        self.asked.append((label, {}))
        return request("gate", label, 400 if self.refusals >= 0 else 200)

    async def chat(self, label: str, **more: Any) -> RequestRecord:
        self.asked.append((label, dict(more.get("extra") or {})))
        return request("gate", label)

    async def scrape(self, **_: Any) -> str:
        return "sglang:prompt_tokens_total 9\n"


def driven(
    scenario: Scenario, path: Path, *mitigations: str, refusals: int = 0
) -> Scripted:
    import asyncio

    from mmrepro.traffic.drive import Drive
    from mmrepro.traffic.evidence.recorder import Recorder

    server = Scripted(refusals)
    recorder = Recorder(path)
    recorder.dir.mkdir(parents=True)
    drive = Drive(
        traffic=server,  # type: ignore[arg-type]
        recorder=recorder,
        image_size=(84, 84),
        max_model_len=4096,
        release="0.5.6",
        mitigations=frozenset(mitigations),
        model=path,
    )

    async def both() -> None:
        await scenario.gate(drive)
        await scenario.trigger(drive)

    asyncio.run(both())
    assert recorder.evidence.facts["cached_tokens_total"] == 0.0
    assert Path(drive.reproducer_env["MMREPRO_PAIR"]).is_dir()
    return server


def test_each_order_starts_from_a_flushed_cache(tmp_path: Path) -> None:
    asked = [label for label, _ in driven(COLLISION, tmp_path).asked]
    for first, second in (("A", "B"), ("B", "A")):
        start = asked.index(f"{first} first")
        expected = [sharing.FLUSH, f"{first} first", f"{second} after {first}"]
        assert asked[start - 1 : start + 3] == [*expected, f"control after {first}"]
    assert {p.name for p in (tmp_path / "evidence").iterdir()} == {
        "A.png",
        "B.png",
        "control.png",
    }


def test_a_refused_flush_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "FLUSH_PAUSE_S", 0.0)
    asked = [label for label, _ in driven(COLLISION, tmp_path, refusals=3).asked]
    assert asked[1:6] == [sharing.FLUSH] * 4 + ["gate: another picture"]


@pytest.mark.parametrize(
    ("mitigation", "field"), [("cache-salt", "cache_salt"), ("extra-key", "extra_key")]
)
def test_each_picture_has_a_salt_of_its_own(
    tmp_path: Path, mitigation: str, field: str
) -> None:
    asked = dict(driven(COLLISION, tmp_path, mitigation).asked)
    salts = {
        name: asked[label][field]
        for name, label in (("A", "A first"), ("B", "B after A"))
    }
    assert len(set(salts.values())) == 2
    assert field not in dict(driven(COLLISION, tmp_path / "plain").asked)["B after A"]


@pytest.mark.parametrize("scenario", [KV, EMBEDDING])
def test_the_layouts_are_measured_apart(scenario: Scenario, tmp_path: Path) -> None:
    asked = [label for label, _ in driven(scenario, tmp_path).asked]
    start = asked.index("T after W")
    assert asked[start - 1] == "W first"
    assert asked[start - 2] == (sharing.FLUSH if scenario is KV else "fill-4 again")
    assert asked.index("gate: T alone") > asked.index("gate: W again") + 1


def test_few_pictures_between_leave_the_embeddings_where_they_are(
    tmp_path: Path,
) -> None:
    asked = [label for label, _ in driven(EMBEDDING, tmp_path).asked]
    start = asked.index("W before others")
    few = ["fill-0", "fill-0 again", "fill-1", "fill-1 again"]
    assert asked[start - 1] == "fill-4 again"
    assert asked[start + 1 : start + 6] == [*few, "T after W and others"]
    assert asked.index("W after T and others") < asked.index("W first")
