"""plmctl's models in EleutherAI's lm-evaluation-harness, as the model ``plmctl``.

``python -m plmctl.evaluation.harness`` is the harness' own command with that model known to it, as
in ``run --model plmctl --model_args pretrained=runs/mine/model --tasks blimp``.

Causal models and T5 are scored as ``plmctl eval`` scores them. Encoders, which the harness has no
model for, are scored by pseudo-likelihood: a token is predicted with itself and the later pieces of
its word masked, all else seen (Kauf and Ivanova, 2023, after Salazar et al., 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plmctl.config.sections import ComputeConfig
from plmctl.errors import ConfigError
from plmctl.evaluation.completions import (
    CompletionScore,
    EncodedCompletion,
    MaskedCompletions,
    score_completions,
    score_encoded,
)
from plmctl.evaluation.generation import Decoding, encode_prompt, generate_texts
from plmctl.evaluation.model import EvaluatedModel, LoadedGenerator, family_of, load_generator
from plmctl.families.base import get_family
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
        batch_size: Rows at once; changes no figure.
        device: auto, cpu, cuda or mps.
        seq_len: Tokens that the model is given at most; None: all its positions.
        sentinel: Of T5: ask for a continuation in place of ``<extra_id_0>``.
        **_: What else the harness passes, such as its limit of the batch size.
    """

    def __init__(
        self,
        pretrained: str,
        batch_size: int | str = 16,
        device: Any = "auto",
        seq_len: int | None = None,
        sentinel: bool = False,
        **_: Any,
    ) -> None:
        super().__init__()
        compute = ComputeConfig(device=device or "auto", precision="fp32")
        accelerator = make_accelerator(compute)
        self._size = int(batch_size) if str(batch_size).isdigit() else 16
        self._sentinel = sentinel
        self._name = pretrained
        family = family_of(pretrained)
        if "mlm" in get_family(family).HEADS:
            subject = EvaluatedModel(pretrained, 0, self._size, accelerator)
            self._model: LoadedGenerator | MaskedCompletions = MaskedCompletions(subject, seq_len)
        else:
            self._model = load_generator(pretrained, accelerator, seq_len)

    @property
    def tokenizer_name(self) -> str:
        """What the harness keeps its cached requests under."""
        return self._name.replace("/", "__")

    def loglikelihood(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Score each continuation by its log-probability, and whether every token is the likeliest.

        As in the harness' own models, all space at the end of a context goes to the continuation.
        """
        pairs = []
        for request in requests:
            context, continuation = request.args
            bare = context.rstrip()
            pairs.append((bare, context[len(bare) :] + continuation))
        if isinstance(self._model, MaskedCompletions):
            found = self._model.score(pairs)
        else:
            found = score_completions(self._model, pairs, self._size, sentinel=self._sentinel)
        return [(one.log_prob, one.greedy) for one in found]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log-probability of whole texts, every token scored once.

        Causal: windows as the harness cuts them, the first token after the end-of-text token;
        GPT-1 has none, and its first token is not scored. T5: the decoder writes a window, and its
        encoder reads the one before. Encoders: pseudo-likelihood of disjoint windows.
        """
        return [sum(one.log_prob for one in self._rolled(*request.args)) for request in requests]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """What is written to each context, up to the first of its stops.

        A limit that is over half of the window is half of it, so that the context has a place.

        Raises:
            ConfigError: The model is an encoder, which writes no text.
        """
        model = self._model
        if isinstance(model, MaskedCompletions):
            raise ConfigError(f"{self._name}: an encoder writes no text", "leave such tasks out")
        alike: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            alike.setdefault(repr(request.args[1]), []).append(number)
        found: dict[int, str] = {}
        for numbers in alike.values():
            contexts = [requests[number].args[0] for number in numbers]
            texts = self._generated(model, contexts, requests[numbers[0]].args[1])
            found.update(zip(numbers, texts, strict=True))
        return [found[number] for number in range(len(requests))]

    def _generated(
        self, model: LoadedGenerator, contexts: Sequence[str], asked: dict[str, Any]
    ) -> list[str]:
        until = asked.get("until") or []
        stops = [until] if isinstance(until, str) else list(until)
        limit = min(int(asked.get("max_gen_toks", 256)), model.window // 2)
        drawn = asked.get("do_sample", False)
        decoding = Decoding(
            limit,
            beams=int(asked.get("num_beams", 1)),
            temperature=(asked.get("temperature") or None) if drawn else None,
            top_p=asked.get("top_p") if drawn else None,
            ends=model.ids_with("\n") if "\n" in stops and not model.text_to_text else (),
            sentinel=self._sentinel,
        )
        prompts = [
            encode_prompt(model, found.ids, limit, sentinel=self._sentinel)
            for found in model.plain.encode_batch(list(contexts), add_special_tokens=False)
        ]
        return [
            _until_first_stop(one.text, stops)
            for one in generate_texts(model, prompts, decoding, self._size)
        ]

    def _rolled(self, text: str) -> list[CompletionScore]:
        if isinstance(self._model, MaskedCompletions):
            return self._model.rolled(text)
        model = self._model
        ids = tuple(model.plain.encode(text, add_special_tokens=False).ids)
        pieces = [ids[at : at + model.window] for at in range(0, len(ids), model.window)]
        if model.text_to_text:
            end = (int(model.tokenizer.eos_token_id or 0),)
            before = [(), *pieces[:-1]]
            windows = [
                EncodedCompletion(
                    model.start + piece, 1, source=(*prior[-(model.window - 1) :], *end)
                )
                for piece, prior in zip(pieces, before, strict=True)
            ]
        else:
            windows = _rolling_windows(model.start + ids, model.window)
        return score_encoded(model, windows, self._size)


def _until_first_stop(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of its stops."""
    for stop in filter(None, stops):
        text = text.split(stop)[0]
    return text


def _rolling_windows(ids: tuple[int, ...], size: int) -> list[EncodedCompletion]:
    """Every id but the first predicted once, each window but the first reading ``size`` ids.

    Args:
        ids: All ids, the start token first where there is one.
        size: Ids that are read at most.
    """
    windows = []
    for at in range(1, len(ids), size):
        end = min(at + size, len(ids))
        begin = max(0, end - 1 - size)
        windows.append(EncodedCompletion(ids[begin:end], at - begin))
    return windows


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
