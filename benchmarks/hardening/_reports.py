"""A grammar of bug reports: hostile ones, that look as if somebody had written them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

MOST_CHARS = 65_536
"""Of an issue on GitHub."""
WORDS = [
    "vllm",
    "sglang",
    "0.12.0",
    "crash",
    "`code`",
    "**bold**",
    "500",
    "Internal Server Error",
    "CUDA",
    "it hangs",
    "returns 500",
    "EngineDeadError",
    "服务崩溃",
    "返回错误",
    "\u202e",
    "\ud800",
    "\0",
    "\x1b[2J",
    "🙂" * 5,
    "é",
    "\u2028",
    "\x0b",
    "a" * 300,
    "|",
    "<!--",
    "-->",
    "&lt;",
    "\\",
    "'",
    '"',
    "${a:-",
    "$(",
]
NAMES = ["a", "MODEL", "x1", "PATH", "_", "VLLM_USE_V1", "é"]
QUOTES = ["'", '"', "`", '"""', "'''", "\\'", '\\"', "“", "’", "$'"]


class Reports:
    """Makes one report of a seed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def report(self) -> str:
        parts = [self.title()]
        for _ in range(self.rng.randint(1, 9)):
            parts.append(self.rng.choice(SECTIONS)(self))
        if self.rng.random() < 0.7:
            parts.insert(
                self.rng.randrange(len(parts) + 1), self.fenced("sh", self.server())
            )
        text = self.rng.choice(["\n", "\n\n", "\r\n"]).join(parts)
        if self.rng.random() < 0.2:
            at = self.rng.randrange(len(text))
            text = text[at:] + text[:at]
        return text[:MOST_CHARS]

    # ------------------------------------------------------------------ small things

    def count(self) -> int:
        """Mostly few, at times as many as a report holds."""
        return self.rng.choice([1, 1, 2, 3, 5, 10, 40, 300, 3000, 30_000])

    def times(self, piece: str) -> str:
        return piece * min(self.count(), MOST_CHARS // max(1, len(piece)))

    def words(self) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(1, 12)))

    def nested(self, opens: str, inside: str, closes: str) -> str:
        depth = min(self.count(), MOST_CHARS // max(1, len(opens + closes)))
        return (
            opens * depth
            + inside
            + closes * self.rng.choice([depth, depth, 0, depth // 2])
        )

    def quoted(self, text: str) -> str:
        mark = self.rng.choice(QUOTES)
        return mark + text + self.rng.choice([mark, mark, mark, ""])

    def title(self) -> str:
        form = self.rng.choice(
            ["# [Bug]: {}", "title: '{}", "{}", "### {}", "\ufeff# {}", "---\n{}"]
        )
        return form.format(self.words())

    # ------------------------------------------------------------------ Markdown

    def fenced(self, kind: str, text: str) -> str:
        mark = self.rng.choice(["```", "```", "```", "~~~", "````", "`" * 40, " > ```"])
        end = self.rng.choice([mark, mark, mark, mark, "", "``", mark + "~", "`" * 3])
        return f"{mark}{kind}\n{text}\n{end}"

    def prose(self) -> str:
        return self.rng.choice(["\n", " ", ". "]).join(self.words() for _ in range(30))

    def table(self) -> str:
        row = "| " + " | ".join(self.words() for _ in range(4)) + " |\n"
        return self.times(row) + self.times("|---")

    def details(self) -> str:
        return self.nested(
            "<details>\n<summary>log</summary>\n", self.code(), "\n</details>"
        )

    def fences_in_fences(self) -> str:
        rows = range(3, 3 + min(self.count(), 200))
        return "\n".join("`" * n + self.rng.choice(["sh", "", "python"]) for n in rows)

    def marks(self) -> str:
        mark = self.rng.choice(
            [
                "`",
                "~",
                ">",
                "#",
                " ",
                "\t",
                "\n",
                "\\\n",
                "|",
                "- ",
                "* ",
                "\r",
                "=",
                "_",
                "[",
                "](",
            ]
        )
        return self.times(mark)

    def indented(self) -> str:
        return "\n\n" + "\n".join("    " + line for line in self.code().split("\n"))

    def environment(self) -> str:
        rows = [
            f"{name}: {self.words()}" for name in ("vLLM Version", "PyTorch", "GPU 0")
        ]
        version = self.rng.choice(
            ["vllm==0.12.0", "vllm version 0.12", "vLLM " + ":v" * 500]
        )
        return "### Your current environment\n" + self.fenced(
            "text", "\n".join([*rows, version])
        )

    def traceback(self) -> str:
        frame = '  File "/usr/lib/vllm/v1/core.py", line 12, in step\n    self.run()\n'
        last = self.rng.choice(
            ["ValueError: x", "EngineDeadError", "a." * 3000 + "Error", "MemoryError"]
        )
        text = f"Traceback (most recent call last):\n{self.times(frame)}{last}"
        return self.fenced(self.rng.choice(["text", "", "log"]), text)

    def code(self) -> str:
        kind, make = self.rng.choice(CODE)
        return self.fenced(kind, make(self))

    # ------------------------------------------------------------------ shell

    def server(self) -> str:
        command = self.rng.choice(
            [
                "vllm serve org/model --port 8000",
                "python -m vllm.entrypoints.openai.api_server --model m",
                "python3 -m sglang.launch_server --model-path m",
                "lmdeploy serve api_server m",
                "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.12.0 --model m",
                "sudo env A=b nohup vllm serve m",
                "bash -c 'vllm serve m --max-model-len 100'",
            ]
        )
        lines = [f"export {self.rng.choice(NAMES)}={self.value()}" for _ in range(3)]
        options = " ".join(
            f"--opt-{n} {self.value()}" for n in range(min(self.count(), 4000))
        )
        broken = self.rng.choice([" ", " \\\n", " \\\n\\\n", "   ", " # no\n"])
        return "\n".join([*lines, command + broken + options])

    def value(self) -> str:
        return self.rng.choice(
            [
                lambda: self.words(),
                lambda: self.quoted(self.words()),
                lambda: self.times("${a:-"),
                lambda: self.nested("$(", "echo x", ")"),
                lambda: self.nested("${a:-", "x", "}"),
                lambda: self.times("a=b "),
                lambda: "9" * self.count(),
                lambda: "²",
                lambda: "~/x",
                lambda: json.dumps({"a": self.words()}),
                lambda: self.times("@"),
                lambda: self.times("'\"'"),
            ]
        )()

    def curl(self) -> str:
        data = self.rng.choice([self.body(), "@body.json", "@-", self.value()])
        head = self.rng.choice(
            ["curl", "$ curl", "time curl", "curl.exe", "  curl -sS", "wget"]
        )
        glue = self.rng.choice([" ", " \\\n  ", " ^\n", " `\n"])
        words = [
            head,
            "http://localhost:8000/v1/chat/completions",
            "-H 'Content-Type: x'",
        ]
        return glue.join([*words, f"-d {self.quoted(data)}"])

    def shell(self) -> str:
        lines = []
        for _ in range(self.rng.randint(1, 6)):
            lines.append(
                self.rng.choice(
                    [
                        lambda: self.curl(),
                        lambda: self.heredoc(),
                        lambda: self.server(),
                        lambda: f"{self.rng.choice(NAMES)}={self.value()}",
                        lambda: self.nested("if x; then\n", self.curl(), "\nfi"),
                        lambda: self.nested("for i in a; do ", self.curl(), "; done"),
                        lambda: self.nested("f() {\n", self.curl(), "\n}"),
                        lambda: self.times("&& if "),
                        lambda: self.times(";"),
                        lambda: self.times("\\\n"),
                        lambda: self.times("sudo a; "),
                        lambda: self.times("A= "),
                        lambda: self.times("curl x\n"),
                        lambda: self.times(self.quoted("\n")),
                        lambda: f"a=({self.times('b ')})",
                        lambda: "python client.py --n 3",
                        lambda: self.times("docker run "),
                    ]
                )()
            )
        return "\n".join(lines)

    def heredoc(self) -> str:
        name = self.rng.choice(["EOF", "'EOF'", '"EOF"', "-EOF", "A" * 2000, "E\n"])
        start = self.rng.choice(
            ["cat <<", "python - <<", "curl x -d @- <<", 'curl -d "$(cat <<']
        )
        end = self.rng.choice(["EOF", "EOF", "", " EOF", "EOF2"])
        inside = self.rng.choice([self.body, self.script, self.words])()
        return self.times(f"{start}{name}\n") + inside + f"\n{end}\n"

    # ------------------------------------------------------------------ other languages

    def script(self) -> str:
        lines = [
            self.rng.choice(
                ["import openai", "from openai import OpenAI", "import requests"]
            )
        ]
        for _ in range(self.rng.randint(1, 6)):
            lines.append(
                self.rng.choice(
                    [
                        lambda: f"x = {self.nested('(', '1', ')')}",
                        lambda: f"x = {self.nested('[', '', ']')}",
                        lambda: "x = " + self.times("-") + "1",
                        lambda: "x = 1" + self.times("+1"),
                        lambda: "x = a" + self.times(".a"),
                        lambda: "x = a" + self.times("()"),
                        lambda: "x = a" + self.times("[0]"),
                        lambda: "x = " + self.times("not ") + "1",
                        lambda: "x = " + self.times("lambda: ") + "1",
                        lambda: "a = f'{a}{a}'\n" * 60,
                        lambda: self.deep_blocks(),
                        lambda: f"x = {self.value()}",
                        lambda: ">>> import os",
                        lambda: (
                            "subprocess.Popen(['vllm', 'serve', "
                            f"{self.times(repr('m') + ', ')}])"
                        ),
                        lambda: "x = 0x" + self.times("f"),
                        lambda: "x = " + self.times("1e9"),
                        lambda: f"x = {self.quoted(self.words())}",
                        lambda: "!pip install x",
                        lambda: "x = " + self.times("f'{"),
                        lambda: self.times("a: int = 1\n"),
                        lambda: (
                            "requests.post('http://localhost:8000', "
                            f"json={self.body()})"
                        ),
                    ]
                )()
            )
        return "\n".join(lines)

    def deep_blocks(self) -> str:
        depth = min(self.count(), 300)
        return "".join(" " * n + "if x:\n" for n in range(depth)) + " " * depth + "pass"

    def javascript(self) -> str:
        return (
            f"await fetch(`http://localhost`, {{body: "
            f"{self.nested('{a: ', '1', '}')}}})"
        )

    def body(self) -> str:
        deep = self.nested('{"messages": [', '"x"', "]}")
        plain = json.dumps(
            {"model": "m", "prompt": self.words(), "n": 10**30}, ensure_ascii=False
        )
        return self.rng.choice(
            [
                deep,
                plain,
                plain[:-1],
                plain + ",",
                self.nested("[", "", "]"),
                '{"text": "\\ud800"}',
                '{"prompt": 1e999, "a": NaN}',
                "{" + self.times(" //") + '"x',
                "{" + self.times(", \n"),
                '{"prompt": ' + "9" * 6000 + "}",
                '{"prompt": "' + self.times("\\") + '"}',
                "{'messages': " + self.nested("(", "1", ")") + "}",
                self.times('{"text":"a"}\n'),
            ]
        )

    def manifest(self) -> str:
        head = self.rng.choice(
            [
                "services:\n  a:\n    image: vllm/vllm-openai:v0.12.0\n    command: ",
                (
                    "kind: Pod\nspec:\n  containers:\n  - image: lmsysorg/sglang\n    "
                    "args: "
                ),
            ]
        )
        value = self.rng.choice(
            [
                lambda: f"--model m {self.value()}",
                lambda: self.nested("[", "a", "]"),
                lambda: self.nested("{a: ", "b", "}"),
                lambda: "&a [*a]",
                lambda: "!!python/object:os.system x",
                lambda: "'" + self.words(),
                lambda: "|\n" + self.times("      x\n"),
                lambda: "0o777777777777",
                lambda: "2026-99-99",
                lambda: self.times("- "),
                lambda: '["\\ud800", "\\0"]',
                lambda: (
                    "[x]\nb0: &b0 [x]\n"
                    + "".join(
                        f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 60)
                    )
                ),
            ]
        )()
        return head + value

    def raw_http(self) -> str:
        headers = self.times("A: b\n")
        return (
            f"POST /v1/completions HTTP/1.1\nHost: {self.words()}\n{headers}\n"
            f"{self.body()}"
        )


CODE: list[tuple[str, Callable[[Reports], str]]] = [
    ("sh", Reports.shell),
    ("bash", Reports.shell),
    ("", Reports.shell),
    ("console", Reports.curl),
    ("python", Reports.script),
    ("py", Reports.script),
    ("", Reports.script),
    ("json", Reports.body),
    ("", Reports.body),
    ("yaml", Reports.manifest),
    ("", Reports.manifest),
    ("js", Reports.javascript),
    ("http", Reports.raw_http),
    ("powershell", Reports.curl),
    ("cmd", Reports.curl),
    ("sh", Reports.server),
    ("text", Reports.prose),
    ("x" * 500, Reports.words),
]
SECTIONS: list[Callable[[Reports], str]] = [
    Reports.code,
    Reports.code,
    Reports.code,
    Reports.code,
    Reports.prose,
    Reports.table,
    Reports.details,
    Reports.fences_in_fences,
    Reports.marks,
    Reports.indented,
    Reports.environment,
    Reports.traceback,
    Reports.shell,
    Reports.script,
]
