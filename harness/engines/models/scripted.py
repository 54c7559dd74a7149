"""A tiny model that says what it is told.

Random weights never say a tool call, a stop string or a thinking block, so whatever an
engine does with those stays unseen. Here the weights are a table: the next token
follows from the current one, whatever the sampling, and a script is a chain of tokens.

How the table gets into weights, of any model whose layers add to a residual stream:

- A token's embedding holds, in the part _NEXT of the stream, the direction of the token
  that follows it. What the layers would add is zero, so the stream stays the embedding,
  and the head's row of a token is that token's direction.
- A piece of text that occurs twice in the scripts gets a token for each place. Their
  strings differ by a mark, ``⟦17⟧``, which the tokenizer's decoder takes off. So does
  a piece of one byte, which is a token already.
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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

from mmrepro.base.errors import UsageError
from mmrepro.engines.models.base import (
    BYTES,
    VECTOR_WIDTHS,
    Placed,
    Shapes,
    TinyModel,
    dump,
    named_after,
    write_weights,
)
from mmrepro.engines.models.families import Frame, frames
from mmrepro.engines.models.stack import TextModel, TinyQwen3Text

_FORMAT: Final = 3
"""Raised when what is written changes, so that old cached models are not reused."""
_PIECE: Final = re.compile(r"\s*\S+|\s+")
_MARK: Final = "⟦[0-9]+⟧"

_MOST_PIECES: Final = 20_000
"""Of all scripts together: a token each, and a row of two matrices."""

_CODE: Final = VECTOR_WIDTHS["codes"]
_HIDDEN: Final = 1 + VECTOR_WIDTHS["directions"] + 2 * _CODE
# Parts of the residual stream. The constant number is what queries and keys are made of.
_CONSTANT: Final = slice(0, 1)
_NEXT: Final = slice(1, _HIDDEN - 2 * _CODE)
_OWN: Final = slice(_HIDDEN - 2 * _CODE, _HIDDEN - _CODE)
_BEFORE: Final = slice(_HIDDEN - _CODE, _HIDDEN)
_HEAD_DIM: Final = 64
_KV_HEADS: Final = 2
_HEADS: Final = _HIDDEN // _HEAD_DIM
"""As many as the stream is wide: LMDeploy takes a head's size from these two."""
_GROUP: Final = _HEADS // _KV_HEADS
_ROTATED_PAIRS: Final = 8
"""Pairs of a head's dimensions that the look back uses: the fastest turning ones."""
_SHARPNESS: Final = 6.0
"""Weight of the norms of queries and keys: with it the position before has a score that
is some 30 above all others', so the softmax gives it everything."""
_LOGIT: Final = 60.0
"""Logit of the token that follows, where others have at most some 39.

At 20 they have 13, and at temperature 1 one token in 3,000 is another one. A bias of
100 is more, so that it still forces a token."""


@dataclass(frozen=True)
class Script:
    """What the model says once.

    Attributes:
        name: of its trigger.
        pieces: texts of its tokens, in order. A text that is one of the model's shared
            tokens (``<think>``) is that token. A byte that is no text by itself is a
            lone surrogate, as Python's ``surrogateescape`` writes it.
        ends: whether the model ends after it; else it begins again.
        after_text: said when the last message has this text; "": whatever it has.
        with_tools: said only when the request brings tools.
        after_tool: said only when the last message is a tool's result.
        turn: said only as the conversation's answer of that number; 0: as any.
    """

    name: str
    pieces: tuple[str, ...]
    ends: bool = True
    after_text: str = ""
    with_tools: bool = False
    after_tool: bool = False
    turn: int = 0

    @property
    def text(self) -> str:
        return text_of(self.pieces)

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
        if self.turn:
            answers = "messages | selectattr('role', 'equalto', 'assistant') | list"
            parts.append(f"({answers} | length) == {self.turn - 1}")
        return " and ".join(parts)

    def holds(self, messages: Sequence[Mapping[str, Any]], tools: bool) -> bool:
        """Whether its condition holds; where it has none, a chat never asks."""
        last = messages[-1]
        answers = sum(message.get("role") == "assistant" for message in messages)
        if self.after_text and self.after_text not in _words(last.get("content")):
            return False
        if self.with_tools and not tools:
            return False
        if self.after_tool and last.get("role") != "tool":
            return False
        return not self.turn or answers == self.turn - 1

    def tokens(self, shared: Collection[str]) -> list[str]:
        """Texts of the tokens that are made of it, in order, without its end."""
        return list(_parted(self.pieces, shared))


def _words(content: object) -> str:
    """The text of a message, as the chat template takes it."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if "text" in part)


def text_of(pieces: Iterable[str]) -> str:
    """The text that these pieces are; bytes that are no text become ``\ufffd``."""
    return "".join(pieces).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
    # Arguments of a call are text or an object, by what the engine makes of them.
    "{% macro calls(m) %}{% for c in m['tool_calls'] or [] %}"
    "{{ c['function']['name'] }} {{ c['function']['arguments'] | tojson }}"
    "{% endfor %}{% endmacro %}"
    "BEGIN{% for m in messages %}MESSAGE{% endfor %}"
    "{% if add_generation_prompt %}ANSWERCHOICE{% endif %}"
)
"""CHOICE is replaced by what prints the trigger of a script, the other capitals by the
frame's parts."""
_CHATML: Final = "chatml"


@dataclass(frozen=True)
class ScriptedModel(TinyModel):
    """A text model whose answers are scripts; equal values give byte-equal files.

    Attributes:
        scripts: the first one is said where nothing chooses another.
        shared: tokens that the engine's parsers know by their ids.
        hidden_tokens: those of ``shared`` that a tokenizer calls special, so that an
            answer is shown without them.
        base: the architecture; its widths are replaced.
        frame: how a conversation is written.
    """

    kind: ClassVar[str] = "tiny model that says what it is told"

    scripts: tuple[Script, ...]
    shared: tuple[str, ...] = ()
    hidden_tokens: tuple[str, ...] = ()
    base: TextModel = field(default_factory=TinyQwen3Text)
    frame: Frame = field(default_factory=lambda: frames()[_CHATML])
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
            asdict(self.frame),
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
            heads=_HEADS,
            kv_heads=_KV_HEADS,
            head_dim=_HEAD_DIM,
            vocab_size=len(self.vocabulary.strings),
        )

    @cached_property
    def vocabulary(self) -> _Vocabulary:
        return _Vocabulary.of(self)

    @cached_property
    def norms_heads(self) -> bool:
        """Whether the architecture norms queries and keys."""
        return any(name.endswith(_NORMS) for name, _ in self.shapes())

    def shapes(self) -> Shapes:
        yield from self.sized.shapes()

    def spread(self, name: str) -> tuple[float, float]:
        """Mean and deviation of what is not placed. What would be added to the stream
        is zero: it is left alone but by the head that looks back."""
        if name.endswith(_WRITES):
            return 0.0, 0.0
        mean, deviation = self.sized.spread(name)
        if name.startswith(_LOOKS_BACK) and name.endswith(_NORMS):
            return _SHARPNESS, 0.0
        return mean, self.std if deviation else 0.0

    def placed(self) -> Mapping[str, Placed]:
        return _ScriptTable(self, self.vocabulary).placed()

    def _write_into(self, folder: Path) -> None:
        vocabulary, frame = self.vocabulary, self.frame
        vocabulary.write(folder, self._template(), frame)
        end, pad = vocabulary.id_of(frame.end), vocabulary.id_of(frame.pad)
        ends: dict[str, object] = {"eos_token_id": end, "pad_token_id": pad}
        config = self.sized.config({})
        dump(folder / "config.json", {**config, "bos_token_id": pad, **ends})
        dump(folder / "generation_config.json", ends)
        write_weights(
            folder / self.weights_file,
            self.shapes(),
            self.seed,
            self.spread,
            self.placed(),
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
        frame = self.frame
        message = frame.message.replace("ROLE", "{{ m['role'] }}")
        message = message.replace("CONTENT", "{{ words(m) }}{{ calls(m) }}")
        template = _CHAT_TEMPLATE.replace("BEGIN", frame.begin, 1)
        template = template.replace("MESSAGE", message, 1)
        return template.replace("ANSWERCHOICE", frame.answer + (choice or first), 1)


_LOOKED_UP: Final = ("Ġ</", "</", "think")
"""Further tokens of a tokenizer: vLLM's parser olmo3 does not start without them. No
script says them."""


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
        framing = model.frame.tokens
        added = tuple(dict.fromkeys((*framing, *model.shared, *triggers)))
        strings = [*sorted(ByteLevel.alphabet()), *added, *_LOOKED_UP]
        ids = {text: number for number, text in enumerate(strings)}
        chains = []
        for script in model.scripts:
            chain = [ids[trigger_of(script.name)]]
            for piece in _parted(script.pieces, model.shared):
                if piece in model.shared:
                    chain.append(ids[piece])
                    continue
                # What is there once needs no mark: a grammar that masks tokens takes
                # them by their strings.
                text = _byte_letters(piece)
                if text in ids or not text:
                    text += f"⟦{len(strings)}⟧"
                ids[text] = len(strings)
                chain.append(len(strings))
                strings.append(text)
            chain.append(ids[model.frame.end] if script.ends else chain[0])
            chains.append(tuple(chain))
        hidden = frozenset({*framing, *triggers, *model.hidden_tokens})
        return cls(tuple(strings), added, tuple(chains), hidden)

    def id_of(self, token: str) -> int:
        return BYTES + self.added.index(token)

    def write(self, folder: Path, template: str, frame: Frame) -> None:
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
            "eos_token": frame.end,
            "pad_token": frame.pad,
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
    letters = _letters()
    return "".join(letters[byte] for byte in text.encode("utf-8", "surrogateescape"))


@cache
def _letters() -> tuple[str, ...]:
    """The letter of each byte: itself where it can be printed, else the next one that
    no byte has. GPT-2's tokenizer began it."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = []
    others = 0
    for byte in range(256):
        if byte in printed:
            letters.append(chr(byte))
        else:
            letters.append(chr(256 + others))
            others += 1
    return tuple(letters)


class _ScriptTable:
    """What follows each token, as weights.

    They are made of unit vectors, of which two have almost nothing in common. Their
    groups: ``directions`` of tokens, ``codes`` of tokens, and ``forks``: directions of
    tokens that several may follow, besides that by which they are led to. With one
    direction for both they would follow themselves."""

    def __init__(self, model: ScriptedModel, vocabulary: _Vocabulary) -> None:
        self.model = model
        self.chains = vocabulary.chains
        self.size = len(vocabulary.strings)

    def placed(self) -> Mapping[str, Placed]:
        """Weights by their names."""
        made = {
            "model.embed_tokens.weight": self._embedding(),
            "lm_head.weight": self._head(),
        }
        if self.looks_back:
            heads = {
                "q_proj": self._turned(_HEADS, 0.0),
                "k_proj": self._turned(_KV_HEADS, 1.0),
                "v_proj": self._values(),
                "o_proj": self._outputs(),
            }
            for name, weight in heads.items():
                made[f"{_LOOKS_BACK}{name}.weight"] = weight
        return made

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

    def _embedding(self) -> Placed:
        start = self._start()
        made = Placed()
        for token in range(self.size):
            made.cells.append((token, _CONSTANT.start, 1.0))
            made.vectors.append((token, _OWN.start, "codes", token, 1.0))
            after = self._followers.get(token, {start})
            group, number = "forks", token
            if len(after) == 1:
                (number,) = after
                group = "directions"
            made.vectors.append((token, _NEXT.start, group, number, 1.0))
        return made

    def _head(self) -> Placed:
        # The last norm makes the stream's root mean square 1. Its parts, of length 1
        # each, are some sqrt(_HIDDEN / 4) long then.
        whole = _LOGIT / math.sqrt(_HIDDEN / 4)
        led_to = {self._start()}
        for after in self._followers.values():
            if len(after) == 1:
                led_to |= after
        made = Placed()
        for token in sorted(led_to):
            made.vectors.append((token, _NEXT.start, "directions", token, whole))
        for earlier, token, following in sorted(self._steps):
            if len(self._followers[token]) > 1:
                # Half of the logit comes from the token, half from the one before.
                half = whole / 2
                made.vectors.append((following, _NEXT.start, "forks", token, half))
                made.vectors.append((following, _BEFORE.start, "codes", earlier, half))
        return made

    # ------------------------------------------------------------- the look one back

    def _turned(self, heads: int, positions: float) -> Placed:
        """A projection whose output is the same for every token: a vector that the
        rotary embedding turns by so many positions more than its own.

        Query and key of a distance d then have a score of sum(cos(w * (d - 1))), which
        is greatest at d = 1 (rotary embeddings, rotate_half: dimension i turns with
        dimension i + _HEAD_DIM / 2)."""
        theta = float(str(self.model.sized.config({})["rope_theta"]))
        # A norm of queries and keys gives them their length. Without one they have it
        # from the stream's constant, which is sqrt(_HIDDEN / 3) after the first norm.
        length = 1.0
        if not self.model.norms_heads:
            wanted = _SHARPNESS * math.sqrt(_HEAD_DIM)
            length = wanted / math.sqrt(_ROTATED_PAIRS * _HIDDEN / 3)
        made = Placed()
        for head in range(heads):
            first = head * _HEAD_DIM
            for pair in range(_ROTATED_PAIRS):
                angle = positions * theta ** (-2 * pair / _HEAD_DIM)
                second = first + pair + _HEAD_DIM // 2
                made.cells.append((first + pair, 0, length * math.cos(angle)))
                made.cells.append((second, 0, length * math.sin(angle)))
        return made

    def _values(self) -> Placed:
        # The norm before the attention makes a stream of length sqrt(3) one of length
        # sqrt(_HIDDEN).
        made = Placed()
        for number in range(_CODE):
            made.cells.append((number, _OWN.start + number, math.sqrt(3 / _HIDDEN)))
        return made

    def _outputs(self) -> Placed:
        made = Placed()
        # The first query head of those that share a key's head.
        for head in range(_KV_HEADS):
            for number in range(_HEAD_DIM):
                row = _BEFORE.start + head * _HEAD_DIM + number
                made.cells.append((row, _GROUP * head * _HEAD_DIM + number, 1.0))
        return made


_LOOKS_BACK: Final = "model.layers.0.self_attn."
_NORMS: Final = ("q_norm.weight", "k_norm.weight")
_WRITES: Final = (
    ".o_proj.weight",
    ".down_proj.weight",
    ".out_proj.weight",
    ".output_linear.weight",
)
"""Ends of names of the weights whose output is added to the stream."""
