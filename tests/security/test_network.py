"""The network: every family, every address of the host, nothing outside is ever dialled."""

import contextlib
import socket

import pytest

pytestmark = pytest.mark.timeout(60)

FAMILIES = """
import socket
for family in range(50):
    for kind in (1, 2, 3, 5, 10):
        for protocol in {0, 255} | ({1, 6, 17, 33, 58, 115, 132, 136, 262} if family in (2, 10) else set()) | (set(range(23)) if family == 16 else set()):
            try:
                socket.socket(family, kind, protocol).close()
            except OSError:
                continue
            print(f"{family} {kind} {protocol}: OK")
print("done: OK")
"""
ORDINARY = {"1 1 0", "1 2 0", "1 3 0", "1 5 0"}  # between processes of one sandbox
ORDINARY |= {
    f"{family} {kind} {protocol}" for family in (2, 10) for kind, protocol in ((1, 0), (1, 6), (2, 0), (2, 17))
}
ORDINARY |= {f"{family} 1 262" for family in (2, 10)}  # multipath TCP
ORDINARY |= {"2 2 1", "10 2 58"}  # echo requests
ORDINARY |= {f"16 {kind} {protocol}" for kind in (2, 3) for protocol in (0, 15)}  # routes, and what udev says


def test_only_ordinary_sockets_can_be_made(cell):
    """No raw packets, no virtual machines' sockets, no kernel crypto, no protocol that loads a module of the host."""
    said = cell.told(FAMILIES, timeout_s=30)
    assert said.pop("done") == "OK"
    assert set(said) <= ORDINARY, sorted(set(said) - ORDINARY)


REACH = """
import socket
tcp, tcp6, udp, pathname, abstract = sys.argv[1:]
def stream(family, address):
    with socket.socket(family) as sock:
        sock.settimeout(1)
        sock.connect(address)
        print(sock.recv(100))
def datagram(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(0.2)
        sock.sendto(b"x", address)
        print(sock.recv(100))
for host in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost"):
    tried(f"tcp {host}", stream, socket.AF_INET, (host, int(tcp)))
    tried(f"udp {host}", datagram, (host, int(udp)))
for host in ("::1", "::ffff:127.0.0.1"):
    tried(f"tcp6 {host}", stream, socket.AF_INET6, (host, int(tcp6)))
    tried(f"tcp {host}", stream, socket.AF_INET6, (host, int(tcp)))
tried("pathname", stream, socket.AF_UNIX, pathname)
tried("pathname by the first process", stream, socket.AF_UNIX, "/proc/1/root" + pathname)
tried("abstract", stream, socket.AF_UNIX, "\\0" + abstract)
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/tmp/.X11-unix/X0", "/run/containerd/containerd.sock"):
    tried(path, stream, socket.AF_UNIX, path)
for name in ("/tmp/.X11-unix/X0", "/tmp/dbus-x", "/org/kernel/linux/storage/multipathd", "victim", "/containerd-shim/x.sock@"):
    tried(f"abstract {name}", stream, socket.AF_UNIX, "\\0" + name)
tried("other sandbox", stream, socket.AF_INET, ("127.0.0.1", 4242))
for address in (("192.0.2.1", 80), ("198.51.100.1", 443), ("169.254.169.254", 80), ("10.0.0.1", 22), ("172.17.0.1", 80)):
    tried(f"outside {address}", stream, socket.AF_INET, address)
    tried(f"datagram outside {address}", datagram, address)
tried("outside 6", stream, socket.AF_INET6, ("2001:db8::1", 80))
tried("name", socket.getaddrinfo, "example.invalid", 80)
"""


@pytest.mark.slow
def test_no_address_of_the_host_of_others_or_outside_can_be_reached(cell):
    ports = [str(cell.host.ports[name]) for name in ("tcp", "tcp6", "udp")]
    said = cell.told(REACH, *ports, cell.host.addresses["pathname"], cell.host.marker, timeout_s=30)
    assert len(said) > 30
    assert "OK" not in said.values(), {name for name, value in said.items() if value == "OK"}


CHANGE = """
import socket, struct
def netlink(kind, flags, body):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.send(struct.pack("IHHII", 16 + len(body), kind, 5 | flags, 1, 0) + body)
        answer = sock.recv(65536)
        number = struct.unpack_from("i", answer, 16)[0] if struct.unpack_from("H", answer, 4)[0] == 2 else 0
        if number:
            raise OSError(-number, "refused")
link = struct.pack("BxHiII", 0, 0, 1, 0, 1)
tried("link down", netlink, 16, 0, link)
tried("new dummy", netlink, 16, 0x600, struct.pack("BxHiII", 0, 0, 0, 1, 1) + struct.pack("HH", 16, 18) + struct.pack("HH5s3x", 9, 1, b"dummy"))
tried("new address", netlink, 20, 0x600, struct.pack("BBBBi", 2, 8, 0, 0, 1) + struct.pack("HH4s", 8, 2, bytes([10, 9, 8, 7])))
tried("new route", netlink, 24, 0x600, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0))
tried("firewall", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 255).getsockopt(0, 64, 84))
import fcntl
def flags():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0))
tried("ioctl down", flags)
tried("hostname", socket.sethostname, "changed")
tried("low port", lambda: socket.create_server(("127.0.0.1", 79)))
"""


def test_the_network_inside_cannot_be_changed(cell):
    said = cell.told(CHANGE)
    said.pop("low port")  # its own, where it has one
    assert "OK" not in said.values(), said


SERVE = """
import socket, threading
kept = []
def serve(family, kind, address):
    sock = socket.socket(family, kind)
    sock.bind(address)
    if kind == socket.SOCK_STREAM:
        sock.listen()
    kept.append(sock)
port = int(sys.argv[1])
waiting, telling = os.pipe()
if os.fork():  # what is said after the first process has ended is not heard
    os.close(telling)
    os.read(waiting, 1)
else:
    tried("tcp", serve, socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", port))
    tried("udp", serve, socket.AF_INET, socket.SOCK_DGRAM, ("0.0.0.0", port))
    tried("abstract", serve, socket.AF_UNIX, socket.SOCK_STREAM, "\\0" + sys.argv[2])
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2, telling):
        os.dup2(null, fd)
    __import__("time").sleep(100)
"""
HEAR = """
import socket
def hear(family, address):
    with socket.socket(family) as sock:
        sock.connect(address)
tried("tcp", hear, socket.AF_INET, ("127.0.0.1", int(sys.argv[1])))
tried("abstract", hear, socket.AF_UNIX, "\\0" + sys.argv[2])
"""
NO_SOCKETS = {"EPERM", "EACCES", "EAFNOSUPPORT"}


def test_what_listens_inside_is_not_heard_on_the_host(cell):
    prisoner = cell.create()
    name = f"{cell.host.marker}-inside"
    said = prisoner.told(SERVE, "45454", name)
    assert len(said) == 3
    if cell.sockets:
        assert set(said.values()) == {"OK"}, said
        assert set(prisoner.told(HEAR, "45454", name).values()) == {"OK"}, "it is heard inside"
    else:
        assert set(said.values()) <= NO_SOCKETS, said
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(("127.0.0.1", 45454))
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(f"\0{name}")


ABSTRACT = """
import socket
def bind():
    sock = socket.socket(socket.AF_UNIX)
    sock.bind("\\0" + sys.argv[1])
tried("bind", bind)
"""


def test_names_of_abstract_sockets_do_not_meet_those_of_the_host(cell):
    """Binding a name that the host has is refused only where there is one name space for both."""
    said = cell.told(ABSTRACT, cell.host.marker)
    assert said["bind"] != "EADDRINUSE"


SEND = """
import socket
def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sock.sendto(b"x", (address, int(sys.argv[2])))
for address in ("255.255.255.255", "224.0.0.1", "127.255.255.255", "127.0.0.1"):
    tried(address, send, address)
    tried("tcp " + address, lambda: socket.create_connection((address, int(sys.argv[1])), 0.5))
"""


def test_nothing_arrives_from_a_sandbox_at_whoever_waits_on_the_host(cell):
    """Broadcasts, multicasts and connections to a listener that everybody may reach."""
    with socket.create_server(("0.0.0.0", 0)) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("0.0.0.0", 0))
        ports = server.getsockname()[1], udp.getsockname()[1]
        for sock in (server, udp):
            sock.settimeout(0.2)
        said = cell.told(SEND, *map(str, ports))
        assert arrived(server, udp) == []
        assert len(said) == 8
        if cell.sockets:
            assert said["127.0.0.1"] == "OK", "a datagram was sent"
            assert said["tcp 127.0.0.1"] == "ECONNREFUSED"
        else:
            assert set(said.values()) <= NO_SOCKETS, said
        with socket.create_connection(("127.0.0.1", ports[0])), socket.socket(type=socket.SOCK_DGRAM) as sender:
            sender.sendto(b"x", ("127.0.0.1", ports[1]))
            assert arrived(server, udp) == ["datagram", "connection"], "what does arrive is seen"


def arrived(server: socket.socket, udp: socket.socket) -> list[str]:
    """What waits at two sockets of the host."""
    found = []
    with contextlib.suppress(TimeoutError):
        udp.recv(10)
        found.append("datagram")
    with contextlib.suppress(TimeoutError):
        server.accept()[0].close()
        found.append("connection")
    return found
