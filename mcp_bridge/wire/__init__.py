"""Floor 1: what goes over the wire, read and written. Pure: nothing here awaits, logs or reads a clock."""
