"""Language models: text from them, and how well they predict it."""

import json
import shutil
import sys
from pathlib import Path
from typing import Literal

from statetrack.cli.options import choose_device

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
    end = text.tokenizer.token_to_id(lm.END)
    tokens = text.encode(words) or ([] if end is None else [end])
    if not tokens:
        raise ValueError("the prompt is empty, and this tokenizer has no token to begin with")
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


def evaluate(
    *folders: Path,
    data: list[Path],
    length: int | None = None,
    trained: int | None = None,
    bin_size: int = 128,
    chunk: int = 1024,
    batch: int = 8,
    out: Path | None = None,
    plot: Path | None = None,
    device: str | None = None,
) -> int:
    """Loss by position, perplexity and bits per byte of language models on text.

    Parameters
    ----------
    folders
        Language models with their tokenizer.json.
    data
        Text files, .jsonl files with a "text" in every line, or folders of them. Each is a domain
        of its own.
    length
        How many tokens of a text are predicted at most; all of them by default.
    trained
        The length that the models were trained at, for the picture.
    bin_size
        Positions that are averaged into one number.
    chunk
        Tokens that are read at once.
    batch
        Texts that are read at once.
    out
        Also write everything to this JSON file.
    plot
        Also draw loss against position into this PNG or SVG file, a picture for each domain.
    device
        cpu or cuda; by default a GPU if there is one.
    """
    import torch

    from statetrack import lm
    from statetrack.cli.show import number, table
    from statetrack.models import CausalLM

    if not folders:
        raise ValueError("give the folder of a language model, or of several")
    found: dict[str, dict[str, lm.Evaluation]] = {}
    rows = []
    place = choose_device(device)
    for folder in folders:
        model = CausalLM.load(folder).to(place)
        text = lm.load_text(folder, model)
        for path in data:
            texts = [torch.tensor(text.encode(one)) for one in lm.read_documents(path)]
            kept = [one if length is None else one[: length + 1] for one in texts if len(one) > 1]
            size = sum(len(text.decode(one[1:].tolist()).encode()) for one in kept)
            print(f"{folder.name} on {path.name}: {len(kept)} texts", file=sys.stderr)
            one = lm.evaluate(
                model,
                kept,
                bin_size=bin_size,
                chunk=chunk,
                batch=batch,
                num_bytes=size,
                progress=_show,
            )
            found.setdefault(path.name, {})[folder.name] = one
            low, high = one.interval(-1) or (None, None)
            rows.append(
                [
                    folder.name,
                    path.name,
                    str(one.tokens),
                    number(one.perplexity, "{:.3f}"),
                    number(one.bits_per_byte, "{:.4f}"),
                    str(one.ends[-1]),
                    number(one.loss[-1], "{:.4f}"),
                    f"{number(low, '{:.3f}')} to {number(high, '{:.3f}')}",
                ]
            )
    columns = ["model", "text", "tokens", "perplexity", "bits/byte", "to", "loss there", "95 %"]
    table("Loss in nats a token; the last columns are about the last positions.", columns, rows)
    if out is not None:
        stored = {
            domain: {name: one.to_dict() for name, one in models.items()}
            for domain, models in found.items()
        }
        out.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    if plot is not None:
        for domain, models in found.items():
            path = plot if len(found) == 1 else plot.with_stem(f"{plot.stem}-{Path(domain).stem}")
            lm.plot(models, trained=trained, title=domain).savefig(path, dpi=120)
            print(f"Picture: {path}")
    return 0


def _show(done: int, of: int) -> None:
    """A line that is written over on a terminal, and nothing elsewhere but the last."""
    if sys.stderr.isatty():
        print(f"\r  {done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)
    elif done == of:
        print(f"  {done} of {of}", file=sys.stderr, flush=True)


def convert(
    source: Path,
    out: Path,
    *,
    to: Literal["statetrack", "fla"] = "statetrack",
    open_range: bool = False,
) -> int:
    """A language model of another library as one of ours, exactly, or one of ours for fla.

    Parameters
    ----------
    source
        A folder with config.json and safetensors: Mamba, Mamba2, OLMo-Hybrid or Qwen3-Next of
        transformers, a checkpoint of mamba-ssm, a DeltaNet, GatedDeltaNet, GatedDeltaProduct or
        GLA of fla; with `--to fla`, one of ours.
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
