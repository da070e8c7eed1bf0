"""The commands, in the order of the help. A body imports what it runs: ``--help`` is quick."""

from plmctl.cli.app import app as app

# isort: split
from plmctl.cli import demo as demo

# isort: split
from plmctl.cli import train as train

# isort: split
from plmctl.cli import ask as ask

# isort: split
from plmctl.cli import generate as generate

# isort: split
from plmctl.cli import exact as exact

# isort: split
from plmctl.cli import inspect as inspect

# isort: split
from plmctl.cli import config as config
