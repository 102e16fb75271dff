"""The bridge: MCP over HTTP or standard input and output on one side, the task store on the other. See README.md."""
