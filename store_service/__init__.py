"""The task store: durable state and lease fencing in Postgres, behind gRPC."""
