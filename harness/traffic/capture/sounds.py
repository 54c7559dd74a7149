"""Noise in the place of sounds, films and files: of the same length, and of the same
kind where one can be made without a decoder."""

from __future__ import annotations

import random
import struct
from typing import Final

_Made = tuple[bytes, bool]
"""The bytes, and whether a decoder reads them as it would have read the others."""

_SIGNATURES: Final = (
    # How files of a kind begin; the rest of a header may say whose it is.
    b"OggS",
    b"fLaC",
    b"\x1a\x45\xdf\xa3",
    b"#!AMR",
    b"FLV\x01",
    b"MThd",
    b"FORM",
    b"ADIF",
    b"\xff\xf1",
    b"\xff\xf9",
    b"\x00\x00\x01\xba",
    b"\x00\x00\x01\xb3",
    b"\x30\x26\xb2\x75",
    b"%PDF-",
    b"PK\x03\x04",
    b"\x1f\x8b",
    b"\x89PNG",
    b"\xff\xd8\xff",
    b"GIF8",
    b"BM",
    b"II*\x00",
    b"MM\x00*",
    b"RIFF",
)
_BRANDS: Final = frozenset(
    {
        b"isom",
        b"iso2",
        b"iso5",
        b"iso6",
        b"mp41",
        b"mp42",
        b"avc1",
        b"qt  ",
        b"M4A ",
        b"M4V ",
        b"M4B ",
        b"3gp4",
        b"3gp5",
        b"dash",
        b"heic",
        b"avif",
    }
)
"""Of MP4 and its kin."""
_MOST_FORMAT: Final = 40
"""Bytes of a WAV's format: an extensible one has as many."""
_RATES: Final = {
    3: (44100, 48000, 32000),
    2: (22050, 24000, 16000),
    0: (11025, 12000, 8000),
}
"""Samples a second, by the version of MPEG."""
_LAYER_3: Final = {
    True: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""Thousands of bits a second of MPEG 1, and of the other ones: ISO/IEC 11172-3 and
13818-3."""


def noise_like(data: bytes, chance: random.Random) -> _Made:
    """Make bytes that tell nothing of ``data`` but its kind, length and, of a WAV or
    MP3, how it sounds to a decoder: so many channels and samples."""
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        wave = _wave(data, chance)
        if wave:
            return wave, True
    frames = _frames(data)
    if frames is not None:
        return frames, True
    kept = _signature(data)
    return kept + chance.randbytes(len(data) - len(kept)), False


def _wave(data: bytes, chance: random.Random) -> bytes:
    """Make a WAV with the same format and noise for its samples; nothing if it is
    broken."""
    out = bytearray(data[:12])
    names: set[bytes] = set()
    at = 12
    while at + 8 <= len(data):
        name = data[at : at + 4]
        size = data[at + 4 : at + 8]
        length = struct.unpack("<I", size)[0]
        body = data[at + 8 : at + 8 + length]
        if name == b"fmt ":
            out += name + size + _format(body)
        elif name == b"data":
            out += name + size + chance.randbytes(len(body))
        else:
            # Artists, notes, whatever a recorder adds.
            out += b"JUNK" + size + bytes(len(body))
        names.add(name)

        # A chunk of odd length has a byte behind it.
        at += 8 + length + length % 2
        out += bytes(max(0, min(at, len(data)) - len(out)))
    out += bytes(len(data) - len(out))
    if b"fmt " not in names or b"data" not in names:
        return b""
    return bytes(out)


def _format(body: bytes) -> bytes:
    return body[:_MOST_FORMAT] + bytes(max(0, len(body) - _MOST_FORMAT))


def _frames(data: bytes) -> bytes | None:
    """Make silent frames of MP3, of the same rates and as long together; None if it is
    none."""
    at = _behind_titles(data)
    header = data[at : at + 4]
    is_layer_3 = len(header) == 4 and header[0] == 0xFF and header[1] & 0xE6 == 0xE2
    if not is_layer_3:
        return None

    version = header[1] >> 3 & 3
    bits = header[2] >> 4
    rate = header[2] >> 2 & 3
    if version == 1 or not 0 < bits < 15 or rate == 3:
        return None  # reserved, or a rate that the frame does not say
    is_mpeg_1 = version == 3
    bitrate = _LAYER_3[is_mpeg_1][bits - 1] * 1000
    length = (144 if is_mpeg_1 else 72) * bitrate // _RATES[version][rate]

    # No check sum and no padding follow; side information of zeros is silence.
    silent = bytes([0xFF, header[1] | 1, header[2] & 0xFC, header[3] & 0xC0])
    frame = silent + bytes(length - 4)
    whole = frame * (len(data) // length + 1)
    return whole[: len(data)]


def _behind_titles(data: bytes) -> int:
    """Return where the sound begins: titles and names stand before it in an ID3 tag."""
    if data[:3] != b"ID3" or len(data) <= 10:
        return 0
    # Seven bits of each byte are the tag's size, so that none looks like a frame.
    size = 0
    for part in data[6:10]:
        size = size << 7 | part & 0x7F
    return 10 + size


def _signature(data: bytes) -> bytes:
    """Return the first bytes, by which a kind of file is known."""
    if data[4:8] == b"ftyp":
        if len(data) < 12:
            return b""
        brand = data[8:12] if data[8:12] in _BRANDS else b"isom"
        return data[:8] + brand
    for signature in _SIGNATURES:
        if data.startswith(signature):
            return signature
    return b""
