"""The parts of a pretraining: its examples, the plan of its steps, network and optimizer.

``Pretraining`` has what the config and the text decide. Its processes ask it for the plan, for a
new network with its optimizer, and for what validates and makes samples between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.corpus.build import one_document_hint
from plmctl.corpus.prepared import PreparedText
from plmctl.corpus.store import Corpus, MixedStore, stores_of
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.samples import held_out_samples
from plmctl.evaluation.scoring import score
from plmctl.families.base import make_family
from plmctl.models.sharding import is_sharded
from plmctl.objectives.base import make_objective
from plmctl.run.configs import PretrainConfig
from plmctl.run.costs import phase_flops
from plmctl.run.display import say
from plmctl.run.machine import failure_handling
from plmctl.run.preflight import shapes_vary
from plmctl.run.prepared import Prepared, make_network
from plmctl.run.sample_costs import SampleCosts, save_steps, words_per_sample, words_seen
from plmctl.training import loop
from plmctl.training.average import averaging
from plmctl.training.data import auto_micro_batch, mixture, scoring_batches
from plmctl.training.distributed import forgets_forwards, gathered_weights
from plmctl.training.engine import compiles, make_engine
from plmctl.training.judge import VALIDATING
from plmctl.training.peers import Peers
from plmctl.training.plan import Phase, Plan, Slicing
from plmctl.training.schedule import course, factor

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from plmctl.models.base import StoreExamples
    from plmctl.run.stop import StopRequest
    from plmctl.training.engine import Engine


@dataclass(frozen=True)
class Pretraining:
    """A pretraining whose text is prepared.

    Attributes:
        config: The run's; once a budget is resolved, with its steps in place of it.
        valid: The validation examples of each phase; empty: nothing is validated.
    """

    config: PretrainConfig
    prepared: Prepared
    peers: Peers
    text: PreparedText
    train: tuple[StoreExamples, ...]
    valid: tuple[StoreExamples, ...]
    costs: SampleCosts

    @classmethod
    def of(cls, prepared: Prepared, text: PreparedText, peers: Peers) -> Pretraining:
        """The examples of the text, and what each costs.

        Raises:
            ConfigError, DataError: The text cannot be used.
        """
        train, valid = training_examples(prepared, text), validation_examples(prepared, text)
        costs = sample_costs(prepared, text, train)
        return cls(prepared.config, prepared, peers, text, train, valid, costs)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return Path(self.config.run)

    def with_steps(self, steps: Sequence[int]) -> Pretraining:
        """The same with a number of steps for each phase in place of a budget."""
        return replace(self, config=self.config.with_steps(steps))

    def plan(self, accelerator: Accelerator) -> Plan:
        """The steps, for these processes."""
        return make_plan(self.config, self.train, accelerator, self.costs)

    def engine(self, accelerator: Accelerator) -> Engine:
        """A new network, with its first weights, and its optimizer."""
        config, family = self.config, self.prepared.family
        # The counts of a text are saved beside it: the main process counts, the others read.
        counting = accelerator.main_process_first() if family.starts_from_text else nullcontext()
        with counting:
            network = make_network(self.prepared, self.prepared.tokenizer, text=self.text.train)
        return make_engine(
            accelerator,
            network,
            config.optim,
            config.compute,
            compile_by_default=family.COMPILES,
            varying=shapes_vary(config) or family.VARYING_SHAPES,
            sharded=config.launch.shards(accelerator.num_processes),
            averaging=averaging(config.train),
            peers=self.peers,
        )

    def sampler(self, engine: Engine) -> loop.Sample | None:
        """What makes samples of the network between two steps; None if there are none.

        One process makes them while the others wait. An older PyTorch cannot forget the forwards of
        that one process, and with sharded weights the next step would wait for ever: no samples
        there.
        """
        network = engine.unwrapped
        stuck = is_sharded(network) and not forgets_forwards()
        if stuck or not shows_samples(self.prepared, network.model):
            return None

        def sample() -> Mapping[str, Any]:
            with gathered_weights(network):
                if not engine.accelerator.is_main_process:
                    return {}
                network.eval()
                family, tokenizer = self.prepared.family, self.prepared.tokenizer
                model = LoadedModel.in_training(network, tokenizer, family, engine.accelerator)
                with network.isolated():
                    return samples_of(model, self.config, self.text)

        return sample


# --- Examples: the objective over the prepared text, built once per phase ---


def training_examples(prepared: Prepared, text: PreparedText) -> tuple[StoreExamples, ...]:
    """The training examples of each phase.

    Raises:
        ConfigError: The objective masks whole words, and the text has none; or the batch grows,
            and its rows are stateful streams.
        DataError: The text gives too few sequences.
    """
    config, examples = prepared.config, []
    for phase, batch in zip(config.train.phases, config.train.batch_sizes, strict=True):
        for store in stores_of(text.train):
            prepared.objective.check_text(store, phase.seq_len)
        examples.append(examples_of(prepared, text.train, phase.seq_len))
        _check_streams(config, examples[-1], batch)
    return tuple(examples)


def _check_streams(config: PretrainConfig, examples: StoreExamples, batch: int) -> None:
    if not examples.streamed:
        return
    if config.train.batch_ramp is not None:
        raise ConfigError(
            f"train.batch_ramp: the rows of {config.objective.name} are stateful streams, whose "
            "number cannot grow",
            "leave it out",
        )
    if len(examples) < batch:
        raise DataError(
            f"train.batch_size: {batch:,} streams, but the corpus has {len(examples):,} windows",
            "lower it, or use more text",
        )


def validation_examples(prepared: Prepared, text: PreparedText) -> tuple[StoreExamples, ...]:
    """The validation examples of each phase, as long as its own; empty without validation text.

    BERT's first phase has rows of 128 tokens and trains the position embeddings of those alone: a
    loss on rows of 512 would say nothing of it.

    Raises:
        ConfigError, DataError: The text cannot be used; with its name if it is of a mixture.
    """
    config = prepared.config
    if text.valid is None:
        if isinstance(config.data.valid, float):
            hint = None if config.data.mixture else one_document_hint(config.data)
            say(
                f"the validation split ({config.data.valid:.3g} of the documents) is empty, so "
                f"nothing is validated; {f'{hint}; or ' if hint else ''}increase data.valid, or "
                "name validation files"
            )
        return ()
    lengths = [phase.seq_len for phase in config.train.phases]
    of_length = {length: _validation_rows(prepared, text.valid, length) for length in set(lengths)}
    return tuple(of_length[length] for length in lengths)


def _validation_rows(prepared: Prepared, corpus: Corpus, seq_len: int) -> StoreExamples:
    config, held_out = prepared.config, isinstance(prepared.config.data.valid, float)
    if not isinstance(corpus, MixedStore):
        with _naming("the validation text", held_out=held_out):
            return examples_of(prepared, corpus, seq_len)
    sources = []
    for name, store in zip(corpus.names, corpus.stores, strict=True):
        with _naming(f"the validation text of the source {name!r}", held_out=held_out):
            sources.append(examples_of(prepared, store, seq_len))
    return mixture(corpus.names, sources, corpus.weights, config.seed)


@contextmanager
def _naming(text: str, *, held_out: bool) -> Iterator[None]:
    """Errors say which text they are about."""
    try:
        yield
    except (ConfigError, DataError) as error:
        more = "increase data.valid, so that more documents are held out; or name validation files"
        hint = f"{more}; or {error.hint}" if held_out else error.hint
        raise type(error)(f"data.valid: {text}: {error.message}", hint) from error


def examples_of(prepared: Prepared, corpus: Corpus, seq_len: int) -> StoreExamples:
    """The objective over a store, or over the stores of a mixture, at one sequence length.

    Raises:
        DataError: The corpus gives no sequence.
    """
    config = prepared.config
    if isinstance(corpus, MixedStore):
        sources = [examples_of(prepared, store, seq_len) for store in corpus.stores]
        return mixture(corpus.names, sources, corpus.weights, config.seed)
    examples = prepared.objective.over(corpus, prepared.vocab, seq_len, config.seed)
    if not len(examples):
        raise DataError(
            f"the corpus has {corpus.num_tokens:,} tokens: not one sequence of {seq_len}",
            "use more text, or a smaller train.phases[].seq_len",
        )
    return examples


def sample_costs(
    prepared: Prepared, text: PreparedText, examples: Sequence[StoreExamples]
) -> SampleCosts:
    """What a sample of each phase costs, for budgets, caps and checkpoints at words."""
    config = prepared.config
    words = [words_per_sample(text.words, one) for one in examples]
    known = tuple(each for each in words if each is not None)
    lengths = tuple(phase.seq_len for phase in config.train.phases)
    per_token = phase_flops(prepared) if config.train.budget is not None else ()
    flops = tuple(length * each for length, each in zip(lengths, per_token, strict=False))
    rule = text.word_rule
    return SampleCosts(lengths, flops, known if len(known) == len(words) else None, rule)


# --- The plan of the steps ---


def make_plan(
    config: PretrainConfig,
    examples: Sequence[StoreExamples],
    accelerator: Accelerator,
    costs: SampleCosts | None = None,
) -> Plan:
    """The phases of a config over their examples, sliced for these processes.

    Args:
        config: With steps; not with a budget.
        costs: Says what words the samples have; None: unknown, and no checkpoints at words.
    """
    world, device = accelerator.num_processes, accelerator.device.type
    sharded, by_default = config.launch.shards(world), make_family(config.model).COMPILES
    compiled = compiles(config.compute, device, by_default=by_default, sharded=sharded)
    fixed = compiled and not shapes_vary(config)
    unpadded = config.compute.attention == "unpadded"
    phases, steps = [], course(config.train)
    lengths = config.train.phase_steps
    batches = config.train.batch_sizes
    parts = zip(config.train.phases, batches, lengths, examples, steps.sizes, strict=True)
    for phase, batch, length, own, sizes in parts:
        micro = auto_micro_batch(
            config.train.micro_batch_size, -(-batch // world), phase.seq_len, device
        )
        width = phase.seq_len if fixed else None
        slicing = Slicing(
            batch, micro, accelerator.process_index, world, sizes, width=width, unpadded=unpadded
        )
        phases.append(Phase(own, length, slicing))
    workers = config.compute.workers
    scale = factor(config.schedule, steps)
    words, at = None if costs is None else costs.words, frozenset[int]()
    if costs is not None:
        at, late = save_steps(config.checkpoint.at, steps, words, costs.no_words)
        if late:
            say(f"checkpoint.at: the run ends before {', '.join(late)}")
    return Plan(
        phases=tuple(phases),
        seed=config.seed,
        learning_rate=lambda step: config.optim.lr * scale(step),
        clip=config.optim.clip,
        log_every=config.log.every,
        validate_every=config.log.validate_every,
        workers=workers if isinstance(workers, int) else (2 if device == "cuda" else 0),
        save_at=at,
        words=words_seen(steps, words),
        **failure_handling(config),
    )


# --- Validation, and held-out sentences that the network fills in or continues ---


class Validation:
    """Metrics on the validation text with the masks of the first epoch, always the same ones.

    The rows are as long as those of the phase in which the step is the last update. The scores of
    the last call are kept.
    """

    def __init__(self, run: Pretraining, engine: Engine, plan: Plan) -> None:
        self._examples, self._engine, self._plan = run.valid, engine, plan
        self._most = run.config.log.validate_samples
        self._step, self._scores = -1, dict[str, float]()

    def __call__(self, step: int, *, stop: StopRequest | None = None) -> dict[str, float]:
        """The metrics after so many steps; errors as ``loop.Validate``."""
        self._step = -1
        scores = self._score(self._plan.phase_of(step), stop) if self._examples else {}
        self._step, self._scores = step, {f"valid/{name}": value for name, value in scores.items()}
        return self._scores

    def _score(self, phase: int, stop: StopRequest | None) -> dict[str, float]:
        engine, examples = self._engine, self._examples[phase]
        batches = scoring_batches(examples, self._plan.phases[phase].slicing, self._most)
        with gathered_weights(engine.unwrapped):
            marked = engine.peers.doing_each(VALIDATING, batches)
            return score(engine.accelerator, engine.unwrapped, examples, marked, stop)

    def at(self, step: int) -> dict[str, float]:
        """The metrics of this step: of the last call, or validated now."""
        if self._step != step:  # an earlier start of this run validated it
            with self._engine.averaged(step):
                self(step)
        return self._scores


def shows_samples(prepared: Prepared, model: PreTrainedModel) -> bool:
    """Whether a run has samples: its config, its objective and its family want and make them."""
    kind, family = prepared.objective.SAMPLES, prepared.family
    able = family.SAMPLES and (kind == "fill-mask" or (kind is not None and model.can_generate()))
    return able and prepared.config.log.samples > 0


def samples_of(model: LoadedModel, config: PretrainConfig, text: PreparedText) -> dict[str, Any]:
    """What the network writes for held-out sentences of the text."""
    held_out = stores_of(text.valid or text.train)[0]
    objective = make_objective(config.objective)
    return held_out_samples(model, held_out, config.seed, objective, config.log.samples)
