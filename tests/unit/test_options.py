"""What follows from declared options: words, parameters, keys and variables."""

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer
from grids import examples
from hypothesis import HealthCheck, given, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.base.options import Command, DeclaredOption, OptionOrigin, declared
from mmrepro.campaign.bisect.options import BisectCommand
from mmrepro.campaign.matrix import selectors
from mmrepro.campaign.matrix.options import load
from mmrepro.campaign.trial import spawn
from mmrepro.cli.commands import COMMANDS
from mmrepro.cli.options import (
    PLACES,
    DeclaredCommand,
    _completion,
    _for_the_server,
    command,
)
from mmrepro.kv_budget import LMDEPLOY, SGLANG, VLLM, VLLM_CPU
from mmrepro.traffic.case.model import ServerWanted


def functions() -> Iterator[Any]:
    """The functions of all commands, those in groups as well."""
    for place, _ in COMMANDS.values():
        module, _, name = place.partition(":")
        found = getattr(import_module(f"mmrepro.cli.{module}"), name)
        yield from in_group(found) if isinstance(found, typer.Typer) else (found,)


def in_group(group: typer.Typer) -> Iterator[Any]:
    """The functions of a group's commands, and of the groups in it."""
    yield from (one.callback for one in group.registered_commands)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from in_group(inner.typer_instance)


MADE: list[type[Command]] = [
    one.options for one in functions() if hasattr(one, "options")
]
BY_NAME = {made.COMMAND: made for made in MADE}
TEXT = st.text(
    st.characters(
        codec="utf-8", exclude_characters="\0\x7f", exclude_categories=("Cs",)
    ),
    min_size=1,
)
PLAIN = st.text("abcdefghij0123456789-_.", min_size=1).filter(
    lambda t: not t.startswith("-")
)
READ = {
    "--url": st.sampled_from(["http://127.0.0.1:8000", "https://a.example/v1"]),
    "--releases": st.sampled_from(["own", "affected,0.22.0..0.25.0", "0.1"]).map(
        selectors.parse
    ),
    "--factors": st.lists(PLAIN, unique=True, min_size=1).map(tuple),
    "--repeat": st.integers(1, 1000),
    "--disk": st.integers(1, 1 << 50),
    "--max-part": st.integers(1, 1 << 50),
    "--max-bytes": st.integers(1, 1 << 50),
    "--deadline": st.floats(1, 600),
    "--header": st.just({}),  # private
    "--ray": st.just(
        "auto"
    ),  # an address is left out: test_a_clusters_address_is_in_no_command
    "--confidence": st.floats(0.5, 0.99),
    "--window": st.tuples(st.integers(0, 999), st.integers(1000, 600_000)),
    "--image-size": st.tuples(st.integers(1, 100_000), st.integers(1, 100_000)),
    **dict.fromkeys(
        ("--free", "--total", "--runtime", "--block-bytes"),
        st.integers(1 << 20, 1 << 50),
    ),
    **dict.fromkeys(
        (
            *(engine.option for engine in (LMDEPLOY, VLLM, VLLM_CPU, SGLANG)),
            "--swa-full-tokens-ratio",
            "--mamba-full-memory-ratio",
        ),
        st.decimals("0.0001", 1, places=4),
    ),
}
"""Values of the options that are not simply a word of their type."""
SPECIAL = ("--confidence", "--ray")
SECONDS = st.floats(10, 600_000).map(lambda s: round(s, 3))


@cache
def command_line_of(made: type[Command]) -> tuple[Any, list[Command]]:
    """The real command, and where it puts the options that it is called with."""
    got: list[Command] = []
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command(cls=DeclaredCommand)(command(made)(got.append))
    return typer.main.get_command(app), got


def parsed(made: type[Command], words: list[str]) -> Command:
    """The options that the real command line makes of ``words``."""
    line, got = command_line_of(made)
    got.clear()
    line.main(words, prog_name="mmrepro", standalone_mode=False)
    return got[0]


def value_of(one: DeclaredOption) -> st.SearchStrategy[Any]:
    option = one.option
    if option.read or one.name in SPECIAL:
        return READ.get(one.name, SECONDS)
    kind: st.SearchStrategy[Any]
    if get_origin(one.type) is Literal:
        kind = st.sampled_from(get_args(one.type))
    elif issubclass(one.type, Enum):
        kind = st.sampled_from(list(one.type))
    elif one.type is bool:
        kind = st.booleans()
    elif one.type is int:
        kind = st.integers(int(option.least or 0), int(option.most or 1 << 40))
    elif one.type is float:
        kind = st.floats(option.least or 0, option.most or 1e6)
    elif one.option.names in PLACES:
        # A number or an id of what lies here would be resolved.
        kind = PLAIN.map(lambda name: Path("there", name))
    else:
        kind = PLAIN.map(Path) if one.type is Path else TEXT
    if one.several:
        few = st.lists(
            kind, min_size=option.required, max_size=3, unique=option.distinct
        )
        return few.map(tuple)
    return kind


@st.composite
def made_up(draw: st.DrawFn, made: type[Command]) -> Command:
    values: dict[str, Any] = {}
    for one in declared(made):
        if one.option.required or draw(st.booleans()):
            values[one.field] = draw(value_of(one))
    try:
        return made(**values)
    except UsageError:  # options that cannot be combined
        return made(
            **{
                one.field: values[one.field]
                for one in declared(made)
                if one.option.required
            }
        )


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MMREPRO_")]:
        if name != "MMREPRO_CACHE_DIR":
            monkeypatch.delenv(name)


def all_words(options: Command) -> list[str]:
    """With those of one call, but not what is private."""
    once = {
        one.field: getattr(options, one.field)
        for one in declared(type(options))
        if one.option.once
    }
    return options.argv(**once)[len(options.COMMAND.split()) :]


@pytest.mark.parametrize("made", MADE, ids=lambda made: made.COMMAND)
@examples(
    15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_command_parsed_again_is_the_same_options(
    made: type[Command], data: st.DataObject
) -> None:
    options = data.draw(made_up(made))
    private = {one.field: one.default for one in declared(made) if one.option.private}
    options = replace(options, **private)
    assert parsed(made, all_words(options)) == options


@pytest.mark.parametrize("child", [(), ("src", "-x.py")])
@pytest.mark.parametrize("name", ["-", "-x", "x"])
def test_a_scenario_that_begins_with_a_dash_is_no_path_of_a_clone(
    name: str, child: tuple[str, ...], tmp_path: Path
) -> None:
    """What follows ``--`` are a bisection's paths, unless there is a second one."""
    options = BisectCommand(
        scenario=name, clone=tmp_path if child else None, child=child
    )
    assert parsed(BisectCommand, all_words(options)) == options


# ---------------------------------------------------------------- files and variables


def configurable(made: type[Command]) -> list[DeclaredOption]:
    return [
        one for one in declared(made) if one.configurable and not one.option.required
    ]


def needed(made: type[Command]) -> dict[str, Any]:
    """Values of the arguments that the command line may not leave out."""
    plain = {str: "x", Path: Path("x")}
    values: dict[str, Any] = {}
    for one in declared(made):
        if one.option.required:
            value = plain.get(one.type, "http")
            values[one.field] = (value,) if one.several else value
    return values


def typed(one: DeclaredOption, value: Any) -> Any:
    """``value`` as people write it in TOML."""
    if one.several:
        return [str(item) for item in value]
    if one.option.read or one.type is Path or isinstance(value, Enum):
        return one.option.write(value) if one.option.read else str(value)
    return value


@pytest.mark.parametrize(
    "made", [m for m in MADE if configurable(m)], ids=lambda m: m.COMMAND
)
@examples(
    10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_a_key_and_a_variable_say_what_the_option_says(
    made: type[Command], data: st.DataObject
) -> None:
    base = made(**needed(made))
    one = data.draw(st.sampled_from(configurable(made)))
    value = data.draw(value_of(one).filter(lambda v: v not in ("", ())))
    try:
        wanted = replace(base, **{one.field: value})
    except UsageError:  # not by itself
        return
    words = all_words(base)
    table = ".".join(["tool.mmrepro", *made.COMMAND.split()])
    config, key = Path("pyproject.toml"), one.key
    config.write_text(f"[{table}]\n{key} = {toml(typed(one, value))}\n", "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        if one.option.runs_code:  # such a file has to be named
            with pytest.raises(UsageError, match="decides which code runs"):
                parsed(made, words)
            patch.setenv("MMREPRO_CONFIG", str(config.resolve()))
        try:
            by_file = parsed(made, words)
        finally:
            config.unlink()
    assert by_file == wanted
    assert by_file.argv() == wanted.argv(), "it is repeated"
    if not one.variable:
        return
    said = json.dumps(value) if isinstance(value, bool) else str(typed(one, value))
    text = shlex.join(value) if one.several else said
    if not text.strip():
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(one.variable, text)
        assert parsed(made, words) == wanted


@pytest.mark.parametrize(
    ("command", "key", "value"),
    [
        ("diagnose", "scenario", ["evil.py"]),
        ("repro", "client", "sh evil.sh"),
        ("repro", "server", "vllm serve m --middleware evil.M"),
        ("repro", "env", ["PYTHONPATH=."]),
        ("replay", "ray", "evil.example:10001"),
        ("upgrade", "new-server", "--middleware evil.M"),
        ("run", "server-arg", ["--middleware=evil.M"]),
        ("run", "index", "http://evil.example/{commit}"),
        ("env create", "python", "./evil"),
    ],
)
def test_a_file_that_is_only_found_decides_on_no_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    key: str,
    value: object,
) -> None:
    """A stranger's folder may hold one; the current folder may lie below it."""
    (tmp_path / "mmrepro.toml").write_text(
        f"[{command.replace(' ', '.')}]\n{key} = {toml(value)}\n"
    )
    (below := tmp_path / "below").mkdir()
    monkeypatch.chdir(below)
    words = all_words(BY_NAME[command](**needed(BY_NAME[command])))
    with pytest.raises(UsageError, match="decides which code runs"):
        parsed(BY_NAME[command], words)


def toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def ablate(*words: str) -> Command:
    return parsed(BY_NAME["ablate"], ["x", *words])


def test_the_command_line_then_a_variable_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mmrepro.toml").write_text(
        'device = "cuda"\ntimeout = 60\n[ablate]\ntimeout = 90\nrepeat = 4\n[run]\n'
        "timeout = 1\n"
    )
    (below := tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.chdir(below)
    asked = ablate()
    assert (asked.device, asked.timeout_s, asked.repeat) == ("cuda", 90, 4)  # type: ignore[attr-defined]
    assert set(asked.origins.values()) == {OptionOrigin.FILE, OptionOrigin.WORD}
    monkeypatch.setenv("MMREPRO_DEVICE", "cpu")
    assert ablate().argv() == shlex.split(
        "ablate x --device cpu --timeout 90 --repeat 4"
    )
    again = ablate("--device", "auto", "--repeat", "1", "--timeout", "600")
    assert again.argv() == shlex.split(
        "ablate x --device auto --timeout 600 --repeat 1"
    ), "what is said against a file is said again"
    monkeypatch.setenv("MMREPRO_CONFIG", "")
    assert ablate().argv() == ["ablate", "x"], "as mmrepro starts its own commands"
    monkeypatch.setenv("MMREPRO_START_MODE", "cold")
    assert ablate().argv() == shlex.split("ablate x --start-mode cold"), (
        "it holds there as well"
    )


def test_folders_are_the_files_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.mmrepro.run]\nmodel = "models/m"\n')
    (below := tmp_path / "a").mkdir()
    (below / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.chdir(below)
    assert parsed(BY_NAME["run"], ["x"]).model == Path("../models/m")  # type: ignore[attr-defined]


def test_a_matrix_file_goes_before_it(tmp_path: Path) -> None:
    (tmp_path / "mmrepro.toml").write_text('device = "cuda"\nrepeat = 2\ntimeout = 9\n')
    night = tmp_path / "night.toml"
    night.write_text(
        '[matrix]\nrepeat = 5\n[[cell]]\nscenario = "a"\ndevice = "cpu"\n[[cell]]\n'
        'scenario = "b"\n'
    )
    made = BY_NAME["matrix run"]
    asked, file = parsed(made, ["night.toml"]).under(load(night))  # type: ignore[attr-defined]
    assert (file.matrix.device, file.matrix.repeat) == ("cuda", 5)
    assert [cell.device for cell in file.cell] == ["cpu", None]
    assert (asked.device, asked.repeat, asked.timeout) == (None, None, 9)
    said, file = parsed(made, ["night.toml", "--repeat", "3"]).under(load(night))  # type: ignore[attr-defined]
    assert said.repeat == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[tool.mmrepro]\nprofile = 1",
            "key 'profile' of [tool.mmrepro]: unknown key.",
        ),
        (
            "[tool.mmrepro.ablate]\nseed = 1",
            "key 'seed' of [tool.mmrepro.ablate]: unknown key of",
        ),
        ("[tool.mmrepro.ablate]\njson = true", "unknown key of mmrepro ablate"),
        (
            "[tool.mmrepro]\nrepeat = 'two'",
            "key 'repeat' of [tool.mmrepro] must be a whole number from",
        ),
        (
            "[tool.mmrepro]\nrepeat = true",
            "must be a whole number from 1 to 1000, not True",
        ),
        ("[tool.mmrepro]\nrepeat = 0", "key 'repeat' of [tool.mmrepro] must be"),
        ("[tool.mmrepro]\ndevice = 'tpu'", "must be one of auto, cpu, cuda, not 'tpu'"),
        ("[tool.mmrepro.abalte]\nrepeat = 1", "there is no command 'abalte'"),
        ("[tool.mmrepro", "is not valid TOML"),
        (
            f"[tool.mmrepro]\nrepeat = {'9' * 5000}",
            "is not valid TOML: Exceeds the limit",
        ),
        (f"[tool.mmrepro]\nrepeat = {'9' * 4000}", "a number of more than 63 bits"),
        (f"[tool.mmrepro]\n{'a.' * 20_000}b = 1", "a key of more than 20 parts"),
        (f"[tool.mmrepro]\nrepeat = {'[' * 3000}", "nested too deep"),
        (f"[tool.mmrepro]\nx = {'[' * 30}{']' * 30}", "nested too deep"),
        ("[tool.mmrepro]\n" + "[[rows]]\n" * 20_000, "more than 5,000 tables"),
        ("[tool.mmrepro]\nx = 0001-13-41", "is not valid TOML"),
    ],
)
def test_what_a_file_has_wrong_is_one_sentence(text: str, says: str) -> None:
    Path("pyproject.toml").write_text(text)
    with pytest.raises(UsageError) as raised:
        ablate()
    assert says in raised.value.message
    assert "pyproject.toml" in raised.value.message
    assert "\n" not in raised.value.message


def test_a_variable_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMREPRO_REPEAT", "two")
    with pytest.raises(UsageError, match=r"^MMREPRO_REPEAT must be a whole number"):
        ablate()
    monkeypatch.setenv("MMREPRO_CONFIG", "none.toml")
    with pytest.raises(
        UsageError, match=r"MMREPRO_CONFIG: there is no file none\.toml"
    ):
        ablate()


def test_help_asks_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mmrepro.toml").write_text("[")
    command_line_of(BY_NAME["ablate"])[0].main(["--help"], standalone_mode=False)
    assert "What to run:" in capsys.readouterr().out


OTHERS = (
    "CACHE_DIR",
    "CONFIG",
    "DEBUG",
    "GPU",
    "IMAGE",
    "MACHINES",
    "NEED",
    "NIGHT",
    "QUARANTINE",
    "RUN",
    "STAND_INS",
    "TOKEN",
    "TORCH_INDEX",
    "WARM_DIR",
    "WARM_IDLE",
)


def test_no_option_takes_a_variable_that_means_something_else() -> None:
    taken = {one.variable for made in MADE for one in declared(made)}
    assert taken.isdisjoint(f"MMREPRO_{name}" for name in OTHERS)


@pytest.mark.parametrize("name", ["full", "json", "quiet", "verbose", "yes"])
def test_what_every_command_has_is_off_until_it_is_asked_for(name: str) -> None:
    defaults = {
        made.COMMAND: one.default
        for made in MADE
        for one in declared(made)
        if one.field == name
    }
    assert defaults
    assert not [command for command, default in defaults.items() if default]


def test_every_command_declares_its_options() -> None:
    assert len(MADE) == len(list(functions()))
    assert len(BY_NAME) == len(MADE)


@pytest.mark.parametrize("name", ["replay", "fuzz"])
def test_a_clusters_address_is_in_no_command(name: str) -> None:
    server = ServerWanted(engine="vllm", release="0.23.0")
    line = replace(BY_NAME[name](), ray="192.0.2.1:6379", server=server).command_line()
    assert "--ray auto" in line
    assert "192.0.2.1" not in line


def test_what_mmrepro_starts_reads_no_file() -> None:
    Path("mmrepro.toml").write_text("[")
    assert spawn(["show", "ghost-key-eviction"], os.environ).wait(60) == 0
    with pytest.raises(UsageError, match="not valid TOML"):
        parsed(BY_NAME["show"], ["ghost-key-eviction"])


@pytest.mark.parametrize("name", ["run", "fuzz", "replay"])
@pytest.mark.parametrize(
    ("words", "args"),
    [
        ("--tensor-parallel-size 2", ("--tensor-parallel-size", "2")),
        ("--tp-size=2 --server-arg=--x", ("--tp-size=2", "--x")),
        ("-pp 2", ("-pp", "2")),
        ("--dp", ("--dp",)),
        ("--runner v2", ("{feature:runner-v2}",)),
        ("--runner=default -tp 2", ("{feature:runner-default}", "-tp", "2")),
    ],
)
def test_ranks_are_options_of_the_server(
    name: str, words: str, args: tuple[str, ...]
) -> None:
    made = next(f.options for f in functions() if name == f.options.COMMAND)
    seen: list[Any] = []
    app = typer.Typer()
    app.command(cls=DeclaredCommand)(command(made)(seen.append))
    first = [{"run": "thing", "fuzz": "vllm", "replay": "thing.har"}[name]]
    typer.main.get_command(app).main([*first, *words.split()], standalone_mode=False)
    assert seen[0].server_args == args


def test_the_words_of_another_command_stay_as_they_are() -> None:
    words = ["run", "--", "--tensor-parallel-size", "2"]
    assert [*_for_the_server(words)] == words
    made = BY_NAME["repro"](host="-tp")
    assert parsed(type(made), all_words(made)) == made


@pytest.mark.parametrize(
    ("line", "kind", "incomplete", "named"),
    [
        ("mmrepro run ghost-k", "scenario", "ghost-k", ["ghost-key-eviction"]),
        (
            "mmrepro run borrowed-faults:gh",
            "scenario",
            "borrowed-faults:gh",
            ["borrowed-faults:ghost-key-lru"],
        ),
        # bash takes a colon for a word of its own.
        ("mmrepro run borrowed-faults : kv", "scenario", "kv", ["kv-budget"]),
        (
            "mmrepro run ghost-key-eviction --mitigation d",
            "mitigation",
            "d",
            ["disable-mm-cache"],
        ),
        ("mmrepro run borrowed-faults --variant re", "variant", "re", ["reused-mask"]),
        ("mmrepro run --mitigation d", "mitigation", "d", []),
    ],
)
def test_a_shell_completes_what_a_scenario_has(
    line: str,
    kind: str,
    incomplete: str,
    named: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COMP_WORDS", line)
    assert _completion(kind)(incomplete) == named
