"""minivllm: the multimodal prefill contract, broken in the six ways of the note that drew the map.

An image is a prefix of embeddings in front of the text, in prefill only. Each variant switches one
of the note's bugs on in the engine of ``reproducers/minivllm`` and looks for its symptom, over
HTTP, and for its reason, in the engine's log.
"""

from __future__ import annotations

import re
import shlex
from typing import ClassVar

from mmrepro.engines.minivllm import MinivllmEngine
from mmrepro.evidence import Evidence, RequestRecord
from mmrepro.incident import ClaimResult, Reference, SymptomRow
from mmrepro.models import TinyQwen3
from mmrepro.scenario import LiveFacts, Mitigation, RunFacts, Scenario, with_variants
from mmrepro.scenario.hypotheses import hypothesis
from mmrepro.signature import Condition, Finding, Truth, checks
from mmrepro.signature import live_server as live
from mmrepro.traffic.drive import Drive

BLOCK_SIZE = 16
MODEL = TinyQwen3()
WHOLE = "image X, whole blocks"
ODD = "image Y, 6 embeddings"
ODD_GRID = (3, 2)
"""Columns and rows of embeddings: six do not fill a block, so that the last block's tokens are not
those of the text alone."""

TEXTS = ("gate: text only", "control: text only")
QUESTION = "hello"

NOTE = Reference(
    id="Minivllm-Learn",
    title="Milestone note 1: multimodal prefill in a text-only engine, bug by bug",
    url="https://github.com/MDX-0003/Minivllm-Learn",
    note="MileStone-note1.md; its bugs 1 to 6 are the six variants",
)
BASE = Reference(
    id="MinivLLM",
    title="The text-only teaching engine that the note extends",
    url="https://github.com/Wenyueh/MinivLLM",
    note="the assertion is that of src/myvllm/layers/attention.py",
)


def images_sent(evidence: Evidence) -> list[RequestRecord]:
    return [r for r in evidence.requests_in("trigger") if r.images]


def switched_on(fault: str, facts: LiveFacts, otherwise: Finding) -> Finding:
    """Exposure of minivllm to one of its faults: the switch is what a release is elsewhere.

    Args:
        otherwise: what engine, release and mitigations say already.
    """
    if otherwise.truth is not Truth.MET:
        return otherwise
    if not facts.command:
        return Finding.unknown("the command line, where the fault would stand, cannot be seen")
    on = any(facts.has(words) for words in (("--fault", fault), (f"--fault={fault}",)))
    return Finding.of(on, f"the server runs with{'' if on else 'out'} --fault {fault}")


class PrefillContract(Scenario):
    """What the variants share: server, traffic, verdict. A variant names its error and frames."""

    name = "mm-prefill-contract"
    engine = "minivllm"
    release = "0.1"
    affected = ">=0.1"
    model = MODEL
    references = (NOTE, BASE)
    error: ClassVar[str]
    """What the engine says, as a regular expression."""
    frames: ClassVar[tuple[str, ...]]
    """Places that the traceback goes through; a place is 'file.py", line N, in function'."""
    reason: ClassVar[str]
    """What the frames show, in words."""
    bug: ClassVar[int]
    """Its number in the note."""
    failing = (WHOLE, ODD, WHOLE + ", streamed")
    """Requests that fail; other images are answered."""
    key_log_patterns = ("note-error", "contract-violated")

    def __init_subclass__(cls) -> None:
        """What follows from a variant's name, error and frames."""
        super().__init_subclass__()
        cls.server = shlex.join(
            (
                *("--fault", cls.variant, "--vision", "fake", "--check-contract=log"),
                *("--block-size", str(BLOCK_SIZE), "--no-prefix-caching"),
            )
        )
        what = "the code as it should be, in the one place that was wrong"
        cls.mitigations = (Mitigation("fix", what, server_args=("--fix", cls.variant)),)
        frames = {f"frame-{i}": frame for i, frame in enumerate(cls.frames)}
        cls.log_patterns = {"note-error": cls.error, **frames}

    # ------------------------------------------------------------------ traffic

    async def gate(self, drive: Drive) -> None:
        """What the engine did before it was given images."""
        await drive.chat(TEXTS[0], text=QUESTION)
        await drive.chat(TEXTS[0] + ", streamed", text=QUESTION, stream=True)

    async def trigger(self, drive: Drive) -> None:
        whole = drive.picture("X", 1)
        odd = drive.picture("Y", 2, (28 * ODD_GRID[0], 28 * ODD_GRID[1]))
        await drive.unless_stuck(drive.chat(WHOLE, images=[whole]))
        await drive.unless_stuck(drive.chat(ODD, images=[odd]))
        await drive.unless_stuck(drive.chat(WHOLE + ", streamed", images=[whole], stream=True))
        await drive.unless_stuck(drive.chat(TEXTS[1], text=QUESTION))

    # ------------------------------------------------------------------ signature

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            Condition(
                "image-500",
                "symptom",
                f"a request with an image gets HTTP 500 and the error of the note's bug {self.bug}",
                self._images_fail,
            ),
            Condition(
                "text-undisturbed",
                "symptom",
                "text alone is answered before and after, with the same tokens",
                self._text_alike,
            ),
            Condition(
                "endpoints-green",
                "symptom",
                "/health and /v1/models answer 200",
                checks.endpoints_green,
            ),
            Condition(
                "error-raised-there",
                "cause",
                f"each failed request has that error once in the log, {self.reason}",
                self._raised_there,
            ),
        ]

    def live_conditions(self, facts: LiveFacts) -> list[Condition]:
        return [
            *live.some_requests_fail(MinivllmEngine.metrics, MinivllmEngine.core_role),
            Condition(
                "error-raised-there",
                "cause",
                f"the log holds the error of the note's bug {self.bug}, {self.reason}",
                self._logged_there,
            ),
        ]

    def exposure(self, facts: LiveFacts) -> Finding:
        return switched_on(self.variant, facts, super().exposure(facts))

    def _logged_there(self, evidence: Evidence) -> Finding:
        names = ("note-error", *(f"frame-{i}" for i in range(len(self.frames))))
        counts = [checks.log_count(evidence, name) for name in names]
        if None in counts:
            return Finding.unknown(evidence.why_missing("logs", "check"))
        said = f"{counts[0]} × the error, its frames {counts[1:]} times"
        return Finding.of(all(counts), said, *checks.log_files(evidence))

    def healthy_after(self, evidence: Evidence, facts: RunFacts) -> Finding:
        sent = images_sent(evidence)
        bad = [r for r in sent if not r.answered]
        if bad:
            return Finding.of(False, f"{bad[0].label}: {bad[0].status} {bad[0].error[:160]}")
        if len(sent) < 3:
            return Finding.unknown(f"{len(sent)} of 3 requests with an image were sent")
        texts = {r.text for r in evidence.labelled(WHOLE) + evidence.labelled(WHOLE + ",")}
        if len(texts) != 1:
            return Finding.of(False, f"image X was answered in {len(texts)} ways: {sorted(texts)}")
        return self._text_alike(evidence)

    def symptom_rows(self, evidence: Evidence, facts: RunFacts) -> list[SymptomRow]:
        rows = []
        for label in dict.fromkeys(r.label for r in images_sent(evidence)):
            record = next(r for r in images_sent(evidence) if r.label == label)
            said = "200" if record.answered else f"{record.status} {_message(record)}"
            rows.append(
                SymptomRow(check=label, healthy="200", observed=said, abnormal=not record.answered)
            )
        text = self._text_alike(evidence)
        green = checks.endpoints_green(evidence)
        for check, found in (("text alone", text), ("/health, /v1/models", green)):
            abnormal = None if found.truth is Truth.UNKNOWN else found.truth is Truth.NOT_MET
            rows.append(
                SymptomRow(check=check, healthy="200", observed=found.observed, abnormal=abnormal)
            )
        return rows

    def claim_results(self, evidence: Evidence, facts: RunFacts) -> list[ClaimResult]:
        source = f"milestone note, bug {self.bug}"
        raised = self._raised_there(evidence)
        if not images_sent(evidence) or "fix" in facts.mitigations:
            raised = Finding.unknown("this run is of the code without the bug")
        fixed = Finding.unknown(f"to test: {self.command} --mitigation fix")
        if "fix" in facts.mitigations and images_sent(evidence):
            fixed = self.healthy_after(evidence, facts)
        text = self._text_alike(evidence)
        return [
            hypothesis("root-cause", f"the error comes {self.reason}", source, raised),
            hypothesis("decode-undisturbed", "text and decode are as they were", source, text),
            hypothesis("fixed", "images are answered with that place put right", source, fixed),
        ]

    @property
    def command(self) -> str:
        return f"mmrepro run {self.name} --variant {self.variant}"

    # ------------------------------------------------------------------ checks

    def _images_fail(self, evidence: Evidence) -> Finding:
        expected = [r for r in images_sent(evidence) if r.label in self.failing]
        others = [r for r in images_sent(evidence) if r.label not in self.failing]
        if len(expected) < len(self.failing):
            return Finding.unknown(f"{len(expected)} of {len(self.failing)} were sent")
        said = "; ".join(f"{r.label}: {r.status} {_message(r)}" for r in (*expected, *others))
        failed = all(r.status == 500 and re.search(self.error, r.error) for r in expected)
        return Finding.of(failed and all(r.answered for r in others), said)

    def _text_alike(self, evidence: Evidence) -> Finding:
        before, after = (evidence.labelled(label) for label in TEXTS)
        before += evidence.labelled(TEXTS[0] + ",")
        if not before or not after:
            return Finding.unknown(f"text alone was sent {len(before)} times before the images, "
                                   f"{len(after)} times after")  # fmt: skip
        bad = [r for r in (*before, *after) if not r.answered]
        if bad:
            return Finding.of(False, f"{bad[0].label}: {bad[0].status} {bad[0].error[:120]}")
        texts = {r.text for r in (*before, *after)}
        counted = f"{len(before)} answers before the images, {len(after)} after"
        said = "all alike" if len(texts) == 1 else f"{len(texts)} different texts: {sorted(texts)}"
        return Finding.of(len(texts) == 1, f"{counted}: {said}")

    def _raised_there(self, evidence: Evidence) -> Finding:
        names = ("note-error", *(f"frame-{i}" for i in range(len(self.frames))))
        counts = {name: checks.log_count(evidence, name) for name in names}
        if any(count is None for count in counts.values()):
            return Finding.unknown(evidence.why_missing("logs", "check"))
        failed = [r for r in images_sent(evidence) if r.status == 500]
        lines = [line for name in names for line in checks.log_lines(evidence, name)[:1]]
        said = f"{len(failed)} failed requests; " + ", ".join(
            f"{counts[name]} × {shown}"
            for name, shown in zip(names, ("the error", *map(_place, self.frames)), strict=True)
        )
        if lines:
            said += f"; first: {lines[0].text[:120]}"
        # At least once a frame: some places are gone through twice in one traceback.
        met = bool(failed) and counts["note-error"] == len(failed)
        met &= all((counts[name] or 0) >= len(failed) for name in names)
        return Finding.of(met, said, *checks.log_files(evidence))


def _place(frame: str) -> str:
    """A frame's pattern as people write it: images.py:warm_up."""
    file, _, function = frame.replace("\\", "").partition('"')
    return ":".join([file, *([function.rpartition(" in ")[2]] if " in " in function else [])])


def _message(record: RequestRecord) -> str:
    found = re.search(r'"message": "((?:[^"\\]|\\.)*)"', record.error)
    return (found[1] if found else record.error)[:160]


def place(file: str, function: str) -> str:
    """A frame of a traceback."""
    return rf'{re.escape(file)}", line \d+, in {function}'


class SlotMapping(PrefillContract):
    """The slot mapping comes out short when an image stands before the text.

    What: Images whose embeddings do not fill whole blocks end in 'Slot mapping size must match
    number of tokens'; images that do, and text, are answered.

    Why: The sequence counts T_vis + T_text tokens, its blocks follow that, but the number of
    tokens in the last block is still derived from the text ids alone. slot_mapping lacks the
    difference, and storing keys and values refuses. When T_vis is a multiple of the block size
    both numbers agree, which is why 64 embeddings in blocks of 16 go through.
    """

    variant = "slot-mapping"
    bug = 6
    error = r"AssertionError: Slot mapping size must match number of tokens"
    frames = (place("model.py", "store"),)
    reason = "raised where keys and values are stored"
    failing = (ODD,)

    async def gate(self, drive: Drive) -> None:
        await super().gate(drive)
        picture = drive.picture("gate", 3)
        await drive.chat("gate: image of whole blocks", images=[picture])

    def conditions(self, facts: RunFacts) -> list[Condition]:
        return [
            *super().conditions(facts),
            Condition(
                "short-by-the-last-block",
                "cause",
                "slot_mapping is short by exactly what the last block has more tokens than it "
                "would have of the text alone",
                self._short_by_the_last_block,
            ),
        ]

    def _short_by_the_last_block(self, evidence: Evidence) -> Finding:
        lines = checks.log_lines(evidence, "contract-violated")
        if checks.log_count(evidence, "contract-violated") is None:
            return Finding.unknown(evidence.why_missing("logs", "check"))
        found = [m for line in lines if (m := SLOT_COUNT.search(line.text))]
        if not found:
            return Finding.of(False, "the contract checker counted no missing slot")
        slots, tokens = int(found[0][1]), int(found[0][2])
        text = tokens - ODD_GRID[0] * ODD_GRID[1]
        lacking = last_block(tokens) - last_block(text)
        said = (
            f"{slots} slots for {tokens} tokens; the last block has {last_block(tokens)} tokens, "
            f"of the {text} text ids alone it would have {last_block(text)}"
        )
        return Finding.of(lacking > 0 and tokens - slots == lacking, said)


SLOT_COUNT = re.compile(r"slot-count: slot_mapping has (\d+) entries for (\d+) tokens")


def last_block(tokens: int) -> int:
    """Tokens in the last block of ``tokens``."""
    return (tokens - 1) % BLOCK_SIZE + 1


class WarmUpSequence(PrefillContract):
    """Warm-up builds plain Sequences where ImageSequences are expected.

    What: The image runner cannot be made: its warm-up prefill gets a Sequence. Text is served.

    Why: The image runner inherits the warm-up, which builds the base class's Sequence; its own
    prefill needs what only an ImageSequence has. Overriding the prefill alone is not enough.
    """

    variant = "warmup-sequence"
    bug = 1
    error = r"TypeError: ImageRunner expects ImageSequence, got Sequence"
    frames = (place("images.py", "warm_up"),)
    reason = "raised from the image runner's warm-up"


class WarmUpOrder(PrefillContract):
    """The base initialiser warms up before the model takes inputs_embeds.

    What: forward() got an unexpected keyword argument 'inputs_embeds', while the image runner
    is made. Text is served.

    Why: A base class whose initialiser already runs the model runs it before the derived class
    had its turn: the model is still the text-only one.
    """

    variant = "warmup-order"
    bug = 2
    error = r"TypeError: \S*forward\(\) got an unexpected keyword argument 'inputs_"
    frames = (
        place("runner.py", "__init__"),
        place("images.py", "warm_up"),
    )
    reason = "raised from the warm-up that the base initialiser starts"


class BrokenModule(PrefillContract):
    """A broken edit of the fake vision module: a syntax error at import.

    What: The fake vision module cannot be imported. Text is served.

    Why: An edit left the module invalid. Nothing imports it before the first image comes, so
    the engine starts and looks healthy.
    """

    variant = "broken-module"
    bug = 3
    error = r"SyntaxError: "
    frames = (
        r'fake_vision\.py", line \d+$',  # the file that does not parse, named without a function
        place("images.py", "load_vision"),
    )
    reason = "raised while the vision module is imported"


class ImagePath(PrefillContract):
    """The configured image path does not exist.

    What: The warm-up image is read from a relative path that was never installed. Text is
    served.

    Why: A path from a demo's configuration is relative to wherever the engine was started. The
    request's own image has nothing to do with it.
    """

    variant = "image-path"
    bug = 4
    error = r"FileNotFoundError: \[Errno 2\] No such file or directory: 'assets/"
    frames = (place("images.py", "_warm_up_picture"),)
    reason = "raised where the warm-up image is read"


class PinnedPlaceholder(PrefillContract):
    """The placeholder of the token ids is pinned, though it is no CPU tensor.

    What: 'only dense CPU tensors can be pinned'. Text is served.

    Why: Beside inputs_embeds the model is given ids that nobody reads; only their number
    counts. They are made on the device and then pinned, which is for tensors in host memory.
    Without a GPU the device is torch's 'meta', and torch words the refusal for that.
    """

    variant = "pinned-placeholder"
    bug = 5
    error = r"RuntimeError: .*(?i:only dense CPU tensors can be pinned)"
    frames = (place("images.py", "_placeholder"),)
    reason = "raised where the placeholder is made"


SCENARIO = with_variants(
    SlotMapping(),
    WarmUpSequence(),
    WarmUpOrder(),
    BrokenModule(),
    ImagePath(),
    PinnedPlaceholder(),
)
