"""The loss of n-grams on the rows of a validation."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from plmctl.config.sections import PretrainLogConfig
from plmctl.corpus.store import TokenStore
from plmctl.counting.neighbours import neighbours_of
from plmctl.counting.ngrams import depths_of, ngrams_of
from plmctl.objectives.base import get_objective
from plmctl.run.display import Display, counted_in_words
from plmctl.run.yardsticks import yardsticks
from plmctl.tokenization.load import Vocab
from tests.builders import random_documents

VOCAB = Vocab(120, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5)
TRAIN, VALID = (
    TokenStore.from_lists(random_documents(seed, (6, 20), documents=documents), 120)
    for seed, documents in ((0, 80), (1, 12))
)


def counted(seq_len: int, train: TokenStore = TRAIN, rows: int | None = None, **fields: Any):
    """What is counted for ``clm`` with these options."""
    log = PretrainLogConfig(ngram=fields.pop("ngram", "auto"))
    name, alone = fields.pop("name", "clm"), fields.pop("alone", {"lm": 6.0, "loss": 6.0})
    objective = get_objective(name)(get_objective(name).Config(name=name, **fields))
    phases = (SimpleNamespace(seq_len=seq_len),)
    config = SimpleNamespace(log=log, train=SimpleNamespace(phases=phases))
    prepared: Any = SimpleNamespace(objective=objective, config=config, vocab=VOCAB)
    text: Any = SimpleNamespace(train=train)
    return yardsticks(prepared, text, objective.over(VALID, VOCAB, seq_len, 0), rows, alone)


@pytest.mark.parametrize("separator", ["end_of_text", "none"])
@pytest.mark.parametrize("attention", ["across", "within"])
def test_each_row_begins_without_context(separator: str, attention: str) -> None:
    end = 5 if separator == "end_of_text" else None
    grams, nats = ngrams_of(TRAIN, end, print), []
    starts = VALID.sentences[VALID.documents]
    documents = [VALID.tokens(np.arange(*pair)) for pair in zip(starts, starts[1:], strict=False)]
    stream, first = [], []
    for document in documents:
        first += [True, *[False] * (len(document) - 1 + (end is not None))]
        stream += [*document.tolist(), *([] if end is None else [end])]
    for row in range((len(stream) - 1) // 16):
        ids = np.array(stream[row * 16 : row * 16 + 17])
        begins = ids == end if end is not None else np.zeros(17, bool)
        skipped = np.zeros(17, bool)
        if end is None and attention == "within":
            begins = skipped = np.array(first[row * 16 : row * 16 + 17])
        given = grams.probabilities(ids, depths_of(begins))
        nats += (-np.log(given[1:][~skipped[1:]])).tolist()
    found = counted(16, separator=separator, attention=attention)
    assert found == {"5-gram": {term: pytest.approx(np.mean(nats)) for term in ("lm", "loss")}}


FIELDS: dict[str, dict] = {
    "mlm": {},
    "mlm+nsp": {},
    "mlm+sbo": {"mask_share": 0.4, "random_share": 0.3},
    "mlm of specials": {"name": "mlm", "mask_specials": True, "packing": "full_sentences"},
}


@pytest.mark.parametrize("name", FIELDS)
def test_neighbours_are_those_that_the_network_sees(name: str) -> None:
    fields = {"name": name, **FIELDS[name]}
    alone = {"mlm": 4.0, "nsp": 0.7, "loss": 4.7} if name == "mlm+nsp" else {"mlm": 4.0}
    found = counted(16, alone=alone, **fields)["both neighbours"]
    one = get_objective(fields["name"])
    examples = one(one.Config(**fields)).over(VALID, VOCAB, 16, 0)
    samples = np.arange(len(examples))
    batch = examples.collate(0 * samples, samples)
    ids, every = batch.inputs["input_ids"].numpy(), np.arange(VOCAB.size)
    grams, nats = neighbours_of(TRAIN, VOCAB.size, print), []
    targets, places = batch.targets["mlm"].tolist(), batch.inputs["positions"].tolist()
    seen = [int(ids.ravel()[place]) for place in places]
    shown = [(s, t) for s, t in zip(seen, targets, strict=True) if s != VOCAB.mask]
    share = (sum(s == t for s, t in shown) + 1) / (len(shown) + 2)
    for place, stands, target in zip(places, seen, targets, strict=True):
        if target in (VOCAB.cls, VOCAB.sep):
            nats.append(0.0)
            continue
        row, column = divmod(place, ids.shape[1])
        sides = [
            int(ids[row, at]) if 0 <= at < ids.shape[1] and ids[row, at] not in (0, 2, 3, 4) else -1
            for at in (column - 1, column + 1)
        ]
        before, after = (np.full(VOCAB.size, side) for side in sides)
        given = grams.probabilities(before, every, after)
        if stands != VOCAB.mask:  # Bayes' rule
            given = given * (share * (every == stands) + (1 - share) / VOCAB.size)
            given = given / given.sum()
        nats.append(-np.log(given[target]))
    assert found["mlm"] == pytest.approx(np.mean(nats))
    if name == "mlm+nsp":
        assert found == {"mlm": found["mlm"], "nsp": 0.7, "loss": pytest.approx(found["mlm"] + 0.7)}
    else:
        assert list(found) == ["mlm"]


def test_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert counted(16, ngram="none") == {}
    assert counted(16, name="deshuffling") == {}
    assert not capsys.readouterr().err
    assert counted(16, train=TokenStore.from_lists([[[6, 7]]], 120)) == {}
    assert "no 5-gram beside the loss: the training text has only 2 tok" in capsys.readouterr().err


def test_what_is_passed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    levels = {"token frequencies alone": {"lm": 6.0, "loss": 6.0}, "5-gram": {"loss": 4.5}}
    assert counted_in_words(levels) == "6.000 = token frequencies alone, 4.500 = 5-gram"
    with Display("title", 10, quiet=False, counted=levels) as display:
        display.begin(0)
        for loss in (6.5, 5.0, 4.25):
            display.log({"step": 1, "valid/loss": loss})
    _, _, *lines = capsys.readouterr().err.splitlines()
    assert [line.partition("  (")[2] for line in lines] == [
        "6.000 = token frequencies alone)",
        "6.000 = token frequencies alone)",
        "below 4.500 = 5-gram)",
    ]


def test_each_objective_of_a_mixture_has_its_own() -> None:
    """The same losses as of each alone, and their mean by the shares."""
    of = [{"name": "clm", "weight": 3}, {"name": "mntp", "rate": 0.3}]
    alone = {"clm/lm": 6.0, "mntp/lm": 6.0, "loss": 6.0}
    ((name, both),) = counted(24, name="mixture", of=of, alone=alone).items()
    assert name == "5-gram and both neighbours"
    grams = counted(24)["5-gram"]["lm"]
    neighbours = counted(24, name="mntp", rate=0.3)["both neighbours"]["lm"]
    assert both["clm/lm"] == grams
    assert both["mntp/lm"] == neighbours
    assert both["loss"] == pytest.approx(0.75 * grams + 0.25 * neighbours)
