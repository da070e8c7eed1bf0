"""Charts that zoom and show values: a description for Vega-Lite, and the JavaScript that draws it.

The JavaScript comes out of the package vl-convert-python, which carries Vega for use without a
network; no page loads anything from elsewhere.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from plmctl.files import write_atomically

_PACKAGE = "vl-convert-python"
# In a process of its own: it takes seconds, in which no other thread would run.
_BUNDLE = "import sys, vl_convert as v; sys.stdout.buffer.write(v.javascript_bundle().encode())"


def curves_chart() -> dict[str, Any]:
    """Curves of several runs over each other, without data, colors, titles and scales.

    Its data set ``points`` has ``run``, ``part`` ("train", "valid", or "level" for what counting
    gives), ``x``, ``y``, and ``low`` and ``high``: of a training curve the band of the values that
    a point stands for. The page sets ``encoding.color.scale``, the types of the scales, and the
    titles of the axes. ``zoom_x`` and ``zoom_y`` are the visible ranges.
    """
    training, validation = ({"filter": f"datum.part === '{part}'"} for part in ("train", "valid"))
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "width": "container",
        "autosize": {"type": "fit", "contains": "padding", "resize": True},
        "data": {"name": "points"},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "scale": {"nice": False}},
            "y": {"field": "y", "type": "quantitative", "scale": {"nice": True}},
            "color": {"field": "run", "type": "nominal", "legend": None},
        },
        "layer": [
            {
                "transform": [training],
                "mark": {"type": "area", "opacity": 0.2, "clip": True, "tooltip": None},
                "encoding": {
                    "y": {"field": "low", "type": "quantitative"},
                    "y2": {"field": "high"},
                },
            },
            {
                "transform": [training],
                "mark": {"type": "line", "strokeWidth": 1.8, "clip": True, "tooltip": None},
                "params": [
                    {
                        "name": "zoom",
                        "select": {
                            "type": "interval",
                            "zoom": "wheel![event.ctrlKey || event.metaKey]",
                        },
                        "bind": "scales",
                    }
                ],
            },
            {
                "transform": [validation],
                "mark": {
                    "type": "line",
                    "strokeWidth": 1.8,
                    "strokeDash": [5, 3],
                    "clip": True,
                    "tooltip": None,
                },
            },
            {
                "transform": [validation],
                "mark": {"type": "circle", "size": 26, "opacity": 1, "clip": True, "tooltip": None},
            },
            {
                "transform": [{"filter": "datum.part !== 'train' && datum.part !== 'valid'"}],
                "mark": {"type": "line", "strokeWidth": 1.4, "clip": True, "tooltip": None},
                "encoding": {
                    "detail": {"field": "part"},
                    "strokeDash": {
                        "condition": {"test": "datum.part === 'level'", "value": [1.5, 3]},
                        "value": [1.5, 3, 5, 3],
                    },
                },
            },
            {
                "params": [
                    {
                        "name": "near",
                        "select": {
                            "type": "point",
                            "nearest": True,
                            "on": "pointermove",
                            "clear": "pointerout",
                            "fields": ["run", "part", "x"],
                        },
                    }
                ],
                "mark": {"type": "circle", "size": 70, "clip": True},
                "encoding": {
                    "opacity": {
                        "condition": {"param": "near", "empty": False, "value": 1},
                        "value": 0,
                    },
                    "tooltip": {"field": "y", "type": "quantitative"},
                },
            },
        ],
        "config": {
            "view": {"stroke": None},
            "axis": {
                "labelFontSize": 12,
                "titleFontSize": 12,
                "titleFontWeight": "normal",
                "tickCount": 6,
                "domain": False,
                "ticks": False,
                "labelPadding": 6,
            },
            "axisX": {"grid": False, "domain": True},
        },
    }


def javascript() -> bytes | None:
    """Vega, Vega-Lite and Vega-Embed as one script; None: vl-convert-python is missing or failed.

    The first call takes some seconds; later ones read a file of the user's cache folder. V8, which
    vl-convert-python carries, reserves 64 GiB of address space and aborts its process where
    ``ulimit -v`` is less: no process that does other work may call it.
    """
    try:
        release = version(_PACKAGE)
    except PackageNotFoundError:
        return None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "plmctl" / f"vega-{release}.js"
    with suppress(OSError):
        return path.read_bytes()
    result = subprocess.run([sys.executable, "-c", _BUNDLE], capture_output=True)
    if result.returncode:
        return None
    with suppress(OSError):  # a home that cannot be written: the next call takes as long
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, result.stdout.decode("utf-8"))
    return result.stdout
