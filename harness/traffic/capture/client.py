"""A client that a report brings: run against a recording proxy, with as little else as can be had.

It is nobody's whom we know. Where the kernel or a container allows it, it reaches the proxy and
nothing else; where it does not, that is reported.
"""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mmrepro.base.errors import UsageError
from mmrepro.base.records import Record
from mmrepro.reproducers import reproducer_path
from mmrepro.traffic.capture.proxy import RecordingProxy

MEMORY, CPU_S = 8 << 30, 300
LIMIT_S, SILENT_S, DEAD_S = 120.0, 30.0, 5.0
"""Seconds that a client may take; without anything that comes of what it waits for; and after the
server's end."""
COPIED_BYTES, COPIED_FILES = 64 << 20, 2000
OUTPUT = 64 << 10
PORTS: Final = (8000, 30000, 23333, 8080, 80)
"""That clients call by default: of vLLM, of SGLang, of LMDeploy, and of the web."""
UNSHARE: Final = (
    *("unshare", "--user", "--map-root-user", "--net", "--mount", "--pid", "--fork"),
    *("--kill-child", "--mount-proc"),
)
HIDDEN: Final = (
    *(".ssh", ".aws", ".config", ".kube", ".docker", ".gnupg", ".azure", ".cache/huggingface"),
)
"""Folders of a home that the client is shown empty."""
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", "[::1]"})  # noqa: S104
_API: Final = r"/(?:v\d|generate|inference|health|metrics|open_session|score|rerank|pooling|ping)\b"
_ADDRESS: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-fA-F:]+\]|[\w.-]+|<[^>\s]{1,40}>)(?::(?P<port>\d{1,5}))?"
    rf"(?P<api>{_API})?"
)
_PAIR: Final = re.compile(
    r"""["'`\s=(]([\w.-]*[A-Za-z0-9])["']?(?::|["'],\s*(?:port\s*=\s*)?)(\d{2,5})\b"""
)
_PORT: Final = re.compile(r"\bport\b[\"']?\s*[:=]\s*[\"']?(\d{2,5})\b", re.IGNORECASE)
_BARE: Final = re.compile(
    r"""(?:\s|["'])((?:\d+\.){3}\d+|[A-Za-z][\w-]*(?:\.[\w-]+)+):(\d{2,5})(?=/)"""
)
"""A host and its port, as curl takes them without a scheme."""
_NUMBER: Final = re.compile(r"(?<![\w.])(\d{4,5})(?![\w.])")
MANY_PORTS: Final = 40
_VARIABLE: Final = re.compile(r"https?://\$\{?([A-Za-z_]\w*)\}?")
_READ: Final = re.compile(
    r"""environ\[["'](\w+)["']\]|(?:environ\.get|getenv)\(\s*["'](\w+)["']\s*\)|\$(?:(\w+)|\{(\w+)\})"""
)
"""A variable that a script reads, and for which it has no value of its own."""
_PICTURE: Final = re.compile(
    r"(?<![\w.:/~-])(/?(?:[\w.-]+/)*[\w.-]+\.(?:jpe?g|png|webp|bmp))(?![\w/])", re.IGNORECASE
)
_PREPARES: Final = re.compile(
    r"^([ \t]*)(?:sudo[ \t]+)?(?:(?:uv[ \t]+)?pip3?|python3?[ \t]+-m[ \t]+pip|apt(?:-get)?|conda|"
    r"source|\.)[ \t]+(?:-\S+[ \t]+)*(?:install|update|activate|\S*/activate)\b[^\n;&|]*",
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
        folder: where it is run: a copy of what lies beside it.
        script: what it says, for the addresses in it; "": not known.
        image: of a container; "": none.
        ports: further ones that it may call.
        limit_s: seconds that it may take.
        python: what the word ``python`` means to it: an environment's, with its packages.
    """

    command: tuple[str, ...]
    folder: Path
    script: str = ""
    image: str = ""
    ports: tuple[int, ...] = ()
    limit_s: float = LIMIT_S
    python: Path | None = None


class ClientRun(Record):
    """What came of it.

    Attributes:
        code: its exit code; None: it was ended, and ``ended`` says why.
        output: the last that it printed.
        isolation: a sentence.
        ran: false: the server did not start.
        died: the server ended meanwhile.
    """

    code: int | None = None
    ended: str = ""
    output: str = ""
    isolation: str = ""
    seconds: float = 0.0
    ran: bool = True
    died: bool = False
    notes: list[str] = []


# ------------------------------------------------------------------------------- addresses in it


@dataclass(frozen=True)
class Called:
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


def called(script: str) -> Called:
    """The servers that ``script`` names. An address without a port and without a path of the API
    is none: a picture's, say."""
    ports: list[int] = []
    hosts: list[str] = []
    for found in _ADDRESS.finditer(script):
        if not (found["port"] or found["api"] or found["host"] in _LOCAL):
            continue
        ports.append(int(found["port"] or 80))
        hosts.append(found["host"])
    for host, port in _PAIR.findall(script):
        if host in _LOCAL:
            ports.append(int(port))
    for host, port in _BARE.findall(script):
        ports.append(int(port))
        hosts.append(host)
    ports += [int(port) for port in _PORT.findall(script)]
    others = [h for h in dict.fromkeys(hosts) if h not in _LOCAL and h[0] not in "<["]
    numbers = tuple(h for h in others if re.fullmatch(r"\d+(?:\.\d+){3}", h))
    known = set(re.findall(r"^[ \t]*(?:export\s+)?([A-Za-z_]\w*)=", script, re.MULTILINE))
    known |= set(re.findall(r"\b(?:for|read|local|declare)\s+(?:-\w+\s+)*(\w+)", script))
    variables = [v for v in dict.fromkeys(_VARIABLE.findall(script)) if v not in known]
    reads = [next(filter(None, names)) for names in _READ.findall(script)]
    guessed = [n for n in map(int, _NUMBER.findall(script)) if 1024 <= n < 65536]
    return Called(
        ports=tuple(port for port in dict.fromkeys(ports) if 0 < port < 65536),
        guessed=tuple(dict.fromkeys(guessed))[:MANY_PORTS],
        reads=tuple(v for v in dict.fromkeys(reads) if v not in known),
        names=tuple(h for h in others if h not in numbers),
        numbers=numbers,
        variables=tuple(variables),
    )


def with_plain_addresses(script: str) -> tuple[str, list[str]]:
    """``script`` with a local address in place of what no proxy can answer for: a placeholder in
    angle brackets, or a server behind TLS; and sentences on that."""
    changed: list[str] = []

    def plain(found: re.Match[str]) -> str:
        host, server = found["host"], bool(found["port"] or found["api"])
        held = host.startswith("<")
        if not held and not (found["scheme"] == "https" and (server or host in _LOCAL)):
            return found[0]
        port = found["port"] or ("8000" if held else "443")
        new = f"http://127.0.0.1:{port}{found['api'] or ''}"
        changed.append(f"{found[0]} is read as {new}.")
        return new

    return _ADDRESS.sub(plain, script), list(dict.fromkeys(changed))


def with_plain_commands(script: str) -> str:
    """A shell's script without what prepares an environment: it runs in one that has no network."""
    return _RUNNER.sub("python3 ", _PREPARES.sub(r"\1:", script)).replace(
        "python3 python", "python"
    )


def pictures_in(script: str) -> list[str]:
    """Files of pictures that a script names; not those of other hosts."""
    return list(dict.fromkeys(_PICTURE.findall(script)))


# ----------------------------------------------------------------------------------- its folder


@contextlib.contextmanager
def beside(script: Path | None, text: str = "", name: str = "client") -> Iterator[Path]:
    """A folder to run in, which is removed at the end: a copy of what lies beside ``script``, if
    that is not too much, and in it ``text`` as ``name``."""
    with tempfile.TemporaryDirectory(prefix="mmrepro-client-") as made:
        folder = Path(made).resolve() / "work"
        if script is not None and _is_small(script.parent):
            shutil.copytree(script.parent, folder, symlinks=True)
        else:
            folder.mkdir()
        if text:
            (folder / name).unlink(missing_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        yield folder


def _is_small(folder: Path) -> bool:
    files = total = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".")]
        for name in names:
            files += 1
            with contextlib.suppress(OSError):
                total += (Path(place) / name).lstat().st_size
            if files > COPIED_FILES or total > COPIED_BYTES:
                return False
    return True


# ------------------------------------------------------------------------------------- its run


def run_client(
    wanted: ClientWanted, proxy: RecordingProxy, *, alive: Callable[[], bool] = lambda: True
) -> ClientRun:
    """Run a client to its end, or until it takes too long.

    Args:
        alive: whether the server behind the proxy still runs.

    Raises:
        UsageError: it cannot be run here.
    """
    made, calls = ClientRun(), called(wanted.script)
    ports = [*dict.fromkeys([*calls.ports, *wanted.ports, *PORTS, *calls.guessed])]
    aside = wanted.folder.parent
    place = aside / "proxy.sock"
    proxy.listen(place)
    reader, writer = os.pipe()
    box = [str(reproducer_path("client_box.py")), "--socket", str(place), "--told", str(writer)]
    box += [word for port in ports for word in ("--port", str(port))]
    box += ["--memory", str(MEMORY), "--cpu", str(CPU_S)]
    env = _variables(wanted, calls, ports[0], proxy.model)
    told, removal = b"", list[str]()
    try:
        if wanted.image:
            program, name = container_program(), f"mmrepro-client-{secrets.token_hex(6)}"
            command = _container(wanted, box, env, calls, program, name)
            removal = [program, "rm", "--force", name]
            env = dict(os.environ)  # the program's: its images lie in our home
            made.notes += _without_numbers(wanted, calls)
            made.isolation = f"in a container of {wanted.image}, without a network and our files"
        elif _can_unshare():
            hosts = aside / "hosts"
            hosts.write_text("127.0.0.1 localhost " + " ".join(calls.names) + "\n")
            box += ["--own-network", "--hosts", str(hosts), "--writable", str(wanted.folder)]
            box += [word for one in calls.numbers for word in ("--address", one)]
            hidden = [Path.home() / name for name in HIDDEN]
            box += [w for one in hidden if one.is_dir() for w in ("--hide", str(one))]
            command = [*UNSHARE, sys.executable, *box, "--", *wanted.command]
            made.isolation = "in a network of its own, with files read-only"
        else:
            command = _exposed(wanted, proxy, calls, ports, env, made)
        _carry_out(command, wanted, env, proxy, alive, made, writer)
    finally:
        if removal:  # docker's belongs to its daemon, and outlives the command
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(removal, capture_output=True, timeout=30)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            told = pipe.read()
    if "--own-network" in box and (why := _lacks(told)):
        made.isolation = f"in a network of its own; files are not protected ({why})"
    return made


_MEANT: Final = (
    (r"KEY|TOKEN|SECRET", "EMPTY"),
    (r"PORT", "{port}"),
    (r"HOST|ADDR|_IP$|^IP$", "127.0.0.1"),
    (r"URL|ENDPOINT|BASE|SERVER|URI", "{url}"),
    (r"MODEL", "{model}"),
)
"""What a variable of that name holds."""


def _variables(wanted: ClientWanted, calls: Called, port: int, model: str) -> dict[str, str]:
    """Those of the client: none of ours, and where the server is."""
    url, python = f"http://127.0.0.1:{port}", wanted.python or Path(sys.executable)
    base = f"{url}/v1" if "base_url" in wanted.script and "/v1" not in wanted.script else url
    meant = {
        name: next((value for form, value in _MEANT if re.search(form, name, re.I)), "")
        for name in calls.reads
    }
    places = [str(python.parent), "/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin"]
    return {
        **{
            name: value.format(port=port, url=base, model=model)
            for name, value in meant.items()
            if value
        },
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


def _can_unshare() -> bool:
    try:
        done = subprocess.run([*UNSHARE, "true"], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def container_program() -> str:
    """``docker`` or ``podman``, whichever is here. Raises UsageError: neither answers."""
    for name in ("podman", "docker"):
        if shutil.which(name) is None:
            continue
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run([name, "info"], capture_output=True, timeout=20)
            if done.returncode == 0:
                return name
    raise UsageError(
        "--container needs podman or docker, and neither answers here.",
        hint="leave --container out: the client gets a network of its own where the kernel lets it",
    )


def _container(
    wanted: ClientWanted,
    box: Sequence[str],
    env: dict[str, str],
    calls: Called,
    program: str,
    name: str,
) -> list[str]:
    """The command, which ends with the client's own words. PATH stays the image's."""
    aside = wanted.folder.parent
    script = Path(box[0])
    shutil.copyfile(script, aside / script.name)
    told = box.index("--told")
    words = [word for at, word in enumerate(box) if at not in (told, told + 1)]
    inside = [word.replace(str(aside), "/mmrepro") for word in words[1:]]
    env = {**env, "HOME": "/mmrepro/work", "TMPDIR": "/mmrepro/work"}
    del env["PATH"]
    rootless = program == "podman" and os.getuid() != 0
    return [
        *(program, "run", "--rm", "--name", name, "--network", "none", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "--read-only", "--pids-limit", "512"),
        *("--security-opt", "label=disable"),  # SELinux keeps it from the proxy's socket
        *(("--userns", "keep-id") if rootless else ()),  # else the folder is not its user's
        *("--memory", str(MEMORY), "--user", f"{os.getuid()}:{os.getgid()}"),
        *("--volume", f"{aside}:/mmrepro", "--workdir", "/mmrepro/work", "--tmpfs", "/tmp"),  # noqa: S108
        *(word for name in calls.names for word in ("--add-host", f"{name}:127.0.0.1")),
        *(word for name, value in env.items() for word in ("--env", f"{name}={value}")),
        *("--entrypoint", "python3", wanted.image, f"/mmrepro/{script.name}"),
        *inside,
        *("--", *(word.replace(str(wanted.folder), "/mmrepro/work") for word in wanted.command)),
    ]


def _without_numbers(wanted: ClientWanted, calls: Called) -> list[str]:
    """A container's loopback has no further addresses: those in its scripts become the usual one.
    Returns sentences."""
    for file in (wanted.folder / word for word in wanted.command):
        if calls.numbers and file.is_file():
            text = file.read_text("utf-8", "replace")
            for number in calls.numbers:
                text = text.replace(number, "127.0.0.1")
            file.write_text(text, encoding="utf-8")
    return [f"{number} is read as 127.0.0.1." for number in calls.numbers]


def _exposed(
    wanted: ClientWanted,
    proxy: RecordingProxy,
    calls: Called,
    ports: Sequence[int],
    env: dict[str, str],
    made: ClientRun,
) -> list[str]:
    """Without a network of its own: the proxy listens where the client calls. Raises UsageError:
    it cannot."""
    made.isolation = "with this machine's network and files: the kernel gives it none of its own"
    for port in calls.ports or ports[:1]:
        try:
            proxy.listen(port)
        except OSError as error:
            raise UsageError(
                f"The client calls port {port}, where the proxy cannot listen: {error.strerror}.",
                hint="end what listens there, or use --container IMAGE",
            ) from error
    if foreign := [*calls.names, *calls.numbers]:
        raise UsageError(
            f"The client calls {foreign[0]}, and has no network of its own in which that is this "
            "machine.",
            hint="write http://127.0.0.1:8000 in the client, or use --container IMAGE",
        )
    return [*wanted.command]


def _carry_out(
    command: Sequence[str],
    wanted: ClientWanted,
    env: dict[str, str],
    proxy: RecordingProxy,
    alive: Callable[[], bool],
    made: ClientRun,
    told: int,
) -> None:
    began, gone = time.monotonic(), 0.0
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                command,
                cwd=wanted.folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(told,),
            )
        except OSError as error:
            raise UsageError(f"{command[0]} cannot be run: {error.strerror}.") from error
        try:
            while child.poll() is None and not made.ended:
                time.sleep(0.05)
                now = time.monotonic()
                gone = 0.0 if alive() else gone or now
                if now - began > wanted.limit_s:
                    made.ended = f"it had not ended after {wanted.limit_s:.0f} s"
                elif gone and now - gone > DEAD_S:
                    made.ended = "the server had ended"
                elif proxy.silent_s > SILENT_S:
                    made.ended = f"a request of it had no answer for {SILENT_S:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        made.code = None if made.ended else child.returncode
        made.seconds = round(time.monotonic() - began, 2)
        size = output.seek(0, os.SEEK_END)
        output.seek(max(0, size - OUTPUT))
        made.output = output.read().decode("utf-8", "replace")


def _lacks(told: bytes) -> str:
    """Why files are not read-only to it, as the box says; "": they are."""
    had = json.loads(told or b"{}")
    return "" if had.get("files") else str(had.get("why", "")) or "the box ended early"
