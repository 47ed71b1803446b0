"""The bus on which programs describe themselves, and questions on it that are sent together.

A question alone costs a way to the program and back; many at once cost little more than one. Programs answer
`org.a11y.atspi.Cache.GetItems`, all elements in one answer, only once somebody has registered for an event:
at-spi2-atk makes its cache for the first listener. So one is registered, for an event that none of these programs
sends.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gi.repository import Gio, GLib

__all__ = ["ACCESSIBLE", "ROOT", "Ask", "Bus", "Place"]

Place = tuple[str, str]
"""Where an object is: its program's name on the bus, and its path there."""
Ask = tuple[Place, str, str, "GLib.Variant | None"]
"""A place, an interface of AT-SPI without its prefix, a method, arguments."""

ACCESSIBLE = "Accessible"
ROOT = "/org/a11y/atspi/accessible/root"
_REGISTRY = "org.a11y.atspi.Registry"
_RARE = "document:load-complete"
_FLAGS = Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION


class Bus:
    """A connection to the accessibility bus. Raises GLib.Error where there is none.

    answer_s: how long a program has for its answers.
    """

    def __init__(self, session: str, *, answer_s: float = 3.0) -> None:
        self._answer_ms = round(answer_s * 1000)
        asked = Gio.DBusConnection.new_for_address_sync(session, _FLAGS, None, None)
        where = ("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress")
        (address,) = asked.call_sync(*where, None, None, Gio.DBusCallFlags.NONE, 60_000, None).unpack()
        asked.close_sync(None)
        self._bus = Gio.DBusConnection.new_for_address_sync(address, _FLAGS, None, None)
        for connection in (asked, self._bus):
            connection.set_exit_on_close(False)
        event = GLib.Variant("(sass)", (_RARE, [], ""))
        registry = (_REGISTRY, "/org/a11y/atspi/registry", _REGISTRY, "RegisterEvent")
        self._bus.call_sync(*registry, event, None, Gio.DBusCallFlags.NONE, 60_000, None)

    def programs(self) -> list[Place]:
        """The root of every program, in the order in which they came."""
        (answer,) = self.ask([((_REGISTRY, ROOT), ACCESSIBLE, "GetChildren", None)])
        return [] if answer is None else [(name, path) for name, path in answer[0]]

    def ask(self, asks: Sequence[Ask]) -> list[Any]:
        """What each answers, in their order; None where there is no answer, or it is an error."""
        answers: list[Any] = [None] * len(asks)
        open_ = len(asks)

        def take(connection: Any, result: Any, at: int) -> None:
            nonlocal open_
            open_ -= 1
            with suppress(GLib.Error):  # it is gone, or has no such thing
                answers[at] = connection.call_finish(result).unpack()

        for at, ((name, path), interface, method, given) in enumerate(asks):
            prefix = interface if "." in interface else f"org.a11y.atspi.{interface}"
            question = (name, path, prefix, method, given, None, Gio.DBusCallFlags.NO_AUTO_START)
            self._bus.call(*question, self._answer_ms, None, take, at)
        context = GLib.MainContext.default()
        while open_:
            context.iteration(True)
        return answers

    def one(self, place: Place, interface: str, method: str, given: Any = None) -> Any:
        """The single value of one answer; None where there is none."""
        (answer,) = self.ask([(place, interface, method, given)])
        return answer[0] if answer else None

    def value(self, place: Place, interface: str, name: str) -> Any:
        """A property; None where there is none."""
        return self.one(place, "org.freedesktop.DBus.Properties", "Get", of(interface, name))


def of(interface: str, name: str) -> Any:
    """The arguments that ask for a property of an interface of AT-SPI."""
    return GLib.Variant("(ss)", (f"org.a11y.atspi.{interface}", name))
