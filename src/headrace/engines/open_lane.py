"""Make the lane that a spec describes: load its topology, open its hub, bind its computations.

What a lane needs for its work, Arrow and the backend first of all, is loaded with this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import pyarrow as pa

from headrace.backends.opening import open_backend
from headrace.core.computations.topology import Topology
from headrace.core.errors import BadTopology, Refused
from headrace.engines.lane_spec import LaneSpec, this_machine
from headrace.groups.home import home_of
from headrace.lanes.bound import BoundComputation, bound_computations
from headrace.lanes.lane import Lane
from headrace.lanes.loading import load_topology
from headrace.lanes.protocol import LaneDispatcher


def open_lane(
    spec: LaneSpec,
    dispatcher: LaneDispatcher,
    load: Callable[[], Topology] | None,
    stack: ExitStack,
) -> Lane:
    """The lane of a spec. ``load`` gives the topology, if the spec does not name it; ``stack``
    closes the hub."""
    _check_machine(spec)
    topology = _topology(spec, load)
    backend = open_backend(spec.hub, create=False)
    stack.callback(backend.close)
    codes = spec.codes if load is not None else None
    computations = bound_computations(backend.log, topology, spec.run_settings(), codes)
    _check_code(spec, computations)
    pa.array([b""])  # has Arrow load what it needs before the first slice
    return Lane(spec.lane, dispatcher, backend.log, home_of(backend), computations, spec.replica)


def _check_code(spec: LaneSpec, computations: Mapping[str, BoundComputation]) -> None:
    """Refuse other code than the replica's: two versions of a computation must not work side by
    side in one replica."""
    for name, code in spec.codes.items():
        if name not in computations or computations[name].code != code:
            raise Refused(f"the code of {name} has changed since this replica began: start it anew")


def _topology(spec: LaneSpec, load: Callable[[], Topology] | None) -> Topology:
    if load is None:
        assert spec.reference is not None, "nothing names a topology"
        return load_topology(spec.reference).topology
    try:
        return load()
    except Exception as why:
        raise BadTopology(f"the topology does not load here: {type(why).__name__}: {why}") from why


def _check_machine(spec: LaneSpec) -> None:
    if spec.machine is not None and spec.machine != this_machine():
        raise Refused(
            f"the lane runs on {os.uname().nodename}, another machine than the hub {spec.hub}: "
            "an embedded hub is for the processes of one machine"
        )
