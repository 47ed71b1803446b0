"""Environments that are played in pages of a browser: sites of our own, and MiniWoB++."""
