"""The lm-evaluation-harness: its own models' results, and pseudo-likelihoods by hand."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

from plmctl.errors import ConfigError
from tests.evaluation.models import masked_by_hand
from tests.evaluation.prompting.test_completions import PAIRS

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed: plmctl[harness]")

TEXT = "the king went to the city, and the people of the city saw the king. " * 6


def requests(*arguments: tuple) -> list[SimpleNamespace]:
    return [SimpleNamespace(args=one) for one in arguments]


def plmctl_model(folder: str, **fields: object):
    from plmctl.evaluation.harness import PlmctlModel

    return PlmctlModel(folder, device="cpu", **fields)


@pytest.fixture
def harness_model(folders: dict):
    """The harness' own model on the same folder."""
    from lm_eval.models.huggingface import HFLM

    return lambda kind, **fields: HFLM(
        pretrained=folders[kind], device="cpu", dtype="float32", batch_size=1, **fields
    )


PAIRS_OF_TASKS = [*PAIRS, ("Answer: ", "yes"), ("Answer:\n", "yes"), ("the king", "\n\nand")]


@pytest.mark.parametrize("kind", ["gpt2", "t5"])
def test_it_scores_as_the_harness_own_model(kind: str, folders: dict, harness_model) -> None:
    expected = harness_model(kind).loglikelihood(requests(*PAIRS_OF_TASKS), disable_tqdm=True)
    scores = plmctl_model(folders[kind]).loglikelihood(requests(*PAIRS_OF_TASKS))
    assert [greedy for _, greedy in scores] == [greedy for _, greedy in expected]
    assert [p for p, _ in scores] == pytest.approx([p for p, _ in expected], rel=1e-4)


def test_a_rolled_text_is_scored_as_by_the_harness(folders: dict, harness_model) -> None:
    texts = requests((TEXT,), ("the king",))
    expected = harness_model("gpt2", max_length=64).loglikelihood_rolling(texts, disable_tqdm=True)
    scores = plmctl_model(folders["gpt2"]).loglikelihood_rolling(texts)
    assert scores == pytest.approx(expected, rel=1e-4)


def test_every_token_is_scored_once(folders: dict) -> None:
    """Of a network that gives every token the same, the sum says how many were scored."""
    for kind, first in (("gpt1", 1), ("gpt2", 0), ("t5", 0)):
        subject = plmctl_model(folders[kind], seq_len=16)
        with torch.no_grad():
            for parameter in subject._model.generator.parameters():
                parameter.zero_()
        (score,) = subject.loglikelihood_rolling(requests((TEXT,)))
        count = subject._model.count(TEXT) - first
        size = subject._model.generator.config.vocab_size
        assert score == pytest.approx(-count * torch.tensor(float(size)).log().item(), rel=1e-5)


def test_it_writes_as_the_harness_own_model(folders: dict, harness_model) -> None:
    options = {"until": ["\n\n", "the"], "max_gen_toks": 6, "do_sample": False}
    contexts = [
        ("Anna sees", options),
        ("Carl paints", options),
        ("Bela", {**options, "until": []}),
    ]
    expected = harness_model("gpt2").generate_until(requests(*contexts), disable_tqdm=True)
    assert plmctl_model(folders["gpt2"]).generate_until(requests(*contexts)) == expected


def test_an_encoder_is_scored_by_pseudo_likelihood(encoder: Path) -> None:
    context, completion = "Anna sees", " the banks lend"
    expected, _ = masked_by_hand(encoder, context, completion)
    pairs = requests((context, completion), ("The bank", " lends"), (context, completion))
    for size in (1, 7):
        scores = plmctl_model(str(encoder), batch_size=size).loglikelihood(pairs)
        assert scores[0][0] == pytest.approx(expected, rel=1e-4)
        assert scores[2] == scores[0]
    subject = plmctl_model(str(encoder))
    (whole,) = subject.loglikelihood_rolling(requests(("the bank lends money",)))
    assert whole == pytest.approx(
        subject.loglikelihood(requests(("", "the bank lends money")))[0][0], rel=1e-4
    )
    with pytest.raises(ConfigError, match="does not generate text"):
        subject.generate_until(requests(("a", {})))


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_a_task_of_the_harness_runs(
    kind: str, folders: dict, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its own evaluator, on rows of a file, by the registered name."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    from plmctl.evaluation.harness import PlmctlModel  # noqa: F401  # registered by this

    rows = [{"q": "Anna sees", "options": ["the river", "money"], "right": n % 2} for n in range(4)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "rivers",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{options}}",
        "doc_to_target": "{{right}}",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "rivers.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    output = lm_eval.simple_evaluate(
        model="plmctl",
        model_args={
            "pretrained": str(encoder) if kind == "bert" else folders["gpt2"],
            "device": "cpu",
        },
        tasks=["rivers"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    assert output["results"]["rivers"]["acc,none"] == 0.5
