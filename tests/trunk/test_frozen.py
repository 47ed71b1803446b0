import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace

import pytest

from envgym import Action, Episode, Message, Reply, Step, StopReason, Turn
from envgym.frozen import quick


@quick
@dataclass(frozen=True, slots=True)
class Pair:
    first: int
    more: list[int] = field(default_factory=list)
    name: str = "pair"

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError(f"first is {self.first}")


def test_a_quick_constructor_takes_what_the_plain_one_takes():
    assert Pair(1) == Pair(first=1, more=[], name="pair") == Pair(1, [], "pair")
    assert Pair(1).more is not Pair(1).more
    assert Pair.__init__.__annotations__["first"] is int
    for wrong in ((), (1, [], "pair", 4)):
        with pytest.raises(TypeError, match="__init__"):
            Pair(*wrong)
    with pytest.raises(TypeError, match="unknown"):
        Pair(1, unknown=2)
    with pytest.raises(ValueError, match="first is -1"):
        Pair(-1)
    with pytest.raises(ValueError, match="first is -2"):
        replace(Pair(1), first=-2)


def test_what_the_function_of_all_fields_makes_is_what_the_constructor_makes():
    made = Pair._made(1, [2], "x")
    assert (type(made), made) == (Pair, Pair(1, [2], "x"))
    with pytest.raises(FrozenInstanceError):
        made.first = 2
    with pytest.raises(ValueError, match="first is -1"):
        Pair._made(-1, [], "x")
    with pytest.raises(TypeError, match="missing"):
        Pair._made(1)


def test_what_every_turn_makes_stays_frozen_and_survives_copies():
    step = Step((Message(role="user", content="a"),), reward=1.0, stop=StopReason.GOAL)
    reply = Reply(Action.say("b"))
    turn = Turn.of("agent", reply, step)
    for value in (Pair(1), step, reply, turn, Episode("e", "t", step, (turn,), 0, StopReason.GOAL)):
        for other in (copy.deepcopy(value), pickle.loads(pickle.dumps(value)), replace(value)):
            assert other == value
        name = fields(value)[0].name
        with pytest.raises(FrozenInstanceError):
            setattr(value, name, None)
        with pytest.raises((AttributeError, TypeError)):
            value.unknown = 1


def test_quick_refuses_what_it_would_change():
    @dataclass(slots=True)
    class Open:
        a: int

    @dataclass(frozen=True)
    class Loose:
        a: int

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        a: int

    for odd, why in ((Open, "none"), (Loose, "none"), (Named, "'a'")):
        with pytest.raises(TypeError, match=why):
            quick(odd)


def test_one_of_a_subclass_stays_one_and_fields_of_a_base_are_refused():
    class Doubled(Pair):
        @property
        def twice(self) -> int:
            return 2 * self.first

    made = Doubled(3)
    assert (type(made), made.twice, type(Pair(1))) == (Doubled, 6, Pair)
    with pytest.raises(ValueError, match="first is -1"):
        Doubled(-1)

    @dataclass(frozen=True, slots=True)
    class Parent:
        left: int

    with pytest.raises(TypeError, match="fields are all their own, and Child has others"):

        @quick
        @dataclass(frozen=True, slots=True)
        class Child(Parent):
            right: int = 0
