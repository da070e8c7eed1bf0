"""What a model writes, and what its vectors have near."""

from enum import StrEnum
from typing import Annotated

import typer

from plmctl.cli.app import Json, app, example


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model folder or Hub id.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows at once; changes no result.")]


@app.command(
    epilog=example('plmctl generate runs/demo/gpt2/model --prompt "The people of" --top-p 0.9')
)
def generate(
    model: Model,
    prompt: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A prompt; several if given again.", show_default=False),
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Prompts: a txt file with one a line, or rows (jsonl, csv ...)."
        ),
    ] = None,
    column: Annotated[str, typer.Option(help="Column of the prompts, of rows.")] = "text",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to write at most.")] = 64,
    beams: Annotated[int, typer.Option(min=1, help="Hypotheses of beam search.")] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Of beam search: scores are divided by the length to this power.")
    ] = 1.0,
    temperature: Annotated[
        float | None, typer.Option(help="Draw, with the logits divided by this.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw from the most probable tokens, so many.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Draw from the fewest tokens with this probability together."
        ),
    ] = None,
    no_repeat_ngram: Annotated[
        int, typer.Option(min=0, help="Never write so many tokens in a row twice; 0: allow it.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Decides the draws.")] = 42,
    batch_size: BatchSize = 16,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    output: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the texts to a jsonl file instead.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Let a GPT or T5 model write.

    Greedy unless told: --temperature, --top-k and --top-p draw, --beams searches. A single prompt
    streams to the terminal. T5 fills what stands as <extra_id_0> in a prompt.
    """
    from plmctl.commands import generate as command
    from plmctl.evaluation.generation import Decoding

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
    prompts = command.read_prompts(prompt or [], input, column)
    request = command.GenerateRequest(model, prompts, batch_size, device.value)
    command.run(request, decoding, out=output, as_json=as_json)


@app.command(epilog=example("plmctl neighbours runs/demo/bert/model speeches.txt --word state"))
def neighbours(
    model: Model,
    text: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Text to look in: files and samples.")
    ],
    word: Annotated[str, typer.Option(help="The word that is asked about.")],
    sentence: Annotated[
        str | None,
        typer.Option(
            help="The sentence that it stands in; if not given, the first of the text that has it."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Neighbours to show.")] = 10,
    layer: Annotated[int, typer.Option(help="Of the network: 0 to its layers; -1: the last.")] = -1,
    max_sentences: Annotated[int, typer.Option(min=1, help="Look in so many at most.")] = 10_000,
    batch_size: BatchSize = 32,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.auto,
    as_json: Json = False,
) -> None:
    """Show the uses of words nearest to a use of a word.

    By the cosine of the vectors that ELMo or an encoder gives words in their sentences: the same
    word in another sense is another vector.
    """
    from plmctl.commands import neighbours as command

    request = command.NeighboursRequest(
        model, word, sentence, layer, top, max_sentences, batch_size, device.value
    )
    command.run(request, text, as_json=as_json)
