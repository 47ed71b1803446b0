"""Tasks played over tools: typed functions, MCP servers, OpenAPI services."""
