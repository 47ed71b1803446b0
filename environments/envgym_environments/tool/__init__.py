"""Tasks played over tools: typed functions, MCP servers, services, databases, interpreters, simulated users."""
