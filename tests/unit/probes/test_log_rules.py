"""Each rule for lines of logs, on its own examples: alone, in long logs, wrapped; and
rules of an operator's own."""

import io
import os
import re
import time
from pathlib import Path

import pytest
from click.testing import Result
from mmrepro.base.errors import UsageError
from mmrepro.cli.app import app
from mmrepro.engines import log_marks
from mmrepro.engines.log_rules import (
    BoundedExpression,
    LogRule,
    RuleError,
    read_rules,
    rule_of,
    shipped_rules,
)
from mmrepro.failure.documents.cause import CauseClass, Certainty
from mmrepro.live.diagnose import cause_rules
from mmrepro.live.diagnose.cause import servers
from mmrepro.live.diagnose.log_reading import read_logs
from mmrepro.probes import log_excerpt, logs
from mmrepro.probes.base import run_probe
from mmrepro.probes.log_anchors import Finder, anchors_of
from mmrepro.probes.logs import LogsProbe, Scanner
from typer.testing import CliRunner
from wrapped import WRAPPED

RULES = shipped_rules(cause_rules.ENDS)
FILLER = (
    "(EngineCore pid=142) INFO 03-09 08:41:33 [kv_cache_utils.py:1087] Table of blocks "
    "looked through, row {}.\n"
)
LINES = 5000
# The last line of nobody's is always kept: it must not be the example.
HEALTH = 'INFO:     10.0.0.9:4242 - "GET /health HTTP/1.1" 200 OK\n'
LONG = [*(FILLER.format(row) for row in range(LINES)), HEALTH]


def named(rule: LogRule) -> str:
    return f"{RULES.index(rule) + 1}-{rule.name}"


def judged(text: str) -> tuple[CauseClass, Certainty]:
    scanner = Scanner(
        cause_rules.PATTERNS, None, marks=log_marks(), around=cause_rules.places()
    )
    first = servers(scanner.scan(io.BytesIO(text.encode())))[0]
    return first.cause.name, first.cause.certainty


def invoke(words: list[str]) -> Result:
    return CliRunner().invoke(app, words)


# ---------------------------------------------------------------- the form


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_every_pattern_of_a_rule_has_an_example(rule: LogRule) -> None:
    for pattern in rule.patterns:
        assert any(re.search(pattern, example) for example in rule.examples), pattern
    assert rule.source


@pytest.mark.parametrize("name", ["deaths", "starts-failed"])
def test_every_pattern_of_a_sign_has_an_example(name: str) -> None:
    sign = cause_rules.SIGNS[name]
    for pattern in sign.patterns:
        assert any(re.search(pattern, example) for example in sign.examples), pattern


def test_a_rule_without_an_example_does_not_load() -> None:
    row = {"class": "gpu-fault", "patterns": ["the card is gone"]}
    with pytest.raises(RuleError, match=r"^rule 7 \(gpu-fault\) has no example"):
        rule_of(row, "rule 7")
    rule = rule_of({**row, "example": "the card is gone: 3"}, "rule 7")
    assert rule.examples == ("the card is gone: 3",)


# ---------------------------------------------------------------- short and long


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_the_first_rule_that_fits_an_example_is_its_own(rule: LogRule) -> None:
    made = cause_rules.RULES[RULES.index(rule)]
    for example in rule.examples:
        assert cause_rules.meaning(example, exception=not rule.alone) is made, example


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_an_example_means_the_same_alone_and_among_others(rule: LogRule) -> None:
    for example in rule.examples:
        alone = judged(f"{example}\n")
        assert alone[0].value == rule.name, example
        among = "".join([*LONG[:3], f"{example}\n", *LONG[:3]])
        assert judged(among) == alone, example


@pytest.fixture
def a_tenth(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of a long log, of what is kept of one, and of the blocks in which it is read."""
    for name in ("HEAD", "TAIL", "BEFORE", "AFTER"):
        monkeypatch.setattr(log_excerpt, name, getattr(log_excerpt, name) // 10)
    monkeypatch.setattr(logs, "CHUNK_BYTES", logs.CHUNK_BYTES // 10)
    return LONG[-LINES // 10 :]


def judged_alike_in_long_logs(example: str, log: list[str]) -> None:
    alone = judged(f"{example}\n")
    for at in (0, len(log) // 2, len(log) - 1):
        text = "".join([*log[:at], f"{example}\n", *log[at:]])
        assert judged(text) == alone, (example, at)


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_an_example_is_judged_alike_in_a_long_log(
    rule: LogRule, a_tenth: list[str]
) -> None:
    judged_alike_in_long_logs(rule.examples[0], a_tenth)


@pytest.mark.nightly
@pytest.mark.parametrize("rule", RULES, ids=named)
def test_every_example_is_judged_alike_in_a_long_log(rule: LogRule) -> None:
    for example in rule.examples:
        judged_alike_in_long_logs(example, LONG)


@pytest.mark.parametrize("rule", RULES, ids=named)
def test_a_long_log_is_searched_for_every_example(rule: LogRule) -> None:
    anchors = anchors_of(cause_rules.places()[rule.name])
    assert anchors
    finder = Finder(anchors)
    for example in rule.examples:
        assert any(finder.scan(example.encode()).values()), example


@pytest.mark.parametrize("wrapping", sorted(WRAPPED))
def test_every_example_means_the_same_in_every_wrapping(
    wrapping: str, tmp_path: Path
) -> None:
    """All in one log: a collector changes the line and not the place in a log."""
    given = [(rule, example) for rule in RULES for example in rule.examples]
    level = "(EngineCore pid=142) ERROR 03-09 08:41:33 [core.py:93] "
    lines = [f"{level}{example.strip()}" for _, example in given]
    log = tmp_path / "server.log"
    log.write_bytes(WRAPPED[wrapping]([*LONG[:3], *lines, *LONG[:3]]))
    patterns = {"core": r"core\.py:93"}
    probe = LogsProbe(log, patterns, first=1000)
    read = run_probe(probe, tmp_path, 60).data
    assert read is not None
    words = [line.own_words for line in read.matches["core"]]
    assert len(words) == len(given)
    for (rule, example), said in zip(given, words, strict=True):
        meant = cause_rules.meaning(said, exception=not rule.alone)
        assert meant is not None, example
        assert meant.name.value == rule.name, example


def kept_in_the_middle(name: str, log: list[str]) -> None:
    half = len(log) // 2
    for example in cause_rules.SIGNS[name].examples:
        middle = "".join([*log[:half], f"{example}\n", *log[half:]])
        scanner = Scanner({}, None, around=cause_rules.places())
        data = scanner.scan(io.BytesIO(middle.encode()))
        assert any(line.number == half + 1 for line in data.excerpt), example


@pytest.mark.parametrize("name", ["deaths", "starts-failed"])
def test_a_sign_is_kept_wherever_it_stands(name: str, a_tenth: list[str]) -> None:
    kept_in_the_middle(name, a_tenth)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["deaths", "starts-failed"])
def test_a_sign_is_kept_in_a_whole_long_log(name: str) -> None:
    kept_in_the_middle(name, LONG)


def test_many_lines_of_one_class_do_not_displace_another() -> None:
    noise = "RuntimeError: Connection reset by peer\n" + FILLER.format(0) * 200
    fault = next(r for r in RULES if r.patterns[0].startswith("an illegal memory"))
    text = noise * 100 + f"{fault.examples[0]}\n" + noise * 100
    scanner = Scanner({}, None, around=cause_rules.places())
    data = scanner.scan(io.BytesIO(text.encode()))
    assert any("illegal memory access" in line.text for line in data.excerpt)


# ---------------------------------------------------------------- an operator's own

OWN = """
[[rule]]
class = "machine-limit"
certainty = "likely"
patterns = ['quota of tenant \\S+ is used up']
sentence = "The tenant's quota is used up"
advice = ["ask the platform team for more"]
source = "our admission controller"
example = ["admission: quota of tenant blue is used up (8 of 8 GPUs)"]
"""
QUOTA = (
    "(EngineCore pid=142) ERROR 03-09 08:41:33 [core.py:93] admission: quota of tenant "
    "red is used up (8 of 8 GPUs)\n"
)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(OWN)
    return file


def test_rules_of_an_operator_are_tried_first(own: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("".join([*LONG[:700], QUOTA, *LONG[:900]]))
    cause = read_logs([log], rules=own).cause
    assert cause.name is CauseClass.MACHINE_LIMIT
    assert cause.certainty is Certainty.LIKELY
    assert cause.sentence.startswith("The tenant's quota is used up: admission: ")
    assert cause.advice[0] == "ask the platform team for more"
    assert read_logs([log]).cause.name is not CauseClass.MACHINE_LIMIT


@pytest.mark.parametrize("command", ["logs", "why"])
def test_rules_are_given_on_the_command_line_or_in_a_file(
    command: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "server.log"
    log.write_text(LONG[0] + QUOTA)
    result = invoke([command, str(log), "--rules", str(own)])
    assert "The tenant's quota is used up" in " ".join(result.output.split())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MMREPRO_CONFIG", raising=False)
    (tmp_path / "mmrepro.toml").write_text('rules = "rules.toml"\n')
    result = invoke([command, str(log)])
    assert "The tenant's quota is used up" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no [[rule]] in it"),
        ("rule = 3", "there is no [[rule]] in it"),
        ("[rule", "Expected"),
        (OWN.replace("example", "sample"), "unknown key 'sample'"),
        (OWN.rpartition("example")[0], "rule 1 (machine-limit) has no example"),
        (OWN.replace("machine-limit", "quota"), "there is no such class"),
        (OWN.replace('"likely"', '"sure"'), "certainty is one of"),
        (OWN.replace("admission: quota", "admission: share"), "none of its examples"),
        (OWN.replace(r"quota of tenant \S+ is", r"(quota"), "is no expression"),
        (OWN.replace(r"quota of tenant \S+ is used up", r"\d+"), "three letters"),
        (OWN.replace(r"\S+ is", r"(\S+) \1 is"), "cannot be used"),
        (OWN.replace(r"\S+ is", "x" * 600), "more than 500 letters"),
        (OWN * 201, "more than 200 rules"),
        ("#" * (300 << 10), "larger than 256 KiB"),
        ("rule = " + "[" * 5000, "nested too deep"),
        (".".join("a" * 30) + " = 1", "a key of more than 20 parts"),
    ],
)
def test_a_bad_file_is_one_sentence(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_rules(file, [name.value for name in CauseClass])
    told = refused.value.message
    assert told.startswith(f"The rules {file} do not load: ")
    assert why in told
    assert "\n" not in told


def test_a_pipe_in_place_of_rules_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rules.toml")
    with pytest.raises(UsageError, match="cannot be read: it is a "):
        read_rules(tmp_path / "rules.toml", [])


def test_rules_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_logs([tmp_path], rules=tmp_path / "none.toml")


def test_an_expression_of_an_operator_takes_no_more_time_than_its_line_is_long() -> (
    None
):
    expression = BoundedExpression(r"quota (a|a)*(b|b)*(a+)+$")
    begin = time.process_time()
    assert not expression.matches("quota " + "a" * 3000 + "!")
    assert time.process_time() - begin < 1


def test_the_documented_example_works(tmp_path: Path) -> None:
    docs = (Path(__file__).parents[3] / "docs/logs.md").read_text()
    part = docs.partition("## Your own rules")[2]
    text = part.partition("```toml\n")[2].partition("```")[0]
    file = tmp_path / "rules.toml"
    file.write_text(text)
    rule = read_rules(file, [name.value for name in CauseClass])[0]
    log = tmp_path / "server.log"
    log.write_text(f"{LONG[0]}{rule.examples[0]}\n")
    assert read_logs([log], rules=file).cause.name.value == rule.name
