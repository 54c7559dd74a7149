"""Tiny models under the names that an engine's own tests ask a hub for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmrepro.base.box import WORK, BoxOrder
from mmrepro.base.machine import cache_root
from mmrepro.engines.models import (
    MODELS_DIR,
    hub_models_named,
    stand_in_of_hub,
    write_hub,
)
from mmrepro.runs import tree_tests
from mmrepro.traffic.capture import client
from mmrepro.traffic.capture.client import ClientWanted

TEXT = """
MODEL = "facebook/opt-125m"
OTHER = 'Qwen/Qwen3-0.6B'
small = AutoTokenizer.from_pretrained("gpt2")
headers = {"Content-Type": "application/json"}
file = "images/cat.png"
path = "v1/completions"
"""


def test_names_of_models_in_a_test() -> None:
    assert hub_models_named(TEXT) == {"facebook/opt-125m", "Qwen/Qwen3-0.6B", "gpt2"}


@pytest.mark.parametrize(
    ("name", "tiny"),
    [
        ("facebook/opt-125m", "text-32k"),
        ("Qwen/Qwen3-0.6B", "qwen3-text"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-moe"),
        ("Qwen/Qwen2-VL-2B-Instruct", "qwen2-vl"),
        ("openai/whisper-small", ""),
        ("intfloat/multilingual-e5-small", ""),
        ("RedHatAI/Llama-3.2-1B-FP8", ""),
    ],
)
def test_what_stands_for_a_model(name: str, tiny: str) -> None:
    assert stand_in_of_hub(name) == tiny


def test_a_hub_s_cache_is_laid_out_as_its_client_reads_it(tmp_path: Path) -> None:
    hub, cache = tmp_path / "hub", tmp_path / "models"
    written = write_hub(["org/model", "openai/whisper-small"], hub, cache)
    assert written == {"org/model": "text-32k"}
    folder = hub / "models--org--model"
    revision = (folder / "refs" / "main").read_text()
    config = folder / "snapshots" / revision / "config.json"
    assert json.loads(config.read_text())["vocab_size"] == 32_000
    assert config.resolve().is_relative_to(cache)


def test_names_are_looked_for_where_a_test_s_helpers_are(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "v1" / "core"
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text('A = "org/in-the-test"')
    (folder / "test_other.py").write_text('A = "org/in-another-test"')
    (folder / "utils.py").write_text('A = "org/beside"')
    (tmp_path / "tests" / "conftest.py").write_text('A = "org/above"')
    side = SimpleNamespace(folder=tmp_path, tests=["tests/v1/core/test_it.py::test_a"])
    named = tree_tests._models_named([side])
    assert named == {"org/in-the-test", "org/beside", "org/above"}


def test_a_client_that_loads_a_tokenizer_gets_that_of_a_tiny_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMREPRO_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "work" / "client"
    folder.mkdir(parents=True)
    script = 'AutoTokenizer.from_pretrained("Qwen/Qwen3-0.6B")'
    wanted = ClientWanted(("python3", "client.py"), folder, script=script)
    order = client._with_hub(BoxOrder(argv=()), wanted)
    again = client._with_hub(BoxOrder(argv=()), wanted)
    assert order == again
    hub = order.env["HF_HUB_CACHE"]
    assert hub == f"{WORK}/.mmrepro-hub"
    assert (folder / ".mmrepro-hub" / "models--Qwen--Qwen3-0.6B").is_dir()
    assert cache_root() / MODELS_DIR in order.readable
    plain = ClientWanted(("python3", "client.py"), folder, script="import openai")
    assert client._with_hub(BoxOrder(argv=()), plain) == BoxOrder(argv=())
