"""Anonymised: nothing of the words and pictures is left, and all that a cache sees of
them is."""

import itertools
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from grids import examples
from hypothesis import given, strategies as st
from made_up_har import SERVER, captured, chat, data_url, entry, har, shown, write
from mmrepro.base.errors import UsageError
from mmrepro.engines.models.script_file import ScriptedAnswer, Scripts
from mmrepro.traffic.capture.anonymise import MadeUp, anonymise
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.capture.texts import Vocabulary, common, places

WORD = re.compile(r"[^\W\d_]{4,}")


@pytest.fixture(scope="session")
def words_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer that knows words, as real models' do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    chance = random.Random(1)
    letters = "abcdefghijklmnoprstuvw"
    words = [
        "".join(chance.choices(letters, k=chance.randint(3, 8))) for _ in range(900)
    ]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=9000,
        special_tokens=["<|im_start|>", "<|im_end|>", "<|image_pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([f"{w} {w} {w}\n{w}" for w in words], trainer)
    folder = tmp_path_factory.mktemp("words")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def vocabularies(words_model: Path) -> dict[str, Vocabulary]:
    made = {"bytes": Vocabulary(None, "qwen2-vl"), "words": Vocabulary(words_model, "")}
    assert (made["bytes"].joint, made["words"].joint) == ("", " "), "one of each kind"
    return made


def words_of(texts: Iterable[str]) -> set[str]:
    return {word.lower() for text in texts for word in WORD.findall(text)}


PIECES = st.sampled_from(
    [
        "You are a helpful assistant. ",
        "Answer in one sentence. ",
        "What is in this picture?",
        "What is in this film?",
        "漢字",
        "🙂",
        "é",
        "\n",
        "<|im_start|>",
        "<|image_pad|>",
        "<t5>",
        "\x00",
        "aaaa",
        "0",
        " ",
        "the quick brown fox",
    ]
) | st.text(max_size=6).filter(lambda text: not re.search("[\ud800-\udfff]", text))
TEXTS = st.lists(st.lists(PIECES, max_size=6).map("".join), min_size=1, max_size=8)


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize("kind", ["bytes", "words"])
@given(texts=TEXTS, seed=st.integers(0, 3))
def test_texts_begin_alike_exactly_as_long_as_they_did(
    kind: str, vocabularies: dict[str, Vocabulary], texts: list[str], seed: int
) -> None:
    vocabulary = vocabularies[kind]
    made = MadeUp(texts, [], vocabulary, seed)
    assert (made.alike, made.uneven) == (0, 0)
    before = [vocabulary.encode(text) for text in texts]
    after = [vocabulary.encode(made.text(text)) for text in texts]
    assert list(map(len, after)) == list(map(len, before))
    for (a, x), (b, y) in itertools.combinations(zip(before, after, strict=True), 2):
        assert common(x, y) == common(a, b)
    for ids, new in zip(before, after, strict=True):
        special = [(n, i) for n, i in enumerate(ids) if i in vocabulary.special]
        assert [(n, i) for n, i in enumerate(new) if i in vocabulary.special] == special


@examples(10)
@given(texts=TEXTS)
def test_no_word_of_the_input_comes_about_by_chance(
    texts: list[str], words_model: Path
) -> None:
    said = words_of(texts) - {"start", "image"}  # of special tokens, which stay
    for vocabulary in (
        Vocabulary(None, "qwen2-vl", said),
        Vocabulary(words_model, "", said),
    ):
        made = MadeUp(texts, [], vocabulary, 0)
        assert not said & words_of(made.text(text) for text in texts)


def test_more_ways_to_go_on_than_there_are_signs(
    vocabularies: dict[str, Vocabulary],
) -> None:
    """A thousand texts that differ in their first character."""
    texts = [chr(0x100 + n) + "abc" for n in range(60)] + [
        chr(n) * 3 for n in range(32, 127)
    ]
    texts += [f"{chr(n)}{chr(m)}" for n in range(40, 60) for m in range(33, 126)]
    vocabulary = vocabularies["bytes"]
    made = MadeUp(texts, [], vocabulary, 0)
    assert (made.alike, made.uneven) == (0, 0)
    assert len({made.text(text) for text in texts}) == len(set(texts))


PROMPTS = st.lists(
    st.lists(st.sampled_from([1, 2, 3, 40, 258, 5000, 70_000]), max_size=5)
)


@given(prompts=PROMPTS)
def test_prompts_of_ids_share_what_they_shared(
    vocabularies: dict[str, Vocabulary], prompts: list[list[int]]
) -> None:
    vocabulary = vocabularies["bytes"]
    made = MadeUp([], prompts, vocabulary, 0)
    for one, other in itertools.combinations(prompts, 2):
        assert common(made.ids(one), made.ids(other)) == common(one, other)
    for ids in prompts:
        new = made.ids(ids)
        assert [i < vocabulary.size for i in new] == [i < vocabulary.size for i in ids]
        assert [i == 258 for i in new] == [i == 258 for i in ids], "special tokens stay"


def test_many_prompts_of_ids_that_differ_at_once_stay_different(
    vocabularies: dict[str, Vocabulary],
) -> None:
    prompts = [[n, 5] for n in [*range(0, 1200, 2), *range(2000, 90_000, 500)]]
    made = MadeUp([], prompts, vocabularies["bytes"], 0)
    assert len({made.ids(ids)[0] for ids in prompts}) == len(prompts)
    assert made.alike == 0


def test_words_that_were_used_are_no_pieces(words_model: Path) -> None:
    used = list(Vocabulary(words_model, "").pieces)[:200]
    texts = [" ".join(used), *used]
    made = MadeUp(texts, [], Vocabulary(words_model, "", words_of(texts)), 0)
    assert not words_of(texts) & words_of(made.text(text) for text in texts)


def test_places_at_which_texts_part() -> None:
    assert places(sorted(["abcd", "abce", "abx", "b"])) == [[2, 3], [2, 3], [2], []]
    assert places(["a", "ab", "abc"]) == [[1], [1, 2], [1, 2]]


@given(st.lists(st.text("ab", max_size=6), max_size=8).map(lambda t: sorted(set(t))))
def test_all_places_are_found(texts: list[str]) -> None:
    wanted = [
        sorted({common(text, other) for other in texts if other != text} - {0})
        for text in texts
    ]
    assert places(texts) == wanted


# ---------------------------------------------------------------------- whole cases


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup_customer",
            "description": "Finds somebody in the register",
            "parameters": {
                "type": "object",
                "properties": {
                    "surname": {
                        "type": "string",
                        "pattern": "^Miller.*$",
                        "enum": ["Miller"],
                    }
                },
                "required": ["surname"],
            },
        },
    }
]
CALL = {
    "id": "call_customer_7",
    "type": "function",
    "function": {"name": "lookup_customer", "arguments": '{"surname": "Miller"}'},
}


def test_nothing_of_the_words_of_a_case_is_left(tmp_path: Path) -> None:
    asked = chat(
        "Where does Miller live?",
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "lookup_customer"}},
        stop=["Miller", "END"],
        cache_salt="tenant-Miller",
        guided_regex="Miller|Smith",
        chat_template="{{ secret_template }}",
        logit_bias={"17": 5},
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "address", "schema": {}},
        },
    )
    asked["messages"] += [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {
            "role": "tool",
            "content": "Found: Elmstreet",
            "tool_call_id": "call_customer_7",
        },
        {
            "role": "user",
            "name": "Sheriff",
            "content": [
                {
                    "type": "text",
                    "text": "Elmstreet?",
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "text", "text": "Thank you"},
            ],
        },
    ]
    again = chat("Where does Miller work?", cache_salt="tenant-Miller", stop="Miller")
    prompt = {"model": "m", "prompt": "hello"}
    found = captured(tmp_path, asked, again, prompt)
    hidden = anonymise(found)
    text = hidden.case.model_dump_json(exclude={"origin": {"notes"}})
    for word in (
        "Miller",
        "Elmstreet",
        "customer",
        "surname",
        "register",
        "Thank",
        "Sheriff",
    ):
        assert word in found.case.model_dump_json()
        assert word.lower() not in text.lower()
    assert "secret" not in text
    assert "tenant" not in text
    assert "fine" not in text, "the answer's text"
    first, second, _ = hidden.case.operations
    parameters = first.parameters
    function = parameters["tools"][0]["function"]
    assert (
        parameters["tool_choice"]["function"]["name"]
        == function["name"]
        != "lookup_customer"
    )
    (property,) = function["parameters"]["properties"]
    assert function["parameters"]["required"] == [property]
    assert function["parameters"]["properties"][property]["type"] == "string"
    assert first.messages is not None
    assert second.messages is not None
    call = first.messages[1].more["tool_calls"][0]
    assert call["function"]["name"] == function["name"]
    assert list(json.loads(call["function"]["arguments"])) == [property]
    assert first.messages[2].more["tool_call_id"] == call["id"]
    assert parameters["cache_salt"] == second.parameters["cache_salt"]
    assert parameters["stop"][0] == second.parameters["stop"]
    assert parameters["logit_bias"] == {"17": 5}
    assert {"guided_regex", "chat_template"}.isdisjoint(parameters)
    assert "pattern" not in function["parameters"]["properties"][property]
    told = " ".join(hidden.case.origin.notes)
    assert "3 times a pattern, grammar or template was left away" in told
    assert (hidden.case.origin.anonymised, hidden.case.origin.file) == (True, "")
    texts = [str(m.content) for m in (first.messages[0], second.messages[0])]
    assert common(*texts) == len("Where does Miller ")
    assert [m.role for m in first.messages] == ["user", "assistant", "tool", "user"]


def test_all_that_is_no_text_stays(tmp_path: Path) -> None:
    found = captured(
        tmp_path,
        chat(
            "a",
            temperature=0.5,
            n=2,
            stream=True,
            reasoning_effort="low",
            tool_choice="auto",
        ),
        chat("b", max_tokens=9, stream_options={"include_usage": True}),
    )
    hidden = anonymise(found)
    for was, now in zip(found.case.operations, hidden.case.operations, strict=True):
        for name in ("id", "after", "path", "parameters", "stream", "leave", "at_s"):
            assert getattr(now, name) == getattr(was, name)
    assert hidden.case.server == found.case.server


def test_a_seed_gives_the_same_again_and_another_something_else(tmp_path: Path) -> None:
    found = captured(
        tmp_path, chat([shown(data_url(1)), {"type": "text", "text": "some text"}])
    )
    once, again, other = (anonymise(found, seed).case for seed in (0, 0, 1))
    assert once == again
    assert once.operations != other.operations
    assert once.images != other.images


def test_what_a_refusal_says_of_the_longest_prompt_stays(tmp_path: Path) -> None:
    told = (
        "This model's maximum context length is 2048 tokens. You wrote: Dear "
        "Mister Miller"
    )
    response = {"status": 400, "content": {"text": told}}
    found = read(write(tmp_path, har([entry(response=response)])), SERVER)
    recorded = anonymise(found).case.operations[0].recorded
    assert recorded is not None
    assert recorded.text == "maximum context length is 2048 tokens"


def test_without_a_tokenizer_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no tokenizer\.json that can be read"):
        anonymise(captured(tmp_path, chat()), model=tmp_path)


def words_kept(name: str, value: object, tmp_path: Path, path: str) -> Any:
    body = {"model": "m", "max_tokens": 4, name: value}
    sent = entry(body, url=f"http://127.0.0.1:8000{path}")
    changed = anonymise(read(write(tmp_path, har([sent])), SERVER))
    (operation,) = changed.case.operations
    return operation.parameters[name]


def test_words_of_an_interface_are_never_renamed(tmp_path: Path) -> None:
    """A request that fails by them fails without its texts, too."""
    said = [{"role": "user", "content": [{"type": "text", "text": "secret words"}]}]
    (message,) = words_kept("messages", said, tmp_path, "/v1/messages")
    assert message["role"] == "user"
    assert message["content"][0]["type"] == "text"
    assert "secret" not in json.dumps(message)

    grammar = {"json_object": False, "whitespace_pattern": "x"}
    kept = words_kept("structured_outputs", grammar, tmp_path, "/v1/completions")
    assert kept["json_object"] is False
    schema = {"type": "object", "patternProperties": {}, "properties": {"secret": {}}}
    tools = [{"name": "secret", "input_schema": schema}]
    (tool,) = words_kept("tools", tools, tmp_path, "/v1/messages")
    assert tool["input_schema"].keys() == schema.keys()
    assert "secret" not in json.dumps(tool)


def test_a_tool_that_a_script_calls_keeps_its_name(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "weather"}}]
    tools.append({"type": "function", "function": {"name": "secret"}})
    body = {**chat(), "tools": tools}
    made = read(write(tmp_path, har([entry(body)])), SERVER)
    scripts = Scripts(script=[ScriptedAnswer(text='{"name": "weather"}')])
    update = {"model": "text", "scripts": scripts}
    made.case.server = made.case.server.model_copy(update=update)
    (operation,) = anonymise(made).case.operations
    names = [tool["function"]["name"] for tool in operation.parameters["tools"]]
    assert names[0] == "weather"
    assert names[1] != "secret"


def test_a_call_that_a_model_made_is_renamed_as_its_tool_is(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"town": {"type": "string"}}}
    call = {"type": "tool_use", "id": "c1", "name": "findit", "input": {"town": "Oslo"}}
    body = {
        "model": "m",
        "tools": [{"name": "findit", "input_schema": schema}],
        "messages": [{"role": "assistant", "content": [call]}],
    }
    sent = entry(body, url="http://127.0.0.1:8000/v1/messages")
    changed = anonymise(read(write(tmp_path, har([sent])), SERVER))
    made = changed.case.operations[0].parameters
    (tool,), (message,) = made["tools"], made["messages"]
    (used,) = message["content"]
    assert used["type"] == "tool_use"
    assert used["name"] == tool["name"] != "findit"
    (argument,) = used["input"]
    assert argument in tool["input_schema"]["properties"]
    assert "town" not in json.dumps(made)


def test_a_schema_that_is_a_text_stays_one(tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"town": {"type": "string"}}}'
    made = words_kept("sampling_params", {"json_schema": schema}, tmp_path, "/generate")
    text = made["json_schema"]
    assert json.loads(text)["type"] == "object"
    assert "town" not in text
