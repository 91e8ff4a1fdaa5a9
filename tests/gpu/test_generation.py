"""Generation on a GPU: the captured step says what the eager model says."""

import pytest
import torch

from statetrack.models import Sampling, generation
from tests.layers.cases import SIZES
from tests.models.test_causal_lm import build

PROMPTS = [[1, 2, 3, 4, 5], [6], [7, 8]]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("name", list(SIZES))
def test_captured_steps_are_eager_steps(name: str) -> None:
    model = build(name, "DeltaNet", "Attention").float().cuda()
    tokens, mask = generation.in_a_batch(PROMPTS, "cuda")
    scores, state = generation._prefill(model, tokens, mask)
    take = generation._Stepper(model, state, room=20)
    for _ in range(10):
        new = scores.argmax(-1)
        with torch.no_grad():
            wanted, state = model.step(new, state)
        scores = take(new)
        torch.testing.assert_close(scores, wanted, rtol=1e-4, atol=1e-4)
    assert take.graph is not None


def test_drawn_tokens_follow_the_seed() -> None:
    model = build("DeltaNet", "Mamba2").float().cuda()

    def drawn() -> list[torch.Tensor]:
        generator = torch.Generator("cuda").manual_seed(0)
        sampling = Sampling(temperature=1.5, top_k=10, top_p=0.9, repetition_penalty=1.1)
        return model.generate(PROMPTS, max_new_tokens=30, sampling=sampling, generator=generator)

    assert all(torch.equal(a, b) for a, b in zip(drawn(), drawn(), strict=True))
