"""minivllm as SGLang: prefix keys of a few bits, and one picture gets another's answer."""

from __future__ import annotations

from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import Reference, SymptomRow
from mmrepro.scenario import Control, RunFacts
from mmrepro.scenarios.borrowed_base import IMAGE_TOKENS, BorrowedFault, all_answered
from mmrepro.signature import Condition, Finding, Truth
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.pictures import Picture

PAD_RANGE = 1 << 16
"""That of reproducers/minivllm/config.py."""

FIRST, SECOND, OTHER = "picture A", "picture B", "picture C"
LABELS = (FIRST, SECOND, OTHER)
ANSWER = 16
ATTEMPTS = 5000


def pictures(drive: Drive) -> list[Picture]:
    """A and B, whose digests agree modulo the pad range, and C, of which nothing else is known.

    By the birthday problem some three hundred pictures hold such a pair.
    """
    seen: dict[int, Picture] = {}
    for seed in range(ATTEMPTS):
        made = drive.picture(f"noise-{seed}", 5000 + seed)
        pad = int(made.sent().sha256, 16) % PAD_RANGE
        if pad in seen:
            return [seen[pad], made, drive.picture("C", 4)]
        seen[pad] = made
    raise AssertionError(f"no two of {ATTEMPTS} pictures collide")


class PadValueKey(BorrowedFault):
    """A picture is answered with another one's keys and values, silently.

    What: Two pictures whose digests agree modulo 65536 share KV cache: the second is answered
    as the first, token for token, with HTTP 200 and no word in the log.

    Why: A prefix key holds, in the place of a picture, its digest modulo 65536. Two pictures
    with one such value are one prefix, and the second one's embeddings are never used. SGLang
    takes 30 bits, which 38 582 pictures exhaust by the birthday problem; here 300 do.
    """

    variant = "pad-value-key"
    origin = "sglang#2151"
    control_server = Control("the same server without prefix caching", ("--no-prefix-caching",))
    references = (
        Reference(
            id="sglang#2151",
            title="llava use image hash as token, leading to cache bug",
            url="https://github.com/sgl-project/sglang/issues/2151",
            note="the first report; the real thing is the scenario pad-value-collision",
        ),
    )

    async def control(self, drive: Drive) -> None:
        await self._ask(drive)

    async def trigger(self, drive: Drive) -> None:
        await self._ask(drive)

    async def _ask(self, drive: Drive) -> None:
        for label, picture in zip(LABELS, pictures(drive), strict=True):
            extra = {"ignore_eos": True}
            request = drive.chat(label, images=[picture], max_tokens=ANSWER, extra=extra)
            await drive.unless_stuck(request)

    def gate_check(self, evidence: Evidence) -> Finding:
        """The pictures of the pair are told apart by a server that shares nothing."""
        own = super().gate_check(evidence)
        found = {r.label: r for r in evidence.requests_in("control")}
        if bad := [label for label in LABELS if label not in found or not found[label].answered]:
            return Finding.of(False, f"the control server did not answer {bad[0]}")
        if found[FIRST].text == found[SECOND].text:
            return Finding.of(False, "the control server answers A and B alike: nothing to see")
        return own

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "wrong-answer",
                "symptom",
                "B gets A's answer, HTTP 200, where the control server answers otherwise",
                wrong_answer,
            ),
            Condition(
                "others-right",
                "symptom",
                "A and C are answered as by the control server",
                others_right,
            ),
            Condition(
                "one-key",
                "cause",
                f"the digests of A and B agree modulo {PAD_RANGE}, that of C does not",
                one_key,
            ),
            Condition(
                "taken-from-cache",
                "cause",
                "all of B, never sent before, comes from the KV cache; nothing of A and C does",
                taken_from_cache,
            ),
        ]

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        found = wrong_answer(evidence)
        abnormal = None if found.truth is Truth.UNKNOWN else found.truth is Truth.MET
        row = SymptomRow(
            check="the answer to B",
            healthy="as by the control server",
            observed=found.observed,
            abnormal=abnormal,
        )
        return [*super().symptom_rows(evidence, facts), row]

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        answered = all_answered(evidence, list(LABELS))
        pairs = _pairs(evidence)
        if pairs is None:
            return answered
        wrong = [label for label, (mine, right) in pairs.items() if mine.text != right.text]
        if wrong:
            return Finding.of(False, f"{wrong[0]} is answered otherwise than by the control server")
        return Finding.of(True, "A, B and C are answered as by the control server")


def _pairs(evidence: Evidence) -> dict[str, tuple[RequestRecord, RequestRecord]] | None:
    """What this server and the control server answered; None: not all of it is there."""
    mine, right = (
        {r.label: r for r in evidence.requests_in(phase) if r.answered and r.label in LABELS}
        for phase in ("trigger", "control")
    )
    if set(mine) != set(LABELS) or set(right) != set(LABELS):
        return None
    return {label: (mine[label], right[label]) for label in LABELS}


UNSENT = "whether pictures get each other's answers shows only to one who sends them"


def wrong_answer(evidence: Evidence) -> Finding:
    pairs = _pairs(evidence)
    if pairs is None:
        return Finding.unknown(UNSENT)
    first, (second, right) = pairs[FIRST][0], pairs[SECOND]
    said = f"A: {first.text!r}; B: {second.text!r}; B by the control server: {right.text!r}"
    return Finding.of(second.text == first.text != right.text, said)


def others_right(evidence: Evidence) -> Finding:
    pairs = _pairs(evidence)
    if pairs is None:
        return Finding.unknown(UNSENT)
    wrong = [label for label in (FIRST, OTHER) if pairs[label][0].text != pairs[label][1].text]
    return Finding.of(not wrong, f"answered otherwise: {', '.join(wrong) or 'none'}")


def one_key(evidence: Evidence) -> Finding:
    pairs = _pairs(evidence)
    if pairs is None:
        return Finding.unknown(UNSENT)
    digests = [pairs[label][0].images[0].sha256 for label in LABELS]
    pads = [int(digest, 16) % PAD_RANGE for digest in digests]
    differ = len(set(digests)) == len(LABELS)
    said = "digests modulo it: " + ", ".join(map(str, pads))
    return Finding.of(differ and pads[0] == pads[1] != pads[2], said)


def taken_from_cache(evidence: Evidence) -> Finding:
    pairs = _pairs(evidence)
    if pairs is None:
        return Finding.unknown(UNSENT)
    cached = [pairs[label][0].cached_tokens for label in LABELS]
    said = f"cached tokens of A, B and C: {cached}; a picture has {IMAGE_TOKENS}"
    first, second, other = cached
    if first is None or second is None or other is None:
        return Finding.unknown(said)
    return Finding.of(first == 0 and other == 0 and second >= IMAGE_TOKENS, said)
