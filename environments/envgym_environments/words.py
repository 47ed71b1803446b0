"""The vocabulary of generated worlds: names, places, goods and dates that look like those of real data.

Everything is drawn from a numpy Generator that is passed in. Combinations, not lists, make the variety: some
2,000 persons, 2,000 products, 1,000 titles.
"""

import datetime
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

__all__ = ["NOUNS", "TODAY", "company", "date", "email", "person", "pick", "product", "some", "title", "town"]

T = TypeVar("T")

TODAY = datetime.date(2025, 6, 30)
"""The day that it is in every generated world."""


def _listed(text: str) -> tuple[str, ...]:
    return tuple(word.replace("_", " ") for word in text.split())


_FIRST = _listed(
    """Amara Anton Beatriz Bjorn Chiara Chen Dalia Deepak Elif Emil Fatima Finn Grace Gustavo Hana Hugo Ines Ivan
    Jamila Jonas Kaori Karim Leila Luca Maren Mateo Nadia Noah Olga Omar Priya Pablo Qing Rosa Ravi Sofia Stefan
    Tamar Tomas Uma Viktor Wanda Xavier Yara Yusuf Zoe"""
)
_LAST = _listed(
    """Abbott Alvarez Becker Bianchi Castro Chowdhury Dahl Dubois Eriksen Farouk Fischer Garcia Gupta Haddad Hughes
    Ivanova Jansen Kaya Kimura Kowalski Larsen Lopez Marino Mensah Moreau Nakamura Novak Okafor Olsen Park Petrov
    Quinn Rahman Rossi Sato Schmidt Silva Tanaka Torres Ueda Vargas Vogel Walsh Weber Yilmaz Zhang"""
)
_TOWNS = _listed(
    """Aarhus Accra Austin Bergen Bilbao Bogota Brno Cork Cusco Dakar Denver Dresden Fukuoka Galway Ghent Graz Hanoi
    Izmir Jaipur Kyoto Lagos Leeds Lille Lyon Malmo Manila Nantes Osaka Ottawa Pavia Perth Porto Quito Rabat Riga
    Salta Seville Split Tampere Tbilisi Turin Utrecht Varna Vienna Zagreb"""
)
_MADE = _listed(
    """Alpine Amber Aurora Birch Classic Compact Copper Coral Crystal Delta Eco Ember Foldable Frost Granite Harbor
    Indigo Ivory Jet Linen Lunar Maple Meadow Mini Nordic Oak Opal Pocket Polar Prime Quiet River Sierra Silk Solar
    Steel Summit Terra Urban Velvet"""
)
_GOODS = _listed(
    """Backpack Bicycle Blanket Blender Bookshelf Camera Candle Chair Clock Coat Cutlery Desk Drill Fan Frame Gloves
    Guitar Hammock Headphones Helmet Jacket Kettle Keyboard Knife Lamp Lantern Mirror Monitor Mug Notebook Oven Pan
    Pillow Printer Racket Radio Rug Scale Scarf Shoes Skillet Sofa Speaker Stool Suitcase Table Teapot Tent Toaster
    Towel Tripod Umbrella Vase Wallet Watch"""
)
_OF = _listed(
    "Winter Glass Salt Ashes Rivers Silence Sparrows Iron Light Maps Thunder Honey Paper Stars Moss Echoes"
)
_THE = _listed(
    """Garden Empire House Daughter Theory Atlas Weight Colour History Keeper Road Song Island Winter Library Clock
    Language Harvest Bridge Orchard Letter Voyage Secret Tower Shadow Dream"""
)
_FIRMS = _listed("Group Labs Partners Systems Works Trading Foods Energy Media Logistics Textiles Robotics")
NOUNS = _GOODS + _THE


def pick(rng: np.random.Generator, among: Sequence[T]) -> T:
    """One of them, each as likely."""
    return among[int(rng.integers(len(among)))]


def some(rng: np.random.Generator, among: Sequence[T], count: int) -> list[T]:
    """`count` different ones, in the order drawn."""
    return [among[int(place)] for place in rng.permutation(len(among))[:count]]


def person(rng: np.random.Generator) -> str:
    """A first and a last name."""
    return f"{pick(rng, _FIRST)} {pick(rng, _LAST)}"


def email(name: str, rng: np.random.Generator) -> str:
    """An address for a name."""
    host = pick(rng, ("example.com", "example.org", "mail.example", "post.example"))
    return f"{name.lower().replace(' ', '.')}{int(rng.integers(10, 99))}@{host}"


def town(rng: np.random.Generator) -> str:
    """A town."""
    return pick(rng, _TOWNS)


def product(rng: np.random.Generator) -> str:
    """A thing in a shop."""
    return f"{pick(rng, _MADE)} {pick(rng, _GOODS)}"


def title(rng: np.random.Generator) -> str:
    """The title of a book, film or song."""
    one, other = f"The {pick(rng, _THE)} of {pick(rng, _OF)}", f"{pick(rng, _MADE)} {pick(rng, _THE)}"
    return one if rng.integers(2) else other


def company(rng: np.random.Generator) -> str:
    """A firm."""
    return f"{pick(rng, _LAST)} {pick(rng, _FIRMS)}"


def date(rng: np.random.Generator, first: int = -900, last: int = 0) -> str:
    """A day between `first` and `last` days from `TODAY`, in ISO form."""
    return (TODAY + datetime.timedelta(days=int(rng.integers(first, last + 1)))).isoformat()
