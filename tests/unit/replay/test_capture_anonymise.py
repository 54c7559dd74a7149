"""Anonymised: nothing of the words and pictures is left, and all that a cache sees of them is."""

from __future__ import annotations

import base64
import io
import itertools
import json
import random
import re
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from made_up_har import SERVER, chat, data_url, entry, har, shown, write
from mmrepro.capture import Captured, Contents, anonymise, read
from mmrepro.capture.looks import look
from mmrepro.capture.made_up import MadeUp
from mmrepro.capture.prefixes import common, places
from mmrepro.capture.vocabulary import Vocabulary
from mmrepro.case.files import read_case, write_case
from mmrepro.case.model import Case, Content, Image, Message, Operation, Part
from mmrepro.case.pictures import pictures
from mmrepro.errors import UsageError
from mmrepro.traffic.pictures import noise, tiles
from PIL import Image as Pillow

WORD = re.compile(r"[^\W\d_]{4,}")


@pytest.fixture(scope="session")
def words_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer that knows words, as real models' do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    chance = random.Random(1)
    letters = "abcdefghijklmnoprstuvw"
    words = ["".join(chance.choices(letters, k=chance.randint(3, 8))) for _ in range(900)]
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
        *("You are a helpful assistant. ", "Answer in one sentence. ", "What is in this picture?"),
        *(
            "What is in this film?",
            "漢字",
            "🙂",
            "é",
            "\n",
            "<|im_start|>",
            "<|image_pad|>",
            "<t5>",
        ),
        *("\x00", "aaaa", "0", " ", "the quick brown fox"),
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


@settings(max_examples=10)
@given(texts=TEXTS)
def test_no_word_of_the_input_comes_about_by_chance(texts: list[str], words_model: Path) -> None:
    said = words_of(texts) - {"start", "image"}  # of special tokens, which stay
    for vocabulary in (Vocabulary(None, "qwen2-vl", said), Vocabulary(words_model, "", said)):
        made = MadeUp(texts, [], vocabulary, 0)
        assert not said & words_of(made.text(text) for text in texts)


def test_more_ways_to_go_on_than_there_are_signs(vocabularies: dict[str, Vocabulary]) -> None:
    """A thousand texts that differ in their first character."""
    texts = [chr(0x100 + n) + "abc" for n in range(60)] + [chr(n) * 3 for n in range(32, 127)]
    texts += [f"{chr(n)}{chr(m)}" for n in range(40, 60) for m in range(33, 126)]
    vocabulary = vocabularies["bytes"]
    made = MadeUp(texts, [], vocabulary, 0)
    assert (made.alike, made.uneven) == (0, 0)
    assert len({made.text(text) for text in texts}) == len(set(texts))


PROMPTS = st.lists(st.lists(st.sampled_from([1, 2, 3, 40, 258, 5000, 70_000]), max_size=5))


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


def test_places_at_which_texts_part() -> None:
    assert places(sorted(["abcd", "abce", "abx", "b"])) == [[2, 3], [2, 3], [2], []]
    assert places(["a", "ab", "abc"]) == [[1], [1, 2], [1, 2]]


@given(st.lists(st.text("ab", max_size=6), max_size=8).map(lambda t: sorted(set(t))))
def test_all_places_are_found(texts: list[str]) -> None:
    wanted = [
        sorted({common(text, other) for other in texts if other != text} - {0}) for text in texts
    ]
    assert places(texts) == wanted


# ---------------------------------------------------------------------- whole cases


def captured(folder: Path, *bodies: dict[str, Any]) -> Captured:
    file = write(folder, har([entry(body, at=n) for n, body in enumerate(bodies)]))
    return read(file, SERVER)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "lookup_customer",
            "description": "Finds somebody in the register",
            "parameters": {
                "type": "object",
                "properties": {
                    "surname": {"type": "string", "pattern": "^Miller.*$", "enum": ["Miller"]}
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
        response_format={"type": "json_schema", "json_schema": {"name": "address", "schema": {}}},
    )
    asked["messages"] += [
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "Found: Elmstreet", "tool_call_id": "call_customer_7"},
        {
            "role": "user",
            "name": "Sheriff",
            "content": [
                {"type": "text", "text": "Elmstreet?", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Thank you"},
            ],
        },
    ]
    again = chat("Where does Miller work?", cache_salt="tenant-Miller", stop="Miller")
    prompt = {"model": "m", "prompt": "hello"}
    found = captured(tmp_path, asked, again, prompt)
    hidden = anonymise(found)
    text = hidden.case.model_dump_json(exclude={"origin": {"notes"}})
    for word in ("Miller", "Elmstreet", "customer", "surname", "register", "Thank", "Sheriff"):
        assert word in found.case.model_dump_json()
        assert word.lower() not in text.lower()
    assert "secret" not in text
    assert "tenant" not in text
    assert "fine" not in text, "the answer's text"
    first, second, _ = hidden.case.operations
    parameters = first.parameters
    function = parameters["tools"][0]["function"]
    assert parameters["tool_choice"]["function"]["name"] == function["name"] != "lookup_customer"
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
        chat("a", temperature=0.5, n=2, stream=True, reasoning_effort="low", tool_choice="auto"),
        chat("b", max_tokens=9, stream_options={"include_usage": True}),
    )
    hidden = anonymise(found)
    for was, now in zip(found.case.operations, hidden.case.operations, strict=True):
        for name in ("id", "after", "path", "parameters", "stream", "leave", "at_s"):
            assert getattr(now, name) == getattr(was, name)
    assert hidden.case.server == found.case.server


def test_a_seed_gives_the_same_again_and_another_something_else(tmp_path: Path) -> None:
    found = captured(tmp_path, chat([shown(data_url(1)), {"type": "text", "text": "some text"}]))
    once, again, other = (anonymise(found, seed).case for seed in (0, 0, 1))
    assert once == again
    assert once.operations != other.operations
    assert once.images != other.images


def test_what_a_refusal_says_of_the_longest_prompt_stays(tmp_path: Path) -> None:
    told = "This model's maximum context length is 2048 tokens. You wrote: Dear Mister Miller"
    response = {"status": 400, "content": {"text": told}}
    found = read(write(tmp_path, har([entry(response=response)])), SERVER)
    recorded = anonymise(found).case.operations[0].recorded
    assert recorded is not None
    assert recorded.text == "maximum context length is 2048 tokens"


def test_without_a_tokenizer_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no tokenizer\.json that can be read"):
        anonymise(captured(tmp_path, chat()), model=tmp_path)


# ---------------------------------------------------------------------- pictures


def encode(pixels: Any, form: str = "PNG", **how: Any) -> bytes:
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, form, **how)
    return buffer.getvalue()


def case_with(*images: bytes, media_type: str = "image/png") -> Captured:
    contents = Contents()
    named: dict[str, Image] = {
        f"i{n}": Content(sha256=contents.add(data), media_type=media_type)
        for n, data in enumerate(images)
    }
    content = [Part(image=name) for name in named]
    operations = [Operation(id="r1", messages=[Message(role="user", content=content)])]
    return Captured(Case(server=SERVER, images=named, operations=operations), contents)


def hidden_pixels(found: Captured, folder: Path) -> tuple[list[Any], Captured]:
    """Of each picture, as it is sent; None where it is broken."""
    hidden = anonymise(found)
    write_case(hidden.case, folder, hidden.contents)
    case, at = read_case(folder)
    made = pictures(case, at)
    return [look(made[name].png).pixels for name in case.images], hidden


def test_pictures_become_noise_of_their_size(tmp_path: Path) -> None:
    chance = np.random.default_rng(5)
    photo = chance.integers(0, 256, (50, 90, 3), dtype=np.uint8)
    found = case_with(encode(photo, "JPEG"), encode(photo[:, :60]), noise("", 9, (300, 10)).png)
    (one, two, three), hidden = hidden_pixels(found, tmp_path)
    assert [p.shape for p in (one, two, three)] == [(50, 90, 3), (50, 60, 3), (10, 300, 3)]
    assert not (one[:, :60] == two).all()
    assert not (one[:50, :90] == look(encode(photo, "JPEG")).pixels).all()
    assert {image.kind for image in hidden.case.images.values()} == {"noise"}
    assert len(hidden.contents) == 0


def test_the_same_pixels_in_another_file_stay_the_same_pixels(tmp_path: Path) -> None:
    pixels = np.random.default_rng(5).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    files = encode(pixels), encode(pixels, compress_level=0), encode(pixels[::-1])
    assert len(set(files)) == 3
    (one, two, three), _ = hidden_pixels(case_with(*files), tmp_path)
    assert (one == two).all()
    assert not (one == three).all()


@settings(max_examples=15)
@given(changed=st.integers(1, 60), seed=st.integers(0, 99))
def test_near_duplicates_stay_as_near(
    changed: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chance = np.random.default_rng(seed)
    first = chance.integers(0, 256, (56, 112, 3), dtype=np.uint8)
    near = first.copy()
    flat = near.reshape(-1, 3)
    flat[chance.choice(len(flat), changed, replace=False)] += 1
    far = chance.integers(0, 256, (56, 112, 3), dtype=np.uint8)
    found = case_with(encode(first), encode(far), encode(near))
    (one, other, two), _ = hidden_pixels(found, tmp_path_factory.mktemp("near"))
    assert int((one != two).any(axis=2).sum()) == changed
    assert int((one != other).any(axis=2).sum()) > 3000


def test_the_same_tiles_in_another_layout_stay_that(tmp_path: Path) -> None:
    found = case_with(*(tiles("", *layout, seed=3).png for layout in ((2, 4), (4, 2), (1, 8))))
    _, hidden = hidden_pixels(found, tmp_path)
    kinds = [image.kind for image in hidden.case.images.values()]
    assert kinds == ["tiles", "relayout", "relayout"]
    first = hidden.case.images["i0"]
    assert first.kind == "tiles"
    assert (first.rows, first.columns) == (2, 4)
    assert first.seed != 3


def test_broken_pictures_stay_broken_in_their_way(tmp_path: Path) -> None:
    whole = encode(np.zeros((64, 64, 3), dtype=np.uint8) + 7)
    cut, junk, header = whole[: len(whole) // 2], b"no picture at all, only words", whole[:20]
    found = case_with(cut, junk, header, whole, b"")
    (_, _, _, last, _), hidden = hidden_pixels(found, tmp_path)
    data = [
        hidden.contents[image.sha256] if isinstance(image, Content) else b""
        for image in hidden.case.images.values()
    ]
    assert (look(data[0]).size, look(data[0]).cut) == ((64, 64), True)
    assert look(data[1]).size is None
    assert look(data[2]).size is None
    assert (len(data[1]), len(data[2]), len(data[4])) == (len(junk), len(header), 0)
    assert data[1][:16] == junk[:16]
    assert b"words" not in data[1]
    assert last.shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("form", "mode"), [("PNG", "RGBA"), ("PNG", "L"), ("GIF", "P"), ("WEBP", "RGB")]
)
def test_unusual_formats_stay_what_they_are(form: str, mode: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Pillow.fromarray(pixels).convert(mode).save(buffer, form)
    found = case_with(buffer.getvalue(), media_type=f"image/{form.lower()}")
    _, hidden = hidden_pixels(found, tmp_path)
    image = hidden.case.images["i0"]
    assert isinstance(image, Content)
    assert image.media_type == f"image/{form.lower()}"
    seen = look(hidden.contents[image.sha256])
    assert (seen.size, seen.form) == ((40, 30), f"{form} {mode}")
    assert hidden.contents[image.sha256] != buffer.getvalue()


def test_a_very_large_picture_is_noise_as_large(tmp_path: Path) -> None:
    large = io.BytesIO()
    Pillow.new("RGB", (9000, 40), (1, 2, 3)).save(large, "PNG")
    _, hidden = hidden_pixels(case_with(large.getvalue()), tmp_path)
    image = hidden.case.images["i0"]
    assert isinstance(image, Content)
    assert look(hidden.contents[image.sha256]).size == (9000, 40)


def test_pictures_that_collide_are_no_pair_any_more_and_that_is_said(tmp_path: Path) -> None:
    folder = resources.files("mmrepro.scenarios.data") / "pad_value_pair"
    found = case_with(*((folder / name).read_bytes() for name in ("A.png", "B.png")))
    (one, two), hidden = hidden_pixels(found, tmp_path)
    assert not (one.shape == two.shape and (one == two).all())
    assert "(SGLang's pad value) no longer are such a pair" in " ".join(hidden.case.origin.notes)
    assert len({str(image) for image in hidden.case.images.values()}) == 2


def test_recipes_stay(tmp_path: Path) -> None:
    found = captured(tmp_path, chat([shown("https://pictures.example/a.png")]))
    hidden = anonymise(found)
    assert hidden.case.images == found.case.images
    assert "pictures" not in " ".join(hidden.case.origin.notes[-1:])


def test_payloads_within_parts_are_replaced_as_well(tmp_path: Path) -> None:
    sound = base64.b64encode(b"RIFF" + bytes(40) + b"spoken words " * 30).decode()
    odd = "data:image/png;base64,%%%" + "secretwords" * 9
    keyed = {"type": "image_url", "image_url": {"url": data_url(5, (84, 56))}, "uuid": "cust-7"}
    parts = [
        {"type": "input_audio", "input_audio": {"data": sound, "format": "wav"}},
        shown(odd),
        keyed,
        keyed,
    ]
    hidden = anonymise(captured(tmp_path, chat(parts)))
    messages = hidden.case.operations[0].messages
    assert messages is not None
    audio, broken, one, two = (part.raw for part in messages[0].parts())
    assert audio is not None
    assert broken is not None
    assert one is not None
    assert one == two
    data = audio["input_audio"]["data"]
    assert (len(data), data[:60], audio["input_audio"]["format"]) == (len(sound), sound[:60], "wav")
    assert data != sound
    url = broken["image_url"]["url"]
    assert (len(url), url[:25]) == (len(odd), odd[:25])
    assert "secretwords" not in url
    picture = base64.b64decode(one["image_url"]["url"].partition(",")[2])
    assert look(picture).size == (84, 56)
    assert picture != noise("", 5, (84, 56)).png
    assert one["uuid"] not in ("cust-7", "")
