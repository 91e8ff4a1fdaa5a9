"""Finished runs into the results that are kept."""

from pathlib import Path
from typing import TYPE_CHECKING

from statetrack.cli.options import Flag

if TYPE_CHECKING:
    from statetrack.runs import Run

__all__ = ["archive"]


def archive(*runs: Path, out: Path = Path("results"), retest: Flag = False) -> int:
    """Add finished runs to an archive: their numbers as lines, the best of each cell in full.

    Runs in a folder EXPERIMENT-SCALE go to OUT/EXPERIMENT-SCALE/runs.jsonl. A line that is there is
    never replaced: the same run twice is no mistake, one with other numbers is. A run that was made
    again only because others start from it is left out. The exact.json of a folder that
    `statetrack exact` wrote goes to OUT/exact, without its run.

    Parameters
    ----------
    runs
        Run folders, folders that `statetrack exact` wrote, or folders that hold some. Runs that
        have not finished are left out.
    out
        The archive of all experiments.
    retest
        The runs were made again: they go to a file of today, and count from now on.
    """
    from datetime import date

    from statetrack.analysis import read_audit
    from statetrack.analysis.exact_file import exact_files, store_exact
    from statetrack.runs.archive import archived_runs, store
    from statetrack.runs.folder import run_folders

    if not runs:
        raise ValueError("give run folders, or folders that hold some")
    for path in runs:
        if not path.is_dir():
            raise ValueError(f"{path} is no folder; give run folders, or folders that hold some")
    today = date.today() if retest else None
    exact = [file for path in runs for file in exact_files(path)]
    apart = {file.parent.resolve() for file in exact}
    found = [
        run
        for path in runs
        for run in run_folders(path)
        if run.folder.resolve().parent not in apart
    ]
    finished = [run for run in found if run.finished]
    if not finished and not exact:
        raise ValueError(f"no finished run is in {', '.join(map(str, runs))}")
    experiments: "dict[str, list[Run]]" = {}
    for run in finished:
        read_audit(run)  # refuses one that is broken
        experiments.setdefault(run.folder.resolve().parent.name, []).append(run)
    again = 0
    for name, members in experiments.items():
        if not retest:
            known = {run.config.fingerprint for run in archived_runs(out / name)}
            parents = known & {run.config.parent for run in members}
            again += len(parents)
            members = [run for run in members if run.config.fingerprint not in parents]
        new = store(members, out / name, retest=today)
        print(f"{out / name}: {len(new)} runs added, {len(members) - len(new)} there already")
    if exact:
        added = sum(store_exact(file, out, retest=today) for file in exact)
        print(f"{out / 'exact'}: {added} added, {len(exact) - added} there already")
    if again:
        print(f"Left out: {again} that others start from, and that are there already")
    if len(finished) < len(found):
        print(f"Left out: {len(found) - len(finished)} that have not finished")
    return 0
