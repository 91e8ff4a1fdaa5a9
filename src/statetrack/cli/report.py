"""Pages about runs."""

from pathlib import Path

from statetrack.cli.options import Flag

__all__ = ["report"]


def report(
    *runs: Path,
    out: Path = Path("report.html"),
    plots: Flag = False,
    markdown: Path | None = None,
) -> int:
    """One page about runs: numbers beside the paper's, curves, eigenvalues, and what is missing.

    The page can be searched, sorted and filtered. It needs nothing beside itself: it opens without
    a network, on a phone, and prints. Its numbers are links to the records behind them, where it
    still lies as it did to the runs.

    Parameters
    ----------
    runs
        Run folders, archives, or folders that hold some.
    out
        The page.
    plots
        Also write every plot as PNG and SVG, into a folder beside the page.
    markdown
        Also write the results page: every table of the paper, run or not, beside its numbers. RUNS
        is then the one folder that `statetrack archive --out` wrote to, or `statetrack reproduce
        --out`; it gets a summary.json.
    """
    from statetrack.experiments.summary import plans, plans_for
    from statetrack.report import read_exact, read_remarks, read_runs, write_book, write_report

    if markdown is not None and len(runs) != 1:
        raise ValueError(f"--markdown is about one folder of results, not {len(runs)}")
    found = read_runs(runs)
    planned = plans_for(runs, found)
    remarks, exact = read_remarks(runs), read_exact(runs)
    page = write_report(found, out, plans=planned, remarks=remarks, exact=exact, plots=plots)
    print(f"Report: {page}")
    if markdown is not None:
        page, summary, *others = write_book(plans(runs[0]), found, runs[0], markdown)
        print(f"Results: {page}, {summary} and {len(others)} pages and pictures beside them")
    return 0
