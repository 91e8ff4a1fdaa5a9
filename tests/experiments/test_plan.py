"""The runs of one table, and where they go."""

from statetrack import experiments


def test_the_folder_names_experiment_scale_and_version() -> None:
    chomsky = experiments.get("chomsky")
    quick, paper = chomsky.plan("quick", "ran"), chomsky.plan("paper", "ran")
    assert (quick.folder, paper.folder) == ("chomsky-quick", "chomsky-paper-ran")
    assert (quick.version, paper.version) == (None, "ran")
    assert list(paper.configs) == chomsky.runs("paper", "ran")
    assert (paper.paper_label, paper.summary) == ("table 3", chomsky.summary)
    assert experiments.get("householders").plan("smoke", "iclr").paper_label is None


def test_the_command_makes_the_folder() -> None:
    plan = experiments.get("z60").plan("paper", "iclr")
    words = "statetrack reproduce z60 --scale paper --version iclr --only 'Mamba [0, 1]' --out o"
    assert plan.command("o", "Mamba [0, 1]") == words


def test_what_is_chosen_comes_with_what_it_starts_from() -> None:
    plan = experiments.get("boxes").plan("smoke", "iclr")
    first, second = next(
        (first, second)
        for first in plan.configs
        for second in plan.configs
        if second.parent == first.fingerprint
    )
    assert plan.with_parents([second]) == plan.with_parents([second, first]) == [first, second]
    assert plan.with_parents([first]) == [first]
    assert plan.with_parents(plan.configs) == list(plan.configs)
