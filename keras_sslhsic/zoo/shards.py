"""Features of more images than one process has time for: `extract` by Apache Beam, in shards.

Each shard is a file that `extract` could have written, of the images whose names have one remainder: whatever becomes of a
shard, the others stay, and an image more or less changes one of them. Needs Apache Beam: pip install 'keras_sslhsic[beam]'.
"""

import contextlib
import os
import signal
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_sslhsic import checks, files, lock
from keras_sslhsic.data import folder
from keras_sslhsic.files import display
from keras_sslhsic.zoo import rows
from keras_sslhsic.zoo.extract import Extracted, Extractor, extract_into, stamp_of
from keras_sslhsic.zoo.load import load_pretrained

_IMAGES = 8192  # in a shard, about, where nothing else is said
_COUNTED = ("computed", "gone")

Stamp = tuple[int, int]


def extract_shards(
    model: str | os.PathLike,
    data: str | os.PathLike,
    out: str | os.PathLike,
    runner: str = "DirectRunner",
    options: Sequence[str] = (),
    shards: int | None = None,
    batch_size: int = 64,
    memory_mb: int = 1024,
    image_size: int | None = None,
) -> Extracted:
    """Computes the features of every image under a folder by an Apache Beam pipeline.

    Stopped at any moment, the same call goes on: shards that are finished stay as they are, of others what was saved. Later, it
    computes the images that are new or changed. The workers need this package, and must see `model`, `data` and `out` by the
    same names.

    Args:
        model: what `load_pretrained` takes; a name, or a path.
        data: folder of images, at any depth.
        out: folder of ``features-<i>-of-<n>.parquet``; broken images are left out, and listed beside their shard in
            ``features-<i>-of-<n>.parquet.broken.txt``. See `extract` for the columns.
        runner: of Beam: "DirectRunner" on this machine; "FlinkRunner", "SparkRunner", "DataflowRunner".
        options: of the pipeline, such as "--direct_num_workers=2".
        shards: number n of files; that of the files which are there, or one for 8,192 images.
        batch_size: images a step, at most.
        memory_mb: for images in each process, as `extract` takes it.
        image_size: as `extract` takes it.

    Raises:
        ValueError: as `extract`; for a folder with another number of shards.
        FileNotFoundError: if `data` is missing or holds no images.
        lock.InUseError: if another process writes to `out`.
        ImportError: without Apache Beam.
        OSError: if a process of the direct runner was killed, as systems do that are out of memory.
    """
    try:
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions
        from apache_beam.utils.shared import Shared
    except ImportError as error:
        raise ImportError("Shards need Apache Beam: pip install 'keras_sslhsic[beam]'.") from error
    out, root = Path(out).absolute(), Path(data).absolute()
    for name, value in (("batch_size", batch_size), ("memory_mb", memory_mb)):
        checks.integer(name, value, 1)
    checks.integer("shards", shards, 1, optional=True)
    files.check_writable(out, folder=True)
    listed = folder.list_images(root)
    rows.check_names(os.path.relpath(file, root) for file in listed)
    model = os.path.abspath(model) if os.path.exists(model) else model
    image_size = load_pretrained(model).spec.size_for(image_size)
    count = _number_of(out, shards, len(listed))
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions([*options]))
    _ = (
        pipeline
        | beam.Create([str(root)])
        | "list" >> beam.FlatMap(_listed, count)
        | beam.GroupByKey()
        | "extract"
        >> beam.Map(_extract, Shared(), model, root, out, count, batch_size, memory_mb, image_size)
    )
    with lock.held(out), _ended_with_a_worker():
        result = pipeline.run()
        result.wait_until_finish()
    counted = {name: _counter(result, name) for name in _COUNTED}
    made = [rows.shard(out, number, count) for number in range(count)]
    broken = dict(item for file in made for item in _broken(file))
    found = sum(map(_rows, made))
    if not found:
        reason = next(iter(broken.values()))
        raise ValueError(f"None of the {len(broken)} images under {display(root)} can be read: {reason}")
    return Extracted(out, found, broken=broken, image_size=image_size, **counted)


@contextlib.contextmanager
def _ended_with_a_worker() -> Iterator[None]:
    """Ends where a process of Beam's direct runner dies, for which the runner itself would wait for ever.

    Only in the main thread, where signals wake what waits.
    """
    report, here = threading.excepthook, threading.get_ident()
    stop: Any = signal.getsignal(signal.SIGINT)
    died: list[BaseException | None] = []

    def note(error: threading.ExceptHookArgs) -> None:
        # As Beam calls the thread that waits for a process.
        if error.thread is None or error.thread.name != "run_worker":
            report(error)
        elif not died:
            died.append(error.exc_value)
            signal.pthread_kill(here, signal.SIGINT)

    def wake(*of: Any) -> None:
        if died or stop is signal.SIG_DFL:
            raise KeyboardInterrupt
        if callable(stop):  # else Ctrl-C is ignored, as shells have it for commands in the background
            stop(*of)

    if threading.current_thread() is not threading.main_thread() or stop is None:
        yield
        return
    threading.excepthook = note
    signal.signal(signal.SIGINT, wake)
    try:
        yield
    except KeyboardInterrupt:
        if not died:
            raise
        raise OSError(
            f"A process of Apache Beam's ended: {died[0]}. If the system ended it for want of memory, give fewer processes "
            "(direct_num_workers) or less of --memory-mb; the same command goes on."
        ) from died[0]
    finally:
        signal.signal(signal.SIGINT, stop)
        threading.excepthook = report


def _number_of(out: Path, shards: int | None, images: int) -> int:
    """How many shards there are to be."""
    there = {int(file.stem.rpartition("-")[2]) for file in rows.shards(out)}
    if len(there) > 1 or (shards is not None and there - {shards}):
        raise ValueError(
            f"{display(out)} holds files of {' and of '.join(map(str, sorted(there)))} shards: give their number, or another "
            "folder."
        )
    return shards or (there.pop() if there else -(-images // _IMAGES))


def _listed(root: str, count: int) -> Iterator[tuple[int, tuple[str, Stamp] | None]]:
    """The shard of each image, its name and its stamp; and every shard once, also if it has no image."""
    yield from ((number, None) for number in range(count))
    for file in folder.list_images(root):
        name = os.path.relpath(file, root)
        yield zlib.crc32(name.encode()) % count, (name, stamp_of(file))


def _extract(
    shard: tuple[int, Iterable[tuple[str, Stamp] | None]],
    shared: Any,
    model: Any,
    root: Path,
    out: Path,
    count: int,
    *settings: Any,
) -> None:
    """Brings the file of a shard up to date; a process has one encoder, which it shares, for all of them."""
    from apache_beam.metrics import Metrics

    number, images = shard
    file = rows.shard(out, number, count)
    extractor = shared.acquire(lambda: Extractor(load_pretrained(model), root, *settings))
    with lock.held(file):
        done = extract_into(extractor, dict(sorted(filter(None, images))), file, shard=True)
    for name in _COUNTED:
        Metrics.counter("keras_sslhsic", name).inc(getattr(done, name))


def _counter(result: Any, name: str) -> int:
    """The sum of what the workers have counted."""
    from apache_beam.metrics import MetricsFilter

    found = result.metrics().query(MetricsFilter().with_namespace("keras_sslhsic").with_name(name))
    return sum(counter.result for counter in found["counters"])


def _rows(file: Path) -> int:
    _, parquet = rows.pyarrow_modules()
    return parquet.read_metadata(file).num_rows


def _broken(file: Path) -> Iterator[tuple[str, str]]:
    """Name and reason of each broken image that is listed beside a shard."""
    listed = file.with_name(f"{file.name}.broken.txt")
    with contextlib.suppress(FileNotFoundError):
        for line in listed.read_text(encoding="utf-8").splitlines():
            name, _, reason = line.partition("\t")
            yield name, reason
