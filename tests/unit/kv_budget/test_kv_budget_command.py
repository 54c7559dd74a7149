"""``mmrepro kv-budget`` as people type it."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from decimal import Decimal
from pathlib import Path

import pytest
from mmrepro import cli
from mmrepro.base.errors import ExitCode
from mmrepro.kv_budget.rendering import CurvePoint, text_curve

REPORT = ("--free", "6784MiB", "--runtime", "5061MiB", "--block-bytes", "8388608")
Said = subprocess.CompletedProcess[str]


@pytest.fixture
def kv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("signal.signal", lambda number, handler: None)

    def run(*argv: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["mmrepro", "kv-budget", *map(str, argv)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert "bug of mmrepro" not in said.err
        return Said(sys.argv, int(ended.value.code or 0), said.out, said.err)

    return run


def document(kv, *argv: object) -> dict:
    done = kv(*argv, "--json")
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("setting", "blocks", "tokens"), [("0.1", 21, 1344), ("0.5", 107, 6848)]
)
def test_the_report_forward(kv, setting: str, blocks: int, tokens: int) -> None:
    done = kv(*REPORT, "--cache-max-entry-count", setting)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"  blocks          {blocks}\n" in done.stdout
    assert f"  longest prompt  {tokens:,} tokens\n" in done.stdout
    assert len(done.stdout.splitlines()) <= 20
    whole = kv(*REPORT, "--cache-max-entry-count", setting, "--full").stdout
    assert "InternLM/lmdeploy 0.6.4 pytorch/engine/model_agent.py:103" in whole


def test_the_report_backward(kv) -> None:
    done = kv(*REPORT, "--need", 3446)
    assert done.returncode == 0
    assert "A prompt of 3,446 tokens needs 54 blocks." in done.stdout
    assert (
        "smallest cache-max-entry-count that works: 0.26 (55 blocks, 3,520"
        in done.stdout
    )
    assert "one step less, 0.25: 53 blocks, 3,392 tokens" in done.stdout
    finer = document(kv, *REPORT, "--need", 3446, "--decimals", 3)
    assert finer["smallest"]["setting"]["setting"] == "0.251"
    assert finer["smallest"]["setting"]["blocks"] == 54
    assert finer["smallest"]["one_step_below"]["max_tokens"] == 3392
    assert {
        o["release"]: o["smallest"]["setting"]["setting"]
        for o in finer["other_releases"]
    } == {
        "0.6.4": "0.251",
        "0.9.2": "0.256",
        "0.10.0": "0.256",
        "0.11.1": "0.261",
        "0.18.0": "0.261",
    }


def test_a_need_that_no_setting_meets(kv) -> None:
    done = kv(*REPORT, "--need", 20000)
    assert done.returncode == ExitCode.NOT_AS_EXPECTED
    assert "no cache-max-entry-count holds it: 0.99 holds 13,632 tokens." in done.stdout


def test_an_engine_that_does_not_start(kv) -> None:
    done = kv("--free", "5062MiB", *REPORT[2:], "--cache-max-entry-count", "0.1")
    assert done.returncode == ExitCode.NOT_AS_EXPECTED
    assert "does not start  No enough gpu memory for kv cache." in done.stdout


def test_a_release_that_nobody_read_names_the_one_that_was(kv) -> None:
    unread = kv(*REPORT, "--release", "99.0.0").stdout.splitlines()[0]
    read = unread.rpartition(", read in ")[2]
    newest = kv(*REPORT, "--release", read).stdout.splitlines()[0]
    assert newest.startswith(f"LMDeploy {read}, ")
    assert "read in" not in newest


def test_what_does_not_start_is_red_on_a_terminal(
    kv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    done = kv("--free", "5062MiB", *REPORT[2:], "--cache-max-entry-count", "0.1")
    lines = done.stdout.splitlines()
    (refused,) = [line for line in lines if "does not start" in line]
    assert refused.startswith("\x1b[31m")
    (blocks,) = [line for line in lines if line.startswith("  blocks")]
    assert "\x1b" not in blocks


def test_a_smaller_setting_that_works_is_told(kv) -> None:
    done = kv(*REPORT[:2], *REPORT[4:], "--vocab-size", 92553, "--need", 1344)
    assert "that works: 0.10 (21 blocks, 1,344 tokens)" in done.stdout
    assert "0.04 works as well" in done.stdout
    assert "lowers max_prefill_token_num to 4096" in done.stdout


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("--free", "-1"), "--free '-1' is not a size."),
        (("--free", "0"), "--free '0' is less than 1 MiB."),
        (("--free", "6784"), "--free '6784' is less than 1 MiB. Is its unit missing?"),
        (("--free", "nan"), "--free 'nan' is not a size."),
        (("--free", "infMiB"), "is not a size"),
        (("--free", "6784XB"), "is not a size"),
        (("--free", "1e9MiB"), "is not a size"),
        (("--free", "99999999GiB"), "is more than 1024 TiB. Is its unit right?"),
        (("--free", "9" * 400 + "GiB"), "is not a size"),
        (("--cache-max-entry-count", "0"), "is not between 0 and 1"),
        (("--cache-max-entry-count", "-0.1"), "is not between 0 and 1"),
        (("--cache-max-entry-count", "nan"), "'nan' is not a finite number."),
        (("--cache-max-entry-count", "Infinity"), "is not a finite number."),
        (("--cache-max-entry-count", "1e-400"), "is not between 0 and 1"),
        (("--cache-max-entry-count", "1"), "it takes numbers above 0 and below 1."),
        (("--cache-max-entry-count", "50%"), "is not a number."),
        (("--need", "0"), "--need 0 is no prompt"),
        (("--need", "-5"), "--need must be a whole number of at least 0, not '-5'"),
        (("--need", "1.5"), "--need must be a whole number of at least 0, not '"),
        (("--need", "²"), "--need must be a whole number of at least 0, not '"),
        (("--block-bytes", "0"), "--block-bytes '0' is less than 1 B."),
        (("--tp", "0"), "--tp must be a whole number"),
        (("--decimals", "9"), "--decimals must be a whole number from 1 to 4, not '9'"),
        (("--release", "latest"), "'latest' is not a release of lmdeploy."),
        (("--release", "0.5.0"), "it starts with 0.6.4"),
        (("--gpu-memory-utilization", "0.5"), "settings of different engines"),
        (("--kv-dtype", "fp8"), "--quant-policy, not --kv-dtype"),
        (("--device", "cpu"), "--device cpu is for vllm"),
        (("--images", "2"), "give --image-tokens."),
        (("--image-tokens", "2"), "need --images"),
        (("--layers", "2"), "are needed together"),
        (("--model", "/nowhere"), "cannot be read"),
    ],
)
def test_what_makes_no_sense_is_told_in_a_sentence(
    kv, argv: tuple[str, ...], says: str
) -> None:
    done = kv(*REPORT, "--cache-max-entry-count", "0.1", *argv)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, ""), done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) <= 4


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ((), "LMDeploy needs --free"),
        (("--free", "1GiB"), "The size of a block is not known"),
        (
            ("--free", "1GiB", "--block-bytes", "64KiB"),
            "LMDeploy's reserve is not known",
        ),
        (("--engine", "vllm", "--block-bytes", "1MiB"), "vLLM needs --total"),
        (
            ("--engine", "vllm", "--block-bytes", "1MiB", "--total", "80GB"),
            "vLLM needs --runtime",
        ),
        (("--engine", "sglang", "--total", "8GiB"), "SGLang needs --free"),
        (
            ("--engine", "sglang", "--total", "8GiB", "--free", "9GiB"),
            "more than --total",
        ),
        (
            (
                "--engine",
                "sglang",
                "--total",
                "8GiB",
                "--free",
                "6GiB",
                "--block-bytes",
                "9",
            ),
            "Neither --mem-fraction-static nor --need is given",
        ),
        (("--engine", "vllm", "--quant-policy", "8"), "--quant-policy is LMDeploy's"),
        (
            ("--engine", "sglang", "--cache-max-entry-count", "0.5"),
            "is not the setting of SGLang",
        ),
    ],
)
def test_what_is_missing_is_named(kv, argv: tuple[str, ...], says: str) -> None:
    done = kv(*argv)
    if "setting of" in says:
        done = kv(*argv, "--total", "8GiB", "--free", "6GiB", "--block-bytes", "9")
    assert done.returncode == ExitCode.USAGE
    assert says in done.stderr


def test_the_engine_is_told_by_its_setting(kv) -> None:
    vllm = ("--total", "80GiB", "--runtime", "20GiB", "--block-bytes", "2MiB")
    assert (
        document(kv, *vllm, "--gpu-memory-utilization", "0.5")["budget"]["blocks"]
        == 10240
    )
    cpu = document(
        kv, "--kv-space", 1, "--layers", 2, "--kv-heads", 2, "--head-dim", 64
    )
    assert (cpu["engine"], cpu["block_size"], cpu["budget"]["blocks"]) == (
        "vllm",
        128,
        8192,
    )
    sglang = ("--total", "80GiB", "--free", "64GiB", "--block-bytes", "131072")
    assert (
        document(kv, *sglang, "--mem-fraction-static", "0.75")["budget"]["blocks"]
        == 360448
    )


def test_the_curve_as_text() -> None:
    """A straight line from 1 to 100: the row that 50 tokens are in is dashed where it
    is empty."""
    line = [CurvePoint(Decimal(n) / 100, n) for n in range(1, 101)]
    rows = text_curve(line, 50, width=10, height=10)
    assert rows[0].startswith("      100 ┤")
    assert [row[:9].strip() for row in rows[:10]].index("50") == 4
    assert rows[4] == "       50 ┤╌╌╌╌╌▁████"
    assert rows[9].endswith("┤▁█████████")
    assert text_curve([CurvePoint(Decimal("0.5"), 0)]) == []


def test_the_curve_as_a_picture(kv, tmp_path: Path) -> None:
    file = tmp_path / "curve.svg"
    assert kv(*REPORT, "--need", 3446, "--svg", file).returncode == 0
    root = ET.fromstring(file.read_text())
    assert root.tag.endswith("svg")
    assert "3,446 tokens" in "".join(root.itertext())
    refused = kv(*REPORT, "--need", 3446, "--svg", tmp_path / "none" / "curve.svg")
    assert refused.returncode == ExitCode.USAGE
    assert "cannot be written" in refused.stderr
