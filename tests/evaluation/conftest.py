from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.evaluation.models import make_folder, tiny_bert


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The model folder of a family, made when it is first asked for."""
    root = tmp_path_factory.mktemp("models")
    return cache(lambda family: make_folder(root, family))


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, whose tokenizer cuts words into pieces."""
    return tiny_bert(tmp_path_factory.mktemp("encoder") / "bert")
