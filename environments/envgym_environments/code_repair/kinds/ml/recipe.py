"""The built-in packages that machine-learning tasks are made of; a family is wholly in one split."""

from envgym_environments.code_repair.kinds.ml.tree import FAMILIES, digest_of_tree
from envgym_environments.code_repair.sources import Package

__all__ = ["ml_packages"]


def ml_packages() -> tuple[Package, ...]:
    """One for each family; the last is held out."""
    return tuple(
        Package(
            name=f"ml-{family}",
            version="1",
            sha256=digest_of_tree(f"ml-{family}"),
            package="mlwork",
            tests=("tests/test_*.py",),
            licence="MIT",
            split="heldout" if family == FAMILIES[-1] else "train",
            origin="builtin",
        )
        for family in FAMILIES
    )
