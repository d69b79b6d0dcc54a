"""``headrace demo``: shows replicas on Spark that are killed and stopped."""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from headrace.cli import render
from headrace.cli.certificate import show_certificate
from headrace.cli.demo_view import Lines, Screen, drawn_svg
from headrace.cli.options import OneOf
from headrace.cli.prove import check_engine, run_proof
from headrace.cli.spark import ENGINES
from headrace.cli.streams import as_json
from headrace.tools.demo.scene import Scene, SceneMaker
from headrace.tools.demo.script import RECORDS, REPLICAS, SECONDS, SHARDS, order
from headrace.tools.proof.engine_choice import LOCAL, SPARK
from headrace.tools.proof.proof import Order, ProofProgress


@click.command()
@click.option("--engine", type=OneOf(ENGINES), default="spark", show_default=True,
              help="Lanes as tasks of Spark, or as threads of the replica.")  # fmt: skip
@click.option("--records", type=click.IntRange(1, 100_000_000), default=RECORDS, show_default=True,
              help="How many are appended to the source.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(2, 3600), default=SECONDS, show_default=True,
              help="How long they come.")  # fmt: skip
@click.option("--seed", help="The same load again [a new one].")
@click.option("--svg", type=click.Path(dir_okay=False, writable=True), metavar="FILE",
              help="Write a picture of the screen and the certificate there.")  # fmt: skip
@as_json
def demo(
    engine: str, records: int, seconds: float, seed: str | None, svg: str | None, as_json: bool
) -> None:
    """Run three stages on a scratch hub with three replicas, kill one of them, stop another, add a
    fourth, and certify what came out.

    Your hub is not touched. The exit code is 1 if anything was lost, doubled, out of order, or not
    caught up."""
    check_engine(engine)
    seed = seed or secrets.token_hex(4)
    again = f"headrace demo --engine {engine} --records {records} --seconds {seconds:g}"
    given = order(
        SPARK if engine == "spark" else LOCAL,
        seed=seed,
        records=records,
        seconds=seconds,
        again=f"{again} --seed {seed}",
    )
    title = f"three stages, {SHARDS} shards each, {REPLICAS} replicas on {_name(engine)}"
    shows = render.on_terminal() and not Console().is_dumb_terminal and not as_json
    watching = _Watching(given, Screen(title) if shows else Lines(title, err=as_json))
    with watching.view:
        certificate, evidence = run_proof(given, watching.on_progress)
    watching.view.last(watching.latest)
    if svg is not None:
        Path(svg).write_text(drawn_svg(title, watching.picture(), certificate))
    if as_json:
        story = {"story": watching.events}
        render.show_json({**certificate.view(), "evidence": evidence, **story})
    else:
        show_certificate(certificate, evidence)
    sys.exit(0 if certificate.clean else 1)


class _Watching:
    """Follows a proof, and shows it."""

    def __init__(self, order: Order, view: Screen | Lines) -> None:
        self.view = view
        self.latest = Scene.empty(order.records)
        self.events: list[dict[str, Any]] = []
        """What happened, and which replica held which shards then."""
        self._scenes = SceneMaker([each.name for each in order.loaded.topology.computations])
        self._busy = self.latest
        """The last scene with records still to come."""

    def on_progress(self, progress: ProofProgress) -> None:
        self.latest = scene = self._scenes.look(progress, time.monotonic())
        if scene.records < scene.records_all:
            self._busy = scene
        shards = {row.name: row.shards for row in scene.replicas if any(row.shards.values())}
        for at_s, text in scene.story[len(self.events) :]:
            self.events.append({"at_s": round(at_s, 3), "what": text, "shards": shards})
        self.view.show(scene)

    def picture(self) -> Scene:
        """The last scene with records to come, with all events."""
        return self._busy.with_story(self.latest.story)


def _name(engine: str) -> str:
    return "Spark" if engine == "spark" else "threads"
