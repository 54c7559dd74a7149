"""minivllm as SGLang: prefix keys of a few bits, and one picture gets another's answer."""

import hashlib
from collections.abc import Mapping
from itertools import count

from mmrepro.case.model import Operation
from mmrepro.scenario import (
    Control,
    Drive,
    Evidence,
    FailureClass,
    Finding,
    Requests,
    Severity,
    Truth,
    answered,
    cause,
    issue,
    precondition,
    row,
    symptom,
)
from mmrepro.scenario.minivllm import MinivllmFault
from mmrepro.scenario.more import Failure, Picture, as_by_control
from mmrepro.scenario.silent import Pair, explained, may_show, pairs

LABELS = FIRST, SECOND, OTHER = "picture A", "picture B", "picture C"
PAD_RANGE = 1 << 16
"""That of reproducers/minivllm/config.py."""
NO_CACHE = "--no-prefix-caching"


def digest(picture: Picture) -> int:
    """That of reproducers/minivllm/sequence.py, Image.of: of the file, not of its pixels."""
    return int(hashlib.sha256(picture.png).hexdigest(), 16)


def same_key(pair: Pair) -> bool:
    mine, other = digest(pair.mine), digest(pair.other)
    return mine != other and mine % PAD_RANGE == other % PAD_RANGE


def images_first(op: Operation, pictures: Mapping[str, Picture]) -> list[object]:
    """minivllm puts all pictures before the text, and knows no salt."""
    return [pictures[name] for name in op.images]


def pictures(drive: Drive) -> list[Picture]:
    """A and B, whose digests agree modulo the pad range, and C, of which nothing else is known.

    By the birthday problem some three hundred pictures hold such a pair.
    """
    seen: dict[int, Picture] = {}
    for seed in count(5000):
        made = drive.picture(f"noise-{seed}", seed)
        pad = digest(made) % PAD_RANGE
        if pad in seen:
            break
        seen[pad] = made
    return [seen[pad], made, drive.picture("C", 4)]


class PadValueKey(MinivllmFault):
    """A picture is answered with another one's keys and values, silently.

    What: Two pictures whose digests agree modulo 65536 share KV cache: the second is answered as
    the first, token for token, with HTTP 200 and no word in the log.

    Why: A prefix key holds, in the place of a picture, its digest modulo 65536. Two pictures with
    one such value are one prefix, and the second one's embeddings are never used. SGLang takes 30
    bits, which 38 582 pictures exhaust by the birthday problem; here 300 do.
    """

    name, variant = "borrowed-faults", "pad-value-key"
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.CRITICAL
    origin = "sglang#2151"
    real = "; see pad-value-collision"
    control_server = Control("the same server without prefix caching", (NO_CACHE,))
    references = (
        issue(
            "sglang#2151",
            "llava use image hash as token, leading to cache bug",
            "the first report; the real thing is the scenario pad-value-collision",
        ),
    )
    rows = (*MinivllmFault.rows, row("the answer to B", "wrong-answer", "as by the control server"))

    async def trigger(self, drive: Drive) -> None:
        for label, picture in zip(LABELS, pictures(drive), strict=True):
            await drive.ask(label, image=picture, max_tokens=16, extra={"ignore_eos": True})

    control = trigger

    def gate_check(self, evidence: Evidence) -> Finding:
        """The pictures of the pair are told apart by a server that shares nothing."""
        texts = {r.label: r.text for r in evidence.requests_in("control") if r.answered}
        if silent := [label for label in LABELS if label not in texts]:
            return Finding.of(False, f"the control server did not answer {silent[0]}")
        if texts[FIRST] == texts[SECOND]:
            return Finding.of(False, "the control server answers A and B alike: nothing to see")
        return super().gate_check(evidence)

    @precondition("an image that is sent again is taken from the KV cache")
    def prefix_cached(self, requests: Requests) -> Finding:
        first, again = (requests.first(label).cached_tokens for label in self.gate_images)
        text = f"cached tokens in the gate: {first}, then {again}"
        if first is None or again is None:
            return Finding.unknown(text)
        return Finding.of(first < self.model.image_tokens <= again, text)

    @symptom("B gets A's answer, HTTP 200, where the control server answers otherwise", live=True)
    def wrong_answer(self, requests: Requests) -> Finding:
        first, (second, right) = requests.pair(FIRST)[0], requests.pair(SECOND)
        text = f"A: {first.text!r}; B: {second.text!r}; B by the control server: {right.text!r}"
        return Finding.of(second.text == first.text != right.text, text)

    @symptom("A and C are answered as by the control server", live=True)
    def others_right(self, requests: Requests) -> Finding:
        return as_by_control(FIRST, OTHER)(requests)

    @precondition(f"the digests of A and B agree modulo {PAD_RANGE}, that of C does not")
    def one_key(self, requests: Requests) -> Finding:
        digests = [requests.pair(label)[0].images[0].sha256 for label in LABELS]
        pads = [int(digest, 16) % PAD_RANGE for digest in digests]
        one = len(set(digests)) == len(LABELS) and pads[0] == pads[1] != pads[2]
        return Finding.of(one, f"digests modulo it: {', '.join(map(str, pads))}")

    @cause(
        "all of B, never sent before, comes from the KV cache; nothing of A and C does", live=True
    )
    def taken_from_cache(self, requests: Requests) -> Finding:
        cached = [requests.pair(label)[0].cached_tokens for label in LABELS]
        tokens = self.model.image_tokens
        text = f"cached tokens of A, B and C: {cached}; a picture has {tokens}"
        if None in cached:
            return Finding.unknown(text)
        first, second, other = (share or 0 for share in cached)
        return Finding.of(first == other == 0 and second >= tokens, text)

    def recognises(self, failure: Failure) -> Finding:
        able = may_show(self, failure)
        if able.truth is not Truth.MET:
            return able
        if NO_CACHE in failure.case.server.args:
            return Finding.of(False, f"the server runs with {NO_CACHE}")
        what = f"one digest modulo {PAD_RANGE}, and another digest"
        return explained(pairs(failure, images_first), same_key, what)

    works_after = (answered(*LABELS), as_by_control(*LABELS))
