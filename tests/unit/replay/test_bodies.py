"""What of an operation goes over the wire."""

import json
from typing import Any

import pytest
from mmrepro.traffic.case.bodies import body
from mmrepro.traffic.case.model import COMPLETIONS, Layout, Message, Operation, Part
from mmrepro.traffic.pictures import noise

X = noise("X", 1, (28, 28))


def sent(**fields: Any) -> dict[str, Any]:
    made = body(Operation(id="r", **fields), {"X": X}, "tiny")
    assert made == body(Operation(id="r", **fields), {"X": X}, "tiny")
    read: dict[str, Any] = json.loads(made)
    return read


def test_a_chat_with_every_kind_of_part() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    parts = [Part(image="X"), Part(text="what?"), Part(raw=audio)]
    tool = Message(
        role="assistant", content="", more={"tool_calls": [], "content": "not this"}
    )
    read = sent(
        messages=[
            Message(role="system", content="be"),
            Message(role="user", content=parts),
            tool,
        ],
        parameters={"max_tokens": 3, "model": "gpt-4o", "messages": [], "stream": True},
    )
    assert read == {
        "max_tokens": 3,
        "model": "tiny",
        "messages": [
            {"role": "system", "content": "be"},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": X.data_url}},
                    {"type": "text", "text": "what?"},
                    audio,
                ],
            },
            {"role": "assistant", "content": "", "tool_calls": []},
        ],
    }


@pytest.mark.parametrize("prompt", ["once", [1, 2, 3]])
def test_a_plain_completion(prompt: str | list[int]) -> None:
    assert sent(path=COMPLETIONS, prompt=prompt) == {"model": "tiny", "prompt": prompt}


def test_a_stream_asks_for_its_usage_unless_the_case_says_otherwise() -> None:
    assert sent(prompt="a", stream=True)["stream_options"] == {"include_usage": True}
    for said in ({"include_usage": False}, None):
        read = sent(prompt="a", stream=True, parameters={"stream_options": said})
        assert (read["stream_options"], read["stream"]) == (said, True)
    assert "stream_options" not in sent(prompt="a")


@pytest.mark.parametrize(
    ("layout", "model", "named"),
    [
        (["model", "prompt"], None, {"model": "tiny"}),
        (["prompt"], None, {}),
        (["model", "prompt"], "", {}),
    ],
)
def test_an_endpoint_of_any_kind_is_told_the_model_that_its_recording_names(
    layout: list[str], model: str | None, named: dict[str, str]
) -> None:
    """As Ollama's ``/api/generate``."""
    asked = {"parameters": {"prompt": "a"}, "layout": Layout(keys=layout)}
    assert sent(path="/api/generate", model=model, **asked) == {**named, "prompt": "a"}
