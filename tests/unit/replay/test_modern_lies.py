"""MADE-UP servers with speculation, adapters and a KV cache in files: an honest one is
let be, and each that lies is caught, on the requests that ``fuzz --profile modern``
makes up."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from grids import examples
from hypothesis import given, strategies as st
from made_up_answers import answered, record
from made_up_plays import case_of, moment, reading
from mmrepro.engines import get_engine
from mmrepro.failure.documents.replay import Learnt
from mmrepro.runs.play.limits import CONTEXT
from mmrepro.search.fuzz.episodes import RESETS, Episodes
from mmrepro.search.fuzz.limits import ServerLimits
from mmrepro.search.fuzz.options import FuzzProfile, under
from mmrepro.search.oracle.adapters import adapter_of, adapters
from mmrepro.search.oracle.cache_bound import cache_bound
from mmrepro.search.oracle.comparison import compare_with_reference
from mmrepro.search.oracle.judged import OracleReport
from mmrepro.search.oracle.reference import LOADS, UNLOADS, comparable, reference_case
from mmrepro.traffic.case.model import CHAT, COMPLETIONS, Case, Operation, ServerWanted
from mmrepro.traffic.case.sending import Played, PlayState
from mmrepro.traffic.evidence import ChoiceSeen, Evidence, RequestRecord

VLLM = get_engine("vllm")
SERVERS = {
    engine: under(
        FuzzProfile.MODERN,
        ServerWanted(engine=engine, release=release, model="qwen3-text"),
        length_told=False,
    )
    for engine, release in {"vllm": "0.32.0", "sglang": "0.5.23"}.items()
}
LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
LIMITS = ServerLimits(learnt=[Learnt(name=CONTEXT, tokens=512, source="a")])
MISSING = {"status": 404, "error": '{"error": {"message": "no"}}'}
SWAPPED = "cross-talk/"
"""Of an answer that the other adapter gives to the same prompt."""
WRONG = "wrong-answer/not the reference's"
NOISE = 0.0005
"""Nats, as of float32."""


def text_of(op: Operation) -> str:
    texts = [part.text or "" for m in op.messages or [] for part in m.parts()]
    return op.prompt if isinstance(op.prompt, str) else " ".join(texts)


@dataclass
class ModernServer:
    """Answers by what is asked, and by which adapter's weights; a request takes
    ``lasts`` seconds, and the next one is sent after one.

    Attributes:
        lie: "": it is honest.
        weights: by name, what is loaded.
        fetches: the prefix cache was reset: what comes now may be fetched.
    """

    lie: str = ""
    lasts: float = 0.5
    weights: dict[str, str] = field(
        default_factory=lambda: {"lora-a": "a", "lora-b": "b"}
    )
    given: list[str] = field(default_factory=list)
    fetches: bool = False
    told: int = 0
    """Answers that are lies."""

    def play(self, case: Case) -> Played:
        chance = random.Random(5)
        records = [self._record(op, n, chance) for n, op in enumerate(case.operations)]
        ends = Evidence(requests=records)
        return Played(
            state=PlayState.ENDED, evidence=ends, before=reading(0), after=reading(1e6)
        )

    def _record(
        self, op: Operation, number: int, chance: random.Random
    ) -> RequestRecord:
        fields = {
            "sent": moment(number + 1.0),
            "latency_s": self.lasts,
            "path": op.path,
        }
        if op.path in LOADS | UNLOADS:
            self._changes(op)
            return record(op, None, None, **fields)
        if op.path == RESETS:
            self.fetches = True
            return record(op, None, None, **fields)
        name = adapter_of(op)
        gone = bool(name) and name not in self.weights
        if self.lie == "forgets" and name.startswith("e") and not gone:
            gone, self.told = True, self.told + 1
        elif self.lie == "serves on" and gone:
            gone, self.told = False, self.told + 1
        if gone:
            return record(
                op,
                None,
                None,
                status=404,
                error='{"error": {"message": "no"}}',
                **fields,
            )
        text, limit = text_of(op), min(8, op.parameters["max_tokens"])
        prompt = f"{self.weights.get(name, name)}:{text}"
        if self.lie == "another's weights" and name.startswith("e"):
            self.told += self.weights[name] != self.given[0]
            prompt = f"{self.given[0]}:{text}"
        if self.lie == "fetches another's" and self.fetches and len(text) > 60:
            prompt, self.told = prompt + "?", self.told + 1
        choice = answered(prompt, limit, noise=NOISE, chance=chance)
        if self.lie == "fetches late" and self.fetches and len(text) > 60:
            choice, self.told = surer(choice), self.told + 1
        if self.lie == "keeps a draft" and limit > 4 and chance.random() < 0.3:
            choice, self.told = kept_draft(prompt, choice, limit), self.told + 1
        return record(op, choice, len(text) + 12, **fields)

    def _changes(self, op: Operation) -> None:
        name = adapter_of(op)
        if op.path in LOADS:
            self.weights[name] = str(op.parameters["lora_path"])[-2]
            self.given.append(self.weights[name])
        else:
            self.weights.pop(name, None)


def surer(choice: ChoiceSeen) -> ChoiceSeen:
    """The same tokens, of other sums: all others are less likely by a tenth of a
    nat."""
    other = choice.model_copy(deep=True)
    for place, (token, logprob) in enumerate(
        zip(choice.tokens, choice.logprobs, strict=True)
    ):
        top = choice.top[place]
        other.top[place] = [
            (t, p if (t, p) == (token, logprob) else p - 0.1) for t, p in top
        ]
    return other


def kept_draft(prompt: str, choice: ChoiceSeen, limit: int) -> ChoiceSeen:
    """The fourth token is one that was proposed and not taken, and what follows follows
    it."""
    first, rest = choice.text[:3], limit - 4
    draft = choice.top[3][3]
    after = answered(f"{prompt}|{first}{draft[0]}", rest)
    kept = choice.model_copy(deep=True)
    kept.tokens[3:] = [draft[0], *after.tokens]
    kept.logprobs[3:] = [draft[1], *after.logprobs]
    kept.top[4:] = after.top
    kept.text = "".join(kept.tokens)
    return kept


def cases(count: int, *, with_path: str = "", engine: str = "vllm") -> Iterator[Case]:
    """What the profile makes up, as it is compared; only cases that send to
    ``with_path``."""
    found = 0
    for seed in range(100):
        made = Episodes(
            seed, SERVERS[engine], pictures=False, limits=LIMITS, modern=True
        )
        case = comparable(made.next(1).case)
        if found < count and (
            not with_path or with_path in {op.path for op in case.operations}
        ):
            found += 1
            kept = [
                op.id
                for op in case.operations
                if not op.leave and "n" not in op.parameters
            ]
            yield case.keeping(kept)


def held(case: Case, server: ModernServer) -> OracleReport:
    """What the oracles hold against the server."""
    played = server.play(case)
    alone = ModernServer()
    engine = get_engine(case.server.engine)
    plain = reference_case(case, engine)
    words = [word.partition("=") for word in plain.server.args if "={tiny:" in word]
    alone.weights = {name: folder[-2] for name, _, folder in words}
    beside = compare_with_reference(case, played, alone.play(plain))
    return OracleReport.of(
        [adapters(case, played, engine), cache_bound(case, played, engine), beside]
    )


@pytest.mark.parametrize("engine", SERVERS)
@pytest.mark.parametrize("lasts", [0.5, 6.5])
def test_an_honest_server_is_let_be(lasts: float, engine: str) -> None:
    compared = 0
    for case in cases(5, engine=engine):
        judged = held(case, ModernServer(lasts=lasts))
        assert not judged.sightings, judged.sightings
        compared += judged.counted.get("answers compared: same", 0)
    assert compared > 60


@pytest.mark.parametrize(
    ("lie", "path", "bucket", "engine"),
    [
        ("keeps a draft", "", WRONG, "vllm"),
        ("fetches another's", RESETS, WRONG, "vllm"),
        ("fetches late", RESETS, WRONG, "vllm"),
        ("serves on", LOAD, "protocol/adapter-gone", "vllm"),
        *(
            (lie, f"{before}/load_lora_adapter", bucket, engine)
            for lie, bucket in (
                ("another's weights", "another's answer"),
                ("forgets", "protocol/adapter-missing"),
            )
            for engine, before in (("vllm", "/v1"), ("sglang", ""))
        ),
    ],
)
def test_a_lie_is_caught(lie: str, path: str, bucket: str, engine: str) -> None:
    found = lied = 0
    for case in cases(4, with_path=path, engine=engine):
        server = ModernServer(lie)
        judged = held(case, server)
        buckets = {one.bucket.removeprefix(SWAPPED) for one in judged.sightings}
        caught = bucket in buckets or (not bucket.count("/") and WRONG in buckets)
        assert server.told or not judged.sightings
        found, lied = found + caught, lied + bool(server.told)
    assert lied > 2
    assert found == lied


def test_sglang_loads_again_what_was_unloaded_and_is_let_be() -> None:
    asked = 0
    for case in cases(4, with_path="/load_lora_adapter", engine="sglang"):
        server = ModernServer("serves on")
        assert not adapters(case, server.play(case), get_engine("sglang")).sightings
        asked += server.told
    assert asked > 2


NAMES = st.sampled_from(["lora-a", "x", "y", ""])
STEPS = st.tuples(st.sampled_from(["load", "unload", "ask", "ask"]), NAMES)


@given(steps=st.lists(STEPS, max_size=14), lasts=st.sampled_from([0.5, 1.5, 4.0]))
@examples(80)
def test_no_order_of_coming_and_going_accuses_an_honest_server(
    steps: list[tuple[str, str]], lasts: float
) -> None:
    ops: list[Operation] = []
    for number, (what, name) in enumerate(steps):
        id = f"r{number}"
        if what == "ask" or not name:
            ops.append(
                Operation(id=id, model=name or None, parameters={"max_tokens": 2})
            )
        elif what == "load":
            more = {"lora_name": name, "lora_path": "{tiny:lora-b}"}
            ops.append(Operation(id=id, path=LOAD, parameters=more))
        else:
            ops.append(Operation(id=id, path=UNLOAD, parameters={"lora_name": name}))
    args = ["--enable-lora", "--lora-modules", "lora-a={tiny:lora-a}", "--seed=1"]
    case = case_of(ops, args=args)
    server = ModernServer(lasts=lasts)
    assert not adapters(case, server.play(case), VLLM).sightings


def test_while_an_adapter_comes_or_goes_either_answer_is_right() -> None:
    load = Operation(
        id="r0", path=LOAD, parameters={"lora_name": "x", "lora_path": "{tiny:a}"}
    )
    ask = Operation(id="r1", path=CHAT, model="x", parameters={"max_tokens": 2})
    case = case_of(
        [load, ask, ask.model_copy(update={"id": "r2", "path": COMPLETIONS})]
    )
    records = [
        record(load, None, None, sent=moment(1.0), latency_s=2.0, path=LOAD),
        record(ask, None, None, sent=moment(2.0), latency_s=0.1, path=CHAT, **MISSING),
    ]
    both = Evidence(requests=records)
    assert not adapters(
        case, Played(state=PlayState.ENDED, evidence=both), VLLM
    ).sightings
    late = record(
        case.operations[2], None, None, sent=moment(4.0), latency_s=0.1, **MISSING
    )
    both = Evidence(requests=[*records, late.model_copy(update={"path": COMPLETIONS})])
    (found,) = adapters(
        case, Played(state=PlayState.ENDED, evidence=both), VLLM
    ).sightings
    assert found.operations == ["r2"]
