"""Text from a model, and the neighbours of its word vectors."""

from enum import StrEnum
from typing import Annotated

import typer

from plmctl.cli.app import Json, app, example


class Device(StrEnum):
    """The device to compute on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model folder, a run folder or a Hub id.")
]
BatchSize = Annotated[
    int, typer.Option(min=1, help="Rows per forward pass; never changes a result.")
]


@app.command(epilog=example('plmctl generate runs/demo/gpt2/model "The people of" --top-p 0.9'))
def generate(
    model: Model,
    text: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="One prompt or several.", show_default=False),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A prompt, too; may be repeated.", show_default=False),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Prompts: a txt file with one per line, or rows (jsonl, csv ...)."
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="With rows: the column of the prompts.")] = "text",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens.")] = 64,
    beams: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of beams of beam search.")
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Beam search: divide scores by the length to this power.")
    ] = 1.0,
    temperature: Annotated[
        float | None, typer.Option(help="Sample, with the logits divided by this.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Sample from this many most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Sample from the fewest tokens with this total probability."
        ),
    ] = None,
    no_repeat_ngram: Annotated[
        int, typer.Option(min=0, help="Never repeat a sequence of this many tokens; 0: no limit.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 42,
    batch_size: BatchSize = 16,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the texts to this jsonl file instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Generate text with a GPT or T5 model.

    Greedy by default; --temperature, --top-k and --top-p sample, --beams searches. A single prompt
    streams to the terminal. T5 fills <extra_id_0> in a prompt.
    """
    from plmctl.commands import generate as command
    from plmctl.run.named_model import named_model

    model = named_model(model)
    from plmctl.evaluation.generation import Decoding  # imports PyTorch, which takes seconds

    decoding = Decoding(
        max_new_tokens=max_new_tokens,
        beams=beams,
        length_penalty=length_penalty,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        no_repeat_ngram=no_repeat_ngram,
        seed=seed,
    )
    prompts = command.read_prompts([*(text or []), *(prompt or [])], input, column)
    request = command.GenerateRequest(model, prompts, batch_size, device.value)
    command.run(request, decoding, out=output, as_json=as_json)


@app.command(epilog=example("plmctl neighbours runs/demo/bert/model speeches.txt --word state"))
def neighbours(
    model: Model,
    text: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Text to search: files and samples.")
    ],
    word: Annotated[str, typer.Option(help="The word.")],
    sentence: Annotated[
        str | None,
        typer.Option(help="A sentence with the word; by default the first one in the text."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of neighbours.")] = 10,
    layer: Annotated[int, typer.Option(help="Layer of the network, from 0; -1: the last.")] = -1,
    max_sentences: Annotated[
        int, typer.Option(min=1, help="Maximum number of sentences to search.")
    ] = 10_000,
    batch_size: BatchSize = 32,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    as_json: Json = False,
) -> None:
    """Show the uses of words nearest to a use of a word.

    Ranks by the cosine of the contextual vectors of ELMo or an encoder: the same word has another
    vector in another sense.
    """
    from plmctl.commands import neighbours as command

    request = command.NeighboursRequest(
        model, word, sentence, layer, top, max_sentences, batch_size, device.value
    )
    command.run(request, text, as_json=as_json)
