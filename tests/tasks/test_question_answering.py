"""Rows to windows to answers, with tokenizers of each family and tiny networks."""

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AlbertTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    BertTokenizer,
    GPT2Tokenizer,
    OpenAIGPTConfig,
    RobertaTokenizer,
    T5Config,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode

from plmctl.corpus.labelled import Row, read_rows
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.scoring import answers
from plmctl.models.network import Network
from plmctl.tasks import question_answering as task
from plmctl.tasks.base import read_finetuned
from tests.tasks.conftest import load_head, tokenizer_of

CPU = torch.device("cpu")
LETTERS = string.ascii_lowercase + string.digits + string.punctuation
CONTEXT = (
    "Ünder the Elbe (1895-1943),\n a river runs; Emil  Fritz saw 3 boats. 由韩国Nexon开发。 " * 3
)


def bert() -> BertTokenizer:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "river", "the", *LETTERS]
    pieces += [f"##{letter}" for letter in LETTERS] + list("由韩国开发。")
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})


def byte_level(cls: Any, *specials: str) -> Any:
    pieces = [*specials, *bytes_to_unicode().values(), "Ġr", "ri"]
    return cls(vocab={p: n for n, p in enumerate(pieces)}, merges=[("Ġ", "r"), ("r", "i")])


def albert() -> AlbertTokenizer:
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", "▁river", *LETTERS]
    pieces += list("由韩国开发。")
    return AlbertTokenizer(vocab=[(piece, -float(len(piece) < 3)) for piece in pieces])


TOKENIZERS = {
    "bert": bert,
    "albert": albert,
    "roberta": lambda: byte_level(RobertaTokenizer, "<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "gpt2": lambda: byte_level(GPT2Tokenizer, "<|endoftext|>"),
}


def row(answer: str | None, question: str = "who?", at: int | None = None) -> Row:
    texts = [] if answer is None else [answer]
    starts = [CONTEXT.index(text) if at is None else at for text in texts]
    answers = {"text": texts, "answer_start": starts}
    values = {"id": "q", "context": CONTEXT, "question": question, "answers": answers}
    return Row(values, "a.jsonl:1")


def make_examples(
    rows: list[Row], use: str = "train", family: str = "bert", **options: Any
) -> task.QuestionAnsweringExamples:
    options = {"doc_stride": 20, "max_answer_length": 60, **options}
    length = options.pop("max_length", 80)
    tokenizer = TOKENIZERS[family]()
    return task.QuestionAnswering(task.Config(**options)).make(rows, tokenizer, (), length, use)


def perfect(examples: task.QuestionAnsweringExamples) -> dict[str, list[Any]]:
    logits: dict[str, list[Any]] = {"start": [], "end": []}
    for number, label in enumerate(examples.windows.labels):
        for part, cell in zip(("start", "end"), label, strict=True):
            logits[part].append(10.0 * (np.arange(int(examples.lengths()[number])) == cell))
    return logits


@pytest.mark.parametrize("family", TOKENIZERS)
@pytest.mark.parametrize(
    "answer", ["Elbe", "1895", "a river runs", "Emil  Fritz", "Ünder", "Nexon", "韩国", "3 boats"]
)
def test_perfect_logits_give_the_answer_as_it_is_written(family: str, answer: str) -> None:
    examples = make_examples([row(answer)], family=family)
    assert len(examples) > 1
    assert (examples.windows.labels == 0).all(1).any()  # windows without it point at cell 0
    (answered,) = examples.answers(perfect(examples))
    assert answered["prediction"] == answer
    assert answered["start"] == CONTEXT.index(answer)
    assert examples.compute_metrics([answered])["exact_match"] == 100
    chances = [one["probability"] for one in answered["n_best"]]
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) == pytest.approx(1)
    assert len({one["text"] for one in answered["n_best"]}) == len(chances)


def test_inputs_have_the_special_tokens_of_the_family() -> None:
    for family, before, between, after in (
        ("bert", [2], [3], [3]),
        ("albert", [2], [3], [3]),
        ("roberta", [0], [2, 2], [2]),
        ("gpt2", [0], [0], [0]),
    ):
        windows = make_examples([row("Elbe")], family=family).windows
        ids, question = list(windows.join(0)[0]), windows.questions[0].tolist()
        size = int(windows.size[0])
        start = windows.offset(0)
        assert ids[:start] == [*before, *question, *between]
        assert ids[start:-1] == windows.contexts[0].ids[:size].tolist()
        assert ids[-1:] == after
        assert len(ids) == 80


def test_a_long_question_loses_its_end_and_is_counted() -> None:
    examples = make_examples([row("Elbe", question="who " * 40)], max_query_length=8)
    assert list(examples.windows.join(0)[0][1:9]) == examples.windows.questions[0].tolist()
    assert len(examples.windows.questions[0]) == 8
    assert examples.cut == 1


def test_rows_that_cannot_be_learned_from_are_reported_and_kept_in_scoring() -> None:
    rows = [row("Elbe"), row("Elbe", at=3), row("Donau", at=3), row(None)]
    examples = make_examples(rows)
    assert len(examples.windows.ids) == 1
    off, nowhere, none = examples.dropped
    at = CONTEXT.index("Elbe")
    assert off == f"a.jsonl:1: q: answer 'Elbe' is not at 3, where 'er t' is; it is at {at}"
    assert nowhere.endswith("it is nowhere in the context")
    assert "no answer, and not `task.version2: true`" in none
    scored = make_examples(rows, "score")
    assert not scored.dropped
    assert len(scored.windows.ids) == 4
    assert (scored.windows.labels == -100).any()
    assert scored.notices[0].startswith("1 of 4 rows have no answer, and are scored")
    assert not make_examples(rows, "score", version2=True).notices
    assert len(make_examples(rows, version2=True).windows.ids) == 2


def test_wrong_rows_are_refused_with_their_place() -> None:
    values = dict(row("Elbe").values)
    for change, words in (
        ({"answers": "Elbe"}, "no answers in SQuAD's form"),
        ({"answers": {"text": ["Elbe"], "answer_start": []}}, "no answers in SQuAD's form"),
        ({"context": None}, "column 'context' is null"),
    ):
        with pytest.raises(DataError, match=f"a.jsonl:1.*{words}"):
            make_examples([Row(values | change, "a.jsonl:1")])
    with pytest.raises(DataError, match="no training row can be learned from"):
        make_examples([row("Elbe", at=1)])
    with pytest.raises(ConfigError, match="no room for a context"):
        make_examples([row("Elbe", question="who " * 40)], max_length=32)


def test_both_forms_of_answers_are_read() -> None:
    plain = row("Elbe")
    listed = dict(plain.values) | {
        "answers": [{"text": "Elbe", "answer_start": CONTEXT.index("Elbe")}]
    }
    first, second = (make_examples([one]) for one in (plain, Row(listed, "x")))
    assert (first.windows.labels == second.windows.labels).all()


def test_an_empty_context_has_no_answer() -> None:
    empty = Row({"context": "", "question": "who?"}, "x")
    examples = make_examples([empty], "predict", version2=True)
    length = int(examples.lengths()[0])
    logits = {part: [np.ones(length)] for part in ("start", "end")}
    (answered,) = examples.answers(logits)
    assert answered["prediction"] == ""
    assert answered["id"] == "1"


def test_the_null_score_is_the_least_of_the_windows_and_the_threshold_is_tuned() -> None:
    rows = [row("Elbe"), row(None), row(None)]
    examples = make_examples(rows, "score", version2=True)
    logits = perfect(examples)
    for number in np.flatnonzero(examples.windows.row == 1):
        for part in ("start", "end"):  # sure of something, but less than of no answer
            logits[part][number][examples.windows.offset(number) + 1] = 8
    first, second, third = examples.answers(logits)
    # In the window with the answer cell 0 has 0 + 0, and the answer 20.
    assert first["null_difference"] == -20
    assert second["null_difference"] == 20 - 16
    assert [one["prediction"] for one in (first, second, third)] == ["Elbe", "", ""]
    assert "" in {one["text"] for one in first["n_best"]}
    results = examples.compute_metrics([first, second, third])
    assert (results["f1"], results["HasAns_f1"], results["NoAns_f1"]) == (100, 100, 100)
    assert results["null_threshold"] == results["best_f1_threshold"] == -20
    settled = task.QuestionAnswering(examples.config).with_tuned_values(results)
    assert settled.null_threshold == -20
    loose = make_examples(rows, "predict", version2=True, null_threshold=30)
    assert [one["prediction"] != "" for one in loose.answers(logits)] == [True] * 3


def test_only_where_a_piece_has_most_context_may_an_answer_start() -> None:
    examples = make_examples([row("Elbe")])
    logits = {part: [np.zeros(80) for _ in range(len(examples))] for part in ("start", "end")}
    last = examples.windows.offset(0) + int(examples.windows.size[0]) - 1
    for part in ("start", "end"):
        logits[part][0][last] = 50  # the end of the first window: the second has more around it
    (answered,) = examples.answers(logits)
    assert answered["n_best"][0]["probability"] < 0.5


def test_answers_are_no_longer_than_configured() -> None:
    examples = make_examples([row("a river runs")], max_answer_length=4)
    (answered,) = examples.answers(perfect(examples))
    assert answered["prediction"] != "a river runs"


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    return Network(BertForQuestionAnswering(config).eval(), task.QuestionAnswering.forward)


def test_the_loss_is_transformers_own_and_no_batch_changes_it(network: Network) -> None:
    examples = make_examples([row("Elbe"), row("3 boats", question="how many?")])
    whole = np.arange(len(examples))
    batch = examples.collate(whole * 0, whole)
    sums = examples.loss(network, batch)
    assert examples.weights == {"start": 0.5, "end": 0.5}
    alone = [examples.collate(one * 0, one) for one in np.split(whole, len(whole))]
    widths = {one.inputs["input_ids"].shape[1] for one in alone}
    assert len(widths) > 1
    theirs = []
    for one in alone:
        inputs = {k: v for k, v in one.inputs.items() if k != "allowed"}
        start, end = one.targets["start"], one.targets["end"]
        out = network.model(**inputs, start_positions=start, end_positions=end)
        theirs.append(out.loss)
    counts = batch.counts()
    ours = sum(examples.weights[part] * sums[part] / counts[part] for part in examples.loss_terms)
    torch.testing.assert_close(ours, torch.stack(theirs).mean())
    for part in examples.loss_terms:
        torch.testing.assert_close(
            sums[part], sum(examples.loss(network, one)[part] for one in alone)
        )


def test_chinese_rows_are_scored_as_cmrc_does() -> None:
    examples = make_examples([row("韩国")])
    assert examples.rules == "cmrc"  # every context has Chinese in it
    assert make_examples([row("韩国")], metric="squad", version2=True).rules == "squad2"


def test_a_network_learns_the_answers_of_two_questions(network: Network) -> None:
    other = {"context": "emil saw 3 boats.", "question": "how many?"}
    other["answers"] = {"text": ["3 boats"], "answer_start": [9]}
    rows = [row("Elbe"), Row(other, "a.jsonl:2")]
    examples = make_examples(rows, max_length=120, doc_stride=90)
    whole = np.arange(len(examples))
    batch = examples.collate(whole * 0, whole)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        sums = examples.loss(network, batch)
        (0.5 * (sums["start"] + sums["end"]) / len(examples)).backward()
        optimizer.step()
    scored = make_examples(rows, "score", max_length=120, doc_stride=90)
    predictions = answers(network, scored, CPU)
    assert [one["prediction"] for one in predictions] == ["Elbe", "3 boats"]
    assert scored.compute_metrics(predictions) == {"exact_match": 100, "f1": 100, "total": 2}


def test_a_published_folder_says_what_it_is_for(network: Network, tmp_path: Path) -> None:
    network.model.save_pretrained(tmp_path)
    tokenizer_of("bert").save_pretrained(tmp_path)
    finetuned = read_finetuned(str(tmp_path))
    assert (finetuned.config.name, finetuned.max_length) == ("question_answering", 128)
    model = load_head(task.QuestionAnswering(finetuned.config), str(tmp_path), finetuned.labels)
    assert torch.equal(model.qa_outputs.weight, network.model.qa_outputs.weight)


def test_families_without_such_a_head_are_refused(tmp_path: Path) -> None:
    for config in (T5Config(), OpenAIGPTConfig()):
        config.save_pretrained(tmp_path)
        tokenizer_of("bert").save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match=f"{config.model_type} has no head"):
            load_head(task.QuestionAnswering(task.Config()), str(tmp_path))


def test_an_answer_that_starts_nowhere() -> None:
    answers = {"text": ["a"], "answer_start": [float("inf")]}
    row = Row({"question": "a", "context": "a", "answers": answers}, "s.jsonl:1")
    with pytest.raises(DataError, match=r"s.jsonl:1: column 'answers': answer_start is inf"):
        make_examples([row])


# The windows of BERT's own code for 200 questions, and perfect logits on them.


@pytest.fixture(scope="module")
def vocabulary(shared_data: Path) -> BertTokenizer:
    path = shared_data / "parity" / "objectives" / "vocab.txt"
    lines = path.read_text("utf-8").splitlines()
    return BertTokenizer(vocab={piece: number for number, piece in enumerate(lines)})


@pytest.fixture(scope="module")
def expected(shared_data: Path) -> list[dict]:
    return json.loads((shared_data / "parity" / "qa_windows" / "squad_windows.json").read_text())


def published_questions(
    shared_data: Path, vocabulary: BertTokenizer, **options: object
) -> task.QuestionAnsweringExamples:
    rows = read_rows([str(shared_data / "parity" / "qa_windows" / "squad_synth.json")])
    return task.QuestionAnswering(task.Config(**options)).make(rows, vocabulary, (), 384, "train")


def test_windows_are_those_of_the_published_code(shared_data, vocabulary, expected) -> None:
    examples = published_questions(shared_data, vocabulary)
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
    examples = published_questions(shared_data, vocabulary, version2=version2)
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
