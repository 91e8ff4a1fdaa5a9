"""Compiles every op that has a GPU kernel into one graph and compares with the plain call.

    python tests/gpu/compile_all.py cuda        (or: TRITON_INTERPRET=1 ... cpu)

A script of its own because the test run's shape checks cannot be traced.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from statetrack.ops._spec import find  # noqa: E402
from tests.ops.cases import CASES  # noqa: E402


def main(device: str) -> None:
    done = set()
    for case in CASES:
        spec = find(case.op)
        other_name = case.op != spec.name
        if (
            "triton" not in spec.backends
            or other_name
            or (case.op, case.label == "shared") in done
            or case.label == "complex"
        ):
            continue
        done.add((case.op, case.label == "shared"))
        inputs = {name: x.to(device).requires_grad_() for name, x in case.inputs(3).items()}
        run = torch.compile(
            lambda x, case=case: case.run(x, "triton"), fullgraph=True, backend="aot_eager"
        )
        got, expected = run(inputs)[0], case.run(inputs, "triton")[0]
        assert torch.equal(got, expected), case
        grads = [torch.autograd.grad(y.abs().sum(), list(inputs.values())) for y in (got, expected)]
        assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True)), case
        print(case, "compiles into one graph")


if __name__ == "__main__":
    main(sys.argv[1])
