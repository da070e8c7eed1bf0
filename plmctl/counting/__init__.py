"""What counting gives without a network: the yardsticks beside the numbers of networks."""
