"""Environments in which an agent works with tools: databases, interpreters, services, simulated users."""
