"""What is written: as transformers writes it, alone or in a batch, and drawn as often as asked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
)

from plmctl.commands.generate import GenerateRequest, run
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.generation import (
    Decoding,
    EncodedPrompt,
    encode_prompt,
    generate_texts,
    sampling_processors,
)
from plmctl.evaluation.model import LoadedModel
from tests.evaluation.prompting.conftest import KINDS, with_batch_size

TEXTS = ["Anna sees", "the king went to the city and", "Carl", "who paints the old tower"]
WAYS = {
    "greedy": Decoding(8),
    "beams": Decoding(8, beams=3, length_penalty=0.6),
    "draws": Decoding(8, temperature=0.9, top_k=40, top_p=0.95),
    "no repeats": Decoding(8, no_repeat_ngram=1),
}


def inputs(model: LoadedModel, decoding: Decoding) -> list[EncodedPrompt]:
    return [
        encode_prompt(model, model.plain.encode(text, add_special_tokens=False).ids, 8)
        for text in TEXTS
    ]


@pytest.mark.parametrize("way", ["greedy", "beams"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_what_transformers_writes_to_each_alone(
    kind: str, way: str, folders: dict, subjects: dict
) -> None:
    auto = AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM
    model = auto.from_pretrained(folders[kind]).eval()
    tokenizer = AutoTokenizer.from_pretrained(folders[kind])
    decoding = WAYS[way]
    outputs = generate_texts(subjects[kind], inputs(subjects[kind], decoding), decoding)
    for text, one in zip(TEXTS, outputs, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        options = {"num_beams": 3, "length_penalty": 0.6} if way == "beams" else {}
        config = GenerationConfig(
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=0,
            decoder_start_token_id=0 if kind == "t5" else None,
            use_cache=kind != "gpt1",
            **options,
        )
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        new = output[0, 1 if kind == "t5" else ids.shape[1] :]
        assert one.text == tokenizer.decode(new, skip_special_tokens=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_changes_nothing(kind: str, way: str, subjects: dict) -> None:
    prompts = inputs(subjects[kind], WAYS[way])
    together = generate_texts(subjects[kind], prompts, WAYS[way])
    assert together == generate_texts(with_batch_size(subjects[kind], 1), prompts, WAYS[way])
    assert together == generate_texts(with_batch_size(subjects[kind], 3), prompts, WAYS[way])


def test_draws_depend_on_the_seed_and_the_prompts_number(subjects: dict) -> None:
    prompts = inputs(subjects["gpt2"], WAYS["draws"])[:1] * 3
    outputs = generate_texts(subjects["gpt2"], prompts, Decoding(8, temperature=1.0))
    assert len({one.text for one in outputs}) > 1
    other = generate_texts(subjects["gpt2"], prompts, Decoding(8, temperature=1.0, seed=1))
    assert [one.text for one in outputs] != [one.text for one in other]


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    """4,000 draws of four tokens at temperature 0.5, the least likely one cut off by top-k."""
    logits = torch.tensor([1.0, 0.5, 0.0, -1.0])
    rows = 4000
    scores = logits.expand(rows, 4)
    for processor in sampling_processors(Decoding(temperature=0.5, top_k=3), tuple(range(rows)), 2):
        scores = processor(torch.zeros(rows, 2, dtype=torch.long), scores)
    counts = np.bincount(scores.argmax(-1).numpy(), minlength=4)
    expected = rows * (logits[:3] / 0.5).softmax(-1).numpy()
    assert counts[3] == 0
    assert ((counts[:3] - expected) ** 2 / expected).sum() < 15  # chi-square, 2 degrees: p < 0.001


def test_the_first_tokens_are_cut_and_room_is_left(subjects: dict) -> None:
    model: LoadedModel = subjects["gpt2"]
    ids = list(range(5, 105))
    prompt = encode_prompt(model, ids, 14)
    assert (list(prompt.ids), prompt.cut) == (ids[-50:], True)
    assert len(generate_texts(model, [prompt], Decoding(14))) == 1
    with pytest.raises(ConfigError, match="64 positions"):
        encode_prompt(model, ids, 64)


def test_an_empty_prompt_begins_a_text(subjects: dict) -> None:
    model: LoadedModel = subjects["gpt2"]
    assert encode_prompt(model, [], 8).ids == (model.tokenizer.eos_token_id,)
    with pytest.raises(DataError, match="prompt is empty"):
        encode_prompt(subjects["gpt1"], [], 8)


def test_a_text_ends_before_what_ends_it(subjects: dict) -> None:
    """The third token of the greedy text as an end: two are left."""
    model: LoadedModel = subjects["gpt2"]
    prompts = inputs(model, WAYS["greedy"])[:1]
    ids = model.generator.generate(
        torch.tensor([prompts[0].ids]), max_new_tokens=8, do_sample=False, pad_token_id=0
    )[0, len(prompts[0].ids) :].tolist()
    at = next(n for n in range(1, 8) if ids[n] not in ids[:n])
    (output,) = generate_texts(model, prompts, Decoding(8, ends=(ids[at],)))
    assert (output.tokens, output.ended) == (at, True)
    assert (
        not generate_texts(model, prompts, Decoding(8))[0].ended
        or model.tokenizer.eos_token_id in ids
    )


@pytest.mark.parametrize(
    ("decoding", "hint"), [(Decoding(8), "--temperature 0.8"), (Decoding(8, top_k=2), "--seed")]
)
def test_an_empty_answer_is_explained(
    subjects: dict, capsys: pytest.CaptureFixture, decoding: Decoding, hint: str
) -> None:
    """First every token ends the text."""
    model: LoadedModel = subjects["gpt2"]
    request = GenerateRequest(model.name, ["Anna"], 1, "cpu")
    all_end = replace(decoding, ends=tuple(range(len(model.tokenizer))))
    run(request, all_end, out=None, as_json=False)
    assert "1 of 1 answers are empty" in (said := capsys.readouterr().err)
    assert hint in said
    run(request, decoding, out=None, as_json=False)
    assert "empty" not in capsys.readouterr().err


def test_tokens_with_a_line_end_are_known(subjects: dict) -> None:
    model: LoadedModel = subjects["gpt2"]
    line_ends = model.ids_with("\n")
    assert model.plain.encode("\n", add_special_tokens=False).ids[0] in line_ends
    assert model.plain.encode("a", add_special_tokens=False).ids[0] not in line_ends


def test_beams_and_draws_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="beam search draws no tokens"):
        Decoding(beams=2, top_k=3)
    with pytest.raises(ConfigError, match="temperature"):
        Decoding(temperature=0.0)


def test_models_that_do_not_generate_are_rejected(tmp_path, accelerator) -> None:
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2ForSequenceClassification

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 20}
    BertForMaskedLM(BertConfig(**small)).save_pretrained(tmp_path / "bert")
    with pytest.raises(ConfigError, match="does not generate text"):
        LoadedModel(str(tmp_path / "bert"), accelerator).for_generation()
    classifier = GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20)
    GPT2ForSequenceClassification(classifier).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ConfigError, match="no language-model head"):
        LoadedModel(str(tmp_path / "gpt2"), accelerator).for_generation()
