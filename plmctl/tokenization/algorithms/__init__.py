"""One file per algorithm: from counted words to a vocabulary."""
