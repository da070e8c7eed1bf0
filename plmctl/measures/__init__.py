"""One file per measure: its config, and the metrics that it gives for a finished model."""
