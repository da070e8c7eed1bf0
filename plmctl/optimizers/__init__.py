"""One file per optimizer; the base class is in ``base.py``."""
