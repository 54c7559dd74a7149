"""SGLang: two pictures with one 30-bit pad value share KV cache, and one gets the other's answer.

The pictures come as a pair that was searched once (scenarios/data/pad_value_pair); ``--option
search`` searches a new one in the run's own environment.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path

from mmrepro.errors import UsageError
from mmrepro.evidence import Evidence
from mmrepro.incident import Birthday, ClaimResult, Exhibit, Pool, Reference, SymptomRow
from mmrepro.incident.birthday import images_for
from mmrepro.scenario import Mitigation, RunFacts, Scenario, SourceRef
from mmrepro.scenarios import pad_value_evidence as judge
from mmrepro.scenarios import prefix_sharing as sharing
from mmrepro.scenarios.data import pad_value_pair
from mmrepro.signature import Condition, Finding, Outcome, Truth, checks
from mmrepro.traffic.drive import Drive
from mmrepro.traffic.pictures import Picture
from packaging.specifiers import SpecifierSet

NAMES = ("A", "B", "control")
AFFECTED = ">=0.5.3,<0.5.23"
"""0.5.22 still takes 30 bits (managers/schedule_batch.py:260); 0.5.23 four values of 62 bits."""

SALT = "cache-salt"
KEY = "extra-key"
FIELDS = {SALT: "cache_salt", KEY: "extra_key"}


def read_pair(folder: Path) -> dict[str, Picture]:
    """The three pictures of a pair's folder. Raises UsageError: one is missing or no picture."""
    from PIL import Image

    found = {}
    for name in NAMES:
        path = folder / f"{name}.png"
        try:
            data = path.read_bytes()
            with Image.open(io.BytesIO(data)) as image:
                found[name] = Picture(name, data, image.width, image.height)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read: {error.strerror or error}.",
                hint="mmrepro collide --engine sglang --release 0.5.6 --out PAIR",
            ) from error
    return found


class PadValueCollision(Scenario):
    """SGLang answers one picture with another's cached features.

    What: Two different pictures whose hashes agree in their low 30 bits share KV cache: the
    second is answered with the first one's answer, token for token, with HTTP 200 and no word
    in the log. A picture that differs from it in one bit is answered correctly.

    Why: SGLang puts a number in the place of a picture's tokens, `pad_value = hash % (1 <<
    30)`, and RadixAttention matches prefixes on token ids alone. Two pictures with one pad
    value and the same text before them are one prefix. The tokens of the second picture are
    then taken from the cache, so that its own features are never used. By the birthday problem
    38 582 pictures hold such a pair with a chance of one half.
    """

    name = "pad-value-collision"
    engine = "sglang"
    release = "0.5.6"
    affected = AFFECTED
    max_model_len = 4096
    reproducers = (judge.REPRODUCER,)
    key_log_patterns = ("prefill",)
    options = {
        "search": "search a new pair in this run's environment first (half a minute or so)",
        "pair": "PAIR=FOLDER: use the pair that mmrepro collide wrote there",
    }
    sources = (
        SourceRef(
            file="sglang/srt/managers/schedule_batch.py",
            qualname="MultimodalDataItem.set_pad_value",
            note="64 bits of SHA-256 become 30",
            highlight=("% (1 << 30)", "_compute_pad_value(self.hash)"),
        ),
        SourceRef(
            file="sglang/srt/managers/schedule_batch.py",
            qualname="_compute_pad_value",
            note="from about 0.5.9 on: shifted beyond the vocabulary, still 30 bits",
            highlight=("% (1 << 30)",),
        ),
        SourceRef(
            file="sglang/srt/managers/mm_utils.py",
            qualname="data_hash",
            note="what is hashed, and how much of it is kept",
            highlight=("[:8]",),
        ),
    )
    mitigations = (
        Mitigation(
            name=SALT,
            description="send `cache_salt` with each request, another one for each picture",
            effective_on=SpecifierSet(f">={judge.PASSED_ON_SINCE}"),
        ),
        Mitigation(
            name=KEY,
            description="send `extra_key` with each request, another one for each picture",
            effective_on=SpecifierSet(f">={judge.PASSED_ON_SINCE}"),
        ),
        Mitigation(
            name="disable-radix-cache",
            description="no prefix cache at all (costs the prefill of every repeated prompt)",
            server_args=("--disable-radix-cache",),
        ),
        Mitigation(
            name="release",
            description="0.5.23: four pad values of 62 bits each, from the whole digest",
            release="0.5.23",
        ),
    )
    references = (
        Reference(
            id="sglang#2151",
            title="llava use image hash as token, leading to cache bug",
            url="https://github.com/sgl-project/sglang/issues/2151",
            note="the first report; closed by #2256",
        ),
        Reference(
            id="sglang#2256",
            title="Fix hash collision for multi modal models",
            url="https://github.com/sgl-project/sglang/pull/2256",
            note="history",
        ),
        Reference(
            id="sglang#2309",
            title="Fix the padded hash value for image tokens",
            url="https://github.com/sgl-project/sglang/pull/2309",
            note="history",
        ),
        Reference(
            id="sglang#14428",
            title="Modify data_hash to use full SHA-256 digest",
            url="https://github.com/sgl-project/sglang/pull/14428",
            note="says that the collision of pad values remains",
        ),
    )

    def __init__(self) -> None:
        self.pair: dict[str, Picture] = {}

    def expected(self, release: str, mitigations: frozenset[str]) -> tuple[Outcome, str]:
        outcome, why = super().expected(release, mitigations)
        useless = sorted(mitigations & set(FIELDS))
        if outcome is Outcome.REPRODUCED and useless:
            why += (
                f"; its scheduler drops {' and '.join(FIELDS[n] for n in useless)}, which is "
                f"passed on since {judge.PASSED_ON_SINCE}"
            )
        return outcome, why

    # ------------------------------------------------------------------ traffic

    async def gate(self, drive: Drive) -> None:
        folder = await self._pair_folder(drive)
        self.pair = read_pair(folder)
        for name, picture in self.pair.items():
            drive.attach(f"{name}.png", picture.png)
        drive.reproducer_env["MMREPRO_PAIR"] = str(folder)
        if drive.model is not None:
            drive.reproducer_env["MMREPRO_MODEL"] = str(drive.model)
        size = (self.pair["A"].width, self.pair["A"].height)
        await sharing.ask(drive, "gate: warm-up", drive.picture("warm-up", 10, size))
        await sharing.flush(drive)
        await sharing.ask(drive, "gate: another picture", drive.picture("other-1", 11, size))
        await sharing.ask(
            drive, "gate: other picture after another", drive.picture("other-2", 12, size)
        )
        for name in NAMES:
            await sharing.flush(drive)
            await self._ask(drive, f"gate: {name} alone", name)
            await self._ask(drive, f"gate: {name} again", name)
            await sharing.flush(drive)
            await sharing.ask(drive, "gate: another picture", drive.picture("other-1", 11, size))
            await self._ask(drive, f"gate: {name} after others", name)
        await sharing.read_counters(drive)

    async def trigger(self, drive: Drive) -> None:
        for first, second in judge.ORDERS:
            await sharing.flush(drive)
            await self._ask(drive, f"{first} first", first)
            await self._ask(drive, judge.victim_label(first, second), second)
            await self._ask(drive, f"control after {first}", "control")
        await sharing.read_counters(drive)

    async def _ask(self, drive: Drive, label: str, name: str) -> None:
        salts = {field: f"tenant-{name}" for m, field in FIELDS.items() if m in drive.mitigations}
        await sharing.ask(drive, label, self.pair[name], salts)

    async def _pair_folder(self, drive: Drive) -> Path:
        if drive.options.get("pair"):
            return _absolute(drive.options["pair"])
        if "search" in drive.options:
            return await asyncio.to_thread(_search, drive)
        return pad_value_pair()

    # ------------------------------------------------------------------ signature

    def gate_check(self, evidence: Evidence) -> Finding:
        for record in evidence.requests_in("gate"):
            if record.label != sharing.FLUSH and not record.answered:
                why = record.error or f"HTTP {record.status}"
                return Finding.of(False, f"{record.label}: {why}")
        flushed = sharing.flushed(evidence)
        if flushed.truth is not Truth.MET:
            return Finding.of(False, flushed.observed)
        return sharing.different_answers(evidence, *NAMES)

    def conditions(self, facts: RunFacts) -> list[Condition]:
        found = [
            Condition(
                "b-gets-a",
                "symptom",
                "B, sent after A, is answered as A is, token for token, and not as B alone",
                lambda e: judge.wrong_answer(e, "A", "B"),
            ),
            Condition(
                "a-gets-b",
                "symptom",
                "and the other way round: A, sent after B, gets B's answer",
                lambda e: judge.wrong_answer(e, "B", "A"),
            ),
            Condition(
                "silent", "symptom", "both of these answers are HTTP 200, whole", judge.silent
            ),
            Condition(
                "control",
                "symptom",
                "a picture that nearly equals B shares the text before it only, and gets its own "
                "answer",
                judge.control_keeps_to_the_prefix,
            ),
            Condition(
                "kv-reused",
                "cause",
                "the wrong answers took the picture's tokens from the prefix cache",
                judge.kv_reused,
            ),
            Condition(
                "equal-pad-values",
                "cause",
                "the engine's own code gives both pictures one pad value, and different hashes",
                judge.equal_pads,
            ),
            Condition(
                "radix-match",
                "cause",
                "the engine's RadixCache alone matches all of B on A's entry",
                judge.radix_match,
                required=False,
            ),
            Condition(
                "endpoints-green",
                "symptom",
                "/health, /health_generate and /v1/models answer 200",
                checks.endpoints_green,
                required=False,
            ),
        ]
        return [*found, *sharing.stub_conditions(facts)]

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        return judge.healthy_after(evidence)

    # ------------------------------------------------------------------ tables

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        return list(judge.symptom_rows(evidence))

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        return judge.claims(evidence, facts)

    def exhibits(self, evidence: Evidence, facts: RunFacts) -> list[Exhibit]:
        columns: Sequence[tuple[str, str, str]] = (
            ("A alone", "A", "gate: A alone"),
            ("B alone", "B", "gate: B alone"),
            ("B after A", "B", judge.victim_label("A", "B")),
            ("control after A", "control", "control after A"),
        )
        pools = [
            Pool(images=images_for(0.5, judge.BITS), label="one half"),
            Pool(images=judge.REPORTED_POOL, label="the analysis' 50 %"),
            Pool(images=10_000, label="a shop's catalogue"),
            Pool(images=100_000, label="a day of a busy service"),
        ]
        return [
            Exhibit(
                title="The pictures and their answers",
                note="The same text with each, greedy. The model has random weights: an answer is "
                "not sense, but it is the picture's own.",
                shown=[
                    sharing.shown(
                        caption,
                        self.pair[name].png if name in self.pair else b"",
                        f"{name}.png" if name in self.pair else "",
                        evidence,
                        sharing.one(evidence, label),
                        sharing.one(evidence, f"gate: {name} alone"),
                    )
                    for caption, name, label in columns
                ],
            ),
            Exhibit(
                title="How soon two of many pictures collide",
                note="Pictures that one server's prefix cache holds at a time, 30 bits each.",
                birthday=Birthday(bits=judge.BITS, pools=pools),
            ),
        ]


def _absolute(folder: str) -> Path:
    return Path(folder).expanduser().absolute()


def _search(drive: Drive) -> Path:
    """A new pair from this run's own environment; it is kept below evidence/."""
    from mmrepro.collide.interpreter import place_for
    from mmrepro.collide.search import find_pair

    drive.note("searching a pair whose pad values are equal")
    place = place_for("sglang", drive.release, model=drive.model)
    folder = drive.recorder.dir / "pair"
    pair = find_pair(place, folder, bits=judge.BITS)
    drive.note(f"found after {pair.search.images} pictures, {pair.search.search_s:.1f} s")
    return folder


SCENARIO = PadValueCollision()
