"""The bus on which programs describe themselves, and questions on it that are sent together.

A question alone costs a way to the program and back; many at once cost little more than one. Programs answer
`org.a11y.atspi.Cache.GetItems`, all elements in one answer, only once somebody has registered for an event:
at-spi2-atk makes its cache for the first listener. So one is registered, for an event that none of these programs
sends.
"""

from collections.abc import Sequence
from typing import Any

from envgym_sandboxes.desktop.inside.dbus import Call, Connection

__all__ = ["ACCESSIBLE", "ROOT", "Bus", "Place", "asked", "asked_value"]

Place = tuple[str, str]
"""Where an object is: its program's name on the bus, and its path there."""

ACCESSIBLE = "Accessible"
ROOT = "/org/a11y/atspi/accessible/root"
_REGISTRY = "org.a11y.atspi.Registry"
_RARE = "document:load-complete"
_START_S = 60.0
_GIVES = {
    "GetItems": "a((so)(so)(so)iiassusau)", "GetChildren": "a(so)", "GetRole": "u", "GetState": "au",
    "GetInterfaces": "as", "GetExtents": "(iiii)", "GetText": "s", "GetName": "s", "DoAction": "b",
    "SetTextContents": "b",
}  # fmt: skip
"""The types of what methods of AT-SPI answer."""


class Bus:
    """A connection to the accessibility bus. Raises OSError where there is none, or, later, where it is gone.

    answer_s: how long a program has for its answers.
    """

    def __init__(self, session: str, *, answer_s: float = 3.0) -> None:
        self._answer_s = answer_s
        first = Connection(session)
        where = Call("org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress", "s", starts=True)
        (address,) = first.ask([where], _START_S)
        first.close()
        if not address:
            raise ConnectionRefusedError("the session bus knows no accessibility bus")
        self._bus = Connection(address)
        registry = (_REGISTRY, "/org/a11y/atspi/registry", _REGISTRY, "RegisterEvent")
        event = Call(*registry, takes=("s", "as", "s"), given=(_RARE, (), ""), starts=True)
        if self._bus.ask([event], _START_S) == [None]:
            raise ConnectionRefusedError("the accessibility bus has no registry")

    def programs(self) -> list[Place]:
        """The root of every program, in the order in which they came."""
        return list(self.one(asked((_REGISTRY, ROOT), ACCESSIBLE, "GetChildren")) or ())

    def ask(self, calls: Sequence[Call]) -> list[Any]:
        """What each answers, in their order; None where there is no answer, or it is an error."""
        return self._bus.ask(calls, self._answer_s)

    def one(self, call: Call) -> Any:
        """One answer; None where there is none."""
        return self.ask([call])[0]


def asked(place: Place, interface: str, method: str, takes: Sequence[str] = (), given: Sequence[Any] = ()) -> Call:
    """A method of an interface of AT-SPI, named without its prefix."""
    return Call(*place, f"org.a11y.atspi.{interface}", method, _GIVES[method], tuple(takes), tuple(given))


def asked_value(place: Place, interface: str, name: str, kind: str) -> Call:
    """A property of an interface of AT-SPI, of this type."""
    given = (f"org.a11y.atspi.{interface}", name)
    return Call(*place, "org.freedesktop.DBus.Properties", "Get", f"v{kind}", ("s", "s"), given)
