"""What is made up is a case that can be played, whatever the seed."""

import json
from collections import Counter

import pytest
from fuzz_sessions import server
from grids import examples
from hypothesis import example, given, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.engines.dialects import dialect_of
from mmrepro.engines.features import turned_on
from mmrepro.engines.folders import folders
from mmrepro.engines.models.script_file import ScriptedAnswer, Scripts
from mmrepro.failure.documents.replay import Learnt
from mmrepro.runs.play.limits import BLOCK, CONTEXT, KV
from mmrepro.search.fuzz.episodes import (
    BLOCKS,
    KINDS,
    MOST_OPERATIONS,
    STEADY,
    Episodes,
    PlannedEpisode,
)
from mmrepro.search.fuzz.limits import ServerLimits
from mmrepro.search.fuzz.options import FuzzProfile, under
from mmrepro.search.fuzz.requests import RESETS
from mmrepro.search.fuzz.steering import (
    LEADS,
    ODDS,
    SERVERS,
    Switch,
    needed_by,
    offered,
)
from mmrepro.search.oracle.adapters import adapter_of
from mmrepro.search.oracle.reference import LOADS, UNLOADS
from mmrepro.traffic.case.files import case_digest
from mmrepro.traffic.case.model import (
    CHAT,
    COMPLETIONS,
    Barrier,
    Case,
    Content,
    Noise,
    Operation,
    Relayout,
    Tiles,
)

LIMITS = ServerLimits(
    learnt=[
        Learnt(name=CONTEXT, tokens=512, source="a"),
        Learnt(name=KV, tokens=768, source="b"),
        Learnt(name=BLOCK, tokens=16, source="c"),
    ],
    overhead=20,
)
ENGINES = st.sampled_from(sorted(folders()))
MIXED = [n for n in range(1, 9) if KINDS[n - 1] == "mixed"]


def episodes(engine: str, seed: int = 1, **more: object) -> Episodes:
    wanted = server(engine)
    sees = wanted.model != "text"
    return Episodes(seed, wanted, pictures=sees, limits=LIMITS, **more)  # type: ignore[arg-type]


@given(engine=ENGINES, seed=st.integers(0, 1 << 30), number=st.integers(1, 40))
@examples(25)
def test_each_is_a_case_that_can_be_played(engine: str, seed: int, number: int) -> None:
    planned = episodes(engine, seed).next(number)
    case = planned.case
    again = Case.model_validate_json(case.model_dump_json())
    assert case_digest(again) == case_digest(case)
    assert case_digest(episodes(engine, seed).next(number).case) == case_digest(case)
    before: set[str] = set()
    for op in case.operations:
        barriers = [Barrier.parse(text) for text in op.after]
        assert not before or barriers, "none but the first is sent at once"
        assert all(b.op in before for b in barriers if b.op)
        before.add(op.id)
    assert {name for op in case.operations for name in op.images} <= case.images.keys()
    dialect = dialect_of(engine)
    told = {name for op in case.operations for name in op.parameters}
    assert dialect.several or "n" not in told
    assert dialect.uuids or not any(
        p.uuid for op in case.operations for m in op.messages or [] for p in m.parts()
    )
    assert dialect.completions or not any(
        op.path == COMPLETIONS for op in case.operations
    )
    foreign = {
        name
        for other in map(dialect_of, folders())
        for name in (*other.salts, other.rid, other.priority)
    } - {*dialect.salts, dialect.rid, dialect.priority}
    assert not told & foreign


@given(engine=ENGINES, number=st.sampled_from(MIXED), seed=st.integers(0, 999))
@examples(20)
def test_what_is_switched_off_is_not_sent(engine: str, number: int, seed: int) -> None:
    planned = episodes(engine, seed).next(number)
    ops, on = planned.case.operations, set(planned.switches)
    assert Switch.IMAGES in on or not any(op.images for op in ops)
    assert Switch.LEAVE in on or not any(op.leave for op in ops)
    quiet = needed_by(planned.case) - on
    assert quiet <= {Switch.LOGPROBS, Switch.SEVERAL}, (
        "logprobs: so that answers compare"
    )
    assert planned.compared or Switch.LOGPROBS not in quiet
    assert 20 <= len(ops) <= MOST_OPERATIONS


@pytest.mark.parametrize(
    ("engine", "kind"), [("lmdeploy", int), ("sglang", str), ("vllm", str)]
)
def test_a_requests_id_is_of_the_kind_that_the_engine_takes(
    engine: str, kind: type
) -> None:
    name = dialect_of(engine).rid
    for seed in range(20):
        operations = episodes(engine, seed).next(MIXED[0]).case.operations
        ids = [op.parameters[name] for op in operations if name in op.parameters]
        if ids:
            break
    assert len(set(ids)) == len(ids) > 1
    assert {type(id) for id in ids} == {kind}


def test_most_pictures_come_before_the_words_and_some_behind() -> None:
    before = behind = 0
    for seed in range(8):
        for op in episodes("vllm", seed).next(MIXED[0]).case.operations:
            for message in op.messages or []:
                parts = message.parts()
                if any(part.image for part in parts):
                    before += parts[-1].image is None
                    behind += parts[0].image is None
    assert before > 4 * behind > 0


def test_no_two_seeds_and_no_two_numbers_are_alike() -> None:
    made = {
        case_digest(episodes("vllm", seed).next(number).case)
        for seed in range(5)
        for number in range(1, 9)
    }
    assert len(made) == 40


def test_all_that_the_api_has_is_switched_on_now_and_then() -> None:
    seen: Counter[Switch] = Counter()
    for seed in range(60):
        seen.update(episodes("vllm", seed).next(1).switches)
    assert set(seen) == set(offered(dialect_of("vllm"), pictures=True)) >= set(ODDS)
    assert max(seen.values()) < 60, "and off as well"


def test_lengths_are_at_the_limits_one_less_and_one_more() -> None:
    lengths: Counter[int] = Counter()
    for seed in range(40):
        for op in episodes("minivllm", seed).next(1).case.operations:
            if (
                op.messages
                and isinstance(op.messages[0].content, str)
                and len(op.messages) == 1
            ):
                lengths[len(op.messages[0].content) + 20] += 1
    for edge in (512, 768):
        assert all(lengths[edge + off] for off in (-1, 0, 1)), edge
    assert any(
        lengths[16 * n] and lengths[16 * n + 1] and lengths[16 * n - 1]
        for n in range(2, 9)
    )
    assert any(length > 1.1 * 768 for length in lengths)


def test_a_steady_episode_is_one_block_again_and_again() -> None:
    number = KINDS.index("steady") + 1
    for seed in range(10):
        planned = episodes("vllm", seed).next(number)
        assert planned.blocks == BLOCKS
        ops = planned.case.operations
        assert len(ops) == BLOCKS * STEADY
        blocks = [
            [op.model_dump(exclude={"id", "after"}) for op in ops[n : n + STEADY]]
            for n in range(0, len(ops), STEADY)
        ]
        assert all(block == blocks[0] for block in blocks)
        assert sum(bool(op.leave) for op in ops[:STEADY]) >= 4, "clients that go away"


def test_many_little_pictures_on_a_roomy_server() -> None:
    number = KINDS.index("many") + 1
    planned = episodes("minivllm").next(number)
    case = planned.case
    assert len(case.images) == len(case.operations) == dialect_of("minivllm").many
    assert (
        len({image.seed for image in case.images.values() if isinstance(image, Noise)})
        > 590
    )
    assert case.server.args[-2:] == list(dialect_of("minivllm").roomy)
    texts = {
        p.text for op in case.operations for m in op.messages or [] for p in m.parts()
    }
    assert len(texts - {None}) == 1, "under one text, before it or behind"


def test_without_pictures_there_are_none() -> None:
    made = Episodes(1, server("vllm", FuzzProfile.TEXT), pictures=False, limits=LIMITS)
    for number in range(1, 17):
        planned = made.next(number)
        assert not planned.case.images
        assert planned.kind != "many"


def test_layouts_of_the_same_tiles_come_by_themselves() -> None:
    """SGLang's shape alias needs no picture that somebody supplies."""
    pairs = 0
    for seed in range(30):
        case = episodes("sglang", seed).next(1).case
        texts: dict[str, set[str]] = {}
        for op in case.operations:
            if len(op.images) == 1:
                texts.setdefault(op.images[0], set()).add(said(op))
        for name, image in case.images.items():
            if isinstance(image, Relayout):
                assert isinstance(case.images[image.of], Tiles)
                pairs += bool(texts.get(name, set()) & texts.get(image.of, set()))
    assert pairs >= 5


def said(op: Operation) -> str:
    """All but which picture."""
    parts = [part.text for message in op.messages or [] for part in message.parts()]
    return json.dumps(parts)


def test_given_pictures_are_used_and_so_are_given_requests() -> None:
    given = {f"given{n}": Content(sha256=f"{n}" * 64) for n in (1, 2)}
    shown: Counter[str] = Counter()
    for seed in range(20):
        case = episodes("sglang", seed, given=given).next(1).case
        shown.update(
            name for op in case.operations for name in op.images if name in given
        )
    assert min(shown[name] for name in given) >= 10
    base = episodes("vllm", 99).next(1).case.model_copy(update={"title": "night.har"})
    origins = Counter(
        episodes("vllm", seed, source=base).next(1).origin for seed in range(30)
    )
    assert origins["night.har"] >= 10
    assert origins["new"] >= 3


@given(seed=st.integers(0, 1 << 20))
@example(seed=4134)  # a motif without requests, drawn alone
@example(seed=1545)  # draws a change that the request has already
@examples(12)
def test_what_was_interesting_is_changed_into_cases_that_can_be_played(
    seed: int,
) -> None:
    base = {5: episodes("vllm", 7).next(1).case, 9: episodes("vllm", 8).next(2).case}
    made = episodes("vllm", seed, interesting=base).next(10)
    case = made.case
    Case.model_validate_json(case.model_dump_json())
    assert len(case.operations) <= MOST_OPERATIONS
    assert made.origin in ("new", "episode 5", "episode 9")
    if made.origin != "new":
        assert case_digest(case) not in map(case_digest, base.values())


def test_what_ends_the_server_is_sent_less_often() -> None:
    usual, less = (
        sum(
            Switch.GRAMMAR in episodes("vllm", seed, less=weights).next(1).switches
            for seed in range(200)
        )
        for weights in ({}, {Switch.GRAMMAR: 0.1})
    )
    assert less < usual / 2


@pytest.mark.parametrize("engine", sorted(folders()))
def test_profiles_change_the_server_and_the_command_line_has_the_last_word(
    engine: str,
) -> None:
    wanted = server(engine, FuzzProfile.PLAIN).model_copy(update={"args": ["--mine=1"]})
    pressed = under(FuzzProfile.PRESSURE, wanted, length_told=True)
    assert pressed.args[-1] == "--mine=1"
    assert set(dialect_of(engine).pressure) <= set(pressed.args)
    assert pressed.max_model_len == wanted.max_model_len
    plain = under(FuzzProfile.PLAIN, wanted, length_told=False)
    assert not set(dialect_of(engine).pressure) & set(plain.args)


def ids_of(hazards: bool) -> tuple[int, int]:
    """Of 60 episodes: requests whose id another one has, and pictures that share a
    uuid."""
    doubled = shared = 0
    for seed in range(60):
        ops = episodes("vllm", seed, hazards=hazards).next(1).case.operations
        rids = [
            op.parameters["request_id"] for op in ops if "request_id" in op.parameters
        ]
        doubled += len(rids) - len(set(rids))
        named: dict[str, set[str]] = {}
        for part in (p for op in ops for m in op.messages or [] for p in m.parts()):
            if part.uuid is not None:
                named.setdefault(part.uuid, set()).add(part.image or "")
        shared += sum(len(images) > 1 for images in named.values())
    return doubled, shared


def test_what_the_documentation_warns_of_is_a_profile_of_its_own() -> None:
    assert ids_of(hazards=False) == (0, 0)
    assert ids_of(hazards=True)[1] > 3


def test_ids_begin_as_others_do() -> None:
    pairs = 0
    for seed in range(40):
        ops = episodes("sglang", seed).next(1).case.operations
        rids = [str(op.parameters["rid"]) for op in ops if "rid" in op.parameters]
        pairs += sum(a != b and b.startswith(a) for a in rids for b in rids)
    assert pairs > 5


MODERN = {
    engine: server(engine, FuzzProfile.MODERN, release)
    for engine, release in {"vllm": "0.32.0", "sglang": "0.5.23"}.items()
}
WANTED_MODERN = MODERN["vllm"]


def modern(seed: int, number: int = 1, engine: str = "vllm") -> PlannedEpisode:
    made = Episodes(seed, MODERN[engine], pictures=False, limits=LIMITS, modern=True)
    return made.next(number)


@pytest.mark.parametrize("engine", MODERN)
def test_the_servers_of_the_profile_modern_have_what_is_switched_on(
    engine: str,
) -> None:
    seen: set[Switch] = set()
    envs: list[dict[str, str]] = []
    for seed in range(40):
        planned = modern(seed, engine=engine)
        on = {one for one in planned.switches if one in SERVERS}
        args = planned.case.server.args
        assert turned_on(engine, args).keys() >= {str(one) for one in on}
        assert len(on & {Switch.NGRAM, Switch.DRAFT}) < 2
        assert len(on & {Switch.LORA, Switch.EVICTED, Switch.FILES, Switch.HYBRID}) < 2
        assert not on & {Switch.FILES, Switch.HYBRID} or "--enable-lora" not in args
        assert len(on & {Switch.CHUNKS, Switch.MIXED}) < 2
        server = planned.case.server
        hybrid = server.model == "qwen3.5", args[-1] == "--dtype=bfloat16"
        assert hybrid == (Switch.HYBRID in on,) * 2
        envs.append(server.env)
        assert args.count("--enable-lora") == bool(on & {Switch.LORA, Switch.EVICTED})
        paths = {op.path for op in planned.case.operations}
        asks = any(op.model for op in planned.case.operations)
        assert not asks or "--enable-lora" in args
        assert RESETS not in paths or Switch.FILES in on
        assert not LOADS & paths or "--enable-lora" in args
        seen |= on
    assert {str(one) for one in seen} == {*dialect_of(engine).features}
    assert all(env == envs[0] for env in envs)  # one fork server for all


@pytest.mark.parametrize("engine", MODERN)
def test_a_short_session_of_the_profile_modern_leaves_no_group_of_features_out(
    engine: str,
) -> None:
    features = {*dialect_of(engine).features}
    for seed in range(10):
        episodes = [modern(seed, number, engine) for number in range(5, 9)]
        for group in LEADS:
            there = {*group} & features
            assert not there or any(there & {*one.switches} for one in episodes)


def test_one_salt_is_not_asked_of_a_file_connector() -> None:
    salted = modern(3).case
    ops = [op for op in salted.operations if op.model is None and op.path == CHAT]
    ops = [
        op.model_copy(update={"parameters": {**op.parameters, "cache_salt": "a"}})
        for op in ops
    ]
    source = salted.model_copy(update={"server": WANTED_MODERN, "operations": ops[:8]})
    source = source.keeping([op.id for op in ops[:8]])
    tried = {True: 0, False: 0}
    for seed in range(40):
        episodes = Episodes(
            seed,
            WANTED_MODERN,
            pictures=False,
            limits=LIMITS,
            modern=True,
            source=source,
        )
        planned = episodes.next(2)
        files = Switch.FILES in planned.switches
        salts = any("cache_salt" in op.parameters for op in planned.case.operations)
        tried[files] += salts or files
        assert not (files and salts)
    assert all(tried.values())


def test_the_profile_modern_samples_without_a_seed() -> None:
    seeded = modern(0).case
    ops = [
        op.model_copy(update={"parameters": {"seed": 3}}) for op in seeded.operations
    ]
    source = seeded.model_copy(update={"server": WANTED_MODERN, "operations": ops})
    sampled = 0
    for seed in range(40):
        for made_of in (None, source):
            made = Episodes(
                seed,
                WANTED_MODERN,
                pictures=False,
                limits=LIMITS,
                modern=True,
                source=made_of,
            ).next(2)
            sent = [op.parameters for op in made.case.operations]
            assert not any("seed" in one for one in sent)
            sampled += any(one.get("temperature", 0) not in (0, 0.8) for one in sent)
    assert sampled > 3


def test_drafts_are_compared_where_all_requests_are_greedy() -> None:
    others = modern(0).case
    ops = [
        op.model_copy(update={"parameters": {"n": 3, "temperature": 0.8}})
        for op in others.operations
        if op.path == CHAT
    ]
    source = others.model_copy(update={"server": WANTED_MODERN, "operations": ops})
    source = source.keeping([op.id for op in ops])
    tried, sampled = 0, 0
    for seed in range(40):
        for made_of in (None, source):
            made = Episodes(
                seed,
                WANTED_MODERN,
                pictures=False,
                limits=LIMITS,
                modern=True,
                source=made_of,
            ).next(2)
            if not made.compared:
                continue
            asked = [op.parameters for op in made.case.operations if op.path == CHAT]
            chance = any(one.get("temperature") or one.get("n", 1) > 1 for one in asked)
            if {Switch.NGRAM, Switch.DRAFT} & {*made.switches}:
                tried += 1
                assert not chance
            else:
                sampled += chance
    assert tried > 10
    assert sampled > 3


def test_an_episode_made_of_one_that_asks_adapters_has_no_file_connector_beside_them() -> (
    None
):
    tried = 0
    for seed in range(60):
        made = modern(seed)
        made_of = made.case.model_copy(update={"server": WANTED_MODERN})
        if not any(op.model for op in made_of.operations):
            continue
        again = Episodes(
            seed,
            WANTED_MODERN,
            pictures=False,
            limits=LIMITS,
            modern=True,
            source=made_of,
        ).next(2)
        args = again.case.server.args
        if any(op.model for op in again.case.operations):
            tried += 1
            assert "--enable-lora" in args
            assert not any("ExampleConnector" in word for word in args)
            assert again.case.server.model == "qwen3-text"
    assert tried > 10


def test_an_adapter_that_comes_is_waited_for() -> None:
    waited = 0
    for seed in range(40):
        planned = modern(seed)
        last: dict[str, str] = {}
        for op in planned.case.operations:
            name = adapter_of(op)
            if name in last and planned.origin == "new":
                assert f"{last[name]}.end" in op.after
                waited += 1
            if op.path in LOADS | UNLOADS:
                last[name] = op.id
    assert waited > 20


def test_other_profiles_and_engines_have_none_of_it() -> None:
    for seed in range(20):
        planned = episodes("vllm", seed).next(1)
        assert not set(planned.switches).intersection(SERVERS)
        assert not turned_on("vllm", planned.case.server.args).keys() - {"small-kv"}
        assert not any(op.model for op in planned.case.operations)
    with pytest.raises(UsageError, match="no profile modern for lmdeploy"):
        under(FuzzProfile.MODERN, server("lmdeploy"), length_told=False)


def test_a_server_that_says_scripts_keeps_its_model() -> None:
    scripts = Scripts(script=[ScriptedAnswer(text="Hello there.")])
    update = {"model": "text", "scripts": scripts}
    scripted = server().model_copy(update=update)
    episodes = Episodes(1, scripted, pictures=False, modern=True)
    for number in range(10, 60):
        made = episodes.next(number).case.server
        assert (made.model, made.scripts) == ("text", scripts)
