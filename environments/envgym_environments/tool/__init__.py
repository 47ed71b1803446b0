"""Tasks played over tools: typed functions, MCP servers, OpenAPI services."""
"""Environments in which an agent works with tools: databases, interpreters, services, simulated users."""
