"""Bugs and issues that a language model writes: its code is judged as every operator's, its text is checked."""
