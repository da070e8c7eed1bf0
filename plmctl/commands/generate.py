"""``plmctl generate``: complete prompts with a model."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plmctl.config.sections import ComputeConfig
from plmctl.errors import ConfigError
from plmctl.files import write_atomically, writing
from plmctl.formatting import printable
from plmctl.run.display import say, show_result

if TYPE_CHECKING:
    from transformers import TextStreamer

    from plmctl.evaluation.generation import Decoding, EncodedPrompt, GeneratedText
    from plmctl.evaluation.model import LoadedModel


Device = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class GenerateRequest:
    """The prompts of a user, and how the model computes."""

    model: str
    prompts: list[str]
    batch_size: int
    device: Device


def run(request: GenerateRequest, decoding: "Decoding", *, out: str | None, as_json: bool) -> None:
    """Complete each prompt; in a terminal, the text for a single prompt appears word by word.

    Raises:
        ConfigError: The model does not generate text, or the output file exists.
        DataError: A prompt is empty, and the model has no begin token.
    """
    from plmctl.evaluation.generation import generate_texts

    if out is not None and Path(out).exists():
        raise ConfigError(f"{out}: this file exists already", "name another file")
    model = opened_to_generate(request.model, request.device, request.batch_size)
    prompts = encoded_prompts(model, request.prompts, decoding)
    one_text = len(prompts) == 1 and decoding.beams == 1 and not as_json and out is None
    if one_text and sys.stdout.isatty():
        print(printable(f"> {request.prompts[0]}"), flush=True)
        streamer = streamer_to(model, lambda text: print(printable(text), end="", flush=True))
        texts = generate_texts(model, prompts, decoding, streamer=streamer)
        print()
        _say_empty(texts, decoding)
        return
    texts = generate_texts(model, prompts, decoding)
    answers = [
        {"prompt": prompt, **asdict(text)}
        for prompt, text in zip(request.prompts, texts, strict=True)
    ]
    if out is not None:
        lines = [json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers]
        with writing(Path(out)) as path:
            write_atomically(path, "".join(lines))
        say(f"{len(answers)} texts are in {out}")
    if as_json:
        document = {"model": request.model, "decoding": asdict(decoding), "answers": answers}
        show_result(document, [], as_json=True)
    elif out is None:
        texts_only = (f"> {answer['prompt']}\n{answer['text']}" for answer in answers)
        print(printable("\n\n".join(texts_only)))
    _say_empty(texts, decoding)


def _say_empty(texts: "Sequence[GeneratedText]", decoding: "Decoding") -> None:
    """Say why there is no text, if a model wrote none."""
    if empty := sum(text.ended and not text.text.strip() for text in texts):
        other = "another --seed draws" if decoding.sampled else "--temperature 0.8 draws"
        what = f"{empty} of {len(texts)} answers are empty: the model ended them at once"
        say(f"{what}; {other} others")


def opened_to_generate(name: str, device: Device, batch_size: int) -> "LoadedModel":
    """A model that completes prompts.

    Raises:
        ConfigError: It does not generate text.
    """
    from plmctl.evaluation.model import LoadedModel
    from plmctl.training.engine import make_accelerator

    accelerator = make_accelerator(ComputeConfig(device=device))
    return LoadedModel(name, accelerator, batch_size).for_generation()


def encoded_prompts(
    model: "LoadedModel", prompts: list[str], decoding: "Decoding"
) -> "list[EncodedPrompt]":
    """The prompts as the model reads them; says what is unknown in them, and how many were cut."""
    from plmctl.evaluation.generation import encode_prompt

    tokenizer: Any = model.tokenizer  # not the plain one: a prompt may contain T5's sentinels
    encoded = [
        encode_prompt(model, ids, decoding.max_new_tokens)
        for ids in tokenizer(prompts, add_special_tokens=False)["input_ids"]
    ]
    model.note_unknown(model.without_special(prompts))
    model.say_unknown("the prompts")
    if cut := sum(prompt.cut for prompt in encoded):
        say(
            f"{cut} of {len(encoded)} prompts were cut from the left: {model.name} has "
            f"{model.window} positions, {decoding.max_new_tokens} of them for new tokens"
        )
    return encoded


def read_prompts(prompts: list[str], file: str | None, column: str) -> list[str]:
    """The prompts of the command line, or of a file: one per line, or a column of rows.

    Raises:
        ConfigError: Both or neither is given.
        DataError: The file or the column does not exist.
    """
    if bool(prompts) == (file is not None):
        raise ConfigError(
            "the prompts are texts on the command line, or from --input: one of the two is needed",
            'for example: plmctl generate MODEL "The president of"',
        )
    if file is None:
        return prompts
    from plmctl.evaluation.prompting import column_text, prompt_rows

    rows = prompt_rows([file])
    return [column_text(row.values, column, row.origin) for row in rows]


def streamer_to(model: "LoadedModel", write: Callable[[str], None]) -> "TextStreamer":
    """Gives ``write`` the text of one prompt in pieces, whole words as soon as they are sure."""
    from transformers import TextStreamer

    class Streamer(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            write(text)

    return Streamer(model.tokenizer, skip_prompt=True, skip_special_tokens=True)
