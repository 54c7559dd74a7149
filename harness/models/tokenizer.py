"""A byte-level tokenizer with a model's special tokens: any text, about one token a byte."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

BYTES = 256
"""Ids below it are the bytes; the special tokens follow in their order."""


@dataclass(frozen=True)
class SpecialTokens:
    """A model's special tokens and what they are for; ``template`` is the chat template."""

    tokens: tuple[str, ...]
    template: str
    eos: str
    pad: str
    image: str
    video: str

    def id_of(self, token: str) -> int:
        return BYTES + self.tokens.index(token)


QWEN2VL = SpecialTokens(
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

DOTS_OCR = SpecialTokens(
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
        "{% else %}<|assistant|>{{ m['content'] }}<|endofassistant|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    eos="<|endofassistant|>",
    pad="<|endoftext|>",
    image="<|imgpad|>",
    video="<|video_pad|>",
)
"""Its prompts put two tokens before an image, as in the report: ``PlaceholderRange(offset=2``."""


def write_tokenizer(
    folder: Path, vocab_size: int, special: SpecialTokens = QWEN2VL
) -> dict[str, int]:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``; returns the special tokens' ids.

    The vocabulary is the 256 bytes, the special tokens, and filler tokens up to ``vocab_size``:
    a tokenizer that knows every id the model can sample never fails to decode.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(alphabet)}
    ids = {token: len(alphabet) + i for i, token in enumerate(special.tokens)}
    fillers = vocab_size - len(alphabet) - len(special.tokens)
    if fillers < 0:
        raise ValueError(f"vocab_size must be at least {len(alphabet) + len(special.tokens)}")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special.tokens])
    filled = {f"<t{i}>": len(alphabet) + len(special.tokens) + i for i in range(fillers)}
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
            # The slow tokenizer knows no other added tokens; SGLang takes it when its fast image
            # processor is off, and dies of an id that it cannot decode (0.5.6).
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
