"""fla's RWKV-7 against the published model, written out in numpy under fla's names."""

from typing import Any

import numpy as np
import pytest
import torch

from statetrack.hf import convert
from statetrack.models import CausalLM
from tests.helpers import relative_error
from tests.hf.convert.test_fla import CASES, build

WIDTH, HEADS, HIDDEN, VOCAB, LAYERS = 24, 3, 40, 31, 3
RANKS = {"decay": 4, "a": 5, "gate": 6, "v": 3}
CONFIG: dict[str, Any] = {
    "model_type": "rwkv7",
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_heads": HEADS,
    "head_dim": WIDTH // HEADS,
    "intermediate_size": HIDDEN,
    "hidden_act": "sqrelu",
    "norm_first": True,
    "norm_bias": True,
    "norm_eps": 1e-5,
    "fuse_norm": False,
    "value_dim": [WIDTH] * LAYERS,
    "vocab_size": VOCAB,
    "tie_word_embeddings": False,
} | {f"{name}_low_rank_dim": rank for name, rank in RANKS.items()}
TOKENS = torch.randint(VOCAB, (2, 20), generator=torch.Generator().manual_seed(0))


def shapes() -> dict[str, tuple[int, ...]]:
    """Every weight of fla 0.6.0's RWKV7ForCausalLM, by its name there."""
    found: dict[str, tuple[int, ...]] = {
        "model.embeddings.weight": (VOCAB, WIDTH),
        "lm_head.weight": (VOCAB, WIDTH),
    }
    norms = ["model.norm", "model.layers.0.pre_norm"]
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        norms += [f"{layer}.attn_norm", f"{layer}.ffn_norm", f"{layer}.attn.g_norm"]
        for name in "rwkvag":
            found[f"{layer}.attn.x_{name}"] = (1, 1, WIDTH)
        for name in "rkvo":
            found[f"{layer}.attn.{name}_proj.weight"] = (WIDTH, WIDTH)
        for name, rank in (("w", "decay"), ("a", "a"), ("g", "gate"), ("v", "v")):
            if name == "v" and i == 0:
                continue
            found[f"{layer}.attn.{name}_lora.lora.0.weight"] = (RANKS[rank], WIDTH)
            found[f"{layer}.attn.{name}_lora.lora.2.weight"] = (WIDTH, RANKS[rank])
            if name != "g":
                found[f"{layer}.attn.{name}_lora.lora.2.bias"] = (WIDTH,)
        found[f"{layer}.attn.k_k"] = found[f"{layer}.attn.k_a"] = (WIDTH,)
        found[f"{layer}.attn.r_k"] = (HEADS, WIDTH // HEADS)
        found[f"{layer}.ffn.x_k"] = (WIDTH,)
        found[f"{layer}.ffn.key.weight"] = (HIDDEN, WIDTH)
        found[f"{layer}.ffn.value.weight"] = (WIDTH, HIDDEN)
    for norm in norms:
        found[f"{norm}.weight"] = found[f"{norm}.bias"] = (WIDTH,)
    return found


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in shapes().items():
        scale = 0.3 if len(shape) == 2 else 0.5
        made[name] = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("norm.weight"):
            made[name] += 1
    return made


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def normed(x: np.ndarray, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)


def published(W: dict[str, np.ndarray], tokens: np.ndarray, eps: float = 0.0) -> np.ndarray:
    """RWKV-7 as its paper defines it (section 4), a token at a time, state S[value, key]."""

    def layer_norm(x: np.ndarray, name: str) -> np.ndarray:
        return normed(x, 1e-5) * W[f"{name}.weight"] + W[f"{name}.bias"]

    def lora(x: np.ndarray, name: str, inner: Any) -> np.ndarray:
        up = inner(x @ W[f"{name}.lora.0.weight"].T) @ W[f"{name}.lora.2.weight"].T
        return up + W.get(f"{name}.lora.2.bias", 0.0)

    def same(x: np.ndarray) -> np.ndarray:
        return x

    dim = WIDTH // HEADS
    states = np.zeros((LAYERS, HEADS, dim, dim))
    before = np.zeros((LAYERS, 2, WIDTH))  # of each layer, for its two parts
    logits = []
    for token in tokens:
        x = layer_norm(W["model.embeddings.weight"][token], "model.layers.0.pre_norm")
        first = None
        for i in range(LAYERS):
            name = f"model.layers.{i}"
            A = f"{name}.attn"
            seen = layer_norm(x, f"{name}.attn_norm")
            mixed = {m: seen + W[f"{A}.x_{m}"][0, 0] * (before[i, 0] - seen) for m in "rwkvag"}
            before[i, 0] = seen
            r, k, v = (mixed[m] @ W[f"{A}.{m}_proj.weight"].T for m in "rkv")
            decay = np.exp(-np.exp(-0.5) * sigmoid(lora(mixed["w"], f"{A}.w_lora", np.tanh)))
            rate = sigmoid(lora(mixed["a"], f"{A}.a_lora", same))
            gate = lora(mixed["g"], f"{A}.g_lora", sigmoid)
            if first is None:
                first = v
            else:
                v = v + sigmoid(lora(mixed["v"], f"{A}.v_lora", same)) * (first - v)
            removed = (k * W[f"{A}.k_k"]).reshape(HEADS, dim)
            removed = removed / np.sqrt((removed**2).sum(-1, keepdims=True) + eps)
            k = k * (1 + (rate - 1) * W[f"{A}.k_a"])
            r, k, v, decay, rate = (p.reshape(HEADS, dim) for p in (r, k, v, decay, rate))
            read = np.zeros((HEADS, dim))
            for h in range(HEADS):
                S = states[i, h]
                S = S * decay[h] - np.outer(S @ removed[h], rate[h] * removed[h])
                states[i, h] = S + np.outer(v[h], k[h])
                read[h] = states[i, h] @ r[h]
            y = normed(read, dim * 1e-5).reshape(WIDTH)
            y = y * W[f"{A}.g_norm.weight"] + W[f"{A}.g_norm.bias"]
            y = y + ((r * k * W[f"{A}.r_k"]).sum(-1, keepdims=True) * v).reshape(WIDTH)
            x = x + (y * gate) @ W[f"{A}.o_proj.weight"].T
            seen = layer_norm(x, f"{name}.ffn_norm")
            mixed_k = seen + W[f"{name}.ffn.x_k"] * (before[i, 1] - seen)
            before[i, 1] = seen
            inner = np.maximum(mixed_k @ W[f"{name}.ffn.key.weight"].T, 0) ** 2
            x = x + inner @ W[f"{name}.ffn.value.weight"].T
        logits.append(layer_norm(x, "model.norm") @ W["lm_head.weight"].T)
    return np.stack(logits)


@pytest.mark.parametrize("fused", [False, True])
def test_logits_are_those_of_the_published_model(fused: bool) -> None:
    """fla's fused norms have an epsilon beneath the root of a key's length."""
    W = weights()
    plain = {name: tensor.numpy() for name, tensor in W.items()}
    wanted = np.stack([published(plain, row, 1e-6 * fused) for row in TOKENS.numpy()])
    model = convert.from_fla(W, CONFIG | {"fuse_norm": fused})
    got = model(TOKENS)[0]
    assert relative_error(got, torch.from_numpy(wanted)) < 1e-10
    assert wanted.std() > 0.1, "nearly constant logits would show nothing"


def test_prompts_in_pieces_and_with_padding() -> None:
    """Both token shifts are part of the state, and see no padding."""
    model = convert.from_fla(weights(), CONFIG)
    whole, _ = model(TOKENS)
    head, state = model(TOKENS[:, :7])
    tail, _ = model(TOKENS[:, 7:], state)
    assert relative_error(torch.cat([head, tail], dim=1), whole) < 1e-10
    mask = torch.ones(2, 20, dtype=torch.bool)
    mask[1, :6] = False
    padded, _ = model(TOKENS, mask=mask)
    assert relative_error(padded[1:, 6:], model(TOKENS[1:, 6:])[0]) < 1e-10
    row = torch.cat([TOKENS[:1, :9], TOKENS[1:, :4]], dim=1)
    packed, _ = model(row, cu_seqlens=torch.tensor([0, 9, 13], dtype=torch.int32))
    assert relative_error(packed[:, 9:], whole[1:, :4]) < 1e-10


@pytest.mark.parametrize(
    "change", [{}, {"norm_first": False}, {"norm_bias": False}, {"tie_word_embeddings": True}]
)
def test_back_again(change: dict[str, Any]) -> None:
    W, config = weights(), CONFIG | change
    if not config["norm_first"]:
        W = {name: tensor for name, tensor in W.items() if "pre_norm" not in name}
    if not config["norm_bias"]:
        W = {name: W[name] for name in W if not name.endswith("norm.bias") or "g_norm" in name}
    if config["tie_word_embeddings"]:
        del W["lm_head.weight"]
    described, again = convert.to_fla(convert.from_fla(W, config))
    assert again.keys() == W.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in W.items())
    for name, value in described.items():
        if name != "architectures":
            assert value == config[name], name
    assert convert.from_fla(again, described).config == convert.from_fla(W, config).config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"norm_eps": 1e-6}, "norm_eps=1e-06"),
        ({"value_dim": [2 * WIDTH] * LAYERS}, "value_dim"),
        ({"attn": {"layers": [1]}}, "it has attn"),
    ],
)
def test_options_without_a_counterpart_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match="cannot be converted exactly.*" + words):
        convert.from_fla(weights(), CONFIG | change)


def test_a_missing_weight_is_named() -> None:
    W = weights()
    del W["model.layers.2.attn.v_lora.lora.0.weight"]
    with pytest.raises(ValueError, match="no weights model.layers.2.attn.v_lora.lora.0.weight"):
        convert.from_fla(W, CONFIG)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eigen_range": (-1.0, 1.0)}, "eigen_range=None"),
        ({"qk_eps": 0.1}, "qk_eps of 0 or 1e-06"),
        ({"value_rank": None}, "a value residual"),
    ],
)
def test_what_fla_does_not_have(changes: dict[str, Any], words: str) -> None:
    layer, options = CASES["RWKV7"]
    model: CausalLM = build(layer, options | changes)
    with pytest.raises(ValueError, match="cannot be written for fla exactly.*" + words):
        convert.to_fla(model)
