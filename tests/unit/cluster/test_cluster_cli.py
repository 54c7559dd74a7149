"""``matrix run --ray``, up to the cluster."""

import contextlib
from pathlib import Path

import pytest
from mmrepro.base.errors import UsageError
from mmrepro.campaign.cluster import machines
from mmrepro.campaign.cluster.remote import Engines
from mmrepro.campaign.cluster.where import placed
from mmrepro.campaign.matrix.options import Cluster, load
from mmrepro.campaign.trial import TrialOptions
from typer.testing import CliRunner


def test_a_file_says_where_and_what_a_machine_gives(tmp_path: Path) -> None:
    file = tmp_path / "nightly.toml"
    file.write_text(
        '[matrix]\nray = "auto"\n[cluster]\ncpus = 8\ngpus = 0.5\nmemory = "16G"\n'
        '[[cell]]\nscenario = "borrowed-faults"\n'
    )
    given = load(file)
    assert given.matrix.ray == "auto"
    assert (given.cluster.cpus, given.cluster.gpus) == (8, 0.5)
    assert given.cluster.memory == 16 * 2**30
    file.write_text("[cluster]\ncores = 8\n")
    with pytest.raises(
        UsageError, match=r"\[cluster\], key 'cores': there is no such key"
    ):
        load(file)


def test_jobs_are_for_one_machine(tmp_path: Path) -> None:
    from mmrepro.cli.app import app

    arguments = ["matrix", "run", "--ray", "auto", "--jobs", "2", "--releases", "0.1"]
    arguments += ["--scenario", "borrowed-faults", "--out", str(tmp_path / "n")]
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, UsageError)
    assert "--jobs is for one machine" in str(done.exception)
    assert not (tmp_path / "n").exists()


def test_places_are_the_clusters_for_orders_of_any_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[object, ...]] = []
    connected = contextlib.nullcontext("a cluster")
    monkeypatch.setattr(machines, "connected", lambda address: connected)
    monkeypatch.setattr(machines, "Machines", lambda *given: made.append(given))
    options = TrialOptions(timeout_s=5.0)
    with placed(None, "auto") as where:
        where.places(print, options, device="cuda", disk=7, needs=Cluster(cpus=2.0))
        where.places(print, options)
    (_, outfit, needs, _), (_, plain, usual, _) = made
    assert (outfit, needs) == (Engines(options, 7), Cluster(cpus=2.0))
    assert (plain, usual) == (Engines(options), None)
