"""A report whose requests name token ids gets a tiny model that has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mmrepro.engines.models import LLAMAS, write_tokenizer
from mmrepro.search.repro.server_command import parse, translated
from mmrepro.search.repro.vocabularies import tokens_named
from tokenizers import Tokenizer

LLAMA_3 = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.mark.parametrize(
    ("traffic", "model", "named"),
    [
        ('{"allowed_token_ids": list(range(2000))}', "a/model", 2000),
        ('"logit_bias": {str(i): 1 for i in range(5, 1500)}', "a/model", 1500),
        ('{"logit_bias": {"15000": -100, "7": 2}}', "a/model", 15_001),
        ("stop_token_ids=[128001, 128009]", LLAMA_3, 128_010),
        ('"prompt": [[128000, 9906]]', LLAMA_3, 128_001),
        # Beyond the real model's vocabulary: what the report is about.
        ("stop_token_ids=[200000, 11]", LLAMA_3, 12),
        ("stop_token_ids=[128001]", "a/model", 0),
        # No ids.
        ('{"max_tokens": 5000, "prompt": "2000 ships"}', LLAMA_3, 0),
        ("for port in range(8000): pass", LLAMA_3, 0),
    ],
)
def test_ids_of_requests_say_how_many_tokens_a_vocabulary_needs(
    traffic: str, model: str, named: int
) -> None:
    assert tokens_named(traffic, model) == named


@pytest.mark.parametrize(
    ("ids", "tiny"),
    [
        ("[7]", "text"),
        ("list(range(2000))", "text-32k"),
        ("[128001]", "text-152k"),
    ],
)
def test_the_stand_in_has_the_tokens_that_requests_name(ids: str, tiny: str) -> None:
    traffic = f'{{"stop_token_ids": {ids}}}'
    made = translated(parse(f"vllm serve {LLAMA_3}"), None, traffic)
    assert made.model == tiny


def test_a_large_vocabulary_is_no_list_of_added_tokens(tmp_path: Path) -> None:
    size = 6_000
    write_tokenizer(tmp_path, size)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == size
    assert tokenizer.decode([size - 1, ord("a") - ord("!")]).startswith("<t")
    # Words of a text are bytes as before, also those that look like a filler.
    assert len(tokenizer.encode("<t5>").ids) == 4
    added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    assert len(added) < 100


def test_tiny_llamas_are_sorted_by_their_tokens() -> None:
    sizes = [model.vocab_size for model in LLAMAS.values()]
    assert sizes == sorted(sizes)


def test_ids_in_a_list_of_a_script_count() -> None:
    script = "PROMPTS = [[1, 10408, 15, 3312, 16315, 7519, 47932]]\nf(prompt_token_ids=PROMPTS[0])"
    assert tokens_named(script, "EleutherAI/pythia-160m") == 47_933
    assert tokens_named(script, "org/unknown") == 16_316
