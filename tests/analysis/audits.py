"""An audit.json with known numbers."""

from typing import Any


def fields(**changes: Any) -> dict[str, Any]:
    """One layer of two heads; head 1 reflects on the token 1."""
    layer = {
        "name": "backbone.blocks.0.mixer",
        "kind": "DeltaNet",
        "heads": 2,
        "keys": 4,
        "lowest": -1.0,
        "highest": 1.0,
        "largest_modulus": 1.0,
        "not_real": 0.0,
        "lowest_by_head": [-0.95, -1.0],
        "heads_below": {"-0.9": [0, 1], "-0.99": [1]},
        "lowest_by_token": {"0": [-0.95, 0], "1": [-1.0, 1]},
        "low_heads": [
            {"head": 0, "by_token": {"0": [-0.95, 1.0], "1": [0.5, 0.9]}},
            {"head": 1, "by_token": {"0": [0.98, 1.0], "1": [-1.0, -0.999]}},
        ],
    }
    found = {
        "tokens": 10,
        "layers": [layer],
        "spectrum": [[1, -1.0, 0.0, 0.25], [1, 1.0, 0.0, 0.75]],
        "theorem1": {"weak": True, "strong": True, "where": "layer, token 1, head 1: -1.0000"},
        "theorem2": {"weak": False, "strong": False, "where": None},
        "note": None,
        "horizon": {
            "task": "parity",
            "sequences": 4,
            "precision": "fp32",
            "device": "cpu",
            "accuracy": [[256, 1.0], [512, 0.75]],
            "exact_to": {"0.99": 256, "1": None},
            "note": None,
        },
    }
    return found | changes
