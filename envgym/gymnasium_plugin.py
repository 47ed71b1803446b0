"""Gymnasium knows our ids as soon as it is imported: names only, nothing behind them is loaded.

Gymnasium loads no plugins by entry point any more (since 1.0), and asks for an import of the package first.
``envgym_gymnasium.pth`` in the wheel calls `watch` when Python starts; it places a finder that waits for
``gymnasium.envs``, registers one id per environment name right after it, and then removes itself. Where
site files are not read (``python -S``, ``pip install --target``), ``import envgym.as_gymnasium`` does the same.
This module must stay cheap to import: it runs at the start of every interpreter.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder

__all__ = ["announce", "gymnasium_id", "register_all", "watch"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import Any

_announced: set[str] = set()


def gymnasium_id(name: str) -> str:
    """The Gymnasium id of an environment: "code-repair" -> "envgym/CodeRepair-v0"."""
    return "envgym/" + "".join(part[:1].upper() + part[1:] for part in name.split("-")) + "-v0"


def announce(name: str) -> None:
    """Let Gymnasium know an environment that was registered at run time, now or when it is imported."""
    _announced.add(name)
    if "gymnasium.envs" in sys.modules:
        _register([name])


def register_all() -> None:
    """Register every announced name and every entry point of the group ``envgym.environments``."""
    from importlib.metadata import entry_points  # expensive, and most interpreters never get here

    _register(sorted({*_announced, *(entry.name for entry in entry_points(group="envgym.environments"))}))


def _register(names: Sequence[str]) -> None:
    from gymnasium.envs.registration import register, registry  # only once Gymnasium is there

    for name in names:
        if gymnasium_id(name) not in registry:
            register(
                gymnasium_id(name), "envgym.as_gymnasium:AsGymnasium", order_enforce=True, kwargs={"name": name}
            )


def watch() -> None:
    """Register all names once Gymnasium is imported (now, if it is already); idempotent."""
    if "gymnasium.envs" in sys.modules:
        register_all()
    elif not any(isinstance(finder, _Watch) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch())


class _Watch:
    """A finder that only ever answers for ``gymnasium.envs``, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "gymnasium.envs":
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)  # type: ignore[assignment]  # duck-typed as loaders are
        return spec


class _ThenRegister:
    """A loader that loads as the real one does, and then registers our names."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        register_all()
