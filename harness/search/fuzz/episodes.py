"""Episodes: some forty requests on one server, from a seed, or made of earlier ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeAlias

from mmrepro.engines.dialects import Dialect, dialect_of
from mmrepro.engines.features import feature
from mmrepro.engines.models import TINY
from mmrepro.engines.parsers import RegisteredParsers
from mmrepro.engines.plain import plain_server
from mmrepro.search.fuzz.limits import ServerLimits, learning_case, narrowing_case
from mmrepro.search.fuzz.requests import RESETS, STATIC, TILE, Maker
from mmrepro.search.fuzz.spoken import parsers_of, spoken_case
from mmrepro.search.fuzz.steering import (
    ADAPTERS,
    ONE_OF,
    SERVERS,
    SPECULATION,
    Switch,
    drawn,
    lead_of,
    offered,
    without_groups,
)
from mmrepro.search.oracle.adapters import adapter_of
from mmrepro.search.oracle.reference import CHANGES, comparable
from mmrepro.traffic.case import Barrier, Case, Image, Operation, Origin, ServerWanted

_Kind: TypeAlias = Literal["learning", "mixed", "steady", "many", "scripts"]

REQUESTS = 40
"""Of a mixed episode, about."""
STEADY, BLOCKS = 8, 10
"""Of a block of a steady one, and blocks: for some of them a new server's memory grows
by itself. """
NARROWING = 3
"""Further learning episodes, at most: each leaves a seventh of what lies between."""
KINDS: tuple[_Kind, ...] = (
    "mixed",
    "mixed",
    "many",
    "mixed",
    "steady",
    "mixed",
    "mixed",
    "mixed",
)
"""In turn."""
_CHANGED = 0.4
"""Share of mixed episodes that are changed ones, where there are some worth it."""
_FROM = 0.6
"""The same, of what was given by --from."""
_MODERN_COMPARED = 0.85
"""The same of the profile modern: what its features break is mostly silent."""
_COMPARED = 0.25
"""Share of mixed episodes whose requests are greedy, with logprobs, so that answers
compare; all of engines that are exact without."""
_MOTIF, _OF_FEATURE = 0.5, 0.8
"""Chance of each motif in a new episode, and of those of a server's feature where it is
on."""
_SEED, _CHOICES = ("seed",), ("n", "temperature")
"""What the profile modern leaves out, since it would hide all else: on a CPU vLLM's
engine ends by a seed and a prompt in chunks (scenario seeded-chunk), and by drafts it
answers greedy requests wrong beside sampled ones (vllm#55005)."""
_RIDS = ("rid", "request_id", "session_id")
"""What is doubled has no id of its own."""
_AT_ONCE = (1, 1, 2, 4, 8)
_MODERN_AT_ONCE = (1, 2, 4, 4, 8)
"""The profile modern asks for more: its features act between requests that share a
step."""
MOST_OPERATIONS = 80
_TRIES = 20
"""To change a case, at most: a case without requests cannot be changed."""


@dataclass(frozen=True)
class PlannedEpisode:
    """What an episode sends."""

    number: int
    kind: _Kind
    case: Case
    switches: tuple[Switch, ...] = ()
    origin: str = "new"
    compared: bool = False

    @property
    def blocks(self) -> int:
        return BLOCKS if self.kind == "steady" else 0


@dataclass
class Episodes:
    """Makes them: the same ones for the same seed, as long as the same was seen on the
    way.

    Attributes:
        given: pictures to be used besides those that are made up; with ``source``, its
            own.
        source: a case whose requests are used and changed.
        interesting: cases that showed something new, by their episode's number, oldest
            first.
        less: by how much switches are less likely than usual.
        apart: groups of switches with all of which no server starts.
        untried: once there are such groups, the switches without a server that started.
        modern: each episode's server has some of the engine's features besides.
        parsers: of the release: each episode's model says scripts for some of them;
            None: the model says what its weights say.
    """

    seed: int
    server: ServerWanted
    pictures: bool
    given: Mapping[str, Image] = field(default_factory=dict)
    source: Case | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)
    interesting: dict[int, Case] = field(default_factory=dict)
    less: dict[Switch, float] = field(default_factory=dict)
    apart: list[frozenset[Switch]] = field(default_factory=list)
    untried: tuple[Switch, ...] = ()
    hazards: bool = False
    modern: bool = False
    parsers: RegisteredParsers | None = None

    @property
    def dialect(self) -> Dialect:
        return dialect_of(self.server.engine)

    def next(self, number: int) -> PlannedEpisode:
        """Plan episode ``number``; the first one, 0, learns the server's limits, and the
        next ones do where the server does not tell what it does not serve. Of scripts
        nothing is learnt."""
        if self.parsers is not None:
            return self._spoken(number, self.parsers)
        if number == 0:
            case = learning_case(self.server, pictures=self.pictures)
            return PlannedEpisode(0, "learning", case)
        # Where the server tells its limits, the first episode has learnt all of them.
        if number <= NARROWING and self.limits.untold:
            return PlannedEpisode(
                number, "learning", narrowing_case(self.server, self.limits)
            )

        random = Random(f"{self.seed}/{number}")  # noqa: S311
        kind = KINDS[(number - 1) % len(KINDS)]
        # It is all about pictures.
        if kind == "many" and not self.pictures:
            kind = "mixed"
        on = self._switches(number, random)
        maker = Maker(
            f"e{number}",
            random,
            self.limits,
            self.dialect,
            on,
            self.given,
            hazards=self.hazards,
        )
        match kind:
            case "many":
                case = self._many(maker)
            case "steady":
                case = self._steady(maker)
            case _:
                return self._mixed(number, maker)

        case = _with_features(self._titled(case, number), on)
        return PlannedEpisode(number, kind, case, tuple(sorted(on)))

    def _spoken(self, number: int, parsers: RegisteredParsers) -> PlannedEpisode:
        asked = parsers_of(number, parsers, self.seed)
        random = Random(f"{self.seed}/{number}")  # noqa: S311
        case = spoken_case(self.server, parsers, asked, random)
        return PlannedEpisode(number, "scripts", case, origin=str(asked))

    def _switches(self, number: int, random: Random) -> set[Switch]:
        """Draw what an episode's requests and its server have."""
        among: list[Switch] = []
        for switch in offered(self.dialect, pictures=self.pictures, modern=self.modern):
            if frozenset({switch}) in self.apart or self._has_other_model(switch):
                continue
            among.append(switch)
        lead = lead_of(self.seed, number, among)
        return drawn(random, among, self.less, lead, self.apart, self.untried)

    def _has_other_model(self, switch: Switch) -> bool:
        """Whether a server with it has another model, which says no scripts."""
        if self.server.scripts is None or switch not in SERVERS:
            return False
        wanted = feature(self.server.engine, str(switch))
        return wanted.model != self.dialect.model

    def _titled(self, case: Case, number: int) -> Case:
        title = f"episode {number} of seed {self.seed}"
        # What is made up is nobody's words; what was recorded may be.
        made_up = self.source is None or self.source.origin.anonymised
        origin = Origin(format="fuzz", anonymised=made_up)
        return case.model_copy(update={"title": title, "origin": origin})

    # ------------------------------------------------------------------ mixed

    def _mixed(self, number: int, maker: Maker) -> PlannedEpisode:
        random = maker.random
        base, origin = self._base(random)
        case = self._new(maker) if base is None else _changed(base, random, maker)
        if self.modern:
            hiding: tuple[str, ...] = _SEED
            if maker.on.intersection(SPECULATION):
                hiding += _CHOICES
            case = _without(case, hiding)

        plain = plain_server(self.server.engine)
        share = _MODERN_COMPARED if self.modern else _COMPARED
        compared = plain is not None and (plain.exact or random.random() < share)
        if compared:
            case = comparable(case)
        if _asks_adapters(case) and not maker.on.intersection(ADAPTERS):
            self._switch_adapters_on(maker)
        if Switch.FILES in maker.on:
            case = _without(case, self.dialect.salts)
        switches = tuple(sorted(maker.on))
        case = _with_features(self._titled(case, number), maker.on)
        return PlannedEpisode(number, "mixed", case, switches, origin, compared)

    def _switch_adapters_on(self, maker: Maker) -> None:
        """A server with adapters, without what no such server has."""
        adapters = ADAPTERS[0]
        for group in ONE_OF:
            if adapters in group:
                maker.on -= set(group)
        maker.on.add(adapters)
        maker.on = without_groups(maker.on, self.apart, adapters)

    def _base(self, random: Random) -> tuple[Case | None, str]:
        """Choose what is changed, and name it."""
        source = self.source
        if source is not None and source.operations and random.random() < _FROM:
            return source.model_copy(update={"server": self.server}), source.title
        if not self.interesting or random.random() >= _CHANGED:
            return None, "new"
        numbers = list(self.interesting)
        weights = range(1, len(numbers) + 1)  # the newest ones most
        number = random.choices(numbers, weights)[0]
        case = self.interesting[number].model_copy(update={"server": self.server})
        return case, f"episode {number}"

    def _new(self, maker: Maker) -> Case:
        # Each draw moves all that follow it: their order is the seed's meaning.
        random = maker.random
        count = random.randint(REQUESTS * 3 // 4, REQUESTS * 5 // 4)
        at_once = random.choice(_MODERN_AT_ONCE if self.modern else _AT_ONCE)
        placed: list[tuple[float, Operation]] = []
        for motif in _MOTIFS:
            chance = _OF_FEATURE if motif in _OF_FEATURES else _MOTIF
            if random.random() >= chance:
                continue
            ops = motif(maker)
            begin = random.random() * 0.5
            step = random.choice((0.001, 0.1))
            placed += [(begin + n * step, op) for n, op in enumerate(ops)]

        # Motifs come first: plain requests fill what is left between them.
        while len(placed) < count:
            placed.append((random.random(), maker.request()))
        placed.sort(key=lambda timed: timed[0])
        ordered = [op for _, op in placed]
        barred = self._barred(ordered, at_once, random)
        return _renumbered(Case(server=self.server), barred, maker.images)

    def _barred(
        self, ops: Sequence[Operation], at_once: int, random: Random
    ) -> list[Operation]:
        """So many at once; who uses a picture again mostly waits for the one before,
        and who asks an adapter for its coming."""
        barred: list[Operation] = []
        last: dict[str, str] = {}  # by picture or adapter: the request that had it last
        for op in ops:
            after: list[str] = []
            if barred:
                after.append(f"running<={at_once - 1}")
                if op.path == RESETS:
                    after.append("running<=0")
            adapter = adapter_of(op)
            if adapter in last:
                after.append(f"{last[adapter]}.end")
            if op.path in CHANGES:
                last[adapter] = op.id
            before = [last[name] for name in op.images if name in last]
            if before and random.random() < 0.7:
                after.append(f"{before[-1]}.end")
            elif barred and barred[-1].stream and random.random() < 0.15:
                after.append(f"{barred[-1].id}.first-token")
            barred.append(op.model_copy(update={"after": after}))
            for name in op.images:
                last[name] = op.id

        return barred

    def _case(self, operations: list[Operation], images: Mapping[str, Image]) -> Case:
        case = Case(server=self.server, images=dict(images), operations=operations)
        return case.keeping([op.id for op in operations])

    # ------------------------------------------------------------------ steady and many

    def _steady(self, maker: Maker) -> Case:
        """Send the same block of requests again and again: what grows with it is kept by
        the engine."""
        random = maker.random
        maker.on -= {Switch.OVER, Switch.EDGES, Switch.GROWTH, Switch.N, Switch.SAMPLED}
        block = [maker.request(plain=True) for _ in range(STEADY - 4)]
        for _ in range(4):
            leaving = maker.request(max_tokens=200, leave="tokens>=2", plain=True)
            block.append(leaving)
        random.shuffle(block)
        operations: list[Operation] = []
        for turn in range(BLOCKS):
            for place, op in enumerate(block):
                after: list[str] = []
                if operations:
                    after.append(f"running<={random.choice((0, 1, 3))}")
                update = {"id": f"b{turn + 1}-{place + 1}", "after": after}
                operations.append(op.model_copy(update=update))

        return self._case(operations, maker.images)

    def _many(self, maker: Maker) -> Case:
        """Many small pictures under one text: by the birthday problem two of them
        collide in a short hash."""
        # Everything else would hide two pictures that are taken for one.
        maker.on = {Switch.IMAGES}
        question = "which one of all the little pictures is this one here"
        operations = []
        for number in range(self.dialect.many):
            name = maker.new((TILE, TILE * maker.random.choice((1, 1, 2))))
            op = maker.request([name], question, max_tokens=1, leave="", plain=True)
            after = ["running<=3"] if number else []
            parameters = {"max_tokens": 1, "temperature": 0}
            operations.append(
                op.model_copy(update={"after": after, "parameters": parameters})
            )

        roomy = [*self.server.args, *self.dialect.roomy]
        case = self._case(operations, maker.images)
        server = self.server.model_copy(update={"args": roomy})
        return case.model_copy(update={"server": server})


def _with_features(case: Case, on: Collection[Switch]) -> Case:
    """Give the case's server what of ``on`` is a server's."""
    server = case.server
    features = [
        feature(server.engine, str(switch)) for switch in SERVERS if switch in on
    ]
    args, env = list(server.args), dict(server.env)
    for wanted in features:
        args += wanted.args
        env.update(wanted.env)
    usual = dialect_of(server.engine).model
    models = [wanted.model for wanted in features if wanted.model != usual]
    model = models[0] if models else server.model
    if model != server.model and TINY[model].bfloat16_only:
        args.append("--dtype=bfloat16")
    update = {"args": args, "env": env, "model": model}
    return case.model_copy(update={"server": server.model_copy(update=update)})


def features_left(
    server: ServerWanted, plain: ServerWanted, on: Iterable[str]
) -> set[Switch]:
    """Those of the switches ``on`` of which ``server`` has an option, or the model, and
    ``plain`` has not."""
    args = set(server.args) - set(plain.args)
    model = server.model if server.model != plain.model else ""
    left: set[Switch] = set()
    for name in on:
        if name not in SERVERS:
            continue
        wanted = feature(server.engine, name)
        if args.intersection(wanted.args) or wanted.model == model:
            left.add(Switch(name))

    return left


def _without(case: Case, parameters: Collection[str]) -> Case:
    """Its requests without them: what it was made of may have what a switch rules
    out."""
    operations: list[Operation] = []
    for op in case.operations:
        kept = {k: v for k, v in op.parameters.items() if k not in parameters}
        operations.append(op.model_copy(update={"parameters": kept}))
    return case.model_copy(update={"operations": operations})


def _asks_adapters(case: Case) -> bool:
    return any(op.model or op.path in CHANGES for op in case.operations)


# ---------------------------------------------------------------------- motifs


def _refused_then_again(maker: Maker) -> list[Operation]:
    """A picture in a request that is too long, the same picture in a short one, and
    others."""
    if Switch.OVER not in maker.on or Switch.IMAGES not in maker.on:
        return []
    name = maker.picture(maker.random.choice(((280, 420), (420, 420), (112, 112))))
    over = round(maker.limits.context * 1.05)
    ops = [
        maker.request([name], tokens=over, leave=""),
        maker.request([name], leave=""),
    ]
    return [*ops, *_fill(maker)]


def _fill(maker: Maker) -> list[Operation]:
    """New pictures, one after another: older ones are evicted."""
    if Switch.IMAGES not in maker.on:
        return []
    count = maker.random.choice((5, 10))
    size = maker.random.choice(((280, 420), (420, 420)))
    ops: list[Operation] = []
    for _ in range(count):
        name = maker.picture(size)
        ops.append(maker.request([name], max_tokens=1, leave=""))
    return ops


def _related(maker: Maker) -> list[Operation]:
    """Two pictures that are nearly one, under one text, and the first one again."""
    if Switch.IMAGES not in maker.on:
        return []
    text = maker.question()
    first, second = maker.related()
    return [maker.request([name], text, leave="") for name in (first, second, first)]


def _twice(maker: Maker) -> list[Operation]:
    """One request, and the same one beside it."""
    op = maker.request()
    return [op, op.model_copy(update={"id": f"{op.id}b"})]


def _gone_then_again(maker: Maker) -> list[Operation]:
    """A client that goes away, and another one that asks the same."""
    if Switch.LEAVE not in maker.on:
        return []
    where = maker.random.choice(("sent", "first-token", "tokens>=2"))
    op = maker.request(leave=where, max_tokens=64)
    parameters = op.parameters | {"max_tokens": 4}
    update = {"id": f"{op.id}b", "leave": "", "parameters": parameters}
    return [op, op.model_copy(update=update)]


def _full_house(maker: Maker) -> list[Operation]:
    """Long prompts and long answers at once: the KV cache is too small for all of
    them."""
    if Switch.GROWTH not in maker.on:
        return []
    tokens = max(20, min(maker.limits.context, maker.limits.room) // 2)
    return [maker.request([], tokens=tokens, max_tokens=24) for _ in range(4)]


def _repeating(maker: Maker) -> list[Operation]:
    """Answers that repeat themselves, beside others: drafts of several lengths are
    accepted and rejected in one step, and the answers end in the middle of one."""
    if not maker.on.intersection(SPECULATION):
        return []
    random = maker.random
    word = maker.text(round(maker.limits.overhead) + random.randint(3, 9))
    texts = [word * random.randint(3, 9), word * 3 + maker.question(), maker.question()]
    lengths = [random.choice((5, 17, 40)) for _ in texts]
    ops: list[Operation] = []
    for text, length in zip(texts, lengths, strict=True):
        ops.append(maker.request([], text, max_tokens=length, leave=""))
    return ops


def _in_turn(maker: Maker) -> list[Operation]:
    """One prompt for the model and each adapter, there and back again."""
    if not maker.on.intersection(ADAPTERS):
        return []
    tokens = maker.random.choice((None, 70, 130))
    text = maker.question() if tokens is None else maker.text(tokens)
    itself = STATIC[0] if maker.always_adapted else None
    names = [itself, *STATIC, maker.random.choice(STATIC), itself]
    ops = [maker.request([], text, max_tokens=12, leave="") for _ in names]
    return [maker.of(name, op) for name, op in zip(names, ops, strict=True)]


def _come_and_gone(maker: Maker) -> list[Operation]:
    """An adapter is loaded, asked, unloaded and asked again; the next one takes its
    place."""
    if not maker.on.intersection(ADAPTERS):
        return []
    text = maker.text(maker.random.choice((40, 70, 130)))

    def asked(name: str) -> Operation:
        return maker.of(name, maker.request([], text, max_tokens=8, leave=""))

    ops: list[Operation] = []
    for adapter in maker.random.sample(STATIC, 2):
        name = maker.loaded(adapter)
        ops.append(maker.loading(name, adapter))
        ops += [asked(name), asked(name)]
        ops.append(maker.unloading(name))
        ops.append(asked(name))

    return ops


def _kept_and_fetched(maker: Maker) -> list[Operation]:
    """A long prompt, whose blocks leave the cache; the same again beside another
    request, and the same with more."""
    if Switch.FILES not in maker.on:
        return []
    limits = maker.limits
    text = maker.text(max(80, min(limits.context, limits.room) // 3))
    ops = [maker.request([], text, max_tokens=4, leave=""), maker.reset()]
    ops.append(maker.request([], max_tokens=33, leave=""))
    for more in ("", " and more"):
        ops.append(maker.request([], text + more, max_tokens=16, leave=""))
    return ops


def _more_than_fits(maker: Maker) -> list[Operation]:
    """Prompts that the KV cache does not hold together, and the same again: what left
    the cache is fetched from where it was stored."""
    if Switch.FILES not in maker.on:
        return []
    limits = maker.limits
    short_of_it = min(limits.longest, limits.room // 4) - maker.random.randint(8, 40)
    tokens = max(80, short_of_it)
    texts = [maker.text(tokens, shared=False) for _ in range(6)]
    ops: list[Operation] = []
    for length in (2, 8):
        for text in texts:
            ops.append(maker.request([], text, max_tokens=length, leave=""))
    return ops


def _goes_on(maker: Maker) -> list[Operation]:
    """A long prompt, again and again with more behind it, beside others: what goes on
    from cached blocks joins requests that are answered already."""
    if Switch.HYBRID not in maker.on:
        return []
    random = maker.random
    text = maker.text(round(maker.limits.longest * random.choice((0.5, 0.7, 0.85))))
    ops = [maker.request([], text, max_tokens=2, leave="")]
    for count in range(3):
        ops.append(
            maker.request([], max_tokens=33, tokens=random.randint(20, 60), leave="")
        )
        more = text + " and more" * count
        ops.append(maker.request([], more, max_tokens=random.choice((8, 16)), leave=""))

    return ops


_OF_FEATURES = (
    _repeating,
    _in_turn,
    _come_and_gone,
    _kept_and_fetched,
    _more_than_fits,
    _goes_on,
)
_MOTIFS = (
    _refused_then_again,
    _fill,
    _related,
    _twice,
    _gone_then_again,
    _full_house,
    *_OF_FEATURES,
)


# ---------------------------------------------------------------------- changing


def _changed(base: Case, random: Random, maker: Maker) -> Case:
    """Leave some requests of ``base`` out, double, move together, change or put some
    in."""
    before = list(base.operations)
    # A motif whose switch is off is empty, and a request may be changed into what it
    # is: to play the same case again would tell nothing new.
    for _ in range(_TRIES):
        operations = _edited(before, random, maker)[:MOST_OPERATIONS]
        if operations != before:
            break

    images = {**base.images, **maker.images}
    return _renumbered(base, operations, images)


def _edited(
    operations: Sequence[Operation], random: Random, maker: Maker
) -> list[Operation]:
    """Make one to four changes, of which each may turn out to be none."""
    operations = list(operations)
    for _ in range(random.randint(1, 4)):
        kind = random.choice(
            ("leave out", "double", "change", "put in", "motif", "at once")
        )
        if not operations:
            break
        place = random.randrange(len(operations))
        match kind:
            case "leave out":
                count = random.randint(1, max(1, len(operations) // 4))
                del operations[place : place + count]
            case "double":
                count = random.randint(1, 5)
                doubled = operations[place : place + count]
                operations[place + count : place + count] = doubled
            case "change":
                operations[place] = _other(operations[place], random)
            case "put in" | "motif":
                # The plain ones are drawn for a motif too: draws that follow stay as
                # they were for each seed.
                fresh = [maker.request() for _ in range(random.randint(1, 6))]
                if kind == "motif":
                    fresh = random.choice(_MOTIFS)(maker)
                operations[place:place] = [_put_in(op) for op in fresh]
            case _:
                bar = {"after": [f"running<={random.choice(_AT_ONCE) - 1}"]}
                operations = [op.model_copy(update=bar) for op in operations]

    return operations


def _put_in(op: Operation) -> Operation:
    return op.model_copy(update={"id": f"new-{op.id}", "after": ["running<=1"]})


def _other(op: Operation, random: Random) -> Operation:
    kind = random.choice(("stream", "leave", "max_tokens", "stay"))
    match kind:
        case "stream":
            if op.leave:
                return op
            return op.model_copy(update={"stream": not op.stream})
        case "leave":
            where = random.choice(("sent", "first-token", "tokens>=2"))
            return op.model_copy(update={"leave": where, "stream": where != "sent"})
        case "stay":
            return op.model_copy(update={"leave": ""})

    tokens = random.choice((1, 2, 8, 64))
    return op.model_copy(update={"parameters": {**op.parameters, "max_tokens": tokens}})


def _renumbered(
    base: Case, operations: Sequence[Operation], images: Mapping[str, Image]
) -> Case:
    """Give new names, in order; who waited for one that is gone waits for nobody."""
    names: dict[str, str] = {}
    used: set[object] = set()
    renumbered: list[Operation] = []
    for number, op in enumerate(operations, 1):
        id = f"r{number}"
        parameters: dict[str, Any] = {}
        for name, value in op.parameters.items():
            if name not in _RIDS:
                parameters[name] = value
            elif (name, value) not in used:
                parameters[name] = value
                used.add((name, value))

        after = _renamed(op.after, names) if renumbered else []
        update = {"id": id, "after": after, "parameters": parameters}
        renumbered.append(op.model_copy(update=update))
        names[op.id] = id

    whole = base.model_copy(update={"operations": renumbered, "images": dict(images)})
    return whole.keeping([op.id for op in renumbered])


def _renamed(barriers: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Barriers with the new names of the operations that they wait for."""
    renamed: list[str] = []
    for text in barriers:
        before = Barrier.parse(text).op
        if not before:
            renamed.append(text)
        elif before in names:
            renamed.append(names[before] + text.removeprefix(before))
    return renamed
