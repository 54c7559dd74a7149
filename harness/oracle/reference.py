"""The reference: the same requests to the same release, each alone, with nothing remembered.

One request after another, one sequence at a time, prefix, multimodal and encoder caches off, no
chunked prefill, ``float32`` where the engine has it. What a played request was answered is held
against that answer, up to the first near-tie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mmrepro.case.model import CHAT, COMPLETIONS, Case, Operation, ServerWanted
from mmrepro.case.played import Played, PlayState
from mmrepro.engines import Engine
from mmrepro.evidence import RequestRecord
from mmrepro.incident.replay import Expectation, FindingClass, Sighting
from mmrepro.oracle import near_ties
from mmrepro.oracle.buckets import silent
from mmrepro.oracle.judged import Judged
from mmrepro.oracle.loud import GRAMMARS
from mmrepro.oracle.near_ties import Answer, Compared, Verdict
from packaging.version import Version

TOP_LOGPROBS = 5
NAMED = 3
"""Operations whose answers a sighting tells of; all that it is about are listed."""
LEAST_ALIKE = 4
"""Tokens that another request's answer must share with one that is taken for it, at least: short
answers are alike by chance. One token is enough where the prompt is as long as the other's too."""


@dataclass(frozen=True)
class Plain:
    """What makes an engine's server plain.

    Attributes:
        args: options that come last, and so win; ``{tokens}``: the longest prompt and answer.
        flags: options that are taken away: how many values follow each.
        env: variables.
        cannot: sentences on what it has no switch for.
    """

    args: tuple[str, ...]
    flags: tuple[tuple[str, int], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    cannot: tuple[str, ...] = ()
    tells_ids: bool = False
    """Tokens' numbers come with an answer if its request says ``return_token_ids``."""
    logprobs: tuple[str, ...] = ()
    """Options without which logprobs are refused."""
    logprobs_since: str = "0"
    """Releases before it are not asked for logprobs: what they take was not tried."""
    exact: bool = False
    """A greedy answer of a float32 server does not depend on the batch, and no request can ask for
    logprobs."""


PLAIN = {
    # The encoder cache has no switch. Without both others a picture gets a name of its own in each
    # request, so that it never finds one (v1/engine/processor.py:_maybe_build_mm_uuids of 0.11.0).
    "vllm": Plain(
        args=(
            *("--no-enable-prefix-caching", "--mm-processor-cache-gb=0", "--max-num-seqs=1"),
            *("--no-enable-chunked-prefill", "--max-num-batched-tokens={tokens}"),
            "--dtype=float32",
        ),
        flags=(("--max-num-partial-prefills", 1), ("--max-long-partial-prefills", 1)),
        tells_ids=True,
    ),
    "sglang": Plain(
        args=(
            *("--disable-radix-cache", "--max-running-requests=1", "--chunked-prefill-size=-1"),
            "--dtype=float32",
        ),
        flags=(("--enable-hierarchical-cache", 0), ("--enable-mixed-chunk", 0)),
        env=(("SGLANG_VLM_CACHE_SIZE_MB", "0"),),
    ),
    "lmdeploy": Plain(
        args=("--max-batch-size=1", "--max-prefill-token-num={tokens}"),
        flags=(("--enable-prefix-caching", 0),),
        logprobs=("--logprobs-mode=raw_logprobs",),
        logprobs_since="0.18.0",
        cannot=(
            "LMDeploy has no float32: its reference rounds as the server that was played; releases "
            "before 0.18.0 are not asked for logprobs: answers that differ are not judged.",
        ),
    ),
    "minivllm": Plain(
        args=(
            *("--no-prefix-caching", "--mm-cache-tokens=0", "--max-num-seqs=1"),
            *("--max-batched-tokens={tokens}", "--dtype=float32"),
        ),
        exact=True,
    ),
}
SHAPING = frozenset(
    (
        *("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias"),
        *("min_tokens", "bad_words", "allowed_token_ids"),
        *("tools", "logits_processors", "custom_logit_processor", *GRAMMARS),
    )
)
"""Parameters by which another token than the likeliest may be taken; logprobs are told without
them."""
CHANCE = ("temperature", "top_p", "top_k", "min_p", "seed")
ANSWERS = (FindingClass.CROSS_TALK, FindingClass.WRONG_ANSWER)
LEAST_TOKENS = 2048
"""Tokens of a step, at least: some releases refuse fewer."""


def reference_case(
    case: Case, engine: Engine, release: str = "", *, own_format: bool = False
) -> Case:
    """The case whose play is the reference for ``case``; of ``release``, "": of its own.

    Args:
        own_format: it computes in the server's own number format, and not in ``float32``.

    Raises KeyError: there is no plain form of that engine's server.
    """
    plain = PLAIN[engine.name]
    tokens = max(case.server.max_model_len, LEAST_TOKENS)
    asked = comparable(case)
    args = _without(asked.server.args, plain.flags)
    args += [
        arg.format(tokens=tokens)
        for arg in plain.args
        if not (own_format and arg.startswith("--dtype="))
    ]
    server = case.server.model_copy(
        update={
            "args": args,
            "env": {**case.server.env, **dict(plain.env)},
            "release": release or case.server.release,
        }
    )
    operations: list[Operation] = []
    for op in asked.operations:
        after = [f"{operations[-1].id}.end"] if operations else []
        operations.append(op.model_copy(update={"after": after, "leave": "", "at_s": None}))
    return asked.model_copy(update={"server": server, "operations": operations})


def reference_limits(engine: Engine) -> list[str]:
    """Sentences on what the engine's reference cannot be."""
    if engine.name not in PLAIN:
        return [f"There is no reference for {engine.name}: answers were not compared."]
    return list(PLAIN[engine.name].cannot)


def comparable(case: Case) -> Case:
    """The case as its answers can be compared: greedy, since others follow from chance as well, and
    with logprobs, without which a near-tie cannot be told from an error.

    It changes what the sampler computes, so it is for the plays that are compared only: a loud
    failure is looked for, and shrunk, with the case as it is.
    """
    plain = PLAIN.get(case.server.engine, Plain(args=()))
    told = not plain.exact and Version(case.server.release) >= Version(plain.logprobs_since)
    operations = []
    for op in case.operations:
        asked = _greedily(op) | (_asking_logprobs(op, plain) if told else {})
        operations.append(op.model_copy(update={"parameters": asked}))
    args = [*case.server.args, *(plain.logprobs if told else ())]
    server = case.server.model_copy(update={"args": args})
    return case.model_copy(update={"server": server, "operations": operations})


def _greedily(op: Operation) -> dict[str, Any]:
    """Its parameters, without chance; several choices stay as they are, being no greedy ones."""
    asked = dict(op.parameters)
    several = {asked.get("n"), asked.get("best_of")} - {None, 1}
    if greedy(op) or several or asked.get("use_beam_search") or op.path not in (CHAT, COMPLETIONS):
        return asked
    return {name: asked[name] for name in asked if name not in CHANCE} | {"temperature": 0}


def _asking_logprobs(op: Operation, plain: Plain) -> dict[str, Any]:
    given = op.parameters.get("top_logprobs" if op.path == CHAT else "logprobs")
    top = max(given if isinstance(given, int) else 0, TOP_LOGPROBS)
    told = {"return_token_ids": True} if plain.tells_ids else {}
    if op.path == CHAT:
        return {"logprobs": True, "top_logprobs": top, **told}
    return {"logprobs": top, **told} if op.path == COMPLETIONS else {}


def _without(args: list[str], flags: tuple[tuple[str, int], ...]) -> list[str]:
    """``args`` without those flags, however they are spelled."""
    values = dict(flags)
    kept: list[str] = []
    skip = 0
    for arg in args:
        name, equals, _ = arg.partition("=")
        if skip:
            skip -= 1
        elif name in values:
            skip = 0 if equals else values[name]
        else:
            kept.append(arg)
    return kept


def greedy(op: Operation) -> bool:
    """Whether its answer follows from its prompt alone."""
    said = op.parameters
    return not said.get("use_beam_search") and (
        said.get("temperature") == 0 or said.get("top_k") == 1
    )


# ---------------------------------------------------------------------- the comparison


def compare_with_reference(case: Case, played: Played, reference: Played) -> Judged:
    """What the reference's answers hold against those of ``played``. Pure.

    ``reference`` may be of a larger case: answers are found by their operations' names.
    """
    if reference.state is PlayState.START_FAILED:
        why = f" ({reference.said})" if reference.said else ""
        return Judged(
            unseen=[f"The reference's server did not start{why}: no answer was compared."]
        )
    return _Comparison(case, played, reference).judged()


def has_own_format(case: Case) -> bool:
    """Whether the reference computes in another number format than the case's server."""
    plain = PLAIN.get(case.server.engine)
    formats = plain is not None and any(arg.startswith("--dtype=") for arg in plain.args)
    return formats and _rounds(case.server)


def compared(judged: Judged) -> bool:
    """Whether answers are not the reference's."""
    return any(one.finding_class in ANSWERS for one in judged.sightings)


def agreeing(judged: Judged, own: Judged) -> Judged:
    """What two references hold against the same answers, one of them in the server's own format.

    Of an answer that only the float32 reference does not give, the format is the reason: rounding
    moves the odds of two tokens by a nat now and then, without any neighbour or cache.
    """
    wrong = {op for one in own.sightings if one.finding_class in ANSWERS for op in one.operations}
    kept, rounded = [], 0
    for one in judged.sightings:
        if one.finding_class not in ANSWERS:
            kept.append(one)
            continue
        left = [op for op in one.operations if op in wrong]
        rounded += len(one.operations) - len(left)
        if left:
            expectations = [e for e in one.expectations if e.operation in left]
            update = {"operations": left, "expectations": expectations}
            kept.append(one.model_copy(update=update))
    counted = dict(judged.counted)
    if rounded:
        counted["answers compared: only the number format differs"] = rounded
    return judged.model_copy(update={"sightings": kept, "counted": counted})


class _Comparison:
    """One play beside the reference's."""

    def __init__(self, case: Case, played: Played, reference: Played) -> None:
        self.case = case
        self.mine, self.right = _records(played), _records(reference)
        self.counted: Counter[str] = Counter()
        self.exact = not _rounds(case.server)
        self.pairs = list(self._pairs())
        drifts = (d for _, mine, right in self.pairs for d in near_ties.drift(mine, right))
        self.bound = near_ties.bound_of(drifts, exact=self.exact)

    def _pairs(self) -> Iterator[tuple[Operation, Answer, Answer]]:
        for op in self.case.operations:
            mine, right = self.mine.get(op.id), self.right.get(op.id)
            if mine is None or right is None or (why := _not_compared(op, mine, right)):
                self.counted[f"answers not compared: {why if mine and right else 'not sent'}"] += 1
                continue
            both = zip(near_ties.answers(mine), near_ties.answers(right), strict=False)
            for one, other in both:
                yield op, one, other

    def judged(self) -> Judged:
        if self.bound is None:
            unseen = ["Answers differ from the reference's by noise alone: none was compared."]
            sightings = list(_sightings({}, {}, dict(self._usage(set(), set()))))
            return Judged(sightings=sightings, counted=dict(self.counted), unseen=unseen)
        untold = PLAIN[self.case.server.engine].exact and self.exact
        wrong: dict[str, str] = {}
        swapped: dict[str, str] = {}
        same: set[str] = set()
        for op, mine, right in self.pairs:
            compared = near_ties.compare(
                mine, right, self.bound, exact=untold, shaped=not SHAPING.isdisjoint(op.parameters)
            )
            if whose := self._whose(op, mine, compared):
                swapped[op.id] = f"{op.id} got the answer to {whose}"
            elif compared.verdict is Verdict.DIFFERS:
                wrong.setdefault(op.id, f"{op.id}, {compared.said}")
            else:
                self.counted[f"answers compared: {compared.verdict}"] += 1
                token_by_token = untold or (mine.tokens and right.tokens)
                if compared.verdict is Verdict.SAME and mine.whole and token_by_token:
                    same.add(op.id)
        usage = dict(self._usage({*swapped, *wrong}, same))
        sightings = list(_sightings(swapped, wrong, usage))
        for one in sightings:
            if untold and one.finding_class is not FindingClass.PROTOCOL:
                one.expectations = self._texts(one.operations)
        return Judged(sightings=sightings, counted=dict(self.counted))

    def _texts(self, ids: Sequence[str]) -> list[Expectation]:
        """The reference's answers, which a sound server gives to the letter."""
        whole = [op.id for op in self.case.operations if op.id in ids and not op.leave]
        return [Expectation(operation=id, text=self.right[id].text) for id in whole]

    def _whose(self, op: Operation, mine: Answer, compared: Compared) -> str:
        """The operation to which the reference gave the answer that ``op`` got; "": to none.

        A near-tie may lead to any answer, and requests that are much alike have the same: there,
        the prompt's length must be that of the other one as well.
        """
        assert self.bound is not None
        told = _length(self.mine, op.id)
        foreign = told is not None and told != _length(self.right, op.id)
        same = compared.verdict is Verdict.SAME
        if same or (compared.verdict is not Verdict.DIFFERS and not foreign):
            return ""
        for other in self._beginning(mine):
            if other == op.id or (foreign and _length(self.right, other) != told):
                continue
            like = near_ties.compare(mine, self._answers[other], self.bound)
            far = like.alike >= max(1 if foreign else LEAST_ALIKE, compared.alike + 1)
            if far and like.verdict in (Verdict.SAME, Verdict.NEAR_TIE):
                return other
        return ""

    def _beginning(self, mine: Answer) -> list[str]:
        """Operations to which the reference gave an answer that begins as ``mine``."""
        return self._by_start.get(_start(mine), [])

    @cached_property
    def _answers(self) -> dict[str, Answer]:
        """The reference's answers that a request may be given by mistake."""
        records = ((op.id, self.right.get(op.id)) for op in self.case.operations if greedy(op))
        return {
            id: near_ties.answers(record)[0]
            for id, record in records
            if record is not None and record.answered and record.choices
        }

    @cached_property
    def _by_start(self) -> dict[str, list[str]]:
        starts: dict[str, list[str]] = {}
        for id, answer in self._answers.items():
            starts.setdefault(_start(answer), []).append(id)
        return starts

    def _usage(self, known: set[str], same: set[str]) -> Iterator[tuple[str, str]]:
        """Operations and what is told of them otherwise than by the reference: of those that got
        the ``same`` answer the length of that too; nothing of those of which it is ``known``."""
        for op in self.case.operations:
            mine, right = self.mine.get(op.id), self.right.get(op.id)
            if mine is None or right is None or not (mine.answered and right.answered):
                continue
            fields = ["prompt_tokens"] if op.id not in known else []
            if op.id in same:
                fields += ["completion_tokens", "finish_reason"]
            for field in fields:
                told, expected = getattr(mine, field), getattr(right, field)
                if None not in (told, expected) and told != expected:
                    yield op.id, f"{op.id} says {field} {told}, the reference {expected}"
                    break


def _records(played: Played) -> dict[str, RequestRecord]:
    """By operation, as :meth:`Played.record`."""
    return {record.label: record for record in reversed(played.evidence.requests)}


def _length(records: Mapping[str, RequestRecord], id: str) -> int | None:
    """Tokens of the prompt, as its answer tells it."""
    record = records.get(id)
    return record.prompt_tokens if record is not None and record.answered else None


def _start(answer: Answer) -> str:
    return answer.tokens[0].text if answer.tokens else answer.text[:1]


def _rounds(server: ServerWanted) -> bool:
    """Whether the server that is played computes in a shorter format than float32, as far as its
    options tell."""
    given = [*server.args, ""]
    told = [
        arg.partition("=")[2] or given[place + 1]
        for place, arg in enumerate(server.args)
        if arg.partition("=")[0] == "--dtype"
    ]
    plain = PLAIN.get(server.engine)
    if not told or told[-1] == "auto":
        return plain is None or not plain.exact
    return told[-1] not in ("float32", "float")


def _not_compared(op: Operation, mine: RequestRecord, right: RequestRecord) -> str:
    """Why; "": they are compared."""
    if not greedy(op):
        return "not greedy"
    if mine.status is not None and 400 <= mine.status < 500:
        return "refused"
    if not (mine.answered or mine.left):
        return "not answered"
    if not right.answered:
        return "the reference did not answer"
    return "" if near_ties.answers(mine) and near_ties.answers(right) else "no completion"


def _sightings(
    swapped: dict[str, str], wrong: dict[str, str], usage: dict[str, str]
) -> Iterator[Sighting]:
    expected = "What the same server answers to each request alone, with its caches off."
    if swapped:
        yield Sighting(
            finding_class=FindingClass.CROSS_TALK,
            bucket=silent(FindingClass.CROSS_TALK, "another's answer"),
            operations=list(swapped),
            said=f"Requests got the answers of others: {_some(swapped)}.",
            expected=expected,
        )
    if wrong:
        yield Sighting(
            finding_class=FindingClass.WRONG_ANSWER,
            bucket=silent(FindingClass.WRONG_ANSWER, "not the reference's"),
            operations=list(wrong),
            said=f"Answers are not those of the reference: {_some(wrong)}.",
            expected=expected,
        )
    if usage:
        yield Sighting(
            finding_class=FindingClass.PROTOCOL,
            bucket=silent(FindingClass.PROTOCOL, "not the reference's usage"),
            operations=list(usage),
            said=f"Usage is not as the reference tells it: {_some(usage)}.",
            expected="As many prompt tokens as the same server counts in the same request alone; "
            "for the same answer as many tokens, and the same reason to end.",
        )


def _some(said: Mapping[str, str]) -> str:
    shown = list(said.values())[:NAMED]
    more = len(said) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
