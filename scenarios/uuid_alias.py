"""vLLM: the uuid that a client gives a picture is the whole key of every cache: a hazard."""

from collections.abc import Mapping

from mmrepro.scenario import (
    Check,
    Drive,
    Evidence,
    FailureClass,
    Finding,
    LiveFacts,
    Measured,
    Scenario,
    Severity,
    Truth,
    Upstream,
    UpstreamState,
    cause,
    claim,
    cure,
    issue,
    precondition,
    quote,
    symptom,
)
from mmrepro.scenario.more import ComparedAnswers, Condition, Failure, Picture
from mmrepro.scenario.silent import as_in_a_run, may_show, under_anothers_uuid

TEXT, TOKENS = "what is this", 12
SHARED, OWN = "picture-1", "picture-2"
"""Names that a client gives: the first to both pictures."""
X_SHARED, Y_SHARED, Y_OWN = "X as picture-1", "Y as picture-1", "Y as picture-2"
HITS = "vllm:mm_cache_hits_total"
REPORT = issue(
    "vllm#55547",
    "Client-supplied mm uuid is the sole cache key with no content binding",
    "open; docs/features/multimodal_inputs.md says that the caller has to keep them unique",
)
TENANTS = issue("vllm#53582", "uuids of one client meet those of another")


def is_of(label: str, picture: str) -> Check:
    """The request was answered as ``picture`` alone was, token by token."""

    def whose(answers: ComparedAnswers) -> Finding:
        found = answers.whose(label, "X", "Y")
        return Finding.of(found == picture, f"{label}: the answer of {found or 'neither'}")

    return whose


def known_again(answers: ComparedAnswers) -> Finding:
    cached = [answers.to(f"gate: {name} again").cached_tokens or 0 for name in ("X", "Y")]
    return Finding.of(all(cached), f"prompt tokens from the prefix cache: {cached}")


class UuidAlias(Scenario):
    """A picture under another one's uuid is answered as that other one: a documented hazard.

    What: A client may name a picture (`uuid`), to spare the hashing. Two pictures under one name
    are one: the second is answered as the first, word for word, with HTTP 200. Under a name of its
    own it is not. Names are shared by all clients of a server.

    Why: The name takes the place of the hash of the content, and nothing holds it against the
    content. The processor's cache, the encoder's and the prefix cache all go by it. The
    documentation says so: names have to be unique for different media.
    """

    name = "uuid-alias"
    release, affected = "0.23.0", ">=0.14.0"
    failure_class, severity = FailureClass.WRONG_ANSWERS, Severity.HIGH
    upstream = Upstream(UpstreamState.DOCUMENTED, REPORT, "2026-11-24")
    references = (REPORT, TENANTS)
    server = (
        "--max-num-seqs 8 --enable-prefix-caching --enable-prompt-tokens-details "
        """--limit-mm-per-prompt '{"image":1,"video":0}'"""
    )
    sources = (
        quote(
            "vllm/multimodal/processing/inputs.py",
            "ProcessorInputs.get_mm_hashes",
            "the client's name is taken as the hash, as it is",
            "hashes.append(uuid_item)",
        ),
    )
    mitigations = (
        cure(
            "no-caches",
            "--mm-processor-cache-gb 0 --no-enable-prefix-caching",
            "turn both caches off: then each request gets names of its own (costs all reuse)",
        ),
    )

    async def gate(self, drive: Drive) -> None:
        await drive.chat("gate: text only", text="hello")
        for name, picture in self.pictures(drive).items():
            for kind in ("alone", "again"):
                await self.ask(drive, f"gate: {name} {kind}", picture)

    def pictures(self, drive: Drive) -> Mapping[str, Picture]:
        return {"X": drive.picture("X", 11), "Y": drive.picture("Y", 12)}

    async def ask(self, drive: Drive, label: str, picture: Picture, uuid: str = "") -> None:
        """A picture before a text, by its content or by ``uuid``, with logprobs."""
        shown = {"type": "image_url", "image_url": {"url": picture.data_url}}
        content = [{**shown, **({"uuid": uuid} if uuid else {})}, {"type": "text", "text": TEXT}]
        asked = {"messages": [{"role": "user", "content": content}]}
        extra = {"logprobs": True, "top_logprobs": 1, **asked}
        await drive.ask(label, images=[picture], text=TEXT, max_tokens=TOKENS, extra=extra)

    async def trigger(self, drive: Drive) -> None:
        x, y = self.pictures(drive).values()
        await self.ask(drive, X_SHARED, x, SHARED)
        for label, uuid in ((Y_SHARED, SHARED), (Y_OWN, OWN)):
            # The API server counts a request's lookups when the engine's next output arrives.
            before = await drive.metric(HITS)
            await self.ask(drive, label, y, uuid)
            await drive.ask(f"{label}: a text after it")
            after = await drive.metric(HITS)
            known = before is not None and after is not None
            drive.fact(f"hits: {label}", (after or 0) - (before or 0) if known else None)

    def gate_check(self, evidence: Evidence) -> Finding:
        answered = super().gate_check(evidence)
        if answered.truth is not Truth.MET:
            return answered
        return ComparedAnswers(evidence).differ("X", "Y")

    preconditions = (
        precondition(
            "the first picture under the name gets its own answer", is_of(X_SHARED, "X"), id="own"
        ),
        precondition(
            "a picture sent again by its content is known from the caches",
            known_again,
            id="caches-on",
            removed_by=("no-caches",),
        ),
    )
    symptoms = (
        symptom(
            "the second picture under that name is answered as the first, word for word",
            is_of(Y_SHARED, "X"),
            id="answered-as-the-first",
        ),
        symptom(
            "under a name of its own it is answered as itself",
            is_of(Y_OWN, "Y"),
            id="own-name-own-answer",
            abnormal=False,
        ),
    )

    @cause(
        "the processor's cache finds the second picture under the first one's name, where it was "
        "never sent, and finds nothing under a new one"
    )
    def found_by_name(self, measured: Measured) -> Finding:
        shared, own = (measured.number(f"hits: {label}") for label in (Y_SHARED, Y_OWN))
        return Finding.of(shared == 1 and own == 0, f"hits: {shared:g} and {own:g}")

    @cause("the prefix cache gives the second picture more tokens than the text before it")
    def prefix_by_name(self, answers: ComparedAnswers) -> Finding:
        """A whole block and more holds the picture, which under a new name is not found."""
        shared, own = (answers.to(label).cached_tokens or 0 for label in (Y_SHARED, Y_OWN))
        return Finding.of(shared > own, f"{shared} prompt tokens; under a new name {own}")

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return as_in_a_run(self, facts)

    def recognises(self, failure: Failure) -> Finding:
        able = may_show(self, failure)
        return under_anothers_uuid(failure) if able.truth is Truth.MET else able

    works_after = (is_of(X_SHARED, "X"), is_of(Y_SHARED, "Y"), is_of(Y_OWN, "Y"))
    claims = (
        claim("sole-key", "the uuid is the sole cache key, with no binding to the content", REPORT,
              by=("found-by-name", "prefix-by-name"), given="arrived"),
        claim("stale", "with as many tokens the second picture silently gets the first's answer",
              REPORT, by="answered-as-the-first", given="arrived"),
    )  # fmt: skip


SCENARIO = UuidAlias()
