"""SGLang: two pictures with one 30-bit pad value share KV cache, and one gets the
other's answer.

The pictures come as a pair that was searched once (scenarios/data/pad_value_pair);
``--option search`` searches a new one in the run's own environment."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mmrepro.base.errors import MmreproError
from mmrepro.engines.models import TINY
from mmrepro.scenario import (
    Drive,
    Evidence,
    FailureClass,
    Finding,
    Logs,
    Outcome,
    Reproducers,
    RunFacts,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    all_met,
    answered,
    cause,
    cure,
    issue,
    precondition,
    pull,
    quote,
    sglang,
    symptom,
    upgrade,
)
from mmrepro.scenario.more import (
    ComparedAnswers,
    Failure,
    HttpData,
    Picture,
    checks,
    read_picture,
)
from mmrepro.scenario.silent import (
    PicturePair,
    explained,
    may_show,
    pairs,
    whole_prompt,
)
from mmrepro.scenarios.data import pad_value_pair
from mmrepro.scenarios.pad_value_collision import report, traffic
from mmrepro.scenarios.pad_value_collision.collide.options import SCRIPT
from mmrepro.scenarios.pad_value_collision.report import (
    FROM_HASH,
    FULL_HASH,
    PASSED_ON_SINCE,
    REPRODUCER,
    SALTS,
)

if TYPE_CHECKING:
    from mmrepro.scenario.more import Exhibit
    from mmrepro.scenarios.pad_value_collision.collide.pair import Identity

_BATCH = "sglang/srt/managers/schedule_batch.py"
_KEYED = (*SALTS, FROM_HASH)
"""Mitigations under which requests with other pictures share nothing at all."""
_VICTIMS = ("B after A", "A after B")
_CONTROLS = ("control after A", "control after B")


class PadValueCollision(sglang.PictureAlias):
    """SGLang answers one picture with another's cached features.

    What: Two different pictures whose hashes agree in their low 30 bits share KV cache:
    the second is answered with the first one's answer, token for token, with HTTP 200
    and no word in the log. A picture that differs from it in one bit is answered
    correctly.

    Why: SGLang puts a number in the place of a picture's tokens, `pad_value = hash % (1
    << 30)`, and RadixAttention matches prefixes on token ids alone. Two pictures with
    one pad value and the same text before them are one prefix. The tokens of the second
    picture are then taken from the cache, so that its own features are never used. By
    the birthday problem 38 582 pictures hold such a pair with a chance of one half."""

    name, release = "pad-value-collision", "0.5.6"
    # 0.5.22 still takes 30 bits (managers/schedule_batch.py:260); 0.5.23 four values of
    # 62 bits
    affected = ">=0.5.3,<0.5.23"
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.CRITICAL
    needs = ("images",)
    upstream = Upstream(
        UpstreamState.OPEN,
        issue(
            "sglang#8342",
            "Security report on SGLang's hash functions",
            "pad values as well",
        ),
        "2026-11-24",
        note="the release that widens the value, 0.5.23, was found by runs",
    )
    pair = ("A", "B")
    reproducers = (REPRODUCER,)
    log_patterns = sglang.PATCH_LOG | {
        report.OVERFLOW: r"(?:Value|Overflow|Runtime)Error: .*[Oo]verflow"
    }
    key_log_patterns = ("prefill",)
    options = {
        "search": (
            "search a new pair in this run's environment first (half a minute or so)"
        ),
        "pair": "PAIR=FOLDER: use the pair that its script collide wrote there",
        "traffic": (
            "afterwards other questions and texts, later requests, pictures of "
            "two sizes"
        ),
    }
    sources = (
        quote(
            _BATCH,
            "MultimodalDataItem.set_pad_value",
            "64 bits of SHA-256 become 30",
            "% (1 << 30)",
            "_compute_pad_value(self.hash)",
        ),
        quote(
            _BATCH,
            "_compute_pad_value",
            "from about 0.5.9 on: shifted beyond the vocabulary, still 30 bits",
            "% (1 << 30)",
        ),
        quote(
            "sglang/srt/managers/mm_utils.py",
            "data_hash",
            "what is hashed, and how much of it is kept",
            "[:8]",
        ),
    )
    mitigations = (
        *(
            cure(
                name,
                description=(
                    f"send `{field}` with each request, another one for each picture"
                ),
                effective_on=f">={PASSED_ON_SINCE}",
            )
            for name, field in SALTS.items()
        ),
        sglang.mended(
            FROM_HASH,
            replaces="Req.extend_image_inputs (sglang/srt/managers/schedule_batch.py)",
            why="the analysis' first advice: the server makes extra_key of the "
            "pictures' whole hashes",
            name=FROM_HASH,
        ),
        sglang.mended(
            FULL_HASH,
            replaces=(
                "MultimodalDataItem.set_pad_value "
                "(sglang/srt/managers/schedule_batch.py)"
            ),
            why="the analysis' second advice: the whole hash, 64 bits without a sign, "
            "in place of its low 30",
            name=FULL_HASH,
        ),
        cure(
            "disable-radix-cache",
            "--disable-radix-cache",
            "no prefix cache at all (costs the prefill of every repeated prompt)",
        ),
        upgrade(
            "0.5.23", "0.5.23: four pad values of 62 bits each, from the whole digest"
        ),
    )
    references = (
        issue(
            "sglang#2151",
            "llava use image hash as token, leading to cache bug",
            "the first report; closed by #2256",
        ),
        pull("sglang#2256", "Fix hash collision for multi modal models", "history"),
        pull("sglang#2309", "Fix the padded hash value for image tokens", "history"),
        pull(
            "sglang#14428",
            "Modify data_hash to use full SHA-256 digest",
            "says that the collision of pad values remains",
        ),
    )
    exhibit = ("The pictures and their answers", "The same text with each, greedy.")

    def expected(
        self, release: str, mitigations: frozenset[str]
    ) -> tuple[Outcome, str]:
        outcome, why = super().expected(release, mitigations)
        useless = sorted(mitigations & SALTS.keys())
        if outcome is Outcome.REPRODUCED and useless:
            dropped = " and ".join(SALTS[name] for name in useless)
            why += (
                f"; its scheduler drops {dropped}, which is passed on since "
                f"{PASSED_ON_SINCE}"
            )
        return outcome, why

    # ------------------------------------------------------------------ traffic

    async def gate(self, drive: Drive) -> None:
        if "search" in drive.options and not drive.options.get("pair"):
            await asyncio.to_thread(traffic.search, drive)
        await super().gate(drive)

    async def trigger(self, drive: Drive) -> None:
        await super().trigger(drive)
        if "traffic" in drive.options:
            await traffic.send(self, drive, self.pictures(drive))
            await self._read_counter(drive)

    def pictures(self, drive: Drive) -> Mapping[str, Picture]:
        searched = drive.recorder.dir / "pair"
        default = searched if searched.is_dir() else pad_value_pair()
        return read_pair(
            Path(drive.options.get("pair") or default).expanduser().absolute()
        )

    def fields(self, drive: Drive, picture: str) -> Mapping[str, object]:
        salts = {
            f: f"tenant-{picture}"
            for name, f in SALTS.items()
            if name in drive.mitigations
        }
        return salts if picture in (*self.pair, sglang.CONTROL) else {}

    # ------------------------------------------------------------------ signature

    preconditions = sglang.prefix_cache_at_work(sglang.OTHER, "A", "B", apart=_KEYED)

    @precondition(
        "by the engine's own hash A and B differ, and agree in the low 30 bits"
    )
    def pair_agrees(self, reproducers: Reproducers) -> Finding:
        """Of the hash and not of the pad value, so that it holds on a release with the
        fix."""
        names = ("hash_a", "hash_b", "hash_control")
        hashes = [reproducers.hash(REPRODUCER, name) for name in names]
        low_a, low_b, low_control = (value % (1 << report.BITS) for value in hashes)
        whole = ", ".join(f"{value:016x}" for value in hashes)
        low = f"{low_a:08x}, {low_b:08x}, {low_control:08x}"
        collide = hashes[0] != hashes[1] and low_a == low_b != low_control
        return Finding.of(collide, f"A, B, control: hashes {whole}; low bits {low}")

    @symptom(
        "B, sent after A, is answered as A is, token for token, and not as B alone"
    )
    def b_gets_a(self, answers: ComparedAnswers) -> Finding:
        whose, text = answers.after("A", "B")
        return Finding.of(whose == "A", text)

    @symptom("and the other way round: A, sent after B, gets B's answer")
    def a_gets_b(self, answers: ComparedAnswers) -> Finding:
        whose, text = answers.after("B", "A")
        return Finding.of(whose == "B", text)

    @symptom("both of these answers are HTTP 200, whole")
    def silent(self, answers: ComparedAnswers) -> Finding:
        whole = True
        ends: list[str] = []
        for label in _VICTIMS:
            record = answers.to(label)
            whole = whole and record.finish_reason in ("length", "stop")
            end = f"finish_reason {record.finish_reason}"
            ends.append(f"{record.label}: HTTP {record.status}, {end}")
        return Finding.of(whole, "; ".join(ends))

    @symptom(
        (
            "a picture that nearly equals B shares the text before it only, and gets "
            "its own answer"
        ),
        id=sglang.CONTROL,
    )
    def control_gets_its_own(self, answers: ComparedAnswers) -> Finding:
        """Unknown where it shares more: then not the equal pad values make the
        difference."""
        before, shared = answers.cached(sglang.OTHER), answers.from_cache(*_CONTROLS)
        text = f"from the cache: {shared}; the text before the picture has {before}"
        if any(answers.cached(label) > before for label in _CONTROLS):
            return Finding.unknown(
                f"{text}: a collision cannot be told from any picture"
            )
        own = all_met(
            answers.own("A", sglang.CONTROL), answers.own("B", sglang.CONTROL)
        )
        return Finding(own.truth, f"{own.observed}; {text}")

    @symptom(
        "/health, /health_generate and /v1/models answer 200",
        required=False,
        abnormal=False,
    )
    def endpoints_green(self, http: HttpData) -> Finding:
        return checks.endpoints_green(http)

    @cause("the wrong answers took the picture's tokens from the prefix cache")
    def kv_reused(self, answers: ComparedAnswers) -> Finding:
        return answers.more_than_text(sglang.OTHER, *_VICTIMS)

    @cause(
        "the engine's own code gives both pictures one pad value, and different hashes"
    )
    def equal_pad_values(self, reproducers: Reproducers) -> Finding:
        facts = reproducers.facts(REPRODUCER)
        text = (
            "A: hash {hash_a}, pad value {pad_a}; B: hash {hash_b}, pad value {pad_b}"
        )
        equal, differ = (
            reproducers.truth(REPRODUCER, f) for f in ("pads_equal", "hashes_differ")
        )
        return Finding.of(equal and differ, text.format_map(facts))

    @cause(
        "the engine's RadixCache alone matches all of B on A's entry", required=False
    )
    def radix_match(self, reproducers: Reproducers) -> Finding:
        names = ("match_b_after_a", "tokens", "match_control_after_a", "prefix_tokens")
        b, tokens, control, prefix = (
            reproducers.number(REPRODUCER, name) for name in names
        )
        text = f"B matches {b} of {tokens} tokens of A; the control {control}"
        return Finding.of(b == tokens and control == prefix, text)

    def recognises(self, failure: Failure) -> Finding:
        """By the engine's own classes, which are asked (10 to 20 s) where nothing else
        is plain."""
        able = may_show(self, failure)
        if able.truth is not Truth.MET:
            return able
        readable: dict[str, list[PicturePair]] = {}
        for id, candidates in pairs(failure, whole_prompt).items():
            readable[id] = [p for p in candidates if p.mine.width and p.other.width]

        model = failure.case.server.model
        for id, candidates in readable.items():
            if not candidates:
                return Finding.of(
                    False, f"{id}: its prompt parts from no other at a picture"
                )
            if any(sglang.same_bytes(pair, model) for pair in candidates):
                return Finding.of(
                    False, f"{id}: its picture is another one's in another layout"
                )
        try:
            known = _identities(failure, readable)
        except MmreproError as error:
            return Finding.unknown(f"the engine could not be asked: {error.message}")

        def collide(pair: PicturePair) -> bool:
            mine, other = known[pair.mine.name], known[pair.other.name]
            return mine.pad_value == other.pad_value and mine.hash != other.hash

        what = "one pad value by the engine's own code, and another hash"
        return explained(readable, collide, what)

    def apart_as_told(
        self, answers: ComparedAnswers, logs: Logs, facts: RunFacts
    ) -> Finding:
        """For ``works_after``: a salt keeps the text before the pictures apart as well;
        where that was shared all the same it was dropped, and kept nothing apart:
        unknown."""
        if not facts.mitigations & set(_KEYED):
            return Finding.of(True, "nothing was salted")
        shared = answers.from_cache(*_VICTIMS)
        if any(map(answers.cached, _VICTIMS)):
            return Finding.unknown(f"salted, and yet from the cache: {shared}")
        alone = report.flushed_alone(logs)
        return alone if alone.truth is Truth.MET else Finding.unknown(alone.observed)

    works_after = (
        sglang.CONTROL,
        answered(*_VICTIMS),
        report.own_answers,
        sglang.PictureAlias.off_as_told,
        apart_as_told,
        sglang.patch_worked,
        sglang.engines_own,
    )
    rows, claims = report.ROWS, (*report.CLAIMS, *traffic.CLAIMS)

    def exhibits(self, evidence: Evidence, facts: RunFacts) -> list[Exhibit]:
        return [*super().exhibits(evidence, facts), report.curve()]


def _identities(
    failure: Failure, found: Mapping[str, list[PicturePair]]
) -> dict[str, Identity]:
    """What the engine makes of the pictures, by name. Raises as the search does."""
    from mmrepro.base.machine import cache_root
    from mmrepro.scenarios.pad_value_collision.collide.search import identify
    from mmrepro.scenarios.pad_value_collision.collide.worker import place_for

    server = failure.case.server
    tiny = TINY.get(server.model)
    model = tiny.write(cache_root() / "models") if tiny else Path(server.model)
    both = [
        picture for one in found.values() for p in one for picture in (p.mine, p.other)
    ]
    with tempfile.TemporaryDirectory(prefix="mmrepro-recognise-") as folder:
        files = {picture.name: Path(folder, picture.name) for picture in both}
        for picture in both:
            files[picture.name].write_bytes(picture.png)
        return identify(place_for(server.engine, server.release, model=model), files)[1]


def read_pair(folder: Path) -> dict[str, Picture]:
    """The three pictures of a pair's folder. Raises UsageError: one is missing or no
    picture."""
    hint = f"{SCRIPT} --release 0.5.6 --out PAIR"
    return {
        name: read_picture(folder / f"{name}.png", hint)
        for name in ("A", "B", sglang.CONTROL)
    }


SCENARIO = PadValueCollision()
