"""Buffers."""
