"""The two image caches, and the blocks' own rules."""

import pytest
from grids import examples
from hypothesis import given, strategies as st
from mmrepro.reproducers.minivllm.caches import ImageCache
from mmrepro.reproducers.minivllm.config import FAULTS, NOTE_FAULTS, by_chance, chosen
from mmrepro.reproducers.minivllm.sequence import Image, ImageSequence, Sequence

GHOST = frozenset({"ghost-key-lru"})


def image(number: int, tokens: int = 4) -> Image:
    return Image.of(b"%d" % number, 1, tokens)


@examples(50)
@given(
    st.integers(0, 20),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=40),
)
def test_both_sides_hold_the_same_images(
    capacity: int, sent: list[tuple[int, int]]
) -> None:
    front, engine = ImageCache(capacity), ImageCache(capacity)
    for number, tokens in sent:
        whole = image(number, tokens)
        if whole.digest in front.items:
            whole = front.items[whole.digest]
        assert engine.received(front.to_send(whole)).data == whole.data
        assert list(front.order) == list(engine.order)
        assert set(front.order) == set(front.items)
        assert front.size == sum(i.tokens for i in front.items.values()) <= capacity


def test_a_promised_image_that_is_not_there() -> None:
    front, engine = ImageCache(20), ImageCache(20)
    front.to_send(image(1))  # remembered, but the request is refused and never sent
    with pytest.raises(AssertionError, match="Expected a cached item for mm_hash="):
        engine.received(front.to_send(image(1)))


class Stuck(Exception):
    pass


@pytest.mark.parametrize("faults", [frozenset[str](), GHOST])
def test_only_a_ghost_makes_eviction_endless(
    faults: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ImageCache(8, faults)
    cache.touch(image(1).digest)
    calls = 0
    original = ImageCache.pop_oldest

    def counted(self: ImageCache) -> None:
        nonlocal calls
        calls += 1
        if calls > 100:
            raise Stuck
        original(self)

    monkeypatch.setattr(ImageCache, "pop_oldest", counted)
    for number in (2, 3):
        cache.put(image(number))
    if faults:
        with pytest.raises(Stuck):
            cache.put(image(4))
    else:
        cache.put(image(4))
        assert list(cache.items) == [image(3).digest, image(4).digest]


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 12), st.data())
def test_slots_follow_the_block_table(
    size: int, text: int, vision: int, data: st.DataObject
) -> None:
    seq: Sequence = Sequence(1, [0] * text, size)
    if vision:
        seq = ImageSequence(1, [0] * text, size, images=(image(0, vision),))
    total = vision + text
    assert (seq.num_tokens, seq.num_blocks) == (total, -(-total // size))
    seq.block_table = data.draw(st.permutations(range(1, seq.num_blocks + 1)))
    start = data.draw(st.integers(0, total - 1))
    end = data.draw(st.integers(start + 1, total))
    slots = list(seq.slots(start, end))
    assert slots == [
        seq.block_table[p // size] * size + p % size for p in range(start, end)
    ]


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 12))
def test_the_note_s_sixth_bug_is_short_or_unseen(
    size: int, text: int, vision: int
) -> None:
    """Short by what the last block has more than of the text alone; whole blocks hide
    it."""
    seq = ImageSequence(
        1,
        [0] * text,
        size,
        images=(image(0, vision),),
        faults=frozenset({"slot-mapping"}),
    )
    seq.block_table = list(range(1, seq.num_blocks + 1))
    lacking = (text + vision - 1) % size - (text - 1) % size
    assert len(list(seq.slots(0, seq.num_tokens))) == seq.num_tokens - max(0, lacking)
    if vision % size == 0:
        assert lacking == 0


def test_faults_are_named_and_can_be_undone() -> None:
    assert chosen(FAULTS) == frozenset(FAULTS)
    assert chosen(["kv-budget", "reused-mask"], ["kv-budget"]) == {"reused-mask"}
    assert len(NOTE_FAULTS) == 6
    with pytest.raises(ValueError, match="there is: warmup-sequence, "):
        chosen(["no-such"])


def test_a_fault_that_is_on_by_chance() -> None:
    both = frozenset({"kv-budget", "reused-mask"})
    nothing = frozenset[str]()
    assert {by_chance(both, 1.0) for _ in range(20)} == {both}
    assert {by_chance(both, 0.0) for _ in range(20)} == {nothing}
    # All or none, and anew each time: alike in 64 draws once in 2**63 runs of this
    # test.
    assert {by_chance(both, 0.5) for _ in range(64)} == {both, nothing}
    drawn = [by_chance(both, 0.3, seed) for seed in range(1000)]
    assert drawn == [by_chance(both, 0.3, seed) for seed in range(1000)]
    assert 240 < drawn.count(both) < 360
