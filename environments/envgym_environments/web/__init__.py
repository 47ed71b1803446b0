"""Worlds of the web: what is asked of an agent with a page in front of it."""
