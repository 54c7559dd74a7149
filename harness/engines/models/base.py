"""What a tiny model offers to scenarios and engines, and how its folder is written.

Whole or not at all; weights as safetensors, without torch; a byte-level tokenizer with
the model's special tokens."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    import numpy as np

MERGE = 2
"""Patches of an image that Qwen2-VL merges into one token, a side."""
Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names and shapes of weights, in the order in which they are drawn."""


@dataclass
class Placed:
    """A weight that is zero but for what is put into it.

    Attributes:
        cells: row, column, and the number that stands there.
        vectors: row, first column, and which unit vector is added from there on: its
            group, its number in that, and by what it is multiplied.
    """

    cells: list[tuple[int, int, float]] = field(default_factory=list)
    vectors: list[tuple[int, int, str, int, float]] = field(default_factory=list)

    def values(self, shape: tuple[int, ...], seed: int) -> np.ndarray:
        """The weight, of two dimensions."""
        import numpy as np

        made = np.zeros(shape, dtype=np.float32)
        for row, column, value in self.cells:
            made[row, column] = value
        for row, column, group, number, scale in self.vectors:
            vector = unit_vector(group, number, seed)
            made[row, column : column + len(vector)] += np.float32(scale) * vector
        return made


VECTOR_WIDTHS: Final[Mapping[str, int]] = {
    "directions": 383,
    "forks": 383,
    "codes": 128,
}
"""Groups of the unit vectors that weights are placed with, and their lengths."""


@lru_cache(maxsize=65536)
def unit_vector(group: str, number: int, seed: int) -> np.ndarray:
    """A random direction; equal arguments give the same one."""
    import numpy as np

    place = [seed, list(VECTOR_WIDTHS).index(group), number + 1]
    drawn = np.random.default_rng(place).standard_normal(
        VECTOR_WIDTHS[group], dtype=np.float32
    )
    made: np.ndarray = drawn / np.linalg.norm(drawn)
    return made


class TinyModel(ABC):
    """A random-weight model in the format of Hugging Face; equal values give byte-equal
    files.

    Attributes:
        kind: what it is, for reports.
        seed: of the weights.
        image_tokens: most image tokens that one image becomes; 0 for a text model.
        std: standard deviation of the weights.
    """

    kind: ClassVar[str]
    weights_file: ClassVar[str] = "model.safetensors"
    bfloat16_only: ClassVar[bool] = False
    """No CPU kernel of an engine computes it in float32."""
    seed: int
    image_tokens: int
    std: float

    @property
    @abstractmethod
    def key(self) -> str:
        """Names the folder: everything that decides the files."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """Names and shapes of all weights, as the published checkpoints have them."""

    @abstractmethod
    def _write_into(self, folder: Path) -> None:
        """Write all files into an empty folder."""

    def placed(self) -> Mapping[str, Placed]:
        """Weights that are not drawn, by their names."""
        return {}

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(math.prod(shape) for _, shape in self.shapes())

    def write(self, cache: Path) -> Path:
        """Write the model below ``cache`` unless it is there; returns its folder."""
        return _written_whole(cache / self.key, self._write_into)

    def spread(self, name: str) -> tuple[float, float]:
        """Mean and deviation of a weight's random values; a norm starts as the
        identity."""
        if "norm" in name or ".ln_q." in name:
            return (0.0 if name.endswith("bias") else 1.0), 0.0
        return 0.0, self.std

    def image_size(self) -> tuple[int, int]:
        """(width, height) in pixels of an image that becomes exactly ``image_tokens``
        tokens."""
        return (28, 28)


# ------------------------------------------------------------------ files


def _written_whole(target: Path, write_into: Callable[[Path], None]) -> Path:
    """``target``, made by ``write_into`` unless it is there.

    Written beside and renamed when whole: a killed run leaves no half model behind.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".tmp-", dir=target.parent))
    try:
        write_into(folder)
        os.chmod(folder, 0o755)  # noqa: S103, PTH101 - mkdtemp's 0700 would hide a model
        folder.rename(target)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        # Another run may have been faster: its files are the same.
        if not (isinstance(error, OSError) and target.is_dir()):
            raise
    return target


def write_weights(
    path: Path,
    shapes: Iterable[tuple[str, tuple[int, ...]]],
    seed: int,
    spread: Callable[[str], tuple[float, float]],
    placed: Mapping[str, Placed] | None = None,
) -> None:
    """A safetensors file of bfloat16 weights, random but for those that are placed.

    The format: header length (8 bytes, little endian), JSON header, data. The library's
    own writer takes numpy arrays, which have no bfloat16.

    Args:
        shapes: names and shapes, in the order in which they are drawn.
        spread: mean and standard deviation of a weight, by its name; deviation 0 draws
            nothing.
        placed: by their names, weights that are not drawn.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    blob = bytearray()
    for name, shape in shapes:
        mean, deviation = spread(name)
        if placed and name in placed:
            values = placed[name].values(shape, seed)
        elif deviation:
            values = random.standard_normal(shape, dtype=np.float32) * np.float32(
                deviation
            )
            values += np.float32(mean)
        else:
            values = np.full(shape, mean, dtype=np.float32)
        # bfloat16 is the upper half of a float32 (truncated)
        data = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [len(blob), len(blob) + len(data)],
        }
        blob += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(blob))


def named_after(prefix: str, *made_of: object) -> str:
    """A folder's name: ``prefix`` and a hash of everything that decides the files in
    it."""
    text = json.dumps(made_of, sort_keys=True)
    return f"{prefix}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def dump(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1))


def write_text_model(
    folder: Path,
    model: TinyModel,
    vocab_size: int,
    config: Callable[[dict[str, int]], object],
) -> None:
    """Every file of a model that sees no images.

    Args:
        config: makes ``config.json`` of the special tokens' ids.
    """
    ids = write_tokenizer(folder, vocab_size)
    path = folder / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text())
    for name in ("processor_class", "image_token", "video_token"):
        del tokenizer[name]
    dump(path, tokenizer | {"tokenizer_class": "PreTrainedTokenizerFast"})
    (folder / "config.json").write_text(json.dumps(config(ids), indent=1))
    ends = {"eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
    dump(folder / "generation_config.json", dict(ends))
    write_weights(folder / model.weights_file, model.shapes(), model.seed, model.spread)


# ------------------------------------------------------------ weights that several have


def patch_merger(prefix: str, width: int, hidden: int) -> Shapes:
    """Weights of Qwen2-VL's merger, from the tower's ``width`` to the language
    model's."""
    merged = width * MERGE * MERGE
    yield f"{prefix}.ln_q.weight", (width,)
    yield f"{prefix}.ln_q.bias", (width,)
    yield f"{prefix}.mlp.0.weight", (merged, merged)
    yield f"{prefix}.mlp.0.bias", (merged,)
    yield f"{prefix}.mlp.2.weight", (hidden, merged)
    yield f"{prefix}.mlp.2.bias", (hidden,)


def tower_block(block: str, width: int, parts: tuple[str, str, str, str]) -> Shapes:
    """Weights of one block of a vision tower with biases.

    ``parts``: what qkv, the attention's output and the two layers of the MLP are
    called."""
    qkv, out, up, down = parts
    for norm in ("norm1", "norm2"):
        yield f"{block}.{norm}.weight", (width,)
        yield f"{block}.{norm}.bias", (width,)
    for name, rows, columns in (
        (qkv, 3 * width, width),
        (out, width, width),
        (up, 2 * width, width),
        (down, width, 2 * width),
    ):
        yield f"{block}.{name}.weight", (rows, columns)
        yield f"{block}.{name}.bias", (rows,)


def qwen2_language_model(vocab_size: int, hidden: int, layers: int) -> Shapes:
    """Weights of a Qwen2 with as many KV heads as heads and a head of its own."""
    yield "model.embed_tokens.weight", (vocab_size, hidden)
    for i in range(layers):
        layer = f"model.layers.{i}"
        for name in ("q_proj", "k_proj", "v_proj"):
            yield f"{layer}.self_attn.{name}.weight", (hidden, hidden)
            yield f"{layer}.self_attn.{name}.bias", (hidden,)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, hidden)
        yield from mlp_and_norms(layer, hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab_size, hidden)


def mlp_and_norms(layer: str, width: int) -> Shapes:
    """What follows the attention in a layer of Llama and all that descend from it."""
    yield f"{layer}.mlp.gate_proj.weight", (2 * width, width)
    yield f"{layer}.mlp.up_proj.weight", (2 * width, width)
    yield f"{layer}.mlp.down_proj.weight", (width, 2 * width)
    yield f"{layer}.input_layernorm.weight", (width,)
    yield f"{layer}.post_attention_layernorm.weight", (width,)


BYTES = 256
"""Ids below it are the bytes; the special tokens follow in their order."""


@dataclass(frozen=True)
class _SpecialTokens:
    """A model's special tokens and what they are for; ``template`` is the chat
    template."""

    tokens: tuple[str, ...]
    template: str
    eos: str
    pad: str
    image: str
    video: str

    def id_of(self, token: str) -> int:
        return BYTES + self.tokens.index(token)


QWEN2VL = _SpecialTokens(
    tokens=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|vision_pad|>",
        "<|image_pad|>",
        "<|video_pad|>",
    ),
    template=(
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
        "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for c in m['content'] %}"
        "{% if c['type'] in ('image', 'image_url') or 'image' in c %}"
        "<|vision_start|><|image_pad|><|vision_end|>"
        "{% elif c['type'] == 'video' or 'video' in c %}"
        "<|vision_start|><|video_pad|><|vision_end|>"
        "{% elif 'text' in c %}{{ c['text'] }}{% endif %}"
        "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    eos="<|im_end|>",
    pad="<|endoftext|>",
    image="<|image_pad|>",
    video="<|video_pad|>",
)

DOTS_OCR = _SpecialTokens(
    tokens=(
        "<|endoftext|>",
        "<|img|>",
        "<|imgpad|>",
        "<|endofimg|>",
        "<|video_pad|>",
        "<|image_pad|>",
        "<|vision_start|>",
        "<|vision_end|>",
        "<|user|>",
        "<|endofuser|>",
        "<|assistant|>",
        "<|endofassistant|>",
        "<|system|>",
        "<|endofsystem|>",
    ),
    template=(
        "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>"
        "{% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for c in m['content'] %}"
        "{% if c['type'] in ('image', 'image_url') or 'image' in c %}"
        "<|img|><|imgpad|><|endofimg|>"
        "{% elif 'text' in c %}{{ c['text'] }}{% endif %}"
        "{% endfor %}{% endif %}<|endofuser|>"
        "{% elif m['role'] == 'system' %}<|system|>{{ m['content'] }}<|endofsystem|>"
        "{% else %}<|assistant|>{{ m['content'] }}<|endofassistant|>{% endif %}{% "
        "endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    eos="<|endofassistant|>",
    pad="<|endoftext|>",
    image="<|imgpad|>",
    video="<|video_pad|>",
)
"""Its prompts put two tokens before an image, as in the report:
``PlaceholderRange(offset=2``."""


_MOST_ADDED: Final = 5_000
"""Filler tokens that are added; a tokenizer with more takes minutes to load."""


def write_tokenizer(
    folder: Path, vocab_size: int, special: _SpecialTokens = QWEN2VL
) -> dict[str, int]:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``; returns the special
    tokens' ids.

    The vocabulary is the 256 bytes, the special tokens, and filler tokens up to
    ``vocab_size``: a tokenizer that knows every id the model can sample never fails to
    decode."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet)}
    ids = {token: len(alphabet) + i for i, token in enumerate(special.tokens)}
    fillers = vocab_size - len(alphabet) - len(special.tokens)
    if fillers < 0:
        raise ValueError(
            f"vocab_size must be at least {len(alphabet) + len(special.tokens)}"
        )
    filled = {
        f"<t{i}>": len(alphabet) + len(special.tokens) + i for i in range(fillers)
    }
    if fillers > _MOST_ADDED:
        # Without merges no text is encoded as one of them.
        vocab |= ids | filled
        filled = {}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special.tokens])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in filled])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2TokenizerFast",
        "processor_class": "Qwen2VLProcessor",
        "chat_template": special.template,
        "eos_token": special.eos,
        "pad_token": special.pad,
        "additional_special_tokens": list(special.tokens),
        "added_tokens_decoder": {
            str(i): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": token in ids,
            }
            # The slow tokenizer knows no other added tokens; SGLang takes it when its
            # fast image processor is off, and dies of an id that it cannot decode
            # (0.5.6).
            for token, i in (ids | filled).items()
        },
        "image_token": special.image,
        "video_token": special.video,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return ids


_TOKENIZER: Final = "tokenizer.json"
_FILLER: Final = re.compile(r'"<t\d+>"')


def with_tokens(model: Path, tokens: Sequence[str]) -> Path:
    """Write a copy of a tiny model whose tokenizer has ``tokens``; return its folder,
    beside the model's.

    They take the places of the last fillers, so that all ids stay, and the weights are
    the same file. Returns ``model`` itself where its tokenizer has them, or has no
    fillers: it is somebody's own."""
    if not (model / _TOKENIZER).is_file():
        return model
    text = (model / _TOKENIZER).read_text("utf-8")
    wanted = [json.dumps(token) for token in tokens]
    fillers = list(dict.fromkeys(_FILLER.findall(text)))
    if len(fillers) < len(tokens) or all(token in text for token in wanted):
        return model
    renamed = dict(zip(fillers[-len(tokens) :], wanted, strict=True))

    def write_into(folder: Path) -> None:
        for file in model.iterdir():
            if file.name not in (_TOKENIZER, "tokenizer_config.json"):
                os.link(file, folder / file.name)
                continue
            content = file.read_text("utf-8")
            for filler, token in renamed.items():
                content = content.replace(filler, token)
            (folder / file.name).write_text(content, "utf-8")

    words = hashlib.sha256("\n".join(tokens).encode()).hexdigest()[:8]
    return _written_whole(model.with_name(f"{model.name}-{words}"), write_into)
