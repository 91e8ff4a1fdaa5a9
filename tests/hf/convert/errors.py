"""How far converted models are from the originals: the table in docs/guide/convert.md.

    python -m tests.hf.convert.errors      # one core, about a minute

For each model the largest difference of logits over the largest logit, in float32 on this CPU, over
five random models with all weights stirred. transformers' models are compared with its own code.
fla runs on a GPU alone; its RWKV-7 and KDA are compared with the published definitions in float64.
"""

import warnings

import numpy as np
import torch

from statetrack.hf import convert
from tests.helpers import relative_error
from tests.hf.convert import test_convert, test_fla, test_fla_rwkv7

SEEDS = range(5)


def of_transformers(name: str, seed: int) -> float:
    theirs = test_convert.MODELS[name](seed=seed)
    ours = convert.from_transformers(theirs)
    tokens = torch.randint(50, (2, 70), generator=torch.Generator().manual_seed(seed))
    return relative_error(ours(tokens)[0], theirs(tokens).logits)


def of_rwkv7(seed: int) -> float:
    W, tokens = test_fla_rwkv7.weights(seed), test_fla_rwkv7.TOKENS
    plain = {name: tensor.numpy() for name, tensor in W.items()}
    wanted = np.stack([test_fla_rwkv7.published(plain, row) for row in tokens.numpy()])
    single = {name: tensor.float() for name, tensor in W.items()}
    got = convert.from_fla(single, test_fla_rwkv7.CONFIG)(tokens)[0]
    return relative_error(got.double(), torch.from_numpy(wanted))


def of_kda(seed: int) -> float:
    model = test_fla.build(*test_fla.CASES["KDA"], seed=seed)
    config, W = convert.to_fla(model)
    wanted = test_fla.published_kda({name: tensor.double() for name, tensor in W.items()})
    got = convert.from_fla(W, config)(test_fla.TOKENS[:1])[0][0]
    return relative_error(got.double(), wanted)


def main() -> None:
    warnings.simplefilter("ignore")
    rows = {
        f"transformers {name}": [of_transformers(name, seed) for seed in SEEDS]
        for name in test_convert.MODELS
    }
    rows["fla RWKV-7"] = [of_rwkv7(seed) for seed in SEEDS]
    rows["fla KDA"] = [of_kda(seed) for seed in SEEDS]
    for name, errors in rows.items():
        print(f"{name:36s} {max(errors):.1e}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
