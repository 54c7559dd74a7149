"""Record what engines log of requests, for tests/unit/replay/request_logs:

    MMREPRO_START_MODE=cold python tests/engine/record_request_logs.py

They need recording again only when an engine changes its log.
"""

import gzip
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path

from live_server import serving
from mmrepro.engines.models import TinyQwen2VL
from recorded_traffic import Sent, ask, requests, send

FOLDER = Path(__file__).parents[1] / "unit/replay/request_logs"
SGLANG = ("--log-requests", "--log-requests-level", "3")
JSON = (*SGLANG, "--log-requests-format", "json")
VLLM = ("--enable-log-requests",)
RECORDED = {
    "vllm-0.11.0": ("vllm", "0.11.0", VLLM, {}),
    "vllm-0.23.0": ("vllm", "0.23.0", VLLM, {}),
    "vllm-0.23.0-info": ("vllm", "0.23.0", VLLM, {"VLLM_LOGGING_LEVEL": "INFO"}),
    "vllm-0.32.0": ("vllm", "0.32.0", VLLM, {}),
    "sglang-0.5.6-l3": ("sglang", "0.5.6", SGLANG, {}),
    "sglang-0.5.17-l3": ("sglang", "0.5.17", SGLANG, {}),
    "sglang-0.5.17-l2": ("sglang", "0.5.17", (*SGLANG[:2], "2"), {}),
    "sglang-0.5.17-json": ("sglang", "0.5.17", JSON, {}),
    "sglang-0.5.23-json": ("sglang", "0.5.23", JSON, {}),
}
KEPT = re.compile(
    r'Received request |Request \S+ (?:details: |JSON body|aborted)|"POST /'
    r'|Receive: |Receive OpenAI: |Finish: |"event": "request'
)


def record(name: str) -> None:
    engine, release, args, env = RECORDED[name]
    with tempfile.TemporaryDirectory() as folder:
        with serving(
            engine, release, TinyQwen2VL(), Path(folder), *args, env=env
        ) as server:
            sent: list[Sent] = send(server.url, requests("tiny"))
            if engine == "sglang":
                sampling = {"max_new_tokens": 3, "temperature": 0}
                ask(
                    server.url,
                    "/generate",
                    {"text": "raw generate it's", "sampling_params": sampling},
                )
        lines = (
            (Path(folder) / "engine.log").read_text(errors="replace").splitlines(True)
        )
    kept = "".join(line for line in lines if KEPT.search(line))
    (FOLDER / f"{name}.log.gz").write_bytes(gzip.compress(kept.encode(), 9, mtime=0))
    told = json.dumps([asdict(one) for one in sent])
    (FOLDER / "sent.json.gz").write_bytes(gzip.compress(told.encode(), 9, mtime=0))


if __name__ == "__main__":
    for each in RECORDED:
        record(each)
