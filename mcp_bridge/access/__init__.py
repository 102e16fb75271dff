"""Floor 2: who calls, which tools that means, and how often."""
