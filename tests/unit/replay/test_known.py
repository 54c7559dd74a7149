"""When a finding is given a known failure's name, and when it is not."""

from pathlib import Path

import pytest
from fake_player import played
from fake_plays import BUCKET, OTHER, fake_case, fake_op, fake_seen
from mmrepro.base.errors import UsageError
from mmrepro.base.records import FindingClass
from mmrepro.failure.documents.diagnosis import Fit, Match
from mmrepro.failure.documents.replay import PlayFacts, Sighting
from mmrepro.scenario import Drive, Finding, Scenario, Truth
from mmrepro.scenario.more import Failure
from mmrepro.search.replay import known
from mmrepro.search.replay.known import best, by_log, diagnosed, mitigation
from mmrepro.search.replay.store import STUCK, UNSENT, LiveLook, Named, Observation
from mmrepro.traffic.case.files import pictures, write_case
from mmrepro.traffic.case.model import Case, Content, Image, Noise, ServerWanted, Tiles
from mmrepro.traffic.case.sending import Played, PlayState

CASE = fake_case([fake_op("r1"), fake_op("r2")])


def match(scenario: str, fit: Fit) -> Match:
    return Match(scenario=scenario, variant="", title="", fit=fit, why=f"{fit} it is")


def seen(**answers: str) -> Observation:
    return fake_seen(CASE, answers)


def hung() -> Played:
    return played(CASE, {"r1": "200", "r2": STUCK})


@pytest.mark.parametrize("fit", list(Fit))
def test_only_a_match_in_all_conditions_is_a_name(fit: Fit) -> None:
    named = best(
        [match("ghost-key-eviction", fit), match("kv-growth-crash", Fit.NOT_THIS)]
    )
    assert named.known == ("ghost-key-eviction" if fit is Fit.MATCH else None)
    assert named.why
    if fit in (Fit.LIKELY, Fit.SYMPTOM_ONLY):
        assert "ghost-key-eviction" in named.why, "what it may be is told"
    assert best([]).known is None


def looked(scenario: str = "ghost-key-eviction", fit: Fit = Fit.MATCH) -> LiveLook:
    return LiveLook(matches=[match(scenario, fit)], diagnosis=known.DIAGNOSIS_DIR)


def test_the_worst_failure_of_a_play_gets_the_name_and_no_other(tmp_path: Path) -> None:
    both = seen(r1="500", r2=STUCK)
    named = known.named(BUCKET, both, CASE, hung(), tmp_path, looked()).named
    assert named is not None
    assert (named.known, named.diagnosis) == ("ghost-key-eviction", "diagnosis")
    other = known.named(OTHER, both, CASE, hung(), tmp_path, looked()).named
    assert other is not None
    assert other.known is None
    assert "hang" in other.why


def test_a_play_without_the_failure_names_nothing(tmp_path: Path) -> None:
    well = seen(r1="200", r2="200")
    assert known.named(BUCKET, well, CASE, hung(), tmp_path, looked()).named is None


def test_nobody_looked_is_no_name(tmp_path: Path) -> None:
    stuck = seen(r1="200", r2=STUCK)
    named = known.named(BUCKET, stuck, CASE, hung(), tmp_path, LiveLook()).named
    assert named is not None
    assert (named.known, named.why) == (None, "the server was not inspected")


def test_a_look_that_fails_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed: list[object] = []

    def refused(_options: object, **more: object) -> None:
        typed.append(more["typed"])
        raise UsageError("py-spy is refused")

    monkeypatch.setattr(known, "diagnose", refused)
    log = tmp_path / "evidence" / "engine.log"
    looked_at = diagnosed(6.0, CASE.server, "http://127.0.0.1:1", 1, log)
    assert typed == [CASE.server.args], "a fork does not show them"
    stuck = seen(r1="200", r2=STUCK)
    named = known.named(BUCKET, stuck, CASE, hung(), tmp_path, looked_at).named
    assert named is not None
    assert "py-spy is refused" in named.why


def test_of_a_server_that_is_gone_the_log_says_which_it_was_not(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("INFO all is well\n")
    gone = Played(state=PlayState.DIED, log_file="engine.log")
    matches = by_log(CASE, gone, tmp_path)
    assert {m.scenario for m in matches} >= {"ghost-key-eviction", "mm-cache-desync"}
    assert best(matches).known is None
    absent = by_log(CASE, gone.model_copy(update={"log_file": "no.log"}), tmp_path)
    assert best(absent).known is None


REWOUND = """\
(Worker pid=2585) ERROR 11-27 01:56:38 [v1/executor/multiproc_executor.py:1189] Traceback (most \
recent call last):
(Worker pid=2585) ERROR 11-27 01:56:38 [v1/executor/multiproc_executor.py:1189]     \
gen.set_offset(gen.get_offset() - 4)
(Worker pid=2585) ERROR 11-27 01:56:38 [v1/executor/multiproc_executor.py:1189] RuntimeError: \
CPU Generator does not use offset
(EngineCore pid=2580) ERROR 11-27 01:56:38 [v1/engine/core.py:1586] EngineCore encountered a \
fatal error.
(EngineCore pid=2580) ERROR 11-27 01:56:38 [v1/engine/core.py:1586] Traceback (most recent call \
last):
(EngineCore pid=2580) ERROR 11-27 01:56:38 [v1/engine/core.py:1586] RuntimeError: Worker failed \
with error 'CPU Generator does not use offset', please check the stack trace above
(APIServer pid=2570) ERROR 11-27 01:56:38 [v1/engine/async_llm.py:943] \
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.
"""
"""Lines of a real one, shortened."""


TOO_MANY = """\
[2026-11-27 14:36:16] Scheduler hit an exception: Traceback (most recent call last):
  File "sglang/srt/managers/scheduler.py", line 4870, in run_batch
    batch_result = self.model_worker.forward_batch_generation(
  File "sglang/srt/layers/logprob_processor.py", line 106, in get_top_logprobs_raw
    values, indices = logprobs.topk(max_k, dim=-1)
RuntimeError: selected index k out of range

[2026-11-27 14:36:16] SIGQUIT received. signum=None, frame=None. It usually means one child failed.
"""
"""The same."""


@pytest.mark.parametrize(
    ("log", "state", "name"),
    [
        (TOO_MANY, PlayState.DIED, "top-logprobs-kill"),
        (TOO_MANY, PlayState.START_FAILED, None),
        (TOO_MANY.replace("Scheduler hit", "A worker hit"), PlayState.DIED, None),
        (
            TOO_MANY.replace("in get_top_logprobs_raw", "in sample"),
            PlayState.DIED,
            None,
        ),
    ],
)
def test_the_end_of_sglang_is_named_too(
    tmp_path: Path, log: str, state: PlayState, name: str | None
) -> None:
    (tmp_path / "engine.log").write_text(log)
    wanted = ServerWanted(engine="sglang", release="0.5.23")
    case = CASE.model_copy(update={"server": wanted})
    gone = Played(state=state, log_file="engine.log", device="cpu")
    assert best(by_log(case, gone, tmp_path)).known == name


@pytest.mark.parametrize(
    ("log", "state", "device", "name"),
    [
        (REWOUND, PlayState.DIED, "cpu", "seeded-chunk"),
        (REWOUND, PlayState.DIED, "cuda", None),
        (REWOUND, PlayState.START_FAILED, "cpu", None),
        (
            REWOUND.replace("does not use offset", "is lost"),
            PlayState.DIED,
            "cpu",
            None,
        ),
        (REWOUND.replace("gen.set_offset", "gen.reset"), PlayState.DIED, "cpu", None),
    ],
)
def test_of_a_server_that_is_gone_the_log_says_which_it_was(
    tmp_path: Path, log: str, state: PlayState, device: str, name: str | None
) -> None:
    (tmp_path / "engine.log").write_text(log)
    wanted = ServerWanted(engine="vllm", release="0.32.0")
    case = CASE.model_copy(update={"server": wanted})
    gone = Played(state=state, log_file="engine.log", device=device)
    assert best(by_log(case, gone, tmp_path)).known == name


@pytest.mark.parametrize(
    ("named", "release", "found"),
    [
        (
            Named(known="ghost-key-eviction"),
            "0.23.0",
            "ghost-key-eviction/disable-mm-cache",
        ),
        (Named(known="borrowed-faults"), "0.1", "borrowed-faults/fix"),
        (Named(known="borrowed-faults", variant="kv-budget"), "0.1", ""),
        (Named(), "0.23.0", ""),
    ],
)
def test_what_keeps_a_known_failure_away_is_no_other_release(
    named: Named, release: str, found: str
) -> None:
    assert mitigation(named, release) == found


# ---------------------------------------------------------------------- silent failures

WIDE, TALL = Tiles(seed=7, rows=2, columns=4), Tiles(seed=7, rows=4, columns=2)
CACHED = "cache-bound/picture"


def alias_case(**images: Image) -> Case:
    """Two pictures, one after the other: to SGLang they are the same bytes."""
    return Case(
        server=ServerWanted(engine="sglang", release="0.5.23"),
        images={"W": WIDE, "T": TALL, **images},
        operations=[fake_op("r1", "W"), fake_op("r2", "T", after=["r1.end"])],
    )


def silent(
    case: Case,
    kind: FindingClass = FindingClass.CACHE_BOUND,
    first: str = "200",
    loud: bool = False,
) -> Observation:
    found = [
        Sighting(
            finding_class=kind,
            bucket=CACHED,
            operations=["r2"],
            said="more than is shared",
        )
    ]
    if loud:
        error = Sighting(
            finding_class=FindingClass.SERVER_ERROR,
            bucket=OTHER,
            operations=["r1"],
            said="boom",
        )
        found.insert(0, error)
    answers = {"r1": first, "r2": "200"}
    return Observation(
        play=PlayFacts(
            number=1,
            what="",
            requests=2,
            state="ended",
            buckets=[s.bucket for s in found],
        ),
        sightings=found,
        sent=[op for op, answer in answers.items() if answer != UNSENT],
        answers=answers,
    )


def named(
    case: Case, one: Observation, folder: Path, looked_at: LiveLook | None = None
) -> Named:
    ended, place = Played(state=PlayState.ENDED), folder / "plays" / "0001"
    found = known.named(CACHED, one, case, ended, place, looked_at or LiveLook()).named
    assert found is not None
    assert found.bucket == CACHED
    return found


def test_a_silent_failure_is_named_by_what_was_sent(tmp_path: Path) -> None:
    case = alias_case()
    found = named(case, silent(case), tmp_path)
    assert (found.known, found.variant) == ("shape-alias", "kv-cache")
    assert "r2: its picture T and W of r1" in found.why
    looked_at = looked("pad-value-collision", Fit.LIKELY)
    assert named(case, silent(case), tmp_path, looked_at).known == "shape-alias"
    assert named(case, silent(case, loud=True), tmp_path).known == "shape-alias"


def test_what_a_signature_names_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known, "recognised", lambda *_: pytest.fail("it was asked"))
    case = alias_case()
    assert named(case, silent(case), tmp_path, looked()).known == "ghost-key-eviction"
    for kind in (FindingClass.HANG, FindingClass.DEATH, FindingClass.METRICS):
        assert named(case, silent(case, kind), tmp_path).known is None


@pytest.mark.parametrize("first", ["400", UNSENT])
def test_what_was_refused_or_never_sent_is_in_no_cache(
    tmp_path: Path, first: str
) -> None:
    case = alias_case()
    assert named(case, silent(case, first=first), tmp_path).known is None


def test_the_engine_and_the_release_name_nothing(tmp_path: Path) -> None:
    for other in (Tiles(seed=8, rows=4, columns=2), Noise(seed=1, size=(56, 112))):
        case = alias_case(T=other)
        assert named(case, silent(case), tmp_path).known is None
    case = alias_case()
    elsewhere = case.model_copy(
        update={"server": ServerWanted(engine="vllm", release="0.23.0")}
    )
    assert named(elsewhere, silent(elsewhere), tmp_path).known is None


def test_pictures_lie_in_the_replays_folder(tmp_path: Path) -> None:
    made = pictures(alias_case(), None)
    kept = {name: Content(sha256=one.sent().sha256) for name, one in made.items()}
    case = alias_case(**kept)
    unread = named(case, silent(case), tmp_path)
    assert unread.known is None
    assert "the pictures cannot be read" in unread.why
    write_case(
        case, tmp_path, {kept[name].sha256: one.png for name, one in made.items()}
    )
    assert named(case, silent(case), tmp_path).known == "shape-alias"


@pytest.mark.parametrize("truth", list(Truth))
def test_only_what_is_met_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truth: Truth
) -> None:
    class Told(Scenario):
        name, engine = "told", "sglang"

        async def trigger(self, drive: Drive) -> None:
            raise NotImplementedError

        def recognises(self, failure: Failure) -> Finding:
            assert failure.operations == ("r2",)
            return Finding(truth, "so it is")

    class Broken(Told):
        name = "broken"

        def recognises(self, failure: Failure) -> Finding:
            raise ZeroDivisionError("by it")

    class Elsewhere(Told):
        name, engine = "elsewhere", "vllm"

    monkeypatch.setattr(known, "all_scenarios", lambda: [Broken(), Elsewhere(), Told()])
    case = alias_case()
    found = named(case, silent(case), tmp_path)
    assert found.known == ("told" if truth is Truth.MET else None)
    if truth is not Truth.MET:
        assert "broken: looking for it failed: ZeroDivisionError: by it" in found.why
        assert ("told: so it is" in found.why) is (truth is Truth.UNKNOWN)
