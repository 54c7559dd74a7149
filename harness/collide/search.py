"""Finds a pair of pictures that collide, in the engine's environment, and verifies it there."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from mmrepro import __version__
from mmrepro.collide import families
from mmrepro.collide.pair import (
    NAMES,
    PAIR_FILE,
    Pair,
    PairImage,
    SearchedEngine,
    SearchFacts,
    equal_low_bits,
)
from mmrepro.collide.worker import (
    SILENCE_S,
    EngineSeen,
    Event,
    Exhausted,
    Identity,
    PairSeen,
    Progressed,
    Ready,
    Stage,
    Verified,
    events,
)
from mmrepro.environments.spec import Environment
from mmrepro.errors import InfrastructureError, NoPair, UnwritableOutput, UsageError
from mmrepro.incident import Setting, StandIn
from mmrepro.incident.model import cross_probability
from mmrepro.machine.files import refuse_other_kinds, write_file
from PIL import Image

MIN_BITS, MAX_BITS = 8, 40
"""More than 40 bits: the hashes no longer fit into memory comfortably."""

FACTOR = 28
"""Qwen2-VL's image token is 28 x 28 pixels."""
LEAST_SIDE = 56
"""SGLang sets the least size of a Qwen2-VL image to 3136 = 56 x 56 pixels itself (0.5.6
utils/hf_transformers_utils.py, get_processor); smaller ones it enlarges."""
DEFAULT_SIDE = 84
FILES = (*(f"{name}.png" for name in NAMES), PAIR_FILE)
"""What is written; the pair's facts come last."""


@dataclass(frozen=True)
class Place:
    """Where the engine's own code is run: an interpreter and its variables."""

    engine: str
    release: str
    device: str
    python: Path
    env: Mapping[str, str]
    """Besides the cleaned environment of the harness: what the server itself is given."""
    model: Path
    environment: Environment | None = None
    stand_ins: list[StandIn] = field(default_factory=list)
    settings: list[Setting] = field(default_factory=list)
    silence_s: float = SILENCE_S

    @contextmanager
    def in_use(self) -> Iterator[None]:
        if self.environment is None:
            yield
            return
        with self.environment.in_use():
            yield


@dataclass(frozen=True)
class Seen:
    """How far a search is, for a progress bar."""

    stage: str
    images: int = 0
    """Hashed so far, both families together."""
    probability: float = 0.0
    """That so many images hold a pair."""
    seconds: float = 0.0


def find_pair(
    place: Place,
    out: Path,
    *,
    bits: int = 30,
    seed: int = 1,
    size: int = DEFAULT_SIDE,
    second_size: int | None = None,
    pictures: tuple[Path, Path] | None = None,
    jobs: int | None = None,
    max_images: int | None = None,
    progress: Callable[[Seen], None] | None = None,
) -> Pair:
    """Search two pictures whose hashes agree in their ``bits`` low bits; write them to ``out``.

    The pictures come from two families: all of one family look alike, those of different families
    do not. ``pictures`` gives the families' common pictures; without it they are drawn from
    ``seed``, ``size`` pixels a side. ``second_size``: of the second family's, where it is another.
    Equal arguments find the same pair, whatever ``jobs`` is.

    ``out`` gets A.png, B.png, control.png (B with one bit of one pixel flipped) and pair.json.

    Raises:
        UsageError: an argument is out of range, or a picture cannot be read.
        UnwritableOutput: ``out`` cannot be written, or holds a pair already.
        NoPair: there was none among ``max_images`` images (of both families).
        InfrastructureError: the engine could not be imported, or its own classes do not confirm
            what was found.
    """
    first, second = pictures_of(
        bits=bits, seed=seed, size=size, second_size=second_size, pictures=pictures
    )
    limit = capacity(bits)
    if max_images is not None:
        limit = min(limit, max(1, max_images // 2))
    say = progress or (lambda _: None)
    with _output(out) as folder, place.in_use():
        first.save(folder / "first.png")
        second.save(folder / "second.png")
        used = jobs or os.cpu_count() or 1
        request = {
            "task": "search",
            "model": str(place.model),
            "first": str(folder / "first.png"),
            "second": str(folder / "second.png"),
            "out": str(folder),
            "bits": bits,
            "varying": varying_pixels(bits),
            "per_round": per_round(bits),
            "limit": limit,
            "jobs": used,
        }
        heard = _Heard(bits, say)
        heard.listen(events(place.python, place.env, request, silence_s=place.silence_s))
        search = heard.search_facts(
            seed=None if pictures else seed,
            pictures="the user's own" if pictures else "drawn from the seed",
            varying=varying_pixels(bits),
            jobs=used,
        )
        pair = _pair(place, heard.engine, search, heard.identities(NAMES), folder)
        (folder / PAIR_FILE).write_text(pair.model_dump_json(indent=1) + "\n")
        for name in FILES:
            write_file(out / name, (folder / name).read_bytes())
    return pair


def pictures_of(
    *,
    bits: int,
    seed: int,
    size: int,
    second_size: int | None = None,
    pictures: tuple[Path, Path] | None,
) -> tuple[Image.Image, Image.Image]:
    """The families' common pictures. Raises UsageError for any argument that cannot be used."""
    if not MIN_BITS <= bits <= MAX_BITS:
        raise UsageError(
            f"--bits must be between {MIN_BITS} and {MAX_BITS}.", hint="mmrepro collide --bits 30"
        )
    drawn = [size] if pictures is None else []
    for side in (*drawn, *([second_size] if second_size else [])):
        if side % FACTOR or not LEAST_SIDE <= side <= families.MAX_SIDE:
            raise UsageError(
                f"The image processor would resize pictures of {side} pixels a side.",
                hint=f"use a multiple of {FACTOR} from {LEAST_SIDE} to {families.MAX_SIDE}",
            )
    if pictures is not None:
        return families.load(pictures, FACTOR, LEAST_SIDE, second_size)
    return families.draw(seed, size, second_size)


def require_pictures(folder: Path) -> None:
    """Raises UsageError when ``folder`` lacks one of the three."""
    for name in NAMES:
        if not (folder / f"{name}.png").is_file():
            raise UsageError(
                f"{folder} holds no {name}.png.", hint="give the --out of an earlier search"
            )


def verify_pair(
    place: Place, folder: Path, progress: Callable[[Seen], None] | None = None
) -> tuple[SearchedEngine, dict[str, PairImage]]:
    """What the engine at ``place`` makes of the pictures in ``folder``, whoever found them.

    Raises:
        UsageError: a picture is missing.
        InfrastructureError: the engine could not be asked.
    """
    require_pictures(folder)
    files = {name: folder / f"{name}.png" for name in NAMES}
    engine, identities = identify(place, files, progress)
    return engine, _images(identities, folder)


def identify(
    place: Place, files: Mapping[str, Path], progress: Callable[[Seen], None] | None = None
) -> tuple[SearchedEngine, dict[str, Identity]]:
    """The hash and the pad value that the engine at ``place`` gives to each picture.

    Raises:
        InfrastructureError: the engine could not be asked.
    """
    request = {
        "task": "verify",
        "model": str(place.model),
        "images": {name: str(file.absolute()) for name, file in files.items()},
    }
    heard = _Heard(0, progress or (lambda _: None))
    with place.in_use():
        heard.listen(events(place.python, place.env, request, silence_s=place.silence_s))
    return _engine_facts(place, heard.engine), heard.identities(files.keys())


# ------------------------------------------------------------------ sizes


def varying_pixels(bits: int) -> int:
    """How many pixels vary: 256 to their number is at least 16 times the square root of 2^bits."""
    return max(2, -(-(bits + 8) // 16))


def capacity(bits: int) -> int:
    """Images of each family at most: 16 times the square root, so 256 pairs are expected."""
    return int(min(256 ** varying_pixels(bits), 16 << -(-bits // 2)))


def per_round(bits: int) -> int:
    """Images of each family between two looks: a quarter of the square root of 2^bits."""
    return max(16, 1 << max(0, bits // 2 - 2))


# ------------------------------------------------------------------ what the worker says


class _Heard:
    """Takes in the worker's events."""

    def __init__(self, bits: int, say: Callable[[Seen], None]) -> None:
        self._bits = bits
        self._say = say
        self._began = time.monotonic()
        self._stage = "starting the engine's interpreter"
        self._engine: EngineSeen | None = None
        self._ready: Ready | None = None
        self._pair: PairSeen | None = None
        self._verified: Verified | None = None
        self._start_s = self._search_s = 0.0

    def listen(self, stream: Iterator[Event]) -> None:
        self._say(Seen(self._stage))
        with closing(stream):  # type: ignore[type-var] # a generator
            for event in stream:
                self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Stage):
            self._stage = event.text
            self._say(Seen(event.text))
        elif isinstance(event, EngineSeen):
            self._engine = event
            self._start_s = time.monotonic() - self._began
        elif isinstance(event, Ready):
            self._ready = event
            self._stage = "hashing images"
            self._say(Seen(self._stage))
        elif isinstance(event, Progressed):
            self._search_s = event.seconds
            chance = cross_probability(event.images, event.images, self._bits)
            self._say(Seen(self._stage, 2 * event.images, chance, event.seconds))
        elif isinstance(event, Exhausted):
            images = 2 * event.images
            chance = cross_probability(event.images, event.images, self._bits)
            raise NoPair(
                f"No pair among {images:,} images (the chance of one was {chance:.1%}).",
                hint="try another --seed, or a larger --max-images",
            )
        elif isinstance(event, PairSeen):
            self._pair = event
        elif isinstance(event, Verified):
            self._verified = event

    @property
    def engine(self) -> EngineSeen:
        if self._engine is None:
            raise InfrastructureError("The search ended without a word of the engine.")
        return self._engine

    def identities(self, names: Collection[str]) -> dict[str, Identity]:
        if self._verified is None or set(self._verified.images) != set(names):
            raise InfrastructureError("The search ended before the pictures were verified.")
        return self._verified.images

    def search_facts(
        self, *, seed: int | None, pictures: str, varying: int, jobs: int
    ) -> SearchFacts:
        if self._ready is None or self._pair is None:
            raise InfrastructureError("The search ended without a pair.")
        each = self._pair.images
        return SearchFacts(
            bits=self._bits,
            seed=seed,
            pictures=pictures,
            width=self._ready.width,
            height=self._ready.height,
            varying=varying,
            jobs=jobs,
            images=2 * each,
            probability=cross_probability(each, each, self._bits),
            index_a=self._pair.first,
            index_b=self._pair.second,
            hashed_bytes=self._ready.hashed_bytes,
            tail_bytes=self._ready.tail_bytes,
            samples_checked=self._ready.samples,
            start_s=round(self._start_s, 3),
            learn_s=self._ready.seconds,
            search_s=self._search_s,
        )


def _pair(
    place: Place,
    engine: EngineSeen,
    search: SearchFacts,
    identities: Mapping[str, Identity],
    folder: Path,
) -> Pair:
    pair = Pair(
        tool=f"mmrepro {__version__}",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        engine=_engine_facts(place, engine),
        search=search,
        images=_images(identities, folder),
    )
    _confirm(pair, search.bits)
    return pair


def _confirm(pair: Pair, bits: int) -> None:
    """The engine's own hashes must say what the search predicted: else nothing was found."""
    a, b, control = (pair.images[name] for name in NAMES)
    if pair.equal_bits < bits or a.hash == b.hash:
        raise InfrastructureError(
            f"The engine's own hashes of A and B ({a.hash}, {b.hash}) agree in {pair.equal_bits} "
            f"low bits, not in {bits}: the search is wrong about this release."
        )
    if equal_low_bits(control.hash_value, b.hash_value) >= bits:
        raise InfrastructureError("The control collides as well; try another --seed.")


def _engine_facts(place: Place, seen: EngineSeen) -> SearchedEngine:
    preprocessor = place.model / "preprocessor_config.json"
    try:
        digest = hashlib.sha256(preprocessor.read_bytes()).hexdigest()
    except OSError:
        digest = ""
    return SearchedEngine(
        name=place.engine,
        release=place.release,
        device=place.device,
        wheel=place.environment.wheel if place.environment else None,
        python=seen.python,
        packages=seen.packages,
        image_processor=seen.image_processor,
        set_pad_value=seen.set_pad_value,
        model=place.model.name,
        preprocessor_sha256=digest,
        stand_ins=place.stand_ins,
        settings=place.settings,
    )


def _images(identities: Mapping[str, Identity], folder: Path) -> dict[str, PairImage]:
    images = {}
    for name in NAMES:
        data = (folder / f"{name}.png").read_bytes()
        images[name] = PairImage(
            file=f"{name}.png",
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            **identities[name].model_dump(),
        )
    return images


@contextmanager
def _output(out: Path) -> Iterator[Path]:
    """A folder inside ``out`` to work in, gone afterwards, as is an ``out`` that stayed empty."""
    if (out / PAIR_FILE).exists():
        raise UnwritableOutput(f"{out} already holds a pair.", hint="choose another --out")
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            refuse_other_kinds(out / name)
        folder = Path(tempfile.mkdtemp(prefix=".search-", dir=out)).absolute()
    except OSError as error:
        where = error.filename or out
        raise UnwritableOutput(
            f"The output folder {out} cannot be written: {error.strerror} ({where}).",
            hint="mmrepro collide … --out DIR, with a DIR that you may write",
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if made and not any(out.iterdir()):
            out.rmdir()
