"""Runs on disk: their folders, records, checkpoints, and which of them belong together."""

from statetrack.runs.folder import Run as Run
from statetrack.runs.folder import find_runs as find_runs
from statetrack.runs.records import Record as Record
from statetrack.runs.records import read_records as read_records
from statetrack.runs.verify import problems as problems
