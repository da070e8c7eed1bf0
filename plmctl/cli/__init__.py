"""The commands, in the order of ``app.GROUPS``. A body imports what it runs: help is quick."""

from plmctl.cli import ask as ask
from plmctl.cli import config as config
from plmctl.cli import course as course
from plmctl.cli import demo as demo
from plmctl.cli import exact as exact
from plmctl.cli import generate as generate
from plmctl.cli import inspect as inspect
from plmctl.cli import measure as measure
from plmctl.cli import train as train
from plmctl.cli.app import app as app
