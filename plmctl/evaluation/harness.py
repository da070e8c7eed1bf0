"""plmctl's models in EleutherAI's lm-evaluation-harness, as the model ``plmctl``.

``python -m plmctl.evaluation.harness`` is the harness' own command with this model registered, as
in ``run --model plmctl --model_args pretrained=runs/mine/model --tasks blimp``.

Causal models and T5 are scored as by ``plmctl eval``. The harness has no model for encoders; here
they are scored by pseudo-likelihood: a token is predicted with itself and the later pieces of its
word masked, all else seen (Kauf and Ivanova, 2023, after Salazar et al., 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plmctl.config.sections import ComputeConfig
from plmctl.errors import ConfigError
from plmctl.evaluation.completions import MaskedCompletions, score_completions
from plmctl.evaluation.generation import Decoding, encode_prompt, generate_texts
from plmctl.evaluation.likelihood import sliding_windows
from plmctl.evaluation.model import LoadedModel
from plmctl.models.completions import CompletionScore, EncodedCompletion, score_encoded
from plmctl.training.engine import make_accelerator

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    raise ConfigError(
        "lm-evaluation-harness is not installed", "pip install 'plmctl[harness]'"
    ) from error


@register_model("plmctl")
class PlmctlModel(LM):  # type: ignore[misc]  # theirs
    """A model folder for the harness.

    Args:
        pretrained: The folder or Hub id.
        batch_size: Rows at once; it changes no metric.
        device: auto, cpu, cuda or mps.
        seq_len: Tokens that the model reads at most; None: all its positions.
        sentinel: T5 only: predict a continuation in place of ``<extra_id_0>``.
        both_sides: Decoders that were pretrained with ``mntp``: score as encoders are.
        **_: Other arguments of the harness, such as its limit of the batch size.
    """

    def __init__(
        self,
        pretrained: str,
        batch_size: int | str = 16,
        device: Any = "auto",
        seq_len: int | None = None,
        sentinel: bool = False,
        both_sides: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        compute = ComputeConfig(device=device or "auto", precision="fp32")
        rows = int(batch_size) if str(batch_size).isdigit() else 16
        self._sentinel = sentinel
        accelerator = make_accelerator(compute)
        self._model = LoadedModel(pretrained, accelerator, rows, both_sides=both_sides)
        self._masked: MaskedCompletions | None = None
        if self._model.is_masked:
            self._masked = MaskedCompletions(self._model, seq_len)
        else:
            self._model = self._model.for_generation(seq_len)

    @property
    def tokenizer_name(self) -> str:
        """The name under which the harness caches requests."""
        return self._model.name.replace("/", "__")

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """The log-probability of each continuation, and whether every token is the most probable.

        As in the harness' own models, space at the end of a context belongs to the continuation.
        """
        pairs = []
        for request in requests:
            context, continuation = request.args
            bare = context.rstrip()
            pairs.append((bare, context[len(bare) :] + continuation))
        if self._masked is not None:
            scores = self._masked.score(pairs)
        else:
            scores = score_completions(self._model, pairs, sentinel=self._sentinel)
        return [(score.log_prob, score.greedy) for score in scores]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-probability of whole texts, every token scored once.

        Causal: windows as the harness cuts them, with the end-of-text token before the first token;
        GPT-1 has none, and its first token is not scored. T5: the decoder predicts a window, and
        its encoder reads the window before. Encoders: pseudo-likelihood of disjoint windows.
        """
        return [
            sum(score.log_prob for score in self._rolled(*request.args)) for request in requests
        ]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text generated for each context, up to the first of its stops.

        At most half of the window is generated, so that the context fits into the other half.

        Raises:
            ConfigError: The model is an encoder, which does not generate text.
        """
        if self._masked is not None:
            raise ConfigError(
                f"{self._model.name}: an encoder does not generate text", "leave out such tasks"
            )
        same_options: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            same_options.setdefault(repr(request.args[1]), []).append(number)
        texts: dict[int, str] = {}
        for numbers in same_options.values():
            contexts = [requests[number].args[0] for number in numbers]
            generated = self._generate(contexts, requests[numbers[0]].args[1])
            texts.update(zip(numbers, generated, strict=True))
        return [texts[number] for number in range(len(requests))]

    def _generate(self, contexts: Sequence[str], options: dict[str, Any]) -> list[str]:
        model = self._model
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        limit = min(int(options.get("max_gen_toks", 256)), model.window // 2)
        sampled = options.get("do_sample", False)
        decoding = Decoding(
            limit,
            beams=int(options.get("num_beams", 1)),
            temperature=(options.get("temperature") or None) if sampled else None,
            top_p=options.get("top_p") if sampled else None,
            ends=model.ids_with("\n") if "\n" in stops and not model.text_to_text else (),
            sentinel=self._sentinel,
        )
        prompts = [
            encode_prompt(model, encoding.ids, limit, sentinel=self._sentinel)
            for encoding in model.plain.encode_batch(list(contexts), add_special_tokens=False)
        ]
        texts = []
        for generated in generate_texts(model, prompts, decoding):
            text = generated.text
            for stop in filter(None, stops):
                text = text.split(stop)[0]
            texts.append(text)
        return texts

    def _rolled(self, text: str) -> list[CompletionScore]:
        if self._masked is not None:
            return self._masked.rolled(text)
        model = self._model
        ids = tuple(model.plain.encode(text, add_special_tokens=False).ids)
        if model.text_to_text:
            end = (int(model.tokenizer.eos_token_id or 0),)
            pieces = [ids[at : at + model.window] for at in range(0, len(ids), model.window)]
            before = [(), *pieces[:-1]]
            windows = [
                EncodedCompletion(
                    model.start + piece, 1, source=(*prior[-(model.window - 1) :], *end)
                )
                for piece, prior in zip(pieces, before, strict=True)
            ]
        else:
            ids = model.start + ids
            windows = []
            for window in sliding_windows(len(ids) - 1, model.window, model.window):
                begin = max(
                    0, window.end - model.window
                )  # the last window is as long as the others
                windows.append(
                    EncodedCompletion(ids[begin : window.end + 1], window.first + 1 - begin)
                )
        return score_encoded(model.generator, windows, model.batch_size, model.autocast)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
