"""One file an objective: how examples are made, and what is asked of the network."""
