"""The way out: rules, addresses, what a request may say, and a proxy whose client lies."""

import asyncio
import contextlib
import hashlib
import logging
import socket

import h11
import pytest
from envgym_sandboxes.channel import Peer
from envgym_sandboxes.egress_log import EgressLog
from envgym_sandboxes.flow import PIECE
from envgym_sandboxes.policy import Policy, Verdict, is_public, resolve
from envgym_sandboxes.protocol import Decoder, encode
from envgym_sandboxes.proxy import Bounds, Proxy
from envgym_sandboxes.proxy_request import Refused, understand
from hypothesis import given, settings
from hypothesis import strategies as st

from envgym.egress import EgressRule, Place, parse_place
from envgym.task import World

pytestmark = pytest.mark.timeout(60)


# -- rules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "place", "allowed"),
    [
        ("pypi.org", "pypi.org:443", True),
        ("pypi.org", "pypi.org:80", True),
        ("pypi.org", "pypi.org:8080", False),
        ("pypi.org", "PyPI.org.:443", True),
        ("PYPI.org", "pypi.org:443", True),
        ("pypi.org:8443", "pypi.org:8443", True),
        ("pypi.org:8443", "pypi.org:443", False),
        ("pypi.org", "evil-pypi.org:443", False),
        ("pypi.org", "pypi.org.evil.com:443", False),
        ("pypi.org", "files.pypi.org:443", False),
        ("*.example.org", "a.example.org:443", True),
        ("*.example.org", "a.b.example.org:80", True),
        ("*.example.org", "example.org:443", False),
        ("*.example.org", "badexample.org:443", False),
        ("192.0.2.1:80", "192.0.2.1:80", True),
        ("192.0.2.1:80", "192.0.2.1:81", False),
        ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", True),
        ("[2001:db8::1]:80", "[2001:DB8:0:0::1]:80", True),
        ("2001:db8::1", "[2001:db8::1]:443", True),
        ("*.1", "127.0.0.1:80", None),
    ],
)
def test_a_rule_allows_what_it_says_and_nothing_else(rule, place, allowed):
    if allowed is None:
        with pytest.raises(ValueError, match="number"):
            EgressRule.parse(rule)
    else:
        parsed = EgressRule.parse(rule)
        assert parsed.allows(parse_place(place)) is allowed
        assert EgressRule.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    "wrong",
    [
        "", "*", "*.", "*.*.org", "localhost:", "a..b", ".org", "-a.org", "a b.org", "a.org:0", "a.org:65536",
        "a.org:+1", "a.org:8 0", "http://a.org", "a.org/x", "user@a.org", "a.org:80:80", "127.1", "0x7f.1",
        "2130706433", "0177.0.0.1", "1.2.3.256", "[::1", "[127.0.0.1]:80", "[::1]80", "[fe80::1%eth0]:80",
        "\uff41.org", "a.org\n", "a%2eorg", "*.127.0.0.1", "a" * 64 + ".org", "a." * 130 + "org", "a.org:\u0663",
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_where_it_is_written(wrong):
    with pytest.raises(ValueError, match=r"neither|port|address|number"):
        World(egress=(wrong,))


def test_rules_and_a_network_that_is_all_open_do_not_go_together(make, make_local, make_landlock, run, world):
    with pytest.raises(ValueError, match=r"World\.network is True"):
        World(network=True, egress=("pypi.org",))
    unchecked = World().model_copy(update={"network": True, "egress": ("pypi.org",)})
    with_rules = world.model_copy(update={"egress": ("pypi.org",)})

    async def refuses(backend, wrong, why):
        with pytest.raises(ValueError, match=why):
            await backend.create(wrong)

    async def main():
        for made, wrong, why in (
            (make(), unchecked, r"World\.network"),
            (make_local(), with_rules, "local backend"),
            (make_landlock(), with_rules, "landlock backend"),
        ):
            async with made as backend:
                await refuses(backend, wrong, why)

    run(main())


# -- addresses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("127.8.9.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("100.100.100.200", False),
        ("168.63.129.16", False),
        ("192.0.0.192", False),
        ("198.18.0.1", False),
        ("224.0.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("::127.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::5db8:d822", True),
        ("2002:7f00:1::", False),
        ("2001:0:4136:e378:8000:63bf:80ff:fffe", False),
        ("fe80::1", False),
        ("fe80::1%lo", False),
        ("fec0::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("2001:db8::1", False),
        ("nonsense", False),
    ],
)
def test_what_counts_as_public(address, public):
    assert is_public(address) is public


def test_a_name_that_resolves_to_the_host_itself_is_refused_unless_the_address_is_listed():
    async def main():
        for rules, allowed in (
            (("localhost:8080",), False),
            (("localhost:8080", "127.0.0.1:8081"), False),
            (("localhost:8080", "127.0.0.1:8080"), True),
        ):
            verdict = await Policy(rules).decide(Place("localhost", 8080), within_s=5)
            assert verdict.allowed is allowed, verdict
            assert verdict.addresses == (("127.0.0.1",) if allowed else ())
            assert allowed or "is not public" in verdict.reason
        direct = await Policy(("localhost:8080",)).decide(Place("127.0.0.1", 8080), within_s=5)
        assert not direct.allowed, "a rule for a name is none for its address"
        assert "127.0.0.1" in await resolve("localhost", 80)

    asyncio.run(main())


def test_a_name_is_resolved_once_and_what_was_judged_is_what_is_dialled():
    """A name server that answers otherwise the second time changes nothing."""
    asked = []

    async def rebinding(host, port):
        asked.append(host)
        return ["93.184.216.34", "10.0.0.1", "::1"] if len(asked) == 1 else ["127.0.0.1"]

    async def main():
        policy = Policy(("rebind.example",), resolve=rebinding)
        verdict = await policy.decide(Place("rebind.example", 80), within_s=1)
        assert (verdict.allowed, verdict.addresses) == (True, ("93.184.216.34",))
        assert asked == ["rebind.example"]
        assert not (await policy.decide(Place("rebind.example", 80), within_s=1)).allowed

    asyncio.run(main())


def test_a_name_that_does_not_resolve_in_time_is_a_failure_and_no_denial():
    async def never(host, port):
        await asyncio.sleep(60)
        return []

    async def unknown(host, port):
        raise socket.gaierror(-2, "Name or service not known")

    async def main():
        for resolver, why in ((never, "TimeoutError"), (unknown, "not known")):
            verdict = await Policy(("a.example",), resolve=resolver).decide(Place("a.example", 80), within_s=0.05)
            assert verdict.allowed
            assert verdict.addresses == ()
            assert why in verdict.failure

    asyncio.run(main())


# -- requests ------------------------------------------------------------------------------------------------------


def read(text):
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(text)
    return understand(connection.next_event())


@pytest.mark.parametrize(
    ("text", "place", "target"),
    [
        (b"GET http://a.org/x?y HTTP/1.1\r\nHost: a.org\r\n\r\n", "a.org:80", b"/x?y"),
        (b"GET HTTP://A.org:80?y HTTP/1.1\r\nHost: a.org\r\n\r\n", "a.org:80", b"/?y"),
        (b"GET http://a.org:8080 HTTP/1.1\r\nHost: a.org:8080\r\n\r\n", "a.org:8080", b"/"),
        (b"GET http://[::1]:81/ HTTP/1.1\r\nHost: [::1]:81\r\n\r\n", "[::1]:81", b"/"),
        (b"GET http://a.org/ HTTP/1.0\r\n\r\n", "a.org:80", b"/"),
        (b"CONNECT a.org:443 HTTP/1.1\r\nHost: a.org:443\r\n\r\n", "a.org:443", b""),
        (b"CONNECT a.org:444 HTTP/1.1\r\nHost: a.org\r\n\r\n", "a.org:444", b""),
    ],
)
def test_a_request_is_understood(text, place, target):
    wanted = read(text)
    assert str(wanted.place) == place
    assert wanted.target == target


HOST = b"\r\nHost: a.org\r\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"GET / HTTP/1.1" + HOST + b"\r\n", "this is a proxy"),
        (b"GET https://a.org/ HTTP/1.1" + HOST + b"\r\n", "CONNECT"),
        (b"GET ftp://a.org/ HTTP/1.1" + HOST + b"\r\n", "only http"),
        (b"GET file:///etc/passwd HTTP/1.1" + HOST + b"\r\n", "only http"),
        (b"OPTIONS * HTTP/1.1" + HOST + b"\r\n", "this is a proxy"),
        (b"GET http://user@a.org/ HTTP/1.1" + HOST + b"\r\n", "neither a name"),
        (b"GET http://a.org:80@evil.com/ HTTP/1.1" + HOST + b"\r\n", "no port"),
        (b"GET http://evil.com\\@a.org/ HTTP/1.1" + HOST + b"\r\n", "neither a name"),
        (b"GET http://a.org%00.evil.com/ HTTP/1.1" + HOST + b"\r\n", "neither a name"),
        (b"GET http://2130706433/ HTTP/1.1\r\nHost: 2130706433\r\n\r\n", "number"),
        (b"GET http://0x7f.1/ HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n", "number"),
        (b"GET http://a.org/#x HTTP/1.1" + HOST + b"\r\n", "this is a proxy|only http"),
        (b"GET http:///x HTTP/1.1" + HOST + b"\r\n", "neither a name"),
        (b"GET http://a.org/ HTTP/1.1\r\nHost: evil.com\r\n\r\n", "the Host field says evil.com:80"),
        (b"GET http://a.org/ HTTP/1.1\r\nHost: a.org:81\r\n\r\n", "the Host field says a.org:81"),
        (b"GET http://a.org/ HTTP/1.0\r\nHost: a.org\r\nHost: evil.com\r\n\r\n", "multiple Host"),
        (b"GET http://a.org/ HTTP/1.1\r\nHost: a.org,evil.com\r\n\r\n", "neither a name"),
        (b"CONNECT a.org HTTP/1.1" + HOST + b"\r\n", "has no port"),
        (b"CONNECT a.org:443/x HTTP/1.1" + HOST + b"\r\n", "no port"),
        (b"CONNECT a.org:443 HTTP/1.1\r\nHost: evil.com:443\r\n\r\n", "the Host field says"),
        (b"CONNECT http://a.org:443 HTTP/1.1" + HOST + b"\r\n", "no port"),
        (
            b"POST http://a.org/ HTTP/1.1" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            "two ways",
        ),
        (b"POST http://a.org/ HTTP/1.0" + HOST + b"Transfer-Encoding: chunked\r\n\r\n", "two ways"),
    ],
)
def test_a_request_that_could_mean_two_things_is_refused(text, why):
    with pytest.raises((Refused, h11.RemoteProtocolError), match=why):
        read(text)


def test_what_goes_on_is_written_anew():
    wanted = read(
        b"POST http://a.org/ HTTP/1.1\r\nHost: a.org\r\nProxy-Authorization: x\r\nConnection: keep-alive, "
        b"X-Secret, content-length\r\nX-Secret: 1\r\nUpgrade: h2c\r\nTE: trailers\r\nExpect: 100-continue\r\n"
        b"X-Kept: 2\r\nContent-Length: 5\r\n\r\nhello"
    )
    assert dict(wanted.headers) == {
        b"host": b"a.org",
        b"x-kept": b"2",
        b"content-length": b"5",
        b"connection": b"close",
    }


# -- the proxy, with a scripted client -----------------------------------------------------------------------------


class Client:
    """The inside of a sandbox whose programs are the test: it opens streams and speaks on them."""

    def __init__(self, rules, *, bounds=None, resolver=resolve):
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.peer = Peer(ours, "test")
        self.proxy = Proxy(Policy(rules, resolve=resolver), "test", bounds or Bounds())
        self.peer.streams.on_open = self.proxy.take
        self.decoder = Decoder()
        self.last = 0
        self.said: dict[int, bytearray] = {}
        self.over: dict[int, str] = {}
        self.changed = asyncio.Event()
        self.reading = asyncio.ensure_future(self._read())

    async def _read(self):
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(self.sock, 1 << 20):
            for head, body in self.decoder.feed(data):
                number = head["stream"]
                if head["do"] == "data":
                    self.said[number] += body
                    credit = {"stream": number, "do": "credit", "size": len(body)}
                    await loop.sock_sendall(self.sock, encode(credit))
                elif head["do"] in ("end", "reset"):
                    self.over[number] = head["do"]
                self.changed.set()

    async def say(self, number, data, *, end=False):
        frames = [
            encode({"stream": number, "do": "data"}, data[at : at + PIECE]) for at in range(0, len(data), PIECE)
        ]
        if end:
            frames.append(encode({"stream": number, "do": "end"}))
        await asyncio.get_running_loop().sock_sendall(self.sock, b"".join(frames))

    async def open(self, data, *, end=False):
        self.last -= 1
        self.said[self.last] = bytearray()
        await asyncio.get_running_loop().sock_sendall(self.sock, encode({"stream": self.last, "do": "open"}))
        await self.say(self.last, data, end=end)
        return self.last

    async def until(self, number, found):
        while not found(bytes(self.said[number])) and number not in self.over:
            self.changed.clear()
            await self.changed.wait()
        return bytes(self.said[number])

    async def all_of(self, number):
        return await self.until(number, lambda said: False)

    async def ask(self, data):
        return await self.all_of(await self.open(data))


def speaking(rules, script, **options):
    async def main():
        client = Client(rules, **options)
        try:
            await asyncio.wait_for(script(client), 30)
        finally:
            await client.proxy.close()
            client.reading.cancel()
            await asyncio.gather(client.reading, return_exceptions=True)
            client.peer.end("done")
            client.sock.close()

    asyncio.run(main())


@contextlib.asynccontextmanager
async def server(answer):
    """A TCP server on the loopback; gives its port. answer(reader, writer) serves one connection."""
    tasks = set()

    async def serve(reader, writer):
        try:
            await answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    listening = await asyncio.start_server(
        lambda reader, writer: tasks.add(asyncio.ensure_future(serve(reader, writer))), "127.0.0.1", 0
    )
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def hello(reader, writer):
    """Says what it was asked."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
    )
    body = await reader.readexactly(length)
    text = head + body
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n" % len(text) + text
    )
    await writer.drain()


def test_one_connection_two_requests_two_decisions():
    async def script(client):
        async with server(hello) as port:
            client.proxy._policy = Policy((f"127.0.0.1:{port}",))
            number = await client.open(
                b"GET http://127.0.0.1:%d/one HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, port)
            )
            first = await client.until(
                number, lambda said: b"\r\n\r\n\r\n" in said or said.endswith(b"close\r\n\r\n")
            )
            assert first.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"GET /one HTTP/1.1" in first
            assert b"x-hop" not in first.lower().partition(b"\r\n\r\n")[0]
            await client.say(number, b"GET http://127.0.0.1:1/two HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n")
            rest = (await client.all_of(number))[len(first) :]
            assert rest.startswith(b"HTTP/1.1 403 ")
            assert b"no rule of this world allows 127.0.0.1:1" in rest
            one, two = client.proxy.records()
            assert (one.allowed, one.host, one.port, one.address, one.method) == (
                True, "127.0.0.1", port, "127.0.0.1", "GET",
            )  # fmt: skip
            assert one.received_bytes > one.sent_bytes > 20
            assert (two.allowed, two.number, two.port, two.address) == (False, 2, 1, None)

    speaking((), script)


def test_requests_that_wait_in_line_are_each_decided():
    """Pipelined behind an allowed one, a request is no less denied; what looks like one in a body is a body."""

    async def script(client):
        async with server(hello) as port:
            client.proxy._policy = Policy((f"127.0.0.1:{port}",))
            smuggled = b"GET http://10.0.0.1/ HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n"
            said = await client.ask(
                b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: %d\r\n\r\n"
                % (port, port, len(smuggled))
                + smuggled
                + smuggled
            )
            assert said.count(b"HTTP/1.1 200 OK") == 1
            assert said.count(b"HTTP/1.1 403 ") == 1
            assert [(record.host, record.allowed) for record in client.proxy.records()] == [
                ("127.0.0.1", True), ("10.0.0.1", False),
            ]  # fmt: skip

    speaking((), script)


def test_a_tunnel_carries_bytes_both_ways_and_half_ends():
    async def echo(reader, writer):
        data = await reader.read()
        writer.write(data[::-1])
        await writer.drain()

    async def script(client):
        async with server(echo) as port:
            client.proxy._policy = Policy((f"127.0.0.1:{port}",))
            text = bytes(range(256)) * 300
            number = await client.open(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: x.y:%d\r\n\r\n" % (port, port))
            assert (await client.all_of(number)).startswith(b"HTTP/1.1 400"), "another host in the Host field"
            head = b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % (port, port)
            number = await client.open(head + text[:100])
            await client.until(number, lambda said: said.endswith(b"\r\n\r\n"))
            await client.say(number, text[100:], end=True)
            said = await client.all_of(number)
            assert said.endswith(b"\r\n\r\n" + text[::-1])
            assert client.over[number] == "end"
            record = client.proxy.records()[-1]
            assert (record.sent_bytes, record.received_bytes, record.failure) == (len(text), len(text), "")

    speaking((), script)


def test_the_dialled_address_is_the_judged_one_though_the_name_moves():
    async def script(client):
        async with server(hello) as port:

            async def moving(host, _port):
                answers.append(host)
                return ["127.0.0.1"] if len(answers) == 1 else ["10.255.255.1"]

            answers: list[str] = []
            client.proxy._policy = Policy((f"moving.example:{port}", f"127.0.0.1:{port}"), resolve=moving)
            request = b"GET http://moving.example:%d/ HTTP/1.1\r\nHost: moving.example:%d\r\n\r\n" % (port, port)
            assert b"200 OK" in await client.until(await client.open(request), lambda said: b"\r\n\r\n" in said)
            assert client.proxy.records()[0].address == "127.0.0.1"
            assert b"403" in await client.ask(request)
            assert answers == ["moving.example"] * 2, "a decision per request, one resolution each"

    speaking((), script)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (b"", b"502"),
        (b"nonsense\r\n\r\n", b"502"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            b"hello",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 None\r\n\r\n", b"204"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", b"short"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * (1 << 17), b"502"),
    ],
)
def test_servers_of_every_kind_are_understood_or_said_to_make_no_sense(response, expected):
    async def odd(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()

    async def script(client):
        async with server(odd) as port:
            client.proxy._policy = Policy((f"127.0.0.1:{port}",))
            request = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % (
                port,
                port,
            )
            number = await client.open(request)
            said = await client.all_of(number)
            assert expected in said
            cut = expected == b"short"
            assert client.over[number] == ("reset" if cut else "end"), "a response that is cut is seen to be"
            assert bool(client.proxy.records()[0].failure) == (cut or expected == b"502")

    speaking((), script)


def test_bodies_heads_and_offers_to_upgrade_on_one_connection():
    async def script(client):
        async with server(hello) as port:
            client.proxy._policy = Policy((f"127.0.0.1:{port}",))
            line = b" http://127.0.0.1:%d/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % (port, port)
            number = await client.open(b"POST" + line + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
            said = await client.until(number, lambda said: said.endswith(b"\r\n\r\n"))
            assert said.startswith(b"HTTP/1.1 100 ")
            await client.say(number, b"body")
            said = await client.until(number, lambda said: said.endswith(b"body"))
            await client.say(number, b"HEAD" + line + b"\r\n")
            more = (await client.until(number, lambda now: now[len(said) :].endswith(b"\r\n\r\n")))[len(said) :]
            assert more.startswith(b"HTTP/1.1 200 OK")
            size = len(said + more)
            await client.say(number, b"GET" + line + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n")
            said = await client.until(number, lambda now: now[size:].endswith(b"close\r\n\r\n"))
            assert said[size:].startswith(b"HTTP/1.1 200 OK")
            assert b"websocket" not in said
            size = len(said)
            await client.say(number, b"GET" + line + b"Connection: close\r\n\r\n")
            assert (await client.all_of(number))[size:].startswith(b"HTTP/1.1 200 OK")
            assert [record.method for record in client.proxy.records()] == ["POST", "HEAD", "GET", "GET"]
            assert not any(record.failure for record in client.proxy.records())

    speaking((), script)


def test_lookups_of_one_world_are_bounded_though_nobody_waits_for_them():
    asked = []

    async def slow(host, port):
        asked.append(host)
        await asyncio.Event().wait()
        return []

    async def main():
        policy = Policy(("*.example",), resolve=slow)
        places = [Place(f"{number}.example", 80) for number in range(20)]
        verdicts = await asyncio.gather(*(policy.decide(place, within_s=0.05) for place in places))
        assert all(verdict.failure for verdict in verdicts)
        assert len(asked) == 4

    asyncio.run(main())


def test_what_cannot_be_reached_is_a_failure_with_a_reason():
    async def script(client):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            client.proxy._policy = Policy((f"127.0.0.1:{port}",))
            said = await client.ask(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % port)
            assert said.startswith(b"HTTP/1.1 502 ")
            (record,) = client.proxy.records()
            assert record.allowed
            assert "127.0.0.1 port" in record.failure

    speaking((), script)


def test_bytes_and_time_are_bounded():
    async def endless(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(1 << 16))
            await writer.drain()

    async def silent(reader, writer):
        await reader.read()
        await asyncio.sleep(60)

    async def script(client):
        for answer, why in ((endless, "bytes went one way"), (silent, "no byte for too long")):
            async with server(answer) as port:
                client.proxy._policy = Policy((f"127.0.0.1:{port}",))
                for ask in (b"GET http://127.0.0.1:%d/", b"CONNECT 127.0.0.1:%d"):
                    number = await client.open((ask + b" HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n") % (port, port))
                    if ask.startswith(b"CONNECT") and answer is endless:
                        await client.say(number, b"\r\n\r\n")
                    await client.all_of(number)
                    assert client.over[number] == "reset"
                    assert why in client.proxy.records()[-1].failure
                    assert client.proxy.records()[-1].received_bytes < 1 << 19
        number = await client.open(b"GET http://slow")
        await client.all_of(number)
        assert client.over[number] == "reset", "a request that never ends is cut too"
        said = await client.ask(b"GET http://a.example/ HTTP/1.1\r\nX: " + b"x" * (1 << 16))
        assert said.startswith(b"HTTP/1.1 431 ")

    speaking((), script, bounds=Bounds(bytes=1 << 18, idle_s=0.3, total_s=20))


def test_every_connection_ends_with_the_proxy():
    async def silent(reader, writer):
        left.append(await reader.read())

    left: list[bytes] = []

    async def script(client):
        async with server(silent) as port:
            client.proxy._policy = Policy((f"127.0.0.1:{port}",))
            number = await client.open(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % port)
            await client.until(number, lambda said: said.endswith(b"\r\n\r\n"))
            await client.proxy.close()
            await client.all_of(number)
            assert client.over[number] == "reset"
            assert client.proxy.records()[0].failure == "the sandbox ended"

    speaking((), script)


async def nobody(host, port):
    raise AssertionError(f"{host}:{port} was asked for")


WORDS = (
    *(b"GET ", b"CONNECT ", b"http://", b"a.example", b":80", b"/", b" HTTP/1.1\r\n", b"Host: ", b"\r\n", b"@"),
    *(
        b"\r\n\r\n",
        b"Transfer-Encoding: chunked",
        b"Content-Length: 1",
        b"0\r\n\r\n",
        b"\0",
        b"[::1]",
        b"127.0.0.1",
    ),
)


@settings(max_examples=150)
@given(data=st.binary(min_size=1, max_size=200) | st.lists(st.sampled_from(WORDS), min_size=1).map(b"".join))
def test_no_bytes_of_a_client_break_the_proxy_or_get_out(data):
    async def script(client):
        number = await client.open(data, end=True)
        await client.all_of(number)
        assert not any(record.allowed for record in client.proxy.records())
        assert client.peer.ended is None

    speaking(("b.example",), script, resolver=nobody)


def test_a_log_forgets_the_oldest_and_can_not_be_forged(caplog):
    log = EgressLog("box")
    with caplog.at_level(logging.INFO, logger="envgym.egress"):
        log.decided("GET\n2026 sandbox x: allowed", Place("a.org", 80), Verdict(False, "no\nrule"))
    (line,) = caplog.messages
    assert "\n" not in line
    assert "denied" in line
    logging.getLogger("envgym.egress").setLevel(logging.CRITICAL)
    try:
        for _ in range(10_005):
            log.decided("GET", Place("a.org", 80), Verdict(True, "rule a.org"))
    finally:
        logging.getLogger("envgym.egress").setLevel(logging.NOTSET)
    records = log.records()
    assert (len(records), records[0].number, records[-1].number) == (10_000, 7, 10_006)


# -- from inside ---------------------------------------------------------------------------------------------------

FETCH = """
import sys, urllib.request, urllib.error
for url in sys.argv[1:]:
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            print(response.status, response.read().decode()[:200].split()[1])
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    except OSError as error:
        print("failed", error)
"""


def test_programs_find_the_way_out_by_their_environment_and_nothing_else_gets_out(make, run, world):
    async def main():
        async with server(hello) as port, server(hello) as other:
            open_world = world.model_copy(
                update={
                    "egress": (f"127.0.0.1:{port}",),
                    "setup": (f"python3 -c '{FETCH}' http://127.0.0.1:{port}/s > s",),
                }
            )
            async with make() as backend, await backend.create(open_world) as sandbox:
                assert await sandbox.read("s") == b"200 /s\n", "setup commands have it too"
                assert await sandbox.egress_log() == (), "but a sandbox's log is its own"
                urls = [f"http://127.0.0.1:{port}/a", f"http://127.0.0.1:{other}/b", "http://evil.example/c"]
                result = await sandbox.exec(["python3", "-c", FETCH, *urls])
                lines = result.stdout.decode().split("\n")
                assert lines[0] == "200 /a", result
                assert lines[1].startswith(f"403 envgym: no rule of this world allows 127.0.0.1:{other}; it allows")
                assert any(
                    line.startswith("403 envgym: no rule of this world allows evil.example:80") for line in lines
                )
                for address in (f"127.0.0.1/{port}", "93.184.216.34/80"):
                    result = await sandbox.exec(["bash", "-c", f"exec 9<>/dev/tcp/{address}"], timeout_s=5)
                    assert not result.ok, "there is no other way"
                log = await sandbox.egress_log()
                assert [(record.host, record.port, record.allowed) for record in log] == [
                    ("127.0.0.1", port, True), ("127.0.0.1", other, False), ("evil.example", 80, False),
                ]  # fmt: skip
                async with await sandbox.fork() as fork:
                    result = await fork.exec(f"python3 -c '{FETCH}' http://127.0.0.1:{port}/f")
                    assert result.stdout == b"200 /f\n", f"a fork has the way out: {result}"
                    assert len(await fork.egress_log()) == 1
                result = await sandbox.exec(["python3", "-c", FETCH, f"http://127.0.0.1:{port}/again"])
                assert result.stdout == b"200 /again\n", "and so has the sandbox after a snapshot"
                assert len(await sandbox.egress_log()) == 4

    run(main())


@pytest.mark.slow
def test_much_goes_through_whole_and_many_at_once(make, run, world):
    async def much(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (8 << 20))
        for number in range(8 << 4):
            writer.write(bytes([number]) * (1 << 16))
            await writer.drain()

    program = """
import hashlib, sys, threading, urllib.request
def fetch():
    with urllib.request.urlopen(sys.argv[1], timeout=50) as response:
        print(hashlib.sha256(response.read()).hexdigest())
threads = [threading.Thread(target=fetch) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""

    async def main():
        async with server(much) as port:
            open_world = world.model_copy(update={"egress": (f"127.0.0.1:{port}",)})
            async with make() as backend, await backend.create(open_world) as sandbox:
                result = await sandbox.exec(["python3", "-c", program, f"http://127.0.0.1:{port}/"], timeout_s=50)
                whole = b"".join(bytes([number]) * (1 << 16) for number in range(8 << 4))
                assert result.stdout.decode().split() == [hashlib.sha256(whole).hexdigest()] * 8, result
                assert sum(record.received_bytes for record in await sandbox.egress_log()) > 8 * len(whole)

    run(main())


def test_a_flood_of_connections_inside_waits_its_turn(make, run, world):
    program = """
import socket, sys
kept = []
for number in range(300):
    sock = socket.socket()
    sock.settimeout(0.2)
    try:
        sock.connect(("127.0.0.1", 3128))
    except OSError:
        break
    kept.append(sock)
print(len(kept) > 64)
for sock in kept: sock.close()
"""

    async def main():
        async with server(hello) as port:
            open_world = world.model_copy(update={"egress": (f"127.0.0.1:{port}",)})
            async with make() as backend, await backend.create(open_world) as sandbox:
                assert (await sandbox.exec(["python3", "-c", program])).stdout == b"True\n"
                result = await sandbox.exec(["python3", "-c", FETCH, f"http://127.0.0.1:{port}/after"])
                assert result.stdout == b"200 /after\n", f"the sandbox and its way out live on: {result}"

    run(main())
