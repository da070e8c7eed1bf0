"""Speaking to the user: notes on stderr, results on stdout."""
