"""What a report or a case of others may set of a server: no more than the list of its
engine.

``server_options`` holds the options of four releases, as their own parsers print them;
tests/engine/test_server_options.py holds it against the parsers.
"""

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES, get_engine
from mmrepro.engines.allowed import Allowed
from mmrepro.engines.dialects import dialect_of
from mmrepro.engines.features import features
from mmrepro.search.replay.bisected import subject
from mmrepro.search.replay.known import server_wanted
from mmrepro.search.repro.server_command import (
    ServerAsked,
    Translated,
    parse,
    translated,
)
from mmrepro.traffic.case.files import read_case

RECORDED = sorted((Path(__file__).parent / "server_options").glob("*.txt"))
FOUND = sorted((Path(__file__).parents[2] / "docs" / "found").glob("*/case.json"))
STARTS = {
    "vllm": "vllm serve m/m",
    "sglang": "python -m sglang.launch_server --model-path m/m",
    "lmdeploy": "lmdeploy serve api_server m/m --backend pytorch",
}
REACHES_OUT = re.compile(
    r"(?<!per-)path|dir$|folder|file|host|-ports?$|url|addr|uds|ssl|-cls$|plugin|hook"
    r"|middleware|token$|"
    r"api-key|endpoint|socket|-ip$|origin|headers|methods|credentials|loader"
    r"|logits-processors|"
    r"connector-?config|profiler|tool-server|domains|sidecar|ray|remote-instance"
    r"|class-overrides|"
    r"chat-template$|completion-template|download|dump|revision|tokenizer$|override"
    r"|serialization|"
    r"^--config$|trace|otlp|trust-request"
)
"""Names of options that lead out of the server: to files, addresses, classes, other
programs."""
HARMLESS_NAMES = {
    "--override-generation-config",
    "--override-attention-dtype",
    "--trust-remote-code",
    "--speculative-draft-model-path",
    "--enable-tokenizer-info-endpoint",
    "--enable-request-id-headers",
    "--num-gpu-blocks-override",
    "--enable-dynamic-batch-tokenizer",
}
"""Of those by name, what takes names and numbers alone, or the tiny model's own
files."""
BAD = (
    "/etc/passwd",
    "../up",
    "~/x",
    "./x",
    "a/b",
    "C:\\x",
    "http://10.1.2.3/",
    "10.1.2.3:80",
    "localhost:1",
    "os:system",
    "pkg.mod",
    "pkg.mod:fn",
    "pkg.mod.Cls",
    "@file",
    "$(id)",
    "`id`",
    "a b",
    "a;b",
    "--host",
    "-x",
    "",
    "x" * 100,
    "{run-tmp}/../x",
    "{tiny:../x}",
    "\n",
    "a=/b",
    '{"a": "/b"}',
    "[1",
    "{" * 5000,
)


def recorded(file: Path) -> tuple[str, dict[str, str]]:
    """Engine, and of each option how many words it takes."""
    options = {}
    for line in file.read_text().splitlines():
        takes, *names = line.split()
        options |= dict.fromkeys(names, takes)
    return file.name.partition("-")[0], options


def listed(allowed: Allowed) -> set[str]:
    return {*allowed.options, *allowed.objects}


def abbreviations(name: str) -> Iterator[str]:
    yield from (name[:end] for end in range(3, len(name)))


def of_report(
    engine: str, words: list[str], known: dict[str, bool] | None = None
) -> Translated:
    return translated(
        parse(f"{STARTS[engine]} {shlex.join(words)}"), known, "", gpu=True
    )


def names_in(args: tuple[str, ...]) -> set[str]:
    return {word.partition(".")[0] for word in args if word.startswith("-")}


# ------------------------------------------------------------ the releases' own options


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_of_a_releases_options_only_listed_ones_are_passed_on(file: Path) -> None:
    engine, options = recorded(file)
    allowed = get_engine(engine).allowed
    known = {name: takes == "flag" for name, takes in options.items()}
    assert len(options) > 70
    names = {name for option in options for name in (option, *abbreviations(option))}
    kept: set[str] = set()
    for values in ([], ["1"]):
        given = [(allowed.full_name(name), values) for name in sorted(names)]
        made = translated(
            ServerAsked(engine, "m/m", options=given), known, "", gpu=True
        )
        kept |= names_in(made.args)
    kept -= {"--backend"}
    assert len(kept) > 30
    for name in kept:
        bare = name.replace("--no-", "--", 1)
        assert {name, bare} & listed(allowed), f"{name} is not listed"
        assert name in options, "an abbreviation is never passed on"
        assert bare in HARMLESS_NAMES or not REACHES_OUT.search(bare), name


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_no_listed_name_is_short_for_an_unlisted_option(file: Path) -> None:
    """The release is not installed yet, or a case names the options: nothing is known
    of it."""
    engine, options = recorded(file)
    allowed = get_engine(engine).allowed
    parser = Abbreviating(add_help=False)
    for option, takes in options.items():
        parser.add_argument(
            option, dest=option, nargs=0 if takes == "flag" else "*", action=Seen
        )
    for name in listed(allowed) | {f"--no-{n[2:]}" for n in listed(allowed)}:
        if (
            allowed.option_refusal(name, [])
            == "it is not among the options that others may set"
        ):
            continue
        try:
            read, _ = parser.parse_known_args([name])
        except ValueError:
            continue  # ambiguous: the server does not start
        for seen in [one for one, value in vars(read).items() if value]:
            full = allowed.full_name(seen).replace("--no-", "--", 1)
            assert full in listed(allowed), f"{name} is read as {seen}"


class Abbreviating(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


class Seen(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None) -> None:  # type: ignore[no-untyped-def]
        setattr(namespace, self.dest, True)


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_a_listed_option_takes_as_many_values_as_the_release_has_for_it(
    file: Path,
) -> None:
    engine, options = recorded(file)
    words = {
        "flag": "flag",
        "integers": "values",
        "words": "values",
        "adapters": "values",
    }
    for name, kind in get_engine(engine).allowed.options.items():
        if name in options:
            assert options[name] == words.get(kind, "value"), name


# ---------------------------------------------------------------- how it is written

DANGEROUS = {
    "vllm": [
        "--host 0.0.0.0",
        "--uds /tmp/s",
        "--middleware os.system",
        "--worker-cls a.B",
        "--worker-extension-cls a.B",
        "--scheduler-cls a.B",
        "--log-config-file /x",
        "--tool-parser-plugin /x.py",
        "--reasoning-parser-plugin /x.py",
        "--tool-server a:1",
        "--profiler-config {}",
        "--chat-template /x",
        "--logits-processors a:b",
        "--config /x",
        "--io-processor-plugin x",
        "--download-dir /x",
        "--allowed-local-media-path /",
        "--allowed-media-domains x.org",
        "--ssl-keyfile /x",
        "--root-path /x",
        "--hf-token x",
        "--distributed-executor-backend a.B",
        "--otlp-traces-endpoint http://x",
        "--model /x",
        "--tokenizer /x",
        "--hf-config-path /x",
        "--additional-config {}",
        "--load-format x",
        "--logging-config {}",
        "--model-class-overrides {}",
        "--mm-encoder-fp8-scale-path /x",
        "--trust-request-chat-template",
        "--trust-request-mm-kwargs",
        "--master-addr 10.0.0.1",
        "--kv-events-config {}",
        "--weight-transfer-config {}",
        "--default-mm-loras {}",
    ],
    "sglang": [
        "--host 0.0.0.0",
        "--forward-hooks []",
        "--custom-weight-loader a.b",
        "--config /x",
        "--file-storage-path /x",
        "--crash-dump-folder /x",
        "--sidecar x",
        "--chat-template /x",
        "--hicache-storage-backend-extra-config {}",
        "--log-requests-target /x",
        "--tool-server x",
        "--debug-tensor-dump-output-folder /x",
        "--lmcache-config-file /x",
        "--json-model x",
        "--export-metrics-to-file-dir /x",
        "--decrypted-config-file /x",
        "--dist-init-addr x:1",
        "--weight-cache-socket /x",
        "--speculative-token-map /x",
        "--init-expert-location /x",
        "--enable-custom-logit-processor",
        "--model-impl x",
        "--quantization-param-path /x",
    ],
    "lmdeploy": [
        "--server-name 0.0.0.0",
        "--chat-template /x",
        "--proxy-url http://x",
        "--api-keys x",
        "--download-dir /x",
        "--ssl",
        "--allow-terminate-by-client",
        "--hf-overrides {}",
        "--generation-config /x",
        "--dist-init-addr x:1",
        "--kv-transfer-config {}",
    ],
}


def forms(text: str) -> Iterator[list[str]]:
    name, _, value = text.partition(" ")
    values = [value] if value else []
    yield [name, *values]
    yield [f"{name}={value or 1}"]
    yield [name.replace("-", "_").replace("__", "--", 1), *values]
    yield ["--max-num-seqs", "2", name, *values, name, *values]
    yield [f"{name}.key", value or "1"]
    yield [f"{name}.a.b+={value or 1}"]
    for short in abbreviations(name):
        yield [short, *values]


DANGERS = [(engine, text) for engine, texts in DANGEROUS.items() for text in texts]


@pytest.mark.parametrize(("engine", "text"), DANGERS, ids=[text for _, text in DANGERS])
def test_what_leads_out_of_the_server_is_never_passed_on(
    engine: str, text: str
) -> None:
    allowed = get_engine(engine).allowed
    value = text.partition(" ")[2]
    for words in forms(text):
        made = of_report(engine, words)
        bare = {name.replace("--no-", "--", 1) for name in names_in(made.args)}
        assert bare <= listed(allowed)
        # An abbreviation may be a listed option by itself: --model-impl and --mode.
        assert not value or value == "x" or value not in made.args
        refused = allowed.refused(words, {})
        assert refused, words


@pytest.mark.parametrize(
    "words",
    [
        ["@file"],
        ["--max-num-seqs=2", "@/etc/passwd"],
        ["--"],
        ["-"],
        ["m/m"],
        ["--enable-lora=1"],
        ["--enable-lora", "stray"],
        ["--no-max-num-seqs"],
        ["--HOST", "x"],
        ["--max-num-seqs"],
        ["--max-num-seqs", "2", "3"],
        ["--max-num-seqs=2=3"],
        ["-tp8"],
        ["--speculative-config.model", "/x"],
        ["--speculative-config.model=a/b"],
        ["-sc.model", "/x"],
        ["-sc", '{"method": "ngram", "model": "a/b"}'],
        ["-sc", "{bad"],
        ['--speculative-config={"method": "x.y"}'],
        ["-sc", '{"method": ["ngram"]}'],
        ["-sc", '{"method": {"ngram": "/x"}}'],
        ["-sc", '{"method": 100}'],
        ["--speculative-config.method.x=1"],
        ["--compilation-config.debug_dump_path", "/x"],
        ["-O.cache_dir=/x"],
        ["-cc.backend=a.b"],
        ["-O", '{"cache_dir": "/x"}'],
        ["-O3", "5"],
        ["-O4"],
        ["-Olevel"],
        ["--mm-processor-kwargs", '{"cache_dir": "/x"}'],
        ["--limit-mm-per-prompt", '{"a": "b"}'],
        ["--structured-outputs-config.reasoning_parser_plugin", "/x.py"],
        [
            "--kv-transfer-config",
            '{"kv_connector": "X", "kv_connector_module_path": "a.b"}',
        ],
        ["--lora-modules", "a=/x"],
        ["--lora-modules", '{"name": "a", "path": "/x"}'],
        ["{feature:none-such}"],
        ["--spec-model", "{tiny:none-such}"],
    ],
)
def test_what_is_no_listed_option_with_a_fitting_value_is_refused(
    words: list[str],
) -> None:
    assert get_engine("vllm").allowed.refused(words, {})


@pytest.mark.parametrize(
    "words",
    [
        ["--max_model_len", "1k"],
        ["--max-model-len=auto"],
        ["-tp", "2"],
        ["-O3"],
        ["-O", "3"],
        ["-O.level=3"],
        ["-cc.cudagraph_mode", "PIECEWISE"],
        ["--seed", "-1"],
        ["--no-enable-lora"],
        ["-sc", '{"method": "ngram", "num_speculative_tokens": 3}'],
        ["-sc.method=ngram"],
        ["--speculative_config.prompt_lookup_max", "4"],
        ["--limit-mm-per-prompt", "image=2"],
        ["--limit-mm-per-prompt", '{"image": 2, "video": {"count": 1}}'],
        ["--cudagraph-capture-sizes", "1", "2", "4"],
        ["--gpu-memory-utilization", "0.9"],
        ["--tool-call-parser", "qwen3_coder", "--enable-auto-tool-choice", "--seed=1"],
        ["--default-chat-template-kwargs", '{"enable_thinking": false}'],
        ["--lora-modules", "a={tiny:lora-a}", "b={tiny:lora-b}"],
        ["{feature:ngram}"],
    ],
)
def test_what_is_listed_is_taken_however_it_is_written(words: list[str]) -> None:
    assert get_engine("vllm").allowed.refused(words, {}) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_no_option_or_variable_takes_a_path_an_address_or_a_class(engine: str) -> None:
    allowed = get_engine(engine).allowed
    assert allowed.options
    for value in BAD:
        for name in listed(allowed):
            assert allowed.option_refusal(name, [value]), (name, value)
        for name in allowed.variables:
            assert allowed.variable_refusal(name, value), (name, value)


def test_no_key_of_an_object_takes_a_path_an_address_or_a_class() -> None:
    def keys(wanted: dict[str, object], path: str) -> Iterator[str]:
        for key, inner in wanted.items():
            yield f"{path}.{key}"
            if isinstance(inner, dict):
                yield from keys(inner, f"{path}.{key}")

    for engine in ENGINES:
        allowed = get_engine(engine).allowed
        for name, wanted in allowed.objects.items():
            for path in keys(dict(wanted), name):
                for value in BAD:
                    assert allowed.option_refusal(path, [value]), (path, value)
                    *_, key = path.split(".")
                    if path == f"{name}.{key}":
                        assert allowed.option_refusal(
                            name, [json.dumps({key: value})]
                        ), path


@pytest.mark.parametrize(
    "value", ["9" * 40, "-0.5", "nan", "inf", "1e999", "1,2", "0x10", "\u0663", "1_0"]
)
def test_a_number_is_one_that_an_engine_can_have(value: str) -> None:
    for engine in ENGINES:
        allowed = get_engine(engine).allowed
        for name, kind in allowed.options.items():
            if kind in ("integer", "number"):
                assert allowed.option_refusal(name, [value]), (name, value)


# ---------------------------------------------------------------- reports


def test_an_abbreviation_is_read_as_the_one_option_that_it_is_short_for() -> None:
    known = {
        "--max-num-seqs": False,
        "--worker-cls": False,
        "--max-num-batched-tokens": False,
    }
    made = of_report(
        "vllm", ["--max-num-s", "2", "--worker-c", "a.B", "--max-num", "3"], known
    )
    assert made.args == ("--max-num-seqs", "2")
    assert [one.what for one in made.replaced if one.essential] == [
        "--worker-c a.B",
        "--max-num 3",
    ]
    assert "--max-num-s is read as --max-num-seqs" in made.notes[0]


def test_a_listed_name_that_a_release_has_only_as_an_abbreviation_is_left_out() -> None:
    made = of_report("vllm", ["--seed", "1"], {"--seed-file": False})
    assert not {"--seed", "--seed-file"} & {*made.args}
    assert [one.what for one in made.replaced if one.essential] == ["--seed 1"]


def test_what_is_left_out_of_a_report_stands_in_its_verdict() -> None:
    text = (
        "PYTHONPATH=/x LD_PRELOAD=/x.so VLLM_LOGGING_CONFIG_PATH=/x VLLM_PLUGINS=a "
        "VLLM_ALLOW_INSECURE_SERIALIZATION=1 VLLM_LOG_STATS_INTERVAL=/x "
        "VLLM_MAX_N_SEQUENCES=4 "
        "vllm serve m/m --hos 0.0.0.0 --max-num-seqs 2"
    )
    made = translated(parse(text), None, "")
    assert (made.args, dict(made.env)) == (
        ("--max-num-seqs", "2"),
        {"VLLM_MAX_N_SEQUENCES": "4"},
    )
    told = {one.what: one.essential for one in made.replaced if not one.model}
    assert told == {
        "PYTHONPATH": False,
        "LD_PRELOAD": False,
        "VLLM_LOGGING_CONFIG_PATH=/x": True,
        "VLLM_PLUGINS=a": True,
        "VLLM_ALLOW_INSECURE_SERIALIZATION=1": True,
        "VLLM_LOG_STATS_INTERVAL=/x": True,
        "--hos 0.0.0.0": True,
    }


def test_a_variable_of_the_shell_is_not_left_out_of_the_server() -> None:
    made = translated(
        parse("MODEL=m/m\nLEN=2048\nvllm serve $MODEL --seed 1"), None, ""
    )
    assert [one.what for one in made.replaced if not one.model] == ["LEN"]


# ---------------------------------------------------------------- cases


def written(folder: Path, **server: object) -> Path:
    fields = {"engine": "vllm", "release": "0.23.0", **server}
    op = {"id": "r1", "path": "/v1/completions", "body": '{"prompt": "a"}'}
    (folder / "case.json").write_text(
        json.dumps({"server": fields, "operations": [op]})
    )
    return folder


REFUSED = [
    {"args": ["--hos", "0.0.0.0"]},
    {"args": ["--max-num-seqs=2", "--worker-cls=a.B"]},
    {"args": ["--forward-hooks", "os:system"]},
    {"env": {"PYTHONPATH": "/x"}},
    {"env": {"LD_PRELOAD": "/x"}},
    {"env": {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}},
    {"env": {"VLLM_ATTENTION_BACKEND": "/x"}},
    {"env": {"SGLANG_VLM_CACHE_SIZE_MB": "1"}},
    {"model": "/tmp/of/theirs"},
    {"model": "./model"},
    {"model": "some/name"},
]


@pytest.mark.parametrize("server", REFUSED, ids=str)
def test_a_case_that_sets_more_is_refused_until_the_user_types_it(
    tmp_path: Path, server: dict[str, object]
) -> None:
    folder = written(tmp_path, **server)
    ((field, value),) = server.items()
    named = value if isinstance(value, str) else [*value][-1]
    for place, resume in (
        (folder, None),
        (folder / "case.json", None),
        (Path(), folder),
    ):
        with pytest.raises(UsageError) as refused:
            server_wanted(place, resume, {})
        assert named.partition("=")[0] in str(refused.value) + refused.value.hint
        option = {"args": "--server-arg", "env": "--env", "model": "--model"}[field]
        assert option in refused.value.hint
        assert getattr(server_wanted(place, resume, {field: value}), field) == value
    with pytest.raises(UsageError):
        subject(str(folder))


def test_a_mitigation_is_a_name_and_never_a_file(tmp_path: Path) -> None:
    for text in ("/tmp/x.py/y", "x.py", "../x/y", "a/../b", "./x.py/n"):
        with pytest.raises(UsageError, match="mitigation"):
            read_case(written(tmp_path, mitigation=text))
    with pytest.raises(UsageError, match="env"):
        read_case(written(tmp_path, env={"A;B": "1"}))
    assert read_case(written(tmp_path, mitigation="ghost-key/no-cache"))[
        0
    ].server.mitigation


def test_what_mmrepro_writes_itself_is_on_the_list() -> None:
    for file in FOUND:
        server_wanted(file, None, {})
    for engine in ENGINES:
        for name, one in features(engine).items():
            allowed = get_engine(engine).allowed
            assert allowed.refused([*one.args, *one.off], one.env) == [], name
    for engine in ENGINES:
        dialect = dialect_of(engine)
        words = (*dialect.tells, *dialect.pressure, *dialect.roomy, *dialect.modern)
        assert get_engine(engine).allowed.refused(words, dialect.env) == [], engine
    assert len(FOUND) > 15
