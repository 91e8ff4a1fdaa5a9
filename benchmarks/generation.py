"""How fast language models of 20 million parameters write on a CPU, one sequence at a time.

    python benchmarks/generation.py        # one core, a minute; writes results/generation_DATE.json

Tokens a second of CPU time of one core, after a prompt of 64 tokens. People read about five words a
second, which is seven tokens or so.
"""

import datetime
import json
import platform
import time
from pathlib import Path

import torch

from statetrack.models import CausalLM, lm_config

MIXERS = (
    "DeltaNet",
    "GatedDeltaNet",
    "DeltaProduct",
    "Mamba",
    "Mamba2",
    "GLA",
    "MLSTM",
    "RWKV7",
    "KDA",
    "Attention",
)
VOCAB, PROMPT, NEW = 8192, 64, 64


def speed(model: CausalLM, prompt: torch.Tensor) -> float:
    """Tokens a second of CPU time, once warm."""
    for _ in model.stream(prompt, max_new_tokens=8):
        pass
    start = time.process_time()
    count = sum(1 for _ in model.stream(prompt, max_new_tokens=NEW))
    return count / (time.process_time() - start)


if __name__ == "__main__":
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    prompt = torch.randint(VOCAB, (1, PROMPT), generator=generator)
    today = datetime.date.today().isoformat()
    rows = []
    for mixer in MIXERS:
        model = CausalLM(lm_config(mixer, "20M", vocab_size=VOCAB), generator=generator)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        found = round(speed(model, prompt), 1)
        print(f"{mixer:14s} {parameters / 1e6:5.1f}M {found:7.1f} tokens/s", flush=True)
        rows.append({"mixer": mixer, "parameters": parameters, "tokens_per_cpu_second": found})
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    stored = {"date": today, "versions": versions, "prompt": PROMPT, "new": NEW, "rows": rows}
    out = Path(__file__).parent / "results" / f"generation_{today}.json"
    out.write_text(json.dumps(stored, indent=1) + "\n")
