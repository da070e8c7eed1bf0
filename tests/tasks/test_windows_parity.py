"""The windows of BERT's own code for 200 questions, and perfect logits on them."""

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizer

from plmctl.corpus.labelled import read_rows
from plmctl.tasks import question_answering as task
from plmctl.tasks.question_answering import QuestionAnsweringExamples


@pytest.fixture(scope="module")
def vocabulary(shared_data: Path) -> BertTokenizer:
    path = shared_data / "parity" / "objectives" / "vocab.txt"
    lines = path.read_text("utf-8").splitlines()
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(lines)})


@pytest.fixture(scope="module")
def expected(shared_data: Path) -> list[dict]:
    return json.loads((shared_data / "parity" / "qa_windows" / "squad_windows.json").read_text())


def make_examples(
    shared_data: Path, vocabulary: BertTokenizer, **options: object
) -> QuestionAnsweringExamples:
    rows = read_rows([str(shared_data / "parity" / "qa_windows" / "squad_synth.json")])
    return task.QuestionAnswering(task.Config(**options)).make(rows, vocabulary, (), 384, "train")


def test_windows_are_those_of_the_published_code(shared_data, vocabulary, expected) -> None:
    examples = make_examples(shared_data, vocabulary)
    windows = examples.windows
    assert not examples.dropped
    assert len(examples) == len(expected) == 422
    for number, window in enumerate(expected):
        ids, segments = windows.join(number)
        assert windows.row[number] == window["ex"]
        assert list(ids) == window["ids"][: len(ids)]
        assert list(segments) == window["seg"][: len(ids)]
        assert not any(window["ids"][len(ids) :])
        assert windows.labels[number].tolist() == [window["s"], window["e"]]
    assert (windows.labels == 0).all(1).sum() == 125


@pytest.mark.parametrize("version2", [False, True])
def test_perfect_logits_give_every_answer(shared_data, vocabulary, version2: bool) -> None:
    examples = make_examples(shared_data, vocabulary, version2=version2)
    logits = {"start": [], "end": []}
    for number, label in enumerate(examples.windows.labels):
        for part, cell in zip(("start", "end"), label, strict=True):
            row = np.zeros(int(examples.lengths()[number]))
            row[cell] = 10
            logits[part].append(row)
    results = examples.compute_metrics(examples.answers(logits))
    assert results["exact_match"] == 100
    # Nothing is left of one answer when it is normalized, which F1 punishes in 1.1.
    assert results["f1"] == (100 if version2 else 99.5)
    assert results["total"] == 200
