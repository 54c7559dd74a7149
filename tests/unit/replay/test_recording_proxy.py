"""The recording proxy, and a client that runs against it with nothing else."""

import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mmrepro.base.box import inside
from mmrepro.base.errors import UsageError
from mmrepro.search.replay.known import usual_server
from mmrepro.traffic.capture.client import (
    ClientWanted,
    _variables,
    beside,
    called,
    pictures_in,
    run_client,
    run_trusted,
    with_plain_addresses,
    with_plain_commands,
)
from mmrepro.traffic.capture.proxy import (
    CLIENT_LEFT,
    NO_ANSWER,
    SERVER_CLOSED,
    RecordingProxy,
)
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.capture.recording_box import BoxedRecording

needs_box = pytest.mark.usefixtures("a_box")
PYTHON = Path(sys.executable).resolve()
"""The interpreter that a client gets: no environment of an engine is needed here."""


class Server(BaseHTTPRequestHandler):
    """Tells what it got; streams, breaks off, or is silent, by the path."""

    protocol_version = "HTTP/1.1"
    read = threading.Event()
    """The client has the first piece of a stream; before that the next is not sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/stream":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for piece in (b"data: 1\n\n", b"data: [DONE]\n\n"):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
                assert self.read.wait(60)
            self.wfile.write(b"0\r\n\r\n")
            return
        if self.path == "/break":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if self.path == "/silence":
            time.sleep(3)
        said = {
            "path": self.path,
            "key": self.headers.get("Authorization"),
            "got": body.decode(),
        }
        self._answer(json.dumps(said).encode())

    def do_GET(self) -> None:
        self._answer(b'{"data": [{"id": "tiny"}]}')

    def do_PUT(self) -> None:
        self.do_POST()

    def do_DELETE(self) -> None:
        self.do_POST()

    def _answer(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server() -> Iterator[int]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.server_address[1]
    made.shutdown()
    made.server_close()


@pytest.fixture
def proxied(server: int) -> Iterator[tuple[RecordingProxy, int]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with RecordingProxy(server, "tiny") as proxy:
        proxy.listen(port)
        yield proxy, port


def ask(
    port: int, path: str, body: bytes = b"", method: str = "POST", **headers: str
) -> bytes:
    one = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    one.request(method, path, body or None, headers)
    return one.getresponse().read()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_any_request_passes_and_is_recorded(
    proxied: tuple[RecordingProxy, int], method: str
) -> None:
    proxy, port = proxied
    body = b'{"model": "a/b", "x": {"model": "kept"}}'
    got = json.loads(ask(port, "/any?q=1", body, method, Authorization="Bearer k"))
    assert got["path"] == "/any?q=1"
    assert got["key"] == "Bearer k"
    assert got["got"] == '{"model": "tiny", "x": {"model": "kept"}}'
    (entry,) = proxy.entries
    assert entry["request"]["method"] == method
    assert entry["request"]["url"].endswith("/any?q=1")
    assert entry["request"]["postData"]["text"] == body.decode()
    assert entry["response"]["status"] == 200


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (
            b'{"x": {"model": "in"}, "model":"a"}',
            b'{"x": {"model": "in"}, "model":"tiny"}',
        ),
        (b'{"text": "\\"model\\": \\"no\\""}', b'{"text": "\\"model\\": \\"no\\""}'),
        (b'{"model": "a", broken', b'{"model": "tiny", broken'),
        (b'{"prompt": "\xff"}', b'{"prompt": "\xff"}'),
        (
            (
                b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nw\r\n'
                b"--B--\r\n"
            ),
            (
                b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\ntiny\r\n'
                b"--B--\r\n"
            ),
        ),
    ],
)
def test_only_the_models_name_is_replaced(body: bytes, sent: bytes) -> None:
    assert RecordingProxy(0, "tiny").served_name(body) == sent


def test_a_stream_comes_piece_by_piece(
    proxied: tuple[RecordingProxy, int], tmp_path: Path
) -> None:
    proxy, port = proxied
    one = http.client.HTTPConnection("127.0.0.1", port, timeout=50)
    one.request("POST", "/stream", b"{}")
    answer = one.getresponse()
    first = answer.readline()
    Server.read.set()
    answer.read()
    proxy.write(tmp_path / "recorded.har")  # waits for what is not whole yet
    assert first == b"data: 1\n"
    assert proxy.entries[0]["response"]["content"]["text"].endswith("data: [DONE]\n\n")


def test_who_broke_off_is_told_apart(proxied: tuple[RecordingProxy, int]) -> None:
    proxy, port = proxied
    with pytest.raises(http.client.RemoteDisconnected):
        ask(port, "/break", b"{}")
    assert proxy.entries[0]["response"]["_error"] == SERVER_CLOSED
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"POST /silence HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
    end = time.monotonic() + 50
    while len(proxy.entries) < 2 or not proxy.silent_s:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert proxy.entries[1]["response"]["_error"] == NO_ANSWER
    client.close()
    while (
        proxy.entries[1]["response"]["_error"] != CLIENT_LEFT and time.monotonic() < end
    ):
        time.sleep(0.02)
    assert proxy.entries[1]["response"]["_error"] == CLIENT_LEFT


def test_what_a_library_repeats_is_not_recorded(
    proxied: tuple[RecordingProxy, int],
) -> None:
    proxy, port = proxied
    for number in range(3):
        ask(
            port,
            "/v1/chat/completions",
            b"{}",
            **{"X-Stainless-Retry-Count": str(number)},
        )
    assert (len(proxy.entries), proxy.retried) == (1, 2)
    assert "2 requests" in proxy.notes[0]


def test_a_chunked_body_is_read_whole(proxied: tuple[RecordingProxy, int]) -> None:
    _, port = proxied
    one = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    one.request("POST", "/x", iter([b'{"a":', b" 1}"]), encode_chunked=True)
    assert json.loads(one.getresponse().read())["got"] == '{"a": 1}'


def test_the_recording_is_read_as_a_case(
    proxied: tuple[RecordingProxy, int], tmp_path: Path
) -> None:
    proxy, port = proxied
    ask(port, "/v1/completions", b'{"model": "m", "prompt": "hi"}')
    proxy.write(tmp_path / "recorded.har")
    captured = read(tmp_path / "recorded.har", usual_server("vllm"))
    (op,) = captured.case.operations
    assert (op.path, op.prompt) == ("/v1/completions", "hi")


# ----------------------------------------------------------------------------- a client


def test_addresses_of_servers_are_found_and_those_of_pictures_are_not() -> None:
    script = """
    client = OpenAI(base_url="http://localhost:8001/v1")
    requests.post("http://gpu-box:9000/generate"); requests.get("http://10.1.2.3:7000/health")
    conn = HTTPConnection("127.0.0.1", 30001); url = "https://example.com/cat.png"
    curl http://$HOST:8002/v1/models
    """
    found = called(script)
    assert set(found.ports) == {8001, 9000, 7000, 30001}
    assert (found.names, found.numbers, found.variables) == (
        ("gpu-box",),
        ("10.1.2.3",),
        ("HOST",),
    )


def test_variables_and_ports_that_a_script_reads() -> None:
    found = called(
        "import os\nfor p in (8000, 8101): ask(os.environ['A_URL'], os.getenv(\"B\"), "
        "p)\n"
        "os.getenv('C', 'http://localhost:8000')"
    )
    assert found.reads == ("A_URL", "B")
    assert 8101 in found.guessed
    shell = (
        'for i in 1 2; do curl 10.0.0.5:8102/v1/models "$D_URL/v1" $i; done\n'
        "E=1; echo $E"
    )
    assert called(shell).reads == ("D_URL",)
    assert (called(shell).ports, called(shell).numbers) == ((8102,), ("10.0.0.5",))


@pytest.mark.parametrize(
    ("script", "url"),
    [
        ("OpenAI(base_url=os.environ['A_URL'])", "http://127.0.0.1:8000/v1"),
        ("OpenAI(base_url=os.environ['A_URL'] + '/v1')", "http://127.0.0.1:8000"),
        ("post(os.environ['A_URL'] + '/v1/chat')", "http://127.0.0.1:8000"),
        ("get(os.environ['A_URL'] + '/health')", "http://127.0.0.1:8000"),
    ],
)
def test_a_variable_holds_the_address_as_the_script_goes_on_with_it(
    script: str, url: str, tmp_path: Path
) -> None:
    wanted = ClientWanted(("python", "a.py"), tmp_path, script=script)
    variables = _variables(wanted, called(script), 8000, "tiny")
    assert variables["A_URL"] == url


def test_what_prepares_an_environment_is_left_out() -> None:
    shell = (
        "pip install -q openai && uv run --with x python a.py\nuv pip install "
        "y\nuv run b.py 1\n"
    )
    assert with_plain_commands(shell) == ":&& python a.py\n:\npython3 b.py 1\n"
    assert with_plain_commands("echo pip; python a.py") == "echo pip; python a.py"


def test_pictures_of_a_script() -> None:
    script = "open('cat.jpg'); f('/data/a.PNG'); 'https://e.example/x.png'; <img.webp>"
    assert pictures_in(script) == ["cat.jpg", "/data/a.PNG", "img.webp"]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Path]:
    """A Unix socket that leads to the port that a connection's first line names: as a
    server's box has one."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "door"))
        (tmp_path / "door").chmod(0o666)
        listener.listen(64)
        relay = inside.Relay(listener, inside.to_port)
        threading.Thread(target=relay.accept, daemon=True).start()
        yield tmp_path / "door"


def wanted(folder: Path, script: str, *words: str, **more: Any) -> ClientWanted:
    return ClientWanted(
        words,
        folder,
        script=script,
        python=PYTHON,
        readable=(PYTHON.parent.parent,),
        **more,
    )


def recorded(recording: BoxedRecording, folder: Path) -> list[dict[str, Any]]:
    """The entries that were recorded."""
    recording.write(folder / "recorded.har")
    entries: list[dict[str, Any]]
    entries = json.loads((folder / "recorded.har").read_text())["log"]["entries"]
    return entries


READS = """
import os, tempfile, urllib.request
for port in ("8000", os.environ["MY_PORT"], "8104"):
    url = f"http://{os.environ['MY_HOST']}:{port}/v1/models"
    print(urllib.request.urlopen(url).status)
print(urllib.request.urlopen(os.environ["SERVER_URL"] + "/v1/models").status)
print(os.environ["MY_API_KEY"], os.environ["THE_MODEL"], 8104)
open("/tmp/of-the-client", "w").write("x")
"""


@needs_box
def test_a_client_finds_what_it_reads_and_has_a_tmp_of_its_own(
    server: int, door: Path, tmp_path: Path
) -> None:
    with (
        beside(None, READS, "client.py") as folder,
        BoxedRecording(door, server, "tiny") as recording,
    ):
        made = run_client(wanted(folder, READS, "python3", "client.py"), recording)
        entries = recorded(recording, tmp_path)
    assert made.code == 0, made.output
    assert made.output.split() == ["200", "200", "200", "200", "EMPTY", "tiny", "8104"]
    assert not Path("/tmp/of-the-client").exists()
    hosts = {one["request"]["url"].split("/")[2] for one in entries}
    assert len(hosts) == 1, "one server answers for all"
    assert "8104: one server answers for all" in " ".join(recording.notes)


def test_what_no_proxy_can_answer_for_is_replaced() -> None:
    text, said = with_plain_addresses(
        "curl https://my.host/v1/models http://<server-ip>:8000/v1/x"
    )
    assert text == "curl http://127.0.0.1:443/v1/models http://127.0.0.1:8000/v1/x"
    assert len(said) == 2
    same = "image: https://example.com/cat.png"
    assert with_plain_addresses(same) == (same, [])


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("curl http://HOST:PORT/v1/models", "curl http://127.0.0.1:8000/v1/models"),
        ("curl http://<host>:<port>/health", "curl http://127.0.0.1:8000/health"),
        ("curl http://YOUR_SERVER:9000/v1", "curl http://127.0.0.1:9000/v1"),
        ("curl http://10.1.2.3:PORT/v1", "curl http://127.0.0.1:8000/v1"),
        ("curl http://node-1:8000/v1", "curl http://node-1:8000/v1"),
        ("curl http://$HOST:$PORT/v1", "curl http://$HOST:$PORT/v1"),
    ],
)
def test_an_address_to_be_filled_in_is_the_server(typed: str, read: str) -> None:
    assert with_plain_addresses(typed)[0] == read


CLIENT = """
import json, os, socket, urllib.request
for url in ("http://localhost:8123/v1/models", "http://gpu-box:9000/generate"):
    print(urllib.request.urlopen(urllib.request.Request(url, b'{"model": "x"}')).read())
print("ours" if "MMREPRO_TEST" in os.environ else "none of ours", os.environ["OPENAI_BASE_URL"])
try:
    socket.create_connection(("192.0.2.1", 80), 1)
except OSError as error:
    print("no network", error.errno)
try:
    open(os.path.expanduser(OUTSIDE), "w")
except OSError:
    print("read-only")
open("own", "w").write("x")
"""


@needs_box
def test_a_client_reaches_the_server_and_nothing_else(
    server: int, door: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMREPRO_TEST", "secret")
    script = CLIENT.replace("OUTSIDE", repr(str(tmp_path / "outside")))
    with (
        beside(None, script, "client.py") as folder,
        BoxedRecording(door, server, "tiny") as recording,
    ):
        made = run_client(wanted(folder, script, "python3", "client.py"), recording)
        entries = recorded(recording, tmp_path)
    assert made.code == 0, made.output
    assert "box" in made.isolation
    lines = made.output.splitlines()
    assert "tiny" in lines[0]
    assert "/generate" in lines[1]
    assert lines[2].startswith("none of ours http://127.0.0.1:8123/v1")
    assert lines[3].startswith("no network")
    assert lines[4] == "read-only"
    assert not (tmp_path / "outside").exists()
    assert [one["request"]["method"] for one in entries] == ["POST", "POST"]


@needs_box
@pytest.mark.parametrize(
    ("script", "code", "ended"),
    [
        ("exit 3", 3, ""),
        ("sleep 60", None, "it had not ended after 1 s"),
        ("nope", 127, ""),
    ],
)
def test_how_a_client_ended(
    server: int, door: Path, script: str, code: int | None, ended: str
) -> None:
    with (
        beside(None, script, "client.sh") as folder,
        BoxedRecording(door, server, "tiny") as recording,
    ):
        # A busy machine takes seconds to begin.
        limit_s = 60.0 if code is not None else 1.0
        asked = wanted(folder, script, "bash", "client.sh", limit_s=limit_s)
        made = run_client(asked, recording)
    assert (made.code, made.ended) == (code, ended)


@needs_box
def test_a_recorder_that_is_brought_down_brings_down_nothing_else(
    server: int, door: Path, tmp_path: Path
) -> None:
    with BoxedRecording(door, server, "tiny") as recording:
        assert recording._box is not None
        recording._box.end()
        with pytest.raises(UsageError, match="could not be recorded"):
            recording.write(tmp_path / "recorded.har")


def test_what_lies_beside_a_script_comes_along(tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text("{}")
    (tmp_path / "client.py").write_text("1")
    with beside(tmp_path / "client.py", "2", "client.py") as folder:
        assert (folder / "data.json").read_text() == "{}"
        assert (folder / "client.py").read_text() == "2"
    assert not folder.exists()
    assert (tmp_path / "client.py").read_text() == "1"


def test_nothing_of_a_home_and_no_link_comes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = tmp_path / ".ssh"
    secrets.mkdir()
    (secrets / "id_rsa").write_text("key")
    (tmp_path / "link").symlink_to(secrets)
    (tmp_path / "key").symlink_to(secrets / "id_rsa")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "client.py").write_text("1")
    with beside(tmp_path / "client.py", "2", "client.py") as folder:
        assert [file.name for file in folder.iterdir()] == ["client.py"]
    (tmp_path / "data.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    with beside(tmp_path / "client.py", "2", "client.py") as folder:
        assert [file.name for file in folder.iterdir()] == ["client.py"], (
            "of a home nothing"
        )


def test_folders_of_any_depth_and_size_are_no_trouble(tmp_path: Path) -> None:
    place = tmp_path / "deep"
    place.mkdir()
    handle = os.open(place, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=handle)
        below = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = below
    os.close(handle)
    (tmp_path / "client.py").write_text("1")
    try:
        with beside(tmp_path / "client.py", "2", "client.py") as folder:
            assert (folder / "client.py").read_text() == "2"
    finally:
        subprocess.run(["rm", "-rf", str(place)], check=True)
    for number in range(2100):
        (tmp_path / str(number)).touch()
    with beside(tmp_path / "client.py", "2", "client.py") as folder:
        assert len(list(folder.iterdir())) == 1


# ----------------------------------------------------- where the user trusts the report


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.mark.skipif(not shutil.which("curl"), reason="no curl here")
def test_a_trusted_client_calls_a_proxy_that_listens_where_it_calls(
    server: int,
) -> None:
    port = free_port()
    script = f"curl -s http://localhost:{port}/v1/models"
    with (
        beside(None, script, "client.sh") as folder,
        RecordingProxy(server, "tiny") as proxy,
    ):
        made = run_trusted(
            ClientWanted(("bash", "client.sh"), folder, script=script), proxy
        )
    assert "this machine's network" in made.isolation
    assert "tiny" in made.output
    assert len(proxy.entries) == 1


@pytest.mark.parametrize("taken", [True, False])
def test_a_trusted_client_of_a_taken_port_or_another_host_is_refused(
    server: int, taken: bool
) -> None:
    where = f"http://localhost:{server}" if taken else "http://192.0.2.1:8123"
    script = f"curl -s {where}/v1/models"
    words = f"port {server}" if taken else "192.0.2.1"
    with (
        beside(None, script, "client.sh") as folder,
        RecordingProxy(server, "tiny") as proxy,
        pytest.raises(UsageError, match=words) as error,
    ):
        run_trusted(ClientWanted(("bash", "client.sh"), folder, script=script), proxy)
    assert "bubblewrap" in error.value.hint


CONTAINERS = r"""#!/bin/sh
echo "$0 $@" >> {calls}
case $1 in run) exec sleep 60;; esac
"""


@needs_box
@pytest.mark.parametrize("program", ["docker", "podman"])
def test_a_container_has_no_network_and_only_the_clients_folder(
    server: int,
    door: Path,
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = tmp_path / "calls"
    for name in {"docker", "podman"} - {program}:
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o700)
    (tmp_path / program).write_text(CONTAINERS.format(calls=calls))
    (tmp_path / program).chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    script = "curl http://gpu-box:8000/v1/models http://192.0.2.7:8000/health"
    with (
        beside(None, script, "client.sh") as folder,
        BoxedRecording(door, server, "tiny") as recording,
    ):
        aside = str(folder.parent)
        words = ("bash", "client.sh")
        asked = ClientWanted(
            words, folder, script=script, image="python:3.12", limit_s=0.3
        )
        monkeypatch.setattr(os, "getuid", lambda: 1000)
        made = run_client(asked, recording)
        assert "http://127.0.0.1:8000/health" in (folder / "client.sh").read_text()
    assert made.ended == "it had not ended after 0 s"
    assert made.notes == ["192.0.2.7 is read as 127.0.0.1."]
    _, text, removal = calls.read_text().splitlines()
    command = text.split()
    assert "--network none" in text
    assert "--cap-drop ALL" in text
    assert command.count("--volume") == 2
    assert f"--volume {aside}:/mmrepro" in text
    assert "--add-host gpu-box:127.0.0.1" in text
    assert "PATH=" not in text  # the image knows where its programs lie
    assert ("--userns keep-id" in text) is (program == "podman")
    assert "--socket /recording.sock" in text
    assert command[-2:] == ["bash", "client.sh"]
    assert removal.split()[1:] == [
        "rm",
        "--force",
        command[command.index("--name") + 1],
    ]
