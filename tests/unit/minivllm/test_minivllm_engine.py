"""The engine on paper: any batch, any sizes, aborts, preemptions; and every fault is
found."""

from collections.abc import Callable
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from grids import examples
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)
from mmrepro.reproducers.minivllm.caches import NULL_BLOCK
from mmrepro.reproducers.minivllm.config import EngineConfig
from mmrepro.reproducers.minivllm.engine import Engine
from mmrepro.reproducers.minivllm.paper import PaperRunner, paper_engine
from mmrepro.reproducers.minivllm.sequence import Image, Sequence
from paper_requests import Request, reference

IMAGES = st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 3))
REQUESTS = st.builds(
    Request,
    text=st.integers(1, 14),
    images=st.lists(IMAGES, max_size=2).map(tuple),
    max_tokens=st.integers(1, 6),
    seed=st.integers(0, 2),
)
BATCHES = st.lists(REQUESTS, min_size=1, max_size=5)
CONFIGS = st.builds(
    EngineConfig,
    num_blocks=st.integers(2, 30),
    block_size=st.sampled_from([1, 2, 3, 4, 8, 16]),
    max_model_len=st.just(64),
    max_num_seqs=st.integers(1, 4),
    max_batched_tokens=st.sampled_from([1, 3, 8, 20, 64]),
    prefix_caching=st.booleans(),
    mm_cache_tokens=st.sampled_from([0, 9, 18, 1000]),
    async_scheduling=st.booleans(),
    check_contract=st.just("raise"),
)


def enough(config: EngineConfig, batch: list[Request]) -> EngineConfig:
    """With the blocks that the longest request needs."""
    blocks = max(-(-request.tokens // config.block_size) for request in batch)
    return replace(config, num_blocks=max(config.num_blocks, blocks + 1))


def check_blocks(engine: Engine) -> None:
    """Every block is free or used, by as many sequences as have it in their tables."""
    scheduler = engine.scheduler
    blocks = scheduler.blocks
    counted: dict[int, int] = {}
    for seq in scheduler.running:
        assert len(set(seq.block_table)) == len(seq.block_table)
        for block in seq.block_table:
            counted[block] = counted.get(block, 0) + 1
    assert counted == blocks.users
    assert set(blocks.free).isdisjoint(blocks.users)
    assert set(blocks.free) | set(blocks.users) == set(range(1, blocks.usable + 1))
    assert NULL_BLOCK not in counted
    assert {b: k for k, b in blocks.by_key.items()} == blocks.key_of


def answers(config: EngineConfig, batch: list[Request]) -> list[list[int]]:
    engine = paper_engine(config)
    seqs = [engine.add(r.ids, r.pictures, max_tokens=r.max_tokens) for r in batch]
    found = engine.generate(seqs)
    assert not any(seq.error for seq in seqs), [seq.error for seq in seqs]
    assert not engine.busy
    check_blocks(engine)
    return found


def right(batch: list[Request]) -> list[list[int]]:
    return [reference(r.ids, r.pictures, r.max_tokens) for r in batch]


@examples(30)
@given(CONFIGS, BATCHES)
def test_any_batch_is_answered_rightly(
    config: EngineConfig, batch: list[Request]
) -> None:
    assert answers(enough(config, batch), batch) == right(batch)


class EngineMachine(RuleBasedStateMachine):
    """Requests come, steps run, clients go away, in any order."""

    sequences = Bundle("sequences")

    @initialize(config=CONFIGS)
    def start(self, config: EngineConfig) -> None:
        blocks = -(-44 // config.block_size) + 1
        self.engine = paper_engine(
            replace(config, num_blocks=max(config.num_blocks, blocks))
        )
        self.asked: dict[int, tuple[Sequence, Request]] = {}

    @rule(target=sequences, request=REQUESTS)
    def ask(self, request: Request) -> object:
        refusal = self.engine.refusal(
            request.tokens - request.max_tokens, request.max_tokens
        )
        if refusal:
            return multiple()
        seq = self.engine.add(
            request.ids, request.pictures, max_tokens=request.max_tokens
        )
        self.asked[seq.id] = seq, request
        return seq

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @rule(seq=sequences)
    def abort(self, seq: Sequence) -> None:
        self.engine.abort(seq)

    @invariant()
    def blocks_are_whole(self) -> None:
        if hasattr(self, "engine"):
            check_blocks(self.engine)

    @invariant()
    def answers_are_right(self) -> None:
        for seq, request in getattr(self, "asked", {}).values():
            assert not seq.error, seq.error
            expected = reference(request.ids, request.pictures, request.max_tokens)
            assert seq.output_ids == expected[: len(seq.output_ids)]

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        aborted = sum(seq.finish_reason == "abort" for seq, _ in self.asked.values())
        assert self.engine.counts["finished_abort"] == aborted
        for _ in range(2000):
            if not self.engine.busy:
                break
            self.engine.step()
        assert not self.engine.busy
        for seq, request in self.asked.values():
            if seq.finish_reason != "abort":
                assert len(seq.output_ids) == request.max_tokens


EngineMachine.TestCase.settings = examples(15, stateful_step_count=20, deadline=None)
TestEngineMachine = EngineMachine.TestCase


def test_a_preempted_sequence_answers_as_if_nothing_had_been() -> None:
    batch = [Request(text=6, images=((s, 1, 2),), max_tokens=6, seed=s) for s in (0, 1)]
    config = EngineConfig(
        num_blocks=6, block_size=4, max_model_len=64, check_contract="raise"
    )
    engine = paper_engine(config)
    seqs = [engine.add(r.ids, r.pictures, max_tokens=r.max_tokens) for r in batch]
    assert engine.generate(seqs) == right(batch)
    assert engine.scheduler.preemptions > 0


def test_a_shared_prefix_is_computed_once() -> None:
    request = Request(text=9, images=((1, 2, 4),), max_tokens=2)
    engine = paper_engine(EngineConfig(block_size=4, check_contract="raise"))
    for expected in (0, 16):
        seq = engine.add(request.ids, request.pictures, max_tokens=2)
        assert engine.generate([seq]) == right([request])
        assert seq.num_cached == expected
    other = engine.add(request.ids, Request(images=((1, 4, 2),)).pictures, max_tokens=2)
    engine.generate([other])
    assert other.num_cached == 0, "the same bytes in another shape are another image"


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "says"),
    [
        (64, 1, "maximum context length"),
        (40, 20, "room for 48"),
        (0, 1, "empty"),
        (40, 8, ""),
    ],
)
def test_what_is_refused(tokens: int, max_tokens: int, says: str) -> None:
    engine = paper_engine(EngineConfig(num_blocks=13, block_size=4, max_model_len=64))
    refusal = engine.refusal(tokens, max_tokens)
    assert bool(refusal) == bool(says)
    assert says in refusal


# ---------------------------------------------------------------- every fault is found

Broken = Callable[[EngineConfig, list[Request]], str]


def broken(config: EngineConfig, batch: list[Request]) -> str:
    """What goes wrong with ``batch``; "" if nothing does."""
    engine = paper_engine(config)
    runner = engine.runner
    assert isinstance(runner, PaperRunner)
    try:
        seqs = [engine.add(r.ids, r.pictures, max_tokens=r.max_tokens) for r in batch]
        found = engine.generate(seqs)
    except AssertionError as error:
        return f"AssertionError: {error}"
    for seq, tokens, expected in zip(seqs, found, right(batch), strict=True):
        if seq.error:
            return seq.error
        if tokens != expected:
            return f"{tokens} in place of {expected}"
    return ""


FINDING = settings(
    max_examples=5000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(
    ("fault", "contract", "says"),
    [
        ("slot-mapping", "raise", "slot-count: slot_mapping has "),
        ("slot-mapping", "off", "Slot mapping size must match number of tokens"),
        ("slot-mapping", "raise", "slot-owner: "),
        ("slot-mapping", "off", "in place of"),
        ("reused-mask", "raise", "mask-rows: "),
        ("reused-mask", "off", "Number of elements of source < number of ones in mask"),
        ("reused-mask", "off", "in place of"),
        ("kv-budget", "raise", "internal error happened"),
        ("kv-budget", "raise", "nothing is left to preempt"),
    ],
)
def test_a_fault_is_found(fault: str, contract: str, says: str) -> None:
    faults = frozenset({fault})

    def shows(case: tuple[EngineConfig, list[Request]]) -> bool:
        config = enough(*case)
        more = {"faults": faults, "check_contract": contract}
        config = replace(config, async_scheduling=fault == "reused-mask", **more)
        return says in broken(config, case[1])

    found = find(st.tuples(CONFIGS, BATCHES), shows, settings=FINDING)
    config = replace(enough(*found), check_contract="raise", faults=frozenset())
    assert broken(config, found[1]) == "", "without the fault nothing is wrong"


def test_pad_values_let_two_images_share_a_prefix() -> None:
    """Two of a few hundred images have one digest modulo 65536: the second gets the
    first's KV."""
    seen: dict[int, bytes] = {}
    for number in range(5000):
        data = b"picture %d" % number
        pad = int(Image.of(data, 2, 2).digest, 16) % (1 << 16)
        if pad in seen:
            break
        seen[pad] = data
    twins = [Image.of(each, 2, 2) for each in (seen[pad], data)]
    assert twins[0].data != twins[1].data
    for faults in (frozenset[str](), frozenset({"pad-value-key"})):
        engine = paper_engine(
            EngineConfig(block_size=4, check_contract="raise", faults=faults)
        )
        got = [
            engine.generate([engine.add([1, 2], [twin], max_tokens=3)])[0]
            for twin in twins
        ]
        wanted = [reference([1, 2], [twin], 3) for twin in twins]
        assert got[0] == wanted[0]
        assert got[1] == (wanted[0] if faults else wanted[1])
