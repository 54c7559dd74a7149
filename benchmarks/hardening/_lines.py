"""Hostile command lines, made from the tree of commands itself, and the files that they
name."""

# ruff: noqa: SIM905 (a pool of words is read more easily without quotes and commas)

from __future__ import annotations

import enum
import os
import random
import shutil
import typing
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrepro.cli.app import app
from mmrepro.cli.commands import COMMANDS
from typer.main import get_command

ROOT = Path(__file__).resolve().parent.parent.parent
EVIDENCE = "mm-prefill-contract-image-path-fix.zip"
CLOSED = "http://127.0.0.1:9"

NUMBERS = [
    *(
        "0 -1 1 2 -0 1e3 1e999 nan inf -inf 0x10 1_000 ٣ ½ 1e-320 4294967296 "
        "1,5 7G 1e9TB"
    ).split(),
    *"9223372036854775808 100000 4096 64 0.5 3m -1h 99999999d 1/0 2/3 5/2".split(),
    " 7 ",
    "9" * 20,
    "9" * 400,
]
TEXTS = [
    *(
        "- -- --- * ? %s%n {} {0.__class__} $(id) ' \" \\ = a=b =b a= a==b "
        "a=b=c : , ,,, a,b"
    ).split(),
    *(
        "@file @/nowhere [ ( (a+)+$ [bold]x[/] [/] >=0 <0 ==* 1.2.3.4.5 all none true"
    ).split(),
    *"None null NaN cpu cuda auto é∞🖼 key:value".split(),
    "",
    " ",
    "\n",
    "a\nb",
    "\t",
    "a: b\r\nc: d",
    "\x1b[31mred\x1b[0m",
    "\x07",
    "\x7f",
    "\u202etxt",
    "\u2028",
    "\ufeff",
    "\udc80",
    "\udcff",
    "a" * 5000,
    "x" * 100_000,
    "../" * 40,
]
URLS = [
    CLOSED,
    f"{CLOSED}/",
    f"{CLOSED}/v1",
    f"{CLOSED} ",
    f"{CLOSED}/a?b#c",
    f"{CLOSED}/\udc80",
    *(
        "http://127.0.0.1:0 http://127.0.0.1:65536 http://127.0.0.1:-1 "
        "http://127.0.0.1:nine"
    ).split(),
    *(
        "http://[::1]:9 http://[::1 http:// http:/// https://127.0.0.1:9 "
        "ftp://127.0.0.1:9"
    ).split(),
    *(
        "127.0.0.1:9 :9 http://u:p@127.0.0.1:9 http://\u2603.invalid "
        "http://xn--:9 http://0:9"
    ).split(),
    "http://" + "a" * 300,
    "file:///etc/hostname",
    "javascript:1",
]

# What gets past the first look, by the name of the parameter.
SCENARIOS = [
    "mm-prefill-contract",
    "ghost-key-eviction",
    "borrowed-faults",
    "pad-value-collision",
    "chunked-mm-prefill",
    "scenario.py",
]
FITTING: dict[str, list[str]] = {
    "url": [CLOSED],
    "scenario": SCENARIOS,
    "engine": ["vllm", "sglang", "lmdeploy", "minivllm"],
    "release": ["0.23.0", "0.1", "0.5.6", "0.6.4", "99.0"],
    "releases": ["own", "newest", "own,newest", "boundary", "0.23.0"],
    "variant": ["image-path", "ghost-key-lru", "async-race", "all"],
    "pid": [str(1 << 22), "1", "0"],
    "out": ["new-out", "out", "deep/er/out"],
    "open": ["new-open", "abc"],
    "into": ["new-into"],
    "write": ["new-write"],
    "svg": ["new.svg"],
    "raw": ["new-raw"],
    "incident": ["incident", "bundle.zip"],
    "incidents": ["incident", "bundle.zip"],
    "roots": ["incident", ".", "many"],
    "folders": ["nights", "incident"],
    "files": ["server.log", "many"],
    "log": ["server.log"],
    "file": ["night.toml", "traffic.jsonl", "server.log"],
    "ledger": ["nights"],
    "have": ["have.txt"],
    "http": ["127.0.0.1:0", ":0"],
    "header": ["Authorization: Bearer x"],
    "mitigation": ["text-only", "fix", "release"],
    "flip": ["text-only", "fix"],
    "factors": ["all"],
    "server_arg": ["--seed=1", "--max-num-seqs=4"],
    "python": ["3.11", "3.12"],
    "night": ["1", "last", "2026-01-01"],
    "since": ["7d", "2026-01-01"],
    "every": ["24h", "7d"],
    "max_time": ["45m", "1s"],
    "disk": ["40G", "1G"],
    "machines": ["1,2,4", "1"],
    "machine": ["here"],
    "shard": ["1/2"],
    "need": ["gpu", "3446"],
    "free": ["6784MiB", "80GB"],
    "total": ["80GB"],
    "runtime": ["5061MiB"],
    "block_bytes": ["8388608"],
    "cache_max_entry_count": ["0.1"],
    "layers": ["28"],
    "kv_heads": ["4"],
    "head_dim": ["128"],
    "images": ["3"],
    "image_tokens": ["256"],
    "image_size": ["640x480"],
    "model": ["model", "tiny"],
    "first": ["picture.png"],
    "second": ["picture.png"],
    "url_of": [CLOSED],
    "run_url": [CLOSED],
    "index": [CLOSED],
    "commit": ["a" * 40],
    "commit_date": ["2026-01-01"],
    "option": ["images=3"],
    "env": ["A=b"],
    "only": ["system"],
    "by": ["release"],
    "good": ["0.24.0"],
    "bad": ["0.23.0"],
}


ODD = ["--help", "--version", "--no-such", "-x", "--json=1", "--"]


@dataclass(frozen=True)
class Command:
    words: tuple[str, ...]
    parameters: list[Any]
    types: dict[str, Any]


def commands() -> list[Command]:
    """Every command that ``mmrepro --help`` leads to."""
    root: Any = get_command(app)
    return [
        found
        for name in COMMANDS
        for found in _below(root.get_command(None, name), (name,))
    ]


def _below(command: Any, words: tuple[str, ...]) -> Iterator[Command]:
    below = getattr(command, "commands", None)
    if below is None:
        yield Command(words, command.params, typing.get_type_hints(command.callback))
        return
    for name, one in below.items():
        yield from _below(one, (*words, name))


class Lines:
    """Makes command lines, the same ones of each ``seed``."""

    def __init__(self, seed: int, paths: list[str]) -> None:
        self.random = random.Random(seed)
        self.commands = commands()
        self.paths = paths

    def line(self) -> list[str]:
        command = self.random.choice(self.commands)
        likely = self.random.choice([0.95, 0.8, 0.3])
        options = [p for p in command.parameters if p.opts[-1].startswith("-")]
        arguments = [p for p in command.parameters if p not in options]
        line = [*command.words]
        for one in arguments:
            if one.required or self.chance(0.5):
                many = self.random.randrange(4) if one.nargs == -1 else 1
                line += [self.value(command, one, likely) for _ in range(many)]
        chosen = [p for p in options if p.required and self.chance(0.9)]
        if options:
            chosen += self.random.choices(
                options, k=self.random.choice([0, 1, 1, 2, 3, 5, 8])
            )
        for one in chosen:
            name = self.random.choice([*one.opts, *one.secondary_opts])
            if getattr(one, "is_flag", False):
                line.append(name)
            else:
                value = self.value(command, one, likely)
                line += [f"{name}={value}"] if self.chance(0.5) else [name, value]
        return self._ends(self._mutated(line))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def value(self, command: Command, parameter: Any, likely: float) -> str:
        name = parameter.name or ""
        kind = command.types.get(name)
        kinds = [
            kind,
            *typing.get_args(kind),
            *(a for k in typing.get_args(kind) for a in typing.get_args(k)),
        ]
        if self.chance(likely):
            if name in FITTING:
                return self.random.choice(FITTING[name])
            for one in kinds:
                if isinstance(one, type) and issubclass(one, enum.Enum):
                    return str(self.random.choice(list(one)).value)
            if int in kinds or float in kinds:
                return str(self.random.choice([1, 2, 5, 60]))
        if Path in kinds or name in ("log", "files", "roots", "incidents", "folders"):
            return self.random.choice(self.paths)
        pools = [NUMBERS, TEXTS]
        if int in kinds or float in kinds:
            pools = [NUMBERS, NUMBERS, NUMBERS, TEXTS]
        elif name == "url":
            pools = [URLS, URLS, TEXTS]
        return self.random.choice(self.random.choice([*pools, self.paths]))

    def _mutated(self, line: list[str]) -> list[str]:
        if self.chance(0.05):
            del line[self.random.randrange(len(line)) :]
        if line and self.chance(0.08):
            line.insert(self.random.randrange(len(line)), self.random.choice(TEXTS))
        if line and self.chance(0.08):
            line.append(self.random.choice(line))
        if line and self.chance(0.04):
            line[self.random.randrange(len(line))] += self.random.choice(TEXTS)
        if self.chance(0.05):
            line.append(
                self.random.choice(
                    ["--help", "--version", "--no-such", "-x", "--json=1", "--"]
                )
            )
        return line

    def _ends(self, line: list[str]) -> list[str]:
        """``watch`` goes on for ever, as it should, and ``logs`` reads to its deadline:
        here they are asked once, and for what has an end."""
        if line[:1] == ["watch"]:
            return ["watch", "--once", *line[1:]]
        if line[:1] == ["logs"]:
            return [
                "server.log" if word in ("huge", ".", "..") else word for word in line
            ]
        return line


def furnish(folder: Path, huge: Path) -> list[str]:
    """Put into ``folder`` what command lines name; returns all the names.

    ``huge``: a sparse file beside it, a terabyte of zeros that takes no room.
    """
    incident = folder / "incident"
    with zipfile.ZipFile(ROOT / "tests/evidence" / EVIDENCE) as archive:
        archive.extractall(incident)
    inner = [p.parent for p in incident.rglob("incident.json")]
    if inner and inner[0] != incident:
        shutil.move(inner[0], folder / "moved")
        shutil.rmtree(incident)
        shutil.move(folder / "moved", incident)
    shutil.copy(ROOT / "tests/evidence" / EVIDENCE, folder / "bundle.zip")
    shutil.copy(ROOT / "docs/nightly/night.toml", folder / "night.toml")
    shutil.copytree(incident, folder / "many/a")
    for name in ("nights", "out", "empty-folder", "model"):
        (folder / name).mkdir()
    for file in (ROOT / "docs/nightly").glob("*.jsonl"):
        shutil.copy(file, folder / "nights")
    files = {
        "empty": b"",
        "model/config.json": b'{"layers": 28}',
        "binary": bytes(range(256)) * 64,
        "deep.json": b"[" * 100_000,
        "scenario.py": b"raise RuntimeError('a scenario that cannot be imported')\n",
        "server.log": b"INFO 01-01 00:00:00 [core.py:1] hello\n" * 200 + b"\xff\xfe\n",
        "traffic.jsonl": b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":'
        b'{"model":"m","messages":[{"role":"user","content":"hi"}]}}\n',
        "picture.png": b"\x89PNG\r\n\x1a\n" + bytes(64),
        "have.txt": b"torch==2.11.0\n",
        "long-line": b"x" * (2 << 20),
        "new\nline": b"{}",
        "-dash": b"{}",
        "\x1b[31m": b"{}",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / os.fsdecode(b"not-utf8-\xff")).write_bytes(b"{}")
    (folder / "huge").hardlink_to(huge)
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    return [
        *sorted(p.name for p in folder.iterdir()),
        "nowhere",
        "nowhere/deeper",
        ".",
        "..",
        "",
        "incident/incident.json",
        "empty/x",
        "a" * 300,
        "~",
        "x/" * 3000,
    ]
