"""Tiny models under the names of real ones, as huggingface_hub keeps what it has
downloaded: for an engine's own tests, which ask it for ``facebook/opt-125m``.

Layout of the cache: https://huggingface.co/docs/huggingface_hub/guides/manage-cache"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from mmrepro.engines.models.tiny import TINY

_MODEL: Final = re.compile(
    r"[\"']([A-Za-z0-9][\w.-]{1,60}/[A-Za-z0-9][\w.-]{1,90})[\"']"
)
_NO_OWNERS: Final = re.compile(
    r"application|audio|custom|dev|fake|http|image|tests?|text|tmp|v\d|video"
)
"""Before a slash in what is no model: types of media, folders, paths of requests."""
_WITHOUT_OWNER: Final = re.compile(r"[\"'](gpt2|distilgpt2|bert-base-uncased)[\"']")
_MOST_NAMES: Final = 200
_STAND_INS: Final[tuple[tuple[str, str], ...]] = (
    # No tiny one has their heads, towers or formats.
    (r"whisper|audio|voxtral|ultravox|asr\b|speech", ""),
    (
        r"embed|bge-|\be5-|gte-|bert|minilm|mpnet|reward|colbert|-p?rm-|jina|clip|siglip",
        "",
    ),
    (r"eagle|speculator|medusa|draft|dflash|lora|adapter", ""),
    (r"fp8|fp4|awq|gptq|w\d+a\d+|bnb|4bit|8bit|gguf|quantized", ""),
    (r"rerank|cross-encoder", "scorer"),
    (
        r"(?:^|[\W_\d])vl(?:$|[\W_\d])|vision|llava|pixtral|internvl|minicpm-?[vo]",
        "qwen2-vl",
    ),
    (r"qwen3-?next", "qwen3-next"),
    (r"qwen3\.5", "qwen3.5"),
    (r"granite-4", "granite-hybrid"),
    (r"mixtral|moe\b|-a\d+(?:\.\d+)?b\b|deepseek-v[23]|gpt-oss", "qwen3-moe"),
    (r"qwen3", "qwen3-text"),
    (r"", "text-32k"),
)
"""Forms of names in small letters, the first that is found, and the tiny model; "": none
stands for it."""


def models_named(text: str) -> set[str]:
    """Names of a hub's models that a program's text has in quotes."""
    names = set(_WITHOUT_OWNER.findall(text))
    for name in _MODEL.findall(text):
        owner, _, model = name.partition("/")
        is_file = re.search(r"\.(?:py|json|txt|jinja|png|jpe?g|wav|so|toml)$", model)
        if not (is_file or _NO_OWNERS.fullmatch(owner.lower())):
            names.add(name)
    return names


def stand_in_of(name: str) -> str:
    """The tiny model that stands for one of a hub; "": none does."""
    forms = (tiny for form, tiny in _STAND_INS if re.search(form, name.lower()))
    return next(forms)


def write_hub(names: Iterable[str], hub: Path, cache: Path) -> Mapping[str, str]:
    """Write a hub's cache in which tiny models have these names.

    Its files are links into ``cache``, where the tiny models are.

    Returns:
        the tiny model by name, of those that have one.
    """
    written: dict[str, str] = {}
    for name in sorted(names)[:_MOST_NAMES]:
        tiny = stand_in_of(name)
        if not tiny:
            continue
        model = TINY[tiny].write(cache)
        folder = hub / f"models--{name.replace('/', '--')}"
        revision = hashlib.sha1(model.name.encode(), usedforsecurity=False).hexdigest()
        snapshot = folder / "snapshots" / revision
        if not snapshot.is_dir():
            snapshot.mkdir(parents=True)
            (folder / "refs").mkdir()
            (folder / "refs" / "main").write_text(revision)
            for file in model.iterdir():
                (snapshot / file.name).symlink_to(file)
        written[name] = tiny
    return written
