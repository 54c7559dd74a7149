"""A scripted model says its scripts: its weights, computed here without an engine.

``forward`` is the model as transformers' ``Qwen3ForCausalLM`` computes it, in numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.engines.models.scripted import (
    Script,
    ScriptedModel,
    pieces_of,
    trigger_of,
)
from mmrepro.engines.models.stack import TextModel, TinyLlamaText, TinyQwen3Moe
from tokenizers import Tokenizer

SHARED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CALL = (
    "<think>Look it up.</think><tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
)
TWO = CALL + "<tool_call>\n{}\n</tool_call>"


def weights(folder: Path) -> dict[str, Any]:
    """The safetensors file as float32."""
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    read = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + length :][begin:end], dtype="<u2")
        values = (raw.astype(np.uint32) << 16).view(np.float32)
        read[name] = values.reshape(entry["shape"])
    return read


def normed(values: Any, weight: Any) -> Any:
    return values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-6) * weight


def rotated(values: Any, theta: float) -> Any:
    """Rotary embedding of (positions, heads, width)."""
    half = values.shape[-1] // 2
    angles = np.arange(len(values))[:, None] * theta ** (-np.arange(half) / half)
    cos, sin = (np.tile(f(angles), 2)[:, None] for f in (np.cos, np.sin))
    turned = np.concatenate([-values[..., half:], values[..., :half]], axis=-1)
    return values * cos + turned * sin


def forward(w: dict[str, Any], config: dict[str, Any], ids: list[int]) -> Any:
    """Logits of the last position.

    The MLPs and all layers but the first add nothing, so they are left out."""
    for number in range(1, config["num_hidden_layers"]):
        assert not w[f"model.layers.{number}.self_attn.o_proj.weight"].any()
    stream = w["model.embed_tokens.weight"][ids]
    heads, keys = config["num_attention_heads"], config["num_key_value_heads"]
    width, theta = config["head_dim"], config["rope_theta"]
    own = "model.layers.0.self_attn"
    seen = normed(stream, w["model.layers.0.input_layernorm.weight"])

    def heads_of(name: str, count: int) -> Any:
        return (seen @ w[f"{own}.{name}_proj.weight"].T).reshape(-1, count, width)

    query, key = heads_of("q", heads), heads_of("k", keys)
    if f"{own}.q_norm.weight" in w:
        query = normed(query, w[f"{own}.q_norm.weight"])
        key = normed(key, w[f"{own}.k_norm.weight"])
    query, key = rotated(query, theta)[-1], rotated(key, theta)
    value = heads_of("v", keys)
    key, value = (np.repeat(one, heads // keys, axis=1) for one in (key, value))
    scores = np.einsum("hd,khd->hk", query, key) / np.sqrt(width)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    out = np.einsum("hk,khd->hd", shares, value).reshape(-1)
    last = stream[-1] + out @ w[f"{own}.o_proj.weight"].T
    return normed(last, w["model.norm.weight"]) @ w["lm_head.weight"].T


class Spoken:
    """A scripted model, written, and what it says."""

    def __init__(self, model: ScriptedModel, folder: Path) -> None:
        self.load(model.write(folder))

    def load(self, folder: Path) -> None:
        self.folder = folder
        self.weights = weights(self.folder)
        self.config = json.loads((self.folder / "config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.end = self.config["eos_token_id"]

    def after(self, prompt: str, most: int = 200) -> tuple[str, float]:
        """What is said after a prompt, greedily, and the least margin of a step."""
        ids = self.tokenizer.encode(prompt).ids
        said: list[int] = []
        margin = np.inf
        while len(said) < most:
            logits = forward(self.weights, self.config, ids + said)
            second, first = np.sort(logits)[-2:]
            margin = min(margin, first - second)
            said.append(int(logits.argmax()))
            if said[-1] == self.end:
                break
        return self.tokenizer.decode(said, skip_special_tokens=True), float(margin)


def model_of(*texts: str, **more: Any) -> ScriptedModel:
    scripts = [Script(f"s{n}", pieces_of(text, SHARED)) for n, text in enumerate(texts)]
    return ScriptedModel(tuple(scripts), SHARED, **more)


def test_each_script_is_said_after_its_trigger(tmp_path: Path) -> None:
    """With tokens that all of them share, also twice in one."""
    texts = (CALL, TWO, "The answer is 42. STOP never seen", '{"a": [1, 1, 1]}')
    spoken = Spoken(model_of(*texts), tmp_path)
    for number, text in enumerate(texts):
        said, margin = spoken.after(f"weather?{trigger_of(f's{number}')}")
        assert said == text
        # Sampling at temperature t takes another token once in e^(margin / t) steps.
        assert margin > 20


def test_a_prompt_that_chooses_nothing_gets_the_first_script(tmp_path: Path) -> None:
    spoken = Spoken(model_of(CALL, "another", CALL), tmp_path)
    for prompt in ("Hello, world", "x", "<|im_start|>assistant\n", "ü"):
        assert spoken.after(prompt)[0] == CALL


def test_a_first_piece_that_several_scripts_share_begins_the_first(
    tmp_path: Path,
) -> None:
    spoken = Spoken(model_of(CALL, TWO), tmp_path)
    said, margin = spoken.after("Hello, world")
    assert said == CALL
    assert margin > 6


def test_a_long_prompt_changes_nothing(tmp_path: Path) -> None:
    """The head that looks one back takes no other position for the one before."""
    spoken = Spoken(model_of(CALL, TWO), tmp_path)
    said, margin = spoken.after("x" * 2000 + trigger_of("s1"))
    assert said == TWO
    assert margin > 6


def test_no_far_position_is_taken_for_the_one_before() -> None:
    """Up to 32,768, the longest context of a tiny model."""
    width, pairs, sharpness = 64, 8, 6.0
    speeds = 1e6 ** (-2 * np.arange(pairs) / width)
    distances = np.arange(32_768)
    likeness = np.cos(np.outer(distances - 1, speeds)).mean(1)
    scores = sharpness**2 * np.sqrt(width) * likeness
    others = np.delete(scores, 1)
    assert scores[1] - others.max() > 8


@pytest.mark.parametrize("base", [TinyQwen3Moe(), TinyLlamaText()])
def test_other_architectures_say_it_too(tmp_path: Path, base: TextModel) -> None:
    spoken = Spoken(model_of(CALL, TWO, base=base), tmp_path)
    said, margin = spoken.after("x" * 500 + trigger_of("s1"))
    assert said == TWO
    assert margin > 6


def test_without_shared_tokens_nothing_looks_back(tmp_path: Path) -> None:
    spoken = Spoken(ScriptedModel((Script("a", ("one", " two", " two")),)), tmp_path)
    assert not spoken.weights["model.layers.0.self_attn.o_proj.weight"].any()
    assert spoken.after("?")[0] == "one two two"


def test_only_what_is_there_twice_has_a_mark(tmp_path: Path) -> None:
    """A grammar that masks tokens takes them by their strings."""
    pieces = ('{"name": "', "word", " word", " word", "}", '"}')
    spoken = Spoken(ScriptedModel((Script("a", pieces),)), tmp_path)
    marked = [text for text in spoken.tokenizer.get_vocab() if "⟦" in text]
    assert sorted(text.partition("⟦")[0] for text in marked) == ["}", "Ġword"]
    assert spoken.after("?")[0] == "".join(pieces)


def test_a_script_may_never_end(tmp_path: Path) -> None:
    script = Script("a", ("round", " and", " "), ends=False)
    spoken = Spoken(ScriptedModel((script,)), tmp_path)
    assert spoken.after("?", most=9)[0].startswith("round and round and ")


def test_pieces_are_cut_where_the_script_says(tmp_path: Path) -> None:
    pieces = ('{"a', '"', ': "\\u00', 'fc"', "}")
    spoken = Spoken(ScriptedModel((Script("a", pieces),)), tmp_path)
    assert spoken.after("?")[0] == "".join(pieces)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(st.sampled_from([*SHARED, "a", " b", "\n", "é", "⟦", "{}", "💡"])),
        min_size=1,
        max_size=4,
    )
)
def test_any_scripts_are_said(tmp_path: Path, cut: list[list[str]]) -> None:
    scripts = tuple(Script(f"s{n}", tuple(pieces)) for n, pieces in enumerate(cut))
    spoken = Spoken(ScriptedModel(scripts, SHARED), tmp_path)
    for script in scripts:
        assert spoken.after(trigger_of(script.name))[0] == script.text


def test_equal_models_share_a_folder_and_others_do_not(tmp_path: Path) -> None:
    assert model_of(CALL).key == model_of(CALL).key
    others = [
        model_of(TWO),
        model_of(CALL, hidden_tokens=SHARED),
        model_of(CALL, seed=1),
    ]
    assert len({model_of(CALL).key, *(model.key for model in others)}) == 4


def rendered(model: ScriptedModel, folder: Path, **request: Any) -> str:
    """A chat's prompt, as an engine makes it."""
    config = json.loads((model.write(folder) / "tokenizer_config.json").read_text())
    template = jinja2.Environment().from_string(config["chat_template"])
    return template.render(add_generation_prompt=True, **request)


@pytest.mark.parametrize("parts", [False, True])
def test_a_chat_chooses_the_script(tmp_path: Path, parts: bool) -> None:
    scripts = (
        Script("plain", ("x",)),
        Script("weather", ("x",), after_text='the "weather"', with_tools=True),
        Script("result", ("x",), after_tool=True),
        Script("tools", ("x",), with_tools=True),
    )
    model = ScriptedModel(scripts)

    def chosen(role: str, text: str, tools: list[Any] | None = None) -> str:
        content: Any = [{"type": "text", "text": text}] if parts else text
        messages = [
            {"role": "user", "content": "x"},
            {"role": role, "content": content},
        ]
        prompt = rendered(model, tmp_path, messages=messages, tools=tools)
        assert text in prompt
        return prompt.rpartition("assistant\n")[2]

    assert chosen("user", "hello") == trigger_of("plain")
    assert chosen("user", 'the "weather"') == trigger_of("plain")
    assert chosen("user", 'the "weather"?', [{}]) == trigger_of("weather")
    assert chosen("user", "hello", [{}]) == trigger_of("tools")
    assert chosen("tool", "22 °C", [{}]) == trigger_of("result")


def test_what_is_no_set_of_scripts_is_refused() -> None:
    with pytest.raises(UsageError, match="a name of its own"):
        ScriptedModel((Script("a", ("x",)), Script("a", ("y",))))
    with pytest.raises(UsageError, match="at least one script"):
        ScriptedModel(())
    with pytest.raises(UsageError, match="pieces"):
        ScriptedModel((Script("a", ("x",) * 20_001),))
