"""Sandboxes on another host, driven through the same contract: a server beside any backend, and its client."""

from envgym_sandboxes.remote.backend import RemoteBackend
from envgym_sandboxes.remote.server import SandboxServer, ServerBounds

__all__ = ["RemoteBackend", "SandboxServer", "ServerBounds"]
