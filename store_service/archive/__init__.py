"""Where the proof of what was removed is kept: ordered batches, each written once."""
