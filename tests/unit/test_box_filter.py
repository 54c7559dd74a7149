"""What the box's filter of system calls decides of a call, read as the kernel reads
it."""

import errno
import struct

import pytest
from mmrepro.base.box import seccomp

ALLOWED, KILLED = "allowed", "killed"
CALLS = {
    "x86_64": {"read": 0, "clone": 56, "socket": 41, "ioctl": 16, "openat2": 437},
    "aarch64": {"read": 63, "clone": 220, "socket": 198, "ioctl": 29, "openat2": 437},
}
CLONE3 = 435
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003}
A_THREAD = 0x3D0F00
"""The flags of clone() with which the C library starts a thread."""
ON_EACH = pytest.mark.parametrize("machine", CALLS)


def decided(machine: str, number: int, *arguments: int, made_by: str = "") -> str:
    """What becomes of a call with that number: allowed, killed, or the error's name.

    Args:
        made_by: the processor whose call it is; "": the machine's own.
    """
    six = [*arguments, *[0] * (6 - len(arguments))]
    architecture = ARCHITECTURES[made_by or machine]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *six)
    steps = [*struct.iter_unpack("=HBBI", seccomp.seccomp_program(machine))]
    word = place = 0
    while True:
        code, if_true, if_false, operand = steps[place]
        place += 1
        if code == 0x06:  # return
            break
        if code == 0x20:  # load
            (word,) = struct.unpack_from("=I", data, operand)
            continue
        holds = {
            0x15: word == operand,
            0x35: word >= operand,
            0x45: bool(word & operand),
        }[code]
        place += if_true if holds else if_false

    if operand in (0x7FFF0000, 0x80000000):
        return ALLOWED if operand == 0x7FFF0000 else KILLED
    assert operand >> 16 == 0x0005
    return errno.errorcode[operand & 0xFFFF]


@ON_EACH
def test_what_every_program_does_is_allowed(machine: str) -> None:
    calls = CALLS[machine]
    for name in ("read", "openat2"):
        assert decided(machine, calls[name]) == ALLOWED
        # The arguments of these are no flags.
        assert decided(machine, calls[name], 0x10000000, 0x5412) == ALLOWED
    assert decided(machine, calls["clone"], A_THREAD) == ALLOWED
    assert decided(machine, calls["ioctl"], 0, 0x5401) == ALLOWED, "a terminal's size"


@ON_EACH
def test_each_listed_call_is_refused(machine: str) -> None:
    column = seccomp.PROCESSORS[machine].column
    for name, numbers in seccomp.REFUSED_CALLS.items():
        number = numbers[column]
        if number is not None:
            assert decided(machine, number) == "EPERM", name


@ON_EACH
@pytest.mark.parametrize("flag", [0x10000000, 0x00020000, 0x40000000, 0x00000080])
def test_no_namespace_is_made(machine: str, flag: int) -> None:
    """Of users, mounts, networks and clocks."""
    assert decided(machine, CALLS[machine]["clone"], A_THREAD | flag) == "EPERM"
    assert decided(machine, CLONE3, flag) == "ENOSYS", "its flags cannot be read"


@ON_EACH
@pytest.mark.parametrize(
    ("family", "protocol", "decision"),
    [
        (1, 0, ALLOWED),
        (2, 0, ALLOWED),
        (10, 0, ALLOWED),
        (16, 0, ALLOWED),  # netlink, of addresses and routes
        (16, 15, "EAFNOSUPPORT"),  # netlink, of devices
        (17, 0, "EAFNOSUPPORT"),  # packets
        (38, 0, "EAFNOSUPPORT"),  # the kernel's ciphers
        (40, 0, "EAFNOSUPPORT"),  # the host of a virtual machine
    ],
)
def test_sockets_are_those_that_a_server_needs(
    machine: str, family: int, protocol: int, decision: str
) -> None:
    made = decided(machine, CALLS[machine]["socket"], family, 1, protocol)
    assert made == decision


@ON_EACH
@pytest.mark.parametrize("request_number", [0x5412, 0x541C])
def test_nothing_is_typed_into_a_terminal(machine: str, request_number: int) -> None:
    call = CALLS[machine]["ioctl"]
    assert decided(machine, call, 0, request_number) == "EPERM"
    # The kernel reads 32 bits of a request.
    assert decided(machine, call, 0, request_number | 1 << 32) == "EPERM"


def test_calls_of_another_table_pass_by_no_rule() -> None:
    assert decided("x86_64", 0, made_by="i386") == KILLED
    assert decided("x86_64", 0, made_by="aarch64") == KILLED
    assert decided("x86_64", 0x40000000 | 101) == "ENOSYS"
