"""One picture and one question, without a server: what is prefilled, how fast, and the
answer.

``python -m minivllm.demo --model FOLDER [--image-path FILE] [--max-tokens N]
[QUESTION]``, as the milestone note's ``main.py`` does it. With ``--vision fake`` (here
the default) the embeddings say nothing of the picture, and the answer may be empty."""

import argparse
import base64
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .chat import BadRequest, Chat
from .config import EngineConfig, ModelConfig


def body(question: str, image: Path | None, max_tokens: int) -> bytes:
    """A chat request's. Raises OSError: the picture cannot be read."""
    parts = []
    if image is not None:
        data = base64.b64encode(image.read_bytes()).decode()
        url = f"data:image/{image.suffix[1:] or 'png'};base64,{data}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
    parts.append({"type": "text", "text": question})
    messages = [{"role": "user", "content": parts}]
    return json.dumps(
        {"messages": messages, "max_tokens": max_tokens, "temperature": 0}
    ).encode()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("question", nargs="?", default="What is in the picture?")
    parser.add_argument(
        "--model", type=Path, required=True, help="folder with a tiny Qwen3"
    )
    parser.add_argument("--image-path", type=Path)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--vision", choices=("fake", "tower"), default="fake")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(argv)
    try:
        asked = body(options.question, options.image_path, options.max_tokens)
        chat = Chat(options.model, ModelConfig.read(options.model).vision)
        prompt = chat.prompt(asked)
    except (OSError, BadRequest) as error:
        print(f"minivllm: {error}", file=sys.stderr)
        return 2
    from .loading import load

    engine = load(
        options.model, EngineConfig(vision=options.vision, device=options.device)
    )
    began = time.monotonic()
    seq = engine.add(prompt.token_ids, prompt.images, max_tokens=prompt.max_tokens)
    while engine.busy and not seq.output_ids and not seq.finish_reason:
        engine.step()
    first = time.monotonic()
    while engine.busy and not seq.finish_reason:
        engine.step()
    ended = time.monotonic()
    if seq.error:
        print(f"minivllm: {seq.error}", file=sys.stderr)
        return 1
    decoded = max(0, len(seq.output_ids) - 1)
    told = {
        "prefill_tokens": prompt.num_tokens,
        "of_the_picture": prompt.num_tokens - len(prompt.token_ids),
        "prefill_tokens_per_s": round(prompt.num_tokens / (first - began), 1),
        "decode_tokens_per_s": round(decoded / (ended - first), 1) if decoded else None,
        "finish_reason": seq.finish_reason,
        "answer": chat.text(seq.output_ids),
    }
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
