"""Servers' commands as reports have them, made into the server of a case."""

from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.engines.serving import pools
from mmrepro.failure.documents.replay import Needs
from mmrepro.search.repro.server_command import (
    MOST_NOTES,
    MOST_REPLACED,
    is_server_command,
    of_manifest,
    options_of,
    parse,
    plain_command,
    release_here,
    serves,
    translated,
)

COMMANDS = {
    "vllm serve Qwen/Qwen3-0.6B --scheduling-policy=priority": (
        "vllm",
        "Qwen/Qwen3-0.6B",
        "",
        None,
        ["--scheduling-policy", "priority"],
    ),
    (
        "$ vllm serve --trust-remote-code m/m --max_num_seqs 8 -tp 1 --port 8001 > "
        "log 2>&1 &"
    ): (
        "vllm",
        "m/m",
        "",
        8001,
        ["--trust-remote-code", "--max-num-seqs", "8"],
    ),
    (
        "export MODEL=m/m\nexport N=4\nuv run vllm serve $MODEL --max-num-seqs "
        "${N:-2} | tee log"
    ): (
        "vllm",
        "m/m",
        "",
        None,
        ["--max-num-seqs", "4"],
    ),
    "docker run --gpus all -p 8000:8000 --ipc=host \\\n  vllm/vllm-openai:v0.11.2 \\\n"
    "  m/m --limit-mm-per-prompt '{\"image\": 2}'\n": (
        "vllm",
        "m/m",
        "0.11.2",
        None,
        ["--limit-mm-per-prompt", '{"image": 2}'],
    ),
    "sudo podman run --rm vllm/vllm-openai:latest --model m/m --seed -1": (
        "vllm",
        "m/m",
        "",
        None,
        ["--seed", "-1"],
    ),
    "python3 -m vllm.entrypoints.openai.api_server --model m/m --host 0.0.0.0": (
        "vllm",
        "m/m",
        "",
        None,
        [],
    ),
    "docker run lmsysorg/sglang:v0.5.6.post2 python3 -m sglang.launch_server --model "
    "m/m --port 30000 --page-size 16": (
        "sglang",
        "m/m",
        "0.5.6.post2",
        30000,
        ["--page-size", "16"],
    ),
    (
        "python -m sglang.launch_server \\\n --model-path m/m \\\n "
        "--disable-radix-cache --tp 1"
    ): (
        "sglang",
        "m/m",
        "",
        None,
        ["--disable-radix-cache"],
    ),
    (
        "lmdeploy serve api_server m/m --backend pytorch --server-port 23333 "
        "--max-batch-size 4"
    ): (
        "lmdeploy",
        "m/m",
        "",
        23333,
        ["--max-batch-size", "4"],
    ),
    (
        "cd x && . venv/bin/activate && nohup vllm serve m/m "
        "--no-enable-prefix-caching &"
    ): (
        "vllm",
        "m/m",
        "",
        None,
        ["--no-enable-prefix-caching"],
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_read_whole(command: str) -> None:
    engine, model, release, port, args = COMMANDS[command]
    asked = parse(command)
    assert (asked.engine, asked.model, asked.release, asked.port) == (
        engine,
        model,
        release,
        port,
    )
    made = translated(asked, None, "")
    assert list(made.args) == args
    assert not [one for one in made.replaced if one.essential]


def test_variables_go_to_the_server_and_secrets_and_paths_do_not() -> None:
    text = (
        "HF_TOKEN=x CUDA_VISIBLE_DEVICES=0 VLLM_API_KEY=k "
        "VLLM_LOG_STATS_INTERVAL=2 vllm serve m"
    )
    assert dict(translated(parse(text), None, "").env) == {
        "VLLM_LOG_STATS_INTERVAL": "2"
    }


@pytest.mark.parametrize(
    "option",
    [
        "--quantization fp8",
        "-tp 8",
        "--tensor-parallel-size=2",
        "--kv-cache-dtype fp8",
        "--enable-expert-parallel",
        "-O3",
        "--speculative-config '{}'",
        "-dp 4",
        "--kv-transfer-config '{}'",
        "--enable-lora",
        "--attention-backend FLASHINFER",
    ],
)
def test_what_a_failure_may_hang_on_is_left_out_and_marked(option: str) -> None:
    made = translated(parse(f"vllm serve m/m {option} --max-num-seqs 2"), None, "")
    assert list(made.args) == ["--max-num-seqs", "2"]
    assert [one.what for one in made.replaced if one.essential]


@pytest.mark.parametrize(
    "option",
    [
        "--gpu-memory-utilization 0.9",
        "--host ::",
        "--api-key k",
        "-pp 1",
        "--dtype half",
    ],
)
def test_what_sizes_a_gpu_or_names_a_place_is_left_out_and_not_marked(
    option: str,
) -> None:
    made = translated(parse(f"vllm serve m/m {option}"), None, "")
    assert made.args == ()
    assert not [one for one in made.replaced if one.essential]


def test_half_precision_is_left_out_for_a_cpu_alone() -> None:
    command = parse("vllm serve m/m --dtype half")
    assert translated(command, None, "").args == ()
    assert list(translated(command, None, "", gpu=True).args) == ["--dtype", "half"]


@pytest.mark.parametrize(
    ("model", "traffic", "tiny", "same"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "", "text", True),
        ("Qwen/Qwen3-0.6B", "", "text", False),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "", "qwen2-vl", True),
        ("OpenGVLab/InternVL3-8B", "", "qwen2-vl", False),
        ("rednote-hilab/dots.ocr", "", "dots-ocr", True),
        ("Qwen/Qwen3.5-4B", "", "qwen2-vl", False),
        ("my/finetune", '{"type": "image_url"}', "qwen2-vl", False),
    ],
)
def test_the_model_becomes_the_tiny_one_that_comes_nearest(
    model: str, traffic: str, tiny: str, same: bool
) -> None:
    made = translated(parse(f"vllm serve {model}"), None, traffic)
    stand_in = next(one for one in made.replaced if one.model)
    assert (made.model, stand_in.what) == (tiny, model)
    assert ("of the same architecture" in stand_in.why) is same


def test_a_model_of_sounds_has_no_stand_in() -> None:
    made = translated(parse("vllm serve openai/whisper-large-v3"), None, "")
    assert [one.what for one in made.replaced if one.essential] == [
        "openai/whisper-large-v3"
    ]


def test_a_long_context_is_kept_only_where_answers_end() -> None:
    command = parse("vllm serve m/m --max-model-len 16k")
    assert translated(command, None, '"max_tokens": 16').max_model_len == 16000
    millions = parse("vllm serve m/m --max-model-len 0.002m")
    assert translated(millions, None, '"max_tokens": 16').max_model_len == 2000
    short = translated(command, None, "no limit")
    assert short.max_model_len < 16000
    assert any("--max-model-len 16k" in one.what for one in short.replaced)


def test_what_the_parser_of_a_release_lacks_is_reported(tmp_path: Path) -> None:
    parser = tmp_path / "vllm" / "engine" / "arg_utils.py"
    parser.parent.mkdir(parents=True)
    parser.write_text(
        "class EngineArgs:\n    max_num_seqs: int = 1\n    async_scheduling: bool = "
        "False\n"
        'group.add_argument("--scheduling-policy", **more)\n'
    )
    known = options_of("vllm", tmp_path)
    assert known["--async-scheduling"]
    text = (
        "vllm serve m --max-num-seqz 2 --no-async-scheduling --scheduling-policy fcfs"
    )
    (note,) = translated(parse(text), known, "").notes
    assert "--max-num-seqz." in note
    assert "Did you mean --max-num-seqs?" in note


def test_what_another_release_lacks_does_not_keep_it_from_starting() -> None:
    asked = parse("vllm serve m --num-scheduler-steps 1 --max-num-seqs 2")
    known = {"--max-num-seqs": False}
    same = translated(asked, known, "")
    assert same.args == ("--num-scheduler-steps", "1", "--max-num-seqs", "2")
    other = translated(asked, known, "", is_other=True)
    assert other.args == ("--max-num-seqs", "2")
    (row,) = [row for row in other.replaced if not row.model]
    assert (row.what, row.essential, row.needs) == (
        "--num-scheduler-steps 1",
        True,
        Needs.RELEASE,
    )
    older = translated(parse("VLLM_USE_V1=0 vllm serve m"), None, "")
    (row,) = [row for row in older.replaced if not row.model]
    assert (row.what, row.needs) == ("VLLM_USE_V1=0", Needs.RELEASE)


@pytest.mark.parametrize(
    "text",
    [
        "vllm bench serve",
        "docker run --gpus all me/my:latest",
        "pip install vllm",
        "serve",
    ],
)
def test_other_commands_are_none(text: str) -> None:
    assert not is_server_command(text)
    with pytest.raises(UsageError, match="No server's command"):
        parse(text)


def test_a_value_that_nothing_sets_is_asked_for() -> None:
    with pytest.raises(UsageError, match="--max-num-seqs"):
        translated(parse("vllm serve m --max-num-seqs $N"), None, "")


def test_the_nearest_release_that_is_here() -> None:
    here = ["0.11.0", "0.12.0", "0.32.0"]
    assert release_here("vllm", "0.12.0", here) == ("0.12.0", "")
    assert release_here("vllm", "0.11.2", here)[0] == "0.11.0"
    assert release_here("vllm", "0.31.1", here)[0] == "0.32.0"
    assert release_here("vllm", "", here)[0] == "0.32.0"
    assert release_here("vllm", "0.1.0", []) == ("", "")


def test_without_a_command_the_model_of_the_requests_is_served() -> None:
    assert plain_command("vllm", '{"model": "a/b"}') == "vllm serve a/b"


@pytest.mark.parametrize(
    "words",
    [
        "command: --model m/m --seed 3 --x '{\"a\": 1}'\n    ports: []\n",
        (
            "command: >\n      --model m/m\n      --seed 3 --x '{\"a\": 1}'\n    "
            "ports: []\n"
        ),
        'command: ["vllm", "serve"]\n    args: ["m/m",\n      "--seed", "3",'
        """ "--x", '{"a": 1}']\n""",
        "command:\n    - /bin/sh\n    - -c\n"
        """    args:\n    - "vllm serve m/m --seed 3 --x '{\\"a\\": 1}'"\n""",
        "command: [vllm, serve, m/m, --seed, 3, --x, '{\"a\": 1}']\n",
    ],
)
def test_a_compose_file_or_a_pod_is_a_server(words: str) -> None:
    text = f"services:\n  one:\n    image: vllm/vllm-openai:v0.12.0\n    {words}"
    asked = parse(of_manifest(text))
    assert (asked.engine, asked.release, asked.model) == ("vllm", "0.12.0", "m/m")
    assert asked.options == [("--seed", ["3"]), ("--x", ['{"a": 1}'])]
    assert of_manifest(text.replace("vllm/vllm-openai", "nginx")) == ""


@pytest.mark.parametrize(
    "text",
    [
        'docker run --entrypoint sh vllm/vllm-openai -c "vllm serve m/m"',
        "sh -c 'vllm serve m/m'",
    ],
)
def test_a_shells_word_holds_a_command(text: str) -> None:
    assert (parse(text).engine, parse(text).model) == ("vllm", "m/m")


WRITTEN = {  # --max-num-seqs 2 --enable-prefix-caching of m/m, each in another way
    "powershell": (
        "PS C:\\x> vllm serve m/m `\n  --max-num-seqs 2 `\n  --enable-prefix-caching"
    ),
    "cmd": (
        "C:\\Users\\me> vllm serve m/m ^\n  --max-num-seqs 2 ^\n  "
        "--enable-prefix-caching"
    ),
    "array": "ARGS=(\n  --max-num-seqs 2  # few\n  --enable-prefix-caching\n)\n"
    'vllm serve m/m "${ARGS[@]}"',
    "options in a variable": (
        'A="--max-num-seqs 2 --enable-prefix-caching"\nvllm serve m/m $A'
    ),
    "an option taken out": "vllm serve m/m \\\n  --max-num-seqs 2 \\\n  # --seed 3 \\\n"
    "  --enable-prefix-caching",
    "a text program's dashes": (
        "vllm serve m/m \u2013-max-num-seqs 2 \u2014enable-prefix-caching"
    ),
    "unit": (
        "[Service]\nExecStart=/usr/bin/vllm serve m/m --max-num-seqs 2 "
        "--enable-prefix-caching"
    ),
    "notebook": "!vllm serve m/m --max-num-seqs 2 --enable-prefix-caching &",
    "root": "# vllm serve m/m --max-num-seqs 2 --enable-prefix-caching",
    "commented": "# vllm serve x/y --seed 1\n"
    "vllm serve m/m --max-num-seqs 2 --enable-prefix-caching",
    "module's file": "PYTHONPATH=. python vllm/entrypoints/openai/api_server.py "
    "--model m/m --max-num-seqs 2 --enable-prefix-caching",
    "screen": (
        "screen -dm bash -lc 'vllm serve m/m --max-num-seqs 2 --enable-prefix-caching'"
    ),
    "script of a pod": "docker run vllm/vllm-openai sh -c 'export A=1\n"
    "vllm serve m/m \\\n"
    "  --max-num-seqs 2 \\\n"
    "  --enable-prefix-caching\n"
    "'",
}


@pytest.mark.parametrize("text", WRITTEN.values(), ids=list(WRITTEN))
def test_no_option_is_lost_however_it_is_written(text: str) -> None:
    asked = parse(text)
    assert asked.model == "m/m"
    assert asked.options == [("--max-num-seqs", ["2"]), ("--enable-prefix-caching", [])]
    assert not asked.unread


def test_a_quote_goes_on_for_lines_and_what_is_not_understood_is_reported() -> None:
    asked = parse('vllm serve m/m --x \'{\n "a": 1}\' "${NOT_HERE[@]}"')
    assert asked.options[0][1][0] == '{\n "a": 1}'
    asked = parse('vllm serve m/m "${NOT_HERE[@]}" --seed 1')
    (note,) = translated(asked, None, "").notes
    assert "NOT_HERE" in note


@pytest.mark.parametrize(
    "text",
    [
        "uvx vllm@0.11.0 serve m/m",
        "uv run --with vllm==0.11.0 vllm serve m/m",
        "pip install 'vllm[audio]==0.11.0'\nvllm serve m/m",
        "docker run rocm/vllm:rocm7.0_vllm_0.11.0 vllm serve m/m",
    ],
)
def test_the_release_that_a_command_installs(text: str) -> None:
    assert (parse(text).release, parse(text).model) == ("0.11.0", "m/m")


def test_variables_of_a_manifest_reach_the_server() -> None:
    image = "image: vllm/vllm-openai:v0.12.0\n"
    compose = (
        f"services:\n  a:\n    {image}    command: --model m/m\n    environment:\n"
    )
    for given in ("      - VLLM_X=1\n", "      VLLM_X: 1\n"):
        assert parse(of_manifest(compose + given)).env == {"VLLM_X": "1"}
    pod = (
        "  - name: v\n"
        f"    {image}    args: [m/m]\n"
        "    env:\n"
        f"    - {{name: VLLM_X, value: '1'}}\n"
    )
    assert parse(of_manifest(pod)).env == {"VLLM_X": "1"}
    assert of_manifest("a: [1\n" + pod.replace("vllm", "{{ x }}")) == ""


@pytest.mark.parametrize(
    "text",
    [
        "lmdeploy serve api_server m/m",
        "lmdeploy serve api_server m/m --backend turbomind",
        "VLLM_USE_V1=0 vllm serve m/m",
        "vllm serve m/m --speculative-config.method ngram",
        "vllm serve m/m --config server.yaml",
    ],
)
def test_what_a_cpu_or_a_release_of_today_lacks_is_marked(text: str) -> None:
    made = translated(parse(text), None, "")
    assert [one for one in made.replaced if one.essential]
    assert made.args == ()


def test_a_text_model_s_family_has_its_tiny_one_where_the_release_serves_it(
    tmp_path: Path,
) -> None:
    registry = tmp_path / "vllm" / "model_executor" / "models" / "registry.py"
    registry.parent.mkdir(parents=True)
    registry.write_text('{"Qwen3ForCausalLM": 1, "Qwen3MoeForCausalLM": 2}')

    def model(name: str, traffic: str = "", release: str = "0.32.0") -> str:
        def has(architecture: str) -> bool:
            return serves("vllm", release, tmp_path, architecture)

        return translated(parse(f"vllm serve {name}"), None, traffic, serves=has).model

    assert model("Qwen/Qwen3-0.6B") == "qwen3-text"
    assert model("Qwen/Qwen3-30B-A3B") == "qwen3-moe"
    assert model("Qwen/Qwen3-30B-A3B", release="0.23.0") == "text", "not tried on a CPU"
    assert model("Qwen/Qwen3-Next-80B-A3B") == "text", "its architecture is not there"
    assert model("meta-llama/Llama-3.1-8B") == "text"
    assert not serves("sglang", "0.5.23", tmp_path, "Qwen3ForCausalLM"), (
        "its kernel is not there"
    )
    assert model("Qwen/Qwen3-VL-8B") == "qwen2-vl"
    assert model("Qwen/Qwen3-0.6B", '"logit_bias": {"5": 1}') == "text", (
        "it has more token ids"
    )
    assert translated(parse("vllm serve Qwen/Qwen3-0.6B"), None, "").model == "text"


# --------------------------------------------------------------- YAML that nobody means

POD = "image: vllm/vllm-openai:v0.24.0\nargs: [--model, m]\n"
BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
MERGED = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n}\n  <<: [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    "bad",
    [
        "[" * 40_000,
        "{" * 40_000,
        "a: " + "[" * 30 + "]" * 30,
        BOMB,
        MERGED,
        "a: &a [*a]",
        f"a: {'9' * 5000}",
        "a: 2026-13-45",
        "a: 2026-02-30T10:00:00Z",
        "a: *b",
        "a: 0x",
        "? [a]",
        "a: !!python/object:os.system x",
        "- x\n" * 20_001,
        "a: \x01",
    ],
    ids=lambda text: text[:24],
)
def test_yaml_that_nobody_means_is_no_manifest(bad: str) -> None:
    assert of_manifest(f"{bad}\n---\n{POD}") in ("", of_manifest(POD))
    for key in ("command", "environment", "env"):
        of_manifest(f"image: vllm/vllm-openai:v0.24.0\n{key}: 7\nargs: [1, 2]\n")


def test_an_alias_of_a_few_values_is_read() -> None:
    text = (
        "x: &common {image: 'vllm/vllm-openai:v0.24.0'}\na:\n  <<: *common\n  "
        "command: --model m\n"
    )
    assert "vllm/vllm-openai:v0.24.0" in of_manifest(text)
    assert of_manifest(POD)


def test_rows_on_a_hostile_command_are_bounded_and_the_verdict_is_no_surer() -> None:
    # The parser of no engine has these, and one needs a GPU: it is the last.
    options = " ".join(f"--hostile-{number} x" for number in range(3000))
    asked = parse(f"vllm serve m/m a b c {options} --tensor-parallel-size 4")
    asked.unread = [f"word{number}" for number in range(3000)]
    made = translated(asked, None, "")
    assert len(made.replaced) == MOST_REPLACED + 1
    assert made.replaced[-1].what.startswith("the rest (29")
    assert made.replaced[-1].essential
    assert len(made.notes) == MOST_NOTES
    few = translated(parse("vllm serve m/m --tensor-parallel-size 4"), None, "")
    assert len(few.replaced) == 2


@pytest.mark.parametrize(
    ("script", "least", "most"),
    [
        ('x = "a long sentence. " * 200', 3600, 4608),
        ('N = 300\nx = "ab " * N', 900, 1536),
        ('x = ["word"] * 400', 2000, 2560),
        ('x = " ".join(f"w{n}" for n in range(300))', 4800, 5632),
        ('curl -d "$(python -c \'print("ab " * 200)\')"', 3200, 4096),
        ("x = 3 * 4", 512, 512),
    ],
)
def test_a_context_has_room_for_texts_that_a_script_repeats(
    script: str, least: int, most: int
) -> None:
    made = translated(parse("vllm serve m/m"), None, script)
    assert least <= made.max_model_len <= most


def test_a_mixture_of_experts_has_such_a_stand_in_where_it_is_served() -> None:
    def stand_in(model: str, *, served: bool = True, traffic: str = "") -> str:
        asked = parse(f"vllm serve {model}")
        return translated(asked, None, traffic, serves=lambda name: served).model

    assert stand_in("mistralai/Mixtral-8x7B-Instruct-v0.1") == "qwen3-moe"
    assert stand_in("LiquidAI/LFM2.5-8B-A1B") == "qwen3-moe"
    assert stand_in("LiquidAI/LFM2.5-8B-A1B", served=False) == "text"
    assert stand_in("LiquidAI/LFM2.5-8B-A1B", traffic='"token_ids": [1]') == "text"
    assert stand_in("deepseek-ai/DeepSeek-R1-Distill-Llama-8B") == "text"
    row = translated(parse("vllm serve x/Mixtral-8x7B"), None, "", serves=bool).replaced
    assert "another architecture" in row[0].why


@pytest.mark.parametrize(
    ("model", "essential"),
    [
        ("Qwen/Qwen3-30B-A3B-FP8", True),
        ("x/Llama-3.1-8B-Instruct-AWQ", True),
        ("x/model-quantized.w4a16", True),
        ("BAAI/bge-reranker-v2-m3", True),
        ("x/y --runner pooling", True),
        ("Qwen/Qwen3-8B", False),
        ("x/Int8Lover-7B", False),
    ],
)
def test_quantised_weights_and_poolers_are_not_here(
    model: str, essential: bool
) -> None:
    row = translated(parse(f"vllm serve {model}"), None, "").replaced[0]
    assert row.essential is essential
    assert (row.needs == "model") is essential


@pytest.mark.parametrize(
    ("model", "served", "essential"),
    [
        ("Qwen/Qwen3-Embedding-0.6B", True, False),
        ("Qwen/Qwen3-Embedding-0.6B", False, True),
        ("Qwen/Qwen3-Reranker-0.6B", True, True),
        ("BAAI/bge-m3-embed", True, True),
    ],
)
def test_a_language_model_that_embeds_runs_the_real_one_s_code(
    model: str, served: bool, essential: bool
) -> None:
    asked = parse(f"vllm serve {model}")
    row = translated(asked, None, "", serves=lambda name: served).replaced[0]
    assert row.essential is essential


@pytest.mark.parametrize(
    ("model", "client", "pooled"),
    [
        ("MODEL", 'requests.post("http://x:8000/v1/embeddings", json={})', True),
        ("MODEL", "client.embeddings.create(input=texts, model=model)", True),
        ("MODEL", "curl http://x:8000/v1/rerank -d '{}'", True),
        ("MODEL", "client.chat.completions.create(messages=[])", False),
        ("MODEL", "curl /v1/embeddings; curl /v1/chat/completions", False),
        # A language model that is asked for embeddings may be what the report is about.
        ("Qwen/Qwen3-8B", "curl http://x:8000/v1/embeddings", False),
    ],
)
def test_who_only_asks_for_embeddings_of_no_named_model_has_one_that_pools(
    model: str, client: str, pooled: bool
) -> None:
    made = translated(parse(f"vllm serve {model}"), None, client)
    assert (made.args[:2] == ("--runner", "pooling")) is pooled
    assert (made.replaced[0].needs == "model") is pooled


@pytest.mark.parametrize(
    ("model", "sees"),
    [
        ("Qwen/Qwen3-0.6B", False),
        ("meta-llama/Llama-3.1-8B-Instruct", False),
        ("openai/gpt-oss-20b", False),
        ("Qwen/Qwen2.5-VL-7B-Instruct", True),
        ("Qwen/Qwen3.5-9B", True),
        ("meta-llama/Llama-3.2-11B-Vision-Instruct", True),
        ("MODEL", True),
        ("me/my-finetune", True),
    ],
)
def test_a_picture_for_a_model_of_texts_is_sent_to_a_model_of_texts(
    model: str, sees: bool
) -> None:
    client = """curl :8000/v1/chat/completions -d '{"type": "image_url"}'"""
    made = translated(parse(f"vllm serve {model}"), None, client)
    assert (made.model == "qwen2-vl") is sees


def test_options_of_a_pooler_ask_for_a_model_that_pools() -> None:
    options = """--pooler-config '{"use_activation": true}'"""
    made = translated(parse(f"vllm serve x/harrier {options}"), None, "")
    assert made.args[:2] == ("--runner", "pooling")
    assert made.replaced[0].needs == "model"


@pytest.mark.parametrize(
    ("command", "client", "added"),
    [
        ("vllm serve m/m", '{"response_format": {"type": "json_object"}}', True),
        ("vllm serve m/m", 'extra_body={"guided_choice": ["a", "b"]}', True),
        ("vllm serve m/m --dtype auto", 'tool_choice="required"', True),
        ("vllm serve m/m --dtype bfloat16", 'tool_choice="required"', False),
        ("vllm serve m/m", '{"tool_choice": {"type": "function"}}', True),
        ("vllm serve m/m", 'tool_choice="auto"', False),
        ("sglang serve m/m", 'tool_choice="required"', False),
    ],
)
def test_a_grammar_on_a_cpu_needs_logits_in_float32(
    command: str, client: str, added: bool
) -> None:
    args = translated(parse(command), None, client).args
    assert (args[-1:] == ("--dtype=float32",)) is added
    on_gpu = translated(parse(command), None, client, gpu=True).args
    assert "--dtype=float32" not in on_gpu


def test_what_is_left_out_says_what_it_would_take() -> None:
    command = "vllm serve m/m -tp 2 --enable-lora --unlisted x"
    rows = translated(parse(command), None, "").replaced
    needs = {row.what.split()[0]: row.needs for row in rows if row.essential}
    assert needs == {"--tensor-parallel-size": "hardware", "--enable-lora": "model"} | {
        "--unlisted": "trust"
    }


@pytest.mark.parametrize(
    ("engine", "args", "expected"),
    [
        ("sglang", ["--is-embedding"], True),
        ("vllm", ["--runner", "pooling"], True),
        ("vllm", ["--task=embed"], True),
        ("vllm", ["--convert", "auto"], False),
        ("vllm", ["--seed", "1"], False),
        ("lmdeploy", ["--is-embedding"], False),
    ],
)
def test_a_server_whose_model_pools(
    engine: str, args: list[str], expected: bool
) -> None:
    assert pools(engine, args) is expected
