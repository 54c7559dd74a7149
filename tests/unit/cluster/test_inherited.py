"""What a run finds in a Ray worker: what a shell on that machine would give it."""

import os
import signal
import subprocess
import sys

import pytest
from mmrepro.campaign.cluster.remote import normalised, started_with, variables

SHELL = {"HOME": "/h", "PATH": "/bin", "HF_TOKEN": "hf"}
WORKER = {**SHELL, "RAY_JOB_ID": "1", "RAY_RAYLET_PID": "2", "SPT_NOENV": "1"}


def test_variables_of_ray_are_taken_away() -> None:
    now = {
        **WORKER,
        "OMP_NUM_THREADS": "1",
        "PYTHONBREAKPOINT": "ray.util.rpdb.set_trace",
    }
    assert variables(now, WORKER, "cpu", driver=False) == SHELL


@pytest.mark.parametrize(
    ("now", "started", "threads"),
    [("1", None, None), ("1", "", None), ("8", "8", "8"), ("1", "8", "8")],
    ids=["Ray's, nothing known", "Ray's", "the user's", "the user's, changed since"],
)
def test_only_the_users_own_thread_count_is_kept(
    now: str, started: str | None, threads: str | None
) -> None:
    first = (
        None
        if started is None
        else {**WORKER, **({"OMP_NUM_THREADS": started} if started else {})}
    )
    told = variables({**WORKER, "OMP_NUM_THREADS": now}, first, "cpu", driver=False)
    assert told.get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("device", "driver", "mask", "told"),
    [
        ("cuda", True, "3", "3"),
        ("cuda", True, "3, 1", "1,3"),
        ("cuda", True, None, None),
        ("cpu", True, "3", ""),
        ("cpu", True, None, ""),
        ("cpu", False, "3", None),
        ("cpu", False, "", None),
    ],
)
def test_gpus_are_for_cells_on_a_gpu(
    device: str, driver: bool, mask: str | None, told: str | None
) -> None:
    now = {**WORKER, **({"CUDA_VISIBLE_DEVICES": mask} if mask is not None else {})}
    started = {**WORKER, "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert (
        variables(now, started, device, driver=driver).get("CUDA_VISIBLE_DEVICES")
        == told
    )


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        ("0", "0"),
        ("10,9", "9,10"),
        (" 1 ,0,", "0,1"),
        ("GPU-b,GPU-a", "GPU-a,GPU-b"),
        ("MIG-x", "MIG-x"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
    ],
)
def test_a_list_of_gpus_has_one_order(mask: str, told: str) -> None:
    assert normalised(mask) == told
    assert normalised(told) == told


def test_the_first_variables_of_a_process_are_read() -> None:
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os; os.environ['LATER'] = '1'\n"
            "from mmrepro.campaign.cluster.remote import started_with as s\n"
            "print(s()['FIRST'], 'LATER' in s())",
        ],
        env={**os.environ, "FIRST": "a=b"},
        capture_output=True,
        text=True,
    )
    assert child.stdout.split() == ["a=b", "False"], child.stderr
    assert started_with(2**22 + 1) is None


CHILD = """
import ctypes, signal, subprocess, sys
from mmrepro.campaign.cluster.remote import plain_signals
libc = ctypes.CDLL(None)
libc.signal.restype = ctypes.c_void_p
libc.signal(signal.SIGCHLD, ctypes.c_void_p(1))  # as Ray does: Python does not hear of it
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
if sys.argv[1] == "plain":
    plain_signals()
told = subprocess.run(["bash", "-c", "grep SigBlk /proc/self/status; exit 3"], capture_output=True)
print(told.returncode, int(told.stdout.split()[1], 16))
"""


@pytest.mark.parametrize(("how", "told"), [("as it is", [0, 2]), ("plain", [3, 0])])
def test_children_end_with_their_own_code_and_can_be_interrupted(
    how: str, told: list[int]
) -> None:
    assert 1 << (signal.SIGINT - 1) == 2
    child = subprocess.run(
        [sys.executable, "-c", CHILD, how], capture_output=True, text=True
    )
    assert [int(word) for word in child.stdout.split()] == told, child.stderr
