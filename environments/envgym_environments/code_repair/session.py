"""A pytest session whose beginning is behind it before the process is forked that plays it.

Making a `Config` and registering pytest's own plugins is a fifth of a session of few tests and depends on nothing
of the package, so a warm interpreter has it done once. So it has the fixtures of these plugins, for which pytest
looks at every name in them in every session. The terminal's reporter is never called: what it writes goes nowhere.
Imports the standard library and pytest only: it may have come as source.
"""

import importlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest.config import Config, ConftestImportFailure, default_plugins, get_config
from _pytest.fixtures import FixtureFunctionDefinition, FixtureManager

__all__ = ["make_way", "play"]

for _name in ("unittest", "doctest", "pdb", "difflib", "xml.etree.ElementTree", "pickle", "decimal", "datetime"):
    importlib.import_module(_name)  # what every run needs anyway: a warm interpreter then has it
for _name in default_plugins:
    importlib.import_module(f"_pytest.{_name}")

_COMMON = (
    "argparse", "ast", "asyncio", "base64", "binascii", "bisect", "codecs", "concurrent.futures.thread",
    "dataclasses", "fractions", "gzip", "hashlib", "heapq", "hmac", "html", "html.entities", "importlib.metadata",
    "importlib.resources", "json", "logging", "platform", "queue", "random", "shutil", "socket", "statistics",
    "string", "struct", "subprocess", "tempfile", "textwrap", "threading", "timeit", "tracemalloc", "unicodedata",
    "unittest.mock", "urllib.parse", "uuid", "xml.parsers.expat", "zipfile", "zlib",
)  # fmt: skip
"""What two or more of the packages that tasks are made of, or their tests, import of the standard library.

No patch changes these, and one of them alone (`unittest.mock`, which brings asyncio and ssl) takes as long as a
quarter of a session of five tests.
"""

_NEEDED = frozenset(sys.modules)
if __spec__ is not None:  # a warm interpreter's: who got the source has one run only
    for _name in _COMMON:
        importlib.import_module(_name)
_EARLY = frozenset(sys.modules) - _NEEDED


def make_way(root: str, paths: Iterable[str]) -> None:
    """Forget what was imported early only, where the root, or a file beside or in these paths, has that name."""
    inside = {os.path.join(root, path) for path in paths}
    folders = {root, *(path if os.path.isdir(path) else os.path.dirname(path) for path in inside)}
    meant = {name.removesuffix(".py") for folder in folders if os.path.isdir(folder) for name in os.listdir(folder)}
    if not meant.isdisjoint(_EARLY):
        for name in _EARLY:
            if name.partition(".")[0] in meant:
                sys.modules.pop(name, None)


_LEFT_OUT = (
    "cacheprovider",
    "faulthandler",
    "unraisableexception",
    "threadexception",
    "pastebin",
    "stepwise",
)
"""Plugins of pytest's own that no outcome depends on and that cost time in every run."""

_WITHOUT = [part for name in _LEFT_OUT for part in ("-p", f"no:{name}")]

_BEGUN = get_config(list(_WITHOUT))
"""Of the one session that a process plays; every fork has its own."""


def _fixtures(plugin: ModuleType) -> ModuleType:
    """A module with nothing of a plugin but its fixtures."""
    found = ModuleType(plugin.__name__)
    vars(found).update({name: one for name, one in vars(plugin).items() if type(one) is FixtureFunctionDefinition})
    return found


_HOLDERS = {id(one): _fixtures(one) for one in _BEGUN.pluginmanager.get_plugins() if isinstance(one, ModuleType)}
"""Of the plugins that are registered already: where their fixtures are looked for."""

_registered = FixtureManager.pytest_plugin_registered


def _look(self: FixtureManager, plugin: object, plugin_name: str) -> None:
    """What a session's manager of fixtures does with a plugin."""
    _registered(self, _HOLDERS.get(id(plugin), plugin), plugin_name)


def play(arguments: list[str], recorder: object) -> int:
    """What `pytest.main` does with these arguments and one plugin; the exit code. Once in a process."""
    config, given = _BEGUN, [*_WITHOUT, *arguments]
    config.invocation_params = Config.InvocationParams(args=given, plugins=[recorder], dir=Path.cwd())
    os.environ["PYTEST_VERSION"] = pytest.__version__
    manager = config.pluginmanager
    FixtureManager.pytest_plugin_registered = _look  # type: ignore[method-assign]  # here: importers have sessions too
    try:
        for plugin in (recorder, _Quiet()):
            manager.register(plugin)
        manager.hook.pytest_cmdline_parse(pluginmanager=manager, args=given)
        return int(config.hook.pytest_cmdline_main(config=config))
    except (ConftestImportFailure, pytest.UsageError):
        return int(pytest.ExitCode.USAGE_ERROR)
    finally:
        config._ensure_unconfigure()


class _Quiet:
    """The pytest plugin: takes the reporter's hooks away and leaves what asks for it by name."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """The reporter is there now."""
        reporter = config.pluginmanager.unregister(name="terminalreporter")
        config.pluginmanager.register(_Mute(reporter), "terminalreporter")


class _Mute:
    """The reporter without its hooks; assertions ask it for its writer."""

    def __init__(self, reporter: object) -> None:
        self._reporter = reporter

    def __getattr__(self, name: str) -> Any:
        if name.startswith("pytest_"):
            raise AttributeError(name)
        return getattr(self._reporter, name)
