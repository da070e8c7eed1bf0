"""Small tokenizers of each kind, trained once on sentences in several scripts."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from plmctl.families.base import get_family
from plmctl.run.configs import TokenizerConfig
from plmctl.tokenization import train as training
from plmctl.tokenization.templates import TokenizerTemplate

TEXTS = [
    "The cat sat on the mat; the cats sat on the mats, and the cat's mat was flat.",
    "Don't stop: we'll see 123 birds in 2024, they've said. It's a naïve café résumé.",
    "中国人民站起来了。中国的首都是北京，人民的生活很好。",
    "Mixed text: 北京abc and 中国人 in one line, 3.14 and x_y_z.",
    "مرحبا بالعالم שלום עולם привет мир",
] * 6


def quiet(title: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """Progress that nobody sees."""
    return nullcontext(lambda done, total: None)


def config_of(algorithm: str, family: str, **settings: object) -> TokenizerConfig:
    data = {"train": ["text.txt"]}
    values = {"run": "tok", "algorithm": algorithm, "family": family, "data": data}
    return TokenizerConfig.model_validate({"vocab_size": 400, **values, **settings})


def template_of(config: TokenizerConfig) -> TokenizerTemplate:
    return get_family(config.family).TOKENIZER(config)


def train(config: TokenizerConfig, texts: Iterable[str]) -> training.TrainedTokenizer:
    return training.train(template_of(config), texts, quiet)


def random_lines(lines: int) -> list[str]:
    """Text of words of a few syllables each."""
    draws = np.random.default_rng(3)
    syllables = np.array([c + v for c in "bdfgklmnprst" for v in "aeiou"])
    words = ["".join(draws.choice(syllables, size)) for size in draws.integers(1, 4, 400)]
    rank = draws.zipf(1.3, (lines, 12)) % len(words)
    return [" ".join(words[n] for n in row) for row in rank.tolist()]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """``saved(algorithm, family)`` is the folder of a trained tokenizer."""
    folders: dict[str, Path] = {}

    def folder(algorithm: str, family: str) -> str:
        if family not in folders:
            trained = train(config_of(algorithm, family), TEXTS)
            folders[family] = tmp_path_factory.mktemp(family)
            trained.tokenizer.save_pretrained(folders[family])
        return str(folders[family])

    return folder
