"""Finds a pair of pictures that collide, in the engine's environment, and verifies it
there."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

from mmrepro import __version__
from mmrepro.base.errors import InfrastructureError, UnwritableOutput, UsageError
from mmrepro.base.machine import open_to_read, refuse_other_kinds, write_file
from mmrepro.failure.documents import cross_probability
from mmrepro.scenarios.pad_value_collision.collide.options import (
    PAD_BITS,
    SCRIPT,
    PairSearch,
)
from mmrepro.scenarios.pad_value_collision.collide.pair import (
    NAMES,
    PAIR_FILE,
    Identity,
    ImportedEngine,
    Pair,
    PairImage,
    SearchedEngine,
    SearchFacts,
    equal_low_bits,
)
from mmrepro.scenarios.pad_value_collision.collide.worker import (
    EnginePlace,
    Progress,
    ask,
)
from PIL import Image, ImageDraw, UnidentifiedImageError

MIN_BITS, MAX_BITS = 8, 40
"""More than 40 bits: the hashes no longer fit into memory comfortably."""
_FACTOR = 28
"""Qwen2-VL's image token is 28 x 28 pixels."""
_LEAST_SIDE, _MAX_SIDE = 56, 840
"""SGLang sets the least size of a Qwen2-VL image to 3136 = 56 x 56 pixels itself (0.5.6
utils/hf_transformers_utils.py, get_processor); smaller ones it enlarges, and those of
more than 1 003 520 pixels it makes smaller."""
_FILES = (*(f"{name}.png" for name in NAMES), PAIR_FILE)
"""What is written; the pair's facts come last."""

# --------------------------------------------------------------- the families' pictures

Pictures = tuple[Image.Image, Image.Image]


def pictures_of(asked: PairSearch) -> Pictures:
    """The families' common pictures. Raises UsageError for any argument that cannot be
    used."""
    if (asked.first is None) != (asked.second is None):
        raise UsageError(
            "--first and --second belong together: two families, two pictures."
        )
    if not MIN_BITS <= asked.bits <= MAX_BITS:
        raise UsageError(
            f"--bits must be between {MIN_BITS} and {MAX_BITS}.",
            hint=f"{SCRIPT} --bits {PAD_BITS}",
        )
    for side in (0 if asked.first else asked.size, asked.second_size or 0):
        if side and (side % _FACTOR or not _LEAST_SIDE <= side <= _MAX_SIDE):
            raise UsageError(
                f"The image processor would resize pictures of {side} pixels a side.",
                hint=f"use a multiple of {_FACTOR} from {_LEAST_SIDE} to {_MAX_SIDE}",
            )
    if asked.first and asked.second:
        return _load(asked.first, asked.second, asked.second_size)
    return draw(asked.seed, asked.size, asked.second_size)


def draw(seed: int, size: int, second_size: int | None = None) -> Pictures:
    """A red square on black and a blue disc on white, ``size`` pixels a side; the
    disc's picture ``second_size``, if given.

    The seed shifts colours and places a little: other seeds give other families, none
    of which could be mistaken for the other."""
    random = Random(seed)  # noqa: S311 - pictures, not secrets

    def near(*colour: int) -> tuple[int, ...]:
        return tuple(
            min(255, max(0, part + random.randint(-14, 14))) for part in colour
        )

    def box(size: int, margin: float) -> tuple[int, int, int, int]:
        x, y = (round(size * (margin + random.uniform(-0.04, 0.04))) for _ in range(2))
        side = round(size * (1 - 2 * margin))
        return x, y, x + side, y + side

    first = Image.new("RGB", (size, size), near(18, 20, 26))
    ImageDraw.Draw(first).rectangle(box(size, 0.25), fill=near(220, 45, 40))
    other = second_size or size
    second = Image.new("RGB", (other, other), near(240, 236, 226))
    ImageDraw.Draw(second).ellipse(box(other, 0.16), fill=near(35, 70, 210))
    return first, second


def _load(first: Path, second: Path, second_size: int | None) -> Pictures:
    """The user's pictures, brought to a size that the image processor keeps.

    The size is the first's, rounded to whole tokens; the second's ``second_size`` a
    side, if given."""
    opened = []
    for path in (first, second):
        try:
            with open_to_read(path) as file, Image.open(file) as picture:
                opened.append(picture.convert("RGB"))
        except FileNotFoundError as error:
            raise UsageError(f"There is no picture {path}.") from error
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise UsageError(f"{path} is not a picture that can be read.") from error
    width, height = (
        max(_LEAST_SIDE, min(_MAX_SIDE, round(side / _FACTOR) * _FACTOR))
        for side in opened[0].size
    )
    other = (second_size, second_size) if second_size else (width, height)
    return opened[0].resize((width, height)), opened[1].resize(other)


# ------------------------------------------------------------------ the search


def varying_pixels(bits: int) -> int:
    """How many pixels vary: 256 to their number is at least 16 times the square root of
    2^bits."""
    return max(2, -(-(bits + 8) // 16))


def capacity(bits: int) -> int:
    """Images of each family at most: 16 times the square root, so 256 pairs are
    expected."""
    return int(min(256 ** varying_pixels(bits), 16 << -(-bits // 2)))


def per_round(bits: int) -> int:
    """Images of each family between two looks: a quarter of the square root of
    2^bits."""
    return max(16, 1 << max(0, bits // 2 - 2))


def _chance(bits: int, images: int) -> float:
    return cross_probability(images // 2, images // 2, bits)


def find_pair(
    place: EnginePlace, out: Path, asked: PairSearch, progress: Progress | None = None
) -> Pair:
    """Search two pictures whose hashes agree in their ``bits`` low bits; write them to
    ``out``.

    The pictures come from two families: all of one family look alike, those of
    different families do not. Equal arguments find the same pair, whatever ``jobs`` is.

    ``out`` gets A.png, B.png, control.png (B with one bit of one pixel flipped) and
    pair.json.

    Raises:
        UsageError: an argument is out of range, or a picture cannot be read.
        UnwritableOutput: ``out`` cannot be written, or holds a pair already.
        NoPair: there was none among ``max_images`` images (of both families).
        InfrastructureError: the engine could not be imported, or its own classes do not
            confirm what was found.
    """
    bits, own = asked.bits, asked.first is not None
    limit = capacity(bits)
    if asked.max_images is not None:
        limit = min(limit, max(1, asked.max_images // 2))
    pictures = pictures_of(asked)
    jobs = asked.jobs or os.cpu_count() or 1
    with _output(out) as folder:
        for name, picture in zip(("first", "second"), pictures, strict=True):
            picture.save(folder / f"{name}.png")
        request = {
            "task": "search",
            "began": time.time(),
            "model": str(place.model),
            "first": str(folder / "first.png"),
            "second": str(folder / "second.png"),
            "out": str(folder),
            "bits": bits,
            "varying": varying_pixels(bits),
            "per_round": per_round(bits),
            "limit": limit,
            "jobs": jobs,
        }
        result = ask(place, request, progress, partial(_chance, bits))
        if result.search is None or set(result.images) != set(NAMES):
            raise InfrastructureError("The search ended without a pair.")
        search = SearchFacts(
            **dict(result.search),
            bits=bits,
            seed=None if own else asked.seed,
            pictures="the user's own" if own else "drawn from the seed",
            jobs=jobs,
            probability=_chance(bits, result.search.images),
        )
        pair = Pair(
            tool=f"mmrepro {__version__}",
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            engine=_engine(place, result.engine),
            search=search,
            images=_images(result.images, folder),
        )
        _confirm(pair, bits)
        (folder / PAIR_FILE).write_text(pair.model_dump_json(indent=1) + "\n")
        for name in _FILES:
            write_file(out / name, (folder / name).read_bytes())
    return pair


def require_pictures(folder: Path) -> None:
    """Raise UsageError when ``folder`` lacks one of the three."""
    for name in NAMES:
        if not (folder / f"{name}.png").is_file():
            raise UsageError(
                f"{folder} holds no {name}.png.",
                hint="give the --out of an earlier search",
            )


def verify_pair(
    place: EnginePlace, folder: Path, progress: Progress | None = None
) -> tuple[SearchedEngine, dict[str, PairImage]]:
    """What the engine at ``place`` makes of the pictures in ``folder``, whoever found
    them.

    Raises:
        UsageError: a picture is missing.
        InfrastructureError: the engine could not be asked.
    """
    require_pictures(folder)
    engine, identities = identify(
        place, {name: folder / f"{name}.png" for name in NAMES}, progress
    )
    return engine, _images(identities, folder)


def identify(
    place: EnginePlace, files: Mapping[str, Path], progress: Progress | None = None
) -> tuple[SearchedEngine, dict[str, Identity]]:
    """The hash and the pad value that the engine at ``place`` gives to each picture.

    Raises:
        InfrastructureError: the engine could not be asked.
    """
    images = {name: str(file.absolute()) for name, file in files.items()}
    request = {"task": "verify", "model": str(place.model), "images": images}
    result = ask(place, request, progress)
    return _engine(place, result.engine), result.images


def _confirm(pair: Pair, bits: int) -> None:
    """The engine's own hashes must be what the search predicted: else nothing was
    found."""
    a, b, control = (pair.images[name] for name in NAMES)
    if pair.equal_bits < bits or a.hash == b.hash:
        raise InfrastructureError(
            f"The engine's own hashes of A and B ({a.hash}, {b.hash}) agree in "
            f"{pair.equal_bits} low bits, not in {bits}: the search is wrong about "
            "this release."
        )
    if equal_low_bits(control.hash_value, b.hash_value) >= bits:
        raise InfrastructureError("The control collides as well; try another --seed.")


def _engine(place: EnginePlace, facts: ImportedEngine) -> SearchedEngine:
    preprocessor = place.model / "preprocessor_config.json"
    digest = (
        hashlib.sha256(preprocessor.read_bytes()).hexdigest()
        if preprocessor.is_file()
        else ""
    )
    return SearchedEngine(
        **dict(facts),
        name=place.engine,
        release=place.release,
        device=place.device,
        wheel=place.environment.wheel if place.environment else None,
        model=place.model.name,
        preprocessor_sha256=digest,
        stand_ins=place.stand_ins,
        settings=place.settings,
    )


def _images(identities: Mapping[str, Identity], folder: Path) -> dict[str, PairImage]:
    images = {}
    for name in NAMES:
        data = (folder / f"{name}.png").read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        facts = dict(identities[name])
        images[name] = PairImage(
            **facts, file=f"{name}.png", sha256=digest, bytes=len(data)
        )
    return images


@contextmanager
def _output(out: Path) -> Iterator[Path]:
    """A folder inside ``out`` to work in, gone afterwards, as is an ``out`` that stayed
    empty."""
    if (out / PAIR_FILE).exists():
        raise UnwritableOutput(
            f"{out} already holds a pair.", hint="choose another --out"
        )
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in _FILES:
            refuse_other_kinds(out / name)
        folder = Path(tempfile.mkdtemp(prefix=".search-", dir=out)).absolute()
    except OSError as error:
        where = error.filename or out
        raise UnwritableOutput(
            f"The output folder {out} cannot be written: {error.strerror} ({where}).",
            hint=f"{SCRIPT} --out DIR, with a DIR that you may write",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made and not any(out.iterdir()):
            out.rmdir()
