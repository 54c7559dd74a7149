"""What real engines log of requests: lines that tests/engine/record_request_logs.py
recorded."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_up_har import SERVER, write
from mmrepro.base.errors import MmreproError, UsageError
from mmrepro.traffic.capture.messages import Captured
from mmrepro.traffic.capture.parsing import TEXT
from mmrepro.traffic.capture.read import read
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.files import pictures, read_case, write_case
from mmrepro.traffic.case.model import Operation

LOGS = Path(__file__).parent / "request_logs"
SENT: list[dict[str, Any]] = json.loads(
    gzip.decompress((LOGS / "sent.json.gz").read_bytes())
)
PICTURES = "pictures, which the log does not carry"
REFUSED = "refused before vLLM logs the prompt"


def text_of(name: str) -> str:
    return gzip.decompress((LOGS / f"{name}.log.gz").read_bytes()).decode()


def captured(name: str, folder: Path) -> Captured:
    return read(write(folder, text_of(name), "engine.log"), SERVER)


def bodies(found: Captured, folder: Path) -> list[dict[str, Any]]:
    write_case(found.case, folder, found.contents)
    case, at = read_case(folder)
    made = pictures(case, at)
    return [json.loads(body(op, made, "tiny")) for op in case.operations]


def templated(sent: dict[str, Any]) -> str:
    """The prompt that the tiny model's chat template makes of it."""
    turns = []
    for message in sent["messages"]:
        content = message["content"]
        if not isinstance(content, str):
            mark = "<|vision_start|><|image_pad|><|vision_end|>"
            content = "".join(
                mark if p["type"] == "image_url" else p["text"] for p in content
            )
        turns.append(f"<|im_start|>{message['role']}\n{content}<|im_end|>\n")
    return "".join(turns) + "<|im_start|>assistant\n"


def has_picture(sent: dict[str, Any]) -> bool:
    return "image_url" in json.dumps(sent)


def together(operations: list[Operation]) -> list[str]:
    """What the four that ran at once waited for, and the one behind them."""
    return [
        " ".join(op.after)
        for op in operations
        if "together" in op.model_dump_json()
        or "count for ever" in op.model_dump_json()
    ]


# ---------------------------------------------------------------------- vLLM


@pytest.mark.parametrize("name", ["vllm-0.11.0", "vllm-0.23.0"])
def test_prompts_of_vllm_are_played_as_they_stand_behind_the_template(
    name: str, tmp_path: Path
) -> None:
    found = captured(name, tmp_path)
    logged = [
        s["body"]
        for s in SENT
        if not has_picture(s["body"])
        and s["status"] != 400
        and (
            name == "vllm-0.23.0" or "prompt" not in s["body"]
        )  # 0.11.0 logs None for those
    ]
    wanted = sorted(
        templated(b) if "messages" in b else str(b["prompt"]) for b in logged
    )
    operations = found.case.operations
    assert sorted(str(op.prompt) for op in operations) == wanted
    assert {op.path for op in operations} == {"/v1/completions"}
    stop = next(op for op in operations if "stop here" in str(op.prompt))
    assert stop.parameters == {
        "max_tokens": 6,
        "temperature": 0.0,
        "stop": ["zzz", "it's"],
        "add_special_tokens": False,
    }
    warm = next(op for op in operations if op.parameters["temperature"] == 0.5)
    assert (warm.parameters["seed"], warm.parameters["top_p"]) == (3, 0.9)
    left = found.case.origin.left_out
    assert (left[PICTURES], left[REFUSED]) == (3, 1)
    assert "1 requests were refused" in " ".join(found.case.origin.notes)
    assert [op.leave for op in operations][-2:] == ["sent", ""]
    assert [text.split()[-1] for text in together(operations)] == [
        "running<=0",
        "running<=1",
        "running<=2",
        "running<=3",
        "running<=0",
    ]


def test_without_prompts_the_log_of_vllm_is_of_no_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as told:
        captured("vllm-0.23.0-info", tmp_path)
    assert "no request that can be played, of 19" in told.value.message
    assert "18 × a prompt that the log does not carry" in told.value.message
    assert "--set hardump=FILE records a HAR" in told.value.hint


def test_vllm_0_32_logs_whole_bodies(tmp_path: Path) -> None:
    found = captured("vllm-0.32.0", tmp_path)
    usage = {"stream_options": {"include_usage": True}}
    sent = [s["body"] | (usage if s["body"].get("stream") else {}) for s in SENT]
    again = bodies(found, tmp_path / "case")
    assert sorted(str(ordered(b)) for b in again) == sorted(
        str(ordered(b)) for b in sent
    )
    assert len(found.contents) == 2
    assert found.case.origin.left_out == {}


@pytest.mark.parametrize("name", ["vllm-0.23.0", "sglang-0.5.6-l3"])
def test_what_an_engine_adds_to_a_request_by_itself_is_not_sent(
    name: str, tmp_path: Path
) -> None:
    added = {"ignore_eos": False, "top_k": -1, "presence_penalty": 0.0, "n": 1}
    asked_for = []
    for operation in captured(name, tmp_path).case.operations:
        parameters = operation.parameters
        for parameter, usual in added.items():
            assert parameters.get(parameter, "not sent") != usual
        asked_for += [*parameters]
    assert {"ignore_eos", "top_p"} <= {*asked_for}


def ordered(value: Any) -> Any:
    """Keys in order: pydantic writes them in that of its classes."""
    if isinstance(value, dict):
        return {k: ordered(value[k]) for k in sorted(value)}
    if isinstance(value, list):
        return [ordered(item) for item in value]
    return (
        float(value)
        if isinstance(value, int) and not isinstance(value, bool)
        else value
    )


# ---------------------------------------------------------------------- SGLang


@pytest.mark.parametrize(
    "name", ["sglang-0.5.17-l3", "sglang-0.5.17-json", "sglang-0.5.23-json"]
)
def test_sglang_logs_whole_bodies(name: str, tmp_path: Path) -> None:
    found = captured(name, tmp_path)
    operations = found.case.operations
    sent = [s["body"] for s in SENT]
    assert len(operations) == len(sent) + 1
    asked = {json.dumps(ordered(b.get("messages", b.get("prompt")))) for b in sent}
    got = {
        json.dumps(ordered(b.get("messages", b.get("prompt"))))
        for b in bodies(found, tmp_path / "case")
    }
    assert got == asked | {json.dumps("raw generate it's")}
    assert len(found.contents) == 2
    stop = next(op for op in operations if "stop here" in op.model_dump_json())
    assert stop.parameters == {
        "max_tokens": 6,
        "temperature": 0.0,
        "stop": ["zzz", "it's"],
    }
    shape(operations)


def test_sglang_before_0_5_17_logs_prompts_and_pictures(tmp_path: Path) -> None:
    found = captured("sglang-0.5.6-l3", tmp_path)
    operations = found.case.operations
    shape(operations)
    with_pictures = [op for op in operations if op.images]
    assert [op.images for op in with_pictures] == [["i1"], ["i1"], ["i2", "i1"]]
    wanted = [s["body"]["messages"] for s in SENT if has_picture(s["body"])]
    assert [
        b["messages"] for b in bodies(found, tmp_path / "c") if has_picture(b)
    ] == wanted
    texts = {templated(s["body"]) for s in SENT if "messages" in s["body"]}
    texts -= {templated(s["body"]) for s in SENT if has_picture(s["body"])}
    plain = {str(op.prompt) for op in operations if op.prompt is not None}
    assert plain == texts | {"once upon", "[40, 41, 42, 43]", "raw generate it's"}


def shape(operations: list[Operation]) -> None:
    """Who ran beside whom, who was refused, and whose client left; as in every
    recording."""
    by_text = {op.model_dump_json(): op for op in operations}
    one = {
        key: next(op for text, op in by_text.items() if key in text)
        for key in ("too long", "stop here", "count for ever", "the last one")
    }
    too_long = one["too long"]
    assert too_long.recorded is not None
    assert too_long.recorded.status == 400
    assert one["stop here"].after == [f"{too_long.id}.end"]
    assert (one["count for ever"].leave, one["the last one"].leave) == ("sent", "")
    four = [op for text, op in by_text.items() if "together" in text]
    assert set(one["count for ever"].after) == {f"{op.id}.end" for op in four}
    assert all(len(op.after) == 2 for op in four[1:]), (
        "the end before them, and the sending"
    )
    answered = [op for op in operations if op.recorded and op.recorded.status == 200]
    assert all(op.recorded and op.recorded.prompt_tokens for op in answered)


def test_a_request_that_the_log_has_cut_is_left_out(tmp_path: Path) -> None:
    """Level 2 cuts texts of more than 2048 characters; a list of messages it does
    not."""
    found = captured("sglang-0.5.17-l2", tmp_path)
    shape(found.case.operations)
    printed = text_of("sglang-0.5.17-l2").replace("Receive OpenAI: ", "Other: ")
    found = read(write(tmp_path, printed, "engine.log"), SERVER)
    cut = "a request that the log has cut (--log-requests-level 3 does not)"
    assert found.case.origin.left_out[cut] == 1
    assert "too long" not in found.case.model_dump_json()


def test_a_request_that_a_log_in_json_has_cut_is_left_out(tmp_path: Path) -> None:
    """As SGLang 0.5.17 cuts at level 2: half of 2048 characters at each end."""
    lines = text_of("sglang-0.5.17-json").splitlines(True)
    cut = f'"{"x" * 1024}...{"y" * 1024}"'
    of_one = [
        re.sub(r'"[^"]*stop here[^"]*"', cut, line)
        for line in lines
        if "stop here" in line
    ]
    for kept in (of_one, [line for line in of_one if "received.openai" not in line]):
        found = read(
            write(tmp_path, "".join([*lines[-3:], *kept]), "engine.log"), SERVER
        )
        assert list(found.case.origin.left_out) == [
            "a request that the log has cut (--log-requests-level 3 does not)"
        ]
        assert "xxxx" not in found.case.model_dump_json()


def test_two_requests_of_one_moment_are_told_apart_by_their_texts(
    tmp_path: Path,
) -> None:
    lines = text_of("sglang-0.5.17-l3").splitlines(True)

    def line(event: str, number: int) -> str:
        return next(
            x for x in lines if f"{event}: obj=" in x and f"together {number}" in x
        )

    crossed = [line("Receive OpenAI", 0), line("Receive OpenAI", 1)]
    crossed += [line("Receive", 1), line("Receive", 0), line("Finish", 1)]
    crossed += [
        line("Receive OpenAI", 2),
        line("Receive", 2),
        line("Finish", 2),
        line("Finish", 0),
    ]
    found = read(write(tmp_path, "".join(crossed), "engine.log"), SERVER)
    texts = [
        str(op.messages and op.messages[0].content) for op in found.case.operations
    ]
    assert texts == ["together 0", "together 1", "together 2"]
    assert found.case.operations[2].after == ["r2.end"], "not r1.end: that one ran on"


def test_a_picture_in_an_unknown_template_is_left_out(tmp_path: Path) -> None:
    whole = text_of("sglang-0.5.6-l3")
    why = "pictures in a prompt whose chat template is not known"
    for changed in (
        whole.replace("<|im_start|>user", "[INST]"),
        whole.replace("<|vision_start|><|image_pad|><|vision_end|>", "<image>"),
    ):
        found = read(write(tmp_path, changed, "engine.log"), SERVER)
        assert found.case.origin.left_out == {why: 3}


def test_below_level_2_there_is_no_prompt(tmp_path: Path) -> None:
    printed = re.compile(rf"\b(?:text|input_ids)=(?:{TEXT}|None|\[[\d, ]*\]), ")
    lines = printed.sub("", text_of("sglang-0.5.6-l3"))
    with pytest.raises(UsageError, match="the log does not carry"):
        read(write(tmp_path, lines, "engine.log"), SERVER)


# ---------------------------------------------------------------------- any log


@pytest.mark.parametrize(
    "name", sorted(p.name.removesuffix(".log.gz") for p in LOGS.glob("*.log.gz"))
)
def test_nothing_private_of_a_log_goes_further(name: str, tmp_path: Path) -> None:
    """The recordings' access lines have a query with a secret."""
    text = text_of(name)
    try:
        found = read(write(tmp_path, text, "engine.log"), SERVER)
    except MmreproError:
        return
    assert "127.0.0.1" in text
    assert "127.0.0.1" not in found.case.model_dump_json()
    assert "planted" not in found.case.model_dump_json()


@pytest.mark.parametrize("name", ["vllm-0.11.0", "vllm-0.32.0", "sglang-0.5.6-l3"])
def test_any_part_of_a_log_is_read_or_one_sentence(name: str, tmp_path: Path) -> None:
    text = text_of(name)
    for begin, end in ((0, 5000), (3000, 9000), (len(text) // 2, len(text) - 70)):
        try:
            found = read(
                write(tmp_path, text[begin:end].encode() + b"\xff\x00", "part.log"),
                SERVER,
            )
        except UsageError:
            continue
        assert found.case.operations


@pytest.mark.parametrize(
    "printed",
    [
        "__import__('os').system('touch ran')",
        "SamplingParams(n=__import__('os').system('touch ran'))",
        "SamplingParams(" + "[" * 5000,
        "SamplingParams(stop=" + "(" * 90 + ")" * 90 + ")",
        "SamplingParams(n=1, stop=<object at 0x7f>)",
        "SamplingParams(*a, **b)",
        "SamplingParams(n=1 + __import__('os').system('touch ran'))",
        "SamplingParams(n=[__import__('os').system('touch ran') for x in (1, 2)])",
    ],
)
def test_what_a_log_prints_is_never_run(
    printed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = (
        f"INFO 11-23 06:49:21 Received request cmpl-1: prompt: 'x', params: {printed}, "
    )
    line += "prompt_token_ids: None, lora_request: None.\n"
    good = text_of("vllm-0.11.0").splitlines(True)[0]
    found = read(write(tmp_path, line + good, "engine.log"), SERVER)
    assert not (tmp_path / "ran").exists()
    assert [op.prompt for op in found.case.operations if op.prompt == "x"] in (
        [],
        ["x"],
    )
