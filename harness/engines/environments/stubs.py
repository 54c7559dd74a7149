"""A shared library of names alone, in place of NVIDIA's where an environment is for a
CPU.

``import torch`` links CUDA's libraries, 1.7 GB to download; on a CPU it asks them for a
device, and whether one is capturing. One small ELF file defines the names that torch's
libraries take from them, and is there under each of their file names: every name is a
function that returns ``cudaErrorNoDevice``, or the words for it. ELF: System V ABI,
"Object Files"; symbol versions: Linux Standard Base, "Symbol Versioning"."""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = "libmmrepro_no_cuda.so"

_NO_DEVICE = (
    100  # cudaErrorNoDevice, of the CUDA Runtime API; no library's code for success
)
_WORDS = b"no CUDA: mmrepro's environment for a CPU has stubs of it\0"
_TEXT_AT = 16  # where the second function of the code begins, after the first
_CODE: Mapping[
    int, bytes
] = {  # by e_machine (x86-64, aarch64): "return 100", "return _WORDS"
    62: (b"\xb8" + struct.pack("<I", _NO_DEVICE) + b"\xc3").ljust(_TEXT_AT, b"\x90")
    + (b"\x48\x8d\x05" + struct.pack("<I", 1) + b"\xc3" + _WORDS),
    183: struct.pack("<IIII", 0x52800000 | _NO_DEVICE << 5, 0xD65F03C0, 0, 0)
    + (struct.pack("<II", 0x10000040, 0xD65F03C0) + _WORDS),
}
_SAYS = re.compile(r".*(?:String|Name)|ncclGetLastError")  # functions that return words
_HEADERS = 64 + 4 * 56  # of the file and its four segments; the code follows
_PAGE = 0x10000  # the largest of either processor
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = (
    4,
    5,
    6,
    10,
    11,
    14,
)
_DT_VERSYM, _DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD

_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED, _SHT_VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF

_LIBRARY = re.compile(r"lib(?:cu|nv|nccl)")
_SYMBOL = re.compile(r"_*(?:cu|nv|nccl)")  # of those without a version


def write_stubs(module: Path) -> list[Path]:
    """Write, beside ``module``, the libraries of NVIDIA that it and its neighbours are
    linked to.

    Returns them; none where it is linked to none, or is no module for x86-64 or
    aarch64."""
    read: dict[str, _Module] = {}
    names = [module.name]
    for name in names:  # it grows
        if name not in read and (module.parent / name).is_file():
            read[name] = _read(module.parent / name)
            names += read[name].needed
    libraries = sorted(
        {name for name in names if _LIBRARY.match(name) and name not in read}
    )
    machine = read[module.name].machine if module.name in read else 0
    if not libraries or machine not in _CODE:
        return []
    symbols = sorted(set().union(*(one.symbols for one in read.values())))
    (module.parent / FILE).write_bytes(_elf(machine, _CODE[machine], symbols))
    for name in libraries:
        (module.parent / name).symlink_to(FILE)
    return [module.parent / name for name in libraries]


@dataclass(frozen=True)
class _Module:
    """What a library asks for: file names, and NVIDIA's symbols with their versions or
    ""."""

    machine: int
    needed: list[str]
    symbols: set[tuple[str, str]]


def _read(path: Path) -> _Module:
    """Read the tables of a 64-bit little-endian ELF file; another file asks for
    nothing."""
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        if data[:6] != b"\x7fELF\x02\x01":
            return _Module(0, [], set())
        (machine,) = struct.unpack_from("<H", data, 18)
        (at,) = struct.unpack_from("<Q", data, 40)
        (count,) = struct.unpack_from("<H", data, 60)
        headers = [
            struct.unpack_from("<IIQQQQIIQQ", data, at + 64 * i) for i in range(count)
        ]
        sections = {
            kind: (offset, size, link)
            for _, kind, _, _, offset, size, link, *_ in headers
        }

        def part(kind: int) -> tuple[bytes, int]:
            """A section of this kind, and the place of its strings."""
            offset, size, link = sections.get(kind, (0, 0, 0))
            return data[offset : offset + size], headers[link][4] if headers else 0

        def text(at: int) -> str:
            return data[at : data.find(b"\0", at)].decode("ascii", "replace")

        dynamic, strings = part(_SHT_DYNAMIC)
        needed = [
            text(strings + at)
            for tag, at in struct.iter_unpack("<QQ", dynamic)
            if tag == 1
        ]
        versions = dict(_versions(*part(_SHT_VERNEED), text))
        symbols, strings = part(_SHT_DYNSYM)
        entries = struct.iter_unpack("<IBBHQQ", symbols)
        marks = struct.iter_unpack(
            "<H", part(_SHT_VERSYM)[0] or bytes(len(symbols) // 12)
        )
        wanted = set()
        for (at, _, _, section, _, _), (mark,) in zip(entries, marks, strict=True):
            name = text(strings + at)
            file, version = versions.get(mark & 0x7FFF, ("", ""))
            if not section and (_LIBRARY.match(file) if file else _SYMBOL.match(name)):
                wanted.add((name, version))
        return _Module(machine, needed, wanted)


def _versions(
    needs: bytes, strings: int, text: Callable[[int], str]
) -> Iterator[tuple[int, tuple[str, str]]]:
    """By number, each version that a file takes from another: that file's name, its
    own."""
    at = 0
    while needs:
        _, count, file, first, following = struct.unpack_from("<HHIII", needs, at)
        one = at + first
        for _ in range(count):
            _, _, number, name, step = struct.unpack_from("<IHHII", needs, one)
            yield number & 0x7FFF, (text(strings + file), text(strings + name))
            one += step
        if not following:
            return
        at += following


def _elf(machine: int, code: bytes, symbols: Sequence[tuple[str, str]]) -> bytes:
    """A shared library in which each symbol (name, version or "") is a function of
    ``code``.

    Two segments: what is only read and run, and the dynamic section, which the loader
    writes to."""
    versions = sorted({version for _, version in symbols if version})
    strings = _Strings()
    soname = strings.add(FILE)
    table = bytes(24)  # the first symbol is none
    marks = [0]
    for name, version in symbols:
        at = _HEADERS + (_TEXT_AT if _SAYS.fullmatch(name) else 0)
        table += struct.pack("<IBBHQQ", strings.add(name), 0x12, 0, 1, at, _TEXT_AT)
        marks.append(versions.index(version) + 2 if version else 1)
    definitions = b""
    for index, version in enumerate([FILE, *versions], start=1):
        following = 28 if index <= len(versions) else 0
        definitions += struct.pack(
            "<HHHHIII", 1, index == 1, index, 1, _hash(version), 20, following
        )
        definitions += struct.pack("<II", strings.add(version), 0)
    body, places = b"", []
    hashes = _hash_table([name for name, _ in symbols])
    numbers = struct.pack(f"<{len(marks)}H", *marks)
    for part in (code, hashes, table, numbers, definitions, strings.data):
        body += bytes(-len(body) % 8)
        places.append(_HEADERS + len(body))
        body += part
    end = _HEADERS + len(body)
    dynamic = -(-end // _PAGE) * _PAGE
    tags = (_DT_HASH, _DT_SYMTAB, _DT_VERSYM, _DT_VERDEF, _DT_STRTAB)
    entries = [
        *zip(tags, places[1:], strict=True),
        (_DT_STRSZ, len(strings.data)),
        (_DT_SYMENT, 24),
    ]
    entries += [(_DT_SONAME, soname), (_DT_VERDEFNUM, len(versions) + 1), (0, 0)]
    section = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    segments = [
        (_PT_LOAD, 5, 0, end, _PAGE),  # read, execute
        (_PT_LOAD, 6, dynamic, len(section), _PAGE),  # read, write
        (_PT_DYNAMIC, 6, dynamic, len(section), 8),
        (_PT_GNU_STACK, 6, 0, 0, 16),  # no executable stack is asked for
    ]
    program = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size, align)
        for kind, flags, at, size, align in segments
    )
    ident = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head = struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 4, 0, 0, 0)
    return (ident + head + program + body).ljust(dynamic, b"\0") + section


class _Strings:
    """A string table; ``add`` returns the place of a string."""

    def __init__(self) -> None:
        self.data = b"\0"

    def add(self, text: str) -> int:
        at = len(self.data)
        self.data += text.encode() + b"\0"
        return at


def _hash(name: str) -> int:
    """The System V ABI's hash of a symbol's name."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _hash_table(names: Sequence[str]) -> bytes:
    """DT_HASH: buckets, and a chain of the symbols (from 1) in each."""
    buckets, chain = [0] * max(1, len(names) // 2), [0] * (len(names) + 1)
    for index, name in enumerate(names, start=1):
        bucket = _hash(name) % len(buckets)
        chain[index], buckets[bucket] = buckets[bucket], index
    words = [len(buckets), len(chain), *buckets, *chain]
    return struct.pack(f"<{len(words)}I", *words)
