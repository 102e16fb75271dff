"""SQL and rows, and nothing else: no rule is decided here. The only importer of asyncpg."""
