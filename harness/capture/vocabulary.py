"""What random text is made of, so that a tokenizer sees as many tokens as it is meant to have."""

from __future__ import annotations

import random
import re
import string
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mmrepro.errors import UsageError
from mmrepro.models.base import DOTS_OCR, QWEN2VL, write_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
_FILLERS: Final = 1000
_ENOUGH_WORDS: Final = 400
_MOST_WORDS: Final = 4000
_WORD = re.compile(r"[a-z]{3,8}")
_FILLER = re.compile(r"<t\d+>")
_SIGNS: Final = "".join(sorted(set(string.digits + string.punctuation) - set("<>|\\\"'")))


class Vocabulary:
    """A tokenizer, and pieces of text that are a token each, whatever pieces stand beside them.

    Words where it knows many. Else (one token a byte) signs and digits, of which no word comes
    about by chance.

    Args:
        model: folder with ``tokenizer.json``; None: the tiny models' tokenizer.
        kind: name of the tiny model, for its special tokens.
        avoid: words, in small letters, that are no pieces.
    """

    def __init__(self, model: Path | None, kind: str, avoid: Collection[str] = ()) -> None:
        self._tokenizer = _tokenizer(model, kind)
        added = self._tokenizer.get_added_tokens_decoder()
        self.special = {i: token.content for i, token in added.items() if token.special}
        self.size = self._tokenizer.get_vocab_size()
        words = self._words(avoid)
        self.joint = " " if words else ""
        self.pieces: Sequence[str] = words or self._single(_SIGNS)
        self._more: Sequence[str] = [] if words else self._spare()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def other(self, used: Collection[str], chance: random.Random) -> str | None:
        """A piece that is none of ``used``; None: there is no other."""
        for _ in range(8):
            if (piece := chance.choice(self.pieces)) not in used:
                return piece
        left = [p for p in self.pieces if p not in used] or [p for p in self._more if p not in used]
        return chance.choice(left) if left else None

    def text(self, pieces: Sequence[str]) -> str:
        if not self.joint:
            return "".join(pieces)
        special = set(self.special.values())
        out: list[str] = []
        for before, piece in zip(["", *pieces], pieces, strict=False):
            beside = before and before not in special and piece not in special
            out += [self.joint, piece] if beside else [piece]
        return "".join(out)

    # ------------------------------------------------------------------ pieces

    def _words(self, avoid: Collection[str]) -> list[str]:
        known = {token.lstrip("Ġ▁") for token in self._tokenizer.get_vocab()}
        words = sorted(w for w in known if _WORD.fullmatch(w) and w not in avoid)
        random.Random("words").shuffle(words)  # noqa: S311
        words = words[: _MOST_WORDS * 2]
        # At the beginning and behind another one: both are one token, and no more.
        doubled = self._tokenizer.encode_batch(
            [f"{w} {w}" for w in words], add_special_tokens=False
        )
        alone = self._tokenizer.encode_batch(words, add_special_tokens=False)
        fitting = [
            word
            for word, two, one in zip(words, doubled, alone, strict=True)
            if len(two.ids) == 2 and len(one.ids) == 1
        ]
        return fitting[:_MOST_WORDS] if len(fitting) >= _ENOUGH_WORDS else []

    def _single(self, signs: str) -> list[str]:
        return [
            sign for sign in signs if len(self.encode(sign)) == len(self.encode(sign * 2)) - 1 == 1
        ]

    def _spare(self) -> list[str]:
        known = self._tokenizer.get_added_tokens_decoder().values()
        return sorted(t.content for t in known if _FILLER.fullmatch(t.content))


def _tokenizer(model: Path | None, kind: str) -> Tokenizer:
    """Raises UsageError."""
    from tokenizers import Tokenizer

    if model is None:
        with tempfile.TemporaryDirectory(prefix="mmrepro-") as folder:
            special = DOTS_OCR if kind == "dots-ocr" else QWEN2VL
            write_tokenizer(Path(folder), 256 + len(special.tokens) + _FILLERS, special)
            return Tokenizer.from_file(f"{folder}/{FILE}")
    try:
        return Tokenizer.from_file(str(model / FILE))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(
            f"{model} has no {FILE} that can be read, which lengths are counted with.",
            hint="name a folder with a tokenizer, or leave it away for the tiny models' own",
        ) from error
