"""The small project that a machine-learning program stands in: its files by family, and their digest.

The project's own texts; nothing is fetched, and nothing here runs them.
"""

import hashlib
from collections.abc import Mapping
from importlib.resources import files

__all__ = ["FAMILIES", "digest_of_tree", "program", "tree_files"]

FAMILIES = ("tabular", "sequence", "series")


def _text(name: str) -> str:
    return files("envgym_environments.code_repair.kinds.ml").joinpath("texts", f"{name}.txt").read_text()


def program(family: str, which: str) -> str:
    """A family's program: "start", which is weak, or "answer"."""
    return _text(f"{which}_{family}")


def tree_files(package: str) -> Mapping[str, str]:
    """Path -> text of the project of a package ("ml-" and the family). Raises ValueError for another one."""
    family = package.removeprefix("ml-")
    if family not in FAMILIES:
        raise ValueError(
            f"package {package!r} is not built in; these are: {', '.join(f'ml-{one}' for one in FAMILIES)}"
        )
    return {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\nLicense-Expression: MIT\n",
        "mlwork/__init__.py": '"""What a program may use."""\n',
        "mlwork/table.py": _text("table"),
        "tests/test_table.py": _text("test_table"),
    }


def digest_of_tree(package: str) -> str:
    """The sha256 of its files, by which the package is known."""
    total = hashlib.sha256()
    for path, text in sorted(tree_files(package).items()):
        total.update(f"{path}\0{len(text)}\0{text}".encode())
    return total.hexdigest()
