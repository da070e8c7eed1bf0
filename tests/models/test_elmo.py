"""ELMo: held to the published TensorFlow outputs, and to its definition by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForPreTraining

from plmctl.models.elmo import (
    CharacterEncoder,
    ElmoConfig,
    ElmoForPreTraining,
    ElmoModel,
    Highway,
    ProjectedLstm,
    ScalarMix,
    boundary,
    encode_sentences,
    encode_words,
)

CONFIG = ElmoConfig(
    vocab_size=40,
    char_embedding_size=5,
    filters=[[1, 6], [3, 10]],
    num_highway_layers=1,
    projection_size=8,
    cell_size=12,
    dropout=0.1,
)
SENTENCES = [["Anna", "sees", "Bela"], ["Who", "?"], ["It", "is", "a", "very", "café", "."]]


@pytest.fixture
def model() -> ElmoModel:
    torch.manual_seed(0)
    return ElmoModel(CONFIG).eval()


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.from_numpy(encode_sentences(SENTENCES))


def test_tensorflow_outputs_of_thirty_sentences(shared_data: Path) -> None:
    """bilm-tf's test model: ten batches of three, the state kept from batch to batch."""
    h5py = pytest.importorskip("h5py")
    from plmctl.models.elmo import convert_published

    folder = shared_data / "parity" / "elmo"
    model = convert_published(folder / "options.json", folder / "lm_weights.hdf5")
    sentences = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    files = [h5py.File(folder / f"lm_embeddings_{row}.hdf5") for row in range(3)]
    state, worst, compared = None, 0.0, 0
    for number in range(10):
        batch = [sentences[row][number].split() for row in range(3)]
        with torch.inference_mode():
            out = model(torch.from_numpy(encode_sentences(batch)), state)
        state = out.state
        for row, words in enumerate(batch):
            expected = np.concatenate(list(files[row][str(number)][...]), axis=-1)
            assert expected.shape == (len(words), 32)
            got = out.last_hidden_state[row, : len(words)].numpy()
            worst = max(worst, float(np.abs(got - expected).max()))
            compared += 1
    assert compared == 30
    assert worst < 5e-6  # measured: 9.5e-7


def test_characters_are_the_published_ones() -> None:
    """allenai/bilm-tf, data.py: `cat` is 258 99 97 116 259 260 ... there, one more here."""
    assert (encode_words(["cat"])[0, :7] - 1).tolist() == [258, 99, 97, 116, 259, 260, 260]
    assert (boundary(257)[:4] - 1).tolist() == [258, 256, 259, 260]
    assert (boundary(258)[:4] - 1).tolist() == [258, 257, 259, 260]
    cafe = encode_words(["é"])[0, :4] - 1
    assert cafe.tolist() == [258, 0xC3, 0xA9, 259]
    long = encode_words(["x" * 100])[0] - 1
    assert long.tolist() == [258, *[ord("x")] * 48, 259]
    assert encode_sentences(SENTENCES).shape == (3, 6, 50)
    assert (encode_sentences(SENTENCES)[1, 2:] == 0).all()
    assert encode_sentences(SENTENCES).max() <= 261
    assert encode_words([]).shape == (0, 50)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_a_step_of_the_lstm_by_hand() -> None:
    """One number wide: gates in the order input, candidate, forget (+1), output; then the clips."""
    layer = ProjectedLstm(1, 1, cell_clip=0.6, projection_clip=0.9)
    with torch.no_grad():
        for direction, scale in enumerate((1.0, -0.5)):
            layer.weight_input[direction] = scale * torch.tensor([[0.5, 1.0, -0.3, 0.2]])
            layer.weight_recurrent[direction] = scale * torch.tensor([[0.1, 0.4, 0.2, -0.6]])
            layer.bias[4 * direction :][:4] = torch.tensor([0.05, -0.1, 0.3, 0.2])
            layer.projection[direction] = torch.tensor([[2.5]])
    inputs, start = (0.7, -1.2), (0.25, -0.4)
    x = torch.tensor(inputs).view(1, 1, 2, 1).repeat(2, 1, 1, 1)
    h0, c0 = (torch.full((2, 1, 1), value) for value in start)
    got, (h, c) = layer(x, (h0, c0), None)
    for direction, scale in enumerate((1.0, -0.5)):
        output, cell = start
        for step, value in enumerate(inputs):
            w_x = [scale * w * value for w in (0.5, 1.0, -0.3, 0.2)]
            w_h = [scale * w * output for w in (0.1, 0.4, 0.2, -0.6)]
            gates = zip(w_x, w_h, (0.05, -0.1, 0.3, 0.2), strict=True)
            i, j, f, o = map(sum, gates)
            cell = sigmoid(f + 1) * cell + sigmoid(i) * math.tanh(j)
            cell = max(-0.6, min(0.6, cell))
            output = max(-0.9, min(0.9, sigmoid(o) * math.tanh(cell) * 2.5))
            assert got[direction, 0, step, 0].item() == pytest.approx(output, abs=1e-6)
        assert (h[direction].item(), c[direction].item()) == pytest.approx((output, cell), abs=1e-6)


def test_clips_are_reached() -> None:
    layer = ProjectedLstm(1, 1, cell_clip=3.0, projection_clip=3.0)
    with torch.no_grad():
        layer.weight_input.fill_(50.0)
        layer.weight_recurrent.zero_()
        layer.bias.zero_()
        layer.projection.fill_(100.0)
    x, zero = torch.ones(2, 1, 9, 1), torch.zeros(2, 1, 1)
    outputs, (_, cell) = layer(x, (zero, zero), None)
    assert (cell == 3.0).all()
    assert (outputs[:, :, -1] == 3.0).all()


def test_the_forward_direction_sees_no_later_word(model: ElmoModel) -> None:
    whole = torch.from_numpy(encode_sentences([["a", "b", "c", "d"]]))
    other = torch.from_numpy(encode_sentences([["a", "b", "x", "d"]]))
    with torch.inference_mode():
        first, second = model(whole), model(other)
    for layer in (1, 2):
        ours, theirs = first.hidden_states[layer][0], second.hidden_states[layer][0]
        assert torch.equal(ours[:2, :8], theirs[:2, :8])  # forward, before the change
        assert torch.equal(ours[3:, 8:], theirs[3:, 8:])  # backward, after it
        assert not torch.allclose(ours[2:, :8], theirs[2:, :8])
        assert not torch.allclose(ours[:3, 8:], theirs[:3, 8:])


def test_backward_is_forward_on_the_reversed_text(model: ElmoModel) -> None:
    """With the directions' weights exchanged; the sentence marks change places too."""
    swapped = ElmoModel(CONFIG).eval()
    swapped.load_state_dict(model.state_dict())
    for layer in swapped.layers:
        for parameter in layer.parameters():
            parameter.data = torch.cat(parameter.data.chunk(2)[::-1])
    vectors = torch.randn(1, 6, 8)
    both = torch.stack([vectors, vectors.flip(1)])
    layers, _ = model.run(both)
    again, _ = swapped.run(both.flip(0))
    for one, other in zip(layers, again, strict=True):
        assert torch.allclose(one[1], other[0], atol=1e-6)


def test_padding_changes_nothing(model: ElmoModel, ids: torch.Tensor) -> None:
    with torch.inference_mode():
        batch = model(ids)
        for row, sentence in enumerate(SENTENCES):
            alone = model(torch.from_numpy(encode_sentences([sentence])))
            for ours, theirs in zip(batch.hidden_states, alone.hidden_states, strict=True):
                assert torch.allclose(ours[row, : len(sentence)], theirs[0], atol=1e-6)
                assert (ours[row, len(sentence) :] == 0).all()
            assert torch.allclose(batch.state[row], alone.state[0], atol=1e-6)
    assert batch.attention_mask.sum(1).tolist() == [3, 2, 6]


def test_layer_zero_is_the_token_twice_and_layer_two_adds_layer_one(
    model: ElmoModel, ids: torch.Tensor
) -> None:
    with torch.inference_mode():
        layers = model(ids).hidden_states
        words = model.characters(torch.from_numpy(encode_words(SENTENCES[0])).long())
        assert torch.allclose(layers[0][0, :3], torch.cat([words, words], -1), atol=1e-6)
        vectors = torch.randn(2, 1, 4, 8)
        (_, first, second), _ = model.run(vectors)
        zero = torch.zeros(2, 1, 8), torch.zeros(2, 1, 12)
        assert torch.equal(second, model.layers[1](first, zero, None)[0] + first)


def test_windows_with_the_state_carried_are_one_long_window(model: ElmoModel) -> None:
    vectors = torch.randn(2, 3, 12, 8)
    whole, end = model.run(vectors)
    state, parts = None, []
    for window in vectors.split(5, dim=2):
        layers, state = model.run(window, state)
        parts.append(layers[-1])
    assert torch.allclose(torch.cat(parts, 2), whole[-1], atol=1e-6)
    assert torch.allclose(state, end, atol=1e-6)


def test_scalar_mix() -> None:
    layers = [torch.randn(2, 3, 4) for _ in range(3)]
    mix = ScalarMix()
    assert torch.allclose(mix(layers), sum(layers) / 3, atol=1e-6)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, math.log(2.0), math.log(5.0)]))
        mix.gamma.fill_(3.0)
    expected = 3 * (layers[0] + 2 * layers[1] + 5 * layers[2]) / 8
    assert torch.allclose(mix(layers), expected, atol=1e-6)
    normalized = ScalarMix(layer_norm=True)(layers, torch.tensor([[1, 1, 0], [1, 0, 0]]))
    seen = normalized[torch.tensor([[True, True, False], [True, False, False]])]
    assert seen.mean().item() == pytest.approx(0, abs=1e-6)


def test_saved_folders_load_through_the_auto_classes(tmp_path: Path, ids: torch.Tensor) -> None:
    torch.manual_seed(1)
    whole = ElmoForPreTraining(CONFIG).eval()
    with torch.no_grad():  # values that no initialization gives
        for parameter in whole.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    whole.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, ElmoConfig)
    assert config.convolutions == [(1, 6), (3, 10)]
    again = AutoModelForPreTraining.from_pretrained(tmp_path)
    assert type(again) is ElmoForPreTraining
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
    body = AutoModel.from_pretrained(tmp_path)
    assert type(body) is ElmoModel
    with torch.inference_mode():
        assert torch.equal(body(ids).last_hidden_state, whole.elmo(ids).last_hidden_state)


def test_weights_start_as_published() -> None:
    torch.manual_seed(0)
    config = ElmoConfig(
        vocab_size=3000, filters=[[2, 64], [3, 64]], projection_size=64, cell_size=256
    )
    model = ElmoForPreTraining(config)
    encoder = model.elmo.characters
    assert isinstance(encoder, CharacterEncoder)
    embedding = encoder.embedding.weight
    assert (embedding[0] == 0).all()
    assert embedding.std().item() == pytest.approx(1 / math.sqrt(3), rel=0.05)
    for conv in encoder.convolutions:
        assert conv.weight.abs().max().item() == pytest.approx(0.05, rel=0.02)
        assert (conv.bias == 0).all()
    highway = encoder.highways[0]
    assert isinstance(highway, Highway)
    assert (highway.gate.bias == -2).all()
    assert (highway.transform.bias == 0).all()
    assert highway.gate.weight.std().item() == pytest.approx(1 / math.sqrt(128), rel=0.03)
    assert encoder.projection.weight.std().item() == pytest.approx(1 / math.sqrt(128), rel=0.03)
    layer = model.elmo.layers[0]
    bound = math.sqrt(6 / (64 + 64 + 4 * 256))
    assert layer.weight_input.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert layer.weight_recurrent.abs().max().item() == pytest.approx(bound, rel=0.01)
    assert (layer.bias == 0).all()
    assert model.head.weight.std().item() == pytest.approx(1 / 8, rel=0.03)
    assert (model.head.bias == 0).all()


def test_converter_says_what_is_wrong(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    from plmctl.errors import DataError
    from plmctl.models.elmo import convert_published

    options, weights = tmp_path / "options.json", tmp_path / "weights.hdf5"
    with pytest.raises(DataError, match="not the options of an ELMo"):
        convert_published(options, weights)
    options.write_text('{"lstm": {}}')
    with pytest.raises(DataError, match="char_cnn"):
        convert_published(options, weights)
