"""Sandboxes in containers of a Docker engine: warm containers, into which workspaces are mounted from the host."""
