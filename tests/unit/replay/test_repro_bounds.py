"""A report of any text is read in time and memory that grow as the text does, or is
refused in a sentence."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from costs import spent
from mmrepro.base.errors import UsageError
from mmrepro.base.machine.limited import (
    OverLimit,
    WorkFailed,
    WorkLimits,
    within_limits,
)
from mmrepro.cli import main
from mmrepro.search.repro import issue as issues
from mmrepro.search.repro.issue import read_here, read_issue
from mmrepro.traffic.capture.curl import curl_requests
from mmrepro.traffic.capture.exchanges import Exchange


def sh(text: str) -> str:
    return f"```sh\n{text}\n```"


def python(text: str) -> str:
    return f"```python\nimport os, localhost\n{text}\n```"


NASTY: dict[str, Callable[[int], str]] = {
    "backticks": lambda n: "`" * n,
    "fences in fences": lambda n: "".join(
        "`" * (3 + k) + "\n" for k in range(int((2 * n) ** 0.5))
    ),
    "blocks": lambda n: "```\na\n```\n" * (n // 10),
    "blanks": lambda n: " " * n,
    "blanks in lines": lambda n: (" " * 100 + "\\\n") * (n // 102),
    "heredocs": lambda n: sh("curl x <<A\n" * (n // 11)),
    "heredocs of many names": lambda n: sh(
        "".join(f"curl x <<A{k}\n" for k in range(n // 15))
    ),
    "heredoc of a long name": lambda n: sh("curl x <<" + "A" * n),
    "expansions": lambda n: sh("vllm serve " + "${a:-" * (n // 5)),
    "subshells": lambda n: sh("curl x " + "$(" * (n // 2)),
    "quotes": lambda n: sh("curl 'x\n" * (n // 8)),
    "lines in a quote": lambda n: sh("curl 'x\n" + "a\n" * (n // 2)),
    "functions": lambda n: sh("f() {\n" + "curl x\n" * (n // 7)),
    "conditions": lambda n: sh("curl x " + "&& if " * (n // 6)),
    "wrappers": lambda n: sh("sudo a; " * (n // 8) + "x vllm serve m"),
    "wrappers of one kind": lambda n: sh("env " * (n // 4) + "x"),
    "assignments": lambda n: sh("A= " * (n // 3) + "x vllm serve m"),
    "curl words": lambda n: sh("curl " * (n // 5)),
    "comments in JSON": lambda n: "```json\n{" + " //" * (n // 3) + '"x\n```',
    "script without a fence": lambda n: "import requests\n" + "(\n" * (n // 2),
    "signs in versions": lambda n: "vllm " + " |*` " * (n // 5),
    "colons in versions": lambda n: "vllm" + ":" * n,
    "engines": lambda n: "vllm" * (n // 4) + " " * n,
    "equals": lambda n: "vllm" + "==v" * (n // 3),
    "images": lambda n: sh("vllm@" * (n // 5)),
    "files sent": lambda n: sh(
        "curl " + "@" * n + "".join(f" a{k}.json" for k in range(n // 9))
    ),
    "names": lambda n: python("a = a\n" * (n // 6)),
}


@pytest.mark.parametrize("name", NASTY)
def test_time_grows_as_the_text_does(name: str) -> None:
    """Four times the text takes sixteen times as long where it is quadratic."""
    took = []
    for length in (4000, 16_000):
        text = NASTY[name](length)
        began = time.process_time()
        with contextlib.suppress(UsageError):  # of the server's command: it was read
            read_here(text)
        took.append(time.process_time() - began)
    assert took[1] < 0.15 or took[1] / took[0] < 9, took


@pytest.mark.parametrize(
    "text",
    [
        python("x = " + "-" * 60_000 + "1"),
        python("x = 1" + "+1" * 30_000),
        python("x = a" + ".a" * 30_000),
        python("x = a" + "()" * 30_000),
        python("x = " + "(" * 60_000),
        python("x = " + "0x" + "f" * 60_000),
        python("a = 'vllm serve m '\n" + "a = f'{a}{a}'\n" * 60),
        python("a = '" + "vllm serve " * 170 + "'\nx = [" + "a, " * 15_000 + "]"),
        python("a = '" + "vllm serve " * 170 + "'\n" + "a;" * 20_000),
        "```json\n" + '{"messages":' * 5000 + "\n```",
        '```json\n{"messages":' + "[" * 30_000 + "]" * 30_000 + "}\n```",
        "```yaml\nimage: vllm/vllm-openai\n" + "[" * 60_000 + "\n```",
        "```yaml\nimage: vllm/vllm-openai\na: &a [x]\n"
        + "".join(f"b{k}: &b{k} [*b{k - 1},*b{k - 1}]\n" for k in range(1, 200))
        + "\n```",
        sh("vllm serve m --port " + "9" * 50_000),
        sh("vllm serve m --port ²"),
        sh("bash -c 'A=\"" + "b " * 15_000 + '"\nvllm serve ' + "$A " * 9_000 + "'"),
        "\0" * 65_000,
        sh("vllm serve m --a \0\ncurl http://localhost:8000/\0"),
        '```yaml\nimage: vllm/vllm-openai\ncommand: ["\\ud800", "--model", "x"]\n```',
    ],
)
def test_what_is_deep_or_long_ends_in_a_report_or_in_a_sentence(text: str) -> None:
    began = spent()
    with contextlib.suppress(UsageError):
        found = read_issue(text)
        "".join([found.client, found.server, *found.notes]).encode()
        assert "\0" not in found.client + found.server
    assert spent() - began < 15


def test_what_takes_too_long_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(text: str) -> None:
        while text:
            pass

    monkeypatch.setattr(issues, "read_here", never)
    monkeypatch.setattr(issues, "LIMITS", WorkLimits(cpu_s=1))
    (tmp_path / "issue.md").write_text("# It dies")
    monkeypatch.setattr("sys.argv", ["mmrepro", "repro", str(tmp_path / "issue.md")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "takes too long to read" in capsys.readouterr().err


def forever() -> None:
    while True:
        pass


def much() -> int:
    return len(bytearray(300 << 20))


def deep(count: int = 0) -> int:
    return deep(count + 1)


def wrong() -> None:
    raise KeyError("secret")


def ends() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def told() -> None:
    raise UsageError("It is wrong.", hint="do it", detail=["a"])


SMALL = WorkLimits(cpu_s=1, wall_s=2.5, bytes=100 << 20, answer=1000)


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (forever, "too long"),
        (lambda: time.sleep(60), "too long"),
        (much, "memory"),
        (deep, "deep"),
        (ends, "memory or depth"),
        (lambda: "x" * 5000, "too much"),
    ],
)
def test_work_beyond_a_limit_ends(work: Callable[[], object], words: str) -> None:
    with pytest.raises(OverLimit, match=words):
        within_limits(work, SMALL, expected=UsageError)


def test_work_hands_back_plain_values_and_what_it_raises_on_purpose(
    tmp_path: Path,
) -> None:
    assert within_limits(lambda: {"a": ["\ud800", 1]}, SMALL, expected=UsageError) == {
        "a": ["?", 1]
    }
    with pytest.raises(UsageError) as raised:
        within_limits(told, SMALL, expected=UsageError)
    assert (raised.value.message, raised.value.hint) == ("It is wrong.", "do it")
    with pytest.raises(WorkFailed, match="KeyError"):
        within_limits(wrong, SMALL, expected=UsageError)
    with pytest.raises(WorkFailed):  # it can write no file
        within_limits(
            lambda: (tmp_path / "x").write_bytes(b"x"), SMALL, expected=UsageError
        )


@pytest.mark.parametrize(
    "piece",
    [
        "curl x <<A\n",
        "curl 'x\n",
        'curl "\\"',
        "curl $(",
        "<<",
        "curl <<'A'\nA\n",
        "curl -d @- ${a",
    ],
)
def test_curl_commands_are_read_in_linear_time(piece: str, tmp_path: Path) -> None:
    took = []
    for count in (2000, 8000):
        began = time.process_time()
        list(curl_requests(piece * count, tmp_path))
        took.append(time.process_time() - began)
    assert took[1] < 0.2 or took[1] / took[0] < 9, took


def test_a_heredoc_is_the_body_of_its_curl(tmp_path: Path) -> None:
    script = (
        "curl http://x/v1/completions -d @- <<-'EOF' -H 'a: b'\n\t{\"prompt\": 1}\n"
        "\tEOF\n"
        "curl http://x/health\ncat <<OPEN\n"
    )
    first, second = curl_requests(script, tmp_path)
    assert isinstance(first, Exchange)
    assert isinstance(second, Exchange)
    assert (first.body, first.headers[0]) == (b'{"prompt": 1}', ("a", "b"))
    assert second.target == "/health"
