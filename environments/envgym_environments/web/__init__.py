"""Worlds that are web pages, played in a browser that is found by name."""
