"""mmrepro find: which known failure a text, an issue or a log is."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st
from mmrepro.base.errors import UsageError
from mmrepro.cli import find_index as index
from mmrepro.cli.app import app
from mmrepro.cli.find import _search, known
from mmrepro.live.diagnose.match import all_scenarios
from mmrepro.scenario.registry import load_scenario, scenario_names
from mmrepro.tools.catalogue.find import (
    ECHO,
    INDEX,
    IndexEntry,
    Matched,
    Pattern,
    entries,
    find,
    is_reference,
    references_in,
)
from typer.testing import CliRunner

GHOST, DESYNC = "ghost-key-eviction", "mm-cache-desync"


def run(*words: str, **more):
    return CliRunner().invoke(app, ["find", *words], **more)


def sure(text: str) -> list[str]:
    return [f.entry.name for f in find(text) if f.sure == "this"]


def perhaps(text: str) -> list[str]:
    return [f.entry.name for f in find(text) if f.sure == "perhaps"]


# ------------------------------------------------------------------ the index


def test_the_index_is_what_the_scenarios_the_classes_and_the_findings_say():
    assert INDEX.read_text() == index.text_of(index.build()), (
        "python -m mmrepro.cli.find_index"
    )


def test_every_scenario_class_and_finding_is_in_it():
    names = {(e.kind, e.name) for e in entries()}
    assert {n for kind, n in names if kind == "scenario"} == set(scenario_names())
    found = {folder.name for folder in index.FOUND.iterdir() if folder.is_dir()}
    assert {n for kind, n in names if kind == "finding"} == found
    assert {"gpu-fault", "hang", "grammar-loop", "steps-stopped"} <= {
        n for _, n in names
    }
    assert not {"alive", "not-a-log", "unknown"} & {n for _, n in names}


def test_each_scenario_says_what_helps():
    for entry in entries():
        if entry.kind == "scenario":
            assert entry.fixed, entry.name
            assert entry.workarounds or re.search("fixed in|gone by", entry.fixed), (
                entry.name
            )


@pytest.mark.parametrize("line", index.ORDINARY)
def test_what_servers_print_anyway_is_no_failure(line):
    assert [
        f.entry.name for f in find(line) if f.sure == "this" and f.entry.kind != "class"
    ] == []


@pytest.mark.parametrize("line", [*index.ORDINARY, "Aborted request cmpl-77."])
def test_what_servers_print_anyway_is_no_failed_start(line):
    _, hits, _ = _search((line,))
    starts = [hit.entry for hit in hits if "mmrepro help why" in hit.entry.see]
    assert [entry.name for entry in starts] == []


def test_an_echo_in_a_findings_log_names_no_failure():
    reports = [report.read_text() for report in index.FOUND.glob("*/report.md")]
    echoes = {
        line for text in reports for line in text.splitlines() if ECHO.search(line)
    }
    assert any("initialization failed" in line for line in echoes)
    assert {line: sure(line) for line in echoes if sure(line)} == {}


# ------------------------------------------------------------------ issues


@pytest.mark.parametrize(
    "asked",
    [
        "vllm#43941",
        "vllm-project/vllm#43941",
        "https://github.com/vllm-project/vllm/issues/43941",
        "https://github.com/vllm-project/vllm/issues/43941#issuecomment-1",
        "VLLM#43941",
        "is this vllm#43941?",
        "http://www.github.com/vllm-project/vllm/pull/43941",
    ],
)
def test_an_issue_is_found_by_every_way_to_write_it(asked):
    assert GHOST in sure(asked)


@pytest.mark.parametrize(
    "asked",
    [
        "sglang#43941",
        "other/vllm#43941",
        "vllm#4394",
        "vllm#439411",
        "vllm#1",
        "https://gitlab.com/vllm-project/vllm/issues/43941",
    ],
)
def test_another_projects_or_number_is_another_issue(asked):
    assert find(asked) == []


def test_every_reference_of_every_scenario_leads_to_it():
    for scenario in all_scenarios():
        for reference in scenario.references:
            if "#" in reference.id:
                assert scenario.name in sure(reference.id), reference.id
                assert scenario.name in sure(reference.url), reference.url


def test_threads_that_others_wrote_of_it_lead_to_it():
    assert DESYNC in sure("vllm#33865")
    assert DESYNC in sure(
        "https://github.com/tenstorrent/tt-inference-server/issues/2405"
    )
    assert "embeds-mrope" in sure("pysec-2026-2303")


def test_a_bare_number_is_perhaps_it():
    assert sure("43941") == []
    assert GHOST in perhaps("43941")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a/b#1 and c#2", ["a/b#1", "c#2"]),
        ("x#y", []),
        ("#5", []),
        ("CVE-2026-1", ["CVE-2026-1"]),
        ("https://github.com/A/B/pull/7", ["a/b#7"]),
        ("https://github.com/A/B", []),
    ],
)
def test_names_of_issues_in_a_text(text, expected):
    assert references_in(text) == expected


def test_only_a_name_alone_is_the_name_of_an_issue():
    assert is_reference(" vllm#1 ")
    assert is_reference("https://github.com/a/b/issues/1")
    assert not is_reference("see vllm#1")
    assert not is_reference("Expected a cached item")


# ------------------------------------------------------------------ messages


def test_a_piece_of_a_message_is_the_failures_that_print_it():
    assert {GHOST, DESYNC} <= set(sure("Expected a cached item"))
    # Minivllm's come last.
    assert sure("Expected a cached item")[-1] == "borrowed-faults"
    assert sure("a cached") == []


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "AssertionError: M-RoPE requires prompt_token_ids to be available",
            "embeds-mrope",
        ),
        ("    t, h, w = image_grid_thw[image_index]", "text-only-placeholder"),
        ("Received output for rid='ab' but the state was deleted", "ghost-decode"),
        ("RuntimeError: CPU Generator does not use offset", "seeded-chunk"),
        ("ValueError: User session id 7 already exists", "completions-session"),
        ("CUDA error: an illegal memory access was encountered", "gpu-fault"),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried 2 MiB",
            "out-of-gpu-memory",
        ),
        ("OSError: [Errno 24] Too many open files", "machine-limit"),
        (
            "NVRM: Xid (PCI:0000:19:00): 79, pid=212, GPU has fallen off the bus.",
            "gpu-fault",
        ),
        (
            (
                "ValueError: Attempted to assign 25 + 25 = 50 multimodal tokens to "
                "147 placeholders"
            ),
            "placeholder-counts",
        ),
    ],
)
def test_a_message_is_its_failure_or_its_class(line, name):
    assert name in sure(line)
    logged = f"(EngineCore pid=7) ERROR 11-24 18:12:17 [core.py:1195] {line}"
    assert name in sure(f"INFO before\n{logged}\nINFO after")


def test_a_message_that_several_failures_have_is_perhaps_one():
    line = "RuntimeError: selected index k out of range"
    assert "top-logprobs-kill" not in sure(line)
    assert "top-logprobs-kill" in perhaps(line)
    both = f'  File "/x/sampler.py", line 7, in get_top_logprobs\n{line}'
    assert "top-logprobs-kill" in sure(both)


def test_the_frames_next_to_an_exception_count():
    frames = [
        f'  File "/x/a.py", line {n}, in {name}\n    code()'
        for n, name in enumerate(
            [
                "schedule",
                "_check_grammar_completion",
                "_create_grammar",
                "compile_grammar",
            ]
        )
    ]
    error = (
        "RuntimeError: [11:25:05] /project/cpp/grammar_parser.cc:564: EBNF "
        "parser error at line 1"
    )
    assert "vllm-0.23.0-grammar-latch" not in sure(error)
    assert "vllm-0.23.0-grammar-latch" in sure(
        "\n".join([*frames, f"{error}, column 12: Expect element, but got |"])
    )


def test_only_the_first_rule_that_fits_a_line_classes_it():
    classes = [
        f.entry.name
        for f in find("torch.OutOfMemoryError: CUDA out of memory.")
        if f.entry.kind == "class"
    ]
    assert classes == ["out-of-gpu-memory"]


# ------------------------------------------------------------------ words


def test_words_are_perhaps_a_failure_the_nearest_first():
    found = find("image cache eviction never ends")
    assert {f.sure for f in found} == {"perhaps"}
    assert GHOST in [f.entry.name for f in found[:2]]
    assert found[0].score >= found[-1].score


@pytest.mark.parametrize(
    "text",
    ["banana bread", "", "  ", "the of and", "EngineDeadError", "!!!", "zzz " * 100],
)
def test_what_is_unknown_is_nothing(text):
    assert find(text) == []


MADE = (
    IndexEntry(
        "scenario",
        "one",
        "The first thing breaks",
        patterns=(Pattern("p", r"a\d+b", ("a",)),),
    ),
    IndexEntry("scenario", "two", "Another thing stops", words="breaks things"),
)


def test_more_that_speaks_for_it_comes_first():
    assert [f.entry.name for f in find("a1b", MADE)] == ["one"]
    first = find("first thing breaks", MADE)[0]
    assert (first.entry.name, first.sure) == ("one", "perhaps")
    logged = find("", MADE, matched={r"a\d+b": Matched(3, 7, "so a1b: \x00\x00")})
    assert logged[0].because == ["its p, line 7, and 2 more: a1b"]
    assert find("", MADE, matched={"b": Matched(1, 1, "a1b")}) == []


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=300))
def test_no_text_makes_it_fail(text):
    for one in find(text):
        assert one.because


def test_no_expression_takes_long_on_a_long_line():
    import time

    began = time.process_time()
    find("RuntimeError: " + "a" * 200_000)
    find(("x" * 4000 + "\n") * 100)
    assert time.process_time() - began < 5


# ------------------------------------------------------------------ the command


def test_the_first_screen_is_the_answer():
    done = run("Expected a cached item")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 20
    assert not any("…" in line for line in lines), "off a terminal nothing is cut"
    assert "fixed in 0.24.0" in done.stdout
    assert "disable-mm-cache" in done.stdout


def test_words_that_come_one_by_one_are_one_text():
    assert (
        run("Expected", "a", "cached", "item").stdout
        == run("Expected a cached item").stdout
    )


def test_a_single_hit_is_not_one_of_several():
    several, single = run("Expected a cached item"), run("PYSEC-2026-2303")
    assert several.stdout.startswith("5 known failures match")
    assert single.stdout.startswith("1 known failure matches")
    assert single.stdout.splitlines()[1].startswith("embeds-mrope (scenario")
    assert len(sure("PYSEC-2026-2303")) == 1 < len(sure("Expected a cached item"))


def test_exit_codes():
    assert run("vllm#43941").exit_code == 0
    assert run("image cache eviction never ends").exit_code == 3
    done = run("banana bread")
    assert done.exit_code == 1
    assert "Next: mmrepro logs FILE" in done.stdout
    assert run().exit_code == 2


def test_an_echo_is_called_one():
    assert "It is an echo" in run("EngineDeadError").stdout


def test_the_document():
    document = json.loads(run("vllm#43941", "--json").stdout)
    assert document["$id"] == "urn:mmrepro:find:1"
    ghost = next(one for one in document["found"] if one["name"] == GHOST)
    assert ghost["certainty"] == "this"
    assert ghost["kind"] == "scenario"
    assert ghost["fixed"] == "fixed in 0.24.0"
    assert {"id", "title", "url"} == set(ghost["references"][0])
    assert any(text.startswith("disable-mm-cache") for text in ghost["workarounds"])


MARKED = "(EngineCore pid=20) ERROR 11-24 18:12:17 [core.py:1195] "


def test_of_a_log_the_engines_words_count_and_a_clients_do_not(tmp_path):
    log = tmp_path / "server.log"
    words = "AssertionError: Expected a cached item for mm_hash='x'"
    log.write_text(f"{MARKED}{words}\n")
    assert run(str(log)).exit_code == 0
    said = (
        f"INFO 11-24 18:12:10 [logger.py:39] Received request a: prompt: "
        f'"{words}", params: x\n'
    )
    log.write_text(said)
    assert run(str(log)).exit_code == 1
    assert run("-", input=f"{MARKED}{words}\n").exit_code == 0


@pytest.mark.parametrize(
    ("lines", "code", "said"),
    [
        (
            (
                f"{MARKED}Connection reset by peer\n"
                "INFO 11-24 18:12:19 [loggers.py:1] Engine 000: ok\n"
            ),
            1,
            "No known failure contains",
        ),
        (
            f"{MARKED}IndexError: x\n{MARKED}EngineCore encountered a fatal error.\n",
            1,
            "No known failure contains",
        ),
        (
            f"{MARKED}torch.OutOfMemoryError: CUDA out of memory. Tried 2 MiB\n",
            0,
            (
                "matches    line 1: torch.OutOfMemoryError: CUDA out of memory. Tried "
                "2 MiB"
            ),
        ),
    ],
)
def test_what_ended_a_server_is_as_logs_says_it(tmp_path, lines, code, said):
    (tmp_path / "server.log").write_text(lines)
    done = run(str(tmp_path / "server.log"))
    assert (done.exit_code, said in done.stdout) == (code, True), done.stdout


def test_of_a_dump_the_frames_count(tmp_path):
    from pathlib import Path

    dumps = Path(__file__).parent / "probes" / "dumps"
    done = run(str(dumps / "ghost-core-1.txt"))
    assert done.exit_code == 3
    assert "vllm-0.23.0-ghost-key" in done.stdout
    refused = run(str(dumps / "sglang-0.5.23.pkl"))
    assert isinstance(refused.exception, UsageError)
    assert "mmrepro logs" in refused.exception.hint


def test_a_text_that_no_file_can_be_called_is_a_text():
    assert run("x" * 5000).exit_code == 1
    assert run("a\x00b").exit_code == 1


def test_scenarios_of_other_distributions_are_found_as_well(monkeypatch):
    from importlib.metadata import EntryPoint

    other = EntryPoint(
        "other-failure", "mmrepro.scenarios.capacity_never:SCENARIO", "x"
    )
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [other])
    monkeypatch.setattr(index, "load_scenario", lambda name: other.load())
    assert len(known()) == len(entries()) + 1


def test_one_that_takes_a_name_of_ours_stands_for_it(monkeypatch):
    from importlib.metadata import EntryPoint

    theirs = type(
        "Theirs", (type(load_scenario("capacity-never")),), {"title": "Theirs"}
    )()
    other = EntryPoint("capacity-never", "elsewhere:SCENARIO", "x")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [other])
    monkeypatch.setattr(index, "load_scenario", lambda name: theirs)
    assert [one.title for one in known() if one.name == "capacity-never"] == ["Theirs"]
    assert len(known()) == len(entries())


def test_a_text_loads_no_scenario_and_no_engine():
    code = (
        "import sys; from mmrepro.cli.app import app\n"
        "try: app(['find', 'vllm#43941'], standalone_mode=False)\n"
        "except BaseException: pass\n"
        "print('MODULES', *sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.partition("MODULES")[2].split()
    heavy = re.compile(
        r"^(?:mmrepro\.(?:scenario|engines|probes|diagnose|signature)|numpy|rich|httpx)"
    )
    assert [name for name in loaded if heavy.match(name)] == []


def test_in_full_every_place_to_look_is_a_row_of_its_own() -> None:
    (entry,) = [e for e in entries() if e.name == "grammar-loop"]
    shown = run("grammar-loop", "--full", env={"COLUMNS": "300"}).stdout
    places = [*entry.see, *(f"{id_} {url}" for id_, _, url in entry.references)]
    assert len(places) > 2
    for place in places:
        assert f"see {place}" in " ".join(shown.split())
    brief = " ".join(run("grammar-loop", env={"COLUMNS": "300"}).stdout.split())
    assert places[0] in brief
    assert places[2] not in brief


def test_an_installed_user_is_shown_no_page_that_is_not_installed(monkeypatch):
    asked = ("find", "vllm-0.33.0-draft-temperatures")
    assert "docs/found/vllm-0.33.0-draft-temperatures" in run(*asked).stdout
    monkeypatch.setattr("mmrepro.base.installed.checkout_folder", lambda: None)
    shown = run(*asked).stdout
    assert "docs/" not in shown
    assert "vllm#55005 https://" in shown
