"""Adds images to the runner: a prefix of embeddings through ``inputs_embeds``. Prefill
only."""

import importlib
import io
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from .batch import Batch
from .chat import picture_of
from .config import EngineConfig, ModelConfig, VisionConfig
from .model import Context, KVCache, Qwen3
from .runner import ModelRunner
from .sequence import Image, ImageSequence, Sequence


class Vision(Protocol):
    def embed(self, image: Image) -> Tensor:
        """Embeddings (image.tokens, hidden)."""


class _TowerBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = (
            self.qkv(self.norm1(x))
            .unflatten(-1, (3, self.heads, -1))
            .permute(1, 2, 0, 3)
        )
        found = functional.scaled_dot_product_attention(*parts[:, None])[0]
        x = x + self.proj(found.transpose(0, 1).flatten(-2))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class VisionTower(nn.Module):
    """Patches, blocks of full attention, and a merger of ``merge`` x ``merge``
    patches."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        config = self.config = model.vision
        group = config.width * config.merge**2
        self.patch_embed = nn.Linear(3 * config.patch**2, config.width)
        self.blocks = nn.ModuleList(
            _TowerBlock(config.width, config.heads) for _ in range(config.depth)
        )
        self.norm = nn.LayerNorm(config.width)
        self.merge1, self.merge2 = (
            nn.Linear(group, group),
            nn.Linear(group, model.hidden_size),
        )

    @torch.inference_mode()
    def embed(self, image: Image) -> Tensor:
        """Raises ValueError when ``image`` is no picture."""
        weight = self.patch_embed.weight
        patches = patches_of(image, self.config).to(weight.device, weight.dtype)
        x = self.patch_embed(patches)
        x = x + places(image.rows, image.cols, self.config).to(x)
        for block in self.blocks:
            x = block(x)
        groups = self.norm(x).unflatten(0, (-1, self.config.merge**2)).flatten(-2)
        return self.merge2(functional.gelu(self.merge1(groups)))


def patches_of(image: Image, config: VisionConfig) -> Tensor:
    """Pixels (patches, 3 * patch * patch) in -1…1; the patches of one embedding stand
    together."""
    import numpy as np
    from PIL import Image as Pil, UnidentifiedImageError

    size = (image.cols * config.factor, image.rows * config.factor)
    try:
        with Pil.open(io.BytesIO(image.data)) as picture:
            pixels = np.array(picture.convert("RGB").resize(size), dtype=np.float32)
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"not a picture: {error}") from error
    grid = (
        image.rows,
        config.merge,
        config.patch,
        image.cols,
        config.merge,
        config.patch,
        3,
    )
    ordered = (
        torch.from_numpy(pixels / 127.5 - 1).reshape(grid).permute(0, 3, 1, 4, 6, 2, 5)
    )
    return ordered.reshape(image.tokens * config.merge**2, -1)


def places(rows: int, cols: int, config: VisionConfig) -> Tensor:
    """Sines of the patches' rows and columns (patches, width), in the order of
    ``patches_of``."""
    quarter, merge = config.width // 4, config.merge
    scale = 100.0 ** -(torch.arange(quarter) / quarter)
    row = (torch.arange(rows * merge)[:, None] * scale).reshape(
        rows, 1, merge, 1, quarter
    )
    col = (torch.arange(cols * merge)[:, None] * scale).reshape(
        1, cols, 1, merge, quarter
    )
    row, col = torch.broadcast_tensors(row, col)
    return torch.cat((row.sin(), row.cos(), col.sin(), col.cos()), dim=-1).reshape(
        -1, config.width
    )


_WARM_UP_IMAGE = Path("assets/warm-up.png")
"""Fault image-path: this one is configured, relative to wherever the engine was
started, and was never installed."""


class _EmbedsQwen3(Qwen3):
    """The same model, which can be given ``inputs_embeds`` (N, hidden) in place of
    ids."""

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        cache: KVCache,
        context: Context,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        if inputs_embeds is None:
            return super().forward(input_ids, positions, cache, context)
        return self.run(inputs_embeds, positions, cache, context)


def load_vision(
    config: EngineConfig, model: Qwen3, weights: dict[str, Tensor]
) -> Vision:
    """The vision that the config names. Raises RuntimeError: the tower's weights are
    missing."""
    name = f"{__package__}.fake_vision"
    if "broken-module" in config.faults:
        return _broken(name).FakeVision(model.config)
    if config.vision == "fake":
        return importlib.import_module(name).FakeVision(model.config)
    tower = VisionTower(model.config).to(model.embed_tokens.weight)
    prefix = "visual."
    tower.load_state_dict(
        {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    )
    return tower


def _broken(name: str) -> ModuleType:
    """Import ``name`` as a bad edit left it: one parenthesis short. Raises
    SyntaxError."""
    path = Path(__file__).with_name("fake_vision.py")
    source = path.read_text().replace(
        "def embed(self, image: Image)", "def embed(self, image:"
    )
    module = ModuleType(name)
    exec(compile(source, str(path), "exec"), module.__dict__)  # noqa: S102 - our own file
    return sys.modules.setdefault(name, module)


class ImageRunner(ModelRunner):
    """Takes over a text runner's model, weights and cache, and adds the image prefix.

    Text steps and decode are the base class's. What the warm-up needs is set before the
    base class is initialised, because that is what warms up."""

    def __init__(self, text: ModelRunner, weights: dict[str, Tensor]) -> None:
        config = text.config
        self.vision: Vision = load_vision(config, text.model, weights)
        if "warmup-order" not in config.faults:
            text.model.__class__ = _EmbedsQwen3  # the weights stay where they are
        super().__init__(config, text.model, text.cache)
        text.model.__class__ = _EmbedsQwen3
        self.graphs, self.guard, self.builder = text.graphs, text.guard, text.builder

    def warm_up(self) -> None:
        with torch.inference_mode():
            self.prefill_images(self.warm_up_batch(self.warm_up_sequences()))

    def warm_up_sequences(self) -> list[Sequence]:
        if "warmup-sequence" in self.config.faults:
            return super().warm_up_sequences()
        size, ids = self.config.block_size, [0]
        images = (self._warm_up_picture(),)
        return [ImageSequence(-1, ids, size, images=images, faults=frozenset())]

    def _warm_up_picture(self) -> Image:
        """Raises OSError or ValueError: the configured one is not there, or no
        picture."""
        vision, faulty = self.model.config.vision, "image-path" in self.config.faults
        path = _WARM_UP_IMAGE if faulty else self.config.warm_up_image
        if path is not None:
            return picture_of(path.read_bytes(), vision)
        size = f"{2 * vision.factor} {vision.factor}"
        black = f"P6 {size} 255\n".encode() + bytes(3 * 2 * vision.factor**2)  # a PPM
        return picture_of(black, vision)

    def prefill(self, batch: Batch) -> Tensor:
        return (
            self.prefill_images(batch)
            if batch.step.with_images
            else super().prefill(batch)
        )

    def begin(self, batch: Batch) -> None:
        """On a GPU the embeddings, and behind them the mask's copy, are queued; nobody
        waits.

        From here to ``run`` the next step is prepared. A CPU does what it is told at
        once and has no such time between; there the mask is read in ``run``, as a GPU
        that is late reads it."""
        if batch.mask is None or self.config.device == "cpu":
            return
        with torch.inference_mode():
            self._embed_all(batch)
            batch.on_device = self._queued(batch.mask)

    def _queued(self, mask: memoryview) -> Tensor:
        """``mask`` on the GPU, when that gets there. Its own pinned buffer; with the
        fault reused-mask the one that the next step's is written to."""
        if "reused-mask" in self.config.faults:
            host = torch.frombuffer(mask, dtype=torch.uint8)
        else:
            host = torch.tensor(list(mask), dtype=torch.uint8).pin_memory()
        assert host.is_pinned()
        return host.to(self.config.device, non_blocking=True)

    def _embed_all(self, batch: Batch) -> None:
        for chunk in batch.step.chunks:
            self._embed(chunk.seq)

    def prefill_images(self, batch: Batch) -> Tensor:
        """Hidden states (N, hidden): the embeddings of the step's images among those of
        its text.

        ``inputs_embeds`` is (N, hidden); rows that the mask marks come from the vision.
        """
        self._embed_all(batch)
        assert batch.mask is not None
        mask = batch.on_device
        if mask is None:
            mask = torch.tensor(
                list(batch.mask), dtype=torch.uint8, device=self.config.device
            )
        elif self.config.check_contract != "off":
            # What the device has, not the host.
            batch.mask = memoryview(bytes(mask.tolist()))
        ids = self._tensor(batch.token_ids)
        embeds = self.model.embed_tokens(ids)
        found = [seq.rows[start:end] for seq, start, end in batch.spans]
        hidden = self.model.config.hidden_size
        rows = torch.cat([embeds.new_empty(0, hidden), *found])
        self.guard.check(
            batch, (len(rows), rows.shape[1]), (len(embeds), embeds.shape[1]), hidden
        )
        fewer = self.config.placeholder_ids == "text"
        # As vLLM does: on a GPU this is where the reused mask ends in a device-side
        # assertion.
        embeds = embeds.masked_scatter(mask.bool()[:, None], rows)
        return self.model(
            self._placeholder(batch.num_tokens - (len(rows) if fewer else 0)),
            self._tensor(batch.positions),
            self.cache,
            self.context(batch),
            inputs_embeds=embeds,
        )

    def _embed(self, seq: Sequence) -> None:
        """All embeddings of ``seq``, once; they go when its prefix is in the cache."""
        if not isinstance(seq, ImageSequence):
            raise TypeError(
                f"ImageRunner expects ImageSequence, got {type(seq).__name__}"
            )
        if seq.rows is None:
            found = [self.vision.embed(image) for image in seq.images]
            rows = (
                torch.cat(found)
                if found
                else torch.empty(0, self.model.config.hidden_size)
            )
            seq.rows = rows.to(self.model.embed_tokens.weight)
            if self.config.vision_ms and self.config.device != "cpu":
                busy(self.config.vision_ms * len(found))

    def _placeholder(self, count: int) -> Tensor:
        """Token ids (count,) that stand for the embeddings: nobody reads them, only
        their number.

        Fault pinned-placeholder: they are made on the device and pinned, which only a
        tensor in the CPU's memory can be. On a GPU that is the note's own call. Without
        one the device is torch's "meta", which holds no data, and torch refuses in the
        second of two calls only."""
        device = self.config.device
        if "pinned-placeholder" not in self.config.faults:
            return torch.zeros(count, dtype=torch.int64, device=device)
        if device != "cpu":
            return torch.zeros(count, dtype=torch.int64, device=device, pin_memory=True)
        return torch.zeros(count, dtype=torch.int64, device="meta").pin_memory()


def busy(milliseconds: int) -> None:
    """Keep the GPU busy from here on, about that long at 2 GHz; the host goes on at
    once."""
    torch.cuda._sleep(milliseconds * 2_000_000)
