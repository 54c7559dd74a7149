"""minivllm: the first bugs of the milestone note as the note met them, before any
request.

The note's engine has its image runner from the start, so what is wrong in its warm-up
ends the server. ``--images-at-start`` does that here; each variant is a fault of
``mm-prefill-contract``."""

from typing import ClassVar

from mmrepro.scenario import (
    Claim,
    Control,
    Drive,
    Evidence,
    FailureClass,
    Finding,
    LiveFacts,
    Logs,
    Missing,
    Severity,
    answered,
    cause,
    claim,
    precondition,
    row,
    symptom,
    with_variants,
)
from mmrepro.scenario.minivllm import MinivllmFault, Switched, put_right
from mmrepro.scenario.more import Row, answered_alike
from mmrepro.scenarios.mm_prefill_contract import (
    BrokenModule,
    ImagePath,
    PrefillContract,
    WarmUpOrder,
    WarmUpSequence,
)

_STARTED = ("text", "image", "image, streamed")
_CONTROLS = tuple(f"control: {what}" for what in _STARTED)


def _never_ready(evidence: Evidence) -> Finding:
    """The run's own server ended before it answered anything. A live one has not."""
    if evidence.never_ready:
        return Finding.of(True, evidence.never_ready)
    answered = sum(r.answered for r in evidence.requests_in("gate", "trigger"))
    if not answered:
        raise Missing("no server was seen to start, nor to end as it did")
    return Finding.of(False, f"it started, and answered {answered} requests")


class AtStart(MinivllmFault):
    """The server itself does not start; with that place put right it does, and answers
    images.

    ``of``: the variant of ``mm-prefill-contract`` whose fault it is.
    """

    of: ClassVar[type[PrefillContract]]
    bug: ClassVar[int]
    reason: ClassVar[str]
    name = "mm-prefill-at-start"
    failure_class, severity = FailureClass.START_FAILURE, Severity.MEDIUM
    fails_at_start = True
    server = f"{PrefillContract.server} --images-at-start"
    references = PrefillContract.references
    key_log_patterns = ("note-error", "cannot-start")
    gate_images = ("gate: an image",)

    def __init_subclass__(cls) -> None:
        of = cls.of
        cls.variant, cls.bug, cls.reason = of.variant, of.bug, of.reason
        super().__init_subclass__()
        cls.origin = f"milestone note, bug {of.bug}"
        cls.log_patterns = {
            **of.log_patterns,
            "made-at-start": "the image runner is made as the engine starts",
            "cannot-start": "minivllm cannot start",
        }
        fix = f"--fix {of.variant}"
        cls.control_server = Control(f"the same with {fix}", tuple(fix.split()))

    async def control(self, drive: Drive) -> None:
        text, image, streamed = _CONTROLS
        picture = drive.picture("X", 1)
        await drive.chat(text, text="hello")
        await drive.chat(image, images=[picture])
        await drive.chat(streamed, images=[picture], stream=True)

    async def trigger(self, drive: Drive) -> None:
        """Where it started all the same."""
        text, image, streamed = _STARTED
        picture = drive.picture("X", 1)
        await drive.ask(image, image=picture)
        await drive.ask(streamed, image=picture, stream=True)
        await drive.ask(text)

    def gate_check(self, evidence: Evidence) -> Finding:
        """The control server answered, and so did the run's own where it came up."""
        asked = evidence.requests_in("control", "gate")
        if bad := next((r for r in asked if not r.answered), None):
            return Finding.of(False, f"{bad.label}: {bad.reply}")
        labels = [r.label for r in asked if r.phase == "control"]
        return Finding.of(
            labels == [*_CONTROLS], f"{', '.join(labels) or 'nothing'}: answered"
        )

    def exposure(self, facts: LiveFacts) -> Finding:
        return Finding.of(False, "a server that can be looked at has started")

    @precondition("the image runner is made as the server starts")
    def made_at_start(self, logs: Logs) -> Finding:
        count = logs.count("made-at-start")
        return Finding.of(count == 1, f"{count} × in the log that it is made then")

    symptoms = (
        symptom(
            "the server ends as it starts, and answers nothing", _never_ready, live=True
        ),
    )

    @cause(
        (
            "the log holds the error of the note's bug {bug}, {reason}, once; the "
            "server ends with 1"
        ),
        live=True,
    )
    def error_raised_there(self, logs: Logs) -> Finding:
        ended, code = logs.count("cannot-start"), logs.evidence.engine_exit
        errors, *frames = (logs.count(pattern) for pattern in self.of.log_patterns)
        raised = errors == ended == code == 1 and min(frames) >= 1
        places = zip(frames, self.of.frames, strict=True)
        listed = ", ".join(f"{count} × {place}" for count, place in places)
        return Finding.of(
            raised,
            f"in the log: {errors} × the error, {listed}, {ended} × that it cannot "
            f"start; it ended with {code}",
        )

    works_after = (answered(*_STARTED), answered_alike(*_STARTED[1:]))
    rows: ClassVar[tuple[Row, ...]] = (row("the start", _never_ready, "ready"),)
    claims: ClassVar[tuple[Claim, ...]] = (
        claim(
            "at-start",
            (
                "minivllm's own fault {variant} shows as the engine starts, as the "
                "note's did"
            ),
            "{origin}",
            by=("symptom", "cause"),
            given=(Switched.fault_said, "arrived"),
        ),
        put_right("minivllm starts, and answers images, with that place put right"),
    )


class SequenceAtStart(AtStart):
    """Warm-up builds plain Sequences: the engine does not start.

    What: The server ends in its warm-up prefill: ImageRunner expects ImageSequence, got
        Sequence.

    Why: The image runner inherits the warm-up, which builds the base class's Sequence.
    """

    of = WarmUpSequence


class OrderAtStart(AtStart):
    """The base initialiser warms up too early: the engine does not start.

    What: The server ends in its warm-up: forward() got an unexpected keyword argument.

    Why: A base class whose initialiser already runs the model runs it before the
    derived class had its turn."""

    of = WarmUpOrder


class ModuleAtStart(AtStart):
    """A broken edit of the fake vision module: the engine does not start.

    What: The server ends in a SyntaxError as it imports the module.

    Why: An edit left the module invalid, and an engine that has images from the start
    imports it."""

    of = BrokenModule


class PathAtStart(AtStart):
    """The configured image does not exist: the engine does not start.

    What: The server ends in FileNotFoundError: assets/warm-up.png is no file.

    Why: A path from a demo's configuration is relative to wherever the engine was
    started."""

    of = ImagePath


SCENARIO = with_variants(
    SequenceAtStart(), OrderAtStart(), ModuleAtStart(), PathAtStart()
)
