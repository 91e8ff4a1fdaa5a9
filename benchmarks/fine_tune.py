"""Fine-tuning a compiled machine against training from scratch, where the language has changed.

    python benchmarks/fine_tune.py          # about ten minutes on one core

A machine is compiled to a tagger. Then the language changes a little: one accepting state, one
transition, or what one letter does. Three starts learn the new one: the tagger, the same model with
drawn weights, and a usual model with drawn weights. What counts is the number of steps until every
answer of every validation sequence is right. Writes benchmarks/results/fine_tune_DATE.json.
"""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path
from typing import Any

from statetrack import tasks
from statetrack._amx import avoid_amx_trap
from statetrack.automata import Machine, read
from statetrack.compiler import compile
from statetrack.models import BackboneConfig, TaggerConfig
from statetrack.tasks import LengthRange
from statetrack.training import EvaluationConfig, OptimizerConfig, RunConfig, train

avoid_amx_trap()

TRAIN, JUDGE = (3, 40), (64, 128)
EVERY = 25
RATES = (1e-3, 3e-3, 1e-2)


def counter(accepting: list[int]) -> Machine:
    """Modulo 5; 0 and 1 are added."""
    delta = [[(state + letter) % 5 for letter in range(2)] for state in range(5)]
    return Machine.from_table(delta, 0, accepting=accepting)


def with_letter(name: str, letter: int, like: int) -> Machine:
    """A machine in which one letter does what another one does."""
    machine = read(name)
    delta = machine.delta.copy()
    delta[:, letter] = delta[:, like]
    return Machine.from_table(delta, 0, outputs=machine.outputs, alphabet=machine.alphabet)


def with_arrow(name: str, state: int, letter: int, target: int) -> Machine:
    """A machine with one other transition."""
    machine = read(name)
    delta = machine.delta.copy()
    delta[state, letter] = target
    return Machine.from_table(delta, 0, outputs=machine.outputs, alphabet=machine.alphabet)


WORKS: list[tuple[str, Machine, Machine]] = [
    ("modulo 5: one accepting state more", counter([0]), counter([0, 2])),
    ("S3 swaps: one letter acts as another", read("s3_swaps"), with_letter("s3_swaps", 3, 1)),
    ("(a\\|b)*ab: one transition elsewhere", read("(a|b)*ab"), with_arrow("(a|b)*ab", 2, 1, 2)),
]


def main(seeds: int, steps: int) -> None:
    rows: list[dict[str, Any]] = []
    for name, before, after in WORKS:
        task = tasks.from_machine(
            after, train_lengths=LengthRange(*TRAIN), eval_lengths=LengthRange(*JUDGE)
        )
        tagger = compile(before).to_tagger(JUDGE[1])
        mixer = tagger.config.backbone.mixers[0]
        factors = mixer.options.get("num_householders", 1)
        usual = TaggerConfig(
            vocab_size=task.vocab_size,
            num_classes=task.num_classes,
            backbone=BackboneConfig(
                mixers=[
                    ("DeltaProduct", {"num_heads": 2, "conv_size": 0, "num_householders": factors})
                ],
                d_model=32,
                mlp_dim=64,
            ),
        )
        starts = {
            "compiled": (tagger.config, tagger.state_dict()),
            "drawn, the same model": (tagger.config, None),
            "drawn, a usual model": (usual, None),
        }
        for start, (model, weights) in starts.items():
            for rate in RATES:
                found = []
                begun = time.process_time()
                for seed in range(seeds):
                    config = RunConfig(
                        task=task,
                        model=model,
                        steps=steps,
                        batch=64,
                        optimizer=OptimizerConfig(lr=rate),
                        evaluation=EvaluationConfig(every=EVERY, size=256),
                        log_every=EVERY,
                        checkpoint_every=None,
                        seed=seed,
                        data_seed=seed,
                        stop_at=1.0,
                    )
                    records = list(train(config, start=weights))
                    curve = {
                        r.step: r.value
                        for r in records
                        if (r.split, r.metric, r.length)
                        == ("validation", "sequence_accuracy", None)
                    }
                    last = max(curve)
                    found.append(
                        {
                            "seed": seed,
                            "steps": last if curve[last] == 1.0 else None,
                            "curve": curve,
                        }
                    )
                solved = [run["steps"] for run in found if run["steps"] is not None]
                row = {"work": name, "start": start, "lr": rate, "runs": found}
                rows.append(row)
                middle = f"{statistics.median(solved):.0f}" if solved else "-"
                cells = (name, start, rate, f"{len(solved)} of {seeds}", middle)
                print("|", " | ".join(map(str, cells)), "|", end=" ")
                print(f"{time.process_time() - begun:.0f} s", flush=True)
    today = datetime.datetime.now(datetime.UTC).date()
    out = Path(__file__).parent / "results" / f"fine_tune_{today}.json"
    out.write_text(json.dumps({"date": str(today), "steps": steps, "rows": rows}, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    options = parser.parse_args()
    main(options.seeds, options.steps)
