"""What the algorithms that merge pairs have in common."""

from collections.abc import Callable

from plmctl.tokenization.algorithms import Learned, Progress, Task
from plmctl.tokenization.merging import Words, learn
from plmctl.tokenization.symbols import check_fits


def learn_vocabulary(
    task: Task, words: Words, join: Callable[[str, str], str], progress: Progress
) -> Learned:
    """The vocabulary and merges of words that are cut into symbols.

    Args:
        task: What is to be learnt.
        words: Its words.
        join: The text of two tokens as one.
        progress: Told of the tokens that there are and of all.

    Raises:
        ConfigError: The vocabulary is too small for the symbols.
    """
    size = task.size - len(task.first) - len(task.last)
    check_fits(len(words.tokens), task.size, len(task.first) + len(task.last))
    merges = learn(
        words, size, min_frequency=task.config.min_frequency, join=join, progress=progress
    )
    tokens = [*task.first, *merges.tokens, *task.last]
    vocab = {token: number for number, token in enumerate(tokens)}
    pairs = [(merges.tokens[left], merges.tokens[right]) for left, right in merges.pairs]
    return Learned({"vocab": vocab, "merges": pairs}, len(vocab))
