"""Stand-in: one mistake of SGLang, mended as its module is imported.

``MMREPRO_SGLANG_PATCH`` names which. Each says when it is there and when it made a
difference."""

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from mmrepro_boot import after_import, say

NAME, ENV = "sglang_patches", "MMREPRO_SGLANG_PATCH"


def _own_hash(module: ModuleType) -> None:
    """A picture's hash is the engine's own, whatever the caller says."""
    cls: Any = module.GenerateReqInput
    original = cls.normalize_batch_and_arguments

    def normalize(self: Any) -> Any:
        if getattr(self, "mm_hashes", None):
            say(NAME, "called, mm_hashes of the caller dropped")
            self.mm_hashes = None
        return original(self)

    cls.normalize_batch_and_arguments = normalize


def _exact_rid(module: ModuleType) -> None:
    """An abort is of the request that is called so: others are called otherwise
    meanwhile."""
    cls: Any = module.Scheduler
    original = cls.abort_request

    def abort_request(self: Any, asked: Any) -> Any:
        batches = (
            self.running_batch,
            self.last_batch,
            getattr(self, "cur_batch", None),
        )
        known = [
            *self.waiting_queue,
            *(r for b in batches if b is not None for r in b.reqs),
        ]
        others = {
            id(r): r
            for r in known
            if r.rid != asked.rid and r.rid.startswith(asked.rid)
        }
        others = {} if asked.abort_all else others
        for req in others.values():
            say(NAME, f"called, {req.rid} is not {asked.rid}")
            req.rid = f"\0{req.rid}"
        try:
            return original(self, asked)
        finally:
            for req in others.values():
                req.rid = req.rid[1:]

    cls.abort_request = abort_request


def top_logprobs(module: ModuleType) -> None:
    """More top_logprobs than the vocabulary has tokens are refused before the
    scheduler."""
    cls: Any = module.TokenizerManager
    original = cls._validate_one_request

    def validate(self: Any, obj: Any, *rest: Any) -> Any:
        asked, there = (
            getattr(obj, "top_logprobs_num", None),
            self.model_config.vocab_size,
        )
        if isinstance(asked, int) and asked > there:
            say(NAME, f"called, {asked} top_logprobs refused")
            raise ValueError(
                f"top_logprobs is {asked}, and the vocabulary has {there} tokens"
            )
        return original(self, obj, *rest)

    cls._validate_one_request = validate


def _session_embeds(module: ModuleType) -> None:
    """Embeddings in a session are refused before the scheduler."""
    cls: Any = module.TokenizerManager
    original = cls._validate_one_request

    def validate(self: Any, obj: Any, *rest: Any) -> Any:
        if getattr(obj, "input_embeds", None) and getattr(obj, "session_params", None):
            say(NAME, "called, input_embeds in a session refused")
            raise ValueError("input_embeds cannot be used in a session")
        return original(self, obj, *rest)

    cls._validate_one_request = validate


def _extra_key_from_hash(module: ModuleType) -> None:
    """What a request is cached under has the whole hash of each of its pictures in
    it."""
    cls: Any = module.Req
    original = cls.extend_image_inputs

    def extend_image_inputs(self: Any, inputs: Any) -> None:
        original(self, inputs)
        hashes = ",".join(f"{item.hash:x}" for item in self.multimodal_inputs.mm_items)
        self.extra_key = f"{self.extra_key or ''}|{hashes}"
        say(NAME, f"called, extra_key of {hashes}")

    cls.extend_image_inputs = extend_image_inputs


def _full_hash(module: ModuleType) -> None:
    """The pad value is the whole hash, 64 bits without a sign."""
    cls: Any = module.MultimodalDataItem
    original = cls.set_pad_value

    def set_pad_value(self: Any) -> None:
        original(self)
        self.pad_value = self.hash
        say(NAME, f"called, pad value {self.pad_value:#x}")

    cls.set_pad_value = set_pad_value


_MANAGERS = "sglang.srt.managers"
_PATCHES: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "own-hash": (f"{_MANAGERS}.io_struct", _own_hash),
    "exact-rid": (f"{_MANAGERS}.scheduler", _exact_rid),
    "top-logprobs": (f"{_MANAGERS}.tokenizer_manager", top_logprobs),
    "session-embeds": (f"{_MANAGERS}.tokenizer_manager", _session_embeds),
    "extra-key-from-hash": (f"{_MANAGERS}.schedule_batch", _extra_key_from_hash),
    "full-64-bit-hash": (f"{_MANAGERS}.schedule_batch", _full_hash),
}
_CHOSEN = os.environ[ENV]


def patch(module: ModuleType) -> None:
    _PATCHES[_CHOSEN][1](module)
    say(NAME, f"loaded {_CHOSEN}")


def forked() -> None:
    """Called in each forked process of the engine: what is loaded there was loaded
    before."""
    say(NAME, f"loaded {_CHOSEN}")


after_import(_PATCHES[_CHOSEN][0], patch)
