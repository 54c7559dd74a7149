"""Exceptions are read as logs print them, whole or not."""

import pytest
from mmrepro.probes.data import LogLine
from mmrepro.probes.log_reader import LineReader
from mmrepro.probes.tracebacks import ChainLink, Tracebacks, exceptions_in, roots


def lines(text: str) -> list[LogLine]:
    return LineReader().take(text.encode(), last=True)


def read(text: str) -> Tracebacks:
    return exceptions_in(lines(text))


CHAINED = """\
Traceback (most recent call last):
  File "/v/vllm/a.py", line 3, in load
    return table[name]
KeyError: 'layer'

{words}

Traceback (most recent call last):
  File "/v/vllm/b.py", line 9, in start
    load()
RuntimeError: the model has no such layer
"""
DIRECT = "The above exception was the direct cause of the following exception:"
HANDLING = "During handling of the above exception, another exception occurred:"


@pytest.mark.parametrize(
    ("words", "link"), [(DIRECT, ChainLink.DIRECT), (HANDLING, ChainLink.HANDLING)]
)
def test_the_first_of_a_chain_is_its_root(words: str, link: ChainLink) -> None:
    first, second = read(CHAINED.format(words=words)).raised
    assert (second.before, second.link) == (first, link)
    assert roots([first, second]) == [first]
    assert [(f.file, f.line, f.name, f.source) for f in second.frames] == [
        ("/v/vllm/b.py", 9, "start", "load()")
    ]


GROUP = """\
ERROR:    Exception in ASGI application
  + Exception Group Traceback (most recent call last):
  |   File "/v/starlette/tasks.py", line 76, in collapse
  |     raise exc
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/v/vllm/serve.py", line 12, in stream
    |     await chunk()
    | ValueError: the chunk is empty
    |   of 3 chunks
    +---------------- 2 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "/v/vllm/serve.py", line 14, in close
    |     close()
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | Traceback (most recent call last):
      |   File "/v/vllm/serve.py", line 15, in close
      |     socket.close()
      | OSError: it is closed
      +------------------------------------
"""


def test_a_group_gives_way_to_what_is_in_it() -> None:
    found = read(GROUP).raised
    outer, value, inner, closed = found
    assert outer.members == [value, inner]
    assert inner.members == [closed]
    assert value.link is ChainLink.MEMBER
    assert [raised.kind for raised in roots(found)] == ["ValueError", "OSError"]
    assert value.message == "the chunk is empty\n  of 3 chunks"
    assert value.frames[0].source == "await chunk()"


BOX = """\
╭──────────────────── Traceback (most recent call last) ─────────────────────╮
│ /opt/venv/lib/python3.12/site-packages/vllm/entrypoints/cli.py:53 in main    │
│                                                                              │
│   50 │   parser = make()                                                     │
│ ❱ 53 │   args.dispatch(args)                                                 │
│                                                                              │
│ ╭───────── locals ─────────╮                                                 │
│ │ args = Namespace(a='b')  │                                                 │
│ ╰──────────────────────────╯                                                 │
│                                                                              │
│ /opt/venv/lib/python3.12/site-packages/vllm/engine/arguments_of_the_engine.p │
│ y:1201 in create                                                             │
│                                                                              │
│ ❱ 1201 │   raise IndexError(name)                                            │
╰──────────────────────────────────────────────────────────────────────────────╯
IndexError: no such argument
"""


def test_a_box() -> None:
    found = read(BOX)
    (raised,) = found.raised
    assert (raised.kind, raised.message) == ("IndexError", "no such argument")
    assert [(f.file[-12:], f.line, f.name, f.source) for f in raised.frames] == [
        ("oints/cli.py", 53, "main", "args.dispatch(args)"),
        ("he_engine.py", 1201, "create", "raise IndexError(name)"),
    ]


RAY = """\
(EngineCore pid=5) ray.exceptions.RayTaskError(ValueError): ray::Worker.execute() (pid=9, ip=10.0.0.3)
(EngineCore pid=5)   File "/v/vllm/worker.py", line 4, in execute
(EngineCore pid=5)     run()
(EngineCore pid=5) ValueError: three blocks are missing
(RayWorkerWrapper pid=77, ip=10.0.0.4) Traceback (most recent call last):
(RayWorkerWrapper pid=77, ip=10.0.0.4)   File "/v/vllm/worker.py", line 4, in execute
(RayWorkerWrapper pid=77, ip=10.0.0.4)     run()
(RayWorkerWrapper pid=77, ip=10.0.0.4) ValueError: two blocks [repeated 3x across cluster]
"""  # noqa: E501


def test_rays_tasks_and_actors() -> None:
    task, actor = read(RAY).raised
    assert (task.kind, task.message) == ("ValueError", "three blocks are missing")
    assert task.intro.startswith("ray.exceptions.RayTaskError(ValueError)")
    assert (actor.message, actor.process) == ("two blocks", "RayWorkerWrapper pid=77")


ANYHOW = """\
Error: the engine did not start

Caused by:
    0: the model was not loaded
    1: /models/m/config.json
    2: No such file or directory (os error 2)
"""


def test_the_cause_of_rusts_errors_is_the_last() -> None:
    found = read(ANYHOW).raised
    assert [raised.message for raised in found] == [
        "the engine did not start",
        "the model was not loaded",
        "/models/m/config.json",
        "No such file or directory (os error 2)",
    ]
    (root,) = roots(found)
    assert root is found[-1]
    assert root.link is ChainLink.CAUSED_BY
    logged = read(
        "2026-11-20T10:00:00.123456Z ERROR engine.main: it did not start\n"
        "Caused by:\n    0: no weights\n    1: no disk\n"
    ).raised
    assert [raised.message for raised in roots(logged)] == ["no disk"]
    one = read("Error: it ended\n\nCaused by:\n    the port is taken\n").raised
    assert [raised.message for raised in roots(one)] == ["the port is taken"]


MARK = "(EngineCore pid=8) ERROR 11-20 10:00:00 [core.py:900] "
FLUSH = """\
Traceback (most recent call last):
File "/v/vllm/cuda.py", line 12, in set_device
torch.cuda.set_device(device)
File "/v/vllm/model.py", line 40, in forward
return self.layers(
^^^^^^^^^^^^
hidden,
)
^
File "/v/torch/cuda.py", line 56, in set_device
Device
socket.gaierror: [Errno -2] Name or service not known
"""


@pytest.mark.parametrize("mark", ["", MARK])
@pytest.mark.parametrize("cut", [0, 2, 4])
def test_code_without_its_indentation_is_no_exception(mark: str, cut: int) -> None:
    text = "".join(f"{mark}{line}\n" for line in FLUSH.splitlines()[cut:])
    (raised,) = read(text).raised
    assert raised.kind == "socket.gaierror"
    innermost = raised.frames[-1]
    assert (innermost.name, innermost.source) == ("set_device", "Device")
    if cut < 4:
        (forward,) = [frame for frame in raised.frames if frame.name == "forward"]
        assert forward.source == "return self.layers(\nhidden,\n)"


def test_a_frame_without_its_code() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "<frozen importlib>", line 1, in _load\n'
        "zlib.error: Error -3 while decompressing\n"
    )
    for shown in (
        text,
        text.replace("  File", "File").replace("zlib.error", "OSError"),
    ):
        (raised,) = read(shown).raised
        assert raised.frames[0].source == ""
        assert raised.message == "Error -3 while decompressing"


def test_a_message_of_several_lines_under_each_ones_prefix() -> None:
    text = "".join(
        f"{MARK}{line}\n"
        for line in ("ValidationError: 1 error for A", "  Value error, no [b=1]", "end")
    )
    (raised,) = read(text).raised
    assert raised.message.split("\n")[1:] == ["  Value error, no [b=1]", "end"]


def test_what_is_cut_has_its_frames() -> None:
    text = f'{MARK}  File "/v/vllm/a.py", line 3, in build\n{MARK}    assert not decodes, (\n'
    found = read(text)
    assert found.raised == []
    assert [frame.name for frame in found.cut[0]] == ["build"]


def test_processes_that_write_in_turn() -> None:
    one = "(A pid=1) ERROR 11-20 10:00:00 [a.py:1] "
    two = "(B pid=2) ERROR 11-20 10:00:00 [b.py:1] "
    body = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "    g()",
    ]
    text = "".join(f"{one}{line}\n{two}{line}\n" for line in body)
    text += f"{two}OSError: second\n{one}ValueError: first\n"
    found = read(text).raised
    assert [(r.process, r.kind, len(r.frames)) for r in found] == [
        ("B pid=2", "OSError", 1),
        ("A pid=1", "ValueError", 1),
    ]


def test_faulthandlers_frames_are_of_no_exception() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x00007f0000000640 (most recent call first):\n"
        '  File "/v/sglang/scheduler.py", line 1894 in run_event_loop\n'
        "Extension modules: numpy\n"
    )
    found = read(text)
    assert (found.raised, found.cut) == ([], [])


def test_a_prefix_that_is_glued_on() -> None:
    """Another logger's line stands within a line of this one's."""
    outer = "2026-11-20 10:00:01,500 - pump - ERROR - "
    body = [
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "    g()",
    ]
    text = "2026-11-20 10:00:00,500 - pump - INFO - the pump began\n" * 9
    text += "".join(f"{outer}{MARK}{line}\n" for line in [*body, "ValueError: x"])
    (raised,) = read(text).raised
    assert (raised.kind, raised.process) == ("ValueError", "EngineCore pid=8")
    assert raised.frames[0].source == "g()"


@pytest.mark.parametrize("indent", ["  ", "    "])
def test_an_exception_that_was_pasted_with_an_indent_is_read(indent: str) -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "/x/a.py", line 3, in f\n'
        "    x()\n"
        f"{indent}ValueError: nope\n"
    )
    (raised,) = read(text).raised
    assert (raised.kind, raised.message) == ("ValueError", "nope")
