"""A study of language models with known numbers, written by hand."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from statetrack.lm import PretrainConfig
from statetrack.runs import Record
from statetrack.runs.archive import store
from tests.lm import corpus
from tests.report.folders import write_run

WINDOWS = (2.0, 2.2, 2.4, 2.6)
"""Losses of [0, 1] on four windows of code."""


def config(shards: Path, low: float, seed: int) -> PretrainConfig:
    model = corpus.model(eigen_range=(low, 1.0))
    return corpus.config(shards, model=model, seed=seed, data_seed=seed, length=16)


def evaluation(losses: list[float], length: int, times: int) -> dict[str, Any]:
    """The same loss at all positions of a window; those beyond training are 0.5 higher."""
    ends = [length * 2**i for i in range(times.bit_length())]
    windows = {str(end): [x + 0.5 * (end > length) for x in losses] for end in ends}
    mean = sum(losses) / len(losses)
    return {
        "ends": ends,
        "sequences": [len(losses)] * len(ends),
        "loss": [mean + 0.5 * (end > length) for end in ends],
        "loss_error": [0.01] * len(ends),
        "running": [mean] * len(ends),
        "running_error": [0.01] * len(ends),
        "tokens": 100,
        "bytes": None,
        "total": 100.0,
        "windows": windows,
    }


def loss(shift: dict[str, float]) -> dict[str, Any]:
    domains = {}
    for name, by in shift.items():
        # windows differ from one another by far more than the ranges do
        losses = [x + by + 0.001 * i for i, x in enumerate(WINDOWS)]
        domains[name] = {
            "short": evaluation(losses, 16, 1),
            "long": evaluation(losses[:2], 16, 16),
        }
    return {"settings": {"length": 16}, "precision": "fp32", "seconds": 1.0, "domains": domains}


def heads(low: float) -> dict[str, Any]:
    def numbers(count: int, share: float) -> dict[str, Any]:
        return {
            "count": count,
            "mean": 0.25,
            "lowest": low,
            "below_0": share,
            "below_half": share / 2,
        }

    text = ["def", " f", "(", "x", ")", ":", "\n", "    ", "return", " [", "x", "]", "\n"]
    values = [0.9, 0.8, -0.9, 0.7, -0.8, 0.1, -0.2, 1.0, 0.5, -0.95, 0.6, -0.85, 0.0]
    members = [
        {"layer": layer, "head": head}
        | numbers(200, share)
        | {
            "histogram": [100, 100],
            "by_domain": {"code": numbers(100, share), "prose": numbers(100, share / 2)},
            "by_class": {"word": numbers(200, share)},
            "tokens": [
                {"token": "(|", "count": 30, "mean": -0.9},
                {"token": "\n", "count": 25, "mean": -0.5},
            ],
        }
        for layer, head, share in ((1, 0, 0.75), (1, 1, 0.0), (2, 0, 0.25), (2, 1, 0.005))
    ]
    shown = [{"layer": 1, "head": 0, "values": values}, {"layer": 2, "head": 0, "values": values}]
    return {
        "settings": {"least": 20},
        "precision": "fp32",
        "seconds": 1.0,
        "tokens": {"code": 100, "prose": 100},
        "edges": [-1.0, 0.0, 1.0],
        "all": numbers(800, 0.25125),
        "by_class": {
            "opening bracket": {"tokens": 20} | numbers(80, 0.9),
            "word": {"tokens": 180} | numbers(720, 0.1),
        },
        "by_domain": {"code": numbers(400, 0.3), "prose": numbers(400, 0.2)},
        "heads": members,
        "examples": [{"domain": "code", "tokens": text, "heads": shown}],
    }


def probes(accuracy: float) -> dict[str, Any]:
    def phase(value: float) -> dict[str, Any]:
        by_length = [[32, value, 50], [64, value / 2, 50]]
        return {"count": 100, "accuracy": value, "by_length": by_length, "by_operations": []}

    boxes = {
        "chance": 0.2,
        "trained_to": 32,
        "length_means": "operations",
        "zero_shot": phase(0.2),
        "losses": [1.0, 0.5],
        "tuned": phase(accuracy),
    }
    switch = {"chance": 0.5, "length_means": "events", "zero_shot": phase(0.5)}
    settings = {"steps": 200, "batch": 32, "lr": 5e-4}
    return {"settings": settings, "probes": {"boxes": boxes, "state_switch": switch}}


def write_control(root: Path, shards: Path, *, seeds: int = 2) -> None:
    """Adds the control, better than [0, 1] on code by 0.08 and 0.18; clamped models of [-1, 1],
    worse than they are by 0.03 on code; models with a learnt range, better than [0, 1] by 0.05
    on code; and models with [-1, 1] whose β begins at 0.5, better by 0.07."""
    runs = []
    for seed in range(seeds):
        model = corpus.model("CappedDeltaNet", num_heads=2)
        one = corpus.config(shards, model=model, seed=seed, data_seed=seed, length=16)
        rows = [Record(2, "validation", "loss", 2.25)]
        runs.append(write_run(root.parent / "control", one, rows))
        own = dataclasses.replace(one, model=corpus.model(learn_range=True))
        runs.append(write_run(root.parent / "control", own, rows))
        started = dataclasses.replace(one, model=corpus.model(beta_start=0.5))
        runs.append(write_run(root.parent / "control", started, rows))
        better = -0.1 * (seed + 1)
        extended = config(shards, -1.0, seed)
        answers = (
            ("loss", one, loss({"code": better + 0.02, "prose": 0.0})),
            ("loss", own, loss({"code": -0.05, "prose": 0.0})),
            ("loss", started, loss({"code": -0.07, "prose": 0.0})),
            ("clamped", started, loss({"code": 0.0, "prose": 0.0})),
            ("clamped", extended, loss({"code": better + 0.03, "prose": 0.05 * (1 - 2 * seed)})),
        )
        for name, of, answer in answers:
            path = root / "language" / name / f"{of.fingerprint}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(answer))
    store(runs, root / "language")


def write_study(root: Path, shards: Path, *, seeds: int = 2) -> Path:
    """`root`/language with both ranges: [-1, 1] is better on code by 0.1 and 0.2, not on prose."""
    runs = []
    for low in (0.0, -1.0):
        for seed in range(seeds):
            one = config(shards, low, seed)
            rows = [Record(2, "validation", "loss", 2.3 + 0.1 * low + 0.01 * seed)]
            runs.append(write_run(root.parent / "language", one, rows))
            better = 0.0 if low == 0.0 else -0.1 * (seed + 1)
            worse = 0.0 if low == 0.0 else 0.05 * (1 - 2 * seed)
            answers = {
                "loss": loss({"code": better, "prose": worse}),
                "heads": heads(low),
                "probes": probes(0.5 if low == 0.0 else 0.9),
            }
            for name, answer in answers.items():
                path = root / "language" / name / f"{one.fingerprint}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(answer))
    store(runs, root / "language")
    return root
