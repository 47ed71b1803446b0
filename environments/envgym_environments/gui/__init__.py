"""Worlds that are seen on a screen."""
