"""Grounding and action prediction: one screenshot, one question, one action, graded by boxes that are known."""
