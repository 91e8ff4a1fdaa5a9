"""AdamW: which parameters decay."""

import torch

from statetrack.models import Tagger, paper_config
from statetrack.training import OptimizerConfig
from statetrack.training.optimizer import decays, make_optimizer


def test_parameter_groups_of_the_paper() -> None:
    mamba = Tagger(paper_config("Mamba", vocab_size=3, d_model=16))
    spared = {n for n, p in mamba.named_parameters() if not decays(n, p, "all_but_state")}
    assert {name.split(".")[-1] for name in spared} == {"A_log", "D"}
    slstm = Tagger(paper_config("SLSTM", vocab_size=3, d_model=16))
    spared = {n for n, p in slstm.named_parameters() if not decays(n, p, "matrices")}
    assert "embedding.weight" in spared and "head.weight" not in spared
    assert "backbone.blocks.0.mixer.norm.weight" in spared
    assert "backbone.blocks.0.mixer.R" not in spared
    optimizer = make_optimizer(mamba, OptimizerConfig(weight_decay=0.1))
    counts = {
        g["weight_decay"]: sum(p.numel() for p in g["params"]) for g in optimizer.param_groups
    }
    assert counts[0.0] == 2 * (32 * 16 + 32)
    assert sum(counts.values()) == sum(p.numel() for p in mamba.parameters())
    everything = make_optimizer(mamba, OptimizerConfig(weight_decay=0.1, decay="all"))
    assert len(everything.param_groups) == 1


def test_decay_acts_where_it_should() -> None:
    """With a zero gradient AdamW's step is the decay alone."""
    model = Tagger(paper_config("Mamba", vocab_size=3, d_model=16))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = make_optimizer(model, OptimizerConfig(lr=0.1, weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        kept = 1.0 if name.endswith(("A_log", ".D")) else 0.95
        torch.testing.assert_close(parameter.detach(), before[name] * kept)
