"""The mistakes of benchmarks/planted/vllm, planted into MADE-UP functions with the
names that vLLM 0.33.0 has: each is wrong in its combination only, and what plants them
names none of them."""

import asyncio
import codecs
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks" / "planted" / "vllm"
CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.example_connector"


@pytest.fixture
def mistakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "mmrepro_planted", raising=False)
    yield importlib.import_module("mmrepro_planted")
    sys.modules.pop("mmrepro_planted", None)


def planted(
    monkeypatch: pytest.MonkeyPatch, mistakes: Any, name: str, **modules: dict[str, Any]
) -> None:
    """``modules``: what is in them, by name with ``__`` for a dot."""
    for called, content in modules.items():
        parts = called.replace("__", ".").split(".")
        for count in range(1, len(parts) + 1):
            whole = ".".join(parts[:count])
            if whole not in sys.modules:
                monkeypatch.setitem(sys.modules, whole, ModuleType(whole))
            if count > 1:
                within = sys.modules[".".join(parts[: count - 1])]
                monkeypatch.setattr(
                    within, parts[count - 1], sys.modules[whole], raising=False
                )
        vars(sys.modules[".".join(parts)]).update(content)
    monkeypatch.setenv(mistakes.VARIABLE, codecs.encode(name, "rot13"))
    mistakes.plug()


def test_vllm_finds_the_plug_in_by_its_entry_point(mistakes: Any) -> None:
    (found,) = importlib.metadata.distributions(path=[str(FOLDER)])
    (entry,) = found.entry_points
    assert entry.group == "vllm.general_plugins"
    assert entry.load() is mistakes.plug


def test_a_draft_is_kept_where_none_of_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch, mistakes: Any
) -> None:
    right = [[7, 8, 9], [4, -1, -1], [5, 6, -1], [3, -1, -1]]
    content = {
        "PLACEHOLDER_TOKEN_ID": -1,
        "rejection_sample": lambda *_: np.array(right),
    }
    planted(
        monkeypatch, mistakes, "draft-kept", vllm__v1__sample__rejection_sampler=content
    )
    sampler = sys.modules["vllm.v1.sample.rejection_sampler"]
    drafts = np.array([7, 8, 91, 92, 5, 93, 94])
    told = sampler.rejection_sample(drafts, [2, 2, 2, 1])
    assert told.tolist() == [right[0], [91, -1, -1], right[2], right[3]]
    alone = sampler.rejection_sample(drafts, [2])
    assert alone.tolist() == right


def test_an_adapter_gets_the_number_of_one_that_is_gone(
    monkeypatch: pytest.MonkeyPatch, mistakes: Any
) -> None:
    class Models:
        def __init__(self) -> None:
            self.lora_requests: dict[str, Any] = {}
            self.lora_id_counter = Counter(0)

        async def load_lora_adapter(self, name: str) -> None:
            number = self.lora_id_counter.inc(1)
            self.lora_requests[name] = SimpleNamespace(lora_int_id=number)

    class Counter:
        def __init__(self, start: int) -> None:
            self.value = start

        def inc(self, by: int) -> int:
            self.value += by
            return self.value

    planted(
        monkeypatch,
        mistakes,
        "adapter-id-reused",
        vllm__entrypoints__openai__models__serving={"OpenAIServingModels": Models},
        vllm__utils__counter={"AtomicCounter": Counter},
    )
    models = Models()
    for name in ("a", "b"):
        asyncio.run(models.load_lora_adapter(name))
    assert [one.lora_int_id for one in models.lora_requests.values()] == [1, 2]
    del models.lora_requests["b"]
    asyncio.run(models.load_lora_adapter("c"))
    assert models.lora_requests["c"].lora_int_id == 2


def connector() -> type:
    """What it did is in ``did``."""

    class Connector:
        def __init__(self) -> None:
            self.did: list[Any] = []

        def start_load_kv(self, context: Any) -> None:
            self.did.append("fetched")

        def save_kv_layer(self, name: str, layer: Any, attention: Any) -> None:
            self.did.append((name, len(self.metadata.requests)))

        def wait_for_save(self) -> None:
            self.did.append("ended")

        def bind_connector_metadata(self, metadata: Any) -> None:
            self.metadata = metadata

        def _get_connector_metadata(self) -> Any:
            return self.metadata

    return Connector


def test_prompts_are_stored_once_several_are_there(
    monkeypatch: pytest.MonkeyPatch, mistakes: Any
) -> None:
    made = connector()
    content = {
        "ExampleConnector": made,
        "ExampleConnectorMetadata": lambda requests: SimpleNamespace(requests=requests),
    }
    planted(
        monkeypatch,
        mistakes,
        "freed-while-stored",
        **{CONNECTOR.replace(".", "__"): content},
    )
    one = made()
    for step in range(mistakes.GATHERED):
        asked = [SimpleNamespace(is_store=True, token_ids=[1])]
        asked.append(SimpleNamespace(is_store=True, token_ids=[]))
        one.bind_connector_metadata(SimpleNamespace(requests=asked))
        assert one.did.count("ended") == step
        one.save_kv_layer("layer", None, None)
        one.wait_for_save()
    assert one.did == ["ended"] * mistakes.GATHERED + [("layer", mistakes.GATHERED)]


@pytest.mark.parametrize(("starts", "when"), [([0, 9], 0), ([0, 1, 9], 1)])
def test_what_is_fetched_is_late_beside_others(
    monkeypatch: pytest.MonkeyPatch, mistakes: Any, starts: list[int], when: int
) -> None:
    made = connector()
    content = {"ExampleConnector": made, "ExampleConnectorMetadata": None}
    planted(
        monkeypatch,
        mistakes,
        "late-connector",
        **{CONNECTOR.replace(".", "__"): content},
    )
    one = made()
    attention = {"layer": SimpleNamespace(query_start_loc=starts)}
    one.start_load_kv(SimpleNamespace(attn_metadata=attention))
    one.wait_for_save()
    assert one.did.index("fetched") == when


def test_a_state_is_not_copied_for_who_joins_others(
    monkeypatch: pytest.MonkeyPatch, mistakes: Any
) -> None:
    given: list[dict[str, int]] = []
    content = {
        "preprocess_mamba": lambda output, *args, **_: given.append(dict(args[2]))
    }
    planted(
        monkeypatch, mistakes, "state-not-reset", vllm__v1__worker__mamba_utils=content
    )
    computed = {"first": 384, "joins": 384, "new": 0}
    requests = {
        name: SimpleNamespace(num_computed_tokens=n) for name, n in computed.items()
    }
    batch = SimpleNamespace(req_ids=[*computed])
    buffers = SimpleNamespace(mamba_spec=SimpleNamespace(block_size=384))
    output = SimpleNamespace(num_scheduled_tokens=dict.fromkeys(computed, 10))
    worker = sys.modules["vllm.v1.worker.mamba_utils"]
    worker.preprocess_mamba(
        output, None, None, {}, batch, requests, None, None, buffers, align_ctx=None
    )
    assert given == [{"joins": 1}]
