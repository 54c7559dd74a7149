"""A client that a report brings: run in a box of its own, where it reaches a recording
and nothing else.

It is nobody's whom we know. Without a box it runs only where the user has read it and
says so (``--trust-report``), and then it has this machine's network and files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Final, Protocol

from mmrepro.base.box import TEMPORARY, WORK, Box, BoxOrder, Leads, Limits
from mmrepro.base.errors import UsageError
from mmrepro.base.machine import cache_root
from mmrepro.base.records import Record
from mmrepro.engines.models import MODELS_DIR, hub_models_named, write_hub
from mmrepro.engines.serving import default_ports
from mmrepro.reproducers import reproducer_path
from mmrepro.traffic.capture.proxy import RecordingProxy
from mmrepro.traffic.capture.recording_box import BoxedRecording

MEMORY, CPU_S = 8 << 30, 300
LIMIT_S, SILENT_S, DEAD_S = 120.0, 60.0, 5.0
"""Seconds that a client may take; without anything that comes of what it waits for (an
answer that fills a tiny model's context takes some 20 on quiet cores); and
after the server's end."""
COPIED_BYTES, COPIED_FILES, COPIED_DEPTH = 64 << 20, 2000, 20
OUTPUT, MOST_OUTPUT = 64 << 10, 256 << 20
_PROCESSES = 512
_POLL_S = 0.05
_WEB_PORTS: Final = (8080, 80)
"""That clients call by default, beside those of the engines."""
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", "[::1]"})  # noqa: S104
_API: Final = (
    r"/(?:v\d|generate|inference|health|metrics|open_session|score|rerank"
    r"|pooling|ping)\b"
)
_ADDRESS: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+"
    r"|<[^>\s]{1,40}>)"
    r"(?::(?:(?P<port>\d{1,5})|(?P<gap><[^>\s]{1,40}>|[A-Z][A-Z_]{2,20}\b)))?"
    rf"(?P<api>{_API})?"
)
_HOST_TO_FILL: Final = re.compile(r"<|[A-Z][A-Z_]{2,20}$")
"""A host's place in a text that others are to fill in."""
_PAIR: Final = re.compile(
    r"""["'`\s=(]([\w.-]*[A-Za-z0-9])["']?(?::|["'],\s*(?:port\s*=\s*)?)(\d{2,5})\b"""
)
_PORT: Final = re.compile(r"\bport\b[\"']?\s*[:=]\s*[\"']?(\d{2,5})\b", re.IGNORECASE)
_BARE: Final = re.compile(
    r"""(?:\s|["'])((?:\d+\.){3}\d+|[A-Za-z][\w-]*(?:\.[\w-]+)+):(\d{2,5})(?=/)"""
)
"""A host and its port, as curl takes them without a scheme."""
_NUMBER: Final = re.compile(r"(?<![\w.])(\d{4,5})(?![\w.])")
_MANY_PORTS: Final = 40
MOST_PORTS, MOST_HOSTS = 200, 100
"""A script may name thousands; so many lead to the recording."""
_VARIABLE: Final = re.compile(r"https?://\$\{?([A-Za-z_]\w*)\}?")
_READ: Final = re.compile(
    r"""environ\[["'](\w+)["']\]|(?:environ\.get|getenv)\(\s*["'](\w+)["']\s*\)|\$(?:(\w+)|\{(\w+)\})"""
)
"""A variable that a script reads, and for which it has no value of its own."""
_PICTURE: Final = re.compile(
    r"(?<![\w.:/~-])(/?(?:[\w.-]+/)*[\w.-]+\.(?:jpe?g|png|webp|bmp))(?![\w/])",
    re.IGNORECASE,
)
_PREPARES: Final = re.compile(
    r"^([ \t]*)(?:sudo[ \t]+)?(?:(?:uv[ \t]+)?pip3?|python3?[ \t]+-m[ \t]+pip"
    r"|apt(?:-get)?|conda|"
    r"source|\.)[ \t]+(?:-\S+[ \t]+)*(?:install|update|activate"
    r"|\S*/activate)\b[^\n;&|]*",
    re.MULTILINE,
)
_RUNNER: Final = re.compile(
    r"\b(?:uv|poetry|pixi|pdm|rye|hatch)[ \t]+run[ \t]+"
    r"(?:--?[\w-]+(?:[ =](?!python)[\w.\[\]=<>-]+)?[ \t]+)*"
    r"(?=(?:python|\S+\.py\b|-))"
)


@dataclass(frozen=True)
class ClientWanted:
    """A client as it is run.

    Attributes:
        command: its words; the first one is a program.
        folder: its files: they are copied into its box, where it starts beside them.
        script: what it says, for the addresses in it; "": not known.
        image: of a container; "": none.
        ports: further ones that it may call.
        limit_s: seconds that it may take.
        python: what the word ``python`` means to it: an environment's, with its
            packages.
        readable: what its box shows besides: that environment.
        offline: it has the engine in its own process, and asks no server.
    """

    command: tuple[str, ...]
    folder: Path
    script: str = ""
    image: str = ""
    ports: tuple[int, ...] = ()
    limit_s: float = LIMIT_S
    python: Path | None = None
    readable: tuple[Path, ...] = ()
    offline: bool = False


class ClientRun(Record):
    """What came of it.

    Attributes:
        code: its exit code; None: it was ended, and ``ended`` says why.
        output: the last that it printed.
        isolation: a sentence.
        ran: false: the server did not start.
        died: the server ended meanwhile.
        calls: what a script asked of the engine in its own process, a request of a
            batch file on each line.
    """

    code: int | None = None
    ended: str = ""
    output: str = ""
    isolation: str = ""
    seconds: float = 0.0
    ran: bool = True
    died: bool = False
    notes: list[str] = []
    calls: str = ""


# ---------------------------------------------------------------------- addresses in it


@dataclass(frozen=True)
class CalledServers:
    """What a script calls.

    Attributes:
        ports: in an address.
        guessed: numbers in it that may be further ports.
        names, numbers: hosts by name, and by address.
        variables: those that stand for a host.
        reads: variables of the environment that it has no value for.
    """

    ports: tuple[int, ...] = ()
    guessed: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


def called(script: str) -> CalledServers:
    """Return the servers that ``script`` names. An address without a port and without a
    path of the API is none: a picture's, say."""
    ports: list[int] = []
    hosts: list[str] = []
    for address in _ADDRESS.finditer(script):
        host, port = address["host"], address["port"]
        if port or address["api"] or host in _LOCAL:
            ports.append(int(port or 80))
            hosts.append(host)
    for host, number in _PAIR.findall(script):
        if host in _LOCAL:
            ports.append(int(number))
    for host, number in _BARE.findall(script):
        ports.append(int(number))
        hosts.append(host)
    ports += [int(number) for number in _PORT.findall(script)]

    # A placeholder in angle brackets, or an address of IPv6, is none to look up.
    others = [h for h in dict.fromkeys(hosts) if h not in _LOCAL and h[0] not in "<["]
    numbers = [host for host in others if _IPV4.fullmatch(host)]
    names = [host for host in others if host not in numbers]
    known = {*_SETS.findall(script), *_LOOPS.findall(script)}
    variables = [v for v in dict.fromkeys(_VARIABLE.findall(script)) if v not in known]
    reads: dict[str, None] = {}
    for forms in _READ.findall(script):
        # One of the pattern's forms matched: the others are empty.
        name = next(filter(None, forms))
        if name not in known:
            reads[name] = None
    guessed: dict[int, None] = {}
    for text in _NUMBER.findall(script):
        if 1024 <= int(text) < 65536:
            guessed[int(text)] = None
    return CalledServers(
        ports=tuple(port for port in dict.fromkeys(ports) if 0 < port < 65536),
        guessed=tuple(guessed)[:_MANY_PORTS],
        reads=tuple(reads),
        names=tuple(names),
        numbers=tuple(numbers),
        variables=tuple(variables),
    )


_IPV4: Final = re.compile(r"\d+(?:\.\d+){3}")
_SETS: Final = re.compile(r"^[ \t]*(?:export\s+)?([A-Za-z_]\w*)=", re.MULTILINE)
_LOOPS: Final = re.compile(r"\b(?:for|read|local|declare)\s+(?:-\w+\s+)*(\w+)")
"""Variables that a script sets itself: by an assignment, and by other words."""


def with_plain_addresses(script: str) -> tuple[str, list[str]]:
    """Return ``script`` with a local address in place of what no proxy can answer for:
    a placeholder (``<host>``, ``HOST:PORT``), or a server behind TLS; and sentences on
    that."""
    changed: list[str] = []

    def plain(address: re.Match[str]) -> str:
        host = address["host"]
        is_placeholder = bool(_HOST_TO_FILL.match(host) or address["gap"])
        is_server = bool(address["port"] or address["api"]) or host in _LOCAL
        behind_tls = address["scheme"] == "https" and is_server
        if not is_placeholder and not behind_tls:
            return address[0]
        port = address["port"] or ("8000" if is_placeholder else "443")
        new = f"http://127.0.0.1:{port}{address['api'] or ''}"
        changed.append(f"{address[0]} is read as {new}.")
        return new

    return _ADDRESS.sub(plain, script), list(dict.fromkeys(changed))


def with_plain_commands(script: str) -> str:
    """Drop from a shell's script what prepares an environment: it runs in one that has
    no network."""
    script = _PREPARES.sub(r"\1:", script)
    script = _RUNNER.sub("python3 ", script)
    return script.replace("python3 python", "python")


def pictures_in(script: str) -> list[str]:
    """Files of pictures that a script names; not those of other hosts."""
    return list(dict.fromkeys(_PICTURE.findall(script)))


# --------------------------------------------------------------------------- its folder


@contextlib.contextmanager
def beside(script: Path | None, text: str = "", name: str = "client") -> Iterator[Path]:
    """Make a new folder with a client's files, which is removed at the end: a copy of
    what lies beside ``script``, if that is not too much, and in it ``text`` as
    ``name``.

    Nothing in it is a link, so that what is written into it later stays there.
    """
    with tempfile.TemporaryDirectory(
        prefix="mmrepro-client-", ignore_cleanup_errors=True
    ) as made:
        folder = Path(made).resolve() / "work"
        folder.mkdir()
        if script is not None:
            source = script.resolve().parent
            for file in _copied_with(source):
                target = folder / file.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(OSError):  # it went away, or is closed to us
                    _copy_plain(file, target)
        if text:
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        yield folder


def _copied_with(folder: Path) -> list[Path]:
    """Return the plain files in and below ``folder`` that a client gets; none where
    they are too many or too large, or where the folder is a home or holds one.

    Files and folders whose names begin with a dot are left out: those of a home hold
    keys, and those of a project hold environments and histories."""
    home = Path.home().resolve()
    if home == folder or home.is_relative_to(folder):
        return []
    chosen: list[Path] = []
    total = 0
    for place, folders, names in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        visible = [name for name in folders if not name.startswith(".")]
        # os.walk goes into the folders that are left in its own list.
        folders[:] = visible if depth < COPIED_DEPTH else []
        for name in names:
            file = Path(place) / name
            if name.startswith(".") or file.is_symlink() or not file.is_file():
                continue
            with contextlib.suppress(OSError):
                total += file.lstat().st_size
                chosen.append(file)
            if len(chosen) > COPIED_FILES or total > COPIED_BYTES:
                return []
    return chosen


def _copy_plain(file: Path, target: Path) -> None:
    """Copy a plain file. Raises OSError: it is a link, or is none any more."""
    handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as source, target.open("xb") as copy:
        copy.write(source.read(COPIED_BYTES))


# ------------------------------------------------------------------------------ its run


class WatchedRecording(Protocol):
    """What a client's requests go through: a proxy in this process, or one in a box."""

    model: str

    @property
    def silent_s(self) -> float:
        """Seconds since anything came of the requests that wait; 0: none does."""


def run_client(
    wanted: ClientWanted,
    recording: BoxedRecording,
    *,
    alive: Callable[[], bool] = lambda: True,
) -> ClientRun:
    """Run a client in a box, or in a container of its own, to its end or until it takes
    too long.

    Args:
        alive: whether the server behind the recording still runs.

    Raises:
        NoBox: there is none here.
        UsageError: it cannot be run here.
    """
    calls = called(wanted.script)
    ports = _ports(wanted, calls)
    variables = _variables(wanted, calls, ports[0], recording.model)
    if wanted.image:
        return _run_contained(wanted, recording, calls, ports, variables, alive)
    order = BoxOrder(
        argv=wanted.command,
        env={**variables, "HOME": str(WORK), "TMPDIR": str(TEMPORARY)},
        readable=wanted.readable,
        copied=(wanted.folder,),
        leads=(Leads(ports, recording.socket),),
        hosts=calls.names[:MOST_HOSTS],
        addresses=calls.numbers[:MOST_HOSTS],
        limits=Limits(
            memory=MEMORY, address_space=MEMORY, processes=_PROCESSES, cpu_s=CPU_S
        ),
        removed=(wanted.folder.parent,),
    )
    order = _with_hub(order, wanted)
    with tempfile.TemporaryFile() as output:
        with Box(order, stdout=output, stderr=output) as box:
            made = _watched(box.process, wanted, recording, alive, output)
            made.isolation = box.isolation
        # Known once the keeper has ended: it is what ends a box that takes too much.
        if box.over:
            made.code, made.ended = None, box.over
        made.output = _last(output)
    return made


_HUB: Final = ".mmrepro-hub"
"""A name that no file of a stranger's has here: those with a dot are not copied."""


def _with_hub(order: BoxOrder, wanted: ClientWanted) -> BoxOrder:
    """The order of a script's box, in which the models of a hub that the script names
    are tiny ones: most of such scripts load a tokenizer."""
    names = hub_models_named(wanted.script)
    models = cache_root() / MODELS_DIR
    if not names or not write_hub(names, wanted.folder / _HUB, models):
        return order
    env = {**order.env, "HF_HUB_CACHE": str(WORK / _HUB)}
    return replace(order, env=env, readable=(*order.readable, models))


_CALL: Final = "\x1ecall "
"""Begins a line of a script's output with what it asks of its engine."""
_MOST_CALLS, _MOST_CALL_BYTES = 200, 16 << 20


class _NoRecording:
    """Of a script that asks no server."""

    model = ""
    silent_s = 0.0


def run_alone(wanted: ClientWanted, box: BoxOrder) -> ClientRun:
    """Run a script that has an engine in its own process, in a box, to its end or until
    it takes too long.

    Args:
        box: of that engine's servers, with its variables.

    Raises:
        NoBox: there is none here.
    """
    order = replace(
        box,
        argv=wanted.command,
        copied=(wanted.folder,),
        removed=(wanted.folder.parent,),
    )
    order = _with_hub(order, wanted)
    with tempfile.TemporaryFile() as output:
        with Box(order, stdout=output, stderr=output) as running:
            made = _watched(
                running.process, wanted, _NoRecording(), lambda: True, output
            )
            made.isolation = running.isolation
        if running.over:
            made.code, made.ended = None, running.over
        made.calls = _calls(output)
        made.output = _without_calls(_last(output))
    return made


def _calls(output: IO[bytes]) -> str:
    """What a script says that it asks. Whatever it prints is a stranger's."""
    output.seek(0)
    text = output.read(_MOST_CALL_BYTES).decode("utf-8", "replace")
    lines: list[str] = []
    for line in text.split("\n"):
        if not line.startswith(_CALL) or len(lines) >= _MOST_CALLS:
            continue
        try:
            call = json.loads(line.removeprefix(_CALL))
        except (ValueError, RecursionError):
            continue
        if not isinstance(call, dict) or not isinstance(call.get("body"), dict):
            continue
        request = {
            "custom_id": f"r{len(lines) + 1}",
            "method": "POST",
            "url": str(call.get("path")),
            "body": call["body"],
        }
        lines.append(json.dumps(request))
    return "\n".join(lines)


def _without_calls(text: str) -> str:
    kept = [line for line in text.split("\n") if not line.startswith(_CALL)]
    return "\n".join(kept)


def run_trusted(
    wanted: ClientWanted,
    proxy: RecordingProxy,
    *,
    alive: Callable[[], bool] = lambda: True,
) -> ClientRun:
    """Run a client that the user has read as the user, without a box: the proxy listens
    where it calls.

    Raises:
        UsageError: the proxy cannot listen there, or the client calls another machine.
    """
    calls = called(wanted.script)
    ports = _ports(wanted, calls)
    for port in calls.ports or ports[:1]:
        try:
            proxy.listen(port)
        except OSError as error:
            raise UsageError(
                (
                    f"The client calls port {port}, where the proxy cannot listen: "
                    f"{error.strerror}."
                ),
                hint=(
                    "end what listens there, or install bubblewrap and leave "
                    "--trust-report out"
                ),
            ) from error
    if foreign := [*calls.names, *calls.numbers]:
        raise UsageError(
            f"The client calls {foreign[0]}, and has no network of its own in which "
            "that is this machine.",
            hint="write http://127.0.0.1:8000 in the client, or install bubblewrap",
        )
    variables = _variables(wanted, calls, ports[0], proxy.model)
    with tempfile.TemporaryFile() as output:
        child = _started([*wanted.command], wanted, variables, output)
        made = _watched(child, wanted, proxy, alive, output)
    made.isolation = (
        "without a box, with this machine's network and files (--trust-report)"
    )
    return made


def _ports(wanted: ClientWanted, calls: CalledServers) -> tuple[int, ...]:
    """Return those that lead to the recording, the likeliest first."""
    usual = [*default_ports(), *_WEB_PORTS]
    ports = dict.fromkeys([*calls.ports, *wanted.ports, *usual, *calls.guessed])
    return tuple(ports)[:MOST_PORTS]


_MEANT: Final = (
    (r"KEY|TOKEN|SECRET", "EMPTY"),
    (r"PORT", "{port}"),
    (r"HOST|ADDR|_IP$|^IP$", "127.0.0.1"),
    (r"URL|ENDPOINT|BASE|SERVER|URI", "{url}"),
    (r"MODEL", "{model}"),
)
"""What a variable of that name holds."""


def _variables(
    wanted: ClientWanted, calls: CalledServers, port: int, model: str
) -> dict[str, str]:
    """Return the variables of the client: none of ours, and where the server is."""
    url = f"http://127.0.0.1:{port}"
    python = wanted.python or Path(sys.executable)
    base = url
    if "base_url" in wanted.script and "/v1" not in wanted.script:
        base = f"{url}/v1"
    read: dict[str, str] = {}
    for name in calls.reads:
        form = _meant(name)
        if form:
            read[name] = form.format(port=port, url=base, model=model)
    places = [str(python.parent), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"]
    return {
        **read,
        "PATH": os.pathsep.join(places),
        "HOME": str(wanted.folder),
        "TMPDIR": str(wanted.folder),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "NO_PROXY": "*",
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": "EMPTY",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "EMPTY",
        **dict.fromkeys(calls.variables, "127.0.0.1"),
    }


def _meant(name: str) -> str:
    """Return what a variable of that name holds; "": nobody knows."""
    for pattern, form in _MEANT:
        if re.search(pattern, name, re.IGNORECASE):
            return form
    return ""


# -------------------------------------------------------------------------- a container


def _container_program() -> str:
    """``docker`` or ``podman``, whichever is here. Raises UsageError: neither
    answers."""
    for name in ("podman", "docker"):
        if shutil.which(name) is None:
            continue
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([name, "info"], capture_output=True, timeout=20)
            if done.returncode == 0:
                return name
    raise UsageError(
        "--container needs podman or docker, and neither answers here.",
        hint="leave --container out: the client then runs in a box like the server",
    )


def _run_contained(
    wanted: ClientWanted,
    recording: BoxedRecording,
    calls: CalledServers,
    ports: Sequence[int],
    variables: dict[str, str],
    alive: Callable[[], bool],
) -> ClientRun:
    """As ``run_client``, in a container of the image that the user has named."""
    program, name = _container_program(), f"mmrepro-client-{secrets.token_hex(6)}"
    notes = _without_numbers(wanted, calls)
    command = _container(wanted, recording, variables, calls, ports, program, name)
    try:
        with tempfile.TemporaryFile() as output:
            # The program's own variables: its images lie in our home.
            child = _started(command, wanted, dict(os.environ), output)
            made = _watched(child, wanted, recording, alive, output)
    finally:
        # docker's belongs to its daemon, and outlives the command
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [program, "rm", "--force", name], capture_output=True, timeout=30
            )
    made.isolation = (
        f"in a container of {wanted.image}, without a network and our files"
    )
    made.notes += notes
    return made


def _container(
    wanted: ClientWanted,
    recording: BoxedRecording,
    variables: dict[str, str],
    calls: CalledServers,
    ports: Sequence[int],
    program: str,
    name: str,
) -> list[str]:
    """The command, which ends with the client's own words. PATH stays the image's."""
    aside = wanted.folder.parent
    script = reproducer_path("client_box.py")
    shutil.copyfile(script, aside / script.name)
    env = {**variables, "HOME": "/mmrepro/work", "TMPDIR": "/mmrepro/work"}
    del env["PATH"]
    rootless = program == "podman" and os.getuid() != 0
    command = [
        program,
        "run",
        "--rm",
        "--name",
        name,
        "--network",
        "none",
        "--cap-drop",
        "ALL",
    ]
    command += [
        "--security-opt",
        "no-new-privileges",
        "--read-only",
        "--pids-limit",
        "512",
    ]
    # SELinux keeps it from the recording's socket.
    command += [
        "--security-opt",
        "label=disable",
    ]
    if rootless:
        command += ["--userns", "keep-id"]  # else the folder is not its user's
    command += ["--memory", str(MEMORY), "--user", f"{os.getuid()}:{os.getgid()}"]
    command += ["--volume", f"{aside}:/mmrepro", "--workdir", "/mmrepro/work"]
    command += [
        "--volume",
        f"{recording.socket}:/recording.sock",
        "--tmpfs",
        str(TEMPORARY),
    ]
    for host in calls.names:
        command += ["--add-host", f"{host}:127.0.0.1"]
    for variable, value in env.items():
        command += ["--env", f"{variable}={value}"]
    command += ["--entrypoint", "python3", wanted.image, f"/mmrepro/{script.name}"]
    command += [
        "--socket",
        "/recording.sock",
        "--memory",
        str(MEMORY),
        "--cpu",
        str(CPU_S),
    ]
    for port in ports:
        command += ["--port", str(port)]
    inside = [
        word.replace(str(wanted.folder), "/mmrepro/work") for word in wanted.command
    ]
    return [*command, "--", *inside]


def _without_numbers(wanted: ClientWanted, calls: CalledServers) -> list[str]:
    """A container's loopback has no further addresses: those in its scripts become the
    usual one. Returns sentences."""
    for file in (wanted.folder / word for word in wanted.command):
        if calls.numbers and file.is_file():
            text = file.read_text("utf-8", "replace")
            for number in calls.numbers:
                text = text.replace(number, "127.0.0.1")
            file.write_text(text, encoding="utf-8")
    return [f"{number} is read as 127.0.0.1." for number in calls.numbers]


# ------------------------------------------------------------------------------ watched


def _started(
    command: list[str], wanted: ClientWanted, env: dict[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Raises UsageError: there is no such program."""
    try:
        return subprocess.Popen(
            command,
            cwd=wanted.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise UsageError(f"{command[0]} cannot be run: {error.strerror}.") from error


def _watched(
    child: subprocess.Popen[bytes],
    wanted: ClientWanted,
    recording: WatchedRecording,
    alive: Callable[[], bool],
    output: IO[bytes],
) -> ClientRun:
    """Wait for the end of ``child``, and end it where it takes too long."""
    made = ClientRun()
    began, gone = time.monotonic(), 0.0
    try:
        while child.poll() is None and not made.ended:
            time.sleep(_POLL_S)
            now = time.monotonic()
            gone = 0.0 if alive() else gone or now
            if now - began > wanted.limit_s:
                made.ended = f"it had not ended after {wanted.limit_s:.0f} s"
            elif gone and now - gone > DEAD_S:
                made.ended = "the server had ended"
            elif recording.silent_s > SILENT_S:
                made.ended = f"one of its requests had no answer for {SILENT_S:.0f} s"
            elif output.seek(0, os.SEEK_END) > MOST_OUTPUT:
                made.ended = f"it printed more than {MOST_OUTPUT >> 20} MiB"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    made.code = None if made.ended else child.returncode
    made.seconds = round(time.monotonic() - began, 2)
    made.output = _last(output)
    return made


def _last(output: IO[bytes]) -> str:
    """The end of what was printed."""
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - OUTPUT))
    return output.read().decode("utf-8", "replace")
