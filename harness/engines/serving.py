"""How people start an engine's server, as its ``serving.toml`` has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from mmrepro.engines.folders import folders, made_of, table


@dataclass(frozen=True)
class UpstreamTests:
    """How the engine's own tests start a server.

    Attributes:
        manner: the part of ``upstream_test.py.j2`` that is for it; "": not known.
        folder: where such a test lies in its tree; "": anywhere.
        utils: our file (``reproducers/``) that replaces the tests' own ``utils.py``,
            which wheels do not have.
        lent: what to say of that replacement.
        tools: requirements of what its tests import and no environment has.
        preload: modules that all trees share, imported once.
    """

    tools: tuple[str, ...] = ("pytest", "pytest-asyncio", "pytest-timeout")
    preload: tuple[str, ...] = ("torch", "transformers")
    manner: str = ""
    folder: str = ""
    utils: str = ""
    lent: str = ""


@dataclass(frozen=True)
class ServingFacts:
    """What is known of an engine's server, without starting it.

    Attributes:
        command: what a person types; ``{model}``, ``{length}`` and ``{port}`` are
            filled in. (): ``ENGINE --model MODEL --port PORT``.
        plain: a command without options; ``{model}`` is filled in.
        install: the line that makes the engine available; "": ``pip install``.
        program: how a command line begins that starts it by its own program.
        modules: expressions of modules that start it, as in ``python -m MODULE``.
        script: expression of the files that start it, as commands have them.
        any_script: the same of all releases' files, where a command is known to start
            a server.
        image: expression of the names of its images.
        usage: expression of what argparse calls its program.
        port: where it listens by default; None: not known.
        length_option: the option with the longest prompt and answer.
        cpu_options: options that mmrepro gives it because there is no GPU.
        subcommand: words between the module and its ``--help``.
        helps: options that print its options; the first one that lists some counts.
        sources: files of the installed package that have its options.
        cpu_backend: the only ``--backend`` that needs no GPU; "": there is no choice.
        gpu_backend: the ``--backend`` of a command that names none.
        gpu_backend_why: why that one is replaced.
        tiny: the only tiny model that it serves; "": any.
        pooling: options that make it serve a model that pools.
        pooling_named: options that name a model's kind, so that none is added.
        pooler_options: options that only a model that pools has a use for.
        pools: expression of a command's options with which its model pools.
        grammar_on_cpu: options without which a grammar ends a server on a CPU.
        registry: the file of the installed package that lists its architectures.
        tried: architectures, and its first release of which a CPU is known to serve
            them.
        tests: how its own tests start a server.
        batch: expression of what answers a file of requests without a server; the
            options of that are the server's.
        batch_input, batch_output: options with the files of such a batch.
        clients: expression of its own programs that ask a server.
        benchmark: expression of its own benchmarks of a server.
        logged_options: what its log prints before the options that were given, as a
            mapping of Python.
    """

    command: tuple[str, ...] = ()
    plain: str = ""
    install: str = ""
    program: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    script: str = ""
    any_script: str = ""
    image: str = ""
    usage: str = ""
    port: int | None = None
    length_option: str = ""
    cpu_options: tuple[str, ...] = ()
    subcommand: tuple[str, ...] = ()
    helps: tuple[str, ...] = ("--help",)
    sources: tuple[str, ...] = ()
    cpu_backend: str = ""
    gpu_backend: str = ""
    gpu_backend_why: str = ""
    tiny: str = ""
    pooling: tuple[str, ...] = ()
    pooling_named: tuple[str, ...] = ()
    pooler_options: tuple[str, ...] = ()
    pools: str = ""
    grammar_on_cpu: tuple[str, ...] = ()
    registry: str = ""
    tried: Mapping[str, str] = field(default_factory=dict)
    tests: UpstreamTests = UpstreamTests()
    batch: str = ""
    batch_input: tuple[str, ...] = ()
    batch_output: tuple[str, ...] = ()
    clients: str = ""
    benchmark: str = ""
    logged_options: str = ""

    def typed(self, engine: str, model: str, length: str, port: str) -> list[str]:
        """The words that a person types to have the server."""
        if not self.command:
            return [engine, "--model", model, "--port", port]
        given = {"{model}": model, "{length}": length, "{port}": port}
        return [given.get(word, word) for word in self.command]


def pools(engine: str, args: Sequence[str]) -> bool:
    """Whether a server with these options has a model that pools: it answers no chat,
    and some end by one."""
    form = serving(engine).pools
    return bool(form and re.search(form, " ".join(args)))


def default_ports() -> Iterator[int]:
    """Yield where servers of the engines listen by default."""
    for engine in folders():
        port = serving(engine).port
        if port is not None:
            yield port


@cache
def serving(engine: str) -> ServingFacts:
    """How ``engine``'s server is started; the common way where its folder says
    nothing."""
    row = dict(table(engine, "serving.toml"))
    row["tests"] = made_of(UpstreamTests, row.get("tests", {}))
    return made_of(ServingFacts, row)
