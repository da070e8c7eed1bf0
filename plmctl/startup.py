"""Garbage is searched for less often while a command's libraries are imported."""

import gc
import sys

# The imports of a training make 700,000 objects, which all stay. By Python's own threshold (700, or
# 2,000 from 3.13 on) it looks at all of them so often that this takes a sixth of the start.
_MANY_OBJECTS = 50_000

_USUAL_THRESHOLD = gc.get_threshold()[0]


def search_garbage_rarely() -> None:
    """For the imports, if they are still to come; ``search_garbage_as_usual`` ends it."""
    if "torch" not in sys.modules:
        gc.set_threshold(_MANY_OBJECTS, *gc.get_threshold()[1:])


def search_garbage_as_usual() -> None:
    """End ``search_garbage_rarely``; before work in which garbage can be large."""
    if gc.get_threshold()[0] == _MANY_OBJECTS:
        gc.set_threshold(_USUAL_THRESHOLD, *gc.get_threshold()[1:])
