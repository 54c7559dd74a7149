"""Where the runs of a command are made: on this machine, or on those of a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrepro.base.errors import UsageError
from mmrepro.base.machine import free_devices, read_gpus
from mmrepro.campaign.provisions import Bound, Provisions, Say
from mmrepro.campaign.trial import TrialOptions, Trials
from mmrepro.campaign.work import LocalPlaces, Places
from mmrepro.runs.play import Players
from mmrepro.traffic.evidence import BUILD, BUILD_NOTICE, Event

if TYPE_CHECKING:
    from mmrepro.campaign.matrix.options import Cluster


@dataclass(frozen=True)
class Where:
    """Where a command's runs are made.

    Attributes:
        jobs: at a time on this machine.
        cluster: Ray, connected to one; None: this machine.
    """

    jobs: int = 1
    cluster: Any = None

    def places(
        self,
        say: Say,
        options: TrialOptions,
        *,
        device: str = "cpu",
        disk: int | None = None,
        kept: Path | None = None,
        needs: Cluster | None = None,
    ) -> Places:
        """The places, for orders of any kind.

        Args:
            device: of the runs. Each of those on "cuda" takes a GPU for itself.
            disk: bytes that the campaign may add to the disk of each machine; None: no
                bound.
            kept: the file that remembers what it added to this one's.
            needs: what Ray is asked for, for each order.
        """
        if self.cluster is not None:
            from mmrepro.campaign.cluster.machines import Machines
            from mmrepro.campaign.cluster.remote import Engines

            return Machines(self.cluster, Engines(options, disk), needs, say)

        bound = Bound(disk, kept) if disk is not None and kept is not None else None
        jobs = self.jobs
        free = None
        if jobs > 1 and device == "cuda":
            free = free_devices(read_gpus())
        if free is not None:
            jobs = min(jobs, max(1, free))
            if jobs < self.jobs:
                say(
                    f"--jobs {jobs}, not {self.jobs}: {free} GPUs are free, and each "
                    "run takes one."
                )

        noticed: set[str] = set()

        def built(event: Event) -> None:
            """Each run has the notices of its environment; a command has each once."""
            new = event.text not in noticed
            if event.source == BUILD or (event.source == BUILD_NOTICE and new):
                noticed.add(event.text)
                say(event.text)

        provisions, players = Provisions(options, bound, say), Players(built)
        return LocalPlaces(
            Trials(options), provisions, jobs, options.machine, players=players
        )


@contextlib.contextmanager
def placed(jobs: int | None, ray: str) -> Iterator[Where]:
    """Where the runs of a command are made that was typed with ``--jobs`` and
    ``--ray``.

    Raises:
        UsageError: both were given, Ray is not installed, or the address is none.
        InfrastructureError: no cluster answers there.
    """
    if not ray:
        yield Where(jobs or 1)
        return
    from mmrepro.campaign.cluster.machines import connected

    if jobs:
        raise UsageError(
            (
                "--jobs is for one machine: those of a cluster work on one "
                "environment each."
            ),
            hint="leave out --jobs, or --ray",
        )

    with connected(ray) as cluster:
        yield Where(cluster=cluster)
