"""minivllm: the small engine in ``reproducers/minivllm``, with its faults on
switches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from mmrepro.base.records import Fidelity, Setting
from mmrepro.engines.base import (
    SERVED_MODEL,
    Engine,
    LaunchRequest,
    Mitigation,
    StackRole,
)
from mmrepro.reproducers import reproducer_path

if TYPE_CHECKING:
    from mmrepro.engines.environments.spec import EnvironmentSpec


class MinivllmEngine(Engine):
    name: ClassVar[str] = "minivllm"
    module: ClassVar[str] = "minivllm.server"
    preload: ClassVar[tuple[str, ...]] = (
        "minivllm.service",
        "minivllm.loading",
        "minivllm.paper",
    )
    owned_options: ClassVar[tuple[str, ...]] = (
        "--host",
        "--port",
        "--model",
        "--served-model-name",
        "--device",
    )
    chat_frame: ClassVar[tuple[str, str] | None] = (
        "<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    )
    start_marks: ClassVar[Mapping[str, str]] = {
        "imports and model load": r"EngineCore waiting for work"
    }
    ready_mark: ClassVar[str] = r"ready on port"
    core_role: ClassVar[str] = "EngineCore"
    stack_roles: ClassVar[tuple[StackRole, ...]] = (
        StackRole(role="", file=r"minivllm/", functions=".*"),
    )
    own_fidelity: ClassVar[Fidelity | None] = Fidelity.TEACHING_ENGINE
    metrics: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "running": ("minivllm:num_requests_running",),
        "waiting": ("minivllm:num_requests_waiting",),
        "finished": ("minivllm:request_success_total",),
        "prompt_tokens": ("minivllm:prompt_tokens_total",),
        "generation_tokens": ("minivllm:generation_tokens_total",),
        "mm_cache_queries": ("minivllm:mm_cache_queries_total",),
        "mm_cache_hits": ("minivllm:mm_cache_hits_total",),
        "prefix_queries": ("minivllm:prefix_cache_queries_total",),
        "prefix_hits": ("minivllm:prefix_cache_hits_total",),
        "preemptions": ("minivllm:num_preemptions_total",),
    }
    log_patterns: ClassVar[Mapping[str, str]] = {
        "added-request": r"Added request ",
        "core-event": "EngineCore loop active|EngineCore waiting for work",
        "contract-violated": r"contract violated: ",
        "core-fatal": r"the engine's loop ended",
        "fault-on": r"fault [a-z-]+ is on: ",
        "placeholder-ids": r"placeholder ids: ",
        "decode-graphs": r"decode graphs of \[[\d, ]+\] sequences captured",
    }
    added_pattern: ClassVar[str] = r"Added request \S+"
    log_mark: ClassVar[str] = r"\[server\.py:\d+\] ready on port"
    code: ClassVar[tuple[str, ...]] = ("minivllm",)
    start_lines: ClassVar[tuple[str, ...]] = (log_mark,)
    step_functions: ClassVar[tuple[str, ...]] = ("step",)
    fatal_after_start: ClassVar[bool] = True
    progress_pattern: ClassVar[str] = (
        "EngineCore loop active|EngineCore waiting for work"
    )

    def wrote(self, source: str, words: str) -> bool:
        if _OWN_WORDS.match(words):
            return True
        return source.startswith("server.py:") and _SERVES.match(words) is not None

    def contract_watch(self) -> Mitigation | None:
        return Mitigation(
            "contract-probe", "its own checker", server_args=("--check-contract=log",)
        )

    def environment_spec(self, release: str, device: str) -> EnvironmentSpec:
        from mmrepro.engines.environments.spec import minivllm_spec

        return minivllm_spec(release, "cuda" if device == "cuda" else "cpu")

    def interpreter_args(self, module: str) -> list[str]:
        # The package is named by its folder: PYTHONPATH is the stand-ins' and other
        # variables'.
        return ["-c", _LAUNCHER, *self.module_path()]

    def module_path(self) -> list[str]:
        return [str(reproducer_path("minivllm").parent)]

    def command(self, request: LaunchRequest) -> list[str]:
        return [
            "--model",
            str(request.model),
            "--served-model-name",
            SERVED_MODEL,
            "--host",
            "127.0.0.1",
            "--port",
            str(request.port),
            "--device",
            request.environment.spec.device,
            "--max-model-len",
            str(request.max_model_len),
        ]

    def settings(self, request: LaunchRequest) -> Iterator[Setting]:
        yield Setting(name="OMP_NUM_THREADS", value="1", why="a tiny model")


_OWN_WORDS = re.compile(
    r'minivllm(?:: | cannot start)|\s*File "[^"]*/minivllm/\w+\.py"'
)
_SERVES = re.compile(r"ready on port \d|placeholder ids: ")
_LAUNCHER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from minivllm.server "
    "import main; sys.exit(main())"
)
