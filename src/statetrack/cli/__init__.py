"""The command line: thin, and quick to start. Everything heavy is imported inside a command.

A command is a function: its signature and docstring are its options and help. `app.commands`
lists them, and each file holds a group of them.
"""

from statetrack.cli.app import main as main
