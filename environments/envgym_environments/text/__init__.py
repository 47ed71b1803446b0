"""Environments of text alone, without a sandbox."""
