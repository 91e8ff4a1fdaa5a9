"""Conversions to and from flash-linear-attention, against its own models, where it is installed."""

from typing import Any

import pytest
import torch

from statetrack.hf import convert
from tests.helpers import relative_error
from tests.hf.convert.test_fla import CASES, build

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore"),  # theirs
]


def theirs(config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Any:
    import fla.models  # noqa: F401  (registers its models)
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = {name: value for name, value in config.items() if name != "model_type"}
    described = AutoConfig.for_model(config["model_type"], **settings)
    model = AutoModelForCausalLM.from_config(described)
    model.load_state_dict(weights, strict=not config["tie_word_embeddings"])
    model.tie_weights()
    return model.cuda().eval()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("time", "dtype"), [(60, torch.float32), (200, torch.bfloat16)])
def test_logits_are_theirs(name: str, time: int, dtype: torch.dtype) -> None:
    """Up to 64 tokens fla runs token by token and takes float32; beyond them it does not."""
    pytest.importorskip("fla")
    model = build(*CASES[name])
    config, weights = convert.to_fla(model)
    other = theirs(config, weights).to(dtype)
    again = convert.from_fla(weights, config).cuda().to(dtype)
    tokens = torch.randint(50, (2, time), generator=torch.Generator().manual_seed(0)).cuda()
    with torch.no_grad():
        wanted, got = other(tokens).logits, again(tokens)[0]
    error = relative_error(got.float(), wanted.float())
    print(f"{name} {time} {dtype} {error:.1e}")
    assert error < (1e-4 if dtype == torch.float32 else 5e-2)
