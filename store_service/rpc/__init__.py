"""The wire: messages in, messages out. No SQL and no decisions; every field is read and bounded here, once."""
