"""What operators do from a command line, as clients of the store's API."""
