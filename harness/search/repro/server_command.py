"""A server's command as people write it, made into the server of a case.

The model becomes a tiny one, what needs a GPU is dropped, and each change is written
down. What a release's parser knows is read from its installed source; nothing is
imported."""

from __future__ import annotations

import ast
import json
import re
import shlex
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from mmrepro.base.errors import UsageError, did_you_mean
from mmrepro.base.machine import read_yaml
from mmrepro.base.text import names_a_secret
from mmrepro.engines import option_of
from mmrepro.engines.allowed import Allowed, allowed_of, is_option
from mmrepro.engines.folders import facts, folders, published
from mmrepro.engines.models import LLAMAS
from mmrepro.engines.serving import pools, serving
from mmrepro.engines.starts import GONE
from mmrepro.failure.documents.replay import Needs, Replaced
from mmrepro.search.repro.vocabularies import TOKEN_IDS, tokens_named
from packaging.version import InvalidVersion, Version

_LEAST_LENGTH, _MOST_LENGTH, _OF_PICTURES = 512, 32768, 2048
"""Tokens of a context: at least, at most (what the tiny models have), and for
pictures."""
MOST_NOTES = 40
"""What resembles an unknown option is searched for among hundreds: of more nobody reads
it."""
MOST_REPLACED = 100
"""Rows on what a command's options became: a report may hold thousands of them."""

# -------------------------------------------------------------------- what is asked for


@dataclass
class ServerAsked:
    """What a command asks for.

    Attributes:
        model: as it is written; "": none is.
        release: of an image's tag; "": the command names none.
        options: name with dashes: its values, in order.
        port: where it listens; None: at its default.
        unread: words that are neither an option nor the model.
    """

    engine: str
    model: str = ""
    release: str = ""
    options: list[tuple[str, list[str]]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    port: int | None = None
    unread: list[str] = field(default_factory=list)


@cache
def _serve_form(engines: tuple[str, ...]) -> re.Pattern[str]:
    """The form of what starts a server of one of ``engines``, or a container."""
    programs: list[str] = []
    modules: list[str] = []
    scripts: list[str] = []
    for engine in engines:
        server = serving(engine)
        modules += server.modules
        scripts += filter(None, [server.script])
        if server.program:
            name, *following = server.program
            programs.append(r"\s+".join([rf"{name}(?:@\S{{1,100}})?", *following]))
    ways = (
        rf"(?:{'|'.join(programs)})\b",
        rf"-m\s+(?:{'|'.join(modules)})\b",
        rf"(?:{'|'.join(scripts)})\b",
        r"(?:docker|podman|nerdctl)\s+run\b",
        r"(?:singularity|apptainer)\s+(?:run|exec)\b",
    )
    return re.compile(rf"(?:^|[\s;&|(/\"'`\[=!])(?:{'|'.join(ways)})")


@cache
def _image_form(engines: tuple[str, ...]) -> re.Pattern[str]:
    """The form of an image of one of ``engines``: a group of the engine's name, and
    the tag."""
    names: list[str] = []
    for engine in engines:
        image = serving(engine).image
        if image:
            names.append(f"(?P<{engine}>{image})")
    return re.compile(
        rf"^(?:[\w.:-]+/)*(?:{'|'.join(names)})(?::(?P<tag>[\w.-]+))?(?:@sha256:\w+)?$"
    )


def _image(word: str) -> re.Match[str] | None:
    word = word.removeprefix("docker://")
    if word.endswith(".sif"):  # as Singularity calls an image's file: NAME_TAG.sif
        word = Path(word).stem.replace("_", ":", 1)
    return _image_form(tuple(folders())).match(word)


@cache
def _package_form(engines: tuple[str, ...]) -> re.Pattern[str]:
    """The form of a package of one of ``engines``, with its release."""
    return re.compile(
        rf"\b({'|'.join(engines)})(?:\[[\w,]*\])?(?:==|@)v?"
        rf"({RELEASE})"
    )


RELEASE: Final = r"\d+\.\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc)\d+)?"
"""A release's number: of three parts, or of four."""
PROMPT: Final = re.compile(
    r"^[ \t]*(?:(?:\(\w+\)[ \t]*)?(?:PS[ \t]+)?(?:[A-Za-z]:[\\/][^>\n]{0,80}>"
    r"|[$%>][ \t])|"
    r"\(\w+\)[ \t]*\$[ \t]|(?:\([\w.-]+\)[ \t]*)?[\w.-]+@[\w.-]+:[^$#\n]{0,60}[$#][ \t]|!(?=\w)"
    r"|ExecStart=)[ \t]*"
)
"""What a shell, a notebook or a unit of systemd writes before a command."""
CONTINUED: Final = re.compile(r"(?:(?<![ \t])[ \t]*\\|[ \t][`^])[ \t]*\r?\n")
"""The end of a line that goes on: in a Unix shell, in PowerShell (`), in cmd (^)."""
_ARRAY: Final = re.compile(
    r"^[ \t]*(?:declare[ \t]+-a[ \t]+)?(\w+)\+?=\(([^)]{0,4000})\)", re.MULTILINE
)
_VERSION: Final = re.compile(rf"(?:^|vllm_)v?({RELEASE})")
_ASSIGNED: Final = re.compile(
    r"^(?:export\s+|set\s+|Environment=[\"']?|\$env:)?([A-Za-z_]\w*)\s?=\s?(.*)$",
    re.DOTALL,
)
_DOCKER_FLAGS: Final = frozenset(
    {
        "-d",
        "-i",
        "-t",
        "-it",
        "-ti",
        "-dit",
        "-itd",
        "-P",
        "--rm",
        "--detach",
        "--tty",
        "--interactive",
        "--init",
        "--privileged",
        "--read-only",
        "--no-healthcheck",
        "--nv",
        "--rocm",
        "--cleanenv",
        "--contain",
        "--containall",
        "--writable-tmpfs",
        "--no-home",
    }
)
_NO_MODEL: Final = "MODEL"
"""In a server's command that nobody wrote."""
_MODEL_NAMED: Final = re.compile(r"[\"']?\bmodel\b[\"']?\s*[:=]\s*[\"']([\w./-]+)[\"']")


def plain_command(engine: str, traffic: str) -> str:
    """A server without options, of the model that ``traffic`` names."""
    named = _MODEL_NAMED.search(traffic)
    model = named[1] if named else _NO_MODEL
    return serving(engine).plain.replace("{model}", model)


def is_server_command(text: str) -> bool:
    """Whether ``text`` starts one of the engines' servers."""
    served = _serve_form(tuple(folders())).search(text)
    if served is None:
        return False
    if {"run", "exec"}.isdisjoint(served[0].split()):
        return True
    return any(_image(word.strip("\"'")) for word in text.split())


def parse(text: str) -> ServerAsked:
    """Read a command: variables before it, ``export`` lines, continued lines, an image
    with its arguments. Raises UsageError: it is none that can be read, and why."""
    words, variables = _words(text)
    engine, rest, release, more = _engine(words, text)
    named = dict(_package_form(published()).findall(text))
    asked = ServerAsked(engine, release=release or named.get(engine, ""))
    used = {name for found in _USED.findall(text) for name in found}
    asked.env = {
        k: v for k, v in {**variables, **more}.items() if _is_for_server(k, used)
    }
    for option in allowed_of(engine).read(rest):
        written, values = option.words[0], list(option.values)
        if not is_option(written):
            _take_word(asked, written)
            continue
        if option.name in _SWITCHES and "=" not in written:
            for word in values:  # it takes none: what follows is the model
                _take_word(asked, word)
            values = []
        asked.options.append((option.name, values))

    _take_out(asked)
    return asked


_SWITCHES: Final = frozenset(
    {"--headless", "--use-ray", "--grpc", "--enable-ssl-refresh"}
)
"""Options that take no value, and before which a model may stand, beside the listed
ones."""


def _take_word(asked: ServerAsked, word: str) -> None:
    """A word that belongs to no option: the first one is the model."""
    if asked.model:
        asked.unread.append(word)
    asked.model = asked.model or word


def _words(text: str) -> tuple[list[str], dict[str, str]]:
    """Words of the command, and variables that were set before it."""
    for typed, meant in (
        ("[\u201c\u201d]", '"'),
        ("[\u2018\u2019]", "'"),
        ("(?<!\\S)[\u2013\u2014]-?", "--"),
    ):
        # As a text program changes what is pasted into it.
        text = re.sub(typed, meant, text)

    lists = {name: split_words(inside) for name, inside in _ARRAY.findall(text)}
    # An option taken out.
    joined = re.sub(rf"({CONTINUED.pattern})[ \t]*#[^\n]*\n", r"\1", text)
    joined = CONTINUED.sub(" ", joined)
    joined = re.sub(r"(?<!\s)\s+\\[ \t]*$", "", joined, flags=re.MULTILINE)
    variables: dict[str, str] = {}
    lines = [PROMPT.sub("", line) for line in joined.splitlines()]
    found_at = [n for n, line in enumerate(lines) if is_server_command(line)]
    typed_at = [n for n in found_at if not lines[n].startswith("#")]
    chosen = next(iter(typed_at or found_at), None)
    if chosen is None:
        raise UsageError(
            f"No server's command is in {' '.join(text.split())[:80]!r}.",
            hint=(
                '--server "vllm serve MODEL --flags …", or sglang, lmdeploy, docker run'
            ),
        )

    lines[chosen] = lines[chosen].lstrip("# ")  # root's prompt
    for line in lines[:chosen]:
        for part in re.split(r"\s*(?:;|&&)\s*", line.strip()):
            if found := _ASSIGNED.match(part):
                variables[found[1]] = _unquoted(found[2])

    try:
        # "2> file" has an output's number; "--seed 1 > file" has a value.
        whole = re.sub(r"(?<=\s)[12](?=>)", "", _whole(lines[chosen:]))
        lexer = shlex.shlex(whole, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        return _command_in(list(lexer), variables, lists), variables
    except ValueError as error:
        raise UsageError(f"The server's command cannot be read: {error}.") from error


_NO_QUOTE: Final = re.compile(r"(?:[^'\"\\#]|\\.)*+", re.DOTALL)
_QUOTED: Final = re.compile(r"'[^']*+'|\"(?:[^\"\\]|\\.)*+\"", re.DOTALL)


def _whole(lines: Sequence[str]) -> str:
    """As many lines as belong to the first one: a quote in it may go on for some."""
    text, at = "\n".join(lines), 0
    while True:
        line_end = text.find("\n", at)
        bare_end = _NO_QUOTE.match(
            text, at, len(text) if line_end < 0 else line_end
        ).end()  # type: ignore[union-attr]
        at = bare_end
        if at >= len(text) or text[at] in "\n#\\":
            ended = text.find("\n", at)
            return text if ended < 0 else text[:ended]
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            return text  # it is never closed, and that is told
        at = quoted.end()


def split_words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return text.split()


def _unquoted(text: str) -> str:
    try:
        return " ".join(shlex.split(text, comments=True)[:1])
    except ValueError:
        return text.strip()


def _command_in(
    words: list[str], variables: dict[str, str], lists: Mapping[str, Sequence[str]]
) -> list[str]:
    """The one simple command that starts the server; what is set before it goes to
    ``variables``. Raises UsageError: a variable in it is set nowhere."""
    commands: list[list[str]] = [[]]
    skip = False
    for word in words:
        if re.fullmatch(r"[;&|]+", word):
            commands.append([])
        elif re.fullmatch(r"&?[<>]+&?", word):
            skip = True
        elif skip:
            skip = False
        else:
            commands[-1].append(word)

    command = next((c for c in commands if is_server_command(" ".join(c))), commands[0])
    for other in commands:
        if other is command:
            break
        for word in other:
            if found := _ASSIGNED.match(word):
                variables[found[1]] = found[2]

    before = 0
    while before < len(command) and (found := _ASSIGNED.match(command[before])):
        variables[found[1]] = found[2]
        before += 1
    command = command[before:]
    expanded: list[str] = []
    letters = 0
    for word in command:
        words_of_it = _expanded(word, variables, lists)
        expanded += words_of_it
        letters += sum(map(len, words_of_it))
        if len(expanded) > _MOST_WORDS or letters > _MOST_LETTERS:
            raise UsageError(
                f"The server's command has more than {_MOST_WORDS:,} words."
            )

    return expanded


_MOST_WORDS, _MOST_LETTERS = 10_000, 1 << 18
"""Of a command, with its variables filled in."""


def _expanded(
    word: str, variables: Mapping[str, str], lists: Mapping[str, Sequence[str]]
) -> list[str]:
    if (found := re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", word)) and found[1] in lists:
        return [
            one for inner in lists[found[1]] for one in _expanded(inner, variables, {})
        ]
    pattern = r"\$(?:\{(\w+)(?::?-([^}]{0,1000}))?\}|(\w+))"
    filled = re.sub(pattern, lambda found: _variable(found, variables), word)
    if filled.lstrip().startswith("-") and re.fullmatch(pattern, word):
        return split_words(filled)  # options in one variable
    return [filled]


def _variable(found: re.Match[str], variables: Mapping[str, str]) -> str:
    name = found[1] or found[3]
    return variables.get(name, found[2] if found[2] is not None else found[0])


def _engine(words: list[str], text: str) -> tuple[str, list[str], str, dict[str, str]]:
    """Engine, its arguments, the release and variables of a container. Raises
    UsageError."""
    release, env = "", dict[str, str]()
    program = next((n for n, w in enumerate(words) if Path(w).name in _RUNNERS), None)
    if program is not None and words[program + 1 : program + 2] in (["run"], ["exec"]):
        engine, words, release, env = _in_image(words[program + 2 :])
        if words and not is_server_command(" ".join(words)):
            return engine, words[words[:1] == ["serve"] :], release, env

    if inner := next(
        (w for w in words if re.search(r"\s", w) and is_server_command(w)), ""
    ):
        words, set_before = _words(inner)  # of a shell: -c "…"
        env |= set_before

    names = [Path(word).name.partition("@")[0] for word in words]
    for at in range(len(names)):
        engine = _started_by_program(names, at)
        if engine:
            following = at + len(serving(engine).program)
            return engine, words[following:], release, env
        engine = _started_by_file(words[at])
        if engine:
            return engine, words[at + 1 :], release, env
        if words[at : at + 1] == ["-m"] and at + 1 < len(words):
            module, rest = words[at + 1], words[at + 2 :]
            engine = module.partition(".")[0]
            if module == "vllm.entrypoints.cli.main":
                rest = rest[1:]
            if module.endswith((".api_server", ".launch_server", ".server", ".main")):
                return engine, rest, release, env

    raise UsageError(f"No engine's server is in {' '.join(text.split())[:80]!r}.")


def _started_by_program(names: Sequence[str], at: int) -> str:
    """The engine whose own program is the word ``at`` and what follows; "": none."""
    for engine in folders():
        program = serving(engine).program
        if program and tuple(names[at : at + len(program)]) == program:
            return engine
    return ""


def _started_by_file(word: str) -> str:
    """The engine whose server a file starts, by the end of its path; "": none."""
    for engine in folders():
        script = serving(engine).any_script
        if script and re.search(rf"(?:^|/){script}$", word):
            return engine
    return ""


_RUNNERS: Final = frozenset({"docker", "podman", "nerdctl", "singularity", "apptainer"})


def _in_image(words: list[str]) -> tuple[str, list[str], str, dict[str, str]]:
    """Of ``docker run``: the engine, what follows the image, its release, and
    variables. Raises
    UsageError: there is no image of an engine."""
    env: dict[str, str] = {}
    for at, word in enumerate(words):
        if word in ("-e", "--env") and at + 1 < len(words):
            name, _, value = words[at + 1].partition("=")
            env[name] = value
        elif word.startswith(("-e=", "--env=")):
            name, _, value = word.partition("=")[2].partition("=")
            env[name] = value

        before = words[at - 1] if at else ""
        if before.startswith("-") and "=" not in before and before not in _DOCKER_FLAGS:
            continue  # the value of an option
        image = None if word.startswith("-") else _image(word)
        if image is not None:
            engine = _of_image(image)
            version = _VERSION.search(image["tag"] or "")
            return engine, words[at + 1 :], version[1] if version else "", env

    *titles, last = (facts(name).title for name in folders() if serving(name).image)
    raise UsageError(f"The container's image is none of {', '.join(titles)} or {last}.")


def _of_image(image: re.Match[str]) -> str:
    """The engine of an image: its group is the only one besides the tag's."""
    groups = image.groupdict()
    del groups["tag"]
    (engine,) = (name for name, matched in groups.items() if matched)
    return engine


_BARE: Final = re.compile(
    r"^([ \t]*(?:- )?(?:entrypoint|command|args):[ \t]+)(?![\[>|\"'])(\S.*)$",
    re.MULTILINE,
)
"""Words without quotes, which are no YAML where a colon is among them."""


def of_manifest(text: str) -> str:
    """The ``docker run`` of an image and its words in a compose file, or in a pod of
    Kubernetes; "": there is none of an engine."""
    if "image" not in text:
        return ""
    begin = re.search(r"^[ \t]*(?:- )?[\w\"'-]+:(?:\s|$)", text, re.MULTILINE)
    plain = textwrap.dedent(text[begin.start() if begin else 0 :])
    quoted = _BARE.sub(lambda found: found[1] + json.dumps(found[2]), plain)
    documents = read_yaml(plain) or read_yaml(quoted)
    for container in _containers(documents):
        if not _image(str(container["image"])):
            continue
        variables = container.get("environment") or container.get("env") or []
        if isinstance(variables, dict):
            variables = [f"{name}={value}" for name, value in variables.items()]
        pairs = [
            f"{v['name']}={v.get('value', '')}"
            if isinstance(v, dict) and "name" in v
            else str(v)
            for v in (variables if isinstance(variables, list) else [])
        ]
        words = [word for pair in pairs for word in ("-e", pair)] + [
            str(container["image"])
        ]
        for key in ("entrypoint", "command", "args"):
            given = container.get(key) or []
            listed = given if isinstance(given, list) else [given]
            words += (
                split_words(given) if isinstance(given, str) else _plain_words(listed)
            )
        return shlex.join(["docker", "run", *words])

    return _of_cut_manifest(plain)


def _plain_words(listed: Sequence[Any]) -> Iterator[str]:
    """Words of a list, of which an item may hold an option with its value."""
    for item in listed:
        word = "" if item is None else str(item)
        yield from split_words(word) if word.startswith("--") else [word] * bool(word)


_IMAGE_LINE: Final = re.compile(r"^[ \t]*image:[ \t]*[\"']?([^\s\"']+)", re.MULTILINE)
_FLOW_LIST: Final = re.compile(
    r"^[ \t]*(?:args|command):[ \t]*\[([^\]]{0,8000})", re.MULTILINE
)
_QUOTED_WORD: Final = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")


def _of_cut_manifest(text: str) -> str:
    """The same of a manifest whose end is cut off, with its words in brackets."""
    image, listed = _IMAGE_LINE.search(text), _FLOW_LIST.findall(text)
    if image is None or not listed or not _image(image[1]):
        return ""
    words = [
        double or single
        for one in listed
        for double, single in _QUOTED_WORD.findall(one)
    ]
    return shlex.join(["docker", "run", image[1], *words]) if words else ""


def listed_arguments(text: str) -> list[str]:
    """The words of a container's ``args`` that name a model, where the text has no
    image beside them; []: it has none."""
    begin = re.search(r"^[ \t]*(?:- )?(?:args|command):[ \t]*\n", text, re.MULTILINE)
    if begin is None or "--model" not in text:
        return []
    for document in read_yaml(textwrap.dedent(text[begin.start() :])):
        given = (
            next(iter(document.values()), None) if isinstance(document, dict) else None
        )
        words = [str(word) for word in given] if isinstance(given, list) else []
        if any(word.startswith("--model") for word in words):
            return words
    return []


def _containers(value: Any) -> Iterator[dict[str, Any]]:
    """Mappings with an image, anywhere in a document."""
    if isinstance(value, dict):
        if "image" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _containers(one)


def _take_out(asked: ServerAsked) -> None:
    """Model and port have fields of their own."""
    kept = []
    for name, values in asked.options:
        if name in ("--model", "--model-path", "--model-tag") and values:
            asked.model = values[0]
        elif name in ("--port", "--server-port"):
            if values and re.fullmatch(r"[0-9]{1,5}", values[0]):
                asked.port = int(values[0])
        else:
            kept.append((name, values))

    asked.options = kept


_ENGINES_OWN: Final = re.compile(r"^(?:VLLM|SGLANG|SGL|LMDEPLOY|TM)_")
_USED: Final = re.compile(r"\$(?:\{(\w+)|(\w+))|%(\w+)%")
"""A variable's value in a command: of a shell, of cmd."""


def _is_for_server(name: str, used: Collection[str]) -> bool:
    """Whether a variable is set for the server, and not for the shell that starts
    it."""
    if _ENGINES_OWN.match(name) or _ENV_OURS.match(name):
        return True
    return name.isupper() and name not in used


# ------------------------------------------------------------------- what is made of it

_SIZES: Final = "it sizes the memory of a GPU"
_MANY: Final = "it needs several GPUs"
_GPU: Final = "it needs a GPU"
_WEIGHTS: Final = "it is about the real model's weights"
_OURS: Final = "mmrepro sets it itself"
_OF_MODEL: Final = "it belongs to a model or a file that is not here"
_ALONE: Final = "the server is one on this machine, for this test"
_HARMLESS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "--gpu-memory-utilization",
            "--mem-fraction-static",
            "--cache-max-entry-count",
            "--kv-cache-memory-bytes",
            "--swap-space",
            "--num-gpu-blocks",
            "--max-total-tokens",
            "--cuda-graph-max-bs",
            "--cuda-graph-bs",
            "--max-cudagraph-capture-size",
            "--cudagraph-capture-sizes",
            "--cuda-graph-sizes",
            "--disable-cuda-graph-padding",
        ),
        _SIZES,
    ),
    **dict.fromkeys(
        (
            "--host",
            "--uds",
            "--server-name",
            "--served-model-name",
            "--model-name",
            "--backend",
            "--device",
            "--enforce-eager",
            "--eager-mode",
            "--disable-cuda-graph",
            "--log-level",
            "--uvicorn-log-level",
            "--disable-log-stats",
            "--enable-metrics",
            "--disable-log-requests",
            "--enable-log-requests",
            "--log-requests",
            "--log-requests-level",
            "--max-log-len",
            "--disable-uvicorn-access-log",
            "--disable-fastapi-docs",
            "--random-seed-port",
            "--nccl-port",
        ),
        _OURS,
    ),
    **dict.fromkeys(
        (
            "--api-key",
            "--api-keys",
            "--root-path",
            "--ssl-keyfile",
            "--ssl-certfile",
            "--ssl-ca-certs",
            "--allowed-origins",
            "--middleware",
            "--otlp-traces-endpoint",
            "--distributed-executor-backend",
            "--load-balance-method",
            "--watchdog-timeout",
            "--mm-encoder-tp-mode",
            "--data-parallel-backend",
            "--api-server-count",
            "--wait",
        ),
        _ALONE,
    ),
    **dict.fromkeys(
        (
            "--download-dir",
            "--hf-token",
            "--revision",
            "--tokenizer-revision",
            "--tokenizer",
            "--code-revision",
            "--load-format",
            "--tokenizer-path",
            "--weight-loader-disable",
            "--model-loader-extra-config",
            "--safetensors-load-strategy",
            "--hf-config-path",
            "--generation-config",
            "--ignore-patterns",
            "--use-tqdm-on-load",
        ),
        _WEIGHTS,
    ),
}
"""Options that are left out, and why; a failure of requests hardly hangs on them."""
_NEEDED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "--tensor-parallel-size",
            "--tp-size",
            "--pipeline-parallel-size",
            "--pp-size",
            "--data-parallel-size",
            "--dp-size",
            "--ep-size",
            "--enable-expert-parallel",
            "--data-parallel-size-local",
            "--data-parallel-rank",
            "--data-parallel-address",
            "--data-parallel-rpc-port",
            "--data-parallel-hybrid-lb",
            "--headless",
            "--nnodes",
            "--decode-context-parallel-size",
            "--prefill-context-parallel-size",
            "--node-rank",
            "--dist-init-addr",
            "--enable-dp-attention",
            "--enable-eplb",
            "--all2all-backend",
            "--enable-dbo",
            "--eplb-config",
            "--moe-a2a-backend",
            "--enable-dp-lm-head",
            "--tp",
            "--dp",
            "--ep",
            "--attn-dp-size",
            "--moe-dense-tp-size",
            "--attn-cp-size",
            "--cp",
        ),
        _MANY,
    ),
    **dict.fromkeys(
        (
            "--quantization",
            "--kv-cache-dtype",
            "--attention-backend",
            "--compilation-config",
            "--prefill-attention-backend",
            "--decode-attention-backend",
            "--sampling-backend",
            "--enable-torch-compile",
            "--cudagraph-mode",
            "--moe-runner-backend",
            "--moe-backend",
            "--enable-flashinfer-allreduce-fusion",
            "--enable-piecewise-cuda-graph",
            "--fp8-gemm",
            "--cpu-offload-gb",
            "--kv-offloading-size",
            "--enable-sleep-mode",
            "--quant-policy",
            "--mm-attention-backend",
            "--cuda-graph-config",
            "--cuda-graph-backend-decode",
            "--cuda-graph-backend-prefill",
            "--kernel-config",
            "--attention-config",
            "--calculate",
            "--enable-memory-saver",
            "--mamba-backend",
            "--linear-attn-backend",
            "--communication",
            "--enable-two-batch-overlap",
            "--enable-single-batch-overlap",
            "--model-format",
            "--nsa-prefill-backend",
            "--nsa-decode-backend",
            "--torchao-config",
            "--gdn-backend",
            "--enable-nccl-nvls",
            "--enable-symm-mem",
            "--enable-mscclpp",
            "--weight-transfer-config",
        ),
        _GPU,
    ),
    **dict.fromkeys(
        (
            "--kv-transfer-config",
            "--ec-transfer-config",
            "--disaggregation-mode",
            "--disaggregation-ib-device",
            "--disaggregation-transfer-backend",
            "--disaggregation-bootstrap-port",
            "--hicache-storage-backend",
            "--kv-events-config",
            "--role",
            "--migration-backend",
            "--proxy-url",
        ),
        "it needs further servers",
    ),
    **dict.fromkeys(
        (
            "--speculative-config",
            "--speculative-algorithm",
            "--speculative-draft-model-path",
            "--speculative-num-steps",
            "--speculative-eagle-topk",
            "--speculative-algo",
            "--speculative-num-draft-tokens",
            "--enable-lora",
            "--lora-modules",
            "--lora-paths",
            "--max-loras",
            "--max-lora-rank",
            "--max-loras-per-batch",
            "--lora-target-modules",
            "--adapters",
            "--hf-overrides",
            "--json-model-override-args",
            "--rope-scaling",
            "--rope-theta",
            "--tokenizer-mode",
            "--config-format",
            "--logits-processors",
            "--mamba-cache-dtype",
            "--mamba-ssm-cache-dtype",
            "--mamba-ssm-dtype",
            "--mamba-block-size",
            "--chat-template",
            "--tool-parser-plugin",
            "--model-impl",
            "--mamba-cache-mode",
            "--reasoning-parser-plugin",
            "--worker-extension-cls",
            "--config",
        ),
        _OF_MODEL,
    ),
}
"""Options that are left out, and on which a failure may hang: where nothing shows
without them, nothing is said of the report."""
_DEFAULTS: Final = frozenset({"1", "auto", "none", "None", "false", "False", "0"})
_LENGTHS: Final = (
    "--max-model-len",
    "--context-length",
    "--session-len",
    "--max-seq-len",
)
_ENV_OURS: Final = re.compile(
    r"^(?:CUDA_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|NCCL_\w+|HF_\w+"
    r"|HUGGING\w+|"
    r"TRANSFORMERS_\w+|TORCH\w*|PYTORCH_\w+|OMP_\w+|RAY_\w+|VLLM_LOGGING_LEVEL"
    r"|VLLM_CACHE_ROOT|"
    r"VLLM_USE_MODELSCOPE|SGLANG_USE_MODELSCOPE|VLLM_API_KEY|VLLM_NO_USAGE_STATS|"
    r"VLLM_WORKER_MULTIPROC_METHOD|VLLM_HOST_IP|VLLM_USE_V1|CUDA_\w+|VLLM_CPU_\w+)$"
)
_ENV_GPU: Final = re.compile(
    r"ATTENTION_BACKEND|FLASH|GEMM|ROCM|AITER|FP8|MXFP4|NVFP4|ALL2ALL|NCCL|CUDA|MARLIN"
    r"|CUTLASS|"
    r"TRITON|P2P|NIXL|MOONCAKE|MOE_BACKEND|TORCH_COMPILE|CUDAGRAPH"
)


_GRAMMAR: Final = re.compile(
    r"\b(?:response_format|guided_(?:json|choice|regex|grammar)|structured_outputs)\b"
    r"|\btool_choice\b[\"']?\s*[:=]\s*(?:[\"']required|\{)"
)
"""In a client's words: what masks a model's tokens."""


@dataclass(frozen=True)
class Translated:
    """What a case's server is made from.

    Attributes:
        notes: sentences, before the start.
    """

    model: str
    max_model_len: int
    args: tuple[str, ...]
    env: Mapping[str, str]
    replaced: tuple[Replaced, ...]
    notes: tuple[str, ...] = ()


def translated(
    asked: ServerAsked,
    known: Mapping[str, bool] | None,
    traffic: str,
    *,
    gpu: bool = False,
    serves: Callable[[str], bool] = lambda name: False,
    is_other: bool = False,
) -> Translated:
    """The server of a case.

    Args:
        known: options of the release, and whether each is a switch; None: not known.
        traffic: what is sent, as text: pictures in it ask for a model that sees them.
        serves: whether the release has an architecture, by its name.
        gpu: it runs on one, and keeps what asks for one.
        is_other: the release that is run is not the one of the command: options that
            it lacks would keep it from starting, and are left out.

    Raises:
        UsageError: an option's value is a variable that is set nowhere.
    """
    model, replaced, extra = _model(asked, traffic, serves)
    replaced += _gpu_backend_replaced(asked)

    args: list[str] = list(extra)
    length = needed = _needed(traffic)
    notes = [
        f"{word} in the server's command is not understood: left out."
        for word in asked.unread
    ]
    allowed = allowed_of(asked.engine)
    for written, values in asked.options:
        shown = " ".join([written, *values])
        name = _expanded_name(written, allowed, known or {})
        if name != written:
            notes.append(f"{written} is read as {name}, as the release's parser does.")
        value = values[0] if values else ""
        plain = name.partition(".")[0]  # --speculative-config.method
        if name in _LENGTHS:
            length = _tokens(value) or length
            most, why = _MOST_LENGTH, "the tiny model has no more positions"
            if not _ASKS_TOKENS.search(traffic):
                most = needed
                why = (
                    "random weights do not stop: an answer without max_tokens "
                    "fills the context"
                )

            if length > most:
                replaced.append(Replaced(what=shown, by=f"{name} {most}", why=why))
                length = most
            continue

        if plain in _HARMLESS:
            replaced.append(Replaced(what=shown, why=_HARMLESS[plain]))
            continue
        if plain in _NEEDED and not (gpu and _NEEDED[plain] == _GPU):
            if value not in _DEFAULTS:
                replaced.append(_left_out(shown, _NEEDED[plain]))
            continue

        if not gpu and name == "--dtype" and value in ("float16", "half"):
            replaced.append(
                Replaced(what=shown, why="a CPU computes in bfloat16 or float32")
            )
            continue
        if any(re.search(r"\$\{?\w", one) for one in values):
            raise UsageError(
                f"{shown} takes a variable that nothing sets here.",
                hint=f'--server "… {name} VALUE"',
            )
        if known and not _is_known(name, known) and len(notes) < MOST_NOTES:
            gone = GONE.get(asked.engine, {}).get(name, "")
            words = did_you_mean(name, known) if not gone else f" {gone.capitalize()}."
            notes.append(f"The release's parser does not have {name}.{words}")
        refusal = allowed.option_refusal(name, values) or _read_as_another(
            name, known or {}
        )
        if not refusal and is_other and known and not _is_known(name, known):
            why = "the release that is run does not have it"
            replaced.append(_left_out(shown, why, Needs.RELEASE))
            continue
        if refusal:
            replaced.append(_left_out(shown, refusal, Needs.TRUST))
            continue
        args += [name, *values]
    if not gpu and _GRAMMAR.search(traffic):
        args += _for_grammars(asked.engine, args)

    env = {}
    for name, value in asked.env.items():
        if name == "VLLM_USE_V1" and value == "0":
            why = "the engine before V1 is in no release that runs here"
            replaced.append(_left_out(f"{name}={value}", why, Needs.RELEASE))
        if names_a_secret(name) or _ENV_OURS.match(name):
            continue
        of_engine = _ENGINES_OWN.match(name) is not None
        refusal = allowed.variable_refusal(name, value)
        if not gpu and of_engine and _ENV_GPU.search(name):
            refusal = _GPU
        if refusal:
            # Of a variable that is no engine's, the name alone: its value may be
            # anything.
            what = f"{name}={value}" if of_engine else name
            needs = Needs.HARDWARE if refusal == _GPU else Needs.TRUST
            row = _left_out(what, refusal, needs)
            if not of_engine:
                row = Replaced(what=what, why=refusal)
            replaced.append(row)
        else:
            env[name] = value
    rows = _bounded(replaced)
    return Translated(model, length, tuple(args), env, rows, tuple(notes[:MOST_NOTES]))


def _for_grammars(engine: str, args: Sequence[str]) -> list[str]:
    """Options that a server on a CPU needs for grammars, but for those that the report
    has with a value of its own."""
    added: list[str] = []
    for option in serving(engine).grammar_on_cpu:
        given = option_of(args, option.partition("=")[0])
        if given in ("", "auto"):
            added.append(option)
    return added


def _left_out(what: str, why: str, needs: Needs | None = None) -> Replaced:
    """A row on what a failure may hang on."""
    if needs is None:
        needs = Needs.MODEL if why == _OF_MODEL else Needs.HARDWARE
    return Replaced(what=what, why=why, essential=True, needs=needs)


def _bounded(replaced: list[Replaced]) -> tuple[Replaced, ...]:
    """The first rows, and one that counts the others. It is essential where one of them
    is, so that a verdict is no surer than with all of them."""
    rows, others = replaced[:MOST_REPLACED], replaced[MOST_REPLACED:]
    if not others:
        return tuple(rows)
    last = Replaced(
        what=f"the rest ({len(others)} options and variables)",
        why=f"only the first {MOST_REPLACED} are listed",
        essential=any(row.essential for row in others),
        needs=_first_need(others),
    )
    return (*rows, last)


def _first_need(rows: Iterable[Replaced]) -> Needs | None:
    for row in rows:
        if row.needs is not None:
            return row.needs
    return None


def _expanded_name(written: str, allowed: Allowed, known: Iterable[str]) -> str:
    """The full name of an option. A server's parser takes abbreviations, so one is
    passed on by the only option of the release that it can be short for."""
    name, dot, key = written.partition(".")
    if not name.startswith("--") or name in known or _is_listed(name, allowed):
        return written
    longer = [option for option in known if option.startswith(name)]
    return longer[0] + dot + key if len(longer) == 1 else written


def _is_listed(name: str, allowed: Allowed) -> bool:
    left_out = name in _HARMLESS or name in _NEEDED
    return (
        left_out
        or allowed.is_flag(name)
        or name in {*allowed.options, *allowed.objects}
    )


def _read_as_another(name: str, known: Mapping[str, bool]) -> str:
    """Why an option that a release lacks may not be passed on: its parser would take
    the name for an abbreviation; "": it may."""
    plain = name.partition(".")[0]
    if _is_known(name, known):
        return ""
    longer = [option for option in known if option.startswith(plain)]
    return f"this release reads it as {min(longer)}" if longer else ""


_ASKS_TOKENS: Final = re.compile(
    r"max_(?:completion_|new_|output_)?tokens[\"']?\s*[:=]\s*(\d+)", re.IGNORECASE
)


_TIMES: Final = re.compile(r"[\"')\]]\s*\*\s*(\d{2,6})\b")
_OF_REPEATED = 16
"""Bytes of a text that a script repeats, about."""
_MOST_NODES: Final = 20_000


def _needed(traffic: str) -> int:
    """Tokens that prompts and answers in ``traffic`` take: the tiny models' tokens are
    bytes."""
    asked = max(
        (int(n) for n in _ASKS_TOKENS.findall(traffic) if len(n) < 8), default=0
    )
    pictures = _OF_PICTURES if _PICTURES.search(traffic) else 0
    repeated = _repeated(traffic)
    wanted = (
        min(_MOST_LENGTH, len(traffic) + asked + pictures + repeated)
        + _LEAST_LENGTH // 2
    )
    return min(_MOST_LENGTH, -(-wanted // _LEAST_LENGTH) * _LEAST_LENGTH)


def _repeated(traffic: str) -> int:
    """Bytes of the texts that a script makes by repeating others."""
    try:
        tree = ast.parse(traffic)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return sum(int(times) for times in _TIMES.findall(traffic)) * _OF_REPEATED

    numbers: dict[str, int] = {}
    texts: dict[str, int] = {}
    made = 0
    for node in list(ast.walk(tree))[:_MOST_NODES]:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)], value=ast.Constant(value=value)
            ):
                if isinstance(value, str):
                    texts[name] = len(value.encode())
                elif type(value) is int:
                    numbers[name] = value
            case ast.BinOp(op=ast.Mult(), left=left, right=right):
                times = _number(left, numbers) or _number(right, numbers)
                text = left if _number(right, numbers) else right
                made += times * _length(text, texts)
            case ast.comprehension(iter=ast.Call(func=ast.Name(id="range"), args=args)):
                made += max((_number(arg, numbers) for arg in args), default=0) * (
                    _OF_REPEATED
                )
    return min(made, _MOST_LENGTH)


def _number(node: ast.AST, known: Mapping[str, int]) -> int:
    """A whole number of an expression; 0: it is none that is written out."""
    match node:
        case ast.Constant(value=value) if type(value) is int:
            return min(max(value, 0), 1 << 20)
        case ast.Name(id=name):
            return min(max(known.get(name, 0), 0), 1 << 20)
    return 0


def _length(node: ast.AST, known: Mapping[str, int]) -> int:
    """Bytes of a text, or of those in a list; of another expression about as many."""
    match node:
        case ast.Constant(value=str(value)):
            return len(value.encode())
        case ast.Name(id=name) if name in known:
            return known[name]
        case ast.List(elts=elements):
            return sum(_length(element, known) + 1 for element in elements)
        case ast.Constant() | ast.BinOp():
            return 0
    return _OF_REPEATED


def _tokens(text: str) -> int | None:
    """``4096``, ``16k`` (thousands) and ``16K`` (of 1024), as vLLM's parser reads
    them."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmM]?)", text)
    if number is None:
        return None
    scale = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 1 << 20}[number[2]]
    return max(16, int(float(number[1]) * scale))


# ---------------------------------------------------------------------------- the model

_FAMILIES: Final = (
    (r"dots[._-]?ocr", "dots-ocr"),
    (
        (
            r"whisper|voxtral|ultravox|audio|parakeet|speech|-asr\b|kimi-audio"
            r"|musicflamingo"
        ),
        "",  # no tiny one
    ),
    (
        r"(?:^|[\W_]|\d)vl(?:$|[\W_]|\d)|vision|llava|pixtral|internvl|minicpm-?[vo]"
        r"|qwen3\.[5-9]|"
        r"gemma-?3(?!n|-1b|-270m)|gemma-?4|molmo|glm-?[45][.\d]*v|llama-?4|aya-vision"
        r"|multimodal|"
        r"mistral-small-3\.[12]|deepseek-ocr|paligemma|idefics|omni|vlm\b|ovis|nvila"
        r"|ocr",
        "qwen2-vl",
    ),
)
_POOLS: Final = re.compile(
    r"embed|bge-|\be5-|gte-|rerank|reward|colbert|jina|minilm|mpnet|roberta|\bbert\b",
    re.IGNORECASE,
)
_ASKS_TO_POOL: Final = re.compile(
    r"/embeddings\b|\.embeddings\.create\(|/(?:v[12]/)?(?:rerank|score|pooling|classify)\b"
)
_ASKS_FOR_TEXT: Final = re.compile(
    r"/completions\b|\.completions\.create\(|/generate\b"
)
"""In a client's words: what only a model that pools answers, and what none does."""
_PICTURES: Final = re.compile(
    r"\bimage_url\b|\binput_image\b|\bimage_data\b|data:image/|\bimages\b"
)
_LIKE_LLAMA: Final = (
    r"llama(?!-?4)|vicuna|internlm|yi-|alpaca|tulu|smollm|solar"
    r"|deepseek-r1-distill-llama"
)
_SAME: Final[Mapping[str, tuple[str, str]]] = {
    "text": ("a tiny Llama", _LIKE_LLAMA),
    "text-32k": ("a tiny Llama of 32,000 tokens", _LIKE_LLAMA),
    "text-152k": ("a tiny Llama of 152,064 tokens", _LIKE_LLAMA),
    "qwen2-vl": ("a tiny Qwen2-VL", r"qwen2(?:\.5)?-?vl"),
    "dots-ocr": ("a tiny dots.ocr", ""),
    "qwen3": ("a tiny Qwen3 that sees pictures", r"^$"),
    "qwen3-text": ("a tiny Qwen3", ""),
    "qwen3-moe": (
        "a tiny Qwen3 mixture of experts",
        r"qwen3(?![.\d]|-?(?:vl|omni|next)).*-a\d+b",
    ),
    "qwen3-next": ("a tiny Qwen3-Next", ""),
}
"""What each tiny model is, and the names of models with its architecture; "": all that
get it."""
_TEXTS: Final = (
    ("qwen3-next", r"qwen3-?next", "Qwen3NextForCausalLM"),
    ("qwen3-moe", r"qwen3(?![.\d]|-?(?:vl|omni|next)).*-a\d+b", "Qwen3MoeForCausalLM"),
    (
        "qwen3-text",
        r"qwen3(?![.\d]|-?(?:vl|omni|next|coder|asr))(?!.*-a\d+b)",
        "Qwen3ForCausalLM",
    ),
)
"""Tiny text models, names of models that they stand for, and the architecture."""
_TEXT_ALONE: Final = re.compile(
    r"(?:^|/)(?:"
    r"qwen[23](?:\.5)?-?(?:\d|coder|math|next|instruct)(?!.*(?:vl|omni|audio))"
    r"|(?:meta-)?llama-?[23]\b(?!.*vision)|tinyllama|smollm2?-"
    r"|deepseek-(?:v[23]|r1|coder|llm)|gpt-oss|gpt2|opt-\d|mixtral|mistral-7b|mistral-nemo"
    r"|phi-?(?:2|3-mini|3\.5-mini|4-mini-instruct)|kimi-k2|minimax-m[12]\b|granite-[34]"
    r")"
)
"""Names, in small letters, of models that take no pictures, as far as that is known."""
_EXPERTS: Final = re.compile(
    r"-a\d+(?:\.\d+)?b\b|mixtral|moe\b|deepseek-?(?:v[23]|r1$|r1-0)|kimi-k\d|gpt-oss"
    r"|glm-?(?:4\.[5-9]|5)|minimax-m|ling-|dbrx|grok|llama-?4|hunyuan-a|ernie-4\.5-\d+b-a",
    re.IGNORECASE,
)
"""Names of models that are mixtures of experts."""
_OF_EXPERTS: Final = ("qwen3-moe", "Qwen3MoeForCausalLM")


def _gpu_backend_replaced(asked: ServerAsked) -> list[Replaced]:
    """Take a backend that needs a GPU out of the options, and say what replaces it."""
    server = serving(asked.engine)
    given: list[str] = []
    for name, values in asked.options:
        if name == "--backend":
            given = values
            break
    if not server.cpu_backend or given == [server.cpu_backend]:
        return []

    asked.options = [option for option in asked.options if option[0] != "--backend"]
    what = " ".join(["--backend", *(given or [server.gpu_backend])])
    by = f"--backend {server.cpu_backend}"
    why = server.gpu_backend_why
    needs = Needs.HARDWARE
    return [Replaced(what=what, by=by, why=why, essential=True, needs=needs)]


_QUANTISED: Final = re.compile(
    r"(?:^|[-_.])(?:fp8|fp4|nvfp4|mxfp4|awq|gptq|int[48]|w\d+a\d+|bnb|4bit|8bit|gguf"
    r"|quantized)(?:$|[-_.])",
    re.IGNORECASE,
)
_FULL: Final = re.compile(r"bf16|fp16|unquantized", re.IGNORECASE)
"""Names of models whose weights are quantised, which no stand-in's are; and of those
whose are not."""


_EMBEDS: Final = re.compile(r"embed", re.IGNORECASE)


def _only_pools(name: str, traffic: str) -> bool:
    """Whether nobody names the model, and its requests are none of a language model."""
    if name not in ("", _NO_MODEL) or _ASKS_FOR_TEXT.search(traffic):
        return False
    return _ASKS_TO_POOL.search(traffic) is not None


def _with_tokens(count: int) -> str:
    """The smallest of the tiny Llamas that has so many tokens; else the largest."""
    for name, model in LLAMAS.items():
        if model.vocab_size >= count:
            return name
    return list(LLAMAS)[-1]


def _model(
    asked: ServerAsked, traffic: str, serves: Callable[[str], bool]
) -> tuple[str, list[Replaced], list[str]]:
    """The tiny model, what is said of it, and options that it needs."""
    name = asked.model
    lowered = name.lower()
    family = next(
        (t for pattern, t in _FAMILIES if re.search(pattern, lowered)), "text"
    )
    tiny = family or "text"
    # A text model that is sent a picture may be what the report is about.
    sees = tiny == "text" and not _TEXT_ALONE.search(lowered)
    if sees and _PICTURES.search(traffic):
        tiny = "qwen2-vl"
    # The tiny Llama has the largest vocabulary, and its width is tried.
    if tiny == "text" and not TOKEN_IDS.search(traffic):
        near = (
            t for t, form, built in _TEXTS if re.search(form, lowered) and serves(built)
        )
        tiny = next(near, tiny)
        mixture, architecture = _OF_EXPERTS
        is_mixture = _EXPERTS.search(lowered) and "next" not in lowered
        if tiny == "text" and is_mixture and serves(architecture):
            tiny = mixture

    server = serving(asked.engine)
    if server.tiny:
        tiny = server.tiny
    if tiny == "text":
        tiny = _with_tokens(tokens_named(traffic, name))
    kind, names = _SAME[tiny]
    same = bool(re.search(names, name, re.IGNORECASE))
    why = "random weights, of the same architecture" if same else "random weights"
    if name and not same:
        why = "random weights, of another architecture"
    if not family:
        why = "no tiny model reads audio"
    what = name or "the model"
    is_quantised = bool(_QUANTISED.search(name)) and not _FULL.search(name)
    given_words = [word for name, values in asked.options for word in (name, *values)]
    # Its pooler and its head are the real model's: a tiny language model has neither.
    given = {option for option, _ in asked.options}
    unsaid_pooling = (
        bool(_POOLS.search(name))
        or not given.isdisjoint(server.pooler_options)
        or _only_pools(name, traffic)
    )
    is_pooling = unsaid_pooling or pools(asked.engine, given_words)
    # A language model that is served as an embedding model runs the real one's code.
    is_served_alike = same and bool(_EMBEDS.search(name))
    lacks_head = is_pooling and not is_served_alike
    essential = not family or is_quantised or lacks_head
    if is_quantised:
        why += ", not quantised"
    if lacks_head:
        why += ", and no model that pools"
    replaced = [
        Replaced(
            what=what,
            by=kind,
            why=why,
            model=True,
            essential=essential,
            needs=Needs.MODEL if essential else None,
        ),
    ]
    extra = ["--trust-remote-code"] if tiny == "dots-ocr" else []
    if "--trust-remote-code" in given:
        extra = []
    kind_named = not given.isdisjoint(server.pooling_named)
    if server.pooling and unsaid_pooling and not kind_named:
        extra += server.pooling
        why = "the stand-in is served as such a model"
        replaced.append(Replaced(what="", by=" ".join(server.pooling), why=why))

    return tiny, replaced, extra


# ---------------------------------------------------------- what a release's parser has

_LITERAL: Final = re.compile(r"""["'](--[a-z][\w-]*)["']([^()]{0,200}?store_true)?""")
_FIELD: Final = re.compile(r"^ {4}([a-z]\w*) *: *(A\[)?(\w+)", re.MULTILINE)


@cache
def options_of(engine: str, packages: Path) -> Mapping[str, bool]:
    """Options of an engine's server, by the source of its parser, and whether each is a
    switch.

    Args:
        packages: the folder with the installed package (``site-packages``).

    Returns:
        Rather too many names than too few: {} where nothing could be read.
    """
    known: dict[str, bool] = {}
    for pattern in serving(engine).sources:
        for file in sorted((packages / engine).glob(pattern)):
            try:
                text = file.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            for name, switch in _LITERAL.findall(text):
                known[name] = known.get(name, False) or bool(switch)
            for name, _, kind in _FIELD.findall(text):
                option = "--" + name.replace("_", "-")
                known[option] = known.get(option, False) or kind == "bool"

    return known


@cache
def serves(engine: str, release: str, packages: Path, architecture: str) -> bool:
    """Whether an installed engine has an architecture, by its source, and a CPU serves
    it."""
    server = serving(engine)
    version, since = _version(release), server.tried.get(architecture)
    if version is None or since is None or version < Version(since):
        return False
    registry = packages / engine / server.registry
    try:
        return f'"{architecture}"' in registry.read_text(
            encoding="utf-8", errors="replace"
        )
    except OSError:
        return False


def _is_known(name: str, known: Mapping[str, bool]) -> bool:
    plain = name.partition(".")[0]
    if not known or not plain.startswith("--"):
        return True
    # One field makes several names: --no-enable-lora, and since vLLM 0.33
    # --disable-lora.
    negations = (
        ("--no-", "--"),
        ("--disable-", "--enable-"),
        ("--enable-", "--disable-"),
    )
    names = (plain.replace(negation, plainly, 1) for negation, plainly in negations)
    return plain in known or any(name in known for name in names)


# ----------------------------------------------------------------------------- releases


def release_here(engine: str, wanted: str, here: Iterable[str]) -> tuple[str, str]:
    """The release that is run of those that are ``here``, and a sentence; ("", ""):
    none is.

    ``wanted`` itself, else the nearest one before it of the same minor release, else
    the nearest. ``wanted`` "": the newest."""
    versions = sorted(v for v in map(_version, here) if v is not None)
    if not versions:
        return "", ""
    if not wanted:
        return str(
            versions[-1]
        ), f"No release is named: the newest one here, {versions[-1]}, is run."

    asked = _version(wanted)
    if asked is None:
        raise UsageError(f"{wanted!r} is not a release of {engine}.")
    if asked in versions:
        return str(asked), ""

    def distance(one: Version) -> tuple[int, ...]:
        parts = zip(_three(one), _three(asked), strict=True)
        return (*(abs(a - b) for a, b in parts), one > asked)

    nearest = min(versions, key=distance)
    said = (
        f"{engine} {wanted} is not installed here: {nearest}, the nearest one that is, "
        "is run."
    )
    return str(nearest), f"{said} --release {wanted} installs it."


def _three(version: Version) -> Sequence[int]:
    return (*version.release, 0, 0, 0)[:3]


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None
