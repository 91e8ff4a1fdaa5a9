"""The report: run folders in, one HTML page out that needs nothing beside itself.

write_report(read_runs(["runs"]), "report.html")

Small steps, each a pure function of the one before: runs -> tables (`tables`, `spectra`) ->
pictures (`figures`) -> page (`page`). With plans of what should have been run beside them,
`write_book` makes the results page in Markdown (`cells`, `book`). Drawing needs jinja2 and
matplotlib.
"""

from statetrack.report.files import read_runs as read_runs
from statetrack.report.files import write_book as write_book
from statetrack.report.files import write_report as write_report
from statetrack.report.page import Report as Report
from statetrack.report.page import build as build
from statetrack.report.page import render as render
