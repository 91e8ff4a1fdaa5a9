"""The language model: any mixer, tied or not, cut anywhere, padded, packed, saved."""

import math

import pytest
import torch

from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig
from tests.helpers import relative_error, unhooked
from tests.layers.cases import SIZES, every_layer

VOCAB = 23
TOKENS = torch.randint(VOCAB, (2, 17), generator=torch.Generator().manual_seed(3))


def build(*mixers: str, tied: bool = False, **options: object) -> CausalLM:
    """A small model whose scores differ: at the drawn size of 0.006 they are nearly equal."""
    named = [(name, SIZES.get(name, {})) for name in mixers]
    backbone = BackboneConfig(mixers=named, d_model=32, mlp_dim=48)
    config = CausalLMConfig(
        vocab_size=VOCAB,
        backbone=backbone,
        tie_embeddings=tied,
        embedding_std=0.5,
        projection_std=0.2,
        **options,  # type: ignore[arg-type]
    )
    return CausalLM(config, generator=torch.Generator().manual_seed(0)).double()


@every_layer
@pytest.mark.parametrize("tied", [False, True])
def test_cut_and_step(name: str, tied: bool) -> None:
    model = build(name, name, tied=tied)
    scores, _ = model(TOKENS)
    assert scores.shape == (2, 17, VOCAB)
    first, state = model(TOKENS[:, :9])
    second, _ = model(TOKENS[:, 9:], state)
    assert relative_error(torch.cat([first, second], dim=1), scores) < 1e-9
    state = None
    for t in range(17):
        step, state = model.step(TOKENS[:, t], state)
        assert relative_error(step, scores[:, t]) < 1e-9


@every_layer
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_no_score(name: str, side: str) -> None:
    """Biases are drawn large: padding that enters a convolution would show."""
    model = build(name, "DeltaNet", name)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias"):
                parameter.normal_(std=0.5, generator=generator)
    lengths = (17, 6, 1)
    mask = torch.zeros(3, 17, dtype=torch.bool)
    for row, length in enumerate(lengths):
        mask[row, slice(17 - length, 17) if side == "left" else slice(length)] = True
    tokens = torch.randint(VOCAB, (3, 17), generator=generator)
    scores, state = model(tokens, mask=mask)
    step, _ = model.step(tokens[:, 0], state)
    for row in range(3):
        alone, after = model(tokens[row, mask[row]][None])
        assert relative_error(scores[row, mask[row]], alone[0]) < 1e-9
        one, _ = model.step(tokens[row, :1], after)
        assert relative_error(step[row], one[0]) < 1e-9


def test_packed_equals_alone() -> None:
    model = build("DeltaNet", "Mamba")
    scores, _ = model(TOKENS[:1], cu_seqlens=torch.tensor([0, 5, 17], dtype=torch.int32))
    assert relative_error(scores[:, 5:], model(TOKENS[:1, 5:])[0]) < 1e-9


def test_tied_weights_are_the_embedding() -> None:
    tied, untied = build("DeltaNet", tied=True), build("DeltaNet")
    assert tied.head is None and untied.head is not None
    size = tied.embedding.weight.numel()
    assert sum(p.numel() for p in untied.parameters()) == size + sum(
        p.numel() for p in tied.parameters()
    )


def test_initial_weights() -> None:
    """N(0, 0.006²), and less by √(writes) where the residual stream is written to."""
    backbone = BackboneConfig(mixers=["GLA", "Attention"], d_model=64, mlp_dim=256)
    model = CausalLM(CausalLMConfig(vocab_size=1000, backbone=backbone))
    found = {name: p.std().item() for name, p in model.named_parameters()}
    small = 0.006 / math.sqrt(4)
    for name, std in {
        "embedding.weight": 0.006,
        "head.weight": 0.006,
        "backbone.blocks.0.mixer.q_proj.weight": 0.006,
        "backbone.blocks.0.mixer.out_proj.weight": small,
        "backbone.blocks.1.mixer.qkv_proj.weight": 0.006,
        "backbone.blocks.1.mixer.out_proj.weight": small,
        "backbone.blocks.1.mlp.up_proj.weight": 0.006,
        "backbone.blocks.1.mlp.down_proj.weight": small,
    }.items():
        assert found[name] == pytest.approx(std, rel=0.1), name
    gate = model.backbone.blocks[0].mixer.decay_up  # has a bias: the layer's own draw
    assert gate.weight.std() > 0.05


def test_own_draw_of_the_layers() -> None:
    backbone = BackboneConfig(mixers=["Mamba"] * 3, d_model=64, mlp="none")
    model = CausalLM(CausalLMConfig(vocab_size=10, backbone=backbone, projection_std=None))
    mixer = model.backbone.blocks[0].mixer
    assert mixer.in_proj.weight.std().item() == pytest.approx(64**-0.5 / math.sqrt(3), rel=0.1)
    assert mixer.out_proj.weight.std().item() == pytest.approx(128**-0.5 / 3, rel=0.1)


def test_seed_decides_the_weights() -> None:
    before = torch.random.get_rng_state()
    first, again = build("GatedDeltaNet", "RWKV7"), build("GatedDeltaNet", "RWKV7")
    assert torch.equal(torch.random.get_rng_state(), before), "the global generator was used"
    for one, other in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_bad_tokens_are_named() -> None:
    model = build("DeltaNet")
    for bad in (-1, VOCAB):
        tokens = TOKENS.clone()
        tokens[1, 3] = bad
        with pytest.raises(ValueError, match=f"token {bad} is not in the vocabulary.*0 to 22"):
            model(tokens)
    embed = unhooked(type(model).embed)
    for wrong in (TOKENS[0], TOKENS.double(), TOKENS.to(torch.uint8), TOKENS > 3):
        with pytest.raises(ValueError, match=r"integers \[batch, time\], int64 or int32"):
            embed(model, wrong)
    with pytest.raises(ValueError, match=r"tokens must be a tensor \[batch, time\], got list"):
        embed(model, TOKENS.tolist())
    with pytest.raises(ValueError, match="mask has .* must be bool .* True at tokens"):
        embed(model, TOKENS, torch.ones_like(TOKENS))


@pytest.mark.parametrize("method", ["loss", "losses"])
def test_bad_targets_are_named(method: str) -> None:
    model = build("DeltaNet")
    judge = getattr(CausalLM, method)
    left_out = TOKENS.clone()
    left_out[0, 1] = -100
    for wrong, message in (
        (left_out, "token -100 is not in the vocabulary"),
        (TOKENS + VOCAB, "is not in the vocabulary"),
        (TOKENS[:, 1:], r"targets have shape .* and the tokens"),
        (TOKENS[:1], r"targets have shape .* and the tokens"),
        (TOKENS.double(), "targets have shape .* integers"),
    ):
        with pytest.raises(ValueError, match=message):
            unhooked(judge)(model, TOKENS, wrong)
