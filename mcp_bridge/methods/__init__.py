"""Floor 3: one function for each method of MCP."""
