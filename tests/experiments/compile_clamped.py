"""Clamps compiled models; a process of its own, because the tests' shape hook cannot be traced."""

import torch

from statetrack.experiments.language_control import never_negative
from statetrack.models import BackboneConfig, CausalLM, CausalLMConfig


def main() -> None:
    backbone = BackboneConfig(mixers=[("DeltaNet", {"num_heads": 2})] * 2, d_model=8, mlp_dim=16)
    config = CausalLMConfig(vocab_size=16, backbone=backbone, projection_std=1.0)
    model = CausalLM(config, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(0, 16, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        free = model(tokens)[0]
        with never_negative(model):
            clamped = model(tokens)[0]
        assert not torch.allclose(free, clamped, atol=1e-3)
        for block in model.backbone.blocks:
            block.compile(backend="aot_eager")
        for _ in range(2):
            assert torch.allclose(model(tokens)[0], free, atol=1e-5)
            with never_negative(model):
                assert torch.allclose(model(tokens)[0], clamped, atol=1e-5)
    print("ok")


if __name__ == "__main__":
    main()
