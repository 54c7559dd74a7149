"""A shared library of names alone, in place of NVIDIA's where an environment is for a CPU.

``import torch`` links CUDA's libraries, 1.7 GB to download, and on a CPU it calls nothing of them
but the question for a device. The dynamic linker lists what it misses. One small ELF file defines
these names, under every missing library's own: each is a function that returns
``cudaErrorNoDevice``. ELF: System V ABI, "Object Files"; symbol versions: Linux Standard Base,
"Symbol Versioning".
"""

from __future__ import annotations

import platform
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmrepro.engines.environments.loading import linker_report

FILE = "libmmrepro_no_cuda.so"

_NO_DEVICE = 100  # cudaErrorNoDevice, of the CUDA Runtime API; no library's code for success
_MACHINES: Mapping[str, tuple[int, bytes]] = {  # e_machine, and "return 100"
    "x86_64": (62, b"\xb8" + struct.pack("<I", _NO_DEVICE) + b"\xc3"),
    "aarch64": (183, struct.pack("<II", 0x52800000 | _NO_DEVICE << 5, 0xD65F03C0)),
}
_HEADERS = 64 + 4 * 56  # of the file and its four segments; the code follows
_PAGE = 0x10000  # the largest of either processor
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14
_DT_VERSYM, _DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD

_LIBRARY = re.compile(r"(lib(?:cu|nv|nccl)\S*) => not found")
_SYMBOL = re.compile(r"undefined symbol: ((?:cu|nv|nccl)\w*)(?:, version ([\w.]+))?\s")


def write_stubs(python: Path, module: Path) -> list[Path]:
    """Write, beside ``module``, the libraries of NVIDIA that the linker misses for it.

    Returns them; nothing is written where none is missing, the linker cannot be asked, or the
    processor is of another kind than x86-64 and aarch64.
    """
    answer = linker_report(python, module, symbols=True)
    libraries = [module.parent / name for name in sorted(set(_LIBRARY.findall(answer)))]
    machine = _MACHINES.get(platform.machine())
    if not libraries or not machine:
        return []
    (module.parent / FILE).write_bytes(_elf(*machine, sorted(set(_SYMBOL.findall(answer)))))
    for library in libraries:
        library.symlink_to(FILE)
    return libraries


def _elf(machine: int, code: bytes, symbols: Sequence[tuple[str, str]]) -> bytes:
    """A shared library in which each of ``symbols`` (name, version or "") is the function ``code``.

    Two segments: what is only read and run, and the dynamic section, which the loader writes to.
    """
    versions = sorted({version for _, version in symbols if version})
    strings = _Strings()
    soname = strings.add(FILE)
    table = bytes(24)  # the first symbol is none
    marks = [0]
    for name, version in symbols:
        table += struct.pack("<IBBHQQ", strings.add(name), 0x12, 0, 1, _HEADERS, len(code))
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
