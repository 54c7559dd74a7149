"""What every attack script carries with it: facts of the outside, system calls by
number, lines.

It runs alone, below the box, under Python 3.9 to 3.14 and without a package: escape.py
joins this file, one file of attacks and a call into one script."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

# Filled by the script's last lines: paths, ports, names and process ids of the canaries
# outside.
FACTS: dict[str, Any] = {}

# What counts as *out*. The outside checks each of them itself, except PERMITTED: a
# kernel-wide right is only asked for, never used, so there the attack's own line has to
# do.
SECRET = (
    "secret"  # the content of a canary file, variable, key or memory is in the output
)
WRITTEN = "written"  # a canary file, or a canary's memory, is changed; a file appeared outside
REACHED = "reached"  # a listener outside got a connection or a datagram
SIGNALLED = (
    "signalled"  # a process outside got a signal, changed its limits, or vanished
)
LEFT = "left"  # a process, a file, a key or a segment of memory outlives the end
BOUNDS = "bounds"  # memory, processes, disk or output passed the bound
FORGED = "forged"  # mmrepro's own lines or outputs carry what the attack said
PERMITTED = "permitted"  # probe: the kernel would allow it


class ListedAttack(NamedTuple):
    """One way out, as a function of its file names it."""

    id: str
    title: str
    aims: tuple[str, ...]
    function: Callable[[], None]
    # "root" where no ordinary user could ever get out like this; "kernel" where it
    # takes a kernel that has the call, or is broken: not seen red on the one this was
    # written on.
    only: str
    needs: (
        str  # what a runner has to offer: mmrepro's own "door", to "serve", or a "peer"
    )


ATTACKS: list[ListedAttack] = []


def attack(
    name: str, title: str, *aims: str, only: str = "", needs: str = ""
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Put a function on the list of ways out."""

    def listed(function: Callable[[], None]) -> Callable[[], None]:
        ATTACKS.append(ListedAttack(name, title, aims, function, only, needs))
        return function

    return listed


# ----------------------------------------------------------- lines that the judge reads


def say(kind: str, text: str) -> None:
    """Print one line with the run's token: no line of a runner looks like it."""
    line = f"{FACTS['token']} {kind} {text}\n"
    os.write(1, line.encode("utf-8", "backslashreplace"))


def permitted(what: str) -> None:
    say("PERMITTED", what)


def not_tried(why: str) -> None:
    say("NOT-TRIED", why)


def run(name: str) -> None:
    """Carry out the attack of that name; what refuses it is printed."""
    chosen = next(entry for entry in ATTACKS if entry.id == name)
    name_process()
    say("BEGIN", name)
    try:
        chosen.function()
    except OSError as error:
        say("REFUSED", f"{name}: {error}")
    except Exception:
        say("BROKEN", traceback.format_exc().replace("\n", " | "))
    say("END", name)


def attempt(label: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what the function returns (True for nothing), or None where it is
    refused."""
    try:
        result = function(*arguments)
    except OSError as error:
        say("REFUSED", f"{label}: {error}")
        return None
    say("DONE", label)
    return True if result is None else result


def name_process() -> None:
    """Give the process a name that its forks keep: the outside finds what outlives the
    end."""
    PR_SET_NAME = 15
    libc.prctl(PR_SET_NAME, FACTS["comm"].encode(), 0, 0, 0)


# --------------------------------------------------------------- system calls by number

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ARM = platform.machine() == "aarch64"

NUMBERS = {
    # name: (x86-64, aarch64)
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "capset": (126, 91),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_setup": (425, 425),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444),
    "memfd_create": (319, 279),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, -1),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "shmat": (30, 196),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}

# For a pointer that no process has: a call that checks rights first answers EPERM, else
# EFAULT.
BAD_POINTER = 1


def syscall(name: str, *arguments: Any) -> int:
    """Call the kernel by number, past every wrapper; raise OSError where it refuses."""
    number = NUMBERS[name][1 if ARM else 0]
    if number < 0:
        raise OSError(errno.ENOSYS, f"{name} is no call of this machine")
    return call_number(number, name, *arguments)


def call_number(number: int, label: str, *arguments: Any) -> int:
    words = [word(argument) for argument in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{label}: {errno.errorcode.get(code, code)}")
    return int(result)


def word(argument: Any) -> Any:
    """Turn Python's value into what a register takes."""
    if argument is None:
        return ctypes.c_void_p(None)
    if isinstance(argument, str):
        return ctypes.c_char_p(os.fsencode(argument))
    if isinstance(argument, bytes):
        return ctypes.c_char_p(argument)
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    return argument


def probe(
    label: str, name: str, *arguments: Any, granted: Iterable[str] = ()
) -> int | None:
    """Ask for a right without using it.

    `granted` are the errors of a call that was refused for its nonsense only, after the
    kernel had found the caller entitled. Success is a right as well."""
    try:
        result = syscall(name, *arguments)
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "?")
        if code in granted:
            permitted(f"{label}: {code}")
        elif code == "ENOSYS":
            say("REFUSED", f"{label}: ENOSYS, by the kernel or by a filter")
        else:
            say("REFUSED", f"{label}: {code}")
        return None
    permitted(f"{label}: {result}")
    return result


# ----------------------------------------------------------- what many attacks end with


def read_secrets(label: str, root: str = "") -> None:
    """Print each canary file that can be read (below `root`, where a way in was
    found)."""
    for path in FACTS["secret_files"]:
        show_file(label, root + path)


def show_file(label: str, path: str, opener: Any = None) -> None:
    try:
        with open(path, "rb", buffering=0, opener=opener) as stream:
            content = stream.read(400)
    except OSError as error:
        say("REFUSED", f"{label}: {path}: {error.strerror}")
    else:
        show_content(f"{label}: {path}", content)


def show_content(label: str, content: bytes) -> None:
    """Print what was read, but only where it is a canary: nobody's real secret is ever
    printed."""
    at = content.find(FACTS["secret_start"].encode())
    if at < 0:
        say("DONE", f"{label}: {len(content)} bytes, no canary")
        return
    say("SECRET", label + ": " + content[at : at + 60].decode("ascii", "replace"))


def write_everywhere(label: str, root: str = "") -> None:
    """Leave one small file with the run's marker in every canary folder that takes
    it."""
    for folder in FACTS["folders"]:
        attempt(f"{label}: write in {root}{folder}", write_marker, root + folder, label)
    for path in FACTS["targets"]:
        attempt(f"{label}: change {root}{path}", change_target, root + path)


def write_marker(folder: str, label: str) -> None:
    descriptor = os.open(
        os.path.join(folder, f"{FACTS['marker']}-{label}"),
        os.O_WRONLY | os.O_CREAT,
        0o600,
    )
    os.write(descriptor, b"out")
    os.close(descriptor)


def change_target(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b"changed from inside\n")
    os.close(descriptor)


def in_child(function: Callable[[], object], seconds: float = 10.0) -> int:
    """Run a step in a process of its own: what it does to itself ends with it."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        import signal

        signal.alarm(int(seconds))
        try:
            function()
        except OSError as error:
            say("REFUSED", f"in a child: {error}")
        except BaseException:
            say("BROKEN", traceback.format_exc().replace("\n", " | "))
        os._exit(0)
    return os.waitpid(child, 0)[1]


def own_world() -> bool:
    """Tell whether this process has another process namespace than the outside."""
    try:
        return os.readlink("/proc/self/ns/pid") != str(FACTS["pid_namespace"])
    except OSError:
        return False
