"""Language models: text from them, and how well they predict it."""

import contextlib
import json
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from statetrack.cli.options import Flag, by_name, choose_device
from statetrack.cli.show import LiveLine, number, table

if TYPE_CHECKING:
    from statetrack import lm
    from statetrack.lm import harness
    from statetrack.models import CausalLM

__all__ = ["convert", "evaluate", "generate"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def generate(
    folder: Path,
    *,
    prompt: str | None = None,
    max_new_tokens: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = 0.95,
    repetition_penalty: float = 1.0,
    match: str | None = None,
    alphabet: str | None = None,
    seed: int = 0,
    device: str | None = None,
) -> int:
    """Writes on from a prompt, as it goes.

    Parameters
    ----------
    folder
        A language model with its tokenizer.json.
    prompt
        What to go on from; left out, it is read from the standard input.
    max_new_tokens
        How many tokens to write at most; fewer if the model ends its text.
    temperature
        Divides the scores; 0 takes the most likely token each time.
    top_k
        Draw among the k most likely tokens only.
    top_p
        Draw among the most likely tokens that together have this probability.
    repetition_penalty
        Above 1 makes tokens that were there before less likely.
    match
        Write only what this machine accepts: a regular expression ('[0-9]+'), a name, or a file,
        as for `statetrack compile`. It begins after the prompt.
    alphabet
        Of the regular expression; by default its own letters.
    seed
        Decides what is drawn.
    device
        cpu or cuda; by default a GPU if there is one.
    """
    import torch

    from statetrack import automata, lm
    from statetrack.models import CausalLM, Sampling

    if alphabet is not None and match is None:
        raise ValueError("--alphabet is that of --match: give both, or neither")
    sampling = Sampling(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        repetition_penalty=repetition_penalty,
    )
    place = choose_device(device)
    model = CausalLM.load(folder).to(place)
    text = lm.load_text(folder, model)
    words = sys.stdin.read() if prompt is None else prompt
    end = text.end
    tokens = text.encode(words) or ([] if text.begin is None else [text.begin])
    if not tokens:
        raise ValueError("the prompt is empty, and this tokenizer has no token to begin with")
    _tell_window(model, len(tokens))
    new = model.stream(
        [tokens],
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop=() if end is None else (end,),
        generator=torch.Generator(place).manual_seed(seed),
        constraint=None if match is None else lm.constraint(automata.read(match, alphabet), text),
    )
    print(words, end="", flush=True)
    for piece in text.stream(int(token) for token in new if int(token) != end):
        print(piece, end="", flush=True)
    print()
    return 0


def _tell_window(model: "CausalLM", tokens: int) -> None:
    """Says what it means that a prompt is longer than attention looks back."""
    windows = [mixer.options.get("window") for mixer in model.config.backbone.mixers]
    given = [window for window in windows if window is not None]
    if given and tokens > min(given):
        others = "" if len(given) == len(windows) else "; the other layers read all of them"
        print(
            f"the prompt has {tokens} tokens: {len(given)} of {len(windows)} layers attend to the "
            f"last {min(given)}{others}",
            file=sys.stderr,
        )


def evaluate(
    *folders: Path,
    data: list[Path] | None = None,
    tasks: list[str] | None = None,
    task_data: Path | None = None,
    length: int | None = None,
    limit: int | None = None,
    trained: int | None = None,
    bin_size: int = 128,
    chunk: int = 1024,
    batch: int = 8,
    out: Path | None = None,
    plot: Path | None = None,
    device: str | None = None,
) -> int:
    """How well language models predict text, and what they reach in tasks.

    On text (`--data`): loss by position, perplexity and bits per byte. In tasks (`--tasks`): the
    lm-evaluation-harness, on examples in local files.

    Parameters
    ----------
    folders
        Language models with their tokenizer.json.
    data
        Text files, .jsonl files with a "text" in every line, or folders of them. Each is a domain
        of its own.
    tasks
        Names with commas between them: wikitext, lambada, piqa, hellaswag, winogrande, arc_easy,
        arc_challenge, swde, squad_completion and fda, or paper for these ten; state_switch and
        state_swaps, which need no files; or YAML files of the harness.
    task_data
        The folder with a file TASK.jsonl for each task.
    length
        Of text, how many tokens are predicted at most. In tasks, how many the model sees at once
        at most; published numbers mostly have 2048. No limit by default.
    limit
        Ask only so many examples of each task.
    trained
        The length that the models were trained at, for the picture.
    bin_size
        Positions of a text that are averaged into one number.
    chunk
        Tokens of a text that are read at once.
    batch
        Texts, or requests of a task, that are read at once.
    out
        Also write everything to this JSON file; it is written anew after every result.
    plot
        Also draw loss against position into this PNG or SVG file, a picture for each domain.
    device
        cpu or cuda; by default a GPU if there is one.
    """
    import torch

    from statetrack import lm
    from statetrack.models import CausalLM
    from statetrack.models.folder import read_config

    names = [name for entry in tasks or () for name in entry.split(",") if name]
    if not folders:
        raise ValueError("give the folder of a language model, or of several")
    if not data and not names:
        raise ValueError("give text with --data, or tasks with --tasks, or both")
    for option, given, needed, there in (
        ("--plot", plot, "--data", data),
        ("--trained", trained, "--plot", plot),
        ("--limit", limit, "--tasks", names),
        ("--task-data", task_data, "--tasks", names),
    ):
        if given is not None and not there:
            raise ValueError(f"{option} needs {needed}")
    for path in (out, plot):
        if path is not None and not path.parent.is_dir():
            raise ValueError(f"cannot write {path}: there is no folder {path.parent}")
    if names:
        from statetrack.lm import harness

        names = harness.expect_tasks(names, task_data)
    domains = {name: list(lm.read_documents(path)) for name, path in by_name(data or []).items()}
    for folder in folders:
        read_config(folder)  # so that the last one is not refused when the others are done
    place = choose_device(device)
    report = _Report(out, place)
    for label, folder in by_name(folders).items():
        model = CausalLM.load(folder).to(place)
        text = lm.load_text(folder, model)
        for domain, texts in domains.items():
            many = f"{len(texts)} text" + "s" * (len(texts) != 1)
            print(f"{label} on {domain}: {many}", file=sys.stderr)
            tokens = [torch.tensor(text.encode(one)) for one in texts]
            kept = [one if length is None else one[: length + 1] for one in tokens if len(one) > 1]
            if not kept:
                raise ValueError(f"{domain} has no text of two tokens: there is nothing to predict")
            found = lm.evaluate(
                model,
                kept,
                bin_size=bin_size,
                chunk=chunk,
                batch=batch,
                num_bytes=sum(len(text.decode(one[1:].tolist()).encode()) for one in kept),
                progress=_progress(),
            )
            report.add_text(label, domain, found)
        for name in names:
            print(f"{label} in {name}", file=sys.stderr)
            results = harness.run_tasks(
                model,
                text,
                [name],
                task_data,
                length=length,
                batch=batch,
                limit=limit,
                progress=_progress(),
            )
            for result in results:
                report.add_task(label, result)
    report.show()
    if plot is not None:
        stems = [Path(domain).stem for domain in domains]
        for domain, models in report.texts.items():
            end = Path(domain).stem if len(set(stems)) == len(stems) else domain.replace("/", "-")
            path = plot if len(domains) == 1 else plot.with_stem(f"{plot.stem}-{end}")
            lm.plot(models, trained=trained, title=domain).savefig(path, dpi=120)
            print(f"Picture: {path}")
    return 0


class _Report:
    """What is found, printed at the end and in a file all the while."""

    def __init__(self, out: Path | None, place: str) -> None:
        from statetrack.runs.environment import environment

        self.out = out
        self.texts: dict[str, dict[str, lm.Evaluation]] = {}
        self.tasks: dict[str, dict[str, harness.TaskResult]] = {}
        self.environment = environment(place)
        for package in ("tokenizers", "lm_eval"):
            with contextlib.suppress(metadata.PackageNotFoundError):
                self.environment["versions"][package] = metadata.version(package)
        self._write()

    def add_text(self, model: str, domain: str, found: "lm.Evaluation") -> None:
        self.texts.setdefault(domain, {})[model] = found
        self._write()

    def add_task(self, model: str, found: "harness.TaskResult") -> None:
        self.tasks.setdefault(found.task, {})[model] = found
        self._write()

    def _write(self) -> None:
        if self.out is None:
            return
        stored = {"environment": self.environment}
        for kind, found in (("texts", self.texts), ("tasks", self.tasks)):
            stored[kind] = {
                what: {model: one.to_dict() for model, one in models.items()}
                for what, models in found.items()
            }
        temporary = self.out.with_name(f".tmp-{self.out.name}")
        temporary.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        temporary.replace(self.out)

    def show(self) -> None:
        rows = []
        for domain, models in self.texts.items():
            for model, one in models.items():
                between = one.interval(-1)
                rows.append(
                    [
                        model,
                        domain,
                        str(one.tokens),
                        number(one.perplexity, "{:.3f}"),
                        number(one.bits_per_byte, "{:.4f}"),
                        str(one.ends[-1]),
                        number(one.loss[-1], "{:.4f}"),
                        "-" if between is None else "{:.3f} to {:.3f}".format(*between),
                    ]
                )
        columns = ["model", "text", "tokens", "perplexity", "bits/byte", "to", "loss there", "95 %"]
        if rows:
            title = "Loss in nats a token; the last columns are about the last positions."
            table(title, columns, rows)
        rows = [
            [model, task, metric, number(value, "{:.4g}"), number(one.errors[metric], "{:.2g}")]
            + [str(one.examples)]
            for task, models in self.tasks.items()
            for model, one in models.items()
            for metric, value in one.metrics.items()
        ]
        if rows:
            columns = ["model", "task", "metric", "value", "std. error", "examples"]
            table(
                "Tasks of the lm-evaluation-harness, without examples in the prompt.", columns, rows
            )


def _progress() -> Callable[[int, int], None]:
    line = LiveLine()

    def tell(done: int, of: int) -> None:
        line(f"  {done} of {of}", last=done == of)

    return tell


def convert(
    source: Path,
    out: Path,
    *,
    to: Literal["statetrack", "fla"] = "statetrack",
    open_range: Flag = False,
) -> int:
    """A language model of another library as one of ours, exactly, or one of ours for fla.

    Parameters
    ----------
    source
        A folder with config.json and safetensors: Mamba, Mamba2, OLMo-Hybrid or Qwen3-Next of
        transformers, a checkpoint of mamba-ssm, a DeltaNet, GatedDeltaNet, GatedDeltaProduct, KDA,
        GLA or RWKV-7 of fla; with `--to fla`, one of ours.
    out
        The folder to write.
    to
        Whose model to write.
    open_range
        Let every head learn to open its eigenvalue range from [0, 1] to [-1, 1]; the model says
        the same until it is trained further.
    """
    from statetrack.hf import convert as conversion
    from statetrack.models import CausalLM
    from statetrack.models.folder import write_folder

    if out.resolve() == source.resolve():
        raise ValueError(f"{out} is the model to convert: write to another folder")
    if to == "fla":
        if open_range:
            raise ValueError("fla has no layers that learn their range: leave out --open-range")
        config, weights = conversion.to_fla(CausalLM.load(source))
        write_folder(out, config, weights)
    else:
        model = conversion.from_folder(source)
        if open_range:
            model = conversion.open_range(model)
        model.save(out)
    kept = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in kept:
        shutil.copyfile(source / name, out / name)
    print(f"Wrote {out}" + (f", with {', '.join(kept)}" if kept else ", without a tokenizer"))
    return 0
