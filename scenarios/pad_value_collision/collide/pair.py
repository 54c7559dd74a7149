"""A pair of pictures that collide, and where it comes from: ``pair.json``."""

from __future__ import annotations

from typing import Annotated, Literal

from mmrepro.base.records import Record, Setting, StandIn, WheelFacts
from pydantic import Field

PAIR_FILE = "pair.json"
NAMES = ("A", "B", "control")
"""A and B collide. The control is B with one bit of one pixel flipped: it collides with
neither."""


class Identity(Record):
    """What the engine's own classes make of a picture."""

    hash: Annotated[
        str,
        Field(pattern=r"^[0-9a-f]{16}$", description="64 bits, 16 hexadecimal digits"),
    ]
    pad_value: int
    features_sha256: Annotated[
        str, Field(description="of the preprocessed pixels' bytes")
    ]

    @property
    def hash_value(self) -> int:
        return int(self.hash, 16)


class PairImage(Identity):
    """One PNG, and what the engine makes of it."""

    file: str
    sha256: Annotated[str, Field(description="of the PNG")]
    bytes: int


class ImportedEngine(Record):
    """The engine's code as it was imported."""

    python: str
    packages: dict[str, str]
    image_processor: Annotated[
        str, Field(description="class of the engine's image processor")
    ]
    set_pad_value: Annotated[
        str, Field(description="the engine's method, as installed")
    ]


class SearchedEngine(ImportedEngine):
    """In what the pair was searched and verified."""

    name: str
    release: str
    device: str
    wheel: WheelFacts | None = None
    model: str
    preprocessor_sha256: Annotated[
        str, Field(description="of preprocessor_config.json")
    ]
    stand_ins: list[StandIn] = []
    settings: list[Setting] = []


class Searched(Record):
    """What the worker reports of its search."""

    width: Annotated[int, Field(description="of A, pixels")]
    height: Annotated[int, Field(description="of A, pixels")]
    varying: Annotated[
        int, Field(description="pixels whose blue varies, the last of the last row")
    ]
    images: Annotated[int, Field(description="images hashed, both families together")]
    index_a: int
    index_b: int
    hashed_bytes: Annotated[
        int, Field(description="bytes that the engine hashes for an image")
    ]
    tail_bytes: Annotated[
        int, Field(description="of these, hashed anew for each image")
    ]
    samples_checked: Annotated[
        int, Field(description="predicted hashes that the engine confirmed")
    ]
    start_s: Annotated[
        float, Field(description="seconds until the engine was imported")
    ]
    learn_s: float
    search_s: float


class SearchFacts(Searched):
    """How the pair was found."""

    bits: int
    seed: int | None
    pictures: Annotated[
        str, Field(description="where the two common pictures come from")
    ]
    jobs: int
    probability: Annotated[
        float, Field(description="chance to find a pair among so many")
    ]


class Pair(Record):
    """``pair.json``: written last, so that its presence means that the pair is
    whole."""

    schema_version: Literal[1] = 1
    tool: str
    created: str
    engine: SearchedEngine
    search: SearchFacts
    images: dict[str, PairImage]

    @property
    def equal_bits(self) -> int:
        """How many of the lowest bits of A's and B's hashes agree (64: all)."""
        return equal_low_bits(self.images["A"].hash_value, self.images["B"].hash_value)

    @property
    def collides(self) -> bool:
        """Whether the engine gave A and B one pad value although their hashes
        differ."""
        a, b = self.images["A"], self.images["B"]
        return a.pad_value == b.pad_value and a.hash != b.hash

    @property
    def control_differs(self) -> bool:
        """Whether the control's pad value is neither A's nor B's."""
        control = self.images["control"].pad_value
        return control not in (self.images["A"].pad_value, self.images["B"].pad_value)


def equal_low_bits(first: int, second: int) -> int:
    """How many low bits of two 64-bit values agree before the first that differs."""
    different = (first ^ second) & ((1 << 64) - 1)
    return 64 if not different else (different & -different).bit_length() - 1
