"""What counting gives without a network: the yardsticks beside the numbers of networks.

Each file has the methods for one kind of answers. They know texts, labels and tags, no task and no
family, and give the same result on the same rows. What they take is bounded: see ``rows``.
"""
