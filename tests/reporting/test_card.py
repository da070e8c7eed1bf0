import json
import shlex

import pytest
import transformers
import yaml
from transformers.pipelines import SUPPORTED_TASKS

from plmctl.reporting.card import model_card
from tests.reporting import sample_runs


def front_matter(card):
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("---\n")[1])


def test_the_card_of_a_pretrained_model(tmp_path):
    card = model_card(sample_runs.pretrain(tmp_path / "bert-mini", steps=400), "BertForPreTraining")
    assert front_matter(card) == {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["plmctl", "bert", "mlm+nsp"],
    }
    assert "# bert-mini\n" in card
    assert "| optim.lr | 0.0015 |" in card
    assert (
        '| train.phases | [{"seq_len": 64, "steps": 360}, {"seq_len": 128, "steps": 40}] |' in card
    )
    assert (
        "- training: `sample:sotu`\n- validation: 10.0% of the training documents, held out" in card
    )
    assert "AutoModelForPreTraining.from_pretrained(folder)" in card
    assert "| torch | 2.13.0 |" in card
    assert "| steps | 400 |" in card


def test_the_card_of_a_finetuned_model(tmp_path):
    card = model_card(sample_runs.finetune(tmp_path / "era"), "GPT2ForSequenceClassification")
    assert front_matter(card)["pipeline_tag"] == "text-classification"
    assert "base_model" not in front_matter(card)  # a folder, which the Hub does not know
    assert "finetuned with plmctl from pretrained `runs/demo/bert/model`" in card
    assert "| accuracy | 0.720 |\n| majority class | 0.580 |" in card


def test_the_card_of_a_continued_model_has_its_sizes(tmp_path):
    model = {"family": "bert", "init_from": "google-bert/bert-base-cased"}
    config = {"run": "x", "tokenizer": "t", "model": model, "objective": {"name": "mlm"}}
    sample_runs.write(tmp_path / "run", config, [])
    facts = {"network": {"parameters": 1_234_567, "layers": 2, "hidden size": 64}}
    (tmp_path / "run/environment.json").write_text(json.dumps(facts))
    card = model_card(tmp_path / "run", "BertForMaskedLM")
    assert front_matter(card)["base_model"] == "google-bert/bert-base-cased"
    assert "it continues the pretraining of `google-bert/bert-base-cased`" in card
    assert "| parameters | 1,234,567 |\n| layers | 2 |\n| hidden size | 64 |" in card


def test_a_model_of_the_hub_is_named_as_the_base(tmp_path):
    config = {
        "run": "x",
        "task": {"name": "classification"},
        "model": "google-bert/bert-base-cased",
    }
    sample_runs.write(tmp_path / "run", config, [])
    card = model_card(tmp_path / "run", "BertForSequenceClassification")
    assert front_matter(card)["base_model"] == "google-bert/bert-base-cased"


@pytest.mark.parametrize(
    ("architecture", "loader", "purpose"),
    [
        ("BertForMaskedLM", "AutoModelForMaskedLM", "fill-mask"),
        ("GPT2LMHeadModel", "AutoModelForCausalLM", "text-generation"),
        ("LlamaForCausalLM", "AutoModelForCausalLM", "text-generation"),
        ("BertForQuestionAnswering", "AutoModelForQuestionAnswering", "question-answering"),
        ("BertForMultipleChoice", "AutoModelForMultipleChoice", None),
        ("ElmoModel", "AutoModel", None),
        ("", "AutoModel", None),
    ],
)
def test_every_class_is_loaded_as_what_it_is(tmp_path, architecture, loader, purpose):
    sample_runs.write(tmp_path / "run", {"run": "x", "tokenizer": "t"}, [])
    card = model_card(tmp_path / "run", architecture)
    assert hasattr(transformers, loader)
    assert f"import AutoTokenizer, {loader}\n" in card
    assert front_matter(card).get("pipeline_tag") == purpose
    assert ("pipeline(" in card) == (purpose in SUPPORTED_TASKS)


def test_a_cell_keeps_a_table_whole(tmp_path):
    config = {"run": "x", "task": {"name": "classification", "text": "a|b\nc"}, "model": "m"}
    sample_runs.write(tmp_path / "run", config, [])
    assert "| task.text | a\\|b c |" in model_card(tmp_path / "run")


def test_the_card_of_an_elmo_says_what_to_import(tmp_path):
    card = model_card(sample_runs.pretrain(tmp_path / "elmo", steps=400), "ElmoForPreTraining")
    assert "pipeline_tag" not in front_matter(card)
    assert "import plmctl.models.elmo" in card
    assert "AutoModelForPreTraining.from_pretrained(folder)" in card


def test_the_command_can_be_pasted_into_a_shell(tmp_path):
    folder = sample_runs.pretrain(tmp_path / "bert", steps=400)
    facts = json.loads((folder / "environment.json").read_text())
    command = ["plmctl", "pretrain", "c.yaml", "train.phases=[{seq_len: 64, steps: 60}]"]
    (folder / "environment.json").write_text(json.dumps({**facts, "command": command}))
    (line,) = [line for line in model_card(folder).splitlines() if line.startswith("| command |")]
    assert shlex.split(line.split("`")[1]) == command


@pytest.mark.parametrize(
    "text",
    [
        5,
        {},
        {"train": 5},
        {"train": {"documents": "many"}, "sources": {"<b>|": [1]}, "files": None},
    ],
)
def test_contents_that_no_run_writes(tmp_path, text):
    folder = sample_runs.pretrain(tmp_path / "odd", steps=40)
    facts = json.loads((folder / "environment.json").read_text())
    facts |= {"text": text, "processes": "two", "devices": None}
    (folder / "environment.json").write_text(json.dumps(facts))
    card = model_card(folder, "BertForPreTraining")
    assert "## Data" in card
    assert "<b>" not in card
    assert "## Compute" not in card
