"""Load the topology that a text names, such as ``shop.py`` or ``shop.flows:nightly``."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

from headrace.core.computations.computation import Computation
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadTopology, HeadraceError
from headrace.core.nearest import did_you_mean
from headrace.lanes.fingerprint import digest, note_source

T = TypeVar("T")


class Loaded(NamedTuple):
    topology: Topology
    reference: str
    """A text that names the same topology in another process and in another directory."""


def load_topology(text: str) -> Loaded:
    """The topology of ``shop.py``, ``shop.py:name`` or ``package.module:name``.

    Without a name, the topology called ``topology`` is taken, else the only topology, else one made
    of all computations of the module. A file is run each time it is loaded; the modules it imports
    are not."""
    place, name = _split(text)
    if _is_path(place):
        path = _file(place)
        module = _run_file(path)
        reference = str(path)
    else:
        module = _import(place)
        reference = _reference(module)
    found, topology = _found(module, name, place)
    return Loaded(topology, reference if found is None else f"{reference}:{found}")


def _split(text: str) -> tuple[str, str | None]:
    place, colon, name = text.rpartition(":")
    if not colon or os.path.exists(text):
        return text, None
    if not name.isidentifier():
        raise BadTopology(f"{text}: {name!r} is no name of a topology: write {place}:topology")
    return place, name


def _is_path(place: str) -> bool:
    if place.endswith(".py") or os.sep in place:
        return True
    path = Path(place or "?")
    return path.is_file() or (path.is_dir() and not (path / "__init__.py").exists())


def _file(place: str) -> Path:
    path = Path(os.path.abspath(place))  # keeps links: a deployed directory often is one
    if path.is_dir():
        raise BadTopology(f"{place} is a directory: name a file in it, as in {place}/shop.py")
    if not path.exists():
        raise BadTopology(f"{place}: no such file; name one that defines a Topology")
    if path.suffix != ".py":
        raise BadTopology(f"{place} is not Python: name a file that ends with .py")
    return path


def _run_file(path: Path) -> ModuleType:
    try:
        source = path.read_bytes()
    except OSError as why:
        raise BadTopology(f"{path.name} cannot be read: {why.strerror}") from None
    try:
        # Not by the usual loader: it trusts a .pyc of the same second.
        code = compile(source, str(path), "exec", dont_inherit=True)
    except SyntaxError as why:
        raise BadTopology(f"{path.name}:{why.lineno or 1}: not Python: {why.msg}") from None
    except ValueError as why:  # there is a null byte in it
        raise BadTopology(f"{path.name} is not Python: {why}") from None
    name, root = _module_name(path)
    for place in (root, str(path.parent)):
        if place in sys.path:
            sys.path.remove(place)
        sys.path.insert(0, place)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, path
    module = importlib.util.module_from_spec(spec)
    note_source(module, source)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        if spec.parent:
            importlib.import_module(spec.parent)
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
        raise _failed(path, error) from error
    return module


def _module_name(path: Path) -> tuple[str, str]:
    """The name of the module, with the packages it lies in, and the directory they begin in."""
    name, root = path.stem.replace(".", "_"), path.parent
    while (root / "__init__.py").exists() and root.name.isidentifier():
        name, root = f"{root.name}.{name}", root.parent
    if _is_taken(name, path):
        name += f"_{digest(str(path).encode())}"
    return name, str(root)


def _is_taken(name: str, path: Path) -> bool:
    """Whether another module has that name: an import of that name must not get this module."""
    if "." in name:
        return False
    if name in sys.modules:
        return getattr(sys.modules[name], "__file__", None) != str(path)
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin != str(path)


def _import(name: str) -> ModuleType:
    unknown = BadTopology(
        f"no module {name!r} and no file of that name: name a file as in shop.py, or a module "
        "that can be imported from here"
    )
    if not all(part.isidentifier() for part in name.split(".")):
        raise unknown
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as none:
        if none.name is None or not f"{name}.".startswith(f"{none.name}."):
            raise _failed(Path(here, name), none) from none
        raise unknown from None
    except SyntaxError as why:
        raise BadTopology(f"{why.filename}:{why.lineno or 1}: not Python: {why.msg}") from None
    except (Exception, SystemExit) as error:
        raise _failed(Path(here, name), error) from error


def _failed(path: Path, error: BaseException) -> BadTopology:
    """One line about an error of the user's own code."""
    where, trace = path.name, error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(path.parent) and file.suffix == ".py":
            where = f"{file.relative_to(path.parent)}:{trace.tb_lineno}"
        trace = trace.tb_next
    what = " ".join(str(error).split())
    if not isinstance(error, HeadraceError):
        what = f"{type(error).__name__}: {what}" if what else type(error).__name__
    return BadTopology(f"{where}: {what}")


def _reference(module: ModuleType) -> str:
    """The module's file, if that leads to the same module; else the module's name."""
    file = getattr(module, "__file__", None)
    if file is not None and file.endswith(".py"):
        path = Path(os.path.abspath(file))
        if path.stem != "__init__" and _module_name(path)[0] == module.__name__:
            return str(path)
    return module.__name__


def _found(module: ModuleType, name: str | None, place: str) -> tuple[str | None, Topology]:
    """The topology and its name; the name is None if the topology is made here of all
    computations."""
    if name is not None:
        return name, _topology_of(module, name, place)
    topologies = _all(module, Topology)
    if "topology" in topologies:
        return "topology", topologies["topology"]
    if len(topologies) == 1:
        return next(iter(topologies.items()))
    if topologies:
        names = ", ".join(topologies)
        first = next(iter(topologies))
        raise BadTopology(f"{place} has several topologies, {names}: say which, {place}:{first}")
    computations = _all(module, Computation)
    if not computations:
        raise BadTopology(
            f"{place} defines no Topology and no computation: decorate a function with "
            "@computation(inputs=…)"
        )
    try:
        return None, Topology(*computations.values())
    except BadTopology as wrong:
        raise BadTopology(f"{place}: {wrong}") from None


def _topology_of(module: ModuleType, name: str, place: str) -> Topology:
    found = vars(module).get(name)
    if isinstance(found, Computation):
        return Topology(found)
    if isinstance(found, Topology):
        return found
    known = [*_all(module, Topology), *_all(module, Computation)]
    near = did_you_mean(name, known)
    what = f"has no {name!r}" if found is None else f"{name!r} is a {type(found).__name__}"
    there = ", ".join(known) or "none"
    raise BadTopology(f"{place}: {what}; topologies and computations there: {there}{near}")


def _all(module: ModuleType, kind: type[T]) -> dict[str, T]:
    """The values of one class by name; each value once, under the first of its names."""
    found: dict[int, tuple[str, T]] = {}
    for name, value in vars(module).items():
        if isinstance(value, kind):
            found.setdefault(id(value), (name, value))
    return dict(found.values())
