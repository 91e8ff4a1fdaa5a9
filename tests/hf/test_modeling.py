"""Each mixer in transformers: cached as uncached, in a batch as alone, loaded as saved."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.cache_utils import DynamicCache

from statetrack.hf import StatetrackCache, StatetrackConfig, StatetrackForCausalLM
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig
from tests.helpers import relative_error
from tests.hf.cases import TOKENS, padded, wrapped
from tests.layers.cases import every_layer
from tests.models.test_causal_lm import VOCAB, build
from tests.test_package import ROOT

FLOAT32 = 1e-6
"""`generate` gives logits in float32, whatever they were."""


@every_layer
def test_cached_equals_uncached(name: str) -> None:
    """On logits: the whole, a cut, single tokens, and what `generate` saw."""
    model = wrapped(name, "DeltaNet", name)
    whole = model(TOKENS).logits
    assert relative_error(whole, model.model(TOKENS)[0]) < 1e-12
    first = model(TOKENS[:, :7], use_cache=True)
    cache = first.past_key_values
    assert cache.get_seq_length() == 7 and cache.batch_size == 3
    parts = [first.logits]
    for t in range(7, 11):
        step = model(TOKENS[:, t : t + 1], past_key_values=cache, use_cache=True)
        assert step.past_key_values is cache
        parts.append(step.logits)
    assert relative_error(torch.cat(parts, dim=1), whole) < 1e-9
    done = generated(model, TOKENS)
    slow = generated(model, TOKENS, use_cache=False)
    assert torch.equal(done.sequences, slow.sequences)
    assert done.past_key_values.get_seq_length() == 11 + 3
    seen = torch.stack(done.logits, dim=1)
    assert relative_error(seen, torch.stack(slow.logits, dim=1)) < FLOAT32
    assert relative_error(seen, model(done.sequences).logits[:, 10:-1]) < FLOAT32


def generated(model: StatetrackForCausalLM, tokens: torch.Tensor, **options: object):
    options = {"max_new_tokens": 4, "do_sample": False, "output_logits": True} | options
    return model.generate(tokens, return_dict_in_generate=True, pad_token_id=0, **options)


@every_layer
@pytest.mark.parametrize("side", ["left", "right"])
def test_in_a_batch_equals_alone(name: str, side: str) -> None:
    model = wrapped(name, "DeltaNet", name)
    mask = padded(side)
    logits = model(TOKENS, attention_mask=mask).logits
    for row in range(3):
        alone = TOKENS[row, mask[row].bool()][None]
        assert relative_error(logits[row, mask[row].bool()], model(alone).logits[0]) < 1e-9
    if side == "left":
        together = generated(model, TOKENS, attention_mask=mask)
        for row in range(3):
            single = generated(model, TOKENS[row, mask[row].bool()][None])
            for step, one in zip(together.logits, single.logits, strict=True):
                assert relative_error(step[row], one[0]) < FLOAT32


@every_layer
@pytest.mark.parametrize("tied", [False, True])
def test_saved_equals_loaded(name: str, tied: bool, tmp_path: Path) -> None:
    """One format: each side reads what the other wrote, whole and in pieces."""
    model = build(name, tied=tied)
    scores = model(TOKENS)[0]
    model.save(tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float64)
    assert isinstance(theirs, StatetrackForCausalLM) and not theirs.training
    assert relative_error(theirs(TOKENS).logits, scores) < 1e-12
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("model-*.safetensors"))) > 1
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", dtype="auto")
    assert again.dtype == torch.float64
    assert relative_error(again(TOKENS).logits, scores) < 1e-12
    back = CausalLM.load(tmp_path / "theirs")
    assert back.config == model.config
    assert relative_error(back(TOKENS)[0], scores) < 1e-12


def test_dtype_and_device_map(tmp_path: Path) -> None:
    wrapped("DeltaNet", "Mamba").save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype, device_map="cpu")
        assert model.dtype == dtype and model(TOKENS).logits.dtype == dtype
        assert {p.dtype for p in model.parameters()} == {dtype}
    low = model(TOKENS).logits.double()
    assert relative_error(low, wrapped("DeltaNet", "Mamba")(TOKENS).logits) < 0.1


@pytest.mark.parametrize("mlp", ["swiglu", "none"])
def test_weights_on_disk(tmp_path: Path, mlp: str) -> None:
    """Blocks whose weights come from disk when they run, as accelerate places large models."""
    backbone = BackboneConfig(mixers=["DeltaNet", "Mamba"], d_model=32, mlp=mlp, mlp_dim=48)
    config = CausalLMConfig(vocab_size=VOCAB, backbone=backbone)
    model = CausalLM(config, generator=torch.Generator().manual_seed(0)).double()
    model.save(tmp_path)
    places = {"model.embedding": "cpu", "model.head": "cpu", "model.backbone.norm": "cpu"}
    places |= {"model.backbone.blocks.0": "cpu", "model.backbone.blocks.1": "disk"}
    offloaded = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float64, device_map=places, offload_folder=tmp_path / "disk"
    )
    assert next(offloaded.model.backbone.blocks[1].parameters()).is_meta
    assert relative_error(offloaded(TOKENS).logits, model(TOKENS)[0]) < 1e-12


def test_weights_that_a_checkpoint_lacks_are_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = build("DeltaNet", tied=True)
    model.save(tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    described["model"]["tie_embeddings"] = False
    (tmp_path / "config.json").write_text(json.dumps(described))
    loaded, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, output_loading_info=True
    )
    assert set(report["missing_keys"]) == {"model.head.weight"}
    assert 0.4 < loaded.model.head.weight.std() < 0.6
    assert torch.equal(loaded.model.embedding.weight, model.embedding.weight.float())


def test_new_models_are_drawn_by_causal_lm() -> None:
    config = StatetrackConfig(build("GLA").config)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    torch.manual_seed(3)
    expected = CausalLM(config.description)
    for name, parameter in expected.named_parameters():
        assert torch.equal(model.model.get_parameter(name), parameter), name


@every_layer
def test_beam_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    reorder = StatetrackCache.reorder_cache

    def recorded(cache: StatetrackCache, beam_idx: torch.Tensor) -> None:
        orders.append(beam_idx.tolist())
        reorder(cache, beam_idx)

    monkeypatch.setattr(StatetrackCache, "reorder_cache", recorded)
    model = wrapped(name, "DeltaNet")
    options = {"num_beams": 3, "max_new_tokens": 5, "output_logits": False}
    options |= {"output_scores": True}
    with_cache = generated(model, TOKENS, **options)
    assert any(order != list(range(9)) for order in orders), "no beam changed its place"
    without = generated(model, TOKENS, use_cache=False, **options)
    assert torch.equal(with_cache.sequences, without.sequences)
    assert relative_error(with_cache.sequences_scores, without.sequences_scores) < FLOAT32


def test_sampling_and_several_answers() -> None:
    model = wrapped("GatedDeltaNet")
    torch.manual_seed(0)
    many = model.generate(
        TOKENS, do_sample=True, num_return_sequences=2, top_k=5, max_new_tokens=3, pad_token_id=0
    )
    assert many.shape == (6, 14)


def test_a_prompt_that_was_read_before() -> None:
    """A cache from outside, used twice, whole and chunk by chunk."""
    model = wrapped("DeltaNet", "Attention", "Mamba2")
    expected = generated(model, TOKENS)
    with torch.no_grad():
        cache = model(TOKENS[:, :6], use_cache=True).past_key_values
    for _ in range(2):
        done = generated(model, TOKENS, past_key_values=copy.deepcopy(cache))
        assert torch.equal(done.sequences, expected.sequences)


def test_a_prompt_chunk_by_chunk() -> None:
    """Padding is padding in every chunk, also where the first one is shorter than it."""
    model = wrapped("Mamba2", "Attention")
    for mask, size in ((torch.ones_like(TOKENS), 4), (padded("left"), 10)):
        expected = generated(model, TOKENS[:2], attention_mask=mask[:2])
        options = {"past_key_values": StatetrackCache(), "prefill_chunk_size": size}
        done = generated(model, TOKENS[:2], attention_mask=mask[:2], **options)
        for found, step in zip(done.logits, expected.logits, strict=True):
            assert relative_error(found, step) < FLOAT32
    with pytest.raises(ValueError, match="row 1 of the mask has no token"):
        options = {"past_key_values": StatetrackCache(), "prefill_chunk_size": 4}
        generated(model, TOKENS[:2], attention_mask=padded("left")[:2], **options)


def test_assisted_generation_is_refused() -> None:
    model = wrapped("DeltaNet")
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        model.generate(TOKENS[:1], assistant_model=wrapped("DeltaNet"), max_new_tokens=2)
    with pytest.raises(ValueError, match="assisted generation is not supported"):
        model.generate(TOKENS[:1], prompt_lookup_num_tokens=2, max_new_tokens=2)
    with pytest.raises(ValueError, match="DynamicCache, but a statetrack model takes"):
        model(TOKENS, past_key_values=DynamicCache())


def test_outputs_that_users_expect() -> None:
    model = wrapped("DeltaNet", "Mamba")
    output = model(TOKENS, labels=TOKENS, output_hidden_states=True)
    assert set(output) == {"loss", "logits", "past_key_values", "hidden_states"}
    first, middle, last = output.hidden_states
    assert torch.equal(first, model.get_input_embeddings()(TOKENS))
    assert torch.equal(middle, model.model.backbone.blocks[0](first)[0])
    assert torch.equal(model.model.scores(last), output.logits)
    expected = torch.nn.functional.cross_entropy(
        output.logits[:, :-1].float().flatten(0, 1), TOKENS[:, 1:].flatten()
    )
    assert relative_error(output.loss, expected) < 1e-6
    summed = model(TOKENS, labels=TOKENS, num_items_in_batch=60)
    assert relative_error(summed.loss, expected * 30 / 60) < 1e-6
    as_tuple = model(TOKENS, labels=TOKENS, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[1], output.logits)
    assert "past_key_values" not in model(TOKENS, use_cache=False)
    assert "past_key_values" not in model.train()(TOKENS)


@pytest.mark.parametrize("hidden", [False, True])
def test_some_scores_alone(hidden: bool) -> None:
    model = wrapped("DeltaNet", "GLA")
    whole = model(TOKENS).logits
    for asked, places in ((3, slice(8, 11)), (torch.tensor([0, 4, -1]), [0, 4, 10])):
        kept = model(TOKENS, logits_to_keep=asked, output_hidden_states=hidden)
        assert relative_error(kept.logits, whole[:, places]) < 1e-12
        assert not hidden or kept.hidden_states[-1].shape[1] == 11
    mask = padded("left")
    last = model(TOKENS, attention_mask=mask, logits_to_keep=1).logits
    assert relative_error(last, model(TOKENS, attention_mask=mask).logits[:, -1:]) < 1e-12


def test_vectors_instead_of_tokens() -> None:
    model = wrapped("Mamba", "DeltaNet")
    vectors = model.get_input_embeddings()(TOKENS)
    assert torch.equal(model(inputs_embeds=vectors).logits, model(TOKENS).logits)
    done = model.generate(inputs_embeds=vectors, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert torch.equal(done, generated(model, TOKENS, max_new_tokens=3).sequences[:, 11:])
    with pytest.raises(ValueError, match="one of input_ids and inputs_embeds"):
        model(TOKENS, inputs_embeds=vectors)
    with pytest.raises(ValueError, match=r"inputs_embeds has shape .* with hidden_size = "):
        model(inputs_embeds=vectors[..., :-1])
    with pytest.raises(ValueError, match=r"input_ids have shape .* integers \[batch, time\]"):
        model(TOKENS[0])


def test_bad_input_is_named() -> None:
    model = wrapped("DeltaNet")
    wrong = TOKENS.clone()
    wrong[1, 2] = VOCAB
    with pytest.raises(ValueError, match=f"token {VOCAB} is not in the vocabulary.*0 to 22"):
        model(wrong)
    with pytest.raises(ValueError, match=f"label {VOCAB} is not in the vocabulary.*0 to 22.*-100"):
        model(TOKENS, labels=wrong)
    with pytest.raises(ValueError, match=r"labels have shape \(3, 10\)"):
        model(TOKENS, labels=TOKENS[:, 1:])
    with pytest.raises(ValueError, match=r"attention_mask has shape \(3, 1, 11, 11\)"):
        model(TOKENS, attention_mask=torch.ones(3, 1, 11, 11))
    with pytest.raises(ValueError, match="leave out logits_to_keep"):
        model(TOKENS, labels=TOKENS, logits_to_keep=2)
    with pytest.raises(ValueError, match="no attention weights"):
        model(TOKENS, output_attentions=True)
    with pytest.raises(TypeError, match="cu_seqlens"):
        model(TOKENS, cu_seqlens=torch.tensor([0, 11]))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mean_resizing", [False, True])
def test_resizing_the_vocabulary(tied: bool, mean_resizing: bool, tmp_path: Path) -> None:
    model = wrapped("DeltaNet", tied=tied)
    before = model(TOKENS).logits
    table = model.resize_token_embeddings(VOCAB + 5, mean_resizing=mean_resizing)
    assert table is model.get_input_embeddings() and len(table.weight) == VOCAB + 5
    assert (model.get_output_embeddings() is None) == tied
    assert model.config.vocab_size == model.model.config.vocab_size == VOCAB + 5
    after = model(TOKENS, labels=TOKENS + 5).logits
    assert after.shape[-1] == VOCAB + 5
    assert relative_error(after[..., :VOCAB], before) < 1e-12
    model.tie_weights()
    model.save_pretrained(tmp_path)
    assert relative_error(CausalLM.load(tmp_path)(TOKENS)[0], after) < 1e-12
    model.resize_token_embeddings(VOCAB)
    assert relative_error(model(TOKENS).logits, before) < 1e-12


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradient_checkpointing(reentrant: bool | None) -> None:
    """The same gradients, with blocks run twice; dropout is drawn as before."""
    found = []
    for checkpointing in (False, True):
        model = wrapped("DeltaNet", "Attention", "Mamba").train()
        for block in model.model.backbone.blocks:
            block.dropout = 0.2
        calls: list[None] = []
        model.model.backbone.blocks[1].register_forward_pre_hook(
            lambda *_, calls=calls: calls.append(None)
        )
        if checkpointing:
            options = None if reentrant is None else {"use_reentrant": reentrant}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
            assert model.is_gradient_checkpointing
        torch.manual_seed(0)
        output = model(TOKENS, labels=TOKENS, use_cache=True)
        assert (output.past_key_values is None) == checkpointing
        output.loss.backward()
        assert len(calls) == 1 + checkpointing
        found.append({name: p.grad for name, p in model.named_parameters()})
    plain, again = found
    for name, gradient in plain.items():
        assert relative_error(again[name], gradient) < 1e-9, name
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


def test_generation_config_travels(tmp_path: Path) -> None:
    model = wrapped("DeltaNet")
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0, max_new_tokens=3)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.generation_config.eos_token_id == 2
    assert again.generate(TOKENS).shape[1] <= 14


COMPILE = """
import torch
from tests.helpers import relative_error
from tests.hf.cases import TOKENS, wrapped

model = wrapped("DeltaNet").float().train()
compiled = torch.compile(model, fullgraph=True)
loss = compiled(TOKENS, labels=TOKENS).loss
expected = model(TOKENS, labels=TOKENS).loss
assert relative_error(loss, expected) < 1e-5
loss.backward()
found = model.model.embedding.weight.grad.clone()
model.zero_grad()
expected.backward()
assert relative_error(found, model.model.embedding.weight.grad) < 1e-4
mask = torch.ones_like(TOKENS)
mask[0, :3] = 0
compiled = torch.compile(model.eval(), backend="aot_eager")
with torch.no_grad():
    found = compiled(TOKENS, attention_mask=mask).logits
    assert relative_error(found, model(TOKENS, attention_mask=mask).logits) < 1e-4
"""


@pytest.mark.slow
def test_compiled() -> None:
    """Forward and gradient in one graph; padding in several. Shape checks cannot be compiled."""
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
