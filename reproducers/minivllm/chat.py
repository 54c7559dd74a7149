"""From the body of a chat request to token ids and images, and from token ids to
text."""

import base64
import binascii
import io
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .config import VisionConfig
from .sequence import Image


class BadRequest(ValueError):
    """What the client sent cannot be served; the text is for the client."""


@dataclass
class Prompt:
    """A request, checked as far as its form goes."""

    token_ids: list[int]
    images: list[Image] = field(default_factory=list)
    max_tokens: int = 16
    temperature: float = 0.0
    stream: bool = False
    include_usage: bool = False
    ignore_eos: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) + sum(image.tokens for image in self.images)


class Chat:
    """Qwen's chat form, with every image in front of all text."""

    def __init__(self, model: Path, vision: VisionConfig) -> None:
        from tokenizers import Tokenizer

        self.vision = vision
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def prompt(self, body: bytes) -> Prompt:
        """Raises BadRequest."""
        try:
            content = json.loads(body)
            messages = content["messages"]
            if not isinstance(messages, list) or not messages:
                raise BadRequest("messages must be a list with at least one message")
            parts = [(str(message["role"]), message["content"]) for message in messages]
            limit = (
                content.get("max_completion_tokens") or content.get("max_tokens") or 16
            )
            text, images = self._read(parts)
            prompt = Prompt(
                self.tokenize(text + "<|im_start|>assistant\n"),
                images,
                int(limit),
                float(content.get("temperature", 1.0)),
                bool(content.get("stream", False)),
                bool((content.get("stream_options") or {}).get("include_usage", False)),
                bool(content.get("ignore_eos", False)),
            )
        except BadRequest:
            raise
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise BadRequest(
                f"not a chat request: {type(error).__name__}: {error}"
            ) from error
        if prompt.max_tokens < 1 or not 0 <= prompt.temperature < 100:
            raise BadRequest("max_tokens and temperature are out of range")
        return prompt

    def _read(self, messages: list[tuple[str, Any]]) -> tuple[str, list[Image]]:
        text, images = "", []
        for role, content in messages:
            text += f"<|im_start|>{role}\n"
            parts: list[Any] = (
                [{"type": "text", "text": content}]
                if isinstance(content, str)
                else content
            )
            for part in parts:
                if part["type"] == "text":
                    text += part["text"]
                elif part["type"] == "image_url":
                    images.append(self.image(part["image_url"]["url"]))
                else:
                    raise BadRequest(f"content of type {part['type']!r} is not known")
            text += "<|im_end|>\n"
        return text, images

    def image(self, url: str) -> Image:
        """The image of a ``data:`` address. Raises BadRequest for any other."""
        head, _, encoded = url.partition(";base64,")
        if not head.startswith("data:image/"):
            raise BadRequest("an image must be given as data:image/…;base64,…")
        try:
            return picture_of(base64.b64decode(encoded, validate=True), self.vision)
        except (OSError, ValueError, binascii.Error) as error:
            raise BadRequest(f"not a picture: {error}") from error

    def tokenize(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def text(self, ids: list[int]) -> str:
        found: str = self.tokenizer.decode(ids, skip_special_tokens=True)
        return found


def picture_of(data: bytes, config: VisionConfig) -> Image:
    """Raises OSError or ValueError: it is no picture, or none that can be used."""
    from PIL import Image as Pil

    with Pil.open(io.BytesIO(data)) as picture:
        return Image.of(data, *grid_of(*picture.size, config))


def grid_of(width: int, height: int, config: VisionConfig) -> tuple[int, int]:
    """Rows and columns of embeddings of a picture of that size in pixels.

    The rule of transformers
    ``models/qwen2_vl/image_processing_qwen2_vl.py:smart_resize``.

    Raises:
        ValueError: one side is more than 200 times the other.
    """
    if min(width, height) < 1 or max(width, height) > 200 * min(width, height):
        raise ValueError(f"a picture of {width} x {height} pixels cannot be used")
    rows, cols = (max(1, round(side / config.factor)) for side in (height, width))
    if rows * cols > config.max_tokens:
        beta = math.sqrt(height * width / (config.max_tokens * config.factor**2))
        rows, cols = (
            max(1, math.floor(s / beta / config.factor)) for s in (height, width)
        )
    return rows, cols
