"""``plmctl generate``: what a model writes to prompts."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plmctl.config.sections import ComputeConfig
from plmctl.errors import ConfigError
from plmctl.files import write_atomically
from plmctl.run.display import say, show_result
from plmctl.run.preflight import check_model

if TYPE_CHECKING:
    from plmctl.evaluation.generation import Decoding, EncodedPrompt, GeneratedText
    from plmctl.evaluation.model import LoadedGenerator


@dataclass(frozen=True)
class Asked:
    """Who is asked what, and how it is computed."""

    model: str
    prompts: list[str]
    batch_size: int
    device: Literal["auto", "cpu", "cuda", "mps"]


def run(asked: Asked, decoding: "Decoding", *, out: str | None, as_json: bool) -> None:
    """Write to each prompt; a single one streams to a terminal while it is written.

    Raises:
        ConfigError: The model writes no text, or the output file is there already.
        DataError: A prompt that is empty, for a model without a token for a text's beginning.
    """
    from plmctl.evaluation.generation import generate_texts
    from plmctl.evaluation.model import check_generates, load_generator
    from plmctl.training.engine import make_accelerator

    if out is not None and Path(out).exists():
        raise ConfigError(f"{out}: this file is there already", "name another one")
    model, prompts = asked.model, asked.prompts
    check_model(model)
    check_generates(model)
    subject = load_generator(model, make_accelerator(ComputeConfig(device=asked.device)))
    inputs = _inputs(subject, prompts, decoding)
    streams = len(prompts) == 1 and decoding.beams == 1 and not as_json and out is None
    if streams and sys.stdout.isatty():
        _stream(subject, prompts[0], inputs, decoding)
        return
    found = generate_texts(subject, inputs, decoding, asked.batch_size)
    answers = [_answer(prompt, one) for prompt, one in zip(prompts, found, strict=True)]
    if out is not None:
        lines = [json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers]
        write_atomically(Path(out), "".join(lines))
        say(f"{len(answers)} texts are in {out}")
    if as_json:
        show_result(
            {"model": model, "decoding": asdict(decoding), "answers": answers}, [], as_json=True
        )
    elif out is None:
        print("\n\n".join(f"> {answer['prompt']}\n{answer['text']}" for answer in answers))


def read_prompts(prompts: list[str], file: str | None, column: str) -> list[str]:
    """The prompts of the command line, or of a file: one a line, or a column of rows.

    Raises:
        ConfigError: Both or neither is given.
        DataError: The file or the column is not there.
    """
    if bool(prompts) == (file is not None):
        raise ConfigError(
            "prompts come from --prompt or from --input, and exactly one of them is needed",
            'as in --prompt "The president of"',
        )
    if file is None:
        return prompts
    from plmctl.evaluation.prompting import column_text, prompt_rows

    rows = prompt_rows([file])
    return [column_text(row.values, column, row.origin) for row in rows]


def _inputs(
    model: "LoadedGenerator", prompts: list[str], decoding: "Decoding"
) -> "list[EncodedPrompt]":
    """Token ids; T5's sentinels and the like may be written in a prompt."""
    from plmctl.evaluation.generation import encode_prompt

    tokenizer: Any = model.tokenizer
    ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    inputs = [encode_prompt(model, row, decoding.max_new_tokens) for row in ids]
    if cut := sum(one.cut for one in inputs):
        say(
            f"{cut} of {len(inputs)} prompts cut from the left: {model.name} has "
            f"{model.window} positions, {decoding.max_new_tokens} of them for what is written"
        )
    return inputs


def _answer(prompt: str, written: "GeneratedText") -> dict[str, Any]:
    return {"prompt": prompt, **asdict(written)}


def _stream(
    model: "LoadedGenerator", prompt: str, inputs: "list[EncodedPrompt]", decoding: "Decoding"
) -> None:
    from transformers import TextStreamer

    from plmctl.evaluation.generation import generate_texts

    print(f"> {prompt}", flush=True)
    tokenizer: Any = model.tokenizer
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    generate_texts(model, inputs, decoding, streamer=streamer)
