"""Generation that keeps to a finite machine: which tokens may come next, and where they lead."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from statetrack._typing import Bool, Int

__all__ = ["Constraint"]

FAR = torch.iinfo(torch.int32).max


class Constraint:
    """Texts that a machine accepts, over the tokens of a model.

    The machine begins at the first new token. A token is allowed if the text can still be finished
    after it, with the tokens that are left. `end` is the token that ends a text; it is allowed in
    accepting states alone. So every generated text is whole.

    Args:
        delta: `[states, letters]`, where each letter leads; state 0 is the start.
        letter: `[vocabulary]`, the letter of each token.
        accepting: `[states]`, whether a text may end there.
        end: the number of the token that ends a text.

    `lm.constraint` makes one of a machine over characters and a tokenizer.

    >>> ab = Constraint([[1, 2], [2, 0], [2, 2]], [0, 1, 1], [True, False, False], end=2)
    >>> state = ab.start(1)
    >>> ab.allowed(state, left=3), ab.allowed(state, left=2)
    (tensor([[ True, False,  True]]), tensor([[False, False,  True]]))
    """

    def __init__(
        self, delta: ArrayLike, letter: ArrayLike, accepting: ArrayLike, *, end: int
    ) -> None:
        self.delta = torch.from_numpy(np.array(delta, dtype=np.int64))
        self.letter = torch.from_numpy(np.array(letter, dtype=np.int64))
        self.accepting = torch.from_numpy(np.array(accepting, dtype=np.bool_))
        self.end = end
        states, letters = self.delta.shape
        if self.accepting.shape != (states,):
            raise ValueError(f"accepting has shape {tuple(self.accepting.shape)}, not ({states},)")
        if not 0 <= end < len(self.letter):
            raise ValueError(f"end={end} is not a token; there are 0 to {len(self.letter) - 1}")
        for name, table, bound in (("delta", self.delta, states), ("letter", self.letter, letters)):
            low, high = (int(extreme) for extreme in table.aminmax())
            if low < 0 or high >= bound:
                raise ValueError(f"{name} has {low} to {high}, but must be within 0 to {bound - 1}")
        self.distance = self._distance()

    def _distance(self) -> Int[Tensor, "states"]:
        """Tokens to an accepting state, at least; `FAR` where none leads there."""
        used = torch.ones(len(self.letter), dtype=torch.bool)
        used[self.end] = False  # it writes nothing
        delta = self.delta[:, self.letter[used].unique()]
        found = torch.where(self.accepting, 0, FAR)
        for _ in range(len(found)):
            nearer = found[delta].amin(1) if delta.shape[1] else found
            shorter = torch.minimum(found, torch.where(nearer < FAR, nearer + 1, FAR))
            if torch.equal(shorter, found):
                break
            found = shorter
        return found

    @property
    def shortest(self) -> int | None:
        """Tokens of a shortest text, with its end; None if there is no text."""
        tokens = int(self.distance[0])
        return None if tokens == FAR else tokens + 1

    def expect_fit(self, vocab_size: int, max_new_tokens: int) -> None:
        """Refuses a model of another vocabulary, and too few tokens for any text."""
        if len(self.letter) > vocab_size:
            raise ValueError(
                f"the constraint is over {len(self.letter)} tokens, and the model knows "
                f"{vocab_size}: they do not belong together"
            )
        if self.shortest is None:
            raise ValueError("no text of these tokens is one that the machine accepts")
        if self.shortest > max_new_tokens:
            raise ValueError(
                f"max_new_tokens={max_new_tokens}, but the shortest text that the machine accepts "
                f"takes {self.shortest} tokens with its end"
            )

    def to(self, device: torch.device | str) -> "Constraint":
        """The same with its tables on a device."""
        moved = object.__new__(Constraint)
        moved.end = self.end
        for name in ("delta", "letter", "accepting", "distance"):
            setattr(moved, name, getattr(self, name).to(device))
        return moved

    def start(self, batch: int) -> Int[Tensor, "batch"]:
        """The state of every sequence before its first new token."""
        return torch.zeros(batch, dtype=torch.long, device=self.delta.device)

    def allowed(
        self, state: Int[Tensor, "batch"], left: int | Int[Tensor, ""]
    ) -> Bool[Tensor, "batch vocab"]:
        """The tokens that may come next, where `left` tokens may be written in all."""
        # a token, then the tokens to an accepting state, then the end
        near = self.distance[self.delta[state]] <= left - 2
        mask = near[:, self.letter]
        mask[:, self.end] = self.accepting[state]
        return mask

    def step(self, state: Int[Tensor, "batch"], tokens: Int[Tensor, "batch"]) -> Tensor:
        """The states after a token of each sequence."""
        return self.delta[state, self.letter[tokens]]
