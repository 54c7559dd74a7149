"""What is left of a case is played with other words, once: fake servers only."""

from pathlib import Path

from fake_player import FakePlayer, replaying
from fake_plays import Answers, answered_until, fake_case, fake_op
from mmrepro.failure.documents.replay import PUBLIC_DIR, Finding
from mmrepro.search.replay.pursue import PUBLIC
from mmrepro.traffic.case.files import read_case
from mmrepro.traffic.case.model import Case

CASE = fake_case(
    [fake_op(f"r{n}", text=f"the patient Mustermann, visit {n}") for n in range(6)]
)


def found(tmp_path: Path, engine: Answers) -> tuple[Finding, Path]:
    session, _ = replaying(CASE, tmp_path, FakePlayer(engine))
    (finding,) = session.execute().findings
    return finding, session.dir / finding.folder / PUBLIC_DIR


def test_the_other_words_are_kept_where_they_fail_too(tmp_path: Path) -> None:
    finding, folder = found(tmp_path, lambda case: answered_until(case, "r3"))
    case, _ = read_case(folder)
    assert case.origin.anonymised
    assert [op.id for op in case.operations] == list(finding.observed)
    assert "Mustermann" not in case.model_dump_json()
    assert "Mustermann" in read_case(folder.parent)[0].model_dump_json()
    last = finding.steps[-1]
    assert (last.what, last.kept, last.failed, last.plays) == (PUBLIC, True, 1, 1)
    assert not [limit for limit in finding.limits if "random" in limit]


def test_and_not_where_they_do_not(tmp_path: Path) -> None:
    def of_words(case: Case) -> dict[str, str]:
        return answered_until(
            case, "r3" if "Mustermann" in case.model_dump_json() else None
        )

    finding, folder = found(tmp_path, of_words)
    assert not folder.exists()
    assert (finding.steps[-1].what, finding.steps[-1].kept) == (PUBLIC, False)
    assert any(
        "what leaves this machine may not fail" in limit for limit in finding.limits
    )


def test_what_was_random_already_is_not_played_again(tmp_path: Path) -> None:
    session, _ = replaying(
        CASE,
        tmp_path,
        FakePlayer(lambda case: answered_until(case, "r3")),
        anonymise=True,
    )
    (finding,) = session.execute().findings
    assert PUBLIC not in [step.what for step in finding.steps]
