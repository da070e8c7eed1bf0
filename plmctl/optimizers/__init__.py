"""One file an optimizer: its ``Config`` and ``make(config, network, fused=...)``."""
