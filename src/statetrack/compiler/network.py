"""`CompiledRNN`: a program as an `nn.Module` of the layer classes that are trained."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from statetrack._typing import Float, Int
from statetrack.automata import Machine, machine_of_table, table_of
from statetrack.automata.machine import Word
from statetrack.compiler.driver import Candidate, candidate_table, chosen
from statetrack.compiler.layout import Cost, Layout, Objective, total
from statetrack.compiler.profile import Profile
from statetrack.compiler.program import Program, Trace, listed, named_trace
from statetrack.compiler.to_tagger import to_tagger
from statetrack.compiler.weights import Lowered, embed, lower, make_layer
from statetrack.layers import LayerState
from statetrack.models import Tagger

__all__ = ["CompiledRNN", "CompiledStage", "Plan", "compile"]

FORMAT = 1
WEIGHTS, CONFIG = "weights.safetensors", "compiled.json"
FIXED_POINT = 2**16  # readouts are kept as whole numbers of this part, which no cast can touch
_MALFORMED = (AttributeError, KeyError, TypeError, RuntimeError, StopIteration, ValueError)
SLICE_NUMBERS = 2**20  # numbers in the largest tensor of a layer that a long word may make at once


@dataclass(frozen=True)
class Plan:
    """Which construction a network is, what it costs, and why it was taken.

    Attributes:
        method: `group`, `one-layer`, `cascade`, `diagonal`, `dense`, `rotation`, `reflections`.
        why: one sentence.
        cost: what the network costs, as it is built.
        exact: whether its numbers are exact (rotations are not).
        candidates: all that were looked at, cheapest first; none for a loaded network.
    """

    method: str
    why: str
    cost: Cost
    exact: bool
    candidates: tuple[Candidate, ...] = field(default=(), compare=False, repr=False)

    def table(self) -> str:
        """The candidates with what each costs, a line each."""
        return candidate_table(self.candidates)


class CompiledStage(nn.Module):
    """One trained layer class between two look-up tables.

    contexts -> symbols (table) -> one-hot x -> layer -> scores (linear) -> argmax -> contexts
    (table). Only the layer has parameters; the tables and the readout are buffers of integers.
    """

    symbol: Tensor
    after: Tensor
    readout: Tensor
    offset: Tensor

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        options = {
            key: tuple(value) if isinstance(value, list) else value  # JSON has no tuples
            for key, value in config["options"].items()
        }
        self.config = config | {"options": options}
        self.layer = make_layer(config["layer"], config["d_model"], options)
        labels, symbols = len(config["labels"]), len(config["symbols"])
        shapes = {
            "symbol": (config["num_contexts"],),
            "after": (config["num_contexts"], labels),
            "readout": (labels, config["num_features"]),
            "offset": (symbols, labels),
        }
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int64))

    @property
    def layout(self) -> Layout:
        """What the layer is built with."""
        config = self.config
        return Layout(
            config["layer"],
            config["d_model"],
            config["options"],
            config["num_start"],
            config["num_ones"],
            config["num_features"],
            len(config["labels"]),
        )

    @property
    def dtype(self) -> torch.dtype:
        return next(self.layer.parameters()).dtype

    def start(self, batch: int) -> LayerState | None:
        """The layer's state after it has read its BOS symbols, from zero."""
        first, count = len(self.config["symbols"]), self.config["num_start"]
        if not count:
            return None
        bos = torch.arange(first, first + count, device=self.symbol.device)
        _, state = self.layer(self._embed(bos.expand(batch, -1)))
        return state

    def forward(
        self, contexts: Int[Tensor, "batch time"], state: LayerState | None
    ) -> tuple[Int[Tensor, "batch time"], Int[Tensor, "batch time"], LayerState]:
        """Symbols, labels and the layer's state; `after[contexts, labels]` comes next."""
        symbols = self.symbol[contexts]
        labels, state = self.read(symbols, state)
        return symbols, labels, state

    def read(
        self, symbols: Int[Tensor, "batch time"], state: LayerState | None
    ) -> tuple[Int[Tensor, "batch time"], LayerState]:
        """The label that the layer shows at each symbol, and its state after the last."""
        y, state = self.layer(self._embed(symbols), state)
        return self._scores(y, symbols).argmax(-1), state

    def inputs(self, contexts: Int[Tensor, "batch time"]) -> Float[Tensor, "batch time d_model"]:
        """What the layer is given."""
        return self._embed(self.symbol[contexts])

    def _embed(self, symbols: Tensor) -> Tensor:
        return embed(symbols, self.config["num_ones"], self.layer.d_model, self.dtype)

    def _scores(self, y: Tensor, symbols: Tensor) -> Tensor:
        wide = torch.promote_types(y.dtype, torch.float32)
        y = y[..., : self.readout.shape[1]].to(wide)
        return y @ self.readout.to(wide).mT + self.offset.to(wide)[symbols]

    def slice_length(self, batch: int) -> int:
        """Tokens of a batch that are run at once, so that a long word needs little memory."""
        widest = max(p.shape[0] for p in self.layer.parameters())
        return max(1, SLICE_NUMBERS // (widest * max(1, batch)))


class CompiledRNN(nn.Module):
    """An exact linear RNN for a machine; make one with `compile`, or `CompiledRNN.from_program`.

    `forward` takes letter numbers [batch, time] and returns the machine's states. Nothing in it is
    trained, and the argmax between layers carries no gradient.

    >>> from statetrack.compiler import compile
    >>> network = compile(Machine.from_regex("(a|b)*ab", "ab"))
    >>> network(torch.tensor([[0, 0, 1]])).tolist()
    [[1, 1, 2]]
    """

    def __init__(self, machine: Machine, plan: Plan, stages: list[CompiledStage]) -> None:
        super().__init__()
        self.machine = machine
        self.plan = plan
        self.stages = nn.ModuleList(stages)
        self.requires_grad_(False)

    @classmethod
    def from_program(
        cls,
        program: Program,
        why: str = "asked for",
        candidates: tuple[Candidate, ...] = (),
    ) -> CompiledRNN:
        """The network of a program; `candidates` are what it was chosen from."""
        stages = []
        for stage in program.stages:
            lowered = lower(stage.layer)
            layout = lowered.layout
            module = CompiledStage(
                {
                    "layer": layout.kind,
                    "d_model": layout.d_model,
                    "options": layout.options,
                    "directions": list(stage.layer.directions),
                    "symbols": list(stage.layer.symbol_names),
                    "labels": list(stage.layer.label_names),
                    "leaves": list(stage.layer.leaves),
                    "num_start": layout.num_start,
                    "num_ones": layout.num_ones,
                    "num_features": layout.num_features,
                    "num_contexts": len(stage.symbol),
                }
            )
            _fill(module, lowered, stage.symbol, stage.after)
            stages.append(module)
        cost = total([stage.layout for stage in stages])
        plan = Plan(program.method, why, cost, program.exact, candidates)
        return cls(program.machine, plan, stages)

    @property
    def state_size(self) -> int:
        """How many numbers the layers keep for one sequence."""
        return sum(stage.layer.state_size for stage in self._stages())

    def _stages(self) -> Iterator[CompiledStage]:
        for stage in self.stages:
            assert isinstance(stage, CompiledStage)
            yield stage

    # -- running --------------------------------------------------------------------------------

    def forward(self, tokens: Int[Tensor, "batch time"]) -> Int[Tensor, "batch time"]:
        """The machine's state after each letter, from its start."""
        return self.advance(tokens)[0]

    @torch.no_grad()
    def advance(
        self, tokens: Int[Tensor, "batch time"], state: tuple[LayerState, ...] | None = None
    ) -> tuple[Int[Tensor, "batch time"], tuple[LayerState, ...]]:
        """States, and the layers' states to go on from; None is the start."""
        self._check(tokens)
        contexts = tokens.long()
        states = []
        for index, stage in enumerate(self._stages()):
            held = stage.start(tokens.shape[0]) if state is None else state[index]
            if torch.compiler.is_compiling():  # lengths are not known: no loop over pieces
                _, labels, held = stage(contexts, held)
                contexts = stage.after[contexts, labels]
            else:
                following = torch.empty_like(contexts)
                for piece in _pieces(contexts.shape[1], stage.slice_length(len(tokens))):
                    _, labels, held = stage(contexts[:, piece], held)
                    following[:, piece] = stage.after[contexts[:, piece], labels]
                contexts = following
            assert held is not None
            states.append(held)
        return contexts, tuple(states)

    def step(
        self, tokens: Int[Tensor, "batch"], state: tuple[LayerState, ...] | None = None
    ) -> tuple[Int[Tensor, "batch"], tuple[LayerState, ...]]:
        """One letter of each word."""
        states, state = self.advance(tokens.unsqueeze(1), state)
        return states.squeeze(1), state

    def run(self, word: Word) -> np.ndarray:
        """The states of one word, a string or letter numbers, as `Machine.run` gives them."""
        encoded = self.machine.encode(word)
        if not len(encoded):
            return encoded
        letters = torch.from_numpy(encoded).to(self._device)
        return np.asarray(self(letters[None])[0].cpu().numpy())

    def accepts(self, word: Word) -> bool:
        """Whether the network ends in an accepting state; without a letter, that is its start.

        >>> from statetrack.compiler import compile
        >>> network = compile(Machine.from_regex("(ab)*", "ab"))
        >>> network.accepts("abab"), network.accepts(""), network.accepts("aba")
        (True, True, False)
        """
        if self.machine.outputs.dtype != np.bool_:
            raise ValueError(
                "this machine has integer outputs, so it accepts nothing; "
                "read network.machine.outputs[network.run(word)] instead"
            )
        states = self.run(word)
        return bool(self.machine.outputs[states[-1] if len(states) else 0])

    @torch.no_grad()
    def trace(self, word: Word) -> Trace:
        """What each layer read and held after each letter; print it.

        >>> from statetrack.compiler import compile
        >>> network = compile(Machine.from_regex("(a|b)*ab", "ab"), "cascade")
        >>> network.trace("ab").states
        (1, 2)
        """
        letters = self.machine.encode(word)
        if letters.ndim != 1 or not len(letters):
            raise ValueError(f"a trace needs one word of at least one letter, got {word!r}")
        contexts = torch.from_numpy(letters).to(self._device)[None]
        steps, names = [], []
        for stage in self._stages():
            symbols, labels, _ = stage(contexts, stage.start(1))
            steps.append((symbols[0].cpu().numpy(), labels[0].cpu().numpy()))
            config = stage.config
            names.append((config["symbols"], config["labels"], config["leaves"]))
            contexts = stage.after[contexts, labels]
        return named_trace(self.machine, letters, names, steps, contexts[0].cpu().numpy())

    @property
    def _device(self) -> torch.device:
        return next(self.buffers()).device

    def _check(self, tokens: Tensor) -> None:
        if tokens.dim() != 2 or tokens.is_floating_point() or tokens.is_complex():
            raise ValueError(
                f"tokens are integers [batch, time], got {tokens.dtype} {tuple(tokens.shape)}"
            )
        if tokens.shape[1] == 0:
            raise ValueError("there is no token; time must be at least 1")
        if torch.compiler.is_compiling():  # an exported network cannot look at its tokens
            return
        if tokens.numel() and not 0 <= int(tokens.min()) <= int(tokens.max()) < (
            self.machine.num_letters
        ):
            raise ValueError(
                f"tokens reach from {int(tokens.min())} to {int(tokens.max())}, but the machine "
                f"has letters 0 to {self.machine.num_letters - 1}"
            )

    def _repr_html_(self) -> str:
        """In a notebook: the text, with the diagram of a small machine above it."""
        drawn = self.machine._repr_svg_() or ""
        return f"{drawn}<pre>{escape(str(self))}</pre>"

    # -- as a model that trains -------------------------------------------------------------------

    def to_tagger(self, max_length: int = 256) -> Tagger:
        """An ordinary tagger that is right on words of up to `max_length` letters, and trains on.

        Its tokens and classes are those of `tasks.from_machine(network.machine)`. It has one layer
        of Householders, whatever layers this network has; a machine without such a form becomes a
        tagger with a layer and an MLP for each level of its cascade, which is far more brittle.

        >>> from statetrack.compiler import compile
        >>> tagger = compile(Machine.from_regex("(ab)*", "ab")).to_tagger(max_length=100)
        >>> tagger(torch.tensor([[0, 1, 0, 1, 1]]))[0].argmax(-1)
        tensor([[0, 1, 0, 1, 0]])
        """
        return to_tagger(self.machine, max_length)

    # -- words about it -------------------------------------------------------------------------

    def __str__(self) -> str:
        lines = [
            f"{self.machine!r}",
            f"method {self.plan.method}: {self.plan.cost}",
            f"because {self.plan.why}",
            f"{'exact' if self.plan.exact else 'not exact: rotations drift with length'}, "
            f"{self.state_size} numbers of state",
        ]
        for i, stage in enumerate(self._stages()):
            config = stage.config
            options = ", ".join(f"{k}={v}" for k, v in config["options"].items())
            lines.append(
                f"  layer {i + 1}: {config['layer']}({config['d_model']}, {options})\n"
                f"           directions: {listed(config['directions'])}\n"
                f"           symbols: {listed(config['symbols'])}"
            )
        return "\n".join(lines)

    # -- files ----------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Writes `weights.safetensors` and `compiled.json` into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "format": FORMAT,
            "machine": table_of(self.machine),
            "method": self.plan.method,
            "why": self.plan.why,
            "exact": self.plan.exact,
            "stages": [stage.config for stage in self._stages()],
        }
        tensors = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        safetensors.torch.save_file(tensors, folder / WEIGHTS)
        (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> CompiledRNN:
        """What `save` wrote, with its dtype."""
        folder = Path(folder)
        if not (folder / CONFIG).is_file() or not (folder / WEIGHTS).is_file():
            raise ValueError(
                f"{folder} holds no compiled network: {CONFIG} or {WEIGHTS} is missing"
            )
        try:
            config = json.loads((folder / CONFIG).read_text())
            if config["format"] != FORMAT:
                raise ValueError(f"format {config['format']} is not {FORMAT}")
            machine = machine_of_table(config["machine"], CONFIG)
            stages = [CompiledStage(stage) for stage in config["stages"]]
            cost = total([stage.layout for stage in stages])
            plan = Plan(config["method"], config["why"], cost, config["exact"])
            network = cls(machine, plan, stages)
            tensors = safetensors.torch.load_file(folder / WEIGHTS)
            network.to(next(t.dtype for t in tensors.values() if t.is_floating_point()))
            network.load_state_dict(tensors)
        except (*_MALFORMED, safetensors.SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"{folder} is not a compiled network: {reason}") from None
        return network


def compile(
    machine: Machine,
    method: str = "auto",
    *,
    objective: Objective = "latency",
    minimise: bool = False,
) -> CompiledRNN:
    """An exact linear RNN for a machine, in the layer classes that are trained.

    Args:
        method: `group` (one layer, theorem 3), `one-layer` (partial injections with resets, shift
            registers), `cascade` (any machine, theorem 4), `diagonal` (groups inside are 2-groups;
            eigenvalues in [0, 1] if there are none), `dense` (one free matrix per letter),
            `rotation` and `reflections` (addition modulo m in the plane, theorems 3 and 6; these
            two are not exact), or `auto`: the cheapest of the exact ones but `dense`.
        objective: what cheap means: `latency` (the steps that one token waits for), `layers`,
            `parameters` or `flops` (of one token). `network.plan.table()` shows all candidates.
        minimise: compile the minimal machine with the same outputs; the states of the network are
            then those of `network.machine`.

    Raises `ValueError` with the reason where a method does not fit the machine.

    >>> network = compile(Machine.from_regex("(aa)*", "a"))
    >>> network.plan.method, network.run("aaa").tolist()
    ('diagonal', [1, 0, 1])
    """
    profile = Profile(machine.minimal() if minimise else machine)
    best, why, candidates = chosen(profile, method, objective)
    assert best.program is not None
    return CompiledRNN.from_program(best.program, why, candidates)


def _fill(module: CompiledStage, lowered: Lowered, symbol: Any, after: Any) -> None:
    module.layer = lowered.build()
    module.symbol.copy_(torch.from_numpy(symbol.copy()))
    module.after.copy_(torch.from_numpy(after.copy()))
    for name, table in (("readout", lowered.readout), ("offset", lowered.offset)):
        fixed = np.rint(table * FIXED_POINT).astype(np.int64)
        getattr(module, name).copy_(torch.from_numpy(fixed))


def _pieces(time: int, length: int) -> Iterator[slice]:
    for first in range(0, time, length):
        yield slice(first, min(first + length, time))
