"""One file per objective: how examples are made, and the loss of the network on them."""
