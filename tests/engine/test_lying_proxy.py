"""A proxy that lies, between the player and a real minivllm: what the oracles see of
it."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from lying_proxy import Lie, LyingProxy, lying
from mmrepro.base.records import FindingClass
from mmrepro.engines import get_engine
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.environments.spec import EnvironmentSpec
from mmrepro.failure.documents.folder import Journal
from mmrepro.runs.options import RunCommand
from mmrepro.runs.play.options import PlayOptions
from mmrepro.runs.play.player import Player
from mmrepro.runs.start import Started
from mmrepro.scenario import Scenario
from mmrepro.search.oracle.comparison import compare_with_reference
from mmrepro.search.oracle.judge import judge
from mmrepro.search.oracle.reference import comparable, greedy, reference_case
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import pictures
from mmrepro.traffic.case.model import Case, ServerWanted
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence.model import RequestRecord
from traces import healthy_trace

pytestmark = [pytest.mark.engine, pytest.mark.slow]
REQUESTS = 400


class Proxied(Player):
    """Its servers are reached through ``proxy``, if there is one."""

    proxy: LyingProxy | None = None

    def _started(
        self,
        scenario: Scenario,
        options: RunCommand,
        resolved: EnvironmentSpec,
        journal: Journal,
    ) -> Started:
        server = super()._started(scenario, options, resolved, journal)
        if self.proxy is None:
            return server
        self.proxy.upstream = server.url
        self._held.enter_context(lying(self.proxy))
        server.url = self.proxy.url
        return server


@dataclasses.dataclass
class Stage:
    """Plays of one case on real servers."""

    player: Proxied
    case: Case
    folder: Path
    reference: Played
    count: int = 0

    def through(
        self, lie: Lie | None, p: float = 0.05, seed: int = 0
    ) -> tuple[Played, LyingProxy]:
        self.count += 1
        proxy = self.player.proxy = LyingProxy(lie=lie, p=p, seed=seed)
        folder = self.folder / f"play-{self.count}"
        played = self.player.play(self.case, None, PlayOptions(), folder)
        assert played.state is PlayState.ENDED, played.said
        return played, proxy

    def touched(self, proxy: LyingProxy) -> list[set[str]]:
        """The operations of each lie, without the canary; two requests with equal
        bodies have equal answers."""
        made = pictures(self.case, None)
        ids = {body(op, made, SERVED_MODEL): op.id for op in self.case.operations}
        lies = [{ids[r] for r in told.requests if r in ids} for told in proxy.told]
        return [lie for lie in lies if lie]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    server = ServerWanted(engine="minivllm", release="0.1", model="qwen3")
    case = comparable(healthy_trace(17, REQUESTS, 8, server))
    folder = tmp_path_factory.mktemp("lies")
    with contextlib.ExitStack() as held:
        player = held.enter_context(Proxied(server, folder=folder / "player"))
        alone = reference_case(case, get_engine("minivllm"))
        reference = player.play(alone, None, PlayOptions(), folder / "reference")
        assert reference.state is PlayState.ENDED, reference.said
        yield Stage(player, case, folder, reference)


def answer(played: Played, id: str) -> RequestRecord:
    record = played.record(id)
    assert record is not None
    return record


def test_an_honest_proxy_is_not_noticed(stage: Stage) -> None:
    played, proxy = stage.through(None)
    compared = compare_with_reference(stage.case, played, stage.reference)
    assert compared.sightings == []
    assert compared.counted["answers compared: same"] > REQUESTS / 2
    assert judge(stage.case, played, engine=get_engine("minivllm")).sightings == []
    assert proxy.told == []


def test_swapped_answers_are_flagged_and_no_others(stage: Stage) -> None:
    swaps = found = 0
    for seed in range(2):
        played, proxy = stage.through("swap", seed=seed)
        compared = compare_with_reference(stage.case, played, stage.reference)
        flagged = {id for sighting in compared.sightings for id in sighting.operations}
        lies = stage.touched(proxy)
        assert flagged <= set().union(*lies)
        swaps += len(lies)
        found += sum(bool(lie & flagged) for lie in lies)
        kinds = {sighting.finding_class for sighting in compared.sightings}
        assert FindingClass.CROSS_TALK in kinds
    assert swaps >= 15
    assert found >= 0.95 * swaps


def test_a_falsified_usage_and_a_dropped_end_are_flagged(stage: Stage) -> None:
    for lie in ("falsify-usage", "drop-done"):
        played, proxy = stage.through(lie, p=0.2)
        judged = judge(stage.case, played, engine=get_engine("minivllm"))
        compared = compare_with_reference(stage.case, played, stage.reference)
        lies = set().union(*stage.touched(proxy))
        # Who was gone before the lie.
        lies = {id for id in lies if not answer(played, id).left}
        assert len(lies) > 5
        told = {
            s.said: set(s.operations) for s in (*judged.sightings, *compared.sightings)
        }
        assert {said: ids - lies for said, ids in told.items() if ids - lies} == {}
        assert set().union(*told.values()) == lies


def test_retold_answers_are_flagged(stage: Stage) -> None:
    for lie in ("duplicate-token", "truncate"):
        played, proxy = stage.through(lie, p=0.1)
        compared = compare_with_reference(stage.case, played, stage.reference)
        flagged = {id for sighting in compared.sightings for id in sighting.operations}
        lies = set().union(*stage.touched(proxy))
        told = {id for id in lies if greedy(stage.case.operation(id))}
        assert flagged == {id for id in told if answer(played, id).answered}
