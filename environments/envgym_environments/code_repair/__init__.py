"""Repair a seeded bug in a real package until its tests pass."""
