"""Files for files.py: what mmrepro reads, broken by one seed in one way."""

from __future__ import annotations

import bz2
import copy
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import stat
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "tests" / "unit" / name) for name in ("replay", "reports", ".")
]

MIB = 1 << 20
ESCAPES = "\x1b[2J\x1b]0;title\x07\x1b[31m\r\b\x00\u202e\u2028\x9b2J<script>alert(1)</script>|`"
WORDS = (
    ESCAPES,
    "",
    "\x00",
    "\ud800",
    "9" * 5000,
    "A" * 70_000,
    "../../../up",
    "/absolute",
    "C:\\x",
    "\n".join("x" * 40),
    "[link](javascript:x)",
    "{{7*7}}",
    "%s%n",
    "NaN",
    "ghost-key-eviction",
    "é" * 300,
    "-----BEGIN PRIVATE KEY-----",
    "data:image/png;base64,AAAA",
    "=cmd|'/c x'!A1",
)
NUMBERS = (
    0,
    -1,
    2**31,
    2**63,
    -(2**64),
    10**400,
    1e308,
    1e-320,
    float("nan"),
    float("inf"),
    0.1,
)
TOKENS = (
    b"\x00",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x1b[2J",
    b"{",
    b"]",
    b'"',
    b"\\u",
    b"1e999",
    b"NaN",
    b"\n",
    b"\r\n",
    b"[" * 700,
    b"PK\x03\x04",
    b"PK\x05\x06",
    b"\x1f\x8b",
    b"-",
)

# ---------------------------------------------------------------------- bytes and JSON


def broken(rng: random.Random, data: bytes) -> bytes:
    """One to six changes of any bytes."""
    for _ in range(rng.randint(1, 6)):
        at, length = rng.randrange(len(data) + 1), rng.choice((1, 2, 8, 64, 4096))
        how = rng.randrange(6)
        if how == 0:
            data = data[:at]
        elif how == 1:
            data = data[:at] + data[at + length :]
        elif how == 2:
            data = (
                data[:at]
                + data[at : at + length] * rng.choice((2, 3, 50))
                + data[at + length :]
            )
        elif how == 3:
            data = data[:at] + rng.choice(TOKENS) + data[at:]
        elif how == 4:
            data = data[:at] + rng.randbytes(length) + data[at + length :]
        elif data:
            flipped = data[at % len(data)] ^ (1 << rng.randrange(8))
            data = (
                data[: at % len(data)] + bytes([flipped]) + data[at % len(data) + 1 :]
            )
    return data


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in ``value`` with each of its keys."""
    found, todo = [], [value]
    while todo:
        one = todo.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one))
        for key in keys:
            found.append((one, key))
            if isinstance(one[key], dict | list) and one[key]:
                todo.append(one[key])
    return found


def nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def changed(rng: random.Random, document: Any) -> Any:
    """One to three values, keys or lists of ``document`` made into something else.

    Mostly of the same type: most that are not are refused at once.
    """
    document = copy.deepcopy(document)
    most = 300
    for _ in range(rng.randint(1, 3)):
        found = places(document)
        if not found:
            return document
        owner, key = rng.choice(found)
        value, how = owner[key], rng.randrange(10)
        if (
            rng.random() < 0.8
            and value is not None
            and not isinstance(value, bool | dict)
        ):
            how = 1 if isinstance(value, str) else 8 if isinstance(value, list) else 5
        if how == 0:
            del owner[key]
        elif how < 4 or (how == 4 and isinstance(owner[key], str)):
            owner[key] = rng.choice(WORDS)
        elif how == 5:
            owner[key] = rng.choice(NUMBERS)
        elif how == 6:
            owner[key] = rng.choice(
                (None, True, [], {}, [[]], nested(rng.choice((30, 90, 150))))
            )
        elif how == 7 and isinstance(owner, dict):
            owner[rng.choice(WORDS[:9])] = owner[key]
        elif how == 8 and isinstance(owner[key], list):
            times = min(most, rng.choice((0, 2, 300)))
            most = 300 // max(times, 1)  # lists within lists would be millions
            owner[key] = owner[key] * times
        else:
            other, place = rng.choice(found)
            if place in other if isinstance(other, dict) else place < len(other):
                owner[key] = copy.deepcopy(other[place])
    return document


def as_json(rng: random.Random, document: Any) -> bytes:
    text = json.dumps(document, indent=rng.choice((None, 1)))
    if rng.random() < 0.1:  # a key twice
        text = text.replace("{", '{"id": "other", "id": 7, ', 1)
    data = text.encode()
    return broken(rng, data) if rng.random() < 0.15 else data


# ---------------------------------------------------------------------- archives


def bundle_of(rng: random.Random, members: dict[str, bytes]) -> bytes:
    """A bundle whose manifest is right, so that what is in it is really read."""
    manifest = json.loads(members["manifest.json"])
    for entry in manifest["files"]:
        if entry["name"] in members:
            entry["sha256"] = hashlib.sha256(members[entry["name"]]).hexdigest()
    if rng.random() < 0.1:
        manifest = changed(rng, manifest)
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {
            **members,
            "manifest.json": json.dumps(manifest).encode(),
        }.items():
            archive.writestr(name, data)
    return held.getvalue()


def tricked(rng: random.Random, members: dict[str, bytes]) -> bytes:
    """A ZIP file with something in it that no bundle has."""
    held = io.BytesIO()
    how = rng.randrange(9)
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = rng.choice((0, 8, 8, 12, 14)) if how == 0 else 8
            if how == 1 and name == "incident.json":
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                data = b"/etc/passwd"
            archive.writestr(info, data)
        if how == 2:
            archive.writestr("incident.json", rng.randbytes(99))
        elif how == 3:
            for name in (
                "../up.txt",
                "/absolute",
                "a\\..\\b",
                "evidence/" + ESCAPES,
                "x" * 9000,
            ):
                archive.writestr(name, b"x")
        elif how == 4:
            for number in range(5000):
                archive.writestr(f"evidence/{number}.log", b"")
        elif how == 5:
            archive.comment = rng.randbytes(60_000)
    data = held.getvalue()
    if how == 6:  # encrypted, it says
        data = data.replace(
            b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
        )
    if how == 7:  # sizes that are not
        at = data.rfind(b"PK\x01\x02") + 20
        data = data[:at] + b"\xff\xff\xff\x7f\xff\xff\xff\x7f" + data[at + 8 :]
    return broken(rng, data) if how == 8 or rng.random() < 0.1 else data


def bomb(name: str, mib: int, members: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            if member != name:
                archive.writestr(member, data)
        with archive.open(name, "w") as file:
            file.write(b'{"a": "')
            for _ in range(mib):
                file.write(b"a" * MIB)
            file.write(b'"}')
    return held.getvalue()


# --------------------------------------------------------------------- logs and folders

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda data: b"\x28\xb5\x2f\xfd" + data,
}


def broken_log(rng: random.Random, text: bytes) -> bytes:
    lines = text.split(b"\n")[: rng.choice((5, 60, 400))]
    for _ in range(rng.randint(1, 8)):
        at, how = rng.randrange(len(lines) + 1), rng.randrange(6)
        if how == 0:
            lines.insert(at, rng.choice(WORDS).encode("utf-8", "surrogatepass"))
        elif how == 1:
            lines.insert(at, rng.randbytes(rng.choice((1, 40, 5000))))
        elif how == 2:
            lines[at:at] = lines[:40]
            rng.shuffle(lines)
        elif how == 3 and at < len(lines):
            lines[at] = broken(rng, lines[at])
        elif how == 4:
            lines.insert(
                at, b"(EngineCore pid=9) ERROR 11-23 03:00:00 " + ESCAPES.encode()
            )
        elif at < len(lines):
            lines[at] = lines[at] * 300
    return (b"\r\n" if rng.random() < 0.1 else b"\n").join(lines)


def put_logs(rng: random.Random, folder: Path, text: bytes) -> None:
    """``server.log`` and what was rotated away from it, each broken in its own way."""
    names = [
        "server.log",
        *rng.sample(["server.log.1", "server.log.2", "server.log-20261120"], 2),
    ]
    for name in names[: rng.randint(1, 3)]:
        pack = (
            ""
            if name == "server.log" and rng.random() < 0.6
            else rng.choice(list(PACK))
        )
        data = PACK[pack](broken_log(rng, text))
        if pack and rng.random() < 0.5:
            data = broken(rng, data)
        (folder / (name if name == "server.log" else name + pack)).write_bytes(data)
    odd(rng, folder, "server.log.3")


def odd(rng: random.Random, folder: Path, name: str) -> None:
    """Sometimes: what is no plain file. Never a device."""
    how = rng.randrange(12)
    if how == 0:
        os.mkfifo(folder / name)
    elif how == 1:
        (folder / name).symlink_to(
            rng.choice((name, "nowhere", "/proc/self/maps", ".."))
        )
    elif how == 2:
        (folder / name).mkdir()
    elif how == 3:
        os.mknod(folder / name, stat.S_IFSOCK | 0o600)


def put_evidence(rng: random.Random, folder: Path, log: bytes) -> None:
    if rng.random() < 0.1:
        (folder / "evidence").symlink_to("/proc/self")
        return
    evidence = folder / "evidence"
    evidence.mkdir()
    (evidence / "engine.log").write_bytes(broken_log(rng, log))
    names = [
        "a b.json",
        "a_b.json",
        "check-stacks-1-00.json",
        "metrics.txt",
        ESCAPES[1:8] + ".log",
    ]
    for name in rng.sample(names, 3):
        name = name.replace("/", "").replace("\x00", "")
        deep = json.dumps(nested(rng.choice((5, 90, 400))))
        (evidence / name).write_bytes(
            rng.choice((deep.encode(), rng.randbytes(900), b"x\ny"))
        )
    odd(rng, evidence, "odd.log")
