"""Options, declared once.

The options of a command are a frozen dataclass, a subclass of :class:`Command`, whose
fields carry an :class:`Option`: ``release: str = RELEASE("")``. From the declaration
follow the parameter of the command line (``mmrepro.cli.options``), the words that
repeat the command, the key in ``mmrepro.toml`` and the environment variable. A plain
field is set by code."""

from __future__ import annotations

import shlex
from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, Field, dataclass, field, fields, replace
from enum import StrEnum
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

_WHAT = "What to run"
ENGINE = "Engine"
EVIDENCE = "Evidence"
OUTPUT = "Output"
LIMITS = "How long and where"
CONFIG_VARIABLE = "MMREPRO_CONFIG"
"""Names the file that is read in place of the one that is found. Empty: options come
from the command line alone, and from the variables that are named in their
declarations."""
ONLY_ARGUMENTS = {CONFIG_VARIABLE: ""}
"""For the commands that mmrepro itself starts."""
GROUPS = (_WHAT, ENGINE, EVIDENCE, LIMITS, OUTPUT)
"""Headings of the help, in their order."""


def names_of(text: str) -> tuple[str, ...]:
    """Return the names in ``A,B``, each once."""
    return tuple(
        dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    )


def text_of(value: Any) -> str:
    """Return ``value`` as it is typed."""
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Option:
    """One option, or one argument.

    Attributes:
        name: ``--release``, ``--shrink/--no-shrink``; "": as the field is called.
        shown: what the help says of the default, where the value itself does not say
            it.
        least, most: bounds of a number.
        short: its name in one letter.
        choices: words that are taken, where the type does not list them.
        argument: it has no name; ``metavar`` stands for it.
        required: code may leave it out, the command line may not.
        once: it says where or how one call reports, and is no part of the command that
            repeats it:
            :meth:`Command.argv` writes it only where it is asked to.
        private: it is in no command that is written down; it may hold a password.
        attached: write ``--server-arg=VALUE``, since the value may begin with a dash.
        distinct: a value that is given twice counts once.
        own: only one command has it: it has no variable, and its key is in that
            command's table.
        configurable: False: it has no key and no variable.
        runs_code: its value decides which code runs, here or in a server. A file that
            is only found does not set it, and neither does a campaign that somebody
            else wrote down.
        names: what its words name, which a shell completes: a ``scenario``, an
            ``engine``, a ``release``; a ``variant``, a ``mitigation`` or a ``factor``
            of the scenario that was typed; or what lies here: an ``incident``, a
            ``campaign``, a ``record`` (either), for which a number, an id and ``last``
            stand as well.
        variable: its variable, where that is not ``MMREPRO_`` and the name. Such a
            variable holds in the commands that mmrepro starts as well.
        read, write: from the word that is typed to the value, and back. Of a tuple
            ``read`` gets the one word that holds all of it, of a mapping all words.
    """

    help: str
    metavar: str = ""
    group: str = _WHAT
    _: KW_ONLY
    name: str = ""
    short: str = ""
    shown: str = ""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    argument: bool = False
    required: bool = False
    once: bool = False
    private: bool = False
    attached: bool = False
    distinct: bool = False
    own: bool = False
    configurable: bool = True
    runs_code: bool = False
    names: str = ""
    variable: str = ""
    read: Callable[[str], Any] | None = None
    write: Callable[[Any], str] = text_of

    def __call__(self, default: Any, **changes: Any) -> Any:
        """Return the field of a command that has this option, with ``changes`` for that
        one."""
        metadata = {"option": replace(self, **changes)}
        if default == {}:
            return field(default_factory=dict, metadata=metadata)
        return field(default=default, metadata=metadata)


def option(
    default: Any, help: str, metavar: str = "", group: str = _WHAT, **more: Any
) -> Any:
    """Return the field of a command with an option that no other command has."""
    return Option(help, metavar, group, own=True, **more)(default)


class OptionOrigin(StrEnum):
    """Where the value of an option comes from, if it is not the default."""

    WORD = "word"
    """The command line."""
    OVER = "over"
    """The command line, against a variable or a file that says otherwise."""
    VARIABLE = "variable"
    FILE = "file"


@dataclass(frozen=True)
class DeclaredOption:
    """A field with its option.

    Attributes:
        type: of the word that gives one value.
        several: the option may be given more than once.
    """

    field: str
    option: Option
    type: Any
    several: bool
    default: Any

    @property
    def name(self) -> str:
        return self.option.name or f"--{self.field.strip('_').replace('_', '-')}"

    @property
    def key(self) -> str:
        """Name in ``mmrepro.toml``: that of the option without dashes."""
        return self.name.partition("/")[0].strip("-")

    @property
    def variable(self) -> str:
        """Name of its environment variable; "": it has none."""
        if not self.configurable or self.option.own:
            return ""
        return self.option.variable or f"MMREPRO_{self.key.replace('-', '_').upper()}"

    @property
    def configurable(self) -> bool:
        """Whether a file and a variable can hold it: what cannot be switched off again
        is asked for each time."""
        option = self.option
        switch = self.type is bool and "/" not in self.name
        plain = not (option.once or option.argument or option.private or switch)
        return bool(option.variable) or (option.configurable and plain)

    def words(self, value: Any) -> list[str]:
        """Return the words that give ``value``."""
        option = self.option
        if self.type is bool and not option.argument:
            yes, _, no = self.name.partition("/")
            word = yes if value else no
            return [word] if word else []
        values = value if self.several else [value]
        written = [option.write(item) for item in values]
        if option.argument:
            return written

        words: list[str] = []
        for text in written:
            # A value that begins with a dash would be taken for an option.
            if option.attached or text.startswith("-"):
                words.append(f"{self.name}={text}")
            else:
                words += [self.name, text]
        return words


@dataclass(frozen=True)
class Command:
    """Options of one command.

    Attributes:
        COMMAND: its words after ``mmrepro``.
        origins: where the fields that are not left to their defaults come from, by
            name.
    """

    COMMAND: ClassVar[str] = ""
    DOCUMENTS: ClassVar[tuple[str, ...]] = ()
    """Where the classes of what it prints as JSON are (``module:name``); (): no schema
    describes that."""
    _: KW_ONLY
    origins: Mapping[str, OptionOrigin] = field(
        default_factory=dict, compare=False, repr=False
    )

    def given(self, name: str) -> bool:
        """Whether a word, a variable or a file gave the field ``name``."""
        return name in self.origins

    def written(self) -> Self:
        """Return the options as a command has them, where code has settled some
        since."""
        return self

    def argv(self, **changed: Any) -> list[str]:
        """Return the words after ``mmrepro`` that give these options, with ``changed``
        fields.

        What differs from the default is written, and what was said against a variable
        or a file. What holds for one call only, such as ``--out``, is written only if
        ``changed`` names it."""
        settled = replace(self, **changed).written()
        arguments: list[str] = []
        skipped: list[str] = []
        words: list[str] = []
        for declaration in declared(type(self)):
            option = declaration.option
            value = getattr(settled, declaration.field)
            is_changed = declaration.field in changed
            if option.private or value is None:
                continue
            if option.once and not (option.required or is_changed):
                continue
            origin = self.origins.get(declaration.field)
            over = origin is OptionOrigin.OVER and not is_changed
            if value == declaration.default and not (over or option.required):
                if option.argument:
                    skipped += declaration.words(value)
            elif option.argument:
                # Those before it are written after all, so that it stands in its place.
                arguments += [*skipped, *declaration.words(value)]
                skipped = []
            else:
                words += declaration.words(value)
        if any(argument.startswith("-") for argument in arguments):
            return [*self.COMMAND.split(), *words, "--", *arguments]
        return [*self.COMMAND.split(), *arguments, *words]

    def command_line(self, **changed: Any) -> str:
        """Return the command that people type for :meth:`argv`."""
        return shlex.join(["mmrepro", *self.argv(**changed)])


_DECLARED: dict[Any, tuple[DeclaredOption, ...]] = {}


def declared(made: type[Command]) -> tuple[DeclaredOption, ...]:
    """Return the options of a command, in the order of its fields."""
    if made in _DECLARED:
        return _DECLARED[made]
    hints = get_type_hints(made)
    declarations: list[DeclaredOption] = []
    for command_field in fields(made):
        if "option" in command_field.metadata:
            declarations.append(_declared(command_field, hints[command_field.name]))
    return _DECLARED.setdefault(made, tuple(declarations))


def _declared(command_field: Field[Any], kind: Any) -> DeclaredOption:
    option = command_field.metadata["option"]
    if get_origin(kind) in (Union, UnionType):
        # X | None: None is what it is without a word.
        (kind,) = (part for part in get_args(kind) if part is not NoneType)
    is_mapping = get_origin(kind) is abc.Mapping
    is_list = get_origin(kind) is tuple and option.read is None
    several = is_mapping or is_list
    if several:
        kind = get_args(kind)[0]
    if option.choices:
        kind = Literal[option.choices]
    return DeclaredOption(
        field=command_field.name,
        option=option,
        type=str if option.read else kind,
        several=several,
        default={} if is_mapping else command_field.default,
    )
