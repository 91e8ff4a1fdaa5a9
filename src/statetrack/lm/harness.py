"""Tasks of the lm-evaluation-harness, offline: multiple choice, likelihoods, written answers.

    for result in run_tasks(model, text, ["piqa", "state_swaps"], folder):
        print(result.task, result.metrics)

The harness makes prompts and scores, the model here answers them. Nothing is downloaded: the
examples of a task lie in a folder, as `task_data.FIELDS` says, or are generated.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from statetrack._extras import needs
from statetrack._suggest import did_you_mean
from statetrack.lm.task_data import PAPER, expect_data
from statetrack.lm.text import Text
from statetrack.models import CausalLM, Sampling
from statetrack.models._tokens import evaluating

with needs("lm evaluate --tasks", "lm-eval", "eval"):
    from lm_eval import evaluator
    from lm_eval.api.model import TemplateLM
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

__all__ = ["HarnessModel", "TaskResult", "expect_tasks", "known_tasks", "run_tasks"]

FOLDER = Path(__file__).parent / "tasks"
GROUPS = {"paper": PAPER}
"""Names that stand for several tasks."""
SCORED = 2048
"""Tokens whose scores are in memory at once."""
ANSWER = 256
"""Tokens of a written answer where the task does not say."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TaskResult:
    """What a model reaches in a task.

    Attributes:
        task: its name.
        version: of the task's definition.
        examples: how many were asked.
        metrics: the numbers by name, such as acc, acc_norm, word_perplexity or contains.
        errors: the standard error of each over the examples; None where it is not known.
    """

    task: str
    version: float
    examples: int
    metrics: Mapping[str, float]
    errors: Mapping[str, float | None]

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "metrics": dict(self.metrics), "errors": dict(self.errors)}


def known_tasks() -> list[str]:
    """The tasks that come with statetrack: the paper's ten, then those that are generated."""
    ours = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    return [*PAPER, *(name for name in ours if name not in PAPER)]


def expect_tasks(names: Sequence[str], data: Path | None) -> list[str]:
    """The tasks by name, groups written out; all are known and find their examples.

    A name may also be the path of a YAML file of the harness, which says itself where its examples
    are.
    """
    tasks = [task for name in names for task in GROUPS.get(name, (name,))]
    known = known_tasks()
    for task in tasks:
        if task.endswith((".yaml", ".yml")):
            if not Path(task).is_file():
                raise ValueError(f"the task {task} does not exist: there is no such file")
        elif task not in known:
            raise ValueError(
                f"task {task!r} is unknown; {did_you_mean(task, [*known, *GROUPS])}there are "
                f"{', '.join(known)}; paper is the first {len(PAPER)} of them; or give a YAML file"
            )
    expect_data(tasks, data)
    return list(dict.fromkeys(tasks))


def run_tasks(
    model: CausalLM,
    text: Text,
    tasks: Sequence[str],
    data: str | Path | None = None,
    *,
    length: int | None = None,
    batch: int = 8,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Iterator[TaskResult]:
    """What the model reaches in each task, one after the other.

    Args:
        tasks: names of `known_tasks`, "paper" for the paper's ten, or YAML files of the harness.
        data: the folder with a file TASK.jsonl for every task that is not generated.
        length: how many tokens the model sees at once at most: longer prompts lose their beginning,
            and longer texts are read in windows, as the harness does for Transformers. None is no
            limit.
        batch: requests that are answered at once.
        limit: only so many examples of each task.
        progress: is told how many requests of a task are answered, and of how many.
    """
    for name, value in (("length", length), ("batch", batch), ("limit", limit)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    text.expect_fit(model)
    folder = None if data is None else Path(data)
    wanted = expect_tasks(tasks, folder)
    return _each(HarnessModel(model, text, length, batch, progress), wanted, folder, limit)


def _each(
    model: "HarnessModel", tasks: Sequence[str], folder: Path | None, limit: int | None
) -> Iterator[TaskResult]:
    place = {} if folder is None else {"data": str(folder)}
    manager = TaskManager(include_path=str(FOLDER), include_defaults=False, metadata=place)
    for name in tasks:
        with _quiet():
            loaded = manager.load([name])
            for task in loaded["tasks"].values():
                task.set_fewshot_seed(seed=0)
            found = evaluator.evaluate(
                lm=model, task_dict=loaded, limit=limit, bootstrap_iters=0, log_samples=True
            )
        for own, task in loaded["tasks"].items():
            yield _result(own, task, found)


def _result(name: str, task: Any, found: Any) -> TaskResult:
    samples, by_metric = found["samples"][name], task.aggregation()
    metrics: dict[str, float] = {}
    errors: dict[str, float | None] = {}
    for key, value in found["results"][name].items():
        metric, _, place = key.partition(",")
        if not place or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        values = [sample[metric] for sample in samples if metric in sample]
        metrics[metric] = float(value)
        kind = getattr(by_metric.get(metric), "__name__", "")
        errors[metric] = _standard_error(kind, values, float(value))
    return TaskResult(name, float(task.VERSION or 0), len(samples), metrics, errors)


def _standard_error(kind: str, values: Sequence[Any], value: float) -> float | None:
    """Of a number that the harness made from `values` of the examples; to first order.

    A mean has that of a mean. A perplexity is exp of one, and exp r has the error exp(r)·δr. With
    weights, r = Σ l / Σ w of (l, w), and δr is that of the mean of l - r·w, over the mean weight.
    """
    if len(values) < 2:
        return None
    if kind in ("mean", "nanmean", "perplexity"):
        spread = torch.tensor(values, dtype=torch.float64).std().item() / math.sqrt(len(values))
        return spread * (value if kind == "perplexity" else 1)
    if kind in ("weighted_perplexity", "bits_per_byte"):
        losses, weights = torch.tensor(values, dtype=torch.float64).T
        rest = losses - losses.sum() / weights.sum() * weights
        spread = (rest.std() / math.sqrt(len(values)) / weights.mean()).item()
        return spread * value if kind == "weighted_perplexity" else spread / math.log(2)
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """The harness says mistakes alone."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class HarnessModel(TemplateLM):
    """A language model with its tokenizer, as the harness asks models.

    The arguments are those of `run_tasks`. Before a text without a prompt stands the token that the
    tokenizer has for it, or a newline where it has none.
    """

    def __init__(
        self,
        model: CausalLM,
        text: Text,
        length: int | None = None,
        batch: int = 8,
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.model, self.text, self.length, self.batch = model, text, length, batch
        self.progress = progress or (lambda done, of: None)

    @property
    def eot_token_id(self) -> int:
        return self.prefix_token_id if self.text.end is None else self.text.end

    @property
    def prefix_token_id(self) -> int:
        if self.text.begin is not None:
            return self.text.begin
        return self.text.encode("\n", special=False)[0]

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        return self.text.encode(string, special=bool(add_special_tokens))

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        found: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return found

    @torch.no_grad()
    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """log p of each continuation after its context, and whether it is the likeliest one."""
        rows = [(self._shortened(context, new), len(new)) for _, context, new in requests]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i][0]))
        found: dict[int, tuple[float, bool]] = {}
        with evaluating(self.model):
            for first in range(0, len(order), self.batch):
                chosen = order[first : first + self.batch]
                found |= zip(chosen, self._scored([rows[i] for i in chosen]), strict=True)
                self.progress(len(found), len(rows))
        return [found[i] for i in range(len(rows))]

    def _shortened(self, context: list[int], new: list[int]) -> list[int]:
        """Context and continuation, without the beginning that the model may not see."""
        if self.length is None:
            return context + new
        if len(new) > self.length:
            raise ValueError(
                f"a continuation has {len(new)} tokens, and length={self.length}: take a larger one"
            )
        return (context + new)[-(self.length + 1) :]

    def _scored(self, rows: Sequence[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """The same for a batch of tokens, of which the last so many are asked."""
        device = self.model.embedding.weight.device
        width = max(len(row) for row, _ in rows) - 1
        tokens = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for i, (row, _) in enumerate(rows):
            tokens[i, : len(row) - 1] = torch.tensor(row[:-1])
            mask[i, : len(row) - 1] = True
        whole = bool(mask.all())
        x, _ = self.model.features(tokens.to(device), mask=None if whole else mask.to(device))
        found = []
        for i, (row, new) in enumerate(rows):
            asked = x[i, len(row) - 1 - new : len(row) - 1]
            wanted = torch.tensor(row[len(row) - new :], device=asked.device)
            total, greedy = 0.0, True
            for part, right in zip(asked.split(SCORED), wanted.split(SCORED), strict=True):
                scores = self.model.scores(part[None])[0].float()
                right = right.to(scores.device)
                logs = scores.log_softmax(-1).gather(1, right[:, None])
                total += logs.double().sum().item()
                greedy = greedy and bool((scores.argmax(-1) == right).all())
            found.append((total, greedy))
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = True
    ) -> list[float]:
        """log p of whole texts."""
        windows: list[tuple[None, list[int], list[int]]] = []
        owners: list[int] = []
        for index, request in enumerate(requests):
            tokens = self.text.encode(request.args[0], special=False)
            cut = get_rolling_token_windows(
                token_list=tokens,
                prefix_token=self.prefix_token_id,
                max_seq_len=self.length or max(len(tokens), 1),
                context_len=1,
            )
            for context, new in map(make_disjoint_window, cut):
                windows.append((None, context, new))
                owners.append(index)
        totals = [0.0] * len(requests)
        for owner, (total, _) in zip(owners, self._loglikelihood_tokens(windows), strict=True):
            totals[owner] += total
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = True) -> list[str]:
        """What the model writes after each prompt, up to one of the strings that end an answer."""
        prompts = [self.text.encode(request.args[0], special=False) for request in requests]
        order = sorted(range(len(requests)), key=lambda i: -len(prompts[i]))
        groups: dict[str, list[int]] = {}
        for i in order:
            groups.setdefault(repr(requests[i].args[1]), []).append(i)
        found: dict[int, str] = {}
        for members in groups.values():
            options = _Answer.of(requests[members[0]].args[1])
            for first in range(0, len(members), self.batch):
                chosen = members[first : first + self.batch]
                ready = [self._prompt(prompts[i], options.longest) for i in chosen]
                found |= zip(chosen, self._written(ready, options), strict=True)
                self.progress(len(found), len(requests))
        return [found[i] for i in range(len(requests))]

    def _prompt(self, tokens: list[int], longest: int) -> list[int]:
        tokens = tokens or [self.prefix_token_id]
        if self.length is None:
            return tokens
        if longest >= self.length:
            raise ValueError(
                f"an answer may have {longest} tokens, and length={self.length} leaves no room for "
                "a prompt: take a larger one"
            )
        return tokens[-(self.length - longest) :]

    def _written(self, prompts: Sequence[list[int]], options: "_Answer") -> list[str]:
        end = self.text.end
        tokens: list[list[int]] = [[] for _ in prompts]
        texts = [""] * len(prompts)
        columns = self.model.stream(
            prompts,
            max_new_tokens=options.longest,
            sampling=options.sampling,
            stop=() if end is None else (end,),
            generator=torch.Generator(self.model.embedding.weight.device).manual_seed(0),
        )
        for column in columns:
            for i, token in enumerate(column.tolist()):
                if token >= 0 and token != end and not options.ends(texts[i]):
                    tokens[i].append(token)
                    texts[i] = self.text.decode(tokens[i])
            if all(map(options.ends, texts)):
                break
        return [options.cut(written) for written in texts]


@dataclass(frozen=True)
class _Answer:
    """How an answer is written, in the words of the harness."""

    until: tuple[str, ...]
    longest: int
    sampling: Sampling

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "_Answer":
        left = dict(options)
        until = left.pop("until", None) or ()
        longest = left.pop("max_gen_toks", ANSWER)
        drawn = left.pop("do_sample", False)
        warm = left.pop("temperature", 1.0 if drawn else 0.0)
        rest = {name: left.pop(name) for name in ("top_k", "top_p") if name in left}
        if left:
            raise ValueError(
                f"{next(iter(left))!r} of generation_kwargs is not known here; known are until, "
                "max_gen_toks, do_sample, temperature, top_k, top_p"
            )
        sampling = Sampling(temperature=warm, **rest) if drawn else Sampling(temperature=0.0)
        return cls((until,) if isinstance(until, str) else tuple(until), longest, sampling)

    def ends(self, written: str) -> bool:
        return any(stop in written for stop in self.until)

    def cut(self, written: str) -> str:
        for stop in self.until:
            written = written.split(stop)[0]
        return written
