"""Classes that a log tells: of a server that is gone, and of one that lives."""

from __future__ import annotations

import io
from typing import Any

import pytest
from mmrepro.engines import ENGINES
from mmrepro.failure.documents.cause import Certainty
from mmrepro.failure.documents.diagnosis import LiveClass, NamedClass
from mmrepro.failure.signature.live_server import CORE_ALIVE
from mmrepro.live.diagnose import cause_rules
from mmrepro.live.diagnose.classes import classes
from mmrepro.live.diagnose.classes_logged import LOG_PATTERNS
from mmrepro.probes.data import LogsData
from mmrepro.probes.logs import Scanner
from mmrepro.traffic.evidence import Evidence
from seen import answer, evidence, failed, target

F, C = LiveClass, Certainty
CORE = "(EngineCore pid=5694) ERROR 11-24 18:15:48"
WORKER = "(Worker pid=5810) ERROR 11-24 18:15:48"
FRONT = "(APIServer pid=5377) ERROR 11-24 18:15:48"
FATAL = f"{CORE} [v1/engine/core.py:1197] EngineCore encountered a fatal error."
ECHO = (
    f"{FRONT} [v1/engine/async_llm.py:704] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause."
)
AT = "[v1/executor/multiproc_executor.py:987]"
# Recorded: vLLM 0.23.0, stop_token_ids [1151935] and min_tokens 1; frames left out.
STOP_TOKEN = f"""\
(APIServer pid=5377) INFO:     127.0.0.1:41694 - "POST /v1/chat/completions HTTP/1.1" 200 OK
{WORKER} {AT} WorkerProc hit an exception.
{WORKER} {AT} Traceback (most recent call last):
{WORKER} {AT}     return self.model_runner.sample_tokens(grammar_output)
{WORKER} {AT}     logits = processor.apply(logits)
{WORKER} {AT}     logits.index_put_(self.logits_slice, self.neg_inf_tensor)
{WORKER} {AT} IndexError: index 1151935 is out of bounds for dimension 1 with size 320
{CORE} [logging_utils/dump_input.py:79] Dumping scheduler output for model execution: \
SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id=chatcmpl-888d,prompt_token_ids_len=21,\
mm_features=[],sampling_params=SamplingParams(n=1, presence_penalty=0.0, repetition_penalty=1.0, \
temperature=0.0, top_p=1.0, top_k=0, seed=None, stop=[], stop_token_ids=[1151935], bad_words=[], \
ignore_eos=False, max_tokens=8, min_tokens=1, logprobs=None, skip_special_tokens=True, \
structured_outputs=None, extra_args=None),block_ids=([2],),num_computed_tokens=0)])
{FATAL}
{CORE} [v1/engine/core.py:1197] Traceback (most recent call last):
{CORE} [v1/engine/core.py:1197] RuntimeError: Worker failed with error 'index 1151935 is out of \
bounds for dimension 1 with size 320', please check the stack trace above for the root cause
{ECHO}
"""
# Recorded: vLLM 0.23.0, structured_outputs with a second regex that the first's backend
#     refuses.
GRAMMAR = f"""\
{FATAL}
{CORE} [v1/engine/core.py:1197] Traceback (most recent call last):
{CORE} [v1/engine/core.py:1197]     ctx = self.compiler.compile_regex(grammar_spec)
{CORE} [v1/engine/core.py:1197] RuntimeError: [18:19:18] /project/cpp/grammar_parser.cc:564: EBNF \
parser error at line 1, column 12: Expect element, but got |
{ECHO}
"""
EMBEDS = f"""\
{FATAL}
{CORE} [v1/engine/core.py:1197] AssertionError: M-RoPE requires prompt_token_ids to be available.
"""
FRAMES = f"""\
{WORKER} {AT}     top = logprobs.topk(sampling_metadata.top_logprobs_nums)
{WORKER} {AT} RuntimeError: selected index k out of range
{FATAL}
{CORE} [v1/engine/core.py:1197] RuntimeError: Worker failed with error 'selected index'
"""
# Recorded: SGLang 0.5.23, top_logprobs 100000; frames left out.
SGLANG = """\
ConnectionRefusedError: [Errno 111] Connection refused
[2026-11-24 18:20:00] Prefill batch, #new-seq: 1, #new-token: 20
[2026-11-24 18:20:01] Scheduler hit an exception: Traceback (most recent call last):
  File "sglang/srt/layers/logits_processor.py", line 12, in get_top_logprobs
    ret = logprobs.topk(max_k, dim=1)  # top_logprobs
RuntimeError: selected index k out of range

"""
LMDEPLOY = """\
2026-11-24 18:20:00,1 - lmdeploy - INFO - engine.py:1 - "POST /v1/chat/completions HTTP/1.1" 200
2026-11-24 18:20:01,1 - lmdeploy - ERROR - request.py:21 - Engine loop failed with error: x
AssertionError: no structured grammar here
"""


def read(text: str, engine: str) -> LogsData:
    adapter = ENGINES[engine]
    patterns = {**LOG_PATTERNS, **adapter.log_patterns}
    progress = adapter.progress_pattern or None
    scanner = Scanner(
        patterns, progress, file="engine.log", around=cause_rules.places()
    )
    return scanner.scan(io.BytesIO(text.encode()))


def named(text: str, *more: Any, engine: str = "vllm") -> dict[LiveClass, NamedClass]:
    found = evidence(read(text, engine), *more)
    return {one.name: one for one in classes(found, target(engine=engine))}


def test_the_field_is_the_one_that_held_the_number_of_the_exception() -> None:
    one = named(STOP_TOKEN)[F.KILLED_BY_INPUT]
    assert one.certainty is C.CERTAIN
    assert "by its field stop_token_ids: IndexError: index 1151935" in one.sentence
    assert one.why[0].startswith(
        "line 7, Worker pid=5810, 11-24 18:15:48: IndexError: index 115"
    )
    assert (
        "set in the requests that it began to work on: stop_token_ids, min_tokens"
        in one.why
    )
    assert not any("EngineDeadError" in text for text in one.why)


def test_a_grammar_that_ended_it_is_two_classes() -> None:
    found = named(GRAMMAR)
    assert found.keys() == {F.KILLED_BY_INPUT, F.GRAMMAR_LOOP}
    assert "by its field structured_outputs" in found[F.KILLED_BY_INPUT].sentence
    assert found[F.GRAMMAR_LOOP].sentence.startswith(
        "A grammar ended the engine: RuntimeError: ["
    )


def test_a_field_is_known_by_the_message_or_by_the_frames_next_to_it() -> None:
    assert "by its field prompt_embeds" in named(EMBEDS)[F.KILLED_BY_INPUT].sentence
    assert "by its field top_logprobs" in named(FRAMES)[F.KILLED_BY_INPUT].sentence
    # Further out every request passes: then nothing points to one.
    frame = f'{WORKER} {AT}   File "a.py", line 1, in f\n{WORKER} {AT}     x\n'
    assert named(FRAMES.replace("nums)\n", "nums)\n" + frame * 9)) == {}


def test_engines_without_marks_of_processes() -> None:
    one = named(SGLANG, engine="sglang")[F.KILLED_BY_INPUT]
    assert "by its field top_logprobs: RuntimeError: selected" in one.sentence
    # An assertion of its own, which no field and no number ties to a request.
    assert named(LMDEPLOY, engine="lmdeploy") == {}


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        # A start that failed.
        (
            SGLANG.partition("Prefill")[0] + SGLANG.partition("#new-token: 20\n")[2],
            "sglang",
        ),
        (GRAMMAR.replace("encountered a fatal error", "failed to start"), "vllm"),
        # A signal leaves no exception of the core's own.
        (f"{CORE} [a.py:1] Engine core proc died unexpectedly\n{ECHO}\n", "vllm"),
        (f"{FATAL}\n{ECHO}\n", "vllm"),
        # Another one's exception, and one that ended nothing.
        (f"{FRONT} [serving.py:1] ValueError: EBNF parser error\n", "vllm"),
        (f"{CORE} [core.py:1] AssertionError: Expected a cached item\n", "vllm"),
        ("", "vllm"),
    ],
)
def test_what_no_input_killed(text: str, engine: str) -> None:
    assert named(text, engine=engine) == {}


def test_a_server_that_answers_was_not_killed() -> None:
    assert named(STOP_TOKEN, answer()) == {}
    assert F.KILLED_BY_INPUT in named(
        STOP_TOKEN, failed(500, "HTTP 500: EngineDeadError")
    )


def test_an_end_of_an_earlier_process_is_not_that_of_one_that_lives() -> None:
    for alive, names in (
        (True, set()),
        (False, {F.KILLED_BY_INPUT}),
        (None, {F.KILLED_BY_INPUT}),
    ):
        found = evidence(read(STOP_TOKEN, "vllm"), **{CORE_ALIVE: alive})
        assert {one.name for one in classes(found, target())} == names
    # Its loop has ended, and its process lives: every request fails.
    lives = evidence(
        read(STOP_TOKEN, "vllm"), failed(500, "HTTP 500"), **{CORE_ALIVE: True}
    )
    assert [one.name for one in classes(lives, target())] == [F.KILLED_BY_INPUT]


def test_a_number_that_every_request_may_have_blames_no_field() -> None:
    text = STOP_TOKEN.replace("max_tokens=8", "max_tokens=320").replace(
        "[1151935], bad", "[], bad"
    )
    assert named(text) == {}


@pytest.mark.parametrize(
    "what",
    [
        "torch.OutOfMemoryError: CUDA out of memory",
        "CUDA error: an illegal memory access",
        "TimeoutError: RPC call to sample_tokens timed out.",
        "OSError: Too many open files",
    ],
)
def test_what_a_machine_does_is_no_request_s(what: str) -> None:
    text = EMBEDS.replace(
        "AssertionError: M-RoPE requires prompt_token_ids to be available.", what
    )
    stuck = {F.WORKER_STUCK} if "RPC call" in what else set()
    assert named(text).keys() == stuck


def test_an_exception_far_from_the_end_is_of_something_else() -> None:
    fatal, exception = EMBEDS.splitlines()
    noise = [f"{CORE} [a.py:1] x"] * 1001
    near = "\n".join([exception, *noise, fatal]) + "\n"
    assert named(near).keys() == {F.KILLED_BY_INPUT}
    far = "\n".join([exception, *noise, fatal.replace("18:15:48", "18:17:48")]) + "\n"
    assert named(far) == {}


# ---------------------------------------------------------------- placeholders

COUNTS = {
    "vllm, any release": (
        (
            "ValueError: Attempted to assign 25 + 25 + 25 = 75 multimodal tokens to "
            "147 placeholders"
        ),
        "75 embeddings for 147 placeholders",
        C.CERTAIN,
    ),
    "vllm, items": (
        "AssertionError: Expected number of multimodal embeddings to match number of "
        "input items: 2, but got len(mm_embeddings)=1 instead. This is most likely due "
        "to",
        "1 embeddings for 2 items",
        C.CERTAIN,
    ),
    "sglang": (
        "Number of tokens in multimodal embedding does not match those in the input "
        "text. Got 279 tokens in the text but 260 tokens from multimodal embeddings.",
        "260 embeddings for 279 placeholders",
        C.CERTAIN,
    ),
    "transformers": (
        (
            "ValueError: Image features and image tokens do not match: tokens: 64, "
            "features 63"
        ),
        "63 embeddings for 64 placeholders",
        C.CERTAIN,
    ),
    "lmdeploy": (
        (
            "AssertionError: the number of image token id 9 is not equal to input "
            "images, 2 vs 1"
        ),
        "1 pictures for 2 placeholders",
        C.LIKELY,
    ),
}


@pytest.mark.parametrize("case", COUNTS)
def test_counts_that_differ(case: str) -> None:
    text, sentence, certainty = COUNTS[case]
    one = named(f"{CORE} [x.py:1] {text}\n")[F.PLACEHOLDER_COUNTS]
    assert sentence in one.sentence
    assert one.certainty is certainty
    assert text[:60] in one.why[0]


def test_counts_that_are_equal_or_not_told() -> None:
    for text, _, _ in COUNTS.values():
        half = text[: len(text) // 2]
        assert named(f"{CORE} [x.py:1] {half}\n") == {}
    same = COUNTS["transformers"][0].replace("63", "64")
    assert named(f"{CORE} [x.py:1] {same}\n") == {}


def test_it_is_told_of_a_server_that_answers_as_well() -> None:
    """SGLang only warns, and answers with what it had."""
    found = named(
        f"[2026-11-24 18:20:00] {COUNTS['sglang'][0]}\n", answer(), engine="sglang"
    )
    assert found.keys() == {F.PLACEHOLDER_COUNTS}


def test_no_log_names_nothing() -> None:
    assert classes(Evidence(), target()) == []


# ------------------------------------------------------------------ ranks


BEAT = (
    "(EngineCore pid=5627) INFO 11-26 00:33:50 [shm_broadcast.py:871] No available "
    "shared memory broadcast block found in 60 seconds. This typically happens when "
    "some processes are hanging."
)
# Recorded: vLLM 0.32.0 with tensor parallel 2, five minutes after Worker_TP1 slept for
#     good.
TIMED_OUT = f"""\
{BEAT}
(EngineCore pid=5627) ERROR 11-26 00:37:50 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=5627) ERROR 11-26 00:37:50 [core.py:1512]     raise TimeoutError
(EngineCore pid=5627) ERROR 11-26 00:37:50 [core.py:1512] TimeoutError
(EngineCore pid=5627) ERROR 11-26 00:37:50 [core.py:1512] TimeoutError: RPC call to execute_model \
timed out.
{ECHO}
"""
RANK_DIED = f"""\
(EngineCore pid=5627) ERROR 11-26 00:37:50 [multiproc_executor.py:315] Worker proc VllmWorker-1 \
died unexpectedly (exit code: -9), shutting down executor.
{ECHO}
"""


def test_a_worker_that_never_answered_is_in_the_log_and_no_input_is_blamed() -> None:
    found = named(TIMED_OUT)
    assert found[F.WORKER_STUCK].certainty is C.LIKELY
    assert "RPC call to execute_model timed out" in found[F.WORKER_STUCK].why[0]
    killed = found.get(F.KILLED_BY_INPUT)
    assert killed is None or killed.certainty is C.POSSIBLE
    assert F.WORKER_STUCK not in named(TIMED_OUT, answer())


def test_a_worker_that_died_is_in_the_log() -> None:
    found = named(RANK_DIED)
    assert found.keys() == {F.RANK_LOST}
    assert "VllmWorker-1 died unexpectedly (exit code: -9)" in found[F.RANK_LOST].why[0]
    assert not named(RANK_DIED, answer())


def test_a_heartbeat_is_no_fault_while_the_server_works() -> None:
    """vllm#43420 took the line for one."""
    one = named(BEAT, answer())[F.HEARTBEAT_ONLY]
    assert (one.certainty, one.why[0][:12]) == (C.CERTAIN, "1 such lines")
    assert F.HEARTBEAT_ONLY not in named(BEAT)
    assert F.HEARTBEAT_ONLY not in named(TIMED_OUT)
    assert not named(
        "(EngineCore pid=5627) INFO 11-26 00:33:50 [core.py:1] fine", answer()
    )
