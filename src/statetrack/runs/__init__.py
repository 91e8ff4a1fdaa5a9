"""Runs on disk: folders, archives, records, checkpoints, and which runs belong together."""

from statetrack.runs.folder import Run as Run
from statetrack.runs.frames import records_frame as records_frame
from statetrack.runs.frames import runs_frame as runs_frame
from statetrack.runs.records import Record as Record
from statetrack.runs.records import read_records as read_records
from statetrack.runs.search import find as find
from statetrack.runs.search import find_runs as find_runs
from statetrack.runs.stored import StoredRun as StoredRun
from statetrack.runs.verify import problems as problems
