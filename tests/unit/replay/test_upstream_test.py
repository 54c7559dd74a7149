"""A finding as a test for the engine's own tree: what is written, and what is said
after it was run against made-up engines."""

import ast
import contextlib
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_up_replay import SERVER, finding, ghost_case, operation, replay
from mmrepro.base.errors import NotConfirmed, UsageError
from mmrepro.base.records import FindingClass
from mmrepro.cli.app import app
from mmrepro.engines import sglang
from mmrepro.engines.serving import serving
from mmrepro.failure.documents.replay import REPLAY_FILE, Expectation, Finding
from mmrepro.failure.documents.stored import document_json
from mmrepro.reports import replay_script
from mmrepro.reports.replay_script import upstream_test
from mmrepro.search.replay import upstream
from mmrepro.search.replay.upstream import confirmed
from mmrepro.traffic.case.files import write_case
from mmrepro.traffic.case.model import Case
from typer.testing import CliRunner

CASE = Case(
    title="made up",
    server=SERVER,
    operations=[operation("r1"), operation("r2", "r1.end")],
)
SGLANG = CASE.model_copy(
    update={
        "server": SERVER.model_copy(
            update={"engine": "sglang", "release": "0.5.6", "args": []}
        )
    }
)
FAILS = finding(CASE, FindingClass.SERVER_ERROR)


def text_of(one: Finding = FAILS, case: Case = CASE, checked: str = "") -> str:
    settings = replay().settings
    return upstream_test(
        one, case, None, settings=settings, deadline_s=1.0, checked=checked
    )


# ------------------------------------------------------------------ what is written


@pytest.mark.parametrize(
    "case", [CASE, SGLANG, ghost_case()], ids=["vllm", "sglang", "images"]
)
@pytest.mark.parametrize(
    "kind",
    [
        "hang",
        "death",
        "failing",
        "server-error",
        "canary",
        "protocol",
        "cache-bound",
        "wrong-answer",
    ],
)
def test_it_is_the_engine_s_own_kind_of_file(kind: str, case: Case) -> None:
    right = [Expectation(operation="r1", cached_at_most=16, text="yes")]
    one = finding(case, FindingClass(kind), expectations=right)
    text = text_of(one, case)
    tree = ast.parse(text, feature_version=(3, 9))
    compile(text, "test_upstream.py", "exec")
    modules = {
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [node.module]
            if isinstance(node, ast.ImportFrom)
            else [n.name for n in node.names]
        )
    }
    assert {name.partition(".")[0] for name in modules} - sys.stdlib_module_names <= {
        "sglang",
        "utils",
    }
    words = {
        "vllm": "from ...utils import RemoteOpenAIServer",
        "sglang": "popen_launch_server(",
    }
    assert words[case.server.engine] in text
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    used = {
        n.names[0].name.partition(".")[0]
        for n in tree.body
        if isinstance(n, ast.Import)
    }
    assert used <= names  # nothing is imported in vain
    assert max(map(len, text.splitlines())) < 200


def test_options_of_a_cpu_are_given_on_a_cpu_alone() -> None:
    settings = [
        *replay().settings,
        *(
            s.model_copy(update={"name": n, "value": v})
            for s in replay().settings[:1]
            for n, v in (("--device", "cpu"), ("--attention-backend", "torch_native"))
        ),
    ]
    text = upstream_test(FAILS, SGLANG, None, settings=settings, deadline_s=1.0)
    always = text.partition("SERVER_ARGS = ")[2].partition("\n#")[0]
    assert "--attention-backend" not in always
    assert "--device" not in text  # popen_launch_server gives it
    assert "torch_native" in text.partition('if get_device() == "cpu":')[2]
    named = tuple(name for name, _, _ in sglang.CPU_OPTIONS)
    assert serving("sglang").cpu_options == named


@pytest.mark.parametrize(
    ("one", "case", "says"),
    [
        (finding(CASE, FindingClass.RESIDUE), CASE, "nothing to compare for residue"),
        (FAILS, CASE.model_copy(update={"operations": []}), "no requests"),
        (
            FAILS,
            CASE.model_copy(
                update={"server": SERVER.model_copy(update={"engine": "lmdeploy"})}
            ),
            "written for vllm and sglang, not for lmdeploy",
        ),
        (
            FAILS,
            CASE.model_copy(
                update={"server": SERVER.model_copy(update={"model": "/my/own"})}
            ),
            "cannot be written by a test",
        ),
    ],
)
def test_what_cannot_be_a_test_is_a_sentence(
    one: Finding, case: Case, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        text_of(one, case)


# ------------------------------------------------------------------ run

ENGINE = """
import http.server, json, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    asked = 0

    def log_message(self, *_):
        pass

    def tell(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.tell(200, {"data": [{"id": "tiny"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.asked += 1
        how = os.environ["MADE_UP"]
        if how == "dies" and body.get("max_tokens") != 8:
            os._exit(9)
        if how == "hangs" and body.get("max_tokens") != 8:
            time.sleep(60)
        if how in ("fails", "never answers"):
            return self.tell(500, {"error": "made up"})
        message = {"message": {"content": "yes"}, "finish_reason": "stop"}
        self.tell(200, {"choices": [message], "usage": {}})

port = int(sys.argv[sys.argv.index("--port") + 1])
if os.environ["MADE_UP"] == "does not start":
    sys.exit(3)
model = [w for w in sys.argv[1:] if os.path.isfile(os.path.join(w, "model.safetensors"))]
assert model and "--max-model-len" in sys.argv or "--context-length" in sys.argv
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
UTILS = """
import os, signal, socket, subprocess, sys, time, unittest, urllib.request
DEFAULT_TIMEOUT_FOR_SERVER_LAUNCH = 20
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    DEFAULT_URL_FOR_TEST = f"http://127.0.0.1:{probe.getsockname()[1]}"
class CustomTestCase(unittest.TestCase):
    def _callTestMethod(self, method):  # as SGLang's own, which tries again
        try:
            super()._callTestMethod(method)
        except Exception:
            raise Exception("retry() exceed maximum number of retries.")
def popen_launch_server(model, url, timeout, other_args):
    port = url.rpartition(":")[2]
    words = [sys.executable, os.environ["ENGINE"], model, *other_args, "--port", port]
    child = subprocess.Popen(words)
    for _ in range(200):
        try:
            urllib.request.urlopen(url + "/health")
            return child
        except OSError:
            time.sleep(0.05)
    raise TimeoutError
def kill_process_tree(pid):
    os.kill(pid, signal.SIGKILL)
def get_device():
    return "cpu"
"""


@dataclass
class Made:
    """An environment that is none."""

    python: Path
    site_packages: Path

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def test_without_a_pytest_of_its_own_it_lends_that_of_the_engines_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mmrepro as a tool of uv has no pytest beside it."""
    environment = SimpleNamespace(site_packages=tmp_path / "none")
    assert upstream._pytest_for(environment, tmp_path) == tmp_path
    assert (tmp_path / "pytest").is_dir(), "its own, where it has one"
    tools = tmp_path / "tools"
    monkeypatch.setattr(upstream, "test_tools", lambda environment: tools)
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    assert upstream._pytest_for(environment, tmp_path / "lent") == tools


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each engine one whose "releases" are how it behaves."""
    engine, programs = tmp_path / "engine.py", tmp_path / "bin"
    engine.write_text(ENGINE)
    programs.mkdir()
    vllm = programs / "vllm"
    vllm.write_text(f'#!/bin/sh\nexec {sys.executable} {engine} "$@"\n')
    vllm.chmod(vllm.stat().st_mode | stat.S_IXUSR)
    package = tmp_path / "packages" / "sglang"
    for name in ("srt", "test"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "srt" / "utils.py").write_text(UTILS)
    (package / "test" / "test_utils.py").write_text(UTILS)

    def variables(
        environment: Made, server: object, release: str, folder: Path
    ) -> dict[str, str]:
        paths = os.pathsep.join([str(folder), str(tmp_path / "packages")])
        programs_first = os.pathsep.join([str(programs), os.environ["PATH"]])
        own = {"MADE_UP": release, "ENGINE": str(engine), "PYTHONPATH": paths}
        return {
            **os.environ,
            **own,
            "PATH": programs_first,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }

    made = Made(Path(sys.executable), tmp_path)
    monkeypatch.setattr(upstream, "ensure", lambda *_, **__: made)
    monkeypatch.setattr(upstream, "spec_for", lambda *_: None)
    monkeypatch.setattr(upstream, "_variables", variables)
    monkeypatch.setattr(replay_script, "_LEAST_DEADLINE_S", 1.0)


def run(one: Finding, case: Case, bad: str, good: str) -> str:
    server = case.server.model_copy(update={"release": bad})
    said: list[str] = []

    def write(checked: str) -> str:
        return text_of(one, case, checked)

    return confirmed(write, one.finding_class, server, good, said.append)


@pytest.mark.parametrize(
    ("case", "kind", "bad"),
    [
        pytest.param(CASE, "death", "dies", marks=pytest.mark.nightly),
        (CASE, "hang", "hangs"),
        (SGLANG, "server-error", "fails"),
    ],
)
def test_red_and_green(engines: None, case: Case, kind: str, bad: str) -> None:
    one = finding(case, FindingClass(kind))
    text = run(one, case, bad, "good")
    engine = case.server.engine
    head = " ".join(text.partition('"""')[2].partition('"""')[0].split())
    assert f"It fails with {engine} {bad}: " in head
    assert "retry()" not in head
    assert f"It passes with {engine} good. Run by mmrepro on a CPU, with" in head


@pytest.mark.parametrize(
    ("bad", "good", "says"),
    [
        ("good", "good", "is to fail with vllm good, where the finding is, and passes"),
        (
            "fails",
            "fails",
            "is to pass with vllm fails, which should be .* and fails: request r1: 500",
        ),
        (
            "does not start",
            "good",
            "and cannot be run: RuntimeError: Server exited unexpectedly",
        ),
    ],
)
def test_what_does_not_tell_them_apart_is_not_handed_out(
    engines: None, bad: str, good: str, says: str
) -> None:
    with pytest.raises(NotConfirmed, match=says) as raised:
        run(FAILS, CASE, bad, good)
    assert raised.value.exit_code == 3
    assert raised.value.hint.startswith("--no-run")


def test_a_server_that_never_answered_is_no_death(engines: None) -> None:
    """Where nothing is answered before the requests either, the test says so, and is
    red."""
    with pytest.raises(NotConfirmed, match="it answers nothing at all"):
        run(finding(CASE, FindingClass.DEATH), CASE, "never answers", "good")


def test_a_start_that_fails_is_red_where_it_is_the_finding(engines: None) -> None:
    one = finding(CASE, FindingClass.START_FAILURE)
    text = " ".join(run(one, CASE, "does not start", "").split())
    assert "It fails with vllm does not start: " in text
    assert "It was not run on a tree without the failure: none was named." in text


# ------------------------------------------------------------------ typed


def test_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "replays" / "r"
    write_case(CASE, folder / "f1")
    (folder / REPLAY_FILE).write_text(document_json(replay(FAILS)))
    typed = lambda *words: CliRunner().invoke(app, ["report", *words])  # noqa: E731
    done = typed("f1", "--format", "upstream-test", "--no-run")
    assert done.exit_code == 0, done.exception
    assert "It was not run." in done.stdout
    compile(done.stdout, "test_upstream.py", "exec")
    for words, says in (
        (("f1", "--no-run"), "are for --format upstream-test"),
        (
            ("f1", "--format", "md", "--good", "0.24.0"),
            "are for --format upstream-test",
        ),
        (("replays/r", "--format", "upstream-test"), "Choose one finding for a test"),
    ):
        done = typed(*words)
        assert isinstance(done.exception, UsageError)
        assert says in done.exception.message
