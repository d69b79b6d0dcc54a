"""The process that Spark forks its Python workers from, with what a lane needs loaded already: a
lane that is lost is replaced in a fraction of a second, and its pages are shared with the others.

Only modules are loaded here. What keeps threads, files or locks is made in the worker: a fork would
break it.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

ZIPPED = "pyspark.zip"


def unzipped(places: list[str]) -> list[str]:
    """Without the zip that Spark puts first, if the same PySpark is installed in a directory: from
    the zip every module is compiled anew, which takes longer than all else together."""
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
    import headrace.codec.registry
    import headrace.spark.lanes.task  # noqa: F401

    pa.array([b""])  # loads pandas, if that is there
    gc.collect()
    gc.freeze()  # so that no collection in a worker touches what is shared


def _start_no_threads() -> None:
    """A lock that such a thread holds at the moment of a fork would be held for ever."""
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main() -> None:
    load()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
