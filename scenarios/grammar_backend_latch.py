"""vLLM: a grammar that another backend was chosen for ends the engine."""

from mmrepro.reproducers.grammar_backends import FIRST, SECOND
from mmrepro.scenario import (
    Drive,
    FailureClass,
    Finding,
    Outcome,
    Reproducers,
    Severity,
    Upstream,
    UpstreamState,
    claim,
    cure,
    issue,
    precondition,
    quote,
    upgrade,
    vllm_killed as killed,
)
from mmrepro.scenario.more import crash

REPRODUCER = "grammar_backends.py"
REPORT = issue(
    "vllm#43920",
    "V1 structured outputs: a malformed grammar request after a valid one crashes EngineCore",
)


class GrammarBackendLatch(killed.KilledByRequest):
    """A structured output that the first one's backend cannot parse ends the engine.

    What: A request with a plain regular expression is answered. A later one, with an expression
    that xgrammar refuses and guidance takes, gets HTTP 500: EngineCore is dead, and the server
    ends some seconds later. Sent first, to a fresh server, the second one is answered.

    Why: With the backend `auto` each request is validated by itself and given the backend that
    can parse it. EngineCore makes one backend, of the first request with a grammar, and keeps it:
    what was validated for guidance is compiled by xgrammar. The compiler's exception comes out of
    a future in the middle of the scheduler's step, where nothing catches it.
    """

    name = "grammar-backend-latch"
    release, affected = "0.23.0", ">=0.14.0,<0.26.0"
    failure_class, severity = FailureClass.ENGINE_DEATH, Severity.CRITICAL
    upstream = Upstream(UpstreamState.OPEN, REPORT, "2026-11-24", note="from 0.26.0 on no death")
    references = (REPORT,)
    refusal, died_of = r"grammar|regex", "the grammar compiler's"
    log_patterns = killed.of_the_killer(
        sent=r"Received request .*regex='\(\?i\)abc'",
        raised=r"RuntimeError: .*(?:regex_converter|grammar_parser)\.cc:\d+: ",
        through=r"structured_output/request\.py\"?, line \d+, in _check_grammar_completion",
    )
    sources = (
        quote(
            "vllm/v1/structured_output/__init__.py",
            "StructuredOutputManager.grammar_init",
            "the first request's backend is everybody's",
            "if self.backend is None",
        ),
        quote(
            "vllm/v1/structured_output/request.py",
            "StructuredOutputRequest._check_grammar_completion",
            "what the compiler raised is raised here, inside the scheduler's step",
            "self._grammar.result",
        ),
    )
    mitigations = (
        upgrade("0.26.0", "upgrade to 0.26.0: only the request itself gets HTTP 500"),
        cure(
            "one-backend",
            """--structured-outputs-config '{"backend":"guidance"}'""",
            "name one backend: requests are validated for the one that compiles them",
        ),
    )

    reproducers = (REPRODUCER,)

    def expected(self, release: str, mitigations: frozenset[str]) -> tuple[Outcome, str]:
        outcome, why = super().expected(release, mitigations)
        if outcome is Outcome.NOT_REPRODUCED and not mitigations:
            outcome = Outcome.DIFFERENT_FAILURE
            why = f"by {release} the engine lives on; the latch is there: the request gets HTTP 500"
        return outcome, why

    @precondition("xgrammar takes the first expression and not the second one; guidance takes both")
    def two_backends(self, reproducers: Reproducers) -> Finding:
        """Other releases of xgrammar read other expressions: without this there is no trigger."""
        first, second, other = (
            reproducers.truth(REPRODUCER, fact)
            for fact in ("xgrammar_takes_first", "xgrammar_takes_second", "guidance_takes_second")
        )
        text = f"xgrammar: {FIRST} {first}, {SECOND} {second}; guidance: {SECOND} {other}"
        return Finding.of(first and not second and other, text)

    async def trigger(self, drive: Drive) -> None:
        await drive.ask(killed.CONTROL, extra={"structured_outputs": {"regex": FIRST}})
        await drive.ask(killed.KILLER, extra={"structured_outputs": {"regex": SECOND}})
        await crash.watch(drive)

    claims = (
        claim(
            "latched",
            "the backend of the first request compiles the grammars of all later ones",
            REPORT,
            by=("first-error", "control-answered"),
            given="arrived",
            refutable_on=affected,
        ),
        claim("escapes", "the exception comes out of the future inside the scheduler's step",
              REPORT, by=killed.THROUGH, given=("arrived", "first-error")),
        claim("dead", "EngineCore is dead, and later requests fail", REPORT, by="symptom",
              given="arrived", refutable_on=affected),
    )  # fmt: skip


SCENARIO = GrammarBackendLatch()
