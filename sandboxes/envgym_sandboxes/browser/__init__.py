"""Chromium as a browser of many episodes: each has a context, behind a proxy of its own; there is no other network.

It is driven over its debugging pipe, without a driver process between: `process` starts it and ends it, `wire`
speaks with it, `gate` is the way out of a context, `context` one episode's page, `tab` one of its tabs.
"""

from envgym_sandboxes.browser.chromium import open_chromium

__all__ = ["open_chromium"]
