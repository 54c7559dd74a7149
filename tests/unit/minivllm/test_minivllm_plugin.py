"""``--plugin``, and the faults that are planted with it: each seen, and not seen
without it."""

import codecs
import http.client
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mmrepro.engines.base import SERVED_MODEL
from mmrepro.engines.supervise import answers
from mmrepro.reproducers import reproducer_path
from mmrepro.reproducers.minivllm.config import FAULTS
from paper_requests import reference
from paper_server import MODEL, Server, Start, servers

PLANTED = Path(__file__).parents[3] / "benchmarks" / "planted"


class Fresh:
    """The package minivllm as a server has it, imported anew: a plugin may patch it."""

    def module(self, name: str) -> Any:
        return importlib.import_module(f"minivllm.{name}")

    def config(self, plugin: Path | str = "", **sizes: int) -> Any:
        """What the server would use; the classes are patched from here on."""
        for name in ("server", "service", "paper"):
            self.module(name)
        config = self.module("config").EngineConfig(**sizes)
        return (
            self.module("config").plugged(PLANTED / plugin, config)
            if plugin
            else config
        )

    def engine(self, plugin: Path | str = "", **sizes: int) -> Any:
        return self.module("paper").paper_engine(self.config(plugin, **sizes))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fresh]:
    monkeypatch.syspath_prepend(str(reproducer_path("minivllm").parent))
    before = _minivllm()
    yield Fresh()
    _minivllm()
    sys.modules.update(before)


def _minivllm() -> dict[str, ModuleType]:
    """Its modules and a plugin's, which are no longer imported."""
    names = [
        n for n in sys.modules if n.partition(".")[0] in ("minivllm", "minivllm_plugin")
    ]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    yield from servers(tmp_path, tmp_path_factory.getbasetemp() / "models")


def asked(server: Server, text: str, **options: Any) -> dict[str, Any]:
    """The answer to ``text``."""
    content = {
        "model": SERVED_MODEL,
        "messages": [{"role": "user", "content": text}],
        **options,
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/v1/chat/completions", json.dumps(content))
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


# -------------------------------------------------------------------------- the option


MINE = """
from dataclasses import replace
from minivllm.chat import Chat

def plug(config):
    Chat.text = lambda self, ids: "mine"
    return replace(config, max_model_len=99)
"""


def test_a_plugin_changes_the_config_and_the_classes_of_a_server(
    start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "my plugin.py"
    file.write_text(MINE)
    server = start("--plugin", str(file))
    assert asked(server, "hi")["choices"][0]["message"]["content"] == "mine"
    assert "maximum context length (99)" in asked(server, "a" * 99)["error"]["message"]
    told = [line for line in server.log.read_text().splitlines() if "plugin" in line]
    assert [line.partition("] ")[2] for line in told] == ["plugin my plugin.py is in"]
    assert " INFO " in told[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no such file"),
        ("x = 1", r"it has no function plug\(config\)"),
        ("plug = 1", r"it has no function plug\(config\)"),
        ("def plug(config", r"SyntaxError: '\(' was never closed"),
        (
            "import no_such_module",
            "ModuleNotFoundError: No module named 'no_such_module'",
        ),
        ("def plug(config): raise KeyError('x')", "plug: KeyError: 'x'"),
        ("def plug(config): ...", "plug returned no EngineConfig but None"),
    ],
)
def test_a_bad_plugin_is_one_sentence(
    fresh: Fresh, tmp_path: Path, content: str | None, says: str
) -> None:
    file = tmp_path / "bad.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match=says) as caught:
        fresh.config(file)
    assert str(caught.value).startswith(f"plugin {file}: ")
    assert "\n" not in str(caught.value)


def test_a_bad_plugin_ends_the_start(tmp_path: Path) -> None:
    model, file = MODEL.write(tmp_path), tmp_path / "none.py"
    command = [
        sys.executable,
        "-m",
        "minivllm.server",
        "--paper",
        "--model",
        str(model),
    ]
    done = subprocess.run(
        [*command, "--port", "0", "--plugin", str(file)],
        cwd=reproducer_path("minivllm").parent,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == f"minivllm: plugin {file}: there is no such file"
    )


# ---------------------------------------------------------------- minivllm's own faults


def test_a_hidden_fault_is_on_and_named_nowhere(start: Start) -> None:
    fault = "ghost-key-lru"
    hidden = {"MINIVLLM_HIDDEN": codecs.encode(fault, "rot13")}
    options = ("--plugin", str(PLANTED / "hidden.py"), "--mm-cache-tokens", "130")
    server = start(*options, **hidden)
    sent = (("hi", None), ("a" * 2100, 1), ("hi", 1), ("hi", 2), ("hi", 3))
    assert server.statuses(*sent) == [200, 400, 500, 200, 200]
    assert server.statuses(("hi", 4), deadline_s=0.5) == ["hung"]
    seen = (
        server.log.read_text() + Path(f"/proc/{server.process.pid}/cmdline").read_text()
    )
    seen += (
        Path(f"/proc/{server.process.pid}/environ")
        .read_text()
        .replace(str(server.folder), "")
    )
    assert "plugin hidden.py is in" in seen
    assert fault not in seen
    assert "fault" not in server.log.read_text()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_can_be_hidden(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("MINIVLLM_HIDDEN", codecs.encode(fault, "rot13"))
    config = fresh.config("hidden.py", num_blocks=9)
    assert (config.faults, config.num_blocks) == (frozenset({fault}), 9)
    assert config.async_scheduling == (fault == "reused-mask")


def test_a_name_that_is_no_fault_is_not_hidden(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIVLLM_HIDDEN", "kv-budget")
    with pytest.raises(ValueError, match="MINIVLLM_HIDDEN is no fault's name in rot13"):
        fresh.config("hidden.py")


# ----------------------------------------------------------------------- planted faults


@pytest.mark.parametrize("plugin", ["", "swapped_answers.py"])
def test_two_answers_are_swapped_each_third_time(fresh: Fresh, plugin: str) -> None:
    service_of, prompt_of = fresh.module("service").Service, fresh.module("chat").Prompt
    service = service_of(fresh.engine(plugin))
    swapped = []
    for number in range(1, 10):
        asks = [([number, 1], 6), ([number, 2, 3], 6 + number % 2 * 3)]
        with service._wake:  # both are taken in at once
            tickets = [
                service.submit(prompt_of(ids, max_tokens=most)) for ids, most in asks
            ]
        got = [
            [t for t in service.tokens(ticket) if t is not None] for ticket in tickets
        ]
        right = [reference(ids, [], most) for ids, most in asks]
        assert [len(ticket.seq.output_ids) for ticket in tickets] == [
            most for _, most in asks
        ]
        assert [ticket.seq.finish_reason for ticket in tickets] == ["length", "length"]
        if got != right:
            assert [got[0], got[1][:6]] == [right[1][:6], right[0]]
            assert got[1][6:] == right[1][6:]
            swapped.append(number)
        alone = service.submit(prompt_of([number, 4], max_tokens=3))
        assert [t for t in service.tokens(alone) if t is not None] == reference(
            [number, 4], [], 3
        )
    assert swapped == ([3, 6, 9] if plugin else [])
    service.stop()


def test_one_who_leaves_does_not_keep_the_other_waiting(fresh: Fresh) -> None:
    """The answers of both have been swapped."""
    module, prompt_of = fresh.module("service"), fresh.module("chat").Prompt
    engine = fresh.engine("swapped_answers.py")
    service = module.Service(engine)
    service.stop()  # this thread is the engine's
    for _ in range(3):
        tickets = [service.submit(prompt_of([n, 5], max_tokens=4)) for n in (1, 2)]
        service._take(tickets)
        service._publish(engine.step())
    service.abort(tickets[0])
    service._abort_unwanted()
    while engine.busy:
        service._publish(engine.step())
    got = [t for t in service.tokens(tickets[1], poll_s=0) if t is not None]
    theirs, own = reference([1, 5], [], 4), reference([2, 5], [], 4)
    assert theirs[0] != own[0]
    assert got == [theirs[0], *own[1:]]


@pytest.mark.parametrize(("plugin", "lost"), [("", 0), ("lost_block.py", 1)])
def test_an_abort_loses_a_block(fresh: Fresh, plugin: str, lost: int) -> None:
    engine = fresh.engine(plugin, num_blocks=20, block_size=4)
    free = engine.scheduler.blocks.free
    for number in range(1, 4):
        seq = engine.add([number] * 9, max_tokens=20)
        for _ in range(6):
            engine.step()
        assert len(free) == 19 - 4 - lost * (number - 1)
        engine.abort(seq)
        assert len(free) == 19 - lost * number
    waiting = engine.add([1] * 9)
    engine.abort(waiting)
    assert engine.generate([engine.add([7, 8], max_tokens=9)]) == [
        reference([7, 8], [], 9)
    ]
    assert len(free) == 19 - lost * 3, (
        "neither one that had not begun nor one that ended"
    )


@pytest.mark.parametrize(
    ("plugin", "full"), [("", "length"), ("wrong_finish.py", "stop")]
)
def test_a_cut_answer_is_said_to_have_ended(
    fresh: Fresh, plugin: str, full: str
) -> None:
    engine = fresh.engine(plugin)
    seqs = [
        engine.add([1, 2, number], max_tokens=number) for number in (15, 16, 17, 32)
    ]
    for seq, tokens in zip(seqs, engine.generate(seqs), strict=True):
        assert tokens == reference([1, 2, seq.max_tokens], [], seq.max_tokens)
    assert [seq.finish_reason for seq in seqs] == ["length", full, "length", full]
    assert engine.counts["finished_length"] == (2 if plugin else 4)


ABORTS = """
import sys
from pathlib import Path
from minivllm.config import EngineConfig
from minivllm.paper import paper_engine
from minivllm.config import plugged

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

config = EngineConfig()
engine = paper_engine(plugged(Path(sys.argv[1]), config) if sys.argv[1:] else config)
before = resident()
for number in range(60):
    seq = engine.add([1, number])
    engine.step()
    engine.abort(seq)
print(resident() - before, *engine.generate([engine.add([7, 8], max_tokens=9)])[0])
"""


@pytest.mark.parametrize(("plugin", "each"), [("", 0), ("leak_on_abort.py", 1024)])
def test_an_abort_keeps_a_megabyte(plugin: str, each: int) -> None:
    command = [
        sys.executable,
        "-c",
        ABORTS,
        *([str(PLANTED / plugin)] if plugin else []),
    ]
    place = reproducer_path("minivllm").parent
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, check=True
    )
    grown, *tokens = map(int, done.stdout.split())
    assert grown == pytest.approx(60 * each, abs=2048), "KiB"
    assert tokens == reference([7, 8], [], 9)


@pytest.mark.parametrize("plugin", ["", "deadlock.py"])
def test_the_longest_prompt_stops_the_engine(start: Start, plugin: str) -> None:
    more = ("--plugin", str(PLANTED / plugin)) if plugin else ()
    server = start("--max-model-len", "64", *more)
    longest = 63 - asked(server, "")["usage"]["prompt_tokens"]
    assert server.statuses(
        ("a" * (longest - 1), None), ("a" * (longest + 1), None)
    ) == [200, 400]
    answered = "hung" if plugin else 200
    assert (
        server.statuses(("a" * longest, None), ("hi", None), deadline_s=0.5)
        == [answered] * 2
    )
    assert answers(server.url + "/health")
