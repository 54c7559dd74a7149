"""What of two releases' starts differs: options, defaults, settings, and whether they
start."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from mmrepro.failure.documents.upgrade import Difference, OptionSeen, Outcome, SideRun
from mmrepro.search.upgrade import configuration, starts
from mmrepro.search.upgrade.help_text import read
from mmrepro.traffic.case.model import ServerWanted
from mmrepro.traffic.case.sending import Played, PlayState

HELPS = Path(__file__).parent / "helps"


def helped(name: str) -> list[OptionSeen]:
    return read((HELPS / f"{name}.txt").read_text(encoding="utf-8"))


def compared(
    old: list[OptionSeen],
    new: list[OptionSeen],
    *args: str,
    failed: str = "",
    config: tuple[dict[str, str], dict[str, str]] = ({}, {}),
) -> dict[str, Difference]:
    """By subject; ``failed``: why NEW does not start."""
    server = ServerWanted(engine="vllm", release="1.0", args=list(args))
    right = SideRun(side="old", index=1, options=old, config=config[0])
    mine = SideRun(side="new", index=1, options=new, config=config[1])
    if failed:
        played = Played(state=PlayState.START_FAILED, causes=[failed])
        mine.state, mine.played = PlayState.START_FAILED, played
    found = starts.compare([right], [mine], old_server=server, new_server=server)
    assert len({one.subject for one in found}) == len(found)
    return {one.subject: one for one in found}


def test_two_releases_of_vllm() -> None:
    found = compared(helped("vllm-0.24.0"), helped("vllm-0.32.0"))
    assert found["options gone"].evidence == [
        "--calculate-kv-scales",
        "--max-num-partial-prefills",
    ]
    assert found["options added"].evidence == ["--enable-scale-out"]
    assert "--allowed-origins ['*'] → []" in found["defaults changed"].evidence
    assert (
        "--attention-config.indexer_kv_dtype 'bf16' → 'auto'"
        in found["defaults changed"].evidence
    )
    assert found["values gone"].evidence == ["--tokenizer-mode: slow"]
    assert not any(one.matters for one in found.values())


def test_a_default_that_is_left_to_the_engine_need_not_be_another() -> None:
    """vLLM 0.32.0 lists None for --disable-cascade-attn, and its ModelConfig still says
    True."""
    before = [OptionSeen(name="--disable-cascade-attn", default="True")]
    after = [OptionSeen(name="--disable-cascade-attn", default="None")]
    assert [*compared(before, after)] == ["defaults that one side leaves to the engine"]


def test_an_option_that_the_command_uses_and_new_lacks_matters() -> None:
    found = compared(
        helped("vllm-0.24.0"),
        helped("vllm-0.32.0"),
        "--max-num-partial-prefills=2",
        "--dtype",
        "float32",
        failed="unrecognized arguments: --max-num-partial-prefills=2",
    )
    (one,) = [one for one in found.values() if one.matters]
    assert one.subject == "--max-num-partial-prefills"
    assert "does not start: unrecognized arguments" in one.statement
    assert "--max-num-partial-prefills" not in found["options gone"].evidence


def test_a_value_that_the_command_uses_and_new_lacks_matters() -> None:
    found = compared(
        helped("vllm-0.24.0"), helped("vllm-0.32.0"), "--tokenizer_mode", "slow"
    )
    assert found["--tokenizer-mode"].matters
    assert not found["values gone"].matters


def test_an_option_that_neither_side_lists_is_nobodys_news() -> None:
    both = helped("vllm-0.24.0")
    assert [*compared(both, both, "--of-a-plugin", "x")] == ["options"]


@given(
    st.lists(st.from_regex(r"--[a-z]{2,9}(-[a-z]{2,9})?", fullmatch=True), unique=True)
)
def test_a_release_beside_itself_has_no_difference(names: list[str]) -> None:
    options = [OptionSeen(name=name, default="1", choices=["1"]) for name in names]
    found = compared(options, options)
    assert all(one.outcome is not Outcome.DIFFERENCE for one in found.values())


LONG = "Fraction of the memory of a GPU that the KV cache may take, from 0 to 1."


@pytest.mark.parametrize(
    ("old", "new", "pair"),
    [
        (("--gpu-memory-use", LONG), ("--gpu-memory-utilization", LONG), True),
        (
            ("--gpu-memory-use", LONG),
            ("--device-share", LONG),
            True,
        ),  # the text is the same
        (("--num-stages", LONG), ("--num-stage", LONG), True),
        # Five words are enough to be the same text, and four may be by chance.
        (
            ("--kept", "How long answers are kept"),
            ("--ttl", "How long answers are kept"),
            True,
        ),
        (("--kept", "How long it stays"), ("--ttl", "How long it stays"), False),
        (("--enable-a", "Enable a."), ("--disable-log-requests", "No logs."), False),
        (
            ("--dsv3-backend", "Backend of V3's attention, one of these."),
            ("--dsv4-backend", "Where sparse layers of another model are kept."),
            False,
        ),
    ],
)
def test_a_renamed_option_is_only_perhaps_one(
    old: tuple[str, str], new: tuple[str, str], pair: bool
) -> None:
    before, after = ([OptionSeen(name=n, text=t)] for n, t in (old, new))
    found = compared(before, after)
    expected = (
        {"options perhaps renamed"} if pair else {"options gone", "options added"}
    )
    assert {*found} == expected


def test_a_switch_is_no_renamed_value() -> None:
    before = [OptionSeen(name="--log-level", text=LONG, value="LEVEL")]
    after = [OptionSeen(name="--log-levels", text=LONG)]
    assert "options perhaps renamed" not in compared(before, after)


def test_a_server_that_does_not_start() -> None:
    found = compared(
        helped("vllm-0.24.0"), helped("vllm-0.24.0"), failed="KeyError: 'x'"
    )
    assert found["starts"].matters
    assert "KeyError: 'x'" in found["starts"].statement


def test_a_start_that_fails_now_and_then_tells_nothing() -> None:
    server = ServerWanted(engine="vllm", release="1.0")
    runs = [SideRun(side="new", index=i) for i in (1, 2, 3)]
    runs[1].state, runs[1].error = PlayState.START_FAILED, "port taken"
    old = [SideRun(side="old", index=1)]
    found = starts.compare(old, runs, old_server=server, new_server=server)
    assert {one.outcome for one in found} == {Outcome.UNTOLD}
    assert any("1 of 3" in one.statement for one in found)


def test_settings_in_effect() -> None:
    """What every start draws anew, and paths, are no difference."""
    old = {
        "chunked_prefill_size": "2048",
        "random_seed": "1",
        "model": "'/a/b/c'",
        "dtype": "auto",
    }
    new = {
        "chunked_prefill_size": "4096",
        "random_seed": "2",
        "model": "'/a/d/c'",
        "dtype": "auto",
    }
    found = compared([], [], config=(old, new))
    assert found["settings in effect differ"].evidence == [
        "chunked_prefill_size 2048 → 4096"
    ]


VLLM = (
    "(EngineCore pid=7) INFO 11-26 04:20:05 [core.py:113] Initializing a V1 LLM engine "
    "(v0.23.0) "
    "with config: model='/m', dtype=torch.bfloat16, max_seq_len=512, load_format=auto, "
    "observability_config=ObservabilityConfig(otlp_traces_endpoint=None), "
    "compilation_config="
    "{'mode': <CompilationMode.NONE: 0>, 'inductor_passes': {}}, "
    "kernel_config=KernelConfig("
    "ir_op_priority=IrOpPriorityConfig(rms_norm=['native']), moe_backend='auto'), "
)


def test_the_configuration_in_the_log_of_vllm() -> None:
    found = configuration.read(["INFO something else", VLLM])
    assert found["dtype"] == "torch.bfloat16"
    assert found["max_seq_len"] == "512"
    assert found["kernel_config.ir_op_priority.rms_norm"] == "['native']"
    assert "CompilationMode.NONE" in found["compilation_config.mode"]


@pytest.mark.parametrize(
    "line",
    [
        "[2026] server_args=ServerArgs(model_path='/m', tp_size=1, lora={'a': None})",
        "server_args={'model_path': '/m', 'tp_size': 1, 'lora': {'a': None}}",
    ],
)
def test_the_configuration_in_the_log_of_sglang(line: str) -> None:
    found = configuration.read([line])
    assert found == {"model_path": "'/m'", "tp_size": "1", "lora.a": "None"}


@pytest.mark.parametrize("text", ["", "None", "auto", "[1, 2]", "x(", "('a', 1)"])
def test_a_value_without_fields_has_none(text: str) -> None:
    assert configuration.fields(text) == {}
