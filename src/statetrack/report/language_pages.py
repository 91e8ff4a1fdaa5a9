"""Language models in words and tables: loss by domain and range, probes, heads."""

import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from statetrack.experiments.language import EXTENDED, MODELS
from statetrack.experiments.summary import LANGUAGE
from statetrack.report.cells import KEYS
from statetrack.report.language import (
    CONTROLS,
    LEAST,
    Asked,
    Cause,
    Difference,
    Family,
    Range,
    differences,
    families,
    said_of,
    variant_of,
)
from statetrack.report.markdown import table_line
from statetrack.report.questions import Link
from statetrack.runs.stored import Place

__all__ = [
    "heads_answer",
    "heads_tables",
    "in_short",
    "language_answer",
    "language_tables",
    "looked_at",
    "probe_tables",
    "short_table",
    "summary_rows",
]

DOMAINS = ("code", "math", "prose")
"""Of the study's text: what an empty row is about."""
TRAINED = 2048
COMMAND = (
    "python -m statetrack.experiments.language study --shards shards --models {models} --only "
    "'{name}' --tokens 1e8 --batch 32 --compile --out runs/language"
)
PAPER = (
    "The paper trains DeltaNet with 340M and 1.3B parameters on web text. It finds a lower "
    "perplexity of [-1, 1] on code and mathematics (2 points on CodeParrot at 340M), about the "
    "same elsewhere, and a slightly higher one on trivia questions. Its figure is perplexity "
    "against position. The text here is other text and the models are smaller, so only the sign of "
    "a difference can be compared."
)
SHOWN_HEADS = 12
SHOWN_TOKENS = 5
LEAST_TOKENS = 20
"""Of a class before the answer speaks of it."""
SAID = {
    "lower": "With [-1, 1] the loss of {} is lower on {}.",
    "higher": "With [-1, 1] the loss of {} is higher on {}.",
    "all lower": "With [-1, 1] every seed of {} is lower on {}, but seeds differ too "
    "much to count on it.",
    "all higher": "With [-1, 1] every seed of {} is higher on {}, but seeds differ too "
    "much to count on it.",
    "alike": "With both ranges {} has the same loss on {}.",
    "open": "Open for {} on {}: seeds differ by more than the ranges do.",
    "one seed": "Open for {} on {}: there is one seed.",
}
"""A verdict in the answer, with the models and the domains it is about."""
COMPARED: dict[Cause, str] = {
    "range": "[-1, 1] minus [0, 1]",
    "started": "[-1, 1], β from 0.5, minus [0, 1]",
    "learnt": "learnt range minus [0, 1]",
    "speed": "control minus [0, 1]: the start",
    "sign": "[-1, 1] minus control: the sign",
    "clamp": "clamped to 0 minus unclamped",
}
WHAT = (
    "β = 2σ(x) of [-1, 1] begins at 1, where σ(x) of [0, 1] begins at 0.5, and moves twice as "
    "fast; gates 2s - 1 begin lower than s. Models whose β begins at 0.5, and models whose heads "
    "learn their range from [0, 1] on, do not have that start. A capped control has start and "
    "speed, but never a negative eigenvalue: its β stops at 1, or its gates at 0. So what it costs "
    "to start so and what the sign does in training add up to the difference of the ranges, for "
    "the seeds that have a control. A trained model that is clamped has no negative eigenvalues "
    f"any more. Alike is below {LEAST} nats whatever the text and the seed."
)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _positions(one: Difference | tuple[int, int], trained: int) -> str:
    end = one.end if isinstance(one, Difference) else one[1]
    return f"1 to {end}" if end == trained else f"{end // 2 + 1} to {end}"


# -- loss ---------------------------------------------------------------------------------------


def language_answer(asked: Sequence[Asked]) -> str:
    """The first sentences of the page: which is lower, as far as seeds can tell."""
    found = families(asked)
    told = _at_training(found, "range")
    if not told:
        return "Not known: no language model has been trained and judged in both ranges."
    by_model: dict[tuple[str, str], list[str]] = {}
    for one in told:
        by_model.setdefault((_said_as(one), one.layer), []).append(one.domain)
    models: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (verdict, layer), domains in by_model.items():
        models.setdefault((verdict, tuple(domains)), []).append(layer)
    return " ".join(
        sentence.format(_listed(layers), _listed(domains))
        for verdict, sentence in SAID.items()
        for (found_as, domains), layers in models.items()
        if found_as == verdict
    )


def _said_as(one: Difference) -> str:
    """The verdict, and where that is open whether all seeds agree at least."""
    if one.verdict != "open":
        return one.verdict
    lower = [value < 0 for value in one.seeds]
    return "all lower" if all(lower) else "open" if any(lower) else "all higher"


def in_short(asked: Sequence[Asked]) -> list[tuple[str, list[Difference]]]:
    """What was compared with what at the length of training, model by model, and how it differs."""
    found = families(asked)
    rows: dict[tuple[str, Cause], list[Difference]] = {}
    for cause in COMPARED:
        for one in _at_training(found, cause):
            rows.setdefault((one.layer, cause), []).append(one)
    layers = list(dict.fromkeys(layer for layer, _ in rows))
    ordered = sorted(rows.items(), key=lambda row: layers.index(row[0][0]))
    return [(f"{layer}: {COMPARED[cause]}", told) for (layer, cause), told in ordered]


def short_table(asked: Sequence[Asked]) -> list[str]:
    """`in_short` as a table, and what its words mean."""
    rows = in_short(asked)
    if not rows:
        return []
    domains = list(dict.fromkeys(one.domain for _, told in rows for one in told))
    trained = rows[0][1][0].end
    lines = [
        f"Difference of the losses in nats a token, within the {trained} tokens of training:\n",
        table_line(["compared", *domains, "seeds", "verdict"]),
        "|---|" + "--:|" * len(domains) + "--:|---|",
    ]
    for called, told in rows:
        means = {one.domain: f"{one.mean:+z.3f}" for one in told}
        columns = [called, *(means.get(name, "") for name in domains)]
        lines.append(table_line([*columns, str(len(told[0].seeds)), _verdicts(told)]))
    return [*lines, "", WHAT, ""]


def _at_training(found: Sequence[Family], cause: Cause) -> list[Difference]:
    return [one for one in differences(found, cause) if one.end == _trained(found)]


def _verdicts(told: Sequence[Difference]) -> str:
    """Each verdict once, with the domains it is about."""
    by_verdict: dict[str, list[str]] = {}
    for one in told:
        by_verdict.setdefault(one.verdict, []).append(one.domain)
    if len(by_verdict) == 1:
        return next(iter(by_verdict))
    return "; ".join(f"{verdict} on {_listed(names)}" for verdict, names in by_verdict.items())


def _listed(names: Sequence[str]) -> str:
    """Words as a sentence has them.

    >>> _listed(["code", "math", "prose"])
    'code, math and prose'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _trained(found: Sequence[Family]) -> int:
    return found[0].members[0].trained if found else TRAINED


def language_tables(asked: Sequence[Asked], link: Link) -> list[str]:
    """Losses by domain for every model and range, then the differences of pairs."""
    found = families(asked)
    trained = _trained(found)
    domains = list(dict.fromkeys(d for f in found for m in f.members for d in m.domains))
    domains = domains or list(DOMAINS)
    farthest = max(
        (e for f in found for m in f.members for d in domains for e in m.ends(d) if m.domains),
        default=16 * TRAINED,
    )
    heads = [f"{d}, to {trained}" for d in domains]
    heads += [f"{d}, {farthest // 2 + 1} to {farthest}" for d in domains]
    lines = [
        "Loss in nats a token on text of projects that no model was trained on: the median over "
        "seeds, in brackets the highest minus the lowest.\n",
        table_line(["model", "parameters", "tokens", "seeds", *heads, "remark"]),
        "|---|--:|--:|--:|" + "--:|" * len(heads) + "---|",
    ]
    for family in found:
        config, first = family.config, family.members[0]
        size = first.run.info.get("parameters")
        columns = [
            family.label,
            "" if size is None else f"{size / 1e6:.1f}M",
            f"{config.steps * config.batch * config.length / 1e6:.0f}M",
            str(len(family.members)),
            *(_loss(family, d, trained, link) for d in domains),
            *(_loss(family, d, farthest, link) for d in domains),
            f"rate {config.optimizer.lr:g}",
        ]
        lines.append(table_line(columns))
    for command, layer, between, variant in _not_run(found):
        name = said_of(layer, between, variant)
        columns = [name, *[""] * (len(heads) + 3), f"not run: `{command}`"]
        lines.append(table_line(columns))
    told = [
        (f"{one.layer}: {said}", one)
        for cause, said in COMPARED.items()
        for one in differences(found, cause)
        if cause == "range" or one.end in (trained, farthest)
    ]
    if told:
        lines += [
            "\nThe same differences window by window and seed by seed on the same text, [-1, 1] "
            "and [0, 1] at all lengths; the interval is over windows, each the mean of its seeds."
            "\n",
            *_difference_lines("compared", told, trained),
        ]
    return [*lines, "", PAPER]


def _difference_lines(
    first: str, told: Iterable[tuple[str, Difference]], trained: int
) -> list[str]:
    lines = [
        f"| {first} | domain | positions | difference | 95 % of the text | by seed "
        "| mean of seeds ± | windows | verdict |",
        "|---|---|---|--:|---|---|--:|--:|---|",
    ]
    for name, one in told:
        seeds = ", ".join(f"{value:+.4f}" for value in one.seeds)
        wide = "" if one.over_seeds is None else f"{one.over_seeds:.4f}"
        lines.append(
            f"| {name} | {one.domain} | {_positions(one, trained)} | {one.mean:+.4f} "
            f"| {one.low:+.4f} to {one.high:+.4f} | {seeds} | {wide} | {one.windows} "
            f"| {one.verdict} |"
        )
    return lines


def _loss(family: Family, domain: str, end: int, link: Link) -> str:
    values, best = family.losses(domain, end), family.best(domain, end)
    if best is None:
        return ""
    spread = f" ({max(values) - min(values):.4f})" if len(values) > 1 else ""
    return link(f"{statistics.median(values):.4f}{spread}", Place(best.files["loss"]))


def _not_run(found: Iterable[Family]) -> list[tuple[str, str, Range | None, str]]:
    """The models of the study that nobody trained: a command, layer, range and variant."""
    there = {(one.layer, one.between, one.variant) for one in found}
    missing = []
    for models, members in MODELS.items():
        for mixer, options in members:
            factors = options.get("num_householders")
            layer = mixer if factors is None else f"{mixer} n={factors}"
            word, variant = variant_of(options)
            between = options.get("eigen_range")
            one = CONTROLS.get(layer, (layer, between, variant))
            if one not in there:
                name = said_of(f"{layer}{word}", between, "")
                missing.append((COMMAND.format(models=models, name=name), *one))
    return missing


# -- probes -------------------------------------------------------------------------------------


def probe_tables(asked: Sequence[Asked], link: Link) -> list[str]:
    """Accuracy by length on every probe, as trained on text and after fine-tuning."""
    found = families(asked)
    names = dict.fromkeys(
        name for one in asked if "probes" in one.answers for name in one.answers["probes"]["probes"]
    )
    lines: list[str] = []
    for name in names:
        told = [
            (family, phase, scores)
            for phase in ("zero_shot", "tuned")
            for family in found
            if (scores := _scores(family, name, phase))
        ]
        if not told:
            continue
        about = told[0][2][0][1]
        ends = sorted(
            {end for _, _, scores in told for _, _, one in scores for end, _, _ in one["by_length"]}
        )
        tuning = told[0][2][0][0].answers["probes"]["settings"]
        lines += [
            f"\n{name}: share of right answers by {about['length_means']} read (answers between "
            f"half of it and all of it), the median over seeds. A guess gets {about['chance']:.3f}."
            + (
                f" Fine-tuned: {tuning['steps']} steps of {tuning['batch']} traces of up to "
                f"{about['trained_to']}, rate {tuning['lr']:g}, for both ranges alike."
                if "trained_to" in about and tuning["steps"]
                else ""
            )
            + "\n",
            table_line(["model", "asked", "all", *map(str, ends)]),
            "|---|---|--:|" + "--:|" * len(ends),
        ]
        for family, phase, scores in told:
            best = max(scores, key=lambda item: item[2]["accuracy"])[0]
            middle = statistics.median(one["accuracy"] for _, _, one in scores)
            columns = [
                family.label,
                {"zero_shot": "as it is", "tuned": "fine-tuned"}[phase],
                link(f"{middle:.3f}", Place(best.files["probes"])),
            ]
            for end in ends:
                here = [
                    share for _, _, one in scores for e, share, _ in one["by_length"] if e == end
                ]
                columns.append(f"{statistics.median(here):.3f}" if here else "")
            lines.append(table_line(columns))
    return lines


def _scores(
    family: Family, name: str, phase: str
) -> list[tuple[Asked, Mapping[str, Any], Mapping[str, Any]]]:
    """Of every seed that was asked: the model, the probe, and how it did."""
    return [
        (one, probe, probe[phase])
        for one in family.members
        if "probes" in one.answers
        and (probe := one.answers["probes"]["probes"].get(name)) is not None
        and phase in probe
    ]


# -- heads --------------------------------------------------------------------------------------


def looked_at(asked: Sequence[Asked]) -> list[tuple[Family, Asked]]:
    """The first seed of every model with [-1, 1] whose heads were looked at; most below 0 first."""
    found = [(family, known[0]) for family in families(asked) if (known := _with_heads(family))]
    return sorted(found, key=lambda pair: -_below_0(pair[1]))


def _with_heads(family: Family) -> list[Asked]:
    """The seeds of a model with [-1, 1] whose heads were looked at."""
    if family.between != EXTENDED:
        return []
    return [one for one in family.members if "all" in one.answers.get("heads", {})]


def heads_answer(asked: Sequence[Asked]) -> str:
    """The first sentences of the page: which models have most and least below 0, and where."""
    found = looked_at(asked)
    if not found:
        return "Not known: the heads of no language model with [-1, 1] have been looked at."
    (family, most), (other, least) = found[0], found[-1]
    said = (
        f"In {family.label} {_percent(_below_0(most))} of all tokens and heads have an eigenvalue "
        f"below 0, most of all on tokens of the class {_classes(most)[0][0]}"
    )
    if len(found) == 1:
        return f"{said}."
    return f"{said}; in {other.label} {_percent(_below_0(least))} have, the fewest of all models."


def _below_0(one: Asked) -> float:
    share: float = one.answers["heads"]["all"]["below_0"]
    return share


def _classes(one: Asked) -> list[tuple[str, Mapping[str, Any]]]:
    """Of tokens, with enough of them to speak of; first that with the most below 0."""
    by_class = one.answers["heads"]["by_class"].items()
    known = [(name, counts) for name, counts in by_class if counts["tokens"] >= LEAST_TOKENS]
    return sorted(known, key=lambda item: -item[1]["below_0"])


def _heads_in_short(found: Sequence[tuple[Family, Asked]]) -> list[str]:
    """One line a model."""
    lines = [
        "Shares of tokens and heads whose least eigenvalue is below 0, over all layers; of heads "
        "that were not counted together, how many are below 0 on more than half of the tokens, and "
        "how many on fewer than one in a hundred.\n",
        "| model | below 0, by seed | below -0.5 | heads | on more than half | on hardly any "
        "| most on | least on |",
        "|---|---|--:|--:|--:|--:|---|---|",
    ]
    for family, one in found:
        heads = one.answers["heads"]["heads"]
        classes = _classes(one)
        (most, first), (least, last) = classes[0], classes[-1]
        columns = [
            family.label,
            ", ".join(_percent(_below_0(seed)) for seed in _with_heads(family)),
            _percent(one.answers["heads"]["all"]["below_half"]),
            *(
                str(count) if heads else ""
                for count in (
                    len(heads),
                    sum(head["below_0"] > 0.5 for head in heads),
                    sum(head["below_0"] < 0.01 for head in heads),
                )
            ),
            f"{most} ({_percent(first['below_0'])})",
            f"{least} ({_percent(last['below_0'])})",
        ]
        lines.append(table_line(columns))
    return lines


def heads_tables(
    asked: Sequence[Asked], link: Link, images: Mapping[str, Sequence[str]]
) -> list[str]:
    """All models in short, then each with its pictures, by class of token, and by head.

    `images`: the label of a model -> lines that show its pictures.
    """
    found = looked_at(asked)
    lines = _heads_in_short(found) if found else []
    for family, one in found:
        heads, file = one.answers["heads"], Place(one.files["heads"])
        read = ", ".join(f"{count:,} of {name}" for name, count in heads["tokens"].items())
        order = sorted(heads["heads"], key=lambda h: (-h["below_0"], -h["below_half"]))
        lines += [
            f"\n### {family.label}, seed {one.seed}\n",
            *images.get(family.label, ()),
            "",
            f"Tokens read: {read}. Shares are of tokens and heads, over all layers.\n",
            "| class of token | tokens | mean eigenvalue | below 0 | below -0.5 |",
            "|---|--:|--:|--:|--:|",
        ]
        classes = sorted(heads["by_class"].items(), key=lambda item: -item[1]["below_0"])
        for name, numbers in classes:
            mean = link(f"{numbers['mean']:z.3f}", file)
            lines.append(
                f"| {name} | {numbers['tokens']:,} | {mean} "
                f"| {_percent(numbers['below_0'])} | {_percent(numbers['below_half'])} |"
            )
        domains = list(heads["by_domain"])
        if not order:
            continue
        lines += [
            f"\nThe {min(SHOWN_HEADS, len(order))} heads that are below 0 most often, with "
            "the tokens on which they are lowest (mean, of tokens read at least "
            f"{heads['settings']['least']} times).\n",
            table_line(
                [
                    *("layer", "head", "below -0.5", "below 0"),
                    *(f"below 0 on {name}" for name in domains),
                    "lowest on",
                ]
            ),
            "|--:|--:|--:|--:|" + "--:|" * len(domains) + "---|",
        ]
        for head in order[:SHOWN_HEADS]:
            tokens = ", ".join(
                f"{_code(token['token'])} {token['mean']:z.2f}"
                for token in head["tokens"][:SHOWN_TOKENS]
            )
            columns = [
                str(head["layer"]),
                str(head["head"]),
                link(_percent(head["below_half"]), file),
                _percent(head["below_0"]),
                *(_percent(head["by_domain"][name]["below_0"]) for name in domains),
                tokens,
            ]
            lines.append(table_line(columns))
    return lines


def _code(token: str) -> str:
    """A token as code that stays in a cell of a table."""
    shown = repr(token)[1:-1].replace(" ", "␣")
    if "`" in shown:
        return f"<code>{escape(shown).replace('`', '&#96;')}</code>"
    return f"`{shown}`" if shown else "`\\0`"


# -- summary.json -------------------------------------------------------------------------------


def summary_rows(asked: Sequence[Asked], root: Path) -> list[dict[str, Any]]:
    """Rows of summary.json: the loss of every domain by position, and every probe by length.

    `length` is the last position of a range, in tokens, or what a probe counts; the best loss is
    the least. A model that nobody trained has one empty row for each domain.
    """
    rows = []
    found = families(asked)
    for family in found:
        members = [one for one in family.members if "loss" in one.answers]
        for domain in members[0].domains if members else ():
            for end in members[0].ends(domain):
                best = family.best(domain, end)
                if best is not None:
                    values = family.losses(domain, end)
                    row = _row(family, domain, "loss", end, values, best.files["loss"], root)
                    rows.append(row | {"best": min(values)})
        names = dict.fromkeys(
            name
            for one in family.members
            if "probes" in one.answers
            for name in one.answers["probes"]["probes"]
        )
        for name in names:
            for phase, called in (("zero_shot", name), ("tuned", f"{name} fine-tuned")):
                scores = _scores(family, name, phase)
                ends = dict.fromkeys(e for _, _, one in scores for e, _, _ in one["by_length"])
                for end in ends:
                    here = [
                        (share, asked_one)
                        for asked_one, _, one in scores
                        for e, share, _ in one["by_length"]
                        if e == end
                    ]
                    file = max(here, key=lambda item: item[0])[1].files["probes"]
                    values = [share for share, _ in here]
                    rows.append(_row(family, called, "accuracy", end, values, file, root))
    for _, layer, ends_of, variant in _not_run(found):
        between = None if ends_of is None else list(ends_of)
        model = said_of(layer, None, variant)
        known = {"experiment": LANGUAGE, "model": model, "eigen_range": between, "metric": "loss"}
        for domain in DOMAINS:
            empty: dict[str, Any] = dict.fromkeys(KEYS)
            rows.append(empty | known | {"task": domain, "length": TRAINED, "seeds": 0})
    return rows


def _row(
    family: Family,
    task: str,
    metric: str,
    end: int,
    values: Sequence[float],
    file: Path,
    root: Path,
) -> dict[str, Any]:
    config = family.config
    between = None if family.between is None else list(family.between)
    numbers = (
        LANGUAGE,
        task,
        said_of(family.layer, None, family.variant),
        between,
        config.model.backbone.num_layers,
        None,
        config.steps,
        config.batch,
        metric,
        end,
        None,
        max(values),
        statistics.median(values),
        max(values) - min(values) if len(values) > 1 else None,
        len(values),
        None,
        Path(os.path.relpath(file, root.parent)).as_posix(),
    )
    return dict(zip(KEYS, numbers, strict=True))
