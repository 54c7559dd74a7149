"""Scripts that have an engine in their own process: read, run, and judged."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.base.records import FindingClass
from mmrepro.engines.offline import offline_settings
from mmrepro.failure.documents.replay import Claim, ClientEnd, ReportFacts, ReproVerdict
from mmrepro.reproducers import reproducer_path
from mmrepro.runs.play.player import Player
from mmrepro.search.repro.client_end import client_end
from mmrepro.search.repro.issue import read_issue
from mmrepro.search.repro.other_servers import offline_command
from mmrepro.search.repro.verdict import _not_sent, _of_engine
from mmrepro.traffic.capture.client import (
    ClientRun,
    ClientWanted,
    _calls,
    _without_calls,
)

SCRIPT = """\
from vllm import LLM, SamplingParams

MODEL = "Qwen/Qwen3-0.6B"
llm = LLM(model=MODEL, tensor_parallel_size=2, enable_prefix_caching=False)
print(llm.generate(["a", "b"], SamplingParams(temperature=0)))
"""
COMMAND = (
    "vllm serve Qwen/Qwen3-0.6B --tensor-parallel-size 2 --no-enable-prefix-caching"
)


@pytest.mark.parametrize(
    ("script", "command"),
    [
        (SCRIPT, COMMAND),
        (
            'import sglang as sgl\ne = sgl.Engine(model_path="m/m", random_seed=1)',
            "sglang serve m/m --random-seed 1",
        ),
        (
            "from vllm import AsyncEngineArgs, AsyncLLMEngine\n"
            'a = AsyncEngineArgs(model="m/m", max_model_len=64)\n'
            "e = AsyncLLMEngine.from_engine_args(a)",
            "vllm serve m/m --max-model-len 64",
        ),
        (
            "from vllm import LLM\nimport sglang as sgl\n"
            'print(sgl.Engine(model_path="m/m"))',
            "sglang serve m/m",
        ),
        ("import vllm\nvllm.LLM(**options)", ""),
        ('class LLM: pass\nLLM(model="m/m")', ""),
        ("not python (", ""),
    ],
)
def test_the_server_with_the_options_of_a_script_s_engine(
    script: str, command: str
) -> None:
    assert offline_command(script) == command


def test_a_report_s_script_is_its_client_where_no_other_is() -> None:
    text = f"vllm 0.23.0: EngineDeadError\n\n```python\n{SCRIPT}```\n"
    issue = read_issue(text)
    assert (issue.client_kind, issue.server) == ("offline", COMMAND)
    assert issue.client == SCRIPT.rstrip("\n")
    both = read_issue(f"{text}\n```sh\ncurl localhost:8000/v1/models\n```")
    assert both.client_kind == "shell"


def test_a_script_needs_no_fence() -> None:
    script = (
        "import os\nfrom lmdeploy import pipeline, TurbomindEngineConfig\n\n"
        "pipe = pipeline('/m/x',\n                backend_config=TurbomindEngineConfig(tp=4))\n"
        "print(pipe(['hi']))"
    )
    text = f"lmdeploy 0.6.4\n\n### Reproduction\n\n{script}\n\n### Environment\n\nx\n"
    issue = read_issue(text)
    assert (issue.client_kind, issue.client) == ("offline", script)
    assert issue.server == "lmdeploy serve api_server /m/x"


def test_options_of_a_command_are_fields_of_the_engine_s_arguments() -> None:
    argv = ["x", "-m", "y", "--dtype", "float32", "--max-num-seqs", "2"]
    argv += ["--no-enable-prefix-caching", "--enforce-eager", "--o", '{"a": 1}']
    made = offline_settings("vllm", Path("/tiny"), argv, "client.py")
    assert made["script"] == "client.py"
    assert made["entries"][0]["options"] == {
        "dtype": "float32",
        "max_num_seqs": 2,
        "enable_prefix_caching": False,
        "enforce_eager": True,
        "o": {"a": 1},
        "model": "/tiny",
    }


ENGINE = """\
from dataclasses import dataclass


@dataclass
class Args:
    model: str = "default"
    size: int = 1
    secret: str = ""
    eager: bool = False

    def __post_init__(self):
        self.begun = True


@dataclass
class Form:
    kind: str = ""
    made: object = None


@dataclass
class Sampling:
    temperature: float = 1.0
    seed: int = 0
    form: Form | None = None
    hidden: object = None


class Engine:
    def __init__(self, **given):
        self.args = Args(**given)
        assert self.args.begun

    def generate(self, prompts, sampling_params=None):
        return f"{self.args.model} {self.args.size} {self.args.secret!r} {self.args.eager}"
"""
CALLER = """\
from toy import Engine, Form, Sampling
engine = Engine(model="real/model", size=8, secret="/etc/passwd")
print(engine.generate(["a", {"prompt_token_ids": [1, 2]}], Sampling(temperature=0)))
print(engine.generate("c", Sampling(form=Form(kind="x"), hidden=object())))
"""


def test_a_script_gets_another_model_and_nothing_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(ENGINE)
    (tmp_path / "client.py").write_text(CALLER)
    entry = {"module": "toy", "class": "Args", "model": "model"}
    call = {"module": "toy", "class": "Engine", "method": "generate", "nested": False}
    call |= {"path": "/v1/completions", "prompts": ["prompts"], "field": "prompt"}
    call |= {"parameters": ["sampling_params"], "ids": "input_ids"}
    options = {"model": "/tiny", "eager": True, "unknown": 1}
    settings = {"script": "client.py", "entries": [{**entry, "options": options}]}
    (tmp_path / "settings.json").write_text(json.dumps({**settings, "calls": [call]}))
    shutil.copy(reproducer_path("offline_run.py"), tmp_path)
    command = [sys.executable, "offline_run.py", "settings.json"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert _without_calls(done.stdout).split("\n") == [
        "",
        "",
        "/tiny 1 '' True",
        "",
        "/tiny 1 '' True",
        "",
    ]
    with tempfile.TemporaryFile() as output:
        output.write(done.stdout.encode())
        bodies = [json.loads(line)["body"] for line in _calls(output).split("\n")]
    assert bodies == [
        {"prompt": "a", "temperature": 0},
        {"input_ids": [1, 2], "temperature": 0},
        {"prompt": "c", "form": {"kind": "x"}},
    ]


CONFIGURED = """\
from dataclasses import dataclass


@dataclass
class Config:
    size: int = 1
    device_type: str = "cuda"


class Pipeline:
    def __init__(self, model_path, backend_config=None, secret=""):
        self.told = f"{model_path} {backend_config} {secret!r}"

    def infer(self, prompts, gen_config=None):
        return self.told
"""


def test_a_script_that_gives_a_configuration_gets_another(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(CONFIGURED)
    told = (
        'import toy\nprint(toy.Pipeline("real", toy.Config(8), secret="x").infer("a"))'
    )
    (tmp_path / "client.py").write_text(told)
    entry = {"module": "toy", "class": "Pipeline", "model": "model_path"}
    entry |= {"config": "backend_config", "config_module": "toy"}
    entry |= {"config_class": "Config"}
    more = {"model_path": "/tiny", "device": "cpu", "unknown": 1}
    made = {**entry, "options": more, "renamed": {"device": "device_type"}}
    call = {"module": "toy", "class": "Pipeline", "method": "infer", "nested": False}
    call |= {"path": "/v1/chat/completions", "prompts": ["prompts"]}
    call |= {"field": "messages", "parameters": ["gen_config"]}
    settings = {"script": "client.py", "entries": [made], "calls": [call]}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    shutil.copy(reproducer_path("offline_run.py"), tmp_path)
    done = subprocess.run(
        [sys.executable, "offline_run.py", "settings.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    last = done.stdout.strip().split("\n")[-1]
    assert last == "/tiny Config(size=1, device_type='cpu') ''"
    assert '{"messages": [{"role": "user", "content": "a"}]}' in done.stdout


OLDER = """\
import dataclasses
from engine import Engine

@dataclasses.dataclass
class Config:
    size: int = 1

def pipeline(model_path, backend_config=None, **more):
    return Engine(model_path, backend_config)
"""
OLDER_ENGINE = """\
class Engine:
    def __init__(self, model, config):
        self.what = f"{model} {config}"

    def infer(self, prompts):
        return self.what
"""


def test_a_release_that_has_a_function_in_place_of_a_class(tmp_path: Path) -> None:
    """As LMDeploy before 0.12, whose package has the name of the function besides."""
    (tmp_path / "older.py").write_text(OLDER)
    (tmp_path / "engine.py").write_text(OLDER_ENGINE)
    (tmp_path / "toy.py").write_text("from older import pipeline")
    told = 'import toy\nprint(toy.pipeline("real", secret="x").infer("a"))'
    (tmp_path / "client.py").write_text(told)
    entry = {"module": "toy.pipeline", "class": "Pipeline", "model": "model_path"}
    entry |= {"config": "backend_config", "config_module": "older"}
    entry |= {"config_class": "Config", "options": {"model_path": "/tiny", "size": 2}}
    instead = {"module": "older", "function": "pipeline", "also": ["toy"]}
    call = {"module": "engine", "class": "Engine", "method": "infer", "nested": False}
    call |= {"path": "/v1/chat/completions", "prompts": ["prompts"]}
    call |= {"field": "messages", "parameters": []}
    lacking = {**call, "module": "toy.pipeline"}
    settings = {
        "script": "client.py",
        "entries": [{**entry, "instead": instead}],
        "calls": [lacking, call],
    }
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    shutil.copy(reproducer_path("offline_run.py"), tmp_path)
    done = subprocess.run(
        [sys.executable, "offline_run.py", "settings.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().split("\n")[-1] == "/tiny Config(size=2)"
    assert '{"messages": [{"role": "user", "content": "a"}]}' in done.stdout
    assert done.stderr == ""


def test_a_release_without_the_entries_of_others_runs_no_script(
    tmp_path: Path,
) -> None:
    (tmp_path / "client.py").write_text("print('it ran')")
    entry = {"module": "json.newer", "class": "Pipeline", "config": "x"}
    settings = {"script": "client.py", "entries": [entry], "calls": []}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    shutil.copy(reproducer_path("offline_run.py"), tmp_path)
    done = subprocess.run(
        [sys.executable, "offline_run.py", "settings.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    printed = done.stderr.strip()
    assert printed.startswith("mmrepro: a script with its own engine is not read")
    said = _not_sent(ReportFacts(client="a script", output=f"noise\n{printed}\n"))
    assert said.startswith("no request was sent: a script with its own engine")
    assert "--container" not in said


def test_what_a_script_prints_as_a_call_may_be_anything() -> None:
    with tempfile.TemporaryFile() as output:
        for text in ("[]", "{", '{"body": 1}', '{"path": "/v1/x", "body": {}}'):
            output.write(f"\x1ecall {text}\n".encode())
        assert [json.loads(line)["url"] for line in _calls(output).split("\n")] == [
            "/v1/x"
        ]


def printed(*frames: str, last: str = "ValueError: x") -> ClientRun:
    lines = [f'  File "{frame}", line 3, in f' for frame in frames]
    trace = "\n".join(["Traceback (most recent call last):", *lines, last])
    return ClientRun(code=1, output=trace + "\n")


def test_an_exception_of_the_engine_is_told_from_the_script_s() -> None:
    engine = printed("/box/client.py", "/env/lib/site-packages/vllm/x.py")
    end = client_end(engine, "client.py", SCRIPT, offline=True)
    assert (end.in_engine, end.exception, end.raised) == (
        True,
        "ValueError",
        ["ValueError"],
    )
    own = client_end(printed("/box/client.py"), "client.py", SCRIPT, offline=True)
    assert not own.in_engine
    killed = client_end(ClientRun(code=-11), "client.py", SCRIPT, offline=True)
    assert killed.in_engine


LOUD = {"classes": ["death", "failing"]}


STARTS = {
    "classes": [FindingClass.START_FAILURE],
    "exceptions": ["ValueError"],
    "messages": ["the KV cache is too small"],
}


@pytest.mark.parametrize(
    ("claim", "more", "verdict"),
    [
        (LOUD, {}, ReproVerdict.REPRODUCED),
        (LOUD, {"failed": 1}, ReproVerdict.UNPROVEN),
        (LOUD, {"asked": 0}, ReproVerdict.NOTHING_TESTED),
        (LOUD | {"exceptions": ["KeyError"]}, {}, ReproVerdict.DIFFERENT),
        (
            LOUD,
            {"message": "Token id 100266 is out of vocabulary"},
            ReproVerdict.NOTHING_TESTED,
        ),
        ({"exceptions": ["ValueError"]}, {}, ReproVerdict.REPRODUCED),
        ({"about": ["stop"]}, {}, ReproVerdict.DIFFERENT),
        # Any two engines may fail to start by one kind of exception.
        (
            STARTS,
            {"asked": 0, "message": "KV cache too small"},
            ReproVerdict.REPRODUCED,
        ),
        (STARTS, {"asked": 0, "message": "no such file"}, ReproVerdict.NOTHING_TESTED),
    ],
)
def test_what_the_engine_in_a_script_shows(
    claim: dict[str, Any], more: dict[str, Any], verdict: ReproVerdict
) -> None:
    facts = {"in_engine": True, "exception": "ValueError", "raised": ["ValueError"]}
    facts |= {"code": 1, "asked": 1, "runs": 2, "failed": 2}
    end = ClientEnd.model_validate({**facts, **more})
    made = _of_engine(ReportFacts(claim=Claim.model_validate(claim), end=end))
    assert made is not None
    assert made[0] is verdict


def test_without_a_box_it_does_not_run(tmp_path: Path) -> None:
    player = Player.__new__(Player)
    player.starter = SimpleNamespace(boxed=False)  # type: ignore[assignment]
    wanted = ClientWanted(command=("python", "s.py"), folder=tmp_path, offline=True)
    with pytest.raises(UsageError, match="in a box only"):
        player.record(wanted, tmp_path)
    assert list(tmp_path.iterdir()) == []
