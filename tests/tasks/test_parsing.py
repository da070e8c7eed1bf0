"""Trees, the biaffine head, the loss and the answers of parsing, without a command."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from transformers import BertConfig

from plmctl.arrays import IGNORE
from plmctl.corpus.labelled import Row, read_rows
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.scoring import answers
from plmctl.models.load import OwnHeadConfig
from plmctl.models.network import Network
from plmctl.tasks import parsing
from plmctl.tasks._trees import best_tree, problem_of
from plmctl.tasks._words import check_word_head
from tests.tasks.conftest import Folder, load_head, rows_of

CPU = torch.device("cpu")
SMALL = {"arc_size": 16, "relation_size": 8, "head_dropout": 0.0}
CONLLU = """# sent_id = 1
# text = Du du.
1-2\tDu\t_\t_\t_\t_\t_\t_\t_\t_
1\tde\tde\tADP\t_\t_\t3\tcase\t_\t_
2\tle\tle\tDET\t_\t_\t3\tdet\t_\t_
3\tdu\tdu\tNOUN\t_\tGender=Masc\t0\troot\t_\tSpaceAfter=No
3.1\tis\tbe\tVERB\t_\t_\t_\t_\t0:root\t_
4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

"""
ROWS = rows_of(
    {"tokens": ["ab", "c", "d"], "head": [2, 0, 2], "deprel": ["nsubj", "root", "obl:tmod"]},
    {"tokens": ["d"], "head": "0", "deprel": "root"},
    {"tokens": list("abcdefgh"), "head": [0, 1, 2, 3, 4, 5, 6, 7], "deprel": ["root", *"xxxxxxx"]},
)


# --- Trees ---


def all_trees(words: int) -> list[tuple[int, ...]]:
    heads = product(range(words + 1), repeat=words)
    return [one for one in heads if problem_of(one) is None]


def reaches_root(heads: tuple[int, ...], word: int) -> bool:
    for _ in heads:
        word = heads[word - 1]
        if word == 0:
            return True
    return False


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_trees_are_what_reaches_one_root(words: int) -> None:
    for heads in product(range(words + 1), repeat=words):
        is_tree = heads.count(0) == 1 and all(reaches_root(heads, n + 1) for n in range(words))
        assert (problem_of(heads) is None) == is_tree, heads
    assert len(all_trees(words)) == words ** (words - 1)  # rooted labelled trees (Cayley)


@given(
    st.integers(1, 5).flatmap(
        lambda n: arrays(np.float64, (n, n + 1), elements=st.floats(-50, 50, width=16))
    )
)
def test_the_best_tree_is_that_of_brute_force(scores: np.ndarray) -> None:
    words = np.arange(len(scores))

    def total(heads: Any) -> float:
        return float(scores[words, np.asarray(heads)].sum())

    found = best_tree(scores)
    assert problem_of(found.tolist()) is None
    assert total(found) == pytest.approx(max(map(total, all_trees(len(scores)))), abs=1e-6)


def test_long_sentences_are_decoded_too() -> None:
    scores = np.random.default_rng(1).normal(size=(300, 301)).astype(np.float32)
    assert problem_of(best_tree(scores).tolist()) is None
    ring = np.full((300, 301), -5.0)  # one cycle through all words
    ring[np.arange(300), np.roll(np.arange(1, 301), 1)] = 5
    assert problem_of(best_tree(ring).tolist()) is None


# --- Rows ---


def task(**fields: Any) -> parsing.Parsing:
    return parsing.Parsing(parsing.Config(**{**SMALL, **fields}))


def make(model: str, rows: list[Row], use: Any = "train", length: int = 32, **fields: Any) -> Any:
    of = task(**fields)
    labels = of.labels(ROWS)
    return of.make(rows, of.tokenizer(model), labels, length, use)


def loaded(model: str, labels: tuple[str, ...], **fields: Any) -> Network:
    torch.manual_seed(0)
    network = load_head(task(**fields), model, labels, new_heads=print)
    return Network(network, parsing.Parsing.forward).eval()


def test_ranges_and_empty_nodes_are_no_words(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "a.conllu").write_text(CONLLU, encoding="utf-8")
    rows = read_rows([str(tmp_path / "a.conllu")])
    (row,) = rows
    assert task().right_answer(row) == "de/case<du le/det<du du/root ./punct<du"
    examples = make(folder("bert"), rows, "score")
    assert examples.references() == [["3 case", "3 det", "0 root", "3 punct"]]
    assert "4 words have a relation" not in str(examples.notices)
    assert "3 words have a relation of no training row" in examples.notices[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": ["_", "0", "2"]}, "the head '_' of word 1, 'ab', is none"),
        ({"deprel": ["nsubj", "root", "_"]}, "the relation '_' of word 3"),
        ({"head": [2, 0, 0]}, "2 words hang on ROOT"),
        ({"head": [0, 3, 2]}, "word 2 hangs on itself"),
        ({"head": [2, 0, 9]}, "the head of word 3 is 9"),
        ({"head": [2, 0]}, "3 words in 'tokens', but 2 in 'head'"),
        ({"head": None}, "no column 'head': these rows have no trees"),
    ],
)
def test_what_is_no_tree_is_refused(changes: dict, message: str) -> None:
    values = {key: value for key, value in (ROWS[0].values | changes).items() if value is not None}
    with pytest.raises(DataError, match=r"a\.conllu:7: ") as error:
        task().labels([Row(values, "a.conllu:7")])
    assert message in error.value.message
    assert error.value.hint


def test_a_network_that_writes_text_is_refused(tmp_path: Path) -> None:
    from transformers import T5Config

    T5Config(d_model=8, num_layers=1, num_heads=1).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="a t5 has no head for parsing"):
        task().check(str(tmp_path), T5Config())


def test_tagging_refuses_a_parser(tmp_path: Path) -> None:
    """Its folder is an encoder with a head that tagging does not know."""
    OwnHeadConfig(encoder=BertConfig().to_dict()).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="a head of another task, and no tagging") as error:
        check_word_head(str(tmp_path), "tagging")
    assert "from which it was finetuned" in str(error.value)


@pytest.mark.parametrize(
    ("piece", "place"), [("first", (1, 2)), ("last", (3, 4)), ("mean", (1, 4))]
)
def test_what_stands_for_a_word(piece: str, place: tuple[int, int], folder: Folder) -> None:
    examples = make(folder("roberta"), ROWS[:1], piece=piece)
    batch = examples.collate(np.zeros(1, int), np.array([0]))
    pieces = ["<s>", "Ġ", "a", "b", "Ġ", "c", "Ġ", "d", "</s>"]
    assert batch.inputs["input_ids"].shape == (1, len(pieces))
    assert (batch.inputs["starts"][0, 0], batch.inputs["ends"][0, 0]) == place
    assert batch.targets["arc"].tolist() == [[2, 0, 2]]
    assert batch.counts() == {"arc": 3, "relation": 3}


def test_a_long_sentence_is_read_in_part_and_scored_whole(folder: Folder) -> None:
    examples = make(folder("bert"), ROWS, "score", length=8)
    assert examples.cut == 1
    assert examples.lengths().max() <= 8
    batch = examples.collate(np.zeros(1, int), np.array([2]))
    assert batch.targets["arc"].tolist() == [[0, 1, 2, 3, 4, 5]]
    given = answers(loaded(folder("bert"), examples.labels), examples, CPU)
    assert given[2]["prediction"][6:] == [6, 7]
    assert given[2]["relations"][6:] == ["dep", "dep"]
    assert examples.compute_metrics(given)["words"] == 12
    back = [row.values | {"head": [8, 1, 2, 3, 4, 5, 6, 0]} for row in ROWS[2:]]
    outside = make(folder("bert"), rows_of(*back), "train", length=8)
    targets = outside.collate(np.zeros(1, int), np.array([0])).targets
    assert targets["arc"][0, 0] == targets["relation"][0, 0] == IGNORE


# --- The network ---


@pytest.mark.parametrize("family", ["bert", "spanbert", "roberta", "albert", "distilbert", "gpt2"])
@pytest.mark.parametrize("layers", ["last", "mix"])
def test_batches_change_nothing(family: str, layers: str, folder: Folder) -> None:
    examples = make(folder(family), ROWS, layers=layers)
    network = loaded(folder(family), examples.labels, layers=layers)
    zeros = np.zeros(1, int)
    with torch.inference_mode():
        whole = examples.score(network, examples.collate(np.zeros(3, int), np.arange(3)))
        alone = [examples.score(network, examples.collate(zeros, np.array([n]))) for n in range(3)]
    for name, value in whole.items():
        assert float(value) == pytest.approx(sum(float(one[name]) for one in alone), rel=1e-4), name


def test_the_loss_is_that_of_scores_written_out(folder: Folder) -> None:
    """Word by word, with loops in the place of products of tensors."""
    examples = make(folder("roberta"), ROWS[:1])
    network = loaded(folder("roberta"), examples.labels)
    batch = examples.collate(np.zeros(1, int), np.array([0]))
    model: Any = network.model
    head = model.head
    with torch.inference_mode():
        sums = examples.loss(network, batch)
        states = model.encoder(batch.inputs["input_ids"]).last_hidden_state[0]
        words = [states[1:4].mean(0), states[4:6].mean(0), states[6:8].mean(0)]
        heads = [head.root.weight[0], *words]
        arcs = relations = 0.0
        for number, (word, right) in enumerate(zip(words, (2, 0, 2), strict=True)):
            of, scores = head.arc_dependent(word), []
            for place, other in enumerate(heads):
                to = head.arc_head(other)
                score = (head.arc(of) * to).sum() / 4 + head.arc_bias(to).squeeze()
                scores.append(-1e9 if place == number + 1 else float(score))
            arcs -= float(torch.tensor(scores).log_softmax(0)[right])
            of, to = head.relation_dependent(word), head.relation_head(heads[right])
            bilinear = head.relation(of).view(-1, 8) @ to / 8**0.5
            logits = bilinear + head.of_dependent(of) + head.of_head(to)
            label = examples.labels.index(ROWS[0].values["deprel"][number])
            relations -= float(logits.log_softmax(0)[label])
    assert float(sums["arc"]) == pytest.approx(arcs, rel=1e-4)
    assert float(sums["relation"]) == pytest.approx(relations, rel=1e-4)


def test_the_best_relation_is_that_of_the_head_that_is_chosen(folder: Folder) -> None:
    examples = make(folder("bert"), ROWS, "predict")
    labelled = make(folder("bert"), ROWS)
    network = loaded(folder("bert"), examples.labels)
    given = answers(network, examples, CPU)
    batch = labelled.collate(np.zeros(3, int), np.arange(3))
    for place, answer in enumerate(given):
        assert problem_of(answer["prediction"]) is None
        heads = torch.tensor(answer["prediction"])
        batch.inputs["heads"][place, : len(heads)] = heads
    with torch.inference_mode():
        best = network(**batch.inputs)["relation"].argmax(-1)
    for row, answer in zip(best, given, strict=True):
        named = [examples.labels[n] for n in row[: len(answer["tokens"])]]
        assert named == answer["relations"]
    with pytest.raises(DataError, match="no trees"):
        examples.compute_metrics(given)


def test_a_saved_folder_gives_the_same(folder: Folder, tmp_path: Path) -> None:
    from plmctl.tasks.base import Finetuned, read_finetuned

    examples = make(folder("bert"), ROWS, layers="mix")
    network = loaded(folder("bert"), examples.labels, layers="mix")
    of = task(layers="mix")
    network.model.save_pretrained(tmp_path)
    of.tokenizer(folder("bert")).save_pretrained(tmp_path)
    Finetuned(of, examples.labels, 32).write(tmp_path)
    again = read_finetuned(str(tmp_path))
    opened = Network(load_head(again.task, str(tmp_path), again.labels), parsing.Parsing.forward)
    assert answers(opened.eval(), examples, CPU) == answers(network, examples, CPU)


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_the_head_learns_at_a_rate_of_its_own(decay: float, folder: Folder) -> None:
    from plmctl.commands.finetune import set_layer_rates

    model: Any = loaded(folder("gpt2"), ("a", "b")).model
    optimizer = torch.optim.AdamW(model.parameters())
    set_layer_rates(optimizer, model, decay, 10.0)
    by_id = {id(p): group["scale"] for group in optimizer.param_groups for p in group["params"]}
    scales = {name: by_id[id(p)] for name, p in model.named_parameters()}
    assert {scale for name, scale in scales.items() if name.startswith("head.")} == {10.0}
    assert scales["encoder.ln_f.weight"] == 1
    assert scales["encoder.wte.weight"] == decay ** (model.encoder.config.n_layer + 1)


# --- Real treebanks ---


@pytest.mark.parametrize(
    ("file", "sentences", "words"),
    [
        ("en_ewt/test.conllu", 2077, 25_094),
        ("cy_ccg/test.conllu", 953, 17_026),
        ("mt_mudt/test.conllu", 518, 11_073),
        ("zh_gsdsimp/test.conllu", 500, 12_012),
    ],
)
def test_treebanks_are_read_whole(file: str, sentences: int, words: int, shared_data: Path) -> None:
    path = shared_data / "ud" / file
    if not path.is_file():
        pytest.skip("needs the treebanks of data/ud")
    rows = read_rows([str(path)])
    assert len(rows) == sentences
    assert sum(len(row.values["tokens"]) for row in rows) == words
    assert "root" in task().labels(rows)
