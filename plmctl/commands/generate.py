"""``plmctl generate``: complete prompts with a model."""

import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plmctl.config.sections import ComputeConfig
from plmctl.errors import ConfigError
from plmctl.files import write_atomically, writing
from plmctl.folders import check_model
from plmctl.formatting import printable
from plmctl.run.display import say, show_result

if TYPE_CHECKING:
    from plmctl.evaluation.generation import Decoding, EncodedPrompt
    from plmctl.evaluation.model import LoadedModel


@dataclass(frozen=True)
class GenerateRequest:
    """The prompts of a user, and how the model computes."""

    model: str
    prompts: list[str]
    batch_size: int
    device: Literal["auto", "cpu", "cuda", "mps"]


def run(request: GenerateRequest, decoding: "Decoding", *, out: str | None, as_json: bool) -> None:
    """Complete each prompt; in a terminal, the text for a single prompt appears word by word.

    Raises:
        ConfigError: The model does not generate text, or the output file exists.
        DataError: A prompt is empty, and the model has no begin token.
    """
    from plmctl.evaluation.generation import encode_prompt, generate_texts
    from plmctl.evaluation.model import LoadedModel
    from plmctl.training.engine import make_accelerator

    if out is not None and Path(out).exists():
        raise ConfigError(f"{out}: this file exists already", "name another file")
    request = replace(request, model=check_model(request.model))
    accelerator = make_accelerator(ComputeConfig(device=request.device))
    model = LoadedModel(request.model, accelerator, request.batch_size).for_generation()
    tokenizer: Any = model.tokenizer  # not the plain one: a prompt may contain T5's sentinels
    prompts = [
        encode_prompt(model, ids, decoding.max_new_tokens)
        for ids in tokenizer(request.prompts, add_special_tokens=False)["input_ids"]
    ]
    model.note_unknown(model.without_special(request.prompts))
    model.say_unknown("the prompts")
    if cut := sum(prompt.cut for prompt in prompts):
        say(
            f"{cut} of {len(prompts)} prompts were cut from the left: {model.name} has "
            f"{model.window} positions, {decoding.max_new_tokens} of them for new tokens"
        )
    one_text = len(prompts) == 1 and decoding.beams == 1 and not as_json and out is None
    if one_text and sys.stdout.isatty():
        _stream(model, request.prompts[0], prompts, decoding)
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


def read_prompts(prompts: list[str], file: str | None, column: str) -> list[str]:
    """The prompts of the command line, or of a file: one per line, or a column of rows.

    Raises:
        ConfigError: Both or neither is given.
        DataError: The file or the column does not exist.
    """
    if bool(prompts) == (file is not None):
        raise ConfigError(
            "prompts come from --prompt or from --input, and exactly one of them is needed",
            'for example --prompt "The president of"',
        )
    if file is None:
        return prompts
    from plmctl.evaluation.prompting import column_text, prompt_rows

    rows = prompt_rows([file])
    return [column_text(row.values, column, row.origin) for row in rows]


def _stream(
    model: "LoadedModel", prompt: str, encoded: "list[EncodedPrompt]", decoding: "Decoding"
) -> None:
    from transformers import TextStreamer

    from plmctl.evaluation.generation import generate_texts

    class Streamer(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            super().on_finalized_text(printable(text), stream_end)

    print(printable(f"> {prompt}"), flush=True)
    tokenizer: Any = model.tokenizer
    streamer = Streamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    generate_texts(model, encoded, decoding, streamer=streamer)
