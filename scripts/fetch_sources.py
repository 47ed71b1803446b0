"""Fetch and unpack every package that code-repair tasks are built from, checked by hash; quick the next time."""

import sys

from envgym_environments.code_repair.sources import packages, source_tree


def main() -> None:
    """Fetch all packages of the recipe, one line per package that was not there yet."""
    for package in packages():
        print(f"sources: {package.slug}", file=sys.stderr, flush=True)
        source_tree(package)


if __name__ == "__main__":
    main()
