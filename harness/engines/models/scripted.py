"""A tiny model that says what it is told.

Random weights never say a tool call, a stop string or a thinking block, so whatever an
engine does with those stays unseen. Here the weights are a table: the next token
follows from the current one, whatever the sampling, and a script is a chain of tokens.

How the table gets into weights, of any model whose layers add to a residual stream:

- A token's embedding holds, in the part _NEXT of the stream, the direction of the token
  that follows it. What the layers would add is zero, so the stream stays the embedding,
  and the head's row of a token is that token's direction.
- A piece of text that occurs twice in the scripts gets a token for each place. Their
  strings differ by a mark, ``⟦17⟧``, which the tokenizer's decoder takes off.
- A token that the engine's parsers look for by its id (``<think>``, ``<tool_call>``)
  has to be the same in all places. What follows it is decided by the token before it:
  attention in the first layer looks one position back, and copies what stands there in
  the part _OWN, a code of the token, into the part _BEFORE. Such a token has a direction
  for itself, and the rows of what may follow it hold that and the code.

The script is chosen by the prompt: the chat template ends with a trigger, a token that
no text contains. A prompt that ends otherwise begins the first script."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from mmrepro.base.errors import UsageError
from mmrepro.engines.models.base import (
    BYTES,
    Shapes,
    TinyModel,
    dump,
    named_after,
    write_weights,
)
from mmrepro.engines.models.stack import TextModel, TinyQwen3Text

if TYPE_CHECKING:
    import numpy as np

_FORMAT: Final = 1
"""Raised when what is written changes, so that old cached models are not reused."""
_END: Final = "<|im_end|>"
_PAD: Final = "<|endoftext|>"
_TURN: Final = "<|im_start|>"
_STRUCTURE: Final = (_PAD, _TURN, _END)
_PIECE: Final = re.compile(r"\s*\S+|\s+")
_MARK: Final = "⟦[0-9]+⟧"

_MOST_PIECES: Final = 20_000
"""Of all scripts together: a token each, and a row of two matrices."""

_CODE: Final = 128
_HIDDEN: Final = 640
# Parts of the residual stream. The constant number is what queries and keys are made of.
_CONSTANT: Final = slice(0, 1)
_NEXT: Final = slice(1, _HIDDEN - 2 * _CODE)
_OWN: Final = slice(_HIDDEN - 2 * _CODE, _HIDDEN - _CODE)
_BEFORE: Final = slice(_HIDDEN - _CODE, _HIDDEN)
_HEAD_DIM: Final = 64
_KV_HEADS: Final = 2
_ROTATED_PAIRS: Final = 8
"""Pairs of a head's dimensions that the look back uses: the fastest turning ones."""
_SHARPNESS: Final = 6.0
"""Weight of the norms of queries and keys: with it the position before has a score that
is some 30 above all others', so the softmax gives it everything."""
_LOGIT: Final = 20.0
"""Logit of the token that follows, where others have at most some 13."""


@dataclass(frozen=True)
class Script:
    """What the model says once.

    Attributes:
        name: of its trigger.
        pieces: texts of its tokens, in order. A text that is one of the model's shared
            tokens (``<think>``) is that token.
        ends: whether the model ends after it; else it begins again.
        after_text: said when the last message has this text; "": whatever it has.
        with_tools: said only when the request brings tools.
        after_tool: said only when the last message is a tool's result.
    """

    name: str
    pieces: tuple[str, ...]
    ends: bool = True
    after_text: str = ""
    with_tools: bool = False
    after_tool: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def condition(self) -> str:
        """When a chat chooses it, as an expression of Jinja; "": by itself never."""
        parts = []
        if self.after_text:
            parts.append(f"{json.dumps(self.after_text)} in words(messages[-1])")
        if self.with_tools:
            parts.append("tools")
        if self.after_tool:
            parts.append("messages[-1]['role'] == 'tool'")
        return " and ".join(parts)


def pieces_of(text: str, shared: Iterable[str]) -> tuple[str, ...]:
    """Cut ``text`` into words, each with the blanks before it; shared tokens stay
    whole."""
    known = sorted(shared, key=len, reverse=True)
    parts = [text]
    if known:
        parts = re.split(f"({'|'.join(map(re.escape, known))})", text)
    pieces: list[str] = []
    for part in parts:
        pieces += [part] if part in known else _PIECE.findall(part)
    return tuple(pieces)


def trigger_of(name: str) -> str:
    """The token that begins a script, where a prompt ends with it."""
    return f"<|say:{name}|>"


_CHAT_TEMPLATE: Final = (
    # A message's content is text or a list of parts, by what the engine makes of it.
    "{% macro words(m) %}{% if m['content'] is string %}{{ m['content'] }}"
    "{% elif m['content'] %}{% for c in m['content'] %}"
    "{% if 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% endmacro %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ words(m) }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\nCHOICE{% endif %}"
)
"""CHOICE stands for what prints the trigger of a script."""


@dataclass(frozen=True)
class ScriptedModel(TinyModel):
    """A text model whose answers are scripts; equal values give byte-equal files.

    Attributes:
        scripts: the first one is said where nothing chooses another.
        shared: tokens that the engine's parsers know by their ids.
        hidden_tokens: those of ``shared`` that a tokenizer calls special, so that an
            answer is shown without them.
        base: the architecture; its widths are replaced.
    """

    kind: ClassVar[str] = "tiny model that says what it is told"

    scripts: tuple[Script, ...]
    shared: tuple[str, ...] = ()
    hidden_tokens: tuple[str, ...] = ()
    base: TextModel = field(default_factory=TinyQwen3Text)
    seed: int = 0
    image_tokens: int = 0
    std: float = 0.02

    def __post_init__(self) -> None:
        names = Counter(script.name for script in self.scripts)
        twice = [name for name, count in names.items() if count > 1]
        if not self.scripts or twice:
            raise UsageError(
                "A scripted model has at least one script, and each a name of its own.",
                hint=f"rename one of {', '.join(twice)}" if twice else "write a script",
            )
        if sum(len(script.pieces) for script in self.scripts) > _MOST_PIECES:
            raise UsageError(
                f"The scripts have more than {_MOST_PIECES:,} pieces.",
                hint="cut them shorter",
            )

    @property
    def key(self) -> str:
        made_of = [
            [astuple(script) for script in self.scripts],
            self.shared,
            self.hidden_tokens,
            self.seed,
            self.std,
            self.sized.key,
        ]
        return named_after("tiny-scripted", _FORMAT, made_of)

    @cached_property
    def sized(self) -> TextModel:
        """The architecture, as wide as the table needs it."""
        return replace(
            self.base,
            hidden=_HIDDEN,
            heads=2 * _KV_HEADS,
            kv_heads=_KV_HEADS,
            head_dim=_HEAD_DIM,
            vocab_size=len(self.vocabulary.strings),
        )

    @cached_property
    def vocabulary(self) -> _Vocabulary:
        return _Vocabulary.of(self)

    def shapes(self) -> Shapes:
        yield from self.sized.shapes()

    def spread(self, name: str) -> tuple[float, float]:
        mean, deviation = self.sized.spread(name)
        return mean, self.std if deviation else 0.0

    def _write_into(self, folder: Path) -> None:
        vocabulary = self.vocabulary
        vocabulary.write(folder, self._template())
        ids = {token: vocabulary.id_of(token) for token in _STRUCTURE}
        dump(folder / "config.json", self.sized.config(ids))
        ends = {"eos_token_id": ids[_END], "pad_token_id": ids[_PAD]}
        dump(folder / "generation_config.json", dict(ends))
        table = _ScriptTable(self, vocabulary)
        write_weights(
            folder / self.weights_file,
            self.shapes(),
            self.seed,
            self.spread,
            table.weights,
        )

    def _template(self) -> str:
        """The chat template: the first script whose condition holds is said, else the
        first of all."""
        choice = ""
        for script in self.scripts:
            if script.condition:
                word = "elif" if choice else "if"
                choice += f"{{% {word} {script.condition} %}}{trigger_of(script.name)}"
        first = trigger_of(self.scripts[0].name)
        if choice:
            choice += f"{{% else %}}{first}{{% endif %}}"
        return _CHAT_TEMPLATE.replace("CHOICE", choice or first)


@dataclass(frozen=True)
class _Vocabulary:
    """The tokens of a scripted model.

    Attributes:
        strings: by id, as tokenizer.json has them: bytes, then structure, shared
            tokens, triggers, and a token for each other piece of a script.
        added: how many of them are no bytes and no pieces.
        chains: ids of each script, from its trigger to its end.
        hidden: strings of tokens that are left out of an answer.
    """

    strings: tuple[str, ...]
    added: tuple[str, ...]
    chains: tuple[tuple[int, ...], ...]
    hidden: frozenset[str]

    @classmethod
    def of(cls, model: ScriptedModel) -> _Vocabulary:
        from tokenizers.pre_tokenizers import ByteLevel

        triggers = [trigger_of(script.name) for script in model.scripts]
        added = (*_STRUCTURE, *model.shared, *triggers)
        strings = [*sorted(ByteLevel.alphabet()), *added]
        ids = {text: number for number, text in enumerate(strings)}
        chains = []
        for script in model.scripts:
            chain = [ids[trigger_of(script.name)]]
            for piece in _parted(script.pieces, model.shared):
                if piece in model.shared:
                    chain.append(ids[piece])
                else:
                    chain.append(len(strings))
                    strings.append(f"{_byte_letters(piece)}⟦{len(strings)}⟧")
            chain.append(ids[_END] if script.ends else chain[0])
            chains.append(tuple(chain))
        hidden = frozenset({*_STRUCTURE, *triggers, *model.hidden_tokens})
        return cls(tuple(strings), added, tuple(chains), hidden)

    def id_of(self, token: str) -> int:
        return BYTES + self.added.index(token)

    def write(self, folder: Path, template: str) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
        from tokenizers import (
            AddedToken,
            Regex,
            Tokenizer,
            decoders,
            models,
            pre_tokenizers,
        )

        ids = {text: number for number, text in enumerate(self.strings)}
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=False
        )
        # The mark of a piece is in the alphabet of bytes nowhere, so nothing of an
        # answer is taken for one.
        unmarked = decoders.Replace(Regex(_MARK), "")
        tokenizer.decoder = decoders.Sequence([unmarked, decoders.ByteLevel()])
        tokens = [
            AddedToken(text, special=text in self.hidden, normalized=False)
            for text in self.added
        ]
        tokenizer.add_special_tokens([token for token in tokens if token.special])
        tokenizer.add_tokens([token for token in tokens if not token.special])
        tokenizer.save(str(folder / "tokenizer.json"))
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": template,
            "eos_token": _END,
            "pad_token": _PAD,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 32768,
        }
        dump(folder / "tokenizer_config.json", config)


def _parted(pieces: Iterable[str], shared: Collection[str]) -> Iterator[str]:
    """Yield pieces, an empty one between two shared tokens.

    What follows a shared token is told by the token before it, which has to be one of a
    single place."""
    before = ""
    for piece in pieces:
        if before in shared and piece in shared:
            yield ""
        yield piece
        before = piece
    if before in shared:  # so that its end is decided by a token of its own, too
        yield ""


def _byte_letters(text: str) -> str:
    """``text`` in the letters that a byte-level tokenizer has for bytes."""
    from tokenizers.pre_tokenizers import ByteLevel

    level = ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(letters for letters, _ in level.pre_tokenize_str(text))


class _ScriptTable:
    """What follows each token, as weights."""

    def __init__(self, model: ScriptedModel, vocabulary: _Vocabulary) -> None:
        self.model = model
        self.chains = vocabulary.chains
        self.size = len(vocabulary.strings)
        # Unit vectors: in some hundred dimensions two have almost nothing in common.
        self.directions = _unit_vectors(self.size, _NEXT.stop - _NEXT.start, model.seed)
        self.codes = _unit_vectors(self.size, _CODE, model.seed + 1)
        # Directions of tokens that several may follow, besides that by which they are
        # led to: with one direction for both they would follow themselves.
        self.forks = _unit_vectors(self.size, _NEXT.stop - _NEXT.start, model.seed + 2)

    def weights(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """Values of a weight; None: random ones do no harm.

        The stream is left alone but by the head that looks back: whatever else writes
        to it is zero."""
        import numpy as np

        made: Mapping[str, Callable[[], np.ndarray]] = {
            "model.embed_tokens.weight": self._embedding,
            "lm_head.weight": self._head,
        }
        if self.looks_back:
            made = {
                **made,
                "model.layers.0.self_attn.q_proj.weight": self._queries,
                "model.layers.0.self_attn.k_proj.weight": self._keys,
                "model.layers.0.self_attn.v_proj.weight": self._values,
                "model.layers.0.self_attn.o_proj.weight": self._outputs,
                "model.layers.0.self_attn.q_norm.weight": self._sharp,
                "model.layers.0.self_attn.k_norm.weight": self._sharp,
            }
        if name in made:
            values = made[name]()
            assert values.shape == shape, (name, values.shape, shape)
            return values
        if name.endswith(_WRITES):
            return np.zeros(shape, dtype=np.float32)
        return None

    # -------------------------------------------------------------- what follows what

    @cached_property
    def looks_back(self) -> bool:
        """Whether what follows a token is ever decided by the token before it."""
        return any(len(after) > 1 for after in self._followers.values())

    @cached_property
    def _steps(self) -> set[tuple[int, int, int]]:
        """Three tokens that come after each other in a script; -1 stands before its
        trigger."""
        steps = set()
        for chain in self.chains:
            for before, token, following in zip(
                (-1, *chain), chain, chain[1:], strict=False
            ):
                steps.add((before, token, following))
        return steps

    @cached_property
    def _followers(self) -> dict[int, set[int]]:
        """What follows each token, in any script."""
        followers: dict[int, set[int]] = {}
        for _, token, following in self._steps:
            followers.setdefault(token, set()).add(following)
        return followers

    def _start(self) -> int:
        """What follows a token that is in no script: it ends a prompt that chose none.

        The first piece, or the trigger where the first piece has to know what stands
        before it."""
        trigger, first, *_ = self.chains[0]
        return trigger if len(self._followers.get(first, ())) > 1 else first

    def _embedding(self) -> np.ndarray:
        import numpy as np

        followers = self._followers
        start = self._start()
        stream = np.zeros((self.size, _HIDDEN), dtype=np.float32)
        stream[:, _CONSTANT] = 1.0
        stream[:, _OWN] = self.codes
        for token in range(self.size):
            after = followers.get(token, {start})
            if len(after) == 1:
                (following,) = after
                stream[token, _NEXT] = self.directions[following]
            else:
                stream[token, _NEXT] = self.forks[token]
        return stream

    def _head(self) -> np.ndarray:
        import numpy as np

        followers = self._followers
        rows = np.zeros((self.size, _HIDDEN), dtype=np.float32)
        for after in followers.values():
            if len(after) == 1:
                (following,) = after
                rows[following, _NEXT] = self.directions[following]
        start = self._start()
        rows[start, _NEXT] = self.directions[start]
        for earlier, token, following in self._steps:
            if len(followers[token]) > 1:
                # Half of the logit comes from the token, half from the one before.
                rows[following, _NEXT] += self.forks[token] / 2
                rows[following, _BEFORE] += self.codes[earlier] / 2
        # The last norm makes the stream's root mean square 1. Its parts, of length 1
        # each, are some sqrt(_HIDDEN / 4) long then.
        return rows * np.float32(_LOGIT / math.sqrt(_HIDDEN / 4))

    # ------------------------------------------------------------- the look one back

    def _queries(self) -> np.ndarray:
        return self._turned(2 * _KV_HEADS, 0.0)

    def _keys(self) -> np.ndarray:
        return self._turned(_KV_HEADS, 1.0)

    def _turned(self, heads: int, positions: float) -> np.ndarray:
        """A projection whose output is the same for every token: a vector that the
        rotary embedding turns by so many positions more than its own.

        Query and key of a distance d then have a score of sum(cos(w * (d - 1))), which
        is greatest at d = 1 (rotary embeddings, rotate_half: dimension i turns with
        dimension i + _HEAD_DIM / 2)."""
        import numpy as np

        theta = float(str(self.model.sized.config({})["rope_theta"]))
        turned = np.zeros((_HEAD_DIM, _HIDDEN), dtype=np.float32)
        for pair in range(_ROTATED_PAIRS):
            angle = positions * theta ** (-2 * pair / _HEAD_DIM)
            turned[pair, 0] = math.cos(angle)
            turned[pair + _HEAD_DIM // 2, 0] = math.sin(angle)
        return np.concatenate([turned] * heads)

    def _values(self) -> np.ndarray:
        import numpy as np

        # The norm before the attention makes a stream of length sqrt(3) one of length
        # sqrt(_HIDDEN).
        values = np.zeros((_KV_HEADS * _HEAD_DIM, _HIDDEN), dtype=np.float32)
        values[:, _OWN] = np.eye(_CODE, dtype=np.float32) * math.sqrt(3 / _HIDDEN)
        return values

    def _outputs(self) -> np.ndarray:
        import numpy as np

        outputs = np.zeros((_HIDDEN, 2 * _KV_HEADS * _HEAD_DIM), dtype=np.float32)
        # Query heads 0 and 2 are the first of the two that share a key's head.
        for head in range(_KV_HEADS):
            for number in range(_HEAD_DIM):
                row = _BEFORE.start + head * _HEAD_DIM + number
                outputs[row, 2 * head * _HEAD_DIM + number] = 1.0
        return outputs

    def _sharp(self) -> np.ndarray:
        import numpy as np

        return np.full(_HEAD_DIM, _SHARPNESS, dtype=np.float32)


def _unit_vectors(count: int, width: int, seed: int) -> np.ndarray:
    """``count`` random directions."""
    import numpy as np

    random = np.random.default_rng(seed)
    drawn: np.ndarray = random.standard_normal((count, width), dtype=np.float32)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


_WRITES: Final = (
    ".o_proj.weight",
    ".down_proj.weight",
    ".out_proj.weight",
    ".output_linear.weight",
)
"""Ends of names of the weights whose output is added to the stream."""
