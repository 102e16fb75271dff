"""The bridge: MCP over Streamable HTTP on one side, the task store on the other. See README.md."""
