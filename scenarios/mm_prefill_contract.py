"""minivllm: the multimodal prefill contract, broken in the six ways of the note that
drew the map.

An image is a prefix of embeddings in front of the text, in prefill only. Each variant
switches one of the note's bugs on in the engine of ``reproducers/minivllm`` and looks
for its symptom, over HTTP, and for its reason, in the engine's log."""

import re
from typing import ClassVar

from mmrepro.scenario import (
    Check,
    Claim,
    Drive,
    Factor,
    FailureClass,
    Finding,
    Logs,
    Metrics,
    Reference,
    Requests,
    Severity,
    answered,
    cause,
    claim,
    endpoints_green,
    minivllm as mini,
    precondition,
    row,
    some_requests_fail,
    symptom,
    with_variants,
)
from mmrepro.scenario.minivllm import counted, told
from mmrepro.scenario.more import answered_alike, changed

TEXTS = ("gate: text only", "gate: text only, streamed", "control: text only")
WHOLE, ODD = "image X, whole blocks", "image Y, 6 embeddings"
STREAMED = WHOLE + ", streamed"
IMAGES = (WHOLE, ODD, STREAMED)
NOTE_WORDS = "RuntimeError: Only dense CPU tensors can be pinned"
_ODD_GRID = (3, 2)
"""Columns and rows of embeddings: six do not fill a block, so that the last block's
tokens are not those of the text alone."""


_LAST_BLOCK, _IDS = "last-block", "placeholder-ids"
"""Factors: the two halves of the note's fix of bug 6."""


def _decodes_by_graph(logs: Logs) -> Finding:
    """Where graphs are captured, each decode of so many sequences replays one
    (runner.py)."""
    captured = logs.lines("decode-graphs")
    if not captured:
        return Finding.unknown("no graph was captured")
    return Finding.of(True, captured[0].text)


def _ids_beside(count: str) -> Check:
    """The engine says how many token ids stand beside inputs_embeds."""

    def said(logs: Logs) -> Finding:
        ids = [
            match[1]
            for match in logs.search("placeholder-ids", r"placeholder ids: (\w+)")
        ]
        if not ids:
            return Finding.unknown(
                "the log does not tell how many placeholder ids there are"
            )
        return Finding.of(set(ids) == {count}, f"placeholder ids: {', '.join(ids)}")

    return said


def _all_stored(requests: Requests, logs: Logs) -> Finding:
    """Each image is answered; unknown where one fails of anything but the note's
    error."""
    errors = logs.count("note-error")
    if errors:
        return Finding.of(False, f"{errors} × the note's error in the log")
    sent = [requests.first(label) for label in IMAGES]
    observed = "; ".join(f"{request.label}: {request.reply}" for request in sent)
    if all(request.answered for request in sent):
        return Finding.of(True, observed)
    return Finding.unknown(observed)


class PrefillContract(mini.MinivllmFault):
    """A variant has its number in the note (``bug``), its ``error`` (a regular
    expression) and the ``frames`` of the traceback, which show the ``reason``. Images
    that are not ``failing`` are answered."""

    name = "mm-prefill-contract"
    failure_class, severity = FailureClass.REQUESTS_FAIL, Severity.MEDIUM
    needs = ("images",)
    server = "--check-contract=log --no-prefix-caching"
    references = (
        Reference(
            id="Minivllm-Learn",
            title=(
                "Milestone note 1: multimodal prefill in a text-only engine, bug by bug"
            ),
            url="https://github.com/MDX-0003/Minivllm-Learn",
            note="MileStone-note1.md; its bugs 1 to 6 are the six variants",
        ),
        Reference(
            id="MinivLLM",
            title="The text-only teaching engine that the note extends",
            url="https://github.com/Wenyueh/MinivLLM",
            note="the assertion is that of src/myvllm/layers/attention.py",
        ),
    )
    bug: int
    error: str
    frames: tuple[str, ...]
    reason: str
    failing: tuple[str, ...] = IMAGES
    key_log_patterns = ("note-error", "contract-violated")
    live_only = some_requests_fail()
    gate_images: tuple[str, ...] = ()  # these fail
    summed_up = (TEXTS[2],)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        frames = {f"frame-{i}": mini.place(frame) for i, frame in enumerate(cls.frames)}
        cls.log_patterns = {"note-error": cls.error, **frames}
        cls.origin = f"milestone note, bug {cls.bug}"

    async def trigger(self, drive: Drive) -> None:
        whole = drive.picture("X", 1)
        await drive.ask(WHOLE, image=whole)
        await drive.ask(
            ODD, image=drive.picture("Y", 2, (28 * _ODD_GRID[0], 28 * _ODD_GRID[1]))
        )
        await drive.ask(STREAMED, image=whole, stream=True)
        await drive.ask(TEXTS[2])

    @precondition(
        "the engine took the images in: as many embeddings as they have, and one text"
    )
    def images_admitted(self, requests: Requests, logs: Logs) -> Finding:
        taken = {sent.label: (sent, n) for sent, n in mini.admitted(requests, logs)}
        for label in IMAGES:
            if label not in taken:
                return Finding.of(False, f"the log shows no {label}")

        texts: set[int] = set()
        observed: list[str] = []
        for label in IMAGES:
            sent, tokens = taken[label]
            rows = mini.embeddings(sent)
            texts.add(tokens - rows)
            observed.append(f"{label}: {tokens} tokens, {rows} of it")
        return Finding.of(len(texts) == 1 and min(texts) > 0, "; ".join(observed))

    def image_500(self, requests: Requests) -> Finding:
        failed: set[str] = set()
        answered: set[str] = set()
        observed: list[str] = []
        for label in IMAGES:
            sent = requests.first(label)
            observed.append(f"{sent.label}: {sent.reply}")
            if sent.answered:
                answered.add(sent.label)
            if sent.status == 500 and re.search(self.error, sent.error):
                failed.add(sent.label)
        as_noted = failed == {*self.failing} and failed | answered == {*IMAGES}
        return Finding.of(as_noted, "; ".join(observed))

    symptoms = (
        symptom(
            (
                "a request with an image gets HTTP 500 and the error of the note's "
                "bug {bug}"
            ),
            image_500,
        ),
        symptom(
            "text alone is answered before and after, with the same tokens",
            answered_alike(*TEXTS),
            id="text-undisturbed",
        ),
        endpoints_green(),
    )

    def logged_there(self, logs: Logs) -> Finding:
        counts = [logs.count(pattern) for pattern in self.log_patterns]
        names = ("the error", *self.frames)
        pairs = zip(counts, names, strict=True)
        listed = ", ".join(f"{count} × {what}" for count, what in pairs)
        return Finding.of(all(counts), f"in the log: {listed}")

    @cause(
        "each failed request has that error once in the log, {reason}",
        live=cause(
            "the log holds the error of the note's bug {bug}, {reason}",
            logged_there,
            id="error-raised-there",
        ),
    )
    def error_raised_there(self, requests: Requests, logs: Logs) -> Finding:
        failed = sum(r.status == 500 for r in requests.within("trigger") if r.images)
        errors, *frames = (logs.count(pattern) for pattern in self.log_patterns)
        # At least once a frame: some places are gone through twice in one traceback.
        raised = 0 < failed == errors and min(frames) >= failed
        return Finding.of(
            raised, f"{failed} failed requests; {self.logged_there(logs).observed}"
        )

    works_after = (
        answered(*IMAGES),
        answered_alike(WHOLE, STREAMED),
        "text-undisturbed",
    )
    rows = (
        row("text alone", "text-undisturbed", "200", abnormal_if=False),
        *mini.MinivllmFault.rows,
    )
    claims: ClassVar[tuple[Claim, ...]] = (
        mini.root_cause("{variant}: the error comes {reason}"),
        claim(
            "decode-undisturbed",
            "minivllm's text and decode are as they were",
            "minivllm",
            by="text-undisturbed",
            given="arrived",
        ),
        claim(
            "decode-graph",
            (
                "decode by CUDA graphs is not disturbed: text has the same tokens "
                "after images"
            ),
            "milestone note",
            by=("text-undisturbed", answered(*IMAGES)),
            given=("arrived", _decodes_by_graph, mini.Switched.fault_off),
            otherwise="to test on a GPU: mmrepro run {name} --mitigation fix --device cuda; the "
            "graphs alone were, see docs/gpu/summary.md",
        ),
        mini.put_right("minivllm answers images with that place put right"),
        mini.ELSEWHERE,
    )


class SlotMapping(PrefillContract):
    """The slot mapping comes out short when an image stands before the text.

    What: Images whose embeddings do not fill whole blocks end in 'Slot mapping size
    must match number of tokens'; images that do, and text, are answered.

    Why: The sequence counts T_vis + T_text tokens, its blocks follow that, but the
    number of tokens in the last block is still derived from the text ids alone.
    slot_mapping lacks the difference, and storing keys and values refuses. When T_vis
    is a multiple of the block size both numbers agree, which is why 64 embeddings in
    blocks of 16 go through."""

    variant, bug = "slot-mapping", 6
    error = r"AssertionError: Slot mapping size must match number of tokens"
    frames = ("model.py:store",)
    reason = "raised where keys and values are stored"
    failing = (ODD,)
    gate_images = ("gate: image of whole blocks",)
    server = f"{PrefillContract.server} --placeholder-ids text"
    factors = (
        Factor(
            _LAST_BLOCK,
            "what the number of tokens in the last block is derived from",
            "the text ids",
            "all tokens",
            server_args=("--fix", "slot-mapping"),
            claim="the first half of the note's fix",
            took_effect=mini.Switched.fault_off,
        ),
        Factor(
            _IDS,
            "how many token ids stand beside inputs_embeds",
            "as many as the text has",
            "as many as all tokens",
            server_args=("--placeholder-ids", "all"),
            claim="the second half of the note's fix",
            took_effect=_ids_beside("all"),
        ),
    )
    claims = (
        *PrefillContract.claims,
        claim(
            "first-half",
            "minivllm is mended by deriving the last block's tokens from all of them",
            "minivllm",
            by=_all_stored,
            given=(changed(_LAST_BLOCK, "fix"), mini.Switched.fault_off, "arrived"),
            otherwise="to test: mmrepro run {name} --flip last-block",
        ),
        claim(
            "second-half",
            (
                "minivllm takes full-length placeholder ids as well: attention counts "
                "tokens by them"
            ),
            "minivllm",
            by=_all_stored,
            given=(
                changed(_LAST_BLOCK, "fix"),
                _ids_beside("text"),
                mini.Switched.fault_off,
                "arrived",
            ),
            otherwise="to test: mmrepro run {name} --flip last-block",
            refuted=True,
            note="keys and values are counted by inputs_embeds; nobody reads the ids",
        ),
    )

    @precondition("the last block has more tokens than it would have of the text alone")
    def last_block_differs(
        self, requests: Requests, logs: Logs, metrics: Metrics
    ) -> Finding:
        size = told(metrics, "kv_cache_block_size")
        tokens = counted(requests, logs, ODD)
        text = tokens - mini.embeddings(requests.first(ODD))
        has, of_text = mini.in_last_block(tokens, size), mini.in_last_block(text, size)
        observed = (
            f"blocks of {size}: {has} tokens in the last of {tokens}, "
            f"{of_text} of {text}"
        )
        return Finding.of(has > of_text, observed)

    @cause(
        "slot_mapping is short by exactly what the last block has more tokens than it "
        "would have of the text alone",
        live=False,
    )
    def short_by_the_last_block(self, logs: Logs) -> Finding:
        counted = logs.search(
            "contract-violated", r"slot_mapping has (\d+) entries for (\d+)"
        )
        if not counted:
            return Finding.of(False, "the contract checker counted no missing slot")
        slots, tokens = int(counted[0][1]), int(counted[0][2])
        text = tokens - _ODD_GRID[0] * _ODD_GRID[1]
        has, of_text = (
            mini.in_last_block(count, mini.BLOCK_SIZE) for count in (tokens, text)
        )
        blocks = (
            f"the last block has {has} of them, of the {text} text ids alone {of_text}"
        )
        short = tokens - slots == has - of_text > 0
        return Finding.of(short, f"{slots} slots for {tokens} tokens; {blocks}")


class WarmUpSequence(PrefillContract):
    """Warm-up builds plain Sequences where ImageSequences are expected.

    What: The image runner cannot be made: its warm-up prefill gets a Sequence. Text is
        served.

    Why: The image runner inherits the warm-up, which builds the base class's Sequence;
    its own prefill needs what only an ImageSequence has. Overriding the prefill alone
    is not enough."""

    variant, bug = "warmup-sequence", 1
    error = r"TypeError: ImageRunner expects ImageSequence, got Sequence"
    frames = ("images.py:warm_up",)
    reason = "raised from the image runner's warm-up"


class WarmUpOrder(PrefillContract):
    """The base initialiser warms up before the model takes inputs_embeds.

    What: forward() got an unexpected keyword argument 'inputs_embeds', while the image
    runner is made. Text is served.

    Why: A base class whose initialiser already runs the model runs it before the
    derived class had its turn: the model is still the text-only one."""

    variant, bug = "warmup-order", 2
    error = r"TypeError: \S*forward\(\) got an unexpected keyword argument 'inputs_"
    frames = ("runner.py:__init__", "images.py:warm_up")
    reason = "raised from the warm-up that the base initialiser starts"


class BrokenModule(PrefillContract):
    """A broken edit of the fake vision module: a syntax error at import.

    What: The fake vision module cannot be imported. Text is served.

    Why: An edit left the module invalid. Nothing imports it before the first image
    comes, so the engine starts and looks healthy."""

    variant, bug = "broken-module", 3
    error = r"SyntaxError: "
    frames = ("fake_vision.py", "images.py:load_vision")
    reason = "raised while the vision module is imported"


class ImagePath(PrefillContract):
    """The configured image path does not exist.

    What: The warm-up image is read from a relative path that was never installed. Text
        is served.

    Why: A path from a demo's configuration is relative to wherever the engine was
    started. The request's own image has nothing to do with it."""

    variant, bug = "image-path", 4
    error = r"FileNotFoundError: \[Errno 2\] No such file or directory: 'assets/"
    frames = ("images.py:_warm_up_picture",)
    reason = "raised where the warm-up image is read"


class PinnedPlaceholder(PrefillContract):
    """The placeholder of the token ids is pinned, though it is no CPU tensor.

    What: 'only dense CPU tensors can be pinned'. Text is served.

    Why: Beside inputs_embeds the model is given ids that nobody reads; only their
    number counts. They are made on the device and pinned, which is for tensors in host
    memory. Without a GPU the device is torch's 'meta', and torch words the refusal for
    that."""

    variant, bug = "pinned-placeholder", 5
    error = r"RuntimeError: .*(?i:only dense CPU tensors can be pinned)"
    frames = ("images.py:_placeholder",)
    reason = "raised where the placeholder is made"

    def on_a_gpu(self, logs: Logs) -> Finding:
        errors = [line.text for line in logs.lines("note-error")]
        if not errors:
            return Finding.of(False, "nothing was pinned")
        return Finding.of(not any("Meta" in text for text in errors), errors[0])

    def in_the_notes_words(self, logs: Logs) -> Finding:
        errors = [line.text for line in logs.lines("note-error")]
        exact = [text for text in errors if text.endswith(NOTE_WORDS)]
        return Finding.of(
            len(exact) == len(errors) > 0, errors[0] if errors else "no error"
        )

    claims: ClassVar[tuple[Claim, ...]] = (
        *PrefillContract.claims,
        claim(
            "pin-memory",
            (
                "on a GPU torch refuses that call, pin_memory=True, in exactly the "
                "note's words"
            ),
            "milestone note, bug 5",
            by=in_the_notes_words,
            given=on_a_gpu,
            otherwise="without a GPU torch words it otherwise",
        ),
    )


SCENARIO = with_variants(
    SlotMapping(),
    WarmUpSequence(),
    WarmUpOrder(),
    BrokenModule(),
    ImagePath(),
    PinnedPlaceholder(),
)
