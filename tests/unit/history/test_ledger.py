"""The ledger's file: what is acknowledged is there, whatever kills it, and damage is
named."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from grids import examples
from hypothesis import given, strategies as st
from made_nights import attempt, cell, night
from mmrepro.base.errors import BadLedger, LedgerBusy, NoSpace
from mmrepro.failure.documents.ledger import (
    LEDGER_FILE,
    Cell,
    Event,
    EventKind,
    Lost,
    NightState,
    Planned,
)
from mmrepro.history.ledger import AnyRecord, History, Ledger, read

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def records(of: History) -> list[AnyRecord]:
    """All that is in a history, night by night."""
    found: list[AnyRecord] = []
    for runs in of.nights:
        found += [runs.night, *runs.planned.values(), *runs.attempts, *runs.events]
    return found


def sample() -> list[AnyRecord]:
    first, second = (
        night(1, {cell(): "rrl"}),
        night(2, {cell(): "i", cell("0.24.0"): "n"}),
    )
    event = Event(
        night="n2", what=EventKind.FIXED_IN, identity="x", text="It\u2028is\nfixed."
    )
    second.events.append(event)
    return records(History([first, second]))


def write(folder: Path, lines: list[AnyRecord]) -> Path:
    with Ledger(folder) as ledger:
        for line in lines:
            ledger.append(line)
    return folder / LEDGER_FILE


@given(st.lists(st.tuples(st.sampled_from("rndil"), WORDS, WORDS), max_size=6))
@examples(15)
def test_what_is_appended_is_read_again(runs: list[tuple[str, str, str]]) -> None:
    lines: list[AnyRecord] = [night(1).night, Planned(night="n1", cell=cell())]
    for index, (letter, word, other) in enumerate(runs, 1):
        made = attempt(letter, index)
        lines.append(made.model_copy(update={"explanation": word, "machine": other}))
    with TemporaryDirectory() as folder:
        write(Path(folder), lines)
        assert records(read(Path(folder))) == lines
        with Ledger(Path(folder)) as ledger:
            assert records(ledger.history) == lines


def test_cut_at_any_byte_it_is_a_prefix_and_goes_on(tmp_path: Path) -> None:
    lines = sample()
    whole = write(tmp_path / "whole", lines).read_bytes()
    cut = tmp_path / "cut"
    cut.mkdir()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 0x0A]
    near = {end + step for end in ends for step in (-2, -1, 0, 1)}
    for at in sorted(near | set(range(0, len(whole), 97))):
        if at > len(whole):
            continue
        (cut / LEDGER_FILE).write_bytes(whole[:at])
        complete = sum(end <= at for end in ends)
        assert records(read(cut)) == lines[:complete]
        if at in near:
            with Ledger(cut) as ledger:
                for line in lines[complete:]:
                    ledger.append(line)
            assert (cut / LEDGER_FILE).read_bytes() == whole


@given(
    st.integers(0, 10_000),
    st.sampled_from(["drop", "half", "twice", "noise", "field", "later"]),
)
@examples(30)
def test_any_other_damage_names_its_line(pick: int, how: str) -> None:
    texts = [r.model_dump_json() for r in sample()]
    number = pick % len(texts)
    line = texts[number]
    if how == "drop":  # the beginning of a night, or a cell that has attempts
        number = 0 if pick % 2 else 1
        damaged, told = texts[:number] + texts[number + 1 :], number + 1
    elif how == "half":
        damaged, told = (
            [*texts[:number], line[: len(line) // 2], *texts[number + 1 :]],
            number + 1,
        )
    elif how == "twice":
        number = next(i for i, text in enumerate(texts) if '"kind":"attempt"' in text)
        damaged, told = [*texts[: number + 1], *texts[number:]], number + 2
    elif how == "noise":
        damaged, told = [*texts[:number], "\0\0\0", *texts[number:]], number + 1
    elif how == "field":
        damaged = [
            *texts[:number],
            line.replace("{", '{"more":1,', 1),
            *texts[number + 1 :],
        ]
        told = number + 1
    else:
        damaged, told = (
            [texts[0].replace('"schema_version":1', '"schema_version":7')],
            1,
        )
    with TemporaryDirectory() as folder:
        path = Path(folder) / LEDGER_FILE
        path.write_text("".join(f"{text}\n" for text in damaged))
        before = path.read_bytes()
        for use in (read, Ledger):
            with pytest.raises(BadLedger, match=rf"line {told}:") as raised:
                use(Path(folder))
            assert how != "later" or "version 7" in raised.value.message
        assert path.read_bytes() == before


def test_one_writer(tmp_path: Path) -> None:
    with Ledger(tmp_path), pytest.raises(LedgerBusy) as raised:
        Ledger(tmp_path)
    assert str(tmp_path) in raised.value.message
    assert raised.value.hint.endswith(f"mmrepro matrix report {tmp_path}")
    with Ledger(tmp_path):
        pass


def test_a_killed_writer_holds_nothing(tmp_path: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path\n"
        "from mmrepro.history.ledger import Ledger\n"
        'ledger = Ledger(Path(sys.argv[1])); os.write(ledger.lines._file, b\'{"kind": '
        "\"at')\n"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert (tmp_path / LEDGER_FILE).read_bytes() == b'{"kind": "at'
    write(tmp_path, sample())
    assert records(read(tmp_path)) == sample()


def test_a_torn_line_is_gone_however_long_it_was(tmp_path: Path) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(b"x" * 10_000)
    write(tmp_path, sample()[:1])
    assert records(read(tmp_path)) == sample()[:1]
    assert (tmp_path / LEDGER_FILE).stat().st_size < 1000


def test_from_many_threads_each_line_is_whole(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(night(1).night)
        ledger.append(Planned(night="n1", cell=cell()))
        threads = [
            threading.Thread(target=ledger.append, args=(attempt("r", n),))
            for n in range(1, 21)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [a.index for a in read(tmp_path).night("n1").attempts_of(cell().id)] == [
        *range(1, 21)
    ]


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = sample()
    with Ledger(tmp_path) as ledger:
        for line in lines[:-1]:
            ledger.append(line)
        real = os.write

        def full(handle: int, data: bytes) -> int:
            if len(data) > 40:
                return real(handle, bytes(data)[:40])
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", full)
            with pytest.raises(NoSpace):
                ledger.append(lines[-1])
        assert records(read(tmp_path)) == records(ledger.history) == lines[:-1]
        assert (tmp_path / LEDGER_FILE).read_bytes().endswith(b"\n")
        ledger.append(lines[-1])
    assert records(read(tmp_path)) == lines


def test_what_is_written_is_public(tmp_path: Path) -> None:
    secret, home = "sk-" + "a1" * 20, str(Path.home() / "x.py")
    lines = sample()
    start = lines[0].model_copy(
        update={"command": f"mmrepro matrix run {home} --out M {secret}"}
    )
    path = write(tmp_path, [start])
    assert secret not in path.read_text()
    assert str(Path.home()) not in path.read_text().replace(str(tmp_path), "")
    other = lines[0].model_copy(update={"command": "sk-" + "b2" * 20})
    write(tmp_path, [other])
    assert "[redacted:key-1]" in path.read_text()
    assert "[redacted:key-2]" in path.read_text(), (
        "another secret has another placeholder"
    )


@pytest.mark.parametrize(
    "private", [str(Path.home() / "mine.py"), "https://me:hunter22@there/x"]
)
def test_a_private_cell_is_refused(tmp_path: Path, private: str) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.append(night(1).night)
        with pytest.raises(BadLedger, match="made to be shown") as raised:
            ledger.append(Planned(night="n1", cell=cell(scenario=private)))
    assert private not in raised.value.message


def test_contradictions_are_not_written(tmp_path: Path) -> None:
    path = write(tmp_path, sample())
    before = path.read_bytes()
    stranger = attempt("r", of=cell("9"), night="n1")
    outside = attempt("r", 9).model_copy(update={"incident": "../elsewhere"})
    nowhere = attempt("r", 9).model_copy(update={"incident": "/tmp/elsewhere"})
    both = attempt("r", 9).model_copy(update={"lost": Lost.USAGE})
    nan = attempt("r", 9).model_copy(update={"seconds": float("nan")})
    for wrong in (
        attempt("n"),
        attempt("r", night="n7"),
        stranger,
        outside,
        nowhere,
        both,
        nan,
    ):
        with Ledger(tmp_path) as ledger, pytest.raises(BadLedger):
            ledger.append(wrong)
    assert path.read_bytes() == before


def test_words_that_no_file_has(tmp_path: Path) -> None:
    lines = sample()
    write(tmp_path, [lines[0].model_copy(update={"machine": "a\udc80b"})])
    assert read(tmp_path).nights[0].night.machine == "a?b"


def test_a_folder_without_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(BadLedger, match=r"holds no ledger\.jsonl") as raised:
        read(tmp_path)
    assert raised.value.hint == f"mmrepro matrix run --out {tmp_path}"


def test_nights_are_in_order_and_the_last_word_counts() -> None:
    made = History([night(2), night(1), night(3)])
    assert [n.night.id for n in made.nights] == ["n1", "n2", "n3"]
    assert made.newest is made.night("n3")
    assert [n.night.id for n in made.before(night(3).night)] == ["n1", "n2"]
    made.take(night(2).night.model_copy(update={"machine": "m"}))
    assert made.night("n2").night.machine == "m"
    with pytest.raises(BadLedger, match="n3, n2, n1"):
        made.night("n9")


def test_a_night_that_goes_on_has_its_events_found_anew(tmp_path: Path) -> None:
    late = night(1, {cell(): "r"}, state=NightState.OUT_OF_TIME)
    event = Event(
        night="n1", what=EventKind.COVERAGE_LOST, identity="x", text="It is lost."
    )
    running = late.night.model_copy(update={"state": NightState.RUNNING})
    with Ledger(tmp_path) as ledger:
        for record in (running, *late.planned.values(), late.night, event):
            ledger.append(record)
        assert read(tmp_path).night("n1").events == [event]
        ledger.append(running)
        assert (
            read(tmp_path).night("n1").events == ledger.history.night("n1").events == []
        )
        ledger.append(night(1).night)
        ledger.append(event)
    assert read(tmp_path).night("n1").events == [event]


def test_a_cell_without_flips_has_the_id_of_before_there_were_any() -> None:
    cell = Cell(
        scenario="ghost-key-eviction",
        engine="vllm",
        release="0.23.0",
        device="cpu",
        mitigations=("x",),
    )
    assert cell.id == "ghost-key-eviction-x-0.23.0-cpu-fdd52cd4"
    flipped = cell.model_copy(update={"flips": ("mm-cache",)})
    assert "-mm-cache-0.23.0-cpu-" in flipped.id
    assert flipped.row == "ghost-key-eviction +x --flip mm-cache"


def test_a_row_has_the_runner_as_it_is_typed() -> None:
    cell = Cell(
        scenario="ghost-key-eviction",
        engine="vllm",
        release="0.33.0",
        device="cpu",
        server_args=("{feature:runner-v2}", "--enforce-eager"),
    )
    assert cell.row == "ghost-key-eviction --runner v2 --enforce-eager"
