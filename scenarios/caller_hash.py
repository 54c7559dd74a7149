"""SGLang: a picture's hash is what the caller says, and its KV cache goes by that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Reproducers,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    all_met,
    answered,
    cause,
    claim,
    pull,
    quote,
    row,
    sglang,
    symptom,
    unmitigated,
)
from mmrepro.scenario.more import ComparedAnswers, Failure, Picture
from mmrepro.scenario.silent import each_follows, may_show

if TYPE_CHECKING:
    from mmrepro.traffic.case import Operation
from mmrepro.traffic import GENERATE

_REPRODUCER = "caller_hash.py"
_FIELD = pull("sglang#25300", "optional caller-supplied mm_hashes", "brought the field")
_SIZE = (168, 168)
_PROMPT = f"picture: <|vision_start|><|image_pad|><|vision_end|>{sglang.TEXT}"
_HASHES = {
    "X": "5eed00000000000a",
    "Y": "5eed00000000000b",
    sglang.CONTROL: "5eed00000000000c",
}
"""Each order goes by its first picture's: caches that outlive a flush know nothing of
it."""
_VICTIMS = ("Y after X", "X after Y")
_UNNAMED, _MALFORMED = ("X unnamed", "Y unnamed"), "X malformed"


def _own_answers(answers: ComparedAnswers) -> Finding:
    return all_met(answers.own("X", "Y"), answers.own("Y", "X"))


def _falls_back(answers: ComparedAnswers) -> Finding:
    return Finding.of(
        answers.whose(_MALFORMED, "X", "Y") == "X", answers.to(_MALFORMED).reply
    )


def _one_hash(mine: Operation, other: Operation) -> bool:
    """Whether another picture of ``other`` had the hash that one of ``mine`` has."""
    # No other way takes hashes.
    if not mine.path == other.path == GENERATE:
        return False
    for (own_hash, own), (other_hash, image) in product(_hashed(mine), _hashed(other)):
        if own_hash == other_hash and own != image:
            return True
    return False


def _hashed(op: Operation) -> list[tuple[Any, Any]]:
    """The pictures of a request with the hashes that its caller gave them."""
    hashes = op.parameters.get("mm_hashes", ())
    return list(zip(hashes, op.parameters.get("image_data", ()), strict=False))


class CallerHash(sglang.PictureAlias):
    """SGLang answers a picture as another one to which the caller gave the same hash.

    What: `/generate` takes `mm_hashes`, a hash for each picture, from whoever calls.
    Picture Y with the hash that X was sent with is answered as X, token for token, with
    HTTP 200 and no word in the log. No search is needed: any hash will do. Another
    hash, or none, and Y gets its own answer.

    Why: The tokenizer manager puts the caller's hash in the place of the one that it
    would compute, and does not hold it against the picture. The pad values, by which
    the prefix cache tells pictures apart, follow from that hash alone."""

    name, release = "caller-hash", "0.5.23"
    # Run: 0.5.23, the newest there is. By source (managers/tokenizer_manager.py):
    # 0.5.17 takes the field, and 0.5.6 has none.
    affected = ">=0.5.17"
    pair = ("X", "Y")
    reproducers = (_REPRODUCER,)
    log_patterns = sglang.PATCH_LOG
    mitigations = (
        sglang.mended(
            "own-hash",
            (
                "GenerateReqInput.normalize_batch_and_arguments, which drops "
                "mm_hashes first"
            ),
            "a picture's hash is the engine's own, whatever the caller says",
        ),
    )
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.CRITICAL
    needs = ("images",)
    upstream = Upstream(UpstreamState.DOCUMENTED, _FIELD, "2026-11-25")
    references = (_FIELD,)
    sources = (
        quote(
            "sglang/srt/managers/tokenizer_manager.py",
            "TokenizerManager._tokenize_one_request",
            "the caller's hash takes the place of the engine's own",
            "caller_mm_hashes = ",
            "int(hex_hash, 16)",
        ),
    )
    exhibit = (
        "Two pictures, one hash of the caller's",
        "The same text with each, greedy.",
    )

    def pictures(self, drive: Drive) -> Mapping[str, Picture]:
        return {
            name: drive.picture(name, 30 + n, _SIZE) for n, name in enumerate(_HASHES)
        }

    async def ask(self, drive: Drive, label: str, picture: Picture) -> None:
        """In SGLang's own form; in the trigger with a hash, where it is not called
        otherwise."""
        (name, *words), hashes = label.split(), dict(_HASHES)
        owner = words[-1] if words[-1] in _HASHES and name != sglang.CONTROL else name
        hashes |= {name: "no hash"} if words[-1] == "malformed" else {}
        body = {
            "text": _PROMPT,
            "image_data": [picture.data_url],
            "sampling_params": {"max_new_tokens": sglang.TOKENS, "temperature": 0},
            "return_logprob": True,
        }
        # In the gate the first word is "gate:".
        if name in _HASHES and words[-1] != "unnamed":
            body["mm_hashes"] = [hashes[owner]]
        data = json.dumps(body).encode()
        await drive.traffic.raw(
            label, path=GENERATE, body=data, deadline_s=drive.deadline_s
        )

    async def trigger(self, drive: Drive) -> None:
        await super().trigger(drive)
        # The cache holds now what was taken for the other.
        pictures = self.pictures(drive)
        for label in (*_UNNAMED, _MALFORMED):
            await self.ask(drive, label, pictures[label[0]])
        await self._read_counter(drive)

    preconditions = tuple(
        replace(p, removed_by=())
        for p in sglang.prefix_cache_at_work(sglang.OTHER, *pair)
    )

    @symptom("Y, sent with the hash that X had, is answered as X, token for token")
    def y_gets_x(self, answers: ComparedAnswers) -> Finding:
        whose, text = answers.after("X", "Y")
        return Finding.of(whose == "X", text)

    @symptom("and the other way round: X, sent with Y's hash, is answered as Y")
    def x_gets_y(self, answers: ComparedAnswers) -> Finding:
        whose, text = answers.after("Y", "X")
        return Finding.of(whose == "Y", text)

    @symptom("a third picture with another hash gets its own answer", id=sglang.CONTROL)
    def control_gets_its_own(self, answers: ComparedAnswers) -> Finding:
        return all_met(
            answers.own("X", sglang.CONTROL), answers.own("Y", sglang.CONTROL)
        )

    @symptom(
        "X and Y without a hash get their own answers at the same time",
        id="unnamed-own",
    )
    def unnamed_get_their_own(self, answers: ComparedAnswers) -> Finding:
        own = [answers.whose(label, label[0]) == label[0] for label in _UNNAMED]
        return Finding.of(all(own), "; ".join(_UNNAMED))

    @cause("the wrong answers took the picture's tokens from the prefix cache")
    def kv_reused(self, answers: ComparedAnswers) -> Finding:
        return answers.more_than_text(sglang.OTHER, *_VICTIMS)

    @cause(
        "by the engine's own code two pictures with one given hash have one pad value"
    )
    def hash_is_believed(self, reproducers: Reproducers) -> Finding:
        names = ("takes_hashes", "given_alike", "own_alike")
        takes, given, own = (reproducers.truth(_REPRODUCER, name) for name in names)
        text = (
            "own: {own_x} and {own_y}; given: {given_x} and {given_y}; "
            "mm_hashes: {takes_hashes}"
        )
        return Finding.of(
            takes and given and not own, text.format_map(reproducers.facts(_REPRODUCER))
        )

    def recognises(self, failure: Failure) -> Finding:
        """By what was sent: another picture before it with the same hash of the
        caller's."""
        able = may_show(self, failure)
        if able.truth is not Truth.MET:
            return able
        return each_follows(
            failure, _one_hash, "a picture with the caller's hash of another one"
        )

    works_after = (
        sglang.CONTROL,
        "unnamed-own",
        answered(*_VICTIMS),
        _own_answers,
        sglang.patch_worked,
        sglang.engines_own,
    )
    rows = (
        row("Y with X's hash", "y-gets-x", sglang.own_answer("Y")),
        row("X with Y's hash", "x-gets-y", sglang.own_answer("X")),
        row(
            "another picture, another hash",
            sglang.CONTROL,
            "its own",
            abnormal_if=False,
        ),
    )
    claims = (
        claim(
            "key",
            "the caller's hash alone decides about the block in the prefix cache",
            by=("hash-is-believed", "kv-reused", sglang.CONTROL),
            given=(
                "starts-anew",
                "cache-on",
                "text-shared",
                sglang.engines_own,
                unmitigated,
            ),
            refutable_on=affected,
        ),
        claim(
            "no-change",
            "nothing changes for callers without the field",
            by="unnamed-own",
        ),
        claim(
            "malformed",
            "a malformed hash falls back to the engine's own",
            by=_falls_back,
        ),
    )


SCENARIO = CallerHash()
