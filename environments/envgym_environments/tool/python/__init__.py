"""Maths and data problems, solved with a Python interpreter whose variables persist and whose state forks."""
