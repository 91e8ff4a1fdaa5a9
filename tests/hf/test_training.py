"""Trainer, packed batches and adapters."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    DataCollatorWithFlattening,
    Trainer,
    TrainingArguments,
)

from statetrack.models import CausalLM
from tests.helpers import relative_error
from tests.hf.cases import TOKENS, wrapped
from tests.models.test_causal_lm import VOCAB

ROWS = torch.randint(VOCAB, (8, 12), generator=torch.Generator().manual_seed(7))


class Rows(Dataset[dict[str, Any]]):
    """Sequences of different lengths, with labels that do not count at their padding."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> dict[str, Any]:
        length = 12 - index
        mask = (torch.arange(12) < length).long()
        labels = ROWS[index].masked_fill(mask == 0, -100)
        return {"input_ids": ROWS[index], "attention_mask": mask, "labels": labels}


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    options = {"max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-2} | options
    return TrainingArguments(
        folder,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy=options.pop("save_strategy", "no"),
        dataloader_pin_memory=False,
        max_grad_norm=0.0,
        optim="sgd",
        lr_scheduler_type="constant",
        **options,
    )


def trained(folder: Path, resume: str | None = None, **options: Any) -> dict[str, torch.Tensor]:
    model = wrapped("DeltaNet", "Mamba")
    trainer = Trainer(model, arguments(folder, **options), train_dataset=Rows())
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.model_accepts_loss_kwargs
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert relative_error(found[name], weight) < 1e-6, name


def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    """The loss counts tokens over the batch, not over its parts: sequences differ in length."""
    whole = trained(tmp_path)
    start = dict(wrapped("DeltaNet", "Mamba").named_parameters())
    assert relative_error(whole["model.head.weight"], start["model.head.weight"]) > 1e-3
    parts = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}
    assert_equal(trained(tmp_path, **parts), whole)
    assert_equal(trained(tmp_path, gradient_checkpointing=True), whole)


def test_resumed_equals_never_interrupted(tmp_path: Path) -> None:
    whole = trained(tmp_path / "a", save_strategy="steps", save_steps=2)
    checkpoint = tmp_path / "a" / "checkpoint-2"
    assert CausalLM.load(checkpoint).config == wrapped("DeltaNet", "Mamba").model.config
    assert_equal(trained(tmp_path / "b", resume=str(checkpoint)), whole)


@pytest.mark.parametrize(
    "options",
    [
        {"return_flash_attn_kwargs": True},
        {"return_flash_attn_kwargs": True, "return_position_ids": False},
        {"return_seq_idx": True, "return_position_ids": False},
        {},
        {"position_ids_start": 1},
    ],
)
def test_packed_sequences_equal_each_alone(options: dict[str, Any]) -> None:
    """With every option of the collator: what is told of the sequences is never left unused."""
    model = wrapped("DeltaNet", "Mamba")
    rows = [ROWS[0, :5], ROWS[1, :1], ROWS[2, :9]]
    try:
        collator = DataCollatorWithFlattening(**options)
    except TypeError:
        pytest.skip("this version of the collator has no such option")
    batch = collator([{"input_ids": row.tolist()} for row in rows])
    output = model(**batch)
    alone = torch.cat([model(row[None]).logits for row in rows], dim=1)
    assert relative_error(output.logits, alone) < 1e-9
    assert output.past_key_values is None
    losses = [
        model(row[None], labels=row[None], num_items_in_batch=12).loss for row in (rows[0], rows[2])
    ]
    assert relative_error(output.loss, sum(losses)) < 1e-6


def test_trainer_on_packed_sequences(tmp_path: Path) -> None:
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    rows = [{"input_ids": row[: 12 - i].tolist()} for i, row in enumerate(ROWS)]
    model = wrapped("DeltaNet", "Mamba")
    trainer = Trainer(model, arguments(tmp_path), train_dataset=rows, data_collator=collator)
    trainer.train()
    assert_equal(dict(model.named_parameters()), trained(tmp_path))


@pytest.mark.parametrize("name", ["DeltaNet", "Mamba", "GLA", "Attention"])
def test_adapters_on_projections(name: str, tmp_path: Path) -> None:
    """LoRA counts wherever a projection is used, in halves too, and merges to the same."""
    base = wrapped(name)
    before = base(TOKENS).logits.detach()
    targets = [n for n, m in base.named_modules() if n.endswith("_proj") and m.bias is None]
    assert any(n.endswith("up_proj") for n in targets)
    options = peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, target_modules=targets, init_lora_weights=False
    )
    torch.manual_seed(0)
    model = peft.get_peft_model(base, options).double()
    changed = model(TOKENS, labels=TOKENS)
    assert relative_error(changed.logits, before) > 1e-3
    changed.loss.backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert "lora_" in parameter_name and parameter.grad.abs().max() > 0, parameter_name
    new = model.generate(TOKENS, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert torch.equal(
        new, model.generate(TOKENS, max_new_tokens=3, do_sample=False, use_cache=False)
    )
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(wrapped(name), tmp_path / "adapter").double()
    assert relative_error(again(TOKENS).logits, changed.logits) < 1e-6
    merged = model.merge_and_unload()
    assert relative_error(merged(TOKENS).logits, changed.logits) < 1e-9
    merged.save_pretrained(tmp_path / "merged")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    assert relative_error(loaded(TOKENS).logits, changed.logits) < 1e-9


def test_adapters_with_gradient_checkpointing(tmp_path: Path) -> None:
    options = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["qkv_proj", "in_proj"])
    model = peft.get_peft_model(wrapped("DeltaNet", "Mamba"), options)
    frozen = model.base_model.model.model.head.weight.clone()
    settings = arguments(tmp_path, gradient_checkpointing=True)
    Trainer(model, settings, train_dataset=Rows()).train()
    assert torch.equal(model.base_model.model.model.head.weight, frozen)
    moved = [p.abs().max() for n, p in model.named_parameters() if "lora_B" in n]
    assert len(moved) == 2 and min(moved) > 0


def test_adapters_on_the_embedding() -> None:
    options = peft.LoraConfig(r=2, target_modules=["embedding"], init_lora_weights=False)
    base = wrapped("DeltaNet")
    before = base(TOKENS).logits.detach()
    model = peft.get_peft_model(base, options).double()
    assert relative_error(model(TOKENS).logits, before) > 1e-3
