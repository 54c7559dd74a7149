"""Traces without texts: read, written, and the profiles that stand in for one."""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from made_up_har import SERVER, answer, chat, data_url, entry, har, shown, write
from mmrepro.base.common_options import read_window, write_window
from mmrepro.base.errors import UsageError
from mmrepro.cli.app import app
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.capture.mooncake import RecordingExcerpt, read_trace, write_trace
from mmrepro.traffic.capture.parsing import TextLine
from mmrepro.traffic.capture.profiles import PROFILES
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.capture.texts import common, encoded_by
from mmrepro.traffic.case.model import COMPLETIONS, Case, Operation, ServerWanted
from typer.testing import CliRunner

LONG = SERVER.model_copy(update={"max_model_len": 1 << 20})
Tokens = tuple[int, ...]


def row(
    at: float = 0, prompt: int = 600, out: int = 4, ids: Any = (1, 2), **more: Any
) -> str:
    told = {
        "timestamp": at,
        "input_length": prompt,
        "output_length": out,
        "hash_ids": list(ids),
    }
    return json.dumps({**told, **more}) + "\n"


def trace(folder: Path, *rows: str) -> Path:
    return write(folder, "".join(rows), "night.jsonl")


def prompts(case: Case) -> list[list[int]]:
    return [encoded_by("qwen2-vl", str(op.prompt)) for op in case.operations]


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def sharing(texts: Sequence[Sequence[Any]]) -> dict[tuple[int, int], int]:
    """Of each pair: the length of what the two have in common at their beginning."""
    return {
        (i, j): common(texts[i], texts[j])
        for i, j in itertools.combinations(range(len(texts)), 2)
    }


# ---------------------------------------------------------------------- read


def test_a_trace_becomes_requests_of_exactly_its_lengths_at_its_times(
    tmp_path: Path,
) -> None:
    file = trace(
        tmp_path, row(500, 600), row(1750, 1030, 9, (1, 3, 4)), row(1750, 512, 0, (1,))
    )
    case = read(file, LONG).case
    assert [len(one) for one in prompts(case)] == [600, 1030, 512]
    assert [op.parameters["max_tokens"] for op in case.operations] == [4, 9, 1]
    assert all(op.stream and op.parameters["ignore_eos"] for op in case.operations)
    assert [op.at_s for op in case.operations] == [0, 1.25, 1.25]
    assert [op.after for op in case.operations] == [
        [],
        ["r1.sent", "running<=255"],
        ["r2.sent", "running<=255"],
    ]
    assert case.origin.format == "mooncake"
    assert case.title == "3 requests from a Mooncake trace"
    assert sharing(prompts(case)) == {(0, 1): 512, (0, 2): 512, (1, 2): 512}
    assert read(file, LONG).case == case, "made up anew, it is the same"
    assert read(file, LONG, seed=1).case != case
    assert read(file, LONG, concurrency=2).case.operations[2].after == [
        "r2.sent",
        "running<=1",
    ]


def test_other_names_and_forms_of_a_trace(tmp_path: Path) -> None:
    other = {
        "created_time": 20.5,
        "input_tokens": 20,
        "output_tokens": 2,
        "hash_ids": ["a0", "b1"],
    }
    bailian = {
        "chat_id": 9,
        "timestamp": 61.114,
        "input_length": 40,
        "output_length": 2,
        "type": "text",
    }
    file = trace(
        tmp_path,
        json.dumps(other) + "\n",
        "\n",
        row(30, 16, 2, ["a0"]),
        row(31, 9, 1, []),
    )
    case = read(file, LONG).case
    assert [op.at_s for op in case.operations] == [0, 0.0095, 0.0105]
    assert [len(one) for one in prompts(case)] == [20, 16, 9]
    assert sharing(prompts(case))[0, 1] == 16, (
        "blocks of 16 tokens, since none larger fits"
    )
    file = trace(
        tmp_path,
        *(
            json.dumps({**bailian, "hash_ids": ids}) + "\n"
            for ids in ([7, 8, 9], [7, 8])
        ),
    )
    assert sharing(prompts(read(file, LONG).case)) == {(0, 1): 32}, (
        "what is behind two blocks differs"
    )
    file = trace(
        tmp_path, *(row(n, 8, ids=[], session_id=name) for n, name in enumerate("aba"))
    )
    after = [op.after for op in read(file, LONG).case.operations]
    assert after[1:] == [
        ["r1.sent", "running<=255"],
        ["r1.end", "r2.sent", "running<=255"],
    ]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("{", "it is no JSON"),
        ("[1]", "it is no JSON object"),
        ('{"a": 1}', "it has no input_length"),
        (row(-1), "its timestamp is no number of milliseconds from 0 on"),
        (row(True), "its timestamp is no number of milliseconds from 0 on"),
        (row(0, 0), "its input_length is no number of tokens from 1 on"),
        (row(0, 10**9), "its input_length is no number of tokens from 1 on"),
        (row(out=-1), "its output_length is no number of tokens from 0 on"),
        (row(out="4"), "its output_length is no number of tokens from 0 on"),  # type: ignore[arg-type]
        (row(ids=[1.5]), "its hash_ids are no list of numbers"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "it is no JSON"),
        (
            row(0, 600, 4, range(9)),
            "9 hash_ids are too many for 600 tokens in blocks of 512",
        ),
    ],
)
def test_a_bad_line_is_one_sentence_that_names_it(
    tmp_path: Path, bad: str, why: str
) -> None:
    file = trace(
        tmp_path, row(), row(1, 5120, ids=range(10)), bad.strip() + "\n", row()
    )
    with pytest.raises(UsageError) as caught:
        read(file, LONG)
    assert caught.value.message == f"night.jsonl, line 3: {why}."


def test_lengths_are_scaled_to_the_model_and_shared_blocks_stay(tmp_path: Path) -> None:
    rows = [
        row(
            n,
            120_000 - n,
            1000,
            [*range(100 + n), *range(1000 * n + 1000, 1000 * n + 1130)],
        )
        for n in range(3)
    ]
    case = read(trace(tmp_path, *rows), SERVER).case
    made = prompts(case)
    for op, one in zip(case.operations, made, strict=True):
        assert 0 < SERVER.max_model_len - len(one) - op.parameters["max_tokens"] < 8
    factor = (SERVER.max_model_len - 1) / 121_000
    expected = {
        pair: math.floor((100 + pair[0]) * 512 * factor)
        for pair in ((0, 1), (0, 2), (1, 2))
    }
    assert sharing(made) == expected
    assert any(
        "scaled by 0.0169" in note and "121000 tokens" in note
        for note in case.origin.notes
    )


def test_an_engine_without_plain_completions_gets_chats_of_the_same_lengths(
    tmp_path: Path,
) -> None:
    case = read(
        trace(tmp_path, row(0, 700), row(1, 12, ids=[])),
        ServerWanted(engine="minivllm", release="0.1", model="qwen3"),
    ).case
    message = case.operations[0].messages
    assert message is not None
    begun, ended = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"
    assert len(encoded_by("qwen3", f"{begun}{message[0].content}{ended}")) == 700
    assert (
        "1 prompts are longer, since the engine adds 19 tokens to each."
        in case.origin.notes
    )


def endless() -> Iterator[TextLine]:
    for number in itertools.count():
        yield TextLine(number + 1, row(number * 1000))


def test_no_more_is_read_than_is_wanted() -> None:
    made = read_trace(endless(), "t", 20_000, RecordingExcerpt(first=3))
    assert [one.at_s for one in made.rows] == [0, 1, 2]
    made = read_trace(endless(), "t", 5, RecordingExcerpt(begin=10))
    assert [one.at_s for one in made.rows] == [10, 11, 12, 13, 14]
    assert made.notes == ["Only the first 5 rows of the trace are read."]


def test_a_part_of_any_recording(tmp_path: Path) -> None:
    recorded = write(tmp_path, har([entry(chat(str(n)), at=n) for n in range(6)]))
    traced = trace(tmp_path, *(row(n * 1000) for n in range(6)))
    for file in (recorded, traced):
        assert len(read(file, LONG, excerpt=RecordingExcerpt(2)).case.operations) == 2
        part = read(file, LONG, excerpt=RecordingExcerpt(2, 2, 5)).case.operations
        assert [op.at_s for op in part] == [0, 1]
        with pytest.raises(UsageError, match="no request in that time"):
            read(file, LONG, excerpt=RecordingExcerpt(None, 9))
    with pytest.raises(UsageError, match=r"--window 5\.\.2 is no span of time"):
        read_window("5..2")
    for text in ("1m..2m", "0..30s", "1h..7d"):
        assert write_window(read_window(text)) == text


# ---------------------------------------------------------------------- written

RUNS = st.integers(1, 700)


@st.composite
def conversations(draw: st.DrawFn) -> list[Tokens]:
    """Prompts that begin alike as conversations do: each continues some beginning of
    another."""
    made: list[Tokens] = []
    for number in range(draw(st.integers(1, 6))):
        before = draw(st.sampled_from(made)) if made and draw(st.booleans()) else ()
        kept = before[: draw(st.integers(0, len(before)))]
        made.append((*kept, *([33 + number] * draw(RUNS))))
    return made


@given(conversations())
@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_there_and_back_the_same_prompts_begin_alike(
    tmp_path: Path, made: list[Tokens]
) -> None:
    operations = [
        Operation(
            id=f"r{n}",
            path=COMPLETIONS,
            prompt="".join(map(chr, tokens)),
            parameters={"max_tokens": 5 + n},
            at_s=n / 8,
        )
        for n, tokens in enumerate(made)
    ]
    file = tmp_path / "t.jsonl"
    write_trace(Captured(Case(server=LONG, operations=operations), {}), file)
    rows = rows_of(file)
    assert [one["timestamp"] for one in rows] == [125 * n for n in range(len(made))]
    assert [one["input_length"] for one in rows] == list(map(len, made))
    assert [one["output_length"] for one in rows] == [5 + n for n in range(len(made))]
    assert all(len(one["hash_ids"]) == -(-one["input_length"] // 512) for one in rows)
    # Two blocks have one id where all tokens up to their ends are the same, and only
    # there.
    ids = {}
    for tokens, one in zip(made, rows, strict=True):
        for place, name in enumerate(one["hash_ids"], 1):
            assert ids.setdefault(name, tokens[: place * 512]) == tokens[: place * 512]
    assert len(set(ids.values())) == len(ids)
    back = read(file, LONG).case
    assert sharing(prompts(back)) == {
        pair: min(len(made[pair[0]]), len(made[pair[1]]), blocks * 512)
        for pair, blocks in sharing([one["hash_ids"] for one in rows]).items()
    }
    again = tmp_path / "again.jsonl"
    write_trace(Captured(back, {}), again)
    assert sharing([one["hash_ids"] for one in rows_of(again)]) == sharing(
        [one["hash_ids"] for one in rows]
    )


def test_a_recording_leaves_no_text_behind_and_no_hash_to_look_up(
    tmp_path: Path,
) -> None:
    told = [
        chat("Erika Mustermann " * 90, user="erika@example.org"),
        chat("Erika Mustermann " * 90 + "and more"),
        chat([shown(data_url(1)), {"type": "text", "text": "what?"}]),
        chat([shown(data_url(2)), {"type": "text", "text": "what?"}]),
    ]
    file = write(tmp_path, har([entry(body, at=n) for n, body in enumerate(told)]))
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    captured = read(file, SERVER)
    made = write_trace(captured, first)
    write_trace(captured, second)
    assert "rika" not in first.read_text()
    assert set(rows_of(first)[0]) == {
        "timestamp",
        "input_length",
        "output_length",
        "hash_ids",
    }
    ids = [
        {i for one in rows_of(file) for i in one["hash_ids"]}
        for file in (first, second)
    ]
    assert not ids[0] & ids[1], "each file has a key of its own"
    assert max(ids[0]) < 2**53, "any reader of JSON keeps such numbers"
    assert made.requests == 4
    assert [one["output_length"] for one in rows_of(first)] == [4] * 4, (
        "by the server's usage"
    )
    assert [one["input_length"] for one in rows_of(first)] == [7] * 4
    assert made.distinct == 4, "two pictures are two prompts"


def test_lengths_of_the_tokenizer_fill_in_for_a_server_that_told_none(
    tmp_path: Path,
) -> None:
    long, short = "a" * 999, "b" * 99
    silent = {
        "status": 200,
        "content": {"text": '{"choices": []}', "mimeType": "application/json"},
    }
    usage = {"prompt_tokens": 500, "completion_tokens": 6}
    refused = {**answer(), "status": 400}
    body = chat(short)
    del body["max_tokens"]
    recorded = har(
        [
            entry(chat(long), response=answer(usage=usage)),
            entry(body, at=1, response=silent),
            entry(chat(long), at=2, response=refused),
            entry("", at=3, method="GET", url="http://127.0.0.1:8000/health"),
        ]
    )
    file = tmp_path / "t.jsonl"
    made = write_trace(read(write(tmp_path, recorded), SERVER), file)
    # Of 1000 units, a role and 999 tokens, the server's own tokenizer made 500.
    assert [one["input_length"] for one in rows_of(file)] == [500, 50]
    assert [one["output_length"] for one in rows_of(file)] == [6, 6]
    assert made.notes == [
        "1 requests are left out: 400 was answered.",
        "1 requests are left out: no token is generated.",
        "Of 1 requests no answer's length is known: the others' median, 6.",
        "1 prompts without a usage are counted by the tiny models' tokenizer, one "
        "token a byte, times 0.5.",
    ]
    with pytest.raises(
        UsageError, match="tells of no request how many tokens were generated"
    ):
        write_trace(
            read(write(tmp_path, har([entry(body, response=silent)])), SERVER), file
        )


def test_the_command_writes_a_trace_that_replay_reads(tmp_path: Path) -> None:
    file = write(
        tmp_path, har([entry(chat("x" * n), at=n / 10) for n in (600, 700, 900)])
    )
    out = tmp_path / "night.jsonl"
    words = ["capture", str(file), "--mooncake", str(out), "--first", "2"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(
        "2 requests in 10 s: 14 tokens of prompts in 2 blocks"
    )
    assert len(read(out, SERVER).case.operations) == 2
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert (told["file"], told["requests"], told["answer_tokens"]) == (
        "night.jsonl",
        2,
        8,
    )


# ---------------------------------------------------------------------- profiles


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_traffic_where_there_is_no_recording(name: str) -> None:
    case = read(Path(name), SERVER).case
    assert case.title == f"200 requests from a profile {name}"
    assert any(PROFILES[name].source in note for note in case.origin.notes)
    assert any("are scaled by" in note for note in case.origin.notes), (
        "lengths are the source's"
    )
    made = prompts(case)
    for op, one in zip(case.operations, made, strict=True):
        assert len(one) + op.parameters["max_tokens"] <= SERVER.max_model_len
    moments = [op.at_s or 0 for op in case.operations]
    assert moments == sorted(moments)
    assert read(Path(name), SERVER).case == case
    assert read(Path(name), SERVER, seed=1).case != case
    few = read(Path(name), SERVER, excerpt=RecordingExcerpt(5)).case.operations
    assert [op.at_s for op in few] == moments[:5]
    if PROFILES[name].system:
        assert min(sharing(made[:20]).values()) > 10, "all begin with the system prompt"
    sessions = sum(any(".end" in text for text in op.after) for op in case.operations)
    assert (sessions > 20) is (PROFILES[name].turns > 1)


def test_a_file_called_like_a_profile_is_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chat").write_text(row(0, 7, ids=[]))
    assert read(Path("chat"), SERVER).case.origin.format == "mooncake"
