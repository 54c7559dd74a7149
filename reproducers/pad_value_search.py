"""Searches two images with equal SGLang pad values; runs in the engine's own
environment.

``python pad_value_search.py REQUEST.json`` writes one JSON object a line to stdout
(everything else that is printed goes to stderr). The request's ``task`` is ``search``,
with the fields of the class ``_PairSearch`` below, or ``verify``, with ``model`` and
``images`` (PNG files, by name).

SGLang hashes an image as SHA-256 over the bytes of its preprocessed pixels and keeps 64
bits (managers/mm_utils.py, data_hash and tensor_hash); up to 0.5.22 the low 30 of these
are the pad value (managers/schedule_batch.py, set_pad_value). The search varies a few
pixels at the image's end, so that all but the last bytes of what is hashed are common
to a family of images. It learns from the engine's own image processor, seen as a black
box, which bytes a pixel changes and into what; hashes the common part once; and for
each image copies that state and hashes the rest. What it assumes is checked: samples
against the engine's own hash before the search, and the pair after it, read from PNG
files by the engine's own classes."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import inspect
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

_Array = np.ndarray[Any, Any]

_WORD = 4
"""Bytes: the processors' pixels are float32."""
_BLOCK = 64
"""Bytes that SHA-256 takes at a time."""
CHUNK = 4096
"""Images whose varying bytes are laid out at a time: about 3 MB."""
_SAMPLES = 6
"""Images of each family whose predicted hash is compared with the engine's own."""
_PROCESSORS = (
    "sglang.srt.utils.hf_transformers.processor",
    "sglang.srt.utils.hf_transformers_utils",
)
"""Where ``get_processor`` is: from about 0.5.10 on, and before."""
_PACKAGES = ("sglang", "transformers", "torch", "numpy", "pillow")


class Problem(Exception):
    """A sentence for people; the harness prints it."""


@dataclass(frozen=True)
class _PairSearch:
    """``first``, ``second``: PNG files, the families' common pictures."""

    began: float
    """When the search was asked for: ``time.time()``."""
    model: str
    first: str
    second: str
    out: str
    bits: int
    varying: int
    """How many pixels vary: the last of the last row, in blue."""
    per_round: int
    """Images of each family between two looks for a pair."""
    limit: int
    """Images of each family after which the search gives up."""
    jobs: int


class _SglangFeatures:
    """The installed SGLang: its image processor and its hash."""

    def __init__(self, model: str) -> None:
        try:
            batch = import_module("sglang.srt.managers.schedule_batch")
            utils = import_module("sglang.srt.utils")
        except ModuleNotFoundError as error:
            raise Problem(
                f"this environment cannot import the engine: {error}"
            ) from error
        self._item, self._image = batch.MultimodalDataItem, batch.Modality.IMAGE
        self._load = utils.load_image
        # As the server starts it with --disable-fast-image-processor.
        self.processor = _get_processor()(model, use_fast=False).image_processor

    def facts(self) -> dict[str, Any]:
        return {
            "python": sys.version.split()[0],
            "packages": {name: _version(name) for name in _PACKAGES},
            "image_processor": type(self.processor).__name__,
            "set_pad_value": "".join(
                inspect.getsourcelines(self._item.set_pad_value)[0]
            ),
        }

    def features(self, pixels: _Array) -> Any:
        """The engine's tensor for (height, width, 3) bytes."""
        made = self.processor(images=[Image.fromarray(pixels)], return_tensors="pt")
        return made["pixel_values"]

    def read(self, path: str) -> Image.Image:
        """A picture file as the server reads it from a request (base_processor.py)."""
        text = base64.b64encode(Path(path).read_bytes()).decode()
        return self._load(f"data:image/png;base64,{text}")[0].convert("RGB")

    def identify(self, pixels: _Array) -> tuple[int, int]:
        """(hash, pad value), by the engine's own ``MultimodalDataItem``."""
        item = self._item(modality=self._image, feature=self.features(pixels))
        item.set_pad_value()
        return int(item.hash), int(item.pad_value)


def _get_processor() -> Callable[..., Any]:
    for name in _PROCESSORS:
        try:
            found = getattr(import_module(name), "get_processor", None)
        except ModuleNotFoundError:
            continue
        if found is not None:
            return found
    raise Problem("this release of SGLang has no get_processor where it is known to be")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _as_words(features: Any) -> _Array:
    """The hashed bytes, as 32-bit words."""
    flat = features.detach().cpu().contiguous().reshape(-1).numpy()
    if flat.dtype.itemsize != _WORD:
        raise Problem(f"the image processor gives {flat.dtype}, not float32")
    return flat.view(np.uint32)


@dataclass(frozen=True)
class _PixelTable:
    """What each varying pixel does to the hashed words; the same for every family of
    one size.

    ``places[k]``: indices of the words that pixel k changes; ``values[k]``: (256,
    words), what they become for each value of its blue."""

    places: list[_Array]
    values: list[_Array]

    @property
    def first(self) -> int:
        return min(int(p.min()) for p in self.places)


def _spot(shape: tuple[int, ...], k: int) -> tuple[int, int, int]:
    """Row, column, channel of varying value k: blue, leftwards from the bottom right
    corner."""
    return shape[0] - 1, shape[1] - 1 - k, 2


def digits(index: int, varying: int) -> list[int]:
    """Blue values of image ``index`` of a family, pixel by pixel."""
    return [(index >> (8 * k)) & 255 for k in range(varying)]


def member(base: _Array, index: int, varying: int) -> _Array:
    """Pixels of image ``index`` of the family of ``base``."""
    pixels = base.copy()
    for k, value in enumerate(digits(index, varying)):
        pixels[_spot(base.shape, k)] = value
    return pixels


def learn(words_of: Callable[[_Array], Any], base: Any, varying: int) -> _PixelTable:
    """Ask the processor, as a black box, which words each varying pixel changes, and
    into what."""
    zero = member(base, 0, varying)
    common = words_of(zero)
    places = []
    for k in range(varying):
        one = zero.copy()
        one[_spot(base.shape, k)] = 255
        changed = np.flatnonzero(words_of(one) != common)
        if changed.size == 0:
            raise Problem(
                "the last pixels do not reach the hash: the processor drops or mixes "
                "them"
            )
        places.append(changed)
    if len(np.unique(np.concatenate(places))) != sum(p.size for p in places):
        raise Problem(
            "the processor mixes neighbouring pixels: take a size that it does not "
            "resize"
        )
    values = [np.empty((256, p.size), np.uint32) for p in places]
    for value in range(256):
        for k in range(varying):
            zero[_spot(base.shape, k)] = value
        words = words_of(zero)
        for k, place in enumerate(places):
            values[k][value] = words[place]
    return _PixelTable(places, values)


class Family:
    """The images of one picture: SHA-256's state after the common bytes, and the bytes
    after it."""

    def __init__(self, words: _Array, table: _PixelTable) -> None:
        start = table.first * _WORD // _BLOCK * _BLOCK // _WORD
        self.tail = words[start:]
        self._places = [places - start for places in table.places]
        self._values = table.values
        self._state = hashlib.sha256(words[:start].tobytes())
        self._rows = np.tile(self.tail, (CHUNK, 1))

    def hashes(self, start: int, stop: int) -> _Array:
        """The engine's 64-bit hashes of images start..stop-1."""
        chunks = [
            np.arange(at, min(at + CHUNK, stop)) for at in range(start, stop, CHUNK)
        ]
        digests = b"".join(
            [digest for chunk in chunks for digest in self._digests(chunk)]
        )
        return np.frombuffer(digests, ">u8")[::4].astype(np.uint64)

    def _digests(self, index: _Array) -> list[bytes]:
        rows = self._rows[: len(index)]
        for k, (places, values) in enumerate(
            zip(self._places, self._values, strict=True)
        ):
            digit = (index >> (8 * k)) & 255
            for column, place in enumerate(places):
                rows[:, place] = values[digit, column]
        copy = self._state.copy
        digests = []
        for row in rows:  # all that is done for each image alone
            state = copy()
            state.update(row)
            digests.append(state.digest())
        return digests


# ------------------------------------------------------------------ processes


class Hashers:
    """Processes that hash: forked before the engine is imported, so that they are
    small."""

    def __init__(self, jobs: int) -> None:
        fork = multiprocessing.get_context("fork")
        self.pipes: list[Connection] = []
        self.processes = []
        for _ in range(jobs):
            ours, theirs = fork.Pipe()
            process = fork.Process(
                target=_hasher, args=(theirs, os.getpid()), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def prepare(self, families: list[tuple[_Array, _PixelTable]]) -> None:
        for pipe in self.pipes:
            pipe.send(families)

    def hashes(self, start: int, stop: int) -> list[_Array]:
        """Hashes of images start..stop-1, one array for each family."""
        step = -(-(stop - start) // len(self.pipes))
        bounds = [(at, min(at + step, stop)) for at in range(start, stop, step)]
        used = self.pipes[: len(bounds)]
        try:
            for pipe, (low, high) in zip(used, bounds, strict=True):
                pipe.send((low, high))
            parts = [pipe.recv() for pipe in used]
        except (EOFError, BrokenPipeError) as error:
            raise Problem(
                "a hashing process died; was it killed for memory?"
            ) from error
        return [np.concatenate(family) for family in zip(*parts, strict=True)]


def _hasher(pipe: Connection, parent: int) -> None:
    """One process: families first, then ranges, until the pipe ends or the parent
    dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    die_with_parent(parent)
    try:
        families = [Family(words, table) for words, table in pipe.recv()]
        while True:
            low, high = pipe.recv()
            pipe.send([family.hashes(low, high) for family in families])
    except (EOFError, BrokenPipeError):
        return


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however it ends (prctl
    1)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


# ------------------------------------------------------------------ the search


@dataclass(frozen=True)
class _FoundPair:
    first: int
    second: int
    value: int


class Matcher:
    """All low bits so far, of both families; says when a value of one is among the
    other's."""

    def __init__(self, bits: int) -> None:
        self._mask = np.uint64((1 << bits) - 1)
        self._all: list[_Array] = [np.empty(0, np.uint64), np.empty(0, np.uint64)]

    def add(self, new: list[_Array]) -> _FoundPair | None:
        """Take in the next hashes of each family; the pair with the lowest indices, if
        any."""
        for k, hashes in enumerate(new):
            self._all[k] = np.concatenate([self._all[k], hashes & self._mask])
        # One sort of all values with their family as lowest bit: equal ones become
        # neighbours.
        one = np.uint64(1)
        merged = np.sort(
            np.concatenate([self._all[0] << one, self._all[1] << one | one])
        )
        if not np.any(merged[1:] ^ merged[:-1] == one):
            return None
        common, first, second = np.intersect1d(
            self._all[0], self._all[1], return_indices=True
        )
        best = int(np.argmin(np.maximum(first, second)))
        return _FoundPair(int(first[best]), int(second[best]), int(common[best]))


def _import_engine(model: str, say: Callable[..., None]) -> _SglangFeatures:
    say("stage", text="importing the engine")
    return _SglangFeatures(model)


def search(request: _PairSearch, say: Callable[..., None]) -> None:
    hashers = Hashers(request.jobs)  # before the engine's threads are there
    engine = _import_engine(request.model, say)
    start_s = time.time() - request.began
    say("stage", text="learning the image processor's bytes")
    bases = [np.asarray(engine.read(path)) for path in (request.first, request.second)]

    def words_of(pixels: _Array) -> _Array:
        return _as_words(engine.features(pixels))

    began = time.perf_counter()
    learned = {base.shape: learn(words_of, base, request.varying) for base in bases}
    tables = [learned[base.shape] for base in bases]
    words = [words_of(member(base, 0, request.varying)) for base in bases]
    families = [Family(w, table) for w, table in zip(words, tables, strict=True)]
    checked = sum(
        check(engine, f, b, request.varying)
        for f, b in zip(families, bases, strict=True)
    )
    learn_s = time.perf_counter() - began
    say("stage", text="hashing images")
    hashers.prepare(list(zip(words, tables, strict=True)))
    matcher, found, done, search_s = Matcher(request.bits), None, 0, 0.0
    began = time.perf_counter()
    for start in range(0, request.limit, request.per_round):
        done = min(start + request.per_round, request.limit)
        found = matcher.add(hashers.hashes(start, done))
        search_s = round(time.perf_counter() - began, 4)
        say("progress", images=2 * done, seconds=search_s)
        if found:
            break
    else:
        say("exhausted", images=2 * done)
        return
    _write_pair(request, bases, found)
    names = {
        name: str(Path(request.out) / f"{name}.png") for name in ("A", "B", "control")
    }
    verify(
        engine,
        names,
        say,
        height=bases[0].shape[0],
        width=bases[0].shape[1],
        varying=request.varying,
        images=2 * done,
        index_a=found.first,
        index_b=found.second,
        hashed_bytes=int(words[0].size * _WORD),
        tail_bytes=int(families[0].tail.size * _WORD),
        samples_checked=checked,
        start_s=round(start_s, 3),
        learn_s=round(learn_s, 4),
        search_s=search_s,
    )


def check(engine: _SglangFeatures, family: Family, base: _Array, varying: int) -> int:
    """Compare predicted hashes with the engine's own; the number of images compared."""
    random = np.random.default_rng(0)
    indices = [0, (1 << (8 * varying)) - 1]
    indices += [int(i) for i in random.integers(0, 1 << (8 * varying), _SAMPLES - 2)]
    for index in indices:
        predicted = int(family.hashes(index, index + 1)[0])
        true, _ = engine.identify(member(base, index, varying))
        if predicted != true:
            raise Problem(
                f"the engine's hash of image {index} is {true:016x}, the search "
                f"predicts {predicted:016x}: this release hashes in another way"
            )
    return len(indices)


def _write_pair(request: _PairSearch, bases: list[_Array], found: _FoundPair) -> None:
    """A.png, B.png, and control.png: B with the highest bit of its last pixel's blue
    flipped."""
    first = member(bases[0], found.first, request.varying)
    second = member(bases[1], found.second, request.varying)
    control = second.copy()
    control[_spot(control.shape, 0)] ^= 0x80
    for name, pixels in (("A", first), ("B", second), ("control", control)):
        Image.fromarray(pixels).save(Path(request.out) / f"{name}.png", optimize=True)


def verify(
    engine: _SglangFeatures,
    files: dict[str, str],
    say: Callable[..., None],
    **search: Any,
) -> None:
    """The engine's own hash and pad value of each PNG file, read as the server reads
    it.

    ``search``: the facts of the search that made the files; none, if another made them.
    """
    say("stage", text="asking the engine's own classes")
    images = {}
    for name, path in files.items():
        pixels = np.asarray(engine.read(path))
        value, pad = engine.identify(pixels)
        images[name] = {
            "hash": f"{value:016x}",
            "pad_value": pad,
            "features_sha256": hashlib.sha256(
                _as_words(engine.features(pixels)).tobytes()
            ).hexdigest(),
        }
    facts = engine.facts()
    say("result", result={"engine": facts, "images": images, "search": search or None})


def main() -> int:
    # Engines print while they are imported: only our own lines go to stdout.
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(event: str, **facts: Any) -> None:
        lines.write(json.dumps({"event": event, **facts}) + "\n")

    request = json.loads(Path(sys.argv[1]).read_text())
    task = request.pop("task")
    try:
        if task == "search":
            search(_PairSearch(**request), say)
        else:
            verify(_import_engine(request["model"], say), request["images"], say)
    except Problem as problem:
        say("problem", text=str(problem))
        return 1
    except BrokenPipeError:
        return 1  # the harness is gone
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
