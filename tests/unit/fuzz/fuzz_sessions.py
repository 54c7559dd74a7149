"""Sessions on fake engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fake_player import FakeNaming, FakePlayer, fake_judge
from mmrepro.case.model import ServerWanted
from mmrepro.fuzz.options import FuzzOptions
from mmrepro.fuzz.profiles import Profile, under
from mmrepro.fuzz.session import Fuzzing
from mmrepro.incident.fuzz import Fuzz

VLLM = ServerWanted(engine="vllm", release="0.23.0")


def server(engine: str = "vllm", profile: Profile = Profile.PRESSURE) -> ServerWanted:
    model = "qwen3" if engine == "minivllm" else "text" if engine == "lmdeploy" else "qwen2-vl"
    wanted = ServerWanted(engine=engine, release="0.1", model=model)
    return under(profile, wanted, length_told=False)


def fuzzing(
    folder: Path, player: FakePlayer, *, resume: bool = False, **options: Any
) -> tuple[Fuzzing, list[str]]:
    """A session on a fake player; and each state of its document, as JSON."""
    place: dict[str, Any] = {"resume" if resume else "out": folder / "fuzz"}
    options = {"server": server(), "budget_s": 3600.0, **place, **options}
    states: list[str] = []

    def write(fuzz: Fuzz, where: Path) -> None:
        assert where == (folder / "fuzz").resolve()
        Fuzz.model_validate_json(fuzz.model_dump_json())
        states.append(fuzz.model_dump_json())

    def write_replay(replay: Any, where: Path) -> None:
        (where / "replay.json").write_text(replay.model_dump_json())

    look, judge = options.pop("look", FakeNaming), options.pop("judge", fake_judge)
    session = Fuzzing(
        FuzzOptions(**options),
        write=write,
        write_replay=write_replay,
        make_player=player,
        judge=judge,
        look=look,
    )
    return session, states
