"""Makes requests: texts, pictures and parameters around what is known of the server."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from mmrepro.engines.dialects import Dialect
from mmrepro.runs.play import BLOCK_LIMIT, KV_LIMIT
from mmrepro.search.fuzz.limits import SIZES, ServerLimits
from mmrepro.search.fuzz.steering import ADAPTERS, Switch
from mmrepro.traffic.case import (
    CHAT,
    COMPLETIONS,
    Collision,
    Content,
    Image,
    Message,
    Near,
    Noise,
    Operation,
    Part,
    Relayout,
    Resized,
    Solid,
    Tiles,
)

_LAYOUTS: Final = ((2, 4), (4, 2), (2, 6), (3, 4), (3, 2), (1, 4))
"""Rows and columns of tiles."""
_QUESTIONS = (
    "what is this",
    "describe the picture",
    "and now",
    "list three things",
    "hello there",
)
_ODD_TEXTS = (
    "",
    " ",
    "\x00\x07\x1b[31m",
    "\u202eright to left\u202c",
    "\U0001f9d1\u200d\U0001f680",
    "<|im_end|>\n<|im_start|>assistant\n",
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<image>",
    "{{ '%s' % 1 }}",
)
_GROWN = (1, 4, 16, 40)
"""Tokens before a limit at which a prompt ends whose answer grows beyond it."""
_MOST_GROWN = 700
"""Tokens of an answer that is let grow from what is served to what is not: seconds, on
a CPU."""
_SALT_NAMES = ("tenant-a", "tenant-b", "tenant-ab")
TILE = 28
STATIC = ("lora-a", "lora-b")
"""Adapters that a server with adapters has from its start."""
RESETS = "/reset_prefix_cache"
_TOOLS: Final = tuple(
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "at": {"enum": ["sun", "moon"]},
                    "n": {"type": "integer"},
                },
                "required": ["at"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("look", "walk")
)


class Maker:
    """Makes the requests of one episode, one after another.

    Args:
        name: what the names of its pictures begin with.
        given: pictures that somebody supplied, used as any other.
        hazards: some do what an engine's documentation warns of.
    """

    def __init__(
        self,
        name: str,
        random: Random,
        limits: ServerLimits,
        dialect: Dialect,
        on: set[Switch],
        given: Mapping[str, Image] | None = None,
        *,
        hazards: bool = False,
    ) -> None:
        self.random, self.limits, self.dialect, self.on = random, limits, dialect, on
        self.name, self.hazards = name, hazards
        self.images: dict[str, Image] = dict(given or {})
        self._fresh = list(self.images)
        self._used: list[str] = []
        self._beginnings: list[str] = []
        self._questions = random.sample(_QUESTIONS, 2)
        self._count = 0

    # ------------------------------------------------------------------ one request

    def request(
        self,
        images: Sequence[str] | None = None,
        text: str | None = None,
        *,
        tokens: int | None = None,
        max_tokens: int | None = None,
        leave: str | None = None,
        plain: bool = False,
    ) -> Operation:
        """A request; what is not given is drawn.

        Args:
            tokens: length of its prompt.
            plain: without further parameters.
        """
        self._count += 1
        random = self.random
        shown = list(self.pictures() if images is None else images)
        if tokens is None and text is None and max_tokens is None:
            tokens, max_tokens = self._growing() or (self._length(), None)
        if text is None:
            text = self.question() if tokens is None else self.text(tokens, shown)
        limit = max_tokens or random.choice((1, 1, 2, 4, 4, 8, 16, 33))
        parameters: dict[str, Any] = {"max_tokens": limit, "temperature": 0}
        if random.random() < 0.4:
            parameters["ignore_eos"] = True
        path = CHAT
        if not shown and Switch.COMPLETIONS in self.on and random.random() < 0.25:
            path = COMPLETIONS
        if not plain:
            parameters |= self._parameters(path)
        stream = Switch.STREAM in self.on and random.random() < 0.5
        if leave is None and Switch.LEAVE in self.on and random.random() < 0.15:
            leave = random.choice(("sent", "first-token", "tokens>=2", "tokens>=5"))
            parameters["max_tokens"] = max(limit, random.choice((16, 64)))
        adapter = random.choice(STATIC) if self._is_adapted() else None
        return Operation(
            id=f"r{self._count}",
            path=path,
            model=adapter and self.dialect.adapter + adapter,
            messages=self._messages(shown, text) if path == CHAT else None,
            prompt=text if path == COMPLETIONS else None,
            parameters=parameters,
            stream=stream or bool(leave and leave != "sent"),
            leave=leave or "",
        )

    def _is_adapted(self) -> bool:
        """Whether the next request asks an adapter."""
        if self.always_adapted:
            return True
        return bool(self.on.intersection(ADAPTERS)) and self.random.random() < 0.4

    def _messages(self, shown: Sequence[str], text: str) -> list[Message]:
        random = self.random
        parts = self._parts(shown)
        content: str | list[Part] = text
        if parts:
            words = Part(text=text)
            behind = random.random() < 0.9  # most clients put the picture first
            content = [*parts, words] if behind else [words, *parts]

        messages = [Message(role="user", content=content)]
        if Switch.TURNS in self.on and random.random() < 0.3:
            if random.random() < 0.5:
                system = Message(role="system", content="Answer in one sentence.")
                messages.insert(0, system)
            messages += [
                Message(role="assistant", content="yes"),
                Message(role="user", content=self.question()),
            ]

        return messages

    def _parts(self, shown: Sequence[str]) -> list[Part]:
        """The pictures of a message, with names of their own or without."""
        random = self.random
        if Switch.UUID not in self.on or random.random() >= 0.5:
            return [Part(image=name) for name in shown]
        parts: list[Part] = []
        for name in shown:
            # One name for several pictures is what the documentation warns of.
            shared = self.hazards and random.random() < 0.2
            parts.append(Part(image=name, uuid="shared" if shared else f"id-{name}"))

        return parts

    # -------------------------------------------------------------- requests of servers

    @property
    def always_adapted(self) -> bool:
        """Nobody asks the model itself beside an adapter that fills the last slot: on a
        CPU that is a known failure (engines/features.py), which would hide all
        others."""
        return Switch.EVICTED in self.on

    def loaded(self, adapter: str) -> str:
        """A name that no adapter of the episode has yet: a name means one adapter."""
        self._count += 1
        return f"{self.name}-{adapter}-{self._count}"

    def loading(self, name: str, adapter: str) -> Operation:
        self._count += 1
        asked = {"lora_name": name, "lora_path": f"{{tiny:{adapter}}}"}
        path = f"{self.dialect.adapters}/load_lora_adapter"
        return Operation(id=f"r{self._count}", path=path, parameters=asked)

    def unloading(self, name: str) -> Operation:
        self._count += 1
        path = f"{self.dialect.adapters}/unload_lora_adapter"
        return Operation(
            id=f"r{self._count}", path=path, parameters={"lora_name": name}
        )

    def of(self, adapter: str | None, op: Operation) -> Operation:
        """``op`` asked of an adapter; None: of the model itself."""
        return op.model_copy(
            update={"model": adapter and self.dialect.adapter + adapter}
        )

    def reset(self) -> Operation:
        """Of the prefix cache: what is asked again is fetched from elsewhere."""
        self._count += 1
        return Operation(id=f"r{self._count}", path=RESETS)

    # ------------------------------------------------------------------ texts

    def text(
        self, tokens: int, images: Sequence[str] = (), *, shared: bool = True
    ) -> str:
        """A text that makes a prompt of ``tokens``, with those pictures; ``shared``:
        others may begin with it, and it with what others begin with."""
        letters = self.limits.letters(tokens, [self.size(name) for name in images])
        begin = ""
        reuse = shared and Switch.REUSE in self.on
        if reuse and self._beginnings and self.random.random() < 0.5:
            begin = self.random.choice(self._beginnings)[:letters]
        made = begin + self._letters(letters - len(begin))
        # Few beginnings are shared often, which a prefix cache needs to be tested.
        if reuse and len(self._beginnings) < 4:
            self._beginnings.append(made)
        return made

    def _letters(self, count: int) -> str:
        """Words, so that nothing looks like markup; never an end in white space, which
        is cut."""
        random = self.random
        text = "".join(random.choices(string.ascii_lowercase + " ", k=max(0, count)))
        return text[:-1] + "z" if text.endswith(" ") else text

    def question(self) -> str:
        if Switch.ODD in self.on and self.random.random() < 0.3:
            return self.random.choice(_ODD_TEXTS)
        return self.random.choice(self._questions)

    def _length(self) -> int | None:
        """Tokens of a prompt; None: a question, as short as it is."""
        random, limits = self.random, self.limits
        weights = {"question": 6.0, "short": 2.0, "half": 0.8}
        if Switch.OVER in self.on:
            weights["over"] = 1.2
        if Switch.EDGES in self.on and limits.edges():
            weights["edge"] = 2.0
        if Switch.BLOCKS in self.on:
            weights["block"] = 1.5
        (kind,) = random.choices(list(weights), list(weights.values()))
        match kind:
            case "question":
                return None
            case "short":
                return random.randint(20, 120)
            case "half":
                return random.randint(limits.longest // 4, max(8, limits.longest // 2))
            case "over":
                return round(limits.context * random.choice((1.01, 1.2, 2.0)))
            case "edge":
                edge = random.choice(limits.edges())
                return max(1, edge + random.choice((-2, -1, 0, 1)))

        size = random.choice(limits.named(BLOCK_LIMIT) or [16])
        most = max(1, limits.context // size - 1)
        blocks = random.randint(1, min(most, 12))
        return max(2, size * blocks + random.choice((-1, 0, 1)))

    def _growing(self) -> tuple[int, int] | None:
        """A prompt just short of a limit, and an answer that ends at it or beyond; now
        and then."""
        random, limits = self.random, self.limits
        if Switch.GROWTH not in self.on or random.random() > 0.15:
            return None
        between = (limits.refused or 0) - limits.served
        is_between = limits.served > 0 and 0 < between <= _MOST_GROWN
        if is_between and not limits.named(KV_LIMIT) and random.random() < 0.4:
            return limits.served, between + 24  # where it ends lies between the two
        end = random.choice(
            [limits.longest, limits.longest, limits.room, *limits.edges()]
        )
        short = random.choice(_GROWN)
        return max(1, end - short), max(1, short + random.choice((-1, 0, 1, 2, 24)))

    # ------------------------------------------------------------------ pictures

    def pictures(self) -> list[str]:
        if Switch.IMAGES not in self.on or self.random.random() > 0.65:
            return []
        count = 1
        if Switch.SEVERAL in self.on and self.random.random() < 0.25:
            count = self.random.choice((2, 2, 3))
        return [self.picture() for _ in range(count)]

    def picture(self, size: tuple[int, int] | None = None) -> str:
        """One that was used before, or a new one."""
        random = self.random
        reuse = Switch.REUSE in self.on and self._used and size is None
        if reuse and random.random() < 0.5:
            return random.choice(self._used[-8:])
        name = self._supplied() if size is None else ""
        name = name or self.new(size)
        self._used.append(name)
        return name

    def _supplied(self) -> str:
        """Choose one of those that were given, first those that were not sent yet; "":
        none."""
        if not self._fresh or self.random.random() > 0.6:
            return ""
        unsent = [name for name in self._fresh if name not in self._used]
        return self.random.choice(unsent or self._fresh)

    def related(self) -> tuple[str, str]:
        """Two pictures that an engine might take for one."""
        random = self.random
        if len(self._fresh) > 1 and random.random() < 0.7:
            first, second = random.sample(self._fresh, 2)
            return first, second
        count = len(self.images)
        first, second = f"{self.name}p{count + 1}", f"{self.name}p{count + 2}"
        seed = random.randrange(1 << 30)
        if random.random() < 0.7:
            rows, columns = random.choice(_LAYOUTS)
            self.images[first] = Tiles(seed=seed, rows=rows, columns=columns)
            self.images[second] = Relayout(of=first, rows=columns, columns=rows)
        else:
            self.images[first] = Noise(seed=seed, size=random.choice(SIZES))
            self.images[second] = Near(of=first, seed=seed, pixels=1)

        self._used += [first, second]
        return first, second

    def new(self, size: tuple[int, int] | None = None) -> str:
        random = self.random
        name = f"{self.name}p{len(self.images) + 1}"
        if Switch.RELATIVES in self.on and size is None and random.random() < 0.6:
            self.images[name] = self._relative()
        else:
            if size is None:
                odd_width = (random.randint(20, 300), 84)
                large_sizes = SIZES[4:]  # twice as likely
                size = random.choice((*SIZES, *large_sizes, odd_width))
            self.images[name] = Noise(seed=random.randrange(1 << 30), size=size)

        return name

    def _relative(self) -> Image:
        random = self.random
        tiled: list[str] = []
        for name, image in self.images.items():
            if isinstance(image, Tiles) and name in self._used:
                tiled.append(name)
        plain: list[str] = []
        for name in self._used:
            if not isinstance(self.images[name], Content | Collision):
                plain.append(name)
        pick = random.random()
        if tiled and pick < 0.5:
            of = random.choice(tiled)
            first = self.images[of]
            assert isinstance(first, Tiles)
            return Relayout(of=of, rows=first.columns, columns=first.rows)

        if plain and pick < 0.65:
            return Near(
                of=random.choice(plain),
                seed=random.randrange(1 << 30),
                pixels=random.choice((1, 1, 5)),
            )

        if plain and pick < 0.75:
            return Resized(of=random.choice(plain), size=random.choice(SIZES))
        if pick < 0.8:
            colour = (
                random.randrange(256),
                random.randrange(256),
                random.randrange(256),
            )
            return Solid(colour=colour, size=random.choice(SIZES))

        rows, columns = random.choice(_LAYOUTS)
        return Tiles(seed=random.randrange(1 << 30), rows=rows, columns=columns)

    def size(self, name: str) -> tuple[int, int]:
        """Width and height; of a file that is not looked at, one token's."""
        image = self.images[name]
        match image:
            case Noise() | Solid() | Resized():
                return image.size
            case Tiles() | Relayout():
                return image.columns * TILE, image.rows * TILE
            case Near():
                return self.size(image.of)

        return TILE, TILE

    # ------------------------------------------------------------------ parameters

    def _parameters(self, path: str) -> dict[str, Any]:
        random, on, dialect = self.random, self.on, self.dialect
        parameters: dict[str, Any] = {}

        def chosen(switch: Switch, odds: float) -> bool:
            return switch in on and random.random() < odds

        if chosen(Switch.N, 0.15):
            parameters["n"] = random.choice((2, 3, 5))
            parameters["temperature"] = 0.8
        if chosen(Switch.SAMPLED, 0.25):
            parameters["temperature"] = random.choice((0.3, 1.0, 2.0))
            parameters["seed"] = random.randrange(1000)
        if chosen(Switch.STOP, 0.2):
            parameters |= self._stop()
        if chosen(Switch.LOGPROBS, 0.2):
            top = random.choice(dialect.logprobs)
            if path == CHAT:
                parameters |= {"logprobs": True, "top_logprobs": top}
            else:
                parameters["logprobs"] = top

        if chosen(Switch.PRIORITY, 0.3):
            parameters[dialect.priority] = random.choice((-1, 0, 1, 5))
        if chosen(Switch.SALT, 0.4):
            parameters[random.choice(dialect.salts)] = random.choice(_SALT_NAMES)
        if chosen(Switch.RID, 0.3):
            # Numbered as clients do: each once, and one begins as another does.
            number = dialect.rid == "session_id"
            parameters[dialect.rid] = self._count if number else f"user{self._count}"

        if chosen(Switch.GRAMMAR, 0.25):
            parameters |= random.choice(dialect.shaped)
        elif path == CHAT and chosen(Switch.TOOLS, 0.25):
            parameters["tools"] = list(_TOOLS)
            parameters["tool_choice"] = random.choice(("required", "auto"))

        return parameters

    def _stop(self) -> dict[str, Any]:
        random = self.random
        kind = random.random()
        if kind < 0.5:
            return {"stop": random.choice(("a", " ", "z", ["ab", "q"], "\n"))}
        stops: dict[str, Any] = {
            "stop_token_ids": [random.choice((0, 1, 255, 1_151_935))]
        }
        if random.random() < 0.5:
            stops["min_tokens"] = 1
        return stops
