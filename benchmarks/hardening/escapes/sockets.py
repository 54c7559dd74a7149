"""Ways out through sockets: canary listeners outside, on loopback only, and families of
sockets."""

from __future__ import annotations

import array
import glob
import os
import socket
import struct

from hardening.escapes.attacker import (
    FACTS,
    PERMITTED,
    REACHED,
    attack,
    attempt,
    permitted,
    say,
)


def greet(connection: socket.socket) -> None:
    """Send the token and wait for the answer: the listener then knows who it was."""
    connection.settimeout(2)
    connection.sendall(FACTS["token"].encode())
    answer = connection.recv(400)
    say("DONE", "answer: " + answer.decode("ascii", "replace"))


def connect(family: int, address: object) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        connection.connect(address)  # type: ignore[arg-type]
        greet(connection)


@attack("tcp-127", "the outside's loopback by 127.0.0.1", REACHED)
def loopback() -> None:
    connect(socket.AF_INET, ("127.0.0.1", FACTS["tcp4"]))


@attack(
    "tcp-names",
    "the outside's loopback by localhost, 0.0.0.0, 127.1, 2130706433",
    REACHED,
)
def loopback_names() -> None:
    for name in (
        "localhost",
        "0.0.0.0",
        "127.1",
        "2130706433",
        "127.9.9.9",
        socket.gethostname(),
    ):
        # Only what resolves to loopback is called: no other address, whatever the name
        # says.
        address = attempt(f"resolve {name}", socket.gethostbyname, name)
        if address and (address.startswith("127.") or address == "0.0.0.0"):
            attempt(name, connect, socket.AF_INET, (address, FACTS["tcp4"]))


@attack("tcp-v6", "the outside's loopback by ::1 and ::ffff:127.0.0.1", REACHED)
def loopback_six() -> None:
    attempt("::1", connect, socket.AF_INET6, ("::1", FACTS["tcp6"]))
    attempt("::ffff", connect, socket.AF_INET6, ("::ffff:127.0.0.1", FACTS["tcp4"]))


@attack("udp", "a datagram to the outside's loopback", REACHED)
def datagram() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(FACTS["token"].encode(), ("127.0.0.1", FACTS["udp4"]))


@attack("unix-docker", "a socket like docker's, by its path", REACHED)
def like_docker() -> None:
    connect(socket.AF_UNIX, FACTS["unix"]["docker.sock"])


@attack(
    "unix-agent",
    "a socket like the ssh-agent's, by its path and $SSH_AUTH_SOCK",
    REACHED,
)
def like_agent() -> None:
    given = os.environ.get("SSH_AUTH_SOCK", "")
    for path in {given, FACTS["unix"]["agent.sock"]}:
        # Somebody's true agent is no canary.
        if FACTS["marker"] in path:
            attempt(path, connect, socket.AF_UNIX, path)


@attack("unix-bus", "a socket like D-Bus', in the runtime folder", REACHED)
def like_bus() -> None:
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    for path in {os.path.join(given, "bus"), FACTS["unix"]["bus"]}:
        if FACTS["marker"] in path:
            attempt(path, connect, socket.AF_UNIX, path)


@attack("unix-tmp", "a socket in /tmp, as X11's", REACHED)
def like_display() -> None:
    connect(socket.AF_UNIX, FACTS["unix"]["display"])


@attack("unix-abstract", "an abstract socket of the outside", REACHED)
def abstract() -> None:
    connect(socket.AF_UNIX, "\0" + FACTS["abstract"])


@attack("unix-abstract-datagram", "an abstract socket for datagrams", REACHED)
def abstract_datagram() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(FACTS["token"].encode(), "\0" + FACTS["abstract"] + "-datagram")


@attack("unix-listed", "every socket that /proc/net/unix lists", REACHED)
def listed_sockets() -> None:
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:
        names = {line.split(None, 7)[-1].strip() for line in table}
    for name in names:
        if FACTS["marker"] in name:
            attempt(name, connect, socket.AF_UNIX, name.replace("@", "\0", 1))


@attack(
    "unix-pass-descriptor",
    "hand a folder of its own to whoever accepts (SCM_RIGHTS)",
    REACHED,
)
def pass_descriptor() -> None:
    handle = os.open("/", os.O_RDONLY)
    for path in FACTS["unix"].values():
        attempt(path, pass_to, path, handle)


def pass_to(path: str, handle: int) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        connection.connect(path)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [handle]))
        connection.sendmsg([FACTS["token"].encode()], [rights])


def family(label: str, number: int, kind: int, protocol: int = 0) -> None:
    """Ask for a socket of a family; it is closed at once and never connected."""
    try:
        socket.socket(number, kind, protocol).close()
    except OSError as error:
        say("REFUSED", f"{label}: {error}")
    else:
        permitted(label)


@attack(
    "vsock",
    "a socket to the hypervisor (AF_VSOCK), which no network namespace holds",
    PERMITTED,
)
def hypervisor() -> None:
    AF_VSOCK = 40
    family("AF_VSOCK stream", AF_VSOCK, socket.SOCK_STREAM)
    family("AF_VSOCK datagram", AF_VSOCK, socket.SOCK_DGRAM)


@attack("packet", "raw packets (AF_PACKET, SOCK_RAW)", PERMITTED, only="root")
def packets() -> None:
    family("AF_PACKET", 17, socket.SOCK_RAW, 0x0300)
    family("SOCK_RAW ICMP", socket.AF_INET, socket.SOCK_RAW, 1)
    family("SOCK_RAW v6", socket.AF_INET6, socket.SOCK_RAW, 58)


@attack("alg", "the kernel's ciphers (AF_ALG)", PERMITTED, only="kernel")
def ciphers() -> None:
    family("AF_ALG", 38, socket.SOCK_SEQPACKET)


@attack(
    "families",
    "families that nobody needs, each with a history of holes",
    PERMITTED,
    only="root",
)
def families() -> None:
    for name, number in (
        ("AF_AX25", 3),
        ("AF_X25", 9),
        ("AF_KEY", 15),
        ("AF_RDS", 21),
        ("AF_CAN", 29),
        ("AF_TIPC", 30),
        ("AF_BLUETOOTH", 31),
        ("AF_RXRPC", 33),
        ("AF_NFC", 39),
        ("AF_KCM", 41),
        ("AF_QIPCRTR", 42),
        ("AF_SMC", 43),
        ("AF_XDP", 44),
    ):
        for kind in (
            socket.SOCK_STREAM,
            socket.SOCK_DGRAM,
            socket.SOCK_RAW,
            socket.SOCK_SEQPACKET,
        ):
            family(f"{name} {kind}", number, kind)


@attack(
    "netlink-address", "add an address to loopback (AF_NETLINK)", PERMITTED, only="root"
)
def add_address() -> None:
    # To a device that does not exist: refused as nonsense once the right was found.
    RTM_NEWADDR, REQUEST_ACK_CREATE = 20, 0x1 | 0x4 | 0x400
    NO_DEVICE = 0x7FFFFFF
    body = struct.pack("BBBBi", socket.AF_INET, 8, 0, 254, NO_DEVICE)
    for kind in (1, 2):
        body += struct.pack("HH4s", 8, kind, bytes([127, 99, 0, 1]))
    ask_netlink("RTM_NEWADDR", RTM_NEWADDR, REQUEST_ACK_CREATE, body)


@attack(
    "netlink-link", "change the network's devices (AF_NETLINK)", PERMITTED, only="root"
)
def change_link() -> None:
    # A device of number 0 and without a name: refused as nonsense once the right was
    # found.
    RTM_NEWLINK, REQUEST_ACK = 16, 0x1 | 0x4
    body = struct.pack("BBHiII", 0, 0, 0, 0, 0, 0)
    ask_netlink("RTM_NEWLINK", RTM_NEWLINK, REQUEST_ACK, body)


def ask_netlink(label: str, kind: int, flags: int, body: bytes) -> None:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    netlink.settimeout(2)
    netlink.bind((0, 0))
    netlink.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    answer = netlink.recv(4096)
    code = -struct.unpack("i", answer[16:20])[0]
    EPERM, EACCES = 1, 13
    if code in (EPERM, EACCES):
        say("REFUSED", f"{label}: errno {code}")
    else:
        permitted(f"{label}: errno {code}")


@attack(
    "netlink-audit",
    "read the audit of the kernel, uevents, connector (AF_NETLINK)",
    PERMITTED,
)
def kernel_events() -> None:
    for label, protocol, group in (
        ("audit", 9, 1),
        ("connector", 11, 1),
        ("uevent", 15, 1),
    ):
        try:
            netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
            netlink.bind((0, group))
        except OSError as error:
            say("REFUSED", f"{label}: {error}")
        else:
            permitted(f"listen to {label}")


@attack(
    "socket-options",
    "options of a socket that need rights over the network",
    PERMITTED,
    only="root",
)
def socket_options() -> None:
    left, _right = socket.socketpair()
    SO_RCVBUFFORCE, SO_MARK = 33, 36
    for label, option in (("SO_RCVBUFFORCE", SO_RCVBUFFORCE), ("SO_MARK", SO_MARK)):
        try:
            left.setsockopt(socket.SOL_SOCKET, option, 4096)
        except OSError as error:
            say("REFUSED", f"{label}: {error}")
        else:
            permitted(f"{label}: CAP_NET_ADMIN")


@attack(
    "door-descriptor",
    "hand folders to mmrepro's own socket (SCM_RIGHTS)",
    REACHED,
    needs="door",
)
def door_descriptor() -> None:
    # Where mmrepro's own sockets are, in a box and outside: its source says so.
    forms = ("/run/mmrepro/*", "/tmp/mmr-*/door", "/tmp/mmr-*/proxy")
    sockets = [place for form in forms for place in glob.glob(form)]
    if FACTS["door"].startswith("/"):
        sockets.append(FACTS["door"])
    if not sockets:
        say("REFUSED", "no socket of mmrepro's is in reach")
    for place in sockets:
        attempt(f"descriptors to {place}", send_descriptors, place)


def send_descriptors(place: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(2)
        connection.connect(place)
        handles = array.array("i", [os.open("/", os.O_RDONLY) for _count in range(200)])
        connection.sendmsg(
            [b"GET / HTTP/1.1\r\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handles)]
        )
