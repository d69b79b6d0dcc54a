"""The simulator: members, coordinators and a store on a virtual clock, and whatever can go wrong.

One thread, one seed, one history: `python -m tests.harness.simulator --seed 7` runs the same
again. The code under test is the real one: `core.group`, `core.member`, `core.watch`,
`core.transaction`, `run.coordinator`. What is simulated is the world around it: `world` (time and
processes), `store` (the store's contract, with faults), `net`, `replica`, `worker` and `observer`
(what processes do), `chaos` (what goes wrong, and what people do). `checks` looks at every step.

Beside it, and smaller: `dispatching`, one replica's `core.dispatch` with its lanes, with
`dispatch_draw` and `dispatch_checks`.
"""
