"""Masked next-token prediction: the original's masks, its shift, both sides, a causal folder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from plmctl.arrays import IGNORE
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.examples.keys import fold
from plmctl.examples.masking import Treatment, choose_spans, replace_spans, spans_of
from plmctl.families.base import families, get_family, make_family
from plmctl.models.decoder import hidden_states, states_at, states_of_both_sides
from plmctl.models.fast import apply_fast_paths
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab
from tests.builders import make_examples, make_network, random_documents

EOS, MASK = 9, 4
VOCAB = Vocab(size=120, mask=MASK, eos=EOS)
BOTH = [one.name for one in families() if one.BOTH_SIDES]


@pytest.fixture(scope="module")
def store() -> TokenStore:
    documents = random_documents(0, (10, 120), documents=80, sentences=(1, 7), tokens=(1, 9))
    return TokenStore.from_lists(documents, vocab_size=120)


def network(family: str) -> Network:
    fields = {"size": "tiny", "initializer_range": 0.2}
    return make_network(family, 120, ("lm",), pad_id=EOS, **fields).eval()


# --- The masks, against the published figures and a transcription of the original's rule ---


def original_masks(
    tokens: np.ndarray, rate: float, times: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As ``SpanMaskingStrategy`` and ``apply_mask`` choose and treat the tokens of one segment."""
    n = len(tokens)
    span = np.repeat(np.arange(n), rng.integers(1, 4, n))[:n]
    order, treated = rng.random(n)[span], rng.random(n)[span]
    weights = np.exp(times - times.max())
    order = order * (weights / weights.sum())
    wanted = max(1, int(n * rate + rng.random()))
    chosen = order <= np.sort(order)[wanted - 1]
    return chosen, span, treated


def run_lengths(chosen: np.ndarray) -> float:
    """The mean number of chosen tokens in a row."""
    begins = chosen & ~np.pad(chosen, ((0, 0), (1, 0)))[:, :-1]
    return chosen.sum() / begins.sum()


@pytest.mark.parametrize(("rate", "masked", "run"), [(0.3, 38.46, 2.81), (0.15, 19.59, 2.33)])
def test_masks_have_the_figures_of_the_original(rate: float, masked: float, run: float) -> None:
    """Measured there on 3,000 rows of 126 tokens."""
    rows, width = 3000, 126
    rng = np.random.default_rng(1)
    there = np.stack(
        [original_masks(np.ones(width), rate, np.zeros(width), rng)[0] for _ in range(rows)]
    )
    keys = fold(3, np.arange(rows))
    spans = spans_of(keys, width, 3)
    none = np.zeros((rows, width), dtype=np.int64)
    here = choose_spans(np.ones((rows, width), dtype=bool), spans, none, rate, keys)
    for chosen in (there, here):
        assert chosen.sum(1).mean() == pytest.approx(masked, abs=0.12)
        assert run_lengths(chosen) == pytest.approx(run, abs=0.05)
    assert here.sum(1).std() == pytest.approx(there.sum(1).std(), abs=0.1)


def test_a_span_is_treated_as_one() -> None:
    rows, width = 400, 126
    keys = fold(5, np.arange(rows))
    spans = spans_of(keys, width, 3)
    sizes = np.bincount((spans + np.arange(rows)[:, None] * width).ravel())
    assert set(sizes[sizes > 0]) == {1, 2, 3}
    ids = np.full((rows, width), 50)
    treatment = Treatment(MASK, 120, 0.8, 0.1, (MASK, EOS))
    seen = replace_spans(ids, np.ones_like(ids, dtype=bool), spans, keys, treatment)
    kinds = np.where(seen == MASK, 0, np.where(seen == 50, 1, 2))
    same = [kinds[0][spans[0] == one] for one in range(spans[0].max() + 1)]
    assert all(len(set(kind)) == 1 for kind in same)  # but a random token may be the original
    shares = [(kinds == kind).mean() for kind in range(3)]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.01)
    assert not np.isin(seen[kinds == 2], treatment.never).any()


def test_masks_of_later_passes_prefer_what_was_not_masked() -> None:
    """Three passes at the rate of 0.3 mask more of the tokens than three independent choices."""
    rows, width = 500, 64
    text = TokenStore.from_lists([[[50] * (rows * width + 1)]], vocab_size=120)
    examples = make_examples("mntp", text, VOCAB, width, rate=0.3, separator="none")
    samples = np.arange(rows)
    passes = [examples._masked(np.full(rows, epoch), samples)[2] for epoch in range(3)]
    rng, expected = np.random.default_rng(0), []
    for _ in range(rows):
        times = np.zeros(width)
        for _ in range(3):
            times += original_masks(times, 0.3, times, rng)[0]
        expected.append((times > 0).mean())
    share = np.logical_or.reduce(passes).mean()
    assert share == pytest.approx(np.mean(expected), abs=0.01)
    assert share > 1 - (1 - passes[0].mean()) ** 3 + 0.05


# --- The shift ---


@pytest.mark.parametrize("attention", ["across", "within"])
def test_the_state_before_a_masked_token_predicts_it(store: TokenStore, attention: str) -> None:
    masked = make_examples("mntp", store, VOCAB, 32, attention=attention)
    plain = make_examples("clm", store, VOCAB, 32, attention=attention)
    epochs, samples = np.full(8, 2), np.arange(8)
    batch, original = masked.collate(epochs, samples), plain.collate(epochs, samples)
    positions, ids = batch.inputs["positions"], batch.inputs["input_ids"]
    assert torch.equal(batch.targets["lm"], original.targets["lm"].flatten()[positions])
    assert EOS not in batch.targets["lm"]
    assert IGNORE not in batch.targets["lm"]
    after = torch.zeros(ids.numel() + 1, dtype=torch.bool)
    after[positions + 1] = True
    changed = ids != original.inputs["input_ids"]
    assert not changed[:, 0].any()  # the first token of a row has no position before it
    assert not (changed.flatten() & ~after[:-1]).any()
    assert 0.5 < changed.sum() / len(positions) < 0.95
    if attention == "within":
        assert torch.equal(batch.inputs["position_ids"], original.inputs["position_ids"])


def test_the_rate_falls_over_the_run(store: TokenStore) -> None:
    examples = make_examples("mntp", store, VOCAB, 64)
    assert [examples.at_step(step, 3).rate for step in range(3)] == pytest.approx(
        [0.3, 0.225, 0.15]
    )
    assert examples.rate == 0.15  # of validation


def test_a_tokenizer_without_a_mask_token(store: TokenStore) -> None:
    with pytest.raises(ConfigError, match="no mask token") as error:
        make_examples("mntp", store, Vocab(size=120, eos=EOS), 64)
    assert "special_tokens" in str(error.value.hint)


# --- Both sides ---


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("packed", [False, True])
def test_both_sides_with_and_without_fast_paths(family: str, attention: str, packed: bool) -> None:
    """The fast paths give what a mask of numbers gives in transformers' own forward."""
    plain, fast = network(family).model, network(family).model
    for model in (plain, fast):
        model.set_attn_implementation(attention)
    apply_fast_paths(fast, device="cpu", compiled=False, sharded=False, attention=attention)
    ids = torch.randint(10, 120, (3, 24), generator=torch.Generator().manual_seed(0))
    places = (torch.arange(24) % 9).expand(3, 24) if packed else None
    with torch.no_grad():
        expected = states_of_both_sides(plain.base_model, plain.get_input_embeddings()(ids), places)
        got = hidden_states(fast, ids, places, both_sides=True)
        causal = hidden_states(fast, ids, places)
        again = hidden_states(plain, ids, places)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(causal, again, rtol=1e-4, atol=1e-5)  # nothing is left behind
    assert (got - causal).abs().max() > 0.01


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("training", [False, True])
def test_what_a_position_sees(family: str, training: bool) -> None:
    """Causal rows see nothing later; rows of both sides see all of their text, and no other's."""
    model = network(family).train(training).model
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    apply_fast_paths(model, device="cpu", compiled=False, sharded=False)
    ids = torch.randint(10, 120, (1, 24), generator=torch.Generator().manual_seed(0))
    places = torch.cat([torch.arange(10), torch.arange(14)])[None]
    other = ids.clone()
    other[0, 15] = 10 + (other[0, 15] + 1) % 100

    def changes(both_sides: bool, places: torch.Tensor | None) -> list[int]:
        with torch.no_grad():
            states = [hidden_states(model, x, places, both_sides=both_sides) for x in (ids, other)]
        return torch.nonzero((states[0] - states[1]).abs().amax((0, 2)) > 1e-6).flatten().tolist()

    assert changes(False, None) == list(range(15, 24))
    assert changes(True, None) == list(range(24))
    assert changes(True, places) == list(range(10, 24))
    assert changes(False, places) == list(range(15, 24))


@pytest.mark.parametrize("family", BOTH)
def test_the_loss_is_that_of_a_transcription(family: str, store: TokenStore) -> None:
    """Masks of zeros and transformers' own forward; the mean over states before masked tokens."""
    examples = make_examples("mntp", store, VOCAB, 48)
    batch = examples.collate(np.zeros(6, dtype=np.int64), np.arange(6))
    net = network(family)
    ids, positions = batch.inputs["input_ids"], batch.inputs["positions"]
    with torch.no_grad():
        got = examples.loss(net, batch)["lm"]
        scored = examples.score(net, batch)
        logits = net.model(ids, attention_mask=torch.zeros(6, 1, 48, 48)).logits
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1)[positions], batch.targets["lm"], reduction="sum"
        )
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    assert scored["lm"].item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("family", BOTH)
def test_the_folder_is_causal(family: str, store: TokenStore, tmp_path: Path) -> None:
    examples = make_examples("mntp", store, VOCAB, 48)
    net = network(family)
    apply_fast_paths(net.model, device="cpu", compiled=False, sharded=False)
    batch = examples.collate(np.zeros(6, dtype=np.int64), np.arange(6))
    net.train()
    examples.loss(net, batch)["lm"].backward()
    net.eval()
    net.model.save_pretrained(tmp_path)
    assert "is_causal" not in (tmp_path / "config.json").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = batch.inputs["input_ids"]
    with torch.no_grad():
        whole, part = loaded(ids).logits, loaded(ids[:, :20]).logits
        ours = net(input_ids=ids)["lm"]
    torch.testing.assert_close(whole[:, :20], part, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(whole, ours, rtol=1e-4, atol=1e-4)


def test_who_cannot_see_both_sides() -> None:
    assert {"gpt2", "gpt3", "llama", "qwen3"} <= set(BOTH)
    assert {"gpt1", "elmo", "bert", "t5"}.isdisjoint(BOTH)
    assert get_objective("mntp").BOTH_SIDES
    assert not get_objective("clm").BOTH_SIDES


# --- The z-loss ---


@pytest.mark.parametrize("name", ["clm", "mntp"])
def test_the_penalty_of_the_normalizer(name: str, store: TokenStore) -> None:
    """1e-4 * the mean squared logarithm of the normalizer, over the same targets."""
    examples = make_examples(name, store, VOCAB, 48, z_loss=1e-4)
    plain = make_examples(name, store, VOCAB, 48)
    batch = examples.collate(np.zeros(6, dtype=np.int64), np.arange(6))
    net = make_network("llama", 120, ("lm",), pad_id=EOS, size="tiny").eval()
    with torch.no_grad():
        loss, scores = examples.loss(net, batch), examples.score(net, batch)
        without = plain.loss(net, plain.collate(np.zeros(6, dtype=np.int64), np.arange(6)))
        options = {"both_sides": True} if name == "mntp" else {}
        normalizer = net(**options, **batch.inputs)["lm"].float().logsumexp(-1).flatten()
    expected = 1e-4 * (normalizer[batch.targets["lm"].flatten() >= 0] ** 2).sum().item()
    assert loss["z_loss"].item() == pytest.approx(expected, rel=1e-5)
    assert scores["z_loss"].item() == pytest.approx(expected, rel=1e-5)
    assert loss["lm"].item() == pytest.approx(without["lm"].item(), rel=1e-6)
    mean = loss["z_loss"].item() / batch.counts()["z_loss"]
    assert mean == pytest.approx(1e-4 * np.log(120) ** 2, rel=0.06)  # of a new network
    assert examples.loss_terms == ("lm", "z_loss")
    assert plain.loss_terms == examples.counted_terms == ("lm",)


# --- In use: a network whose config says that it sees both sides ---


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.parametrize("attention", ["eager", "sdpa", "auto"])
def test_padded_rows_of_both_sides_are_those_of_transformers(family: str, attention: str) -> None:
    """transformers reads ``is_causal`` of a config; here it is its own forward with a mask."""
    plain, fast = network(family).model, network(family).model
    plain.set_attn_implementation("eager")
    if attention != "auto":
        fast.set_attn_implementation(attention)
    apply_fast_paths(fast, device="cpu", compiled=False, sharded=False, attention=attention)
    ids = torch.randint(10, 120, (3, 24), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([24, 17, 9])
    mask = (torch.arange(24) < lengths[:, None]).long()
    with torch.no_grad():
        causal = hidden_states(fast, ids, attention_mask=mask)
        for model in (plain, fast):
            model.config.is_causal = False
        expected = plain.base_model(ids, attention_mask=mask).last_hidden_state
        states = hidden_states(fast, ids, attention_mask=mask)
        last = states_at(fast, ids, lengths - 1)
    real = mask.bool()
    torch.testing.assert_close(states[real], expected[real], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last, expected[range(3), lengths - 1], rtol=1e-4, atol=1e-5)
    assert (states - causal)[real].abs().max() > 0.01


@pytest.mark.parametrize("family", ["llama", "auto"])
def test_pretraining_goes_on_from_left_to_right(family: str, tmp_path: Path) -> None:
    """A folder that says otherwise would let ``clm`` see what it predicts."""
    model = network("llama").model
    model.config.is_causal = False
    model.save_pretrained(tmp_path)
    config = get_family(family).Config(family=family, init_from=str(tmp_path))
    again = make_family(config).load_start(("lm",), print)
    assert again.config.is_causal is True
    ids = torch.randint(10, 120, (1, 24), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(
            hidden_states(again, ids)[:, :9], hidden_states(again, ids[:, :9]), rtol=1e-4, atol=1e-5
        )
