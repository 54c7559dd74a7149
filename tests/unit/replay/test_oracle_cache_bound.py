"""The cache bound and simulated prefix caches: a sound one is never accused, faulty
ones are."""

import re
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from grids import examples
from hypothesis import given, strategies as st
from made_up_plays import (
    answer,
    canary,
    case_of,
    operation,
    picture,
    played,
    reading,
    refused,
)
from mmrepro.engines import get_engine
from mmrepro.search.oracle.cache_bound import cache_bound
from mmrepro.traffic.case.model import Message, Operation, Part, ServerWanted
from mmrepro.traffic.case.sending import PlayState

PICTURES = {
    one.name: one
    for one in (
        picture("A"),
        picture("B"),
        picture("C", (84, 84)),
        picture("D", (100, 90)),
        picture("E"),
    )
}


def of_size(name: str) -> int:
    """Tokens of a picture after a resizing to whole tokens."""
    one = PICTURES[name]
    return max(1, round(one.width / 28)) * max(1, round(one.height / 28))


@dataclass
class SimulatedEngine:
    """Renders prompts to tokens by a template of its own, and keeps all of them.

    Attributes:
        order: of pictures: where they are, before their message's text, or before all.
        block: tokens are shared in whole blocks.
        words: a word is a token; else a byte.
        trims: white space around a text is cut off.
        joins: put between the parts of a message.
        one_key: pictures that it takes for one.
    """

    order: str = "as they are"
    block: int = 1
    words: bool = False
    trims: bool = False
    joins: str = ""
    system: str = ""
    one_key: dict[str, str] = field(default_factory=dict)
    kept: list[tuple[str, list[object]]] = field(default_factory=list)

    def text(self, text: str) -> list[object]:
        text = text.strip() if self.trims else text
        return (
            list(re.findall(r"\s*\S+|\s+$", text))
            if self.words
            else list(text.encode())
        )

    def picture(self, name: str) -> list[object]:
        key = self.one_key.get(name, name)
        return [
            "<vision>",
            *[("image", key, i) for i in range(of_size(name))],
            "</vision>",
        ]

    def tokens(self, op: Operation) -> list[object]:
        tokens: list[object] = ["<bos>", "<system>", *self.text(self.system)]
        if self.order == "before all":
            for name in op.images:
                tokens += self.picture(name)
        for message in op.messages or []:
            tokens += [f"<{message.role}>"]
            parts = message.parts()
            if self.order != "as they are":
                parts = sorted(parts, key=lambda part: part.image is None)
            for number, part in enumerate(parts):
                tokens += self.text(self.joins) if number else []
                if part.text is not None:
                    tokens += self.text(part.text)
                elif self.order != "before all":
                    tokens += self.picture(part.image or "")
            tokens += ["<end>"]
        return [*tokens, "<assistant>"]

    def serve(self, op: Operation, generated: list[object]) -> tuple[int, int]:
        """Tokens of the prompt, and those that came from the cache."""
        salt = str(op.parameters.get("cache_salt", ""))
        mine = self.tokens(op)
        shared = max(
            (self._shared(mine, k) for s, k in self.kept if s == salt), default=0
        )
        cached = min(shared, len(mine) - 1) // self.block * self.block
        self.kept.append((salt, [*mine, *generated]))
        return len(mine), cached

    @staticmethod
    def _shared(one: list[object], other: list[object]) -> int:
        pairs = enumerate(zip(one, other, strict=False))
        return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


TEXT = st.text("ab \n", max_size=12) | st.sampled_from(
    [
        "describe the picture",
        "describe the pictures",
        "hello",
        "hello there",
        "ä ö",
        "x" * 40,
    ]
)
PART = st.builds(lambda text: Part(text=text), TEXT) | st.builds(
    lambda name: Part(image=name), st.sampled_from(sorted(PICTURES))
)
MESSAGE = st.builds(
    lambda role, content: Message(role=role, content=content),
    st.sampled_from(["user", "assistant", "system"]),
    TEXT | st.lists(PART, min_size=1, max_size=3),
)
OPERATIONS = st.lists(
    st.tuples(
        st.lists(MESSAGE, min_size=1, max_size=3),
        st.sampled_from([None, None, "salt", "pepper"]),
        st.text("ab", max_size=6),
    ),
    min_size=1,
    max_size=8,
)
ENGINES = st.builds(
    SimulatedEngine,
    order=st.sampled_from(["as they are", "before text", "before all"]),
    block=st.sampled_from([1, 4, 16]),
    words=st.booleans(),
    trims=st.booleans(),
    joins=st.sampled_from(["", "\n"]),
    system=st.sampled_from(["", "You are a helpful assistant."]),
)


def judged(simulated, asked, engine="vllm", release="", **fields):
    """What the oracle says of requests played one after another on a simulated
    engine."""
    operations, records = [], [canary("canary before", 0.0, cached_tokens=0)]
    simulated.serve(operation("canary", "hello"), list(b"abcd"))
    for number, (messages, salt, generated) in enumerate(asked, 1):
        parameters = {"max_tokens": 8} | ({"cache_salt": salt} if salt else {})
        op = Operation(id=f"r{number}", messages=messages, parameters=parameters)
        prompt, cached = simulated.serve(op, list(generated.encode()))
        images = [PICTURES[name] for name in op.images]
        told = {"prompt_tokens": prompt, "cached_tokens": cached}
        told["completion_tokens"] = len(generated)
        operations.append(op)
        records.append(answer(op, 2.0 * number, images=images, **told))
    model = {"model": "/models/real"} if simulated.words else {}
    case = case_of(operations, engine, **model)
    if release:
        case.server = case.server.model_copy(update={"release": release})
    never = {f"{engine}:num_preemptions_total": 0.0}
    readings = {"before": reading(1.0, never), "after": reading(99.0, never)}
    return cache_bound(case, played(records, **(readings | fields)), get_engine(engine))


@examples(200)
@given(ENGINES, OPERATIONS, st.sampled_from(["vllm", "sglang"]))
def test_a_sound_cache_is_never_accused(simulated, asked, engine):
    assert judged(simulated, asked, engine).sightings == []


def asks(text: str, *pictures: str, salt: str | None = None) -> tuple:
    parts = [*(Part(image=name) for name in pictures), Part(text=text)]
    return [Message(role="user", content=parts)], salt, "ab"


@given(
    ENGINES, st.sampled_from(["vllm", "sglang"]), st.text("ab", min_size=1, max_size=20)
)
def test_a_cache_that_takes_one_picture_for_another_is_seen(simulated, engine, text):
    simulated.one_key, simulated.block = {"B": "A"}, 1
    found = judged(simulated, [asks(text, "A"), asks(text, "B")], engine)
    if simulated.words:
        return  # how long a picture's tokens are is not known there
    assert [s.bucket for s in found.sightings] == ["cache-bound/picture"]
    assert found.sightings[0].operations == ["r2"]
    (told,) = found.sightings[0].expectations
    assert (
        told.operation,
        f"at most {told.cached_at_most} " in found.sightings[0].said,
    ) == (
        "r2",
        True,
    )
    sound = judged(SimulatedEngine(), [asks(text, "A"), asks(text, "B")], engine)
    assert sound.sightings == []


def test_each_operation_that_took_too_much_has_its_bound():
    simulated = SimulatedEngine(one_key={"B": "A", "E": "A"}, block=1)
    (both,) = judged(simulated, [asks("a", name) for name in "ABE"]).sightings
    assert (
        both.operations
        == ["r2", "r3"]
        == [told.operation for told in both.expectations]
    )


@given(ENGINES, st.text("ab", min_size=10, max_size=20))
def test_a_cache_that_overlooks_the_salt_is_seen(simulated, text):
    class Unsalted(SimulatedEngine):
        def serve(self, op, generated):
            bare = {k: v for k, v in op.parameters.items() if k != "cache_salt"}
            return super().serve(op.model_copy(update={"parameters": bare}), generated)

    faulty = Unsalted(simulated.order, 1, simulated.words)
    found = judged(faulty, [asks(text, salt="one"), asks(text, salt="two")])
    assert "cache-bound/salt" in [s.bucket for s in found.sightings]


@pytest.mark.parametrize(("release", "seen"), [("0.5.6", False), ("0.5.11", True)])
def test_a_release_that_drops_salts_promises_nothing_of_them(release, seen):
    class Unsalted(SimulatedEngine):
        def serve(self, op, generated):
            bare = {k: v for k, v in op.parameters.items() if k != "cache_salt"}
            return super().serve(op.model_copy(update={"parameters": bare}), generated)

    faulty = Unsalted(0, 1, False)
    asked = [asks("abababababab", salt="one"), asks("abababababab", salt="two")]
    assert bool(judged(faulty, asked, "sglang", release).sightings) is seen


def test_a_cache_that_goes_by_part_of_a_text_is_seen():
    class Short(SimulatedEngine):
        def text(self, text):
            return super().text(re.sub("[0-9]", "x", text))

    found = judged(
        Short(), [asks("a text of 11111 digits"), asks("a text of 22222 digits")]
    )
    assert [s.bucket for s in found.sightings] == ["cache-bound/text"]
    assert "r1 shares at most" in found.sightings[0].said


def test_a_refused_prompt_leaves_nothing_in_the_cache():
    long, again = operation("long", "x" * 50), operation("again", "x" * 50)
    records = [
        canary("canary before", 0.0),
        refused(long, message="the prompt is too long", at=2.0),
        answer(again, 4.0, cached_tokens=60),
    ]
    never = {"vllm:num_preemptions_total": 0.0}
    around = {"before": reading(1.0, never), "after": reading(9.0, never)}
    found = cache_bound(
        case_of([long, again]), played(records, **around), get_engine("vllm")
    )
    assert [s.operations for s in found.sightings] == [["again"]]
    served = [records[0], answer(long, 2.0), records[2]]
    assert not cache_bound(
        case_of([long, again]), played(served, **around), get_engine("vllm")
    ).sightings


def test_more_from_the_cache_than_the_prompt_has_is_wrong_by_itself():
    op = operation("r1")
    found = cache_bound(
        case_of([op], "sglang"),
        played([answer(op, cached_tokens=999)]),
        get_engine("sglang"),
    )
    assert [s.bucket for s in found.sightings] == ["cache-bound/whole"]


@pytest.mark.parametrize("order", ["before text", "before all"])
def test_engines_put_pictures_first(order):
    """Two long texts before one picture: such an engine shares the picture."""
    parts = [Part(text="first" * 9), Part(image="C")]
    other = [Part(text="other" * 9), Part(image="C")]
    talk = [[Message(role="user", content=content)] for content in (parts, other)]
    simulated = SimulatedEngine(order=order)
    assert not judged(simulated, [(messages, None, "") for messages in talk]).sightings
    assert simulated.serve(operation("r3", "and a third"), [])[1] > 0
    hoisted = [
        [
            Message(role="system", content=system * 9),
            Message(role="user", content=parts),
        ]
        for system in ("first", "other")
    ]
    simulated = SimulatedEngine(order=order)
    assert not judged(
        simulated, [(messages, None, "") for messages in hoisted]
    ).sightings


def test_a_later_turn_shares_the_answer_of_the_turn_before():
    first = Message(role="user", content="a question")
    talk = [
        first,
        Message(role="assistant", content="b" * 50),
        Message(role="user", content="c"),
    ]
    asked = [([first], None, "b" * 50), (talk, None, "")]
    assert not judged(SimulatedEngine(), asked).sightings
    forgotten = [([first], None, ""), (talk, None, "")]
    cheat = SimulatedEngine()
    cheat.serve(operation("x", "a question"), list(b"b" * 50))
    assert judged(cheat, forgotten).sightings, "nobody was answered so"


def test_of_a_long_text_that_the_harness_sent_the_end_is_not_known():
    long = operation("gate", "x" * 300)
    op = operation("r1", "x" * 290)
    records = [
        answer(long, 0.0, label="gate: a long text"),
        answer(op, 2.0, cached_tokens=303),
    ]
    found = cache_bound(case_of([op], "sglang"), played(records), get_engine("sglang"))
    assert not found.sightings
    records[0] = answer(operation("gate", "y" * 300), 0.0, label="gate: a long text")
    found = cache_bound(case_of([op], "sglang"), played(records), get_engine("sglang"))
    assert found.sightings


# ------------------------------------------------------------------ what cannot be told


def test_pictures_that_look_alike_after_resizing_may_share():
    """SGLang goes by what the processor makes of a picture; vLLM by the picture."""
    small = picture("small", (100, 90), looks="one")
    large = picture("large", (200, 180), looks="other").model_copy(
        update={"coarse": small.coarse}
    )
    asked = [operation("r1", "hi", [small]), operation("r2", "hi", [large])]
    records = [
        answer(asked[0], 2.0, images=[small], cached_tokens=0),
        answer(asked[1], 4.0, images=[large], cached_tokens=33, prompt_tokens=34),
    ]
    for engine, number in (("sglang", 0), ("vllm", 1)):
        never = {"vllm:num_preemptions_total": 0.0}
        around = {"before": reading(1.0, never), "after": reading(9.0, never)}
        found = cache_bound(
            case_of(asked, engine), played(records, **around), get_engine(engine)
        )
        assert len(found.sightings) == number, engine


def test_one_picture_in_two_files_is_one():
    one, other = picture("one"), picture("other", looks="one")
    asked = [operation("r1", "hi", [one]), operation("r2", "hi", [other])]
    records = [
        answer(asked[0], 2.0, images=[one], cached_tokens=0),
        answer(asked[1], 4.0, images=[other], cached_tokens=25),
    ]
    case = case_of(asked, "sglang")
    assert not cache_bound(case, played(records), get_engine("sglang")).sightings
    undecoded = [one.model_copy(update={"pixels": ""}), picture("third")]
    records[1] = answer(asked[1], 4.0, images=undecoded[1:], cached_tokens=25)
    assert cache_bound(case, played(records), get_engine("sglang")).sightings
    records[0] = answer(asked[0], 2.0, images=undecoded[:1], cached_tokens=0)
    assert not cache_bound(case, played(records), get_engine("sglang")).sightings


def test_markup_in_a_prompt_is_not_judged_and_said():
    asked = [
        operation("r1", "x<|im_end|>\n<|im_start|>user\nhello"),
        operation("r2", "hello"),
    ]
    records = [answer(asked[0], 2.0), answer(asked[1], 4.0, cached_tokens=24)]
    found = cache_bound(case_of(asked, "sglang"), played(records), get_engine("sglang"))
    assert not found.sightings
    assert any("could not be determined" in said for said in found.unseen)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"state": PlayState.HUNG}, "did not end"),
        ({"after": reading(9.0, {"vllm:num_preemptions_total": 1.0})}, "preempted"),
        ({"after": None}, "preempted"),
    ],
)
def test_where_own_tokens_may_come_from_the_cache_nothing_is_said(fields, word):
    op = operation("r1", "hello")
    never = {"vllm:num_preemptions_total": 0.0}
    around = {"before": reading(0.0, never), "after": reading(9.0, never)}
    play = played([answer(op, cached_tokens=24)], **(around | fields))
    found = cache_bound(case_of([op]), play, get_engine("vllm"))
    assert not found.sightings
    assert word in found.unseen[0]


@pytest.mark.parametrize("word", ["{feature:pd}", "--prefill-and-decode"])
def test_what_a_prefill_server_computed_is_no_earlier_prompt(word):
    op, never = operation("r1", "hello"), {"vllm:num_preemptions_total": 0.0}
    around = {"before": reading(0.0, never), "after": reading(9.0, never)}
    play = played([answer(op, cached_tokens=24)], **around)
    case, engine = case_of([op]), get_engine("vllm")
    assert cache_bound(case, play, engine).sightings
    case.server.args.append(word)
    found = cache_bound(case, play, engine)
    assert not found.sightings
    assert "prefill server" in found.unseen[0]


def test_a_server_that_never_tells_is_said_to():
    op = operation("r1")
    found = cache_bound(case_of([op]), played([answer(op)]), get_engine("vllm"))
    assert "--enable-prompt-tokens-details" in found.unseen[0]


def test_a_request_that_came_later_counts_as_long_as_this_one_was_not_answered():
    """Two at a time: either may have been computed first."""
    asked = [operation("r1", "hello there"), operation("r2", "hello there")]
    for later, number in ((2.5, 0), (3.5, 1)):
        records = [
            answer(asked[0], 2.0, cached_tokens=30),
            answer(asked[1], later, cached_tokens=0),
        ]
        found = cache_bound(
            case_of(asked, "sglang"), played(records), get_engine("sglang")
        )
        assert len(found.sightings) == number, later


def test_several_answers_to_one_request_are_not_judged():
    op = operation("r1", n=2)
    play = played([answer(op, cached_tokens=24)])
    assert not cache_bound(
        case_of([op], "sglang"), play, get_engine("sglang")
    ).sightings


def test_the_simulated_engine_shares_what_it_should():
    """What the properties stand on: later turns of a talk come from the cache."""
    simulated = SimulatedEngine()
    turns = [operation("r1", "hello there"), operation("r2", "hello there, you")]
    (first, none), (second, some) = (simulated.serve(op, []) for op in turns)
    assert none == 0
    assert some == len("hello there") + 3
    assert first < second
    assert all(a < b for a, b in pairwise([none, some, second]))


@pytest.mark.parametrize(
    ("engine", "args", "advised"),
    [
        ("vllm", [], True),
        ("vllm", ["--enable-prompt-tokens-details"], False),
        ("sglang", [], False),
    ],
)
def test_nobody_is_advised_to_set_what_is_in_force(engine, args, advised):
    op = operation("r1")
    case = case_of([op])
    case.server = ServerWanted(engine=engine, release="0.23.0", args=args)
    play = played([answer(op, cached_tokens=None)])
    (unseen,) = cache_bound(case, play, get_engine(engine)).unseen
    assert ("--enable" in unseen) is advised
    lost = played([answer(op, status=None, error="ReadError")], PlayState.DIED)
    assert cache_bound(case, lost, get_engine(engine)).unseen == []
