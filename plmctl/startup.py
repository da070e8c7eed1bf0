"""A quick start: libraries are imported when they are used, and garbage is searched for less.

Nearly all of a command's start is imports, and half of these are for what the command does not
need before its work begins, or at all: PyTorch's compiler (``torch._dynamo``, with SymPy), tensors
that are split over processes, object detection (SciPy's optimizers). transformers also reads all of
its model files, 1,600 of them, twice.

``start_quickly`` is called once, by the command line, before PyTorch and transformers are imported.
Without it everything works as well, some seconds later. Nothing is taken away: a module that has a
stand-in is imported at the first use of anything that the stand-in does not have.
"""

from __future__ import annotations

import functools
import gc
import importlib.abc
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from operator import attrgetter
from threading import RLock
from types import ModuleType, SimpleNamespace
from typing import Any


def start_quickly() -> None:
    """Prepare this process for the imports of a command.

    It does nothing in a process that has PyTorch, at a second call, and with PLMCTL_QUICK_START=0
    (in case a new version of a library does not work with a stand-in).
    """
    if "torch" in sys.modules or os.environ.get("PLMCTL_QUICK_START") == "0":
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        gc.set_threshold(_MANY_OBJECTS, *gc.get_threshold()[1:])


# --- Garbage ---


# The imports of a training make 700,000 objects, which all stay. By Python's own threshold (700, or
# 2,000 from 3.13 on) it looks at all of them so often that this takes a sixth of the start.
_MANY_OBJECTS = 50_000

_USUAL_THRESHOLD = gc.get_threshold()[0]


def search_garbage_as_usual() -> None:
    """End what ``start_quickly`` set for the imports; before work in which garbage can be large."""
    if gc.get_threshold()[0] == _MANY_OBJECTS:
        gc.set_threshold(_USUAL_THRESHOLD, *gc.get_threshold()[1:])


# --- Stand-ins of modules ---


_LOCK = RLock()

_WAITING: dict[str, importlib.abc.Loader] = {}
"""The loaders of the modules that have a stand-in and are not imported yet."""


class _StandIn(ModuleType):
    """A module that is imported when something is used that its stand-in does not have."""

    def __getattr__(self, name: str) -> Any:
        # The import system itself looks for names such as __path__.
        if not name.startswith("__") or name == "__all__":
            _import_for(self.__name__)
        if type(self) is _StandIn:  # or the module's code runs now, and is not there yet
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self, name)


def _import_for(name: str) -> None:
    """Import a module that has a stand-in; with the compiler, all of PyTorch's."""
    with _LOCK:
        if name not in _WAITING:
            return
        whole = "torch." if name.startswith(_COMPILER) else name
        for one in _STAND_INS:
            if one.startswith(whole) and one in _WAITING:
                _run(sys.modules[one], _WAITING.pop(one))


def _run(stand_in: ModuleType, loader: importlib.abc.Loader) -> None:
    """Run the module's own code in the stand-in, which from then on is that module."""
    for known in _STAND_INS[stand_in.__name__]:
        delattr(stand_in, known)
    assert stand_in.__spec__ is not None
    stand_in.__loader__ = stand_in.__spec__.loader = loader
    loader.exec_module(stand_in)
    stand_in.__class__ = ModuleType
    if stand_in.__name__ == _COMPILER:
        for say in _WITH_COMPILER:
            say(stand_in)


class _Class:
    """A class for ``isinstance``: nothing is an instance before its module is imported."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def _class(self) -> Any:
        return attrgetter(self._name)(importlib.import_module(self._module))

    def __instancecheck__(self, value: Any) -> bool:
        return self._module not in _WAITING and isinstance(value, self._class())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        _import_for(self._module)
        return (self._class(),)

    def __getattr__(self, name: str) -> Any:
        _import_for(self._module)
        return getattr(self._class(), name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        _import_for(self._module)
        return self._class()(*args, **options)


# --- What PyTorch's compiler is asked for where nothing is compiled ---


_COMPILER = "torch._dynamo"

_WITH_COMPILER: list[Callable[[ModuleType], object]] = []
"""What is said to the compiler when it is imported: how it treats certain functions."""


def _mark(how: str) -> Callable[[Any], Any]:
    def mark(function: Any) -> Any:
        _WITH_COMPILER.append(lambda compiler: getattr(compiler, how)(function))
        return function

    return mark


def _disable(function: Any = None, recursive: bool = True, **options: Any) -> Any:
    """``torch._dynamo.disable``: until there is a compiler, the function is called as it is."""
    if function is None:
        return functools.partial(_disable, recursive=recursive, **options)

    current = [function]

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        return current[0](*args, **keywords)

    def disable(compiler: ModuleType) -> None:
        current[0] = compiler.disable(function, recursive, **options)

    if _COMPILER in _WAITING:
        _WITH_COMPILER.append(disable)
    else:
        disable(sys.modules[_COMPILER])
    return call


def _of_known(name: str, known: Callable[[Any], bool]) -> Callable[..., bool]:
    """A function of a truth value or a size, which the compiler may not know yet."""

    def call(value: Any, *args: Any, **options: Any) -> bool:
        if isinstance(value, int):
            return known(value)
        _import_for(_SHAPES)
        result: bool = getattr(sys.modules[_SHAPES], name)(value, *args, **options)
        return result

    return call


def _same_sizes(one: Any, other: Any) -> Any:
    """``sym_eq``: whether two shapes are the same."""
    if all(type(shape) is tuple and {*map(type, shape)} <= {int} for shape in (one, other)):
        return one == other
    _import_for(_SHAPES)
    return sys.modules[_SHAPES].sym_eq(one, other)


_GUARDS = (
    "expect_true",
    "guard_or_false",
    "guard_or_true",
    "guard_size_oblivious",
    "statically_known_true",
)
_GET_ITEM = f"{_COMPILER}._trace_wrapped_higher_order_op"
_SHAPES = "torch.fx.experimental.symbolic_shapes"
_SPLIT = "torch.distributed.tensor"
_STAND_INS: dict[str, dict[str, Any]] = {
    _COMPILER: {
        "allow_in_graph": _mark("allow_in_graph"),
        "assume_constant_result": _mark("assume_constant_result"),
        "disable": _disable,
        "eval_frame": SimpleNamespace(
            OptimizedModule=_Class(_COMPILER, "eval_frame.OptimizedModule")
        ),
        "graph_break": lambda *message: None,
        "is_compiling": lambda: False,
    },
    _GET_ITEM: {"TransformGetItemToIndex": _Class(_GET_ITEM, "TransformGetItemToIndex")},
    _SHAPES: {
        **{name: _of_known(name, bool) for name in _GUARDS},
        "is_nested_int": _of_known("is_nested_int", lambda size: False),
        "sym_eq": _same_sizes,
    },
    _SPLIT: {"DTensor": _Class(_SPLIT, "DTensor")},
    "scipy.optimize": {"linear_sum_assignment": _Class("scipy.optimize", "linear_sum_assignment")},
}
"""What each stand-in has of its module: what is used where the module's work is not."""


def _one_process() -> bool:
    """Whether no launcher started this process: no tensor is split over several."""
    return "RANK" not in os.environ


# --- Functions of the libraries that do less ---


def _list_models_once(module: ModuleType) -> None:
    """Let transformers read its model files once, and of each only the names that it exports.

    The list keeps the last 128 folders that were read, and there are 550 of them; it splits each
    file into lines to find the last one that begins with ``__all__``.
    """
    names = vars(module)
    if "create_import_structure_from_path" in names:
        listing = inspect.unwrap(names["create_import_structure_from_path"])
        names["create_import_structure_from_path"] = functools.cache(listing)
    if "fetch__all__" in names:
        exported = names["fetch__all__"]
        names["fetch__all__"] = lambda text: exported(text[text.rfind("\n__all__") + 1 :])
    _of_one_process(module)


def _of_one_process(module: ModuleType) -> None:
    """Let a library treat the only process of a run as one of a PyTorch for one process.

    So it does not import what splits tensors over several, only to see that nothing is split.
    """
    if "is_torch_distributed_available" in vars(module) and _one_process():
        vars(module)["is_torch_distributed_available"] = functools.cache(lambda: False)


def _draw_no_numbers_for_shapes(module: ModuleType) -> None:
    """Leave tensors on the meta device, which have no values, as they are.

    PyTorch would work out the shape of normal numbers in Python, and import SymPy for that.
    """
    names = vars(module)
    if "_no_grad_normal_" in names:
        draw = names["_no_grad_normal_"]
        names["_no_grad_normal_"] = lambda tensor, *rest, **options: (
            tensor if tensor.is_meta else draw(tensor, *rest, **options)
        )


def _name_callers_alone(module: ModuleType) -> None:
    """Let PyTorch note the file and the line that register an operator, without reading the file.

    ``inspect.getframeinfo`` also returns the text of the line, and for that looks through all
    modules: a hundred times.
    """

    def get_source(stacklevel: int) -> str:
        frame = sys._getframe(stacklevel)
        return f"{frame.f_code.co_filename}:{frame.f_lineno}"

    if "get_source" in vars(module):
        vars(module)["get_source"] = get_source


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "accelerate.utils.imports": _of_one_process,
    "torch._library.utils": _name_callers_alone,
    "torch.nn.init": _draw_no_numbers_for_shapes,
    "transformers.utils.import_utils": _list_models_once,
}
"""What is changed in a module when it has been imported."""


# --- How the import system comes to them ---


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        above = name.rpartition(".")[0]
        if name == _SPLIT and not _one_process():
            return None
        if name in _STAND_INS or name in _CHANGES:
            others = (finder for finder in sys.meta_path if finder is not self)
            specs = (finder.find_spec(name, path, target) for finder in others)
            spec = next((spec for spec in specs if spec is not None), None)
            if spec is not None and spec.loader is not None:
                kind = _StandInLoader if name in _STAND_INS else _ChangingLoader
                spec.loader = kind(spec.loader)
            return spec
        if above in _STAND_INS:
            _import_for(above)
            if name in sys.modules:  # it was imported with the whole
                return ModuleSpec(name, _NoLoader())
        return None


@dataclass(frozen=True)
class _StandInLoader(importlib.abc.Loader):
    loader: importlib.abc.Loader

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        stand_in = _StandIn(spec.name)
        if spec.submodule_search_locations is not None:
            stand_in.__path__ = spec.submodule_search_locations
        return stand_in

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(_STAND_INS[module.__name__])
        _WAITING[module.__name__] = self.loader


@dataclass(frozen=True)
class _ChangingLoader(importlib.abc.Loader):
    loader: importlib.abc.Loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        _CHANGES[module.__name__](module)


class _NoLoader(importlib.abc.Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        pass
