"""The way out of one sandbox: a forward proxy whose clients are streams of the sandbox.

Each request is read, judged by the policy and logged by itself, also on a connection that stays open; each that is
allowed gets a connection of its own, to an address that was judged. The sandbox is believed nothing: requests are
understood and written anew, times and bytes are bounded. TLS passes through unread, so a tunnel's inside is not
checked.
"""

import asyncio
import contextlib
from dataclasses import dataclass

import h11

from envgym.egress import EgressRecord, Place
from envgym_sandboxes.egress_log import EgressLog, Entry
from envgym_sandboxes.flow import MOST_STREAMS, PIECE
from envgym_sandboxes.policy import Policy, Verdict
from envgym_sandboxes.proxy_request import Refused, Wanted, clean_response, understand
from envgym_sandboxes.relay import cut, relay
from envgym_sandboxes.streams import Stream

__all__ = ["Bounds", "Proxy"]

_LINGER_S = 2.0
_LINGER_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one connection.

    bytes: per direction of each request or tunnel, heads included. head_bytes: the longest head of a request or a
    response. connect_s: to resolve a name, and to connect. idle_s: without a byte in any direction. total_s: in
    all.
    """

    bytes: int = 1 << 30
    head_bytes: int = 1 << 15
    connect_s: float = 15.0
    idle_s: float = 120.0
    total_s: float = 3600.0


class _TooMuch(OSError):
    """A bound was met."""


class Proxy:
    """Serves the streams that one sandbox opens, until `close`."""

    def __init__(self, policy: Policy, sandbox: str, bounds: Bounds) -> None:
        self._policy = policy
        self._log = EgressLog(sandbox)
        self._bounds = bounds
        self._serving: set[asyncio.Task[None]] = set()

    def records(self) -> tuple[EgressRecord, ...]:
        """The decisions so far."""
        return self._log.records()

    def take(self, stream: Stream) -> None:
        """Serve a stream. More at once than a sandbox may have are reset: their ends here are still closing."""
        if len(self._serving) >= 2 * MOST_STREAMS:
            stream.reset()
            return
        client = _Client(stream, self._policy, self._log, self._bounds)
        task = asyncio.ensure_future(client.serve())
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """End every connection."""
        serving = [*self._serving]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)


class _Client:
    """One stream, from its first request to its end."""

    def __init__(self, stream: Stream, policy: Policy, log: EgressLog, bounds: Bounds) -> None:
        self._stream = stream
        self._policy = policy
        self._log = log
        self._bounds = bounds
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=bounds.head_bytes)
        self._got = 0  # bytes that came on this stream, in all its requests
        self._end = asyncio.get_running_loop().time() + bounds.total_s
        self._timer = asyncio.timeout(bounds.idle_s)

    async def serve(self) -> None:
        """Answer requests until the client or a bound ends it. Raises nothing but cancellation."""
        try:
            async with self._timer:
                await self._answer_all()
            self._stream.end()
            await self._linger()
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # what was decided is in the log; the client sees a reset
        finally:
            self._stream.reset()

    async def _answer_all(self) -> None:
        again = True
        while again:
            try:
                event = await self._next()
                if not isinstance(event, h11.Request):
                    return
                wanted = understand(event)
            except (h11.RemoteProtocolError, Refused) as error:
                self._log.decided("?", Place("", 0), Verdict(False, f"not understood: {error}"))
                status = error.status if isinstance(error, Refused) else error.error_status_hint
                await self._refuse(status, str(error))
                return
            again = await self._answer(wanted)
            if again:
                self._http.start_next_cycle()

    async def _linger(self) -> None:
        """Let the client read the answer before it meets a reset: read on for a moment what it still sends."""
        left = _LINGER_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_S):
                while left > 0 and (data := await self._stream.receive()):
                    left -= len(data)

    # -- one request -------------------------------------------------------------------------------------------

    async def _answer(self, wanted: Wanted) -> bool:
        """Carry out one request; whether another one may follow."""
        verdict = await self._policy.decide(wanted.place, within_s=self._bounds.connect_s)
        entry = self._log.decided(wanted.method, wanted.place, verdict)
        if not verdict.allowed:
            await self._refuse(403, verdict.reason)
            return False
        try:
            reader, writer = await self._connect(verdict, wanted.place.port, entry)
        except OSError as error:
            entry.failed(str(error))
            await self._refuse(502, f"{wanted.place} is allowed, and cannot be reached: {entry.record.failure}")
            return False
        try:
            if wanted.is_tunnel:
                await self._tunnel(reader, writer, entry)
                return False
            return await self._carry(wanted, reader, writer, entry)
        except (OSError, h11.ProtocolError) as error:
            entry.failed(str(error) or type(error).__name__)
            raise
        except asyncio.CancelledError:
            entry.failed("no byte for too long" if self._timer.expired() else "the sandbox ended")
            raise
        finally:
            cut(writer)

    async def _connect(
        self, verdict: Verdict, port: int, entry: Entry
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first judged address that answers. Raises OSError."""
        failure: OSError = OSError(verdict.failure or "no address")
        for address in verdict.addresses:
            try:
                async with asyncio.timeout(self._bounds.connect_s / len(verdict.addresses)):
                    reader, writer = await asyncio.open_connection(address, port, limit=PIECE)
            except OSError as error:  # TimeoutError is one
                failure = OSError(f"{address} port {port}: {error.strerror or 'no answer in time'}")
            else:
                entry.reached(address)
                return reader, writer
        raise failure

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: Entry) -> None:
        await self._send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
        early = self._http.trailing_data[0]
        self._count(entry, sent=len(early), received=0)
        writer.write(early)
        await relay(
            reader, writer, self._stream, count=lambda got, sent: self._count(entry, sent=sent, received=got)
        )
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _carry(
        self, wanted: Wanted, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, entry: Entry
    ) -> bool:
        """Send a request on and its response back; whether the client's connection can go on."""
        onwards = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._bounds.head_bytes)
        sending = asyncio.ensure_future(self._upload(wanted, onwards, writer, entry))
        answering = asyncio.ensure_future(self._download(onwards, reader, entry))
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                sending.result()  # raises where the client is at fault: then there is no answer to wait for
            await answering
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _upload(
        self, wanted: Wanted, onwards: h11.Connection, writer: asyncio.StreamWriter, entry: Entry
    ) -> None:
        """The request, written anew. Raises what the client did wrong; a server that listens no more is none."""
        head = h11.Request(method=wanted.method, target=wanted.target, headers=list(wanted.headers))
        event: h11.Event | type[h11.PAUSED] = head
        while True:
            if isinstance(event, h11.Data | h11.Request):
                data = onwards.send(event) or b""
            elif isinstance(event, h11.EndOfMessage):
                data = onwards.send(h11.EndOfMessage()) or b""
            else:
                raise ConnectionResetError("the client ended within its request")
            self._count(entry, sent=len(data), received=0)
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            if isinstance(event, h11.EndOfMessage):
                return
            if self._http.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            event = await self._next()

    async def _download(self, onwards: h11.Connection, reader: asyncio.StreamReader, entry: Entry) -> None:
        """The response, written anew. A server that makes no sense before it has said anything is a 502."""
        begun = False
        while True:
            try:
                event = onwards.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(PIECE)
                    self._count(entry, sent=0, received=len(data))
                    onwards.receive_data(data)
                    continue
                if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    raise ConnectionResetError("the server ended within its response")
            except (OSError, h11.RemoteProtocolError) as error:
                if begun:
                    raise
                entry.failed(f"no response: {error}")
                await self._refuse(502, f"the server gave no response that can be understood: {error}")
                return
            if isinstance(event, h11.Response):
                begun = True
                reason, headers = event.reason, clean_response(event)
                await self._send(h11.Response(status_code=event.status_code, headers=headers, reason=reason))
            elif isinstance(event, h11.Data):
                await self._send(h11.Data(data=event.data))
            elif isinstance(event, h11.EndOfMessage):
                await self._send(h11.EndOfMessage())
                return

    # -- the client --------------------------------------------------------------------------------------------

    async def _next(self) -> "h11.Event | type[h11.PAUSED]":
        """The client's next event. Raises RemoteProtocolError, ConnectionResetError, TimeoutError."""
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                assert not isinstance(event, type) or event is h11.PAUSED
                return event
            data = await self._stream.receive()
            self._got += len(data)
            self._moved()
            if self._got > self._bounds.bytes:
                raise _TooMuch(f"more than {self._bounds.bytes} bytes were sent")
            self._http.receive_data(data)

    async def _send(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            await self._stream.send(data)
            self._moved()

    async def _refuse(self, status: int, reason: str) -> None:
        """Answer with a reason that whoever reads it understands; the connection ends then."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        text = f"envgym: {reason}\n".encode("utf-8", "replace")
        headers = [("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(text)))]
        headers.append(("connection", "close"))
        await self._send(h11.Response(status_code=status, headers=headers, reason=b"envgym"))
        await self._send(h11.Data(data=text))
        await self._send(h11.EndOfMessage())

    def _count(self, entry: Entry, *, sent: int, received: int) -> None:
        """Count what goes through. Raises an OSError at the bound."""
        entry.count(sent, received)
        self._moved()
        if max(entry.record.sent_bytes, entry.record.received_bytes) > self._bounds.bytes:
            raise _TooMuch(f"more than {self._bounds.bytes} bytes went one way")

    def _moved(self) -> None:
        """Something was heard or said: the wait for the next byte begins anew."""
        self._timer.reschedule(min(asyncio.get_running_loop().time() + self._bounds.idle_s, self._end))
