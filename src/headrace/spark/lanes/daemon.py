"""The process that Spark forks its Python workers from. It has loaded what a lane needs: a lost
lane is replaced in a fraction of a second, and all workers share the pages.

Only modules are loaded here. Threads, files and locks are made in the worker: a fork would break
them.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

ZIPPED = "pyspark.zip"


def unzipped(places: list[str]) -> list[str]:
    """The places of modules without the zip that Spark puts first, if the same PySpark is installed
    in a directory. From the zip every module is compiled anew, which takes longer than everything
    else together."""
    others = [place for place in places if Path(place).name != ZIPPED]
    found = PathFinder.find_spec("pyspark", others)
    if found is None or found.origin is None:
        return places
    package = Path(found.origin).parent
    zips = [Path(place) for place in places if Path(place).name == ZIPPED]
    is_same = all(zipped.is_relative_to(package) for zipped in zips)
    return others if is_same else places


def load() -> None:
    sys.path[:] = unzipped(sys.path)
    _start_no_threads()
    import pyarrow as pa
    import pyspark.worker  # noqa: F401

    import headrace.backends.lmdb.backend
    import headrace.engines.open_lane
    import headrace.spark.lanes.task  # noqa: F401

    pa.array([b""])  # loads pandas, if pandas is installed
    gc.collect()
    gc.freeze()  # so that no collection in a worker touches the shared pages


def _start_no_threads() -> None:
    """Have libraries start no threads: a lock that such a thread holds at the moment of a fork
    would be held for ever."""
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> None:
    load()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
