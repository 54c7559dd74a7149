"""Where a start goes, from a log that grows."""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from mmrepro.engines import ENGINES
from mmrepro.runs.starter import LAST_STAGE, StartStages

MARKS = {"imports": r"server args", "model load": r"loaded \d+", "warm-up": r"warm"}


def stages(log: Path) -> StartStages:
    return StartStages(MARKS, log, time.monotonic())


def test_each_stage_ends_where_its_line_was_first_seen(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    watch = stages(log)
    watch.look()  # there is no log yet
    with log.open("a") as file:
        for text in ("server ar", "gs\nloaded", " 12\n", "warm\nserver args again\n"):
            file.write(text)
            file.flush()
            watch.look()
    found = watch.ended(time.monotonic() + 1)
    assert list(found) == ["imports", "model load", "warm-up", LAST_STAGE]
    assert found[LAST_STAGE] == pytest.approx(1, abs=0.1)


def test_a_stage_without_its_mark_is_counted_and_named_with_the_next(
    tmp_path: Path,
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("loaded 3\n")
    assert list(stages(log).ended(time.monotonic())) == [
        "imports + model load",
        f"warm-up + {LAST_STAGE}",
    ]
    assert list(stages(tmp_path / "none").ended(time.monotonic())) == [
        f"imports + model load + warm-up + {LAST_STAGE}"
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.sampled_from(["server args\n", "loaded 1\n", "warm\n", "other\n", "war"])
    ),
    st.floats(0, 100),
)
def test_the_stages_add_up_to_the_whole_and_none_is_negative(
    tmp_path: Path, lines: list[str], ready: float
) -> None:
    log = tmp_path / "engine.log"
    log.write_text("")
    began = time.monotonic()
    watch = StartStages(MARKS, log, began)
    with log.open("a") as file:
        for line in lines:
            file.write(line)
            file.flush()
            watch.look()
    found = watch.ended(began + ready)
    assert all(seconds >= 0 for seconds in found.values())
    assert sum(found.values()) == pytest.approx(ready, abs=0.03)


# From the logs of real starts.
LINES = [
    (
        "vllm",
        "imports",
        "INFO 11-21 22:50:47 [utils/api_utils.py:273] non-default args: {'host'",
    ),
    (
        "vllm",
        "spawn EngineCore",
        "[core.py:644] Initializing a V1 LLM engine (v0.11.0) with",
    ),
    (
        "vllm",
        "cache and warm-up",
        "init engine (profile, create kv cache, warmup model) took 1",
    ),
    (
        "sglang",
        "imports",
        "[2026-11-21 23:05:10] server_args=ServerArgs(model_path='x'",
    ),
    (
        "sglang",
        "spawn scheduler",
        "[2026-11-21 23:05:10] Init torch distributed begin.",
    ),
    (
        "sglang",
        "imports",
        "[2026-11-21 23:03:47] server_args={'model_path': '/models/tiny'",
    ),
    ("sglang", "spawn scheduler", "[2026-11-21 23:03:47] Init parallel begin."),
    (
        "lmdeploy",
        "cache and warm-up",
        "HINT:    Please open \x1b[93m\x1b[1mhttp://127.0.0.1:1",
    ),
    (
        "minivllm",
        "imports and model load",
        "[service.py:147] EngineCore waiting for work.",
    ),
]


@pytest.mark.parametrize(("engine", "stage", "line"), LINES)
def test_the_marks_of_the_engines(
    tmp_path: Path, engine: str, stage: str, line: str
) -> None:
    log = tmp_path / "engine.log"
    log.write_text(line + "\n")
    found = StartStages(ENGINES[engine].start_marks, log, time.monotonic()).ended(
        time.monotonic()
    )
    assert any(name.split(" + ")[-1] == stage for name in found), found
