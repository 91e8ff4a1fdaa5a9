"""The report: run folders in, one HTML page out that needs nothing beside itself.

write_report(read_runs(["runs"]), "report.html")

Small steps, each a pure function of the one before: runs -> tables (`tables`, `spectra`, `cells`)
-> what the page shows (`entries`, `exact`, `page`). Its own script draws its plots (page.js).
`write_book` makes the results page in Markdown (`book`), with pictures by matplotlib (`figures`).
Colours and line styles of all of them are in `looks`. The page needs jinja2, pictures need
matplotlib.
"""

from statetrack.report.files import read_exact as read_exact
from statetrack.report.files import read_remarks as read_remarks
from statetrack.report.files import read_runs as read_runs
from statetrack.report.files import write_book as write_book
from statetrack.report.files import write_report as write_report
from statetrack.report.page import Report as Report
from statetrack.report.page import build as build
from statetrack.report.page import render as render
