"""A known failure is named by a sign that no other failure prints.

Each pattern that names one by itself is held against what others print: the logs of the
repository, the examples of every rule, the made-up ends of servers, and exceptions and
lines of everybody's."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cause_shapes import SHAPES
from mmrepro.engines.log_rules import LogRule, shipped_rules
from mmrepro.engines.starts import MORE_KEYS
from mmrepro.live.diagnose.log_reading import read_logs
from mmrepro.tools.catalogue.find import IndexEntry, Pattern, entries, find

STARTS = Path(__file__).parents[1] / "starts"
EVERYBODYS = """\
TypeError: object of type 'NoneType' has no len()
TypeError: 'NoneType' object is not iterable
TypeError: 'NoneType' object is not subscriptable
TypeError: unsupported operand type(s) for +: 'NoneType' and 'int'
AttributeError: 'NoneType' object has no attribute 'shape'
KeyError: 'layers'
IndexError: list index out of range
IndexError: index 9 is out of bounds for dimension 0 with size 8
IndexError: pop from an empty deque
RuntimeError: CUDA error: device-side assert triggered
RuntimeError: CUDA error: an illegal memory access was encountered
RuntimeError: The size of tensor a (5) must match the size of tensor b (7) at non-singleton dimension 0
RuntimeError: shape '[2, 3]' is invalid for input of size 7
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
AssertionError
ValueError: too many values to unpack (expected 2)
FileNotFoundError: [Errno 2] No such file or directory: '/models/m'
TimeoutError: RPC call to execute_model timed out.
BrokenPipeError: [Errno 32] Broken pipe
WorkerProc hit an exception.
EngineCore encountered a fatal error.
Worker proc VllmWorker-1 died unexpectedly, shutting down executor.
AsyncLLM output_handler failed.
Request chatcmpl-a1 aborted.
Aborted request(s) chatcmpl-a1.
Received request chatcmpl-a1: params: SamplingParams(n=8, temperature=0.0, max_tokens=7, min_tokens=0), lora_request: None.
Scheduler hit an exception: Traceback (most recent call last):
Received sigquit from a child process. It usually means the child failed.
INFO:     10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error
"""  # noqa: E501
SAME = {
    "top-logprobs-kill": ("shape: top_logprobs, SGLang",),
    "chunked-mm-prefill": ("shape: placeholders, vLLM",),
}
"""Made-up ends that are these failures themselves."""


def _examples(file: str, more: frozenset[str] = frozenset()) -> Iterator[LogRule]:
    yield from shipped_rules(file, more=more)


def texts() -> Iterator[tuple[str, str]]:
    """What others print, by where it stands."""
    for number, line in enumerate(EVERYBODYS.splitlines()):
        yield f"everybody's {number}", line
    for rule in [*_examples("ends.toml"), *_examples("starts.toml", MORE_KEYS)]:
        yield f"rule: {rule.name}", "\n".join(rule.examples)
    for path in sorted(STARTS.glob("*.log")):
        yield f"start: {path.stem}", path.read_text(errors="replace")
    for shape in SHAPES:
        yield f"shape: {shape.name}", shape.text


TEXTS = dict(texts())
LINES = {name: text.splitlines() for name, text in TEXTS.items()}


def known() -> list[IndexEntry]:
    return [entry for entry in entries() if entry.kind != "class"]


def _fits(pattern: Pattern, line: str) -> bool:
    if pattern.texts and not any(text in line for text in pattern.texts):
        return False
    return re.search(pattern.regex, line) is not None


@pytest.mark.parametrize("entry", known(), ids=lambda entry: f"{entry.name}")
def test_a_sign_that_names_a_failure_is_its_own(entry: IndexEntry) -> None:
    foreign = [name for name in LINES if name not in SAME.get(entry.name, ())]
    for pattern in entry.patterns:
        if not pattern.sure:
            continue
        others = [n for n in foreign if any(_fits(pattern, line) for line in LINES[n])]
        assert others == [], pattern.regex


@pytest.mark.parametrize("line", EVERYBODYS.splitlines())
def test_everybodys_words_name_no_known_failure(line: str) -> None:
    sure = [hit.entry.name for hit in find(line) if hit.sure == "this"]
    assert set(sure).isdisjoint(entry.name for entry in known())


def test_a_healthy_log_has_no_known_failure(tmp_path: Path) -> None:
    """Also where a client hung up."""
    log = tmp_path / "server.log"
    log.write_text(
        "(APIServer pid=1) INFO:     Application startup complete.\n"
        "(APIServer pid=1) INFO 11-20 09:01:00 [logger.py:42] Received request "
        "chatcmpl-9: params: SamplingParams(n=8, max_tokens=7), lora_request: None.\n"
        "(APIServer pid=1) INFO 11-20 09:01:02 [async_llm.py:525] Request chatcmpl-9 "
        "aborted.\n"
        "(APIServer pid=1) INFO 11-20 09:01:10 [loggers.py:271] Engine 000: Avg prompt "
        "throughput: 21.0 tokens/s, Avg generation throughput: 40.2 tokens/s, Running: "
        "1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.9%, Prefix cache hit rate: 0%\n"
    )
    found = read_logs([log], alone=True)
    assert (found.cause.name.value, found.known) == ("alive", [])
