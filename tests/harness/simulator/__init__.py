"""The simulator: members, coordinators and a store on a virtual clock, under faults.

One thread, one seed, one history: ``python -m tests.harness.simulator --seed 7`` repeats a run. The
code under test is the real one: `core.groups.machine`, `core.groups.seat`, `core.groups.silence`,
`core.transaction`, `groups.coordinator`. The world around it is simulated: `world` (time and
processes), `store` (the store's contract, with faults), `net`, `replica`, `worker` and `observer`
(what processes do), `chaos` (faults, and what administrators do). `checks` looks at every step.

A smaller simulation stands beside it: `dispatching` drives the `core.computations.dispatch` of one
replica with simulated lanes. `dispatch_draw` and `dispatch_checks` belong to it.
"""
