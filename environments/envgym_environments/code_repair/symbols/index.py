"""What a tree's code defines and uses, by name: outlines, definitions with what a class inherits, references.

The index is made from texts and keeps nothing; a file's symbols are remembered by its text, so that after an edit
only the edited file is read again. It knows names, not types: two classes with one name are both shown. What does
not parse has no symbols, and is named.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from envgym_environments.code_repair.symbols.grammars import LANGUAGE_OF, read_by_grammar
from envgym_environments.code_repair.symbols.python import Found, Symbol, read_python

__all__ = ["SUFFIXES", "Index", "Place"]

_PYTHON = (".py", ".pyi")
SUFFIXES = (*_PYTHON, *LANGUAGE_OF)
"""Endings of the files that are indexed."""
_CONTINUED = ("go", "rust", "c++")
"""Languages that write a type's methods in other files of its folder, too."""


@dataclass(frozen=True, slots=True)
class Place:
    """A symbol and the file that holds it."""

    path: str
    symbol: Symbol


@dataclass(frozen=True)
class Index:
    """The code of one state of a tree. texts: path -> text; files of no known language are left out."""

    texts: Mapping[str, str] = field(repr=False)

    @cached_property
    def files(self) -> dict[str, Found | None]:
        """What each file holds, in path order; None for what does not parse."""
        found: dict[str, Found | None] = {}
        for path in sorted(self.texts):
            suffix, text = path[path.rfind(".") :], self.texts[path]
            if suffix in _PYTHON:
                found[path] = read_python(text)
            elif suffix in LANGUAGE_OF:
                found[path] = read_by_grammar(text, LANGUAGE_OF[suffix], markup=suffix == ".tsx")
        return found

    @property
    def unread(self) -> tuple[str, ...]:
        """Files that do not parse."""
        return tuple(path for path, found in self.files.items() if found is None)

    def places(self) -> Iterator[Place]:
        """Every symbol, by file and line."""
        for path, found in self.files.items():
            for symbol in () if found is None else found.symbols:
                yield Place(path, symbol)

    def named(self, name: str) -> list[Place]:
        """The definitions of a name: "load", or more of it: "Store.load". All of them: the index knows no types."""
        end = "." + name
        return [at for at in self.places() if at.symbol.qualname == name or at.symbol.qualname.endswith(end)]

    def members(self, place: Place) -> list[tuple[str, Place]]:
        """(class that defines it, member) of a class: its own, then what it inherits from classes of the tree.

        Bases are found by their last name, nearest file first; a member that is defined again hides the inherited.
        """
        found: dict[str, tuple[str, Place]] = {}
        waiting, seen = [place], set[tuple[str, str]]()
        while waiting:
            at = waiting.pop(0)
            key = (at.path, at.symbol.qualname)
            if key in seen:
                continue
            seen.add(key)
            prefix = at.symbol.qualname + "."
            for other in self._around(at.path):
                name = other.symbol.qualname.removeprefix(prefix)
                if other.symbol.qualname.startswith(prefix) and "." not in name:
                    found.setdefault(name, (at.symbol.name, other))
            waiting += [base for name in at.symbol.bases if (base := self._class(name, at.path)) is not None]
        return list(found.values())

    def _around(self, path: str) -> list[Place]:
        """The symbols of a file and, where classes go on in other files, of those of its folder; its own first."""
        folder, suffix = path.rpartition("/")[0], path[path.rfind(".") :]
        beside = [path]
        if LANGUAGE_OF.get(suffix) in _CONTINUED:
            beside += [one for one in self.files if one != path and one.rpartition("/")[0] == folder]
        return [
            Place(one, symbol)
            for one in beside
            if (found := self.files[one]) is not None
            for symbol in found.symbols
        ]

    def _class(self, name: str, near: str) -> Place | None:
        last = name.rpartition(".")[2]
        places = [at for at in self.places() if at.symbol.kind == "class" and at.symbol.name == last]
        return min(places, key=lambda at: (at.path != near, at.path), default=None)

    def uses(self, name: str) -> Iterator[tuple[str, int]]:
        """(file, line) where an identifier stands in code: not in strings, not in comments."""
        for path, found in self.files.items():
            for line in () if found is None else found.uses.get(name, ()):
                yield path, line
