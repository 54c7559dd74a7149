"""How fast is the collision search, measured against a plain search and the core's
SHA-256 limit?

    python benchmarks/collide_rate.py [--images 65536] [--jobs N] [--repeat 20]

No engine is needed: the pixels are laid out as Qwen2-VL's image processor does it (84 x
84 pixels, 169 344 bytes of float32), and the worker's own code hashes them. Best of
``--repeat`` short rounds
each: CPU time in the rows of one core, wall clock for the search. An engine adds its
import."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable

import numpy as np
from mmrepro.reproducers import pad_value_search as worker

SIDE, PATCH, MERGE = 84, 14, 2
VARYING = 3
BITS = 30
PADDING = 64
"""SHA-256 appends its length: one more block."""


def pixels_to_words(pixels: np.ndarray) -> np.ndarray:
    """Qwen2-VL's layout: patches of 14, merged 2 x 2, channel by channel, each frame
    twice."""
    values = (
        pixels.astype(np.float32) / np.float32(255) - np.float32(0.48)
    ) / np.float32(0.268)
    frames = np.stack([values.transpose(2, 0, 1)] * 2)
    rows = SIDE // PATCH
    shape = (1, 2, 3, rows // MERGE, MERGE, PATCH, rows // MERGE, MERGE, PATCH)
    return (
        np.ascontiguousarray(frames.reshape(shape).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8))
        .reshape(-1)
        .view(np.uint32)
    )


def best_of(
    repeat: int,
    action: Callable[[], object],
    clock: Callable[[], float] = time.process_time,
) -> float:
    """Seconds of the core; with ``time.perf_counter`` seconds of the clock."""
    times = []
    for _ in range(repeat):
        started = clock()
        action()
        times.append(clock() - started)
    return min(times)


def plain_search(base: np.ndarray, count: int) -> None:
    """What one writes first: each image preprocessed and hashed as a whole, a dict of
    all."""
    seen: dict[int, int] = {}
    for index in range(count):
        words = pixels_to_words(worker.member(base, index, VARYING))
        digest = hashlib.sha256(words.tobytes()).digest()
        seen.setdefault(int.from_bytes(digest[:8], "big") % (1 << BITS), index)


def whole_buffers(words: np.ndarray, count: int) -> None:
    """SHA-256 over the whole buffer, already laid out: no image can be cheaper without
    a state."""
    data = words.tobytes()
    for _ in range(count):
        hashlib.sha256(data).digest()


def search(hashers: worker.Hashers, images: int) -> None:
    matcher = worker.Matcher(48)  # 2^48: no pair ends it early
    step = 16_384
    for start in range(0, images, step):
        matcher.add(hashers.hashes(start, start + step))


def openssl_speed() -> str:
    """What ``openssl speed`` says of 16 KiB at a time, for comparison; empty without
    the tool."""
    if not shutil.which("openssl"):
        return ""
    done = subprocess.run(
        ["openssl", "speed", "-seconds", "1", "-bytes", "16384", "sha256"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"^sha256\s+([\d.]+)k", done.stdout, re.MULTILINE)
    return f"{float(found[1]) / 1e3:.0f} MB/s" if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=65_536)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeat", type=int, default=20)
    options = parser.parse_args()
    hashers = {jobs: worker.Hashers(jobs) for jobs in sorted({1, options.jobs})}

    bases = [
        np.random.default_rng(i).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
        for i in (0, 1)
    ]
    table = worker.learn(pixels_to_words, bases[0], VARYING)
    words = [pixels_to_words(worker.member(base, 0, VARYING)) for base in bases]
    family = worker.Family(words[0], table)
    hashed, tail = words[0].nbytes, family.tail.nbytes

    large = os.urandom(1 << 20)
    speed = (16 << 20) / best_of(
        options.repeat, lambda: [hashlib.sha256(large) for _ in range(16)]
    )
    print(
        f"{platform.processor() or platform.machine()}, Python "
        f"{platform.python_version()}"
    )
    print(
        f"{ssl.OPENSSL_VERSION}; openssl speed, 16 KiB: "
        f"{openssl_speed() or 'not installed'}"
    )
    print(f"SHA-256 of one core, 1 MiB at a time: {speed / 1e6:.0f} MB/s")
    print(f"an image: {hashed} bytes hashed, of which the last {tail} differ\n")

    for pipe in hashers.values():
        pipe.prepare([(w, table) for w in words])
        pipe.hashes(0, 8192)  # the first call lays out its rows
    family.hashes(0, 8192)
    few, many = 40, options.images // 2
    rows: list[tuple[str, float, float]] = [
        (
            "plain search, one core",
            best_of(options.repeat, lambda: plain_search(bases[0], few)) / few,
            (hashed + PADDING) / speed,
        ),
        (
            "whole buffers, hash only, one core",
            best_of(options.repeat, lambda: whole_buffers(words[0], few)) / few,
            (hashed + PADDING) / speed,
        ),
        (
            "shared state, hash only, one core",
            best_of(options.repeat, lambda: family.hashes(0, many)) / many,
            (tail + PADDING) / speed,
        ),
    ]
    for jobs, pool in hashers.items():
        seconds = best_of(
            options.repeat, lambda p=pool: search(p, many), time.perf_counter
        ) / (2 * many)
        rows.append(
            (
                f"the search, {jobs} process(es)",
                seconds,
                (tail + PADDING) / speed / jobs,
            )
        )
    head = ("µs/image", "images/s", "x plain", "SHA-256 limit", "of it")
    print(" " * 38 + " {:>9} {:>11} {:>8} {:>14} {:>6}".format(*head))
    for name, seconds, limit in rows:
        print(
            f"{name:38} {seconds * 1e6:9.3f} {1 / seconds:11,.0f} "
            f"{rows[0][1] / seconds:8.0f} "
            f"{limit * 1e6:11.3f} µs {limit / seconds:6.0%}"
        )


if __name__ == "__main__":
    main()
