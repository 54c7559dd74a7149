"""Features of today's stack: what their names stand for, and what turns them off
again."""

import json

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines import ENGINES, get_engine
from mmrepro.engines.features import (
    feature,
    features,
    options_of,
    shown_by,
    turned_on,
)
from mmrepro.engines.models.tiny import TINY
from mmrepro.search.oracle.reference import reference_case
from mmrepro.traffic.case.model import Case, Message, Operation, ServerWanted

ALL = [(engine, name) for engine in ENGINES for name in features(engine)]


@pytest.mark.parametrize(("engine", "name"), ALL)
def test_each_is_of_a_tiny_model_and_knows_itself_again(engine: str, name: str) -> None:
    one = feature(engine, name)
    assert one.model in TINY
    args, env = options_of(engine, [f"{{feature:{name}}}", "--seed=1"], {})
    assert args == [*one.args, "--seed=1"]
    assert env == one.env
    if one.args:
        assert turned_on(engine, args)[name] is one
    for word in one.args:
        value = word.partition("=")[2]
        if value.startswith('{"'):
            assert isinstance(json.loads(value), dict)


def test_a_variable_that_is_given_wins() -> None:
    _, env = options_of(
        "vllm", ["{feature:file-connector}"], {"VLLM_SERVER_DEV_MODE": "0"}
    )
    assert env == {"VLLM_SERVER_DEV_MODE": "0"}


def test_what_there_is_not_is_named_with_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no feature ngrams for vllm.*ngram"):
        options_of("vllm", ["{feature:ngrams}"], {})
    with pytest.raises(UsageError, match="no feature ngram for lmdeploy"):
        feature("lmdeploy", "ngram")


def test_the_reference_has_all_of_it_off_and_its_adapters_from_the_start() -> None:
    names = ("ngram", "file-connector", "async", "tp2", "small-kv", "lora-evicted")
    server = ServerWanted(
        engine="vllm", release="0.32.0", args=[f"{{feature:{name}}}" for name in names]
    )

    def loads(id: str, name: str, adapter: str) -> Operation:
        more = {"lora_name": name, "lora_path": f"{{tiny:{adapter}}}"}
        return Operation(id=id, path="/v1/load_lora_adapter", parameters=more)

    asks = Operation(
        id="r2", model="new", messages=[Message(role="user", content="hi")]
    )
    gone = Operation(
        id="r3", path="/v1/unload_lora_adapter", parameters={"lora_name": "new"}
    )
    twice = [loads("r4", "two", "lora-a"), loads("r5", "two", "lora-b")]
    case = Case(
        server=server, operations=[loads("r1", "new", "lora-b"), asks, gone, *twice]
    )
    plain = reference_case(case, get_engine("vllm"))
    args = plain.server.args
    left = turned_on("vllm", args)
    assert not left.keys() & {*names, "lora"}
    assert "--enable-lora" in args
    last = max(n for n, word in enumerate(args) if word == "--lora-modules")
    modules = [word for word in args[last + 1 :] if "={tiny:" in word]
    assert modules == [
        "lora-a={tiny:lora-a}",
        "lora-b={tiny:lora-b}",
        "new={tiny:lora-b}",
    ]
    assert [op.id for op in plain.operations] == ["r2"]
    assert plain.server.env["VLLM_SERVER_DEV_MODE"] == "1"


@pytest.mark.parametrize(
    ("engine", "release", "text", "name"),
    [
        ("vllm", "0.32.0", "vllm/v1/worker/gpu/states.py", "runner-v2"),
        ("vllm", "0.22.0", "vllm/v1/worker/gpu/states.py", ""),
        ("vllm", "0.32.0", "vllm/v1/worker/gpu_model_runner.py", ""),
        ("vllm", "0.32.0", "an H100", ""),
        ("sglang", "0.5.23", "vllm/v1/worker/gpu/states.py", ""),
    ],
)
def test_code_that_a_report_names_is_of_a_feature(
    engine: str, release: str, text: str, name: str
) -> None:
    assert shown_by(engine, release, text) == name


def test_a_runner_that_there_is_not_is_refused_in_the_words_of_the_option() -> None:
    with pytest.raises(UsageError, match="'v9' is none of v1, v2, default") as caught:
        feature("vllm", "runner-v9")
    assert caught.value.hint.startswith("--runner ")
    with pytest.raises(UsageError, match="sglang has no --front") as caught:
        feature("sglang", "front-rust")
    assert caught.value.hint == "leave --front out"
