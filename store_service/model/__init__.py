"""What a task is and what may happen to it: pure values and rules. Nothing here waits, logs or reads a clock."""
