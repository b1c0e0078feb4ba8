"""Nearest neighbours among the images of a big collection, by features that `extract` has written."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from keras_sslhsic import checks, files, plots
from keras_sslhsic.data import decode
from keras_sslhsic.data.inspect import check_sheet
from keras_sslhsic.encoders import Encoder, encoder_hash
from keras_sslhsic.evaluation.neighbours import unit_rows
from keras_sslhsic.files import display
from keras_sslhsic.words import warn
from keras_sslhsic.zoo import rows
from keras_sslhsic.zoo.extract import GONE, features_of, stamp_of

# Up to so many images every one is compared; a graph of neighbours (HNSW), which may miss some, is faster from then on.
EXACT = 50_000
_LINKS, _BUILD, _SEARCH = (
    32,
    100,
    128,
)  # of the graph: edges of an image, candidates while it is built and searched
_GRAPH, _NAMES = "graph.faiss", "images.json"
_LARGEST = 2**40
_TILE = 160  # pixels of an image in a picture


class Found(NamedTuple):
    """A neighbour: the path of its image, relative to the folder of the collection, and the cosine of the features."""

    file: str
    similarity: float


class Collection(NamedTuple):
    """The images of an index.

    Attributes:
        graph: of faiss, over unit vectors, in the order of `names`.
        names: paths, relative to the folder of `origin`.
        origin: what the features were made with.
        stamps: bytes and time of change of each file when its features were made; empty in an index of an earlier version.
    """

    graph: Any
    names: list[str]
    origin: rows.Origin
    stamps: list[tuple[int, int]]

    def is_changed(self, place: int) -> bool:
        """Whether a file of the collection is there, and is another than the one whose features are known."""
        if not self.stamps:
            return False
        return stamp_of(Path(self.origin.folder, self.names[place])) not in (self.stamps[place], GONE)


def index(features: str | os.PathLike, out: str | os.PathLike) -> Collection:
    """Builds an index of the images of a file that `extract` wrote, and writes it to a folder.

    Similarity is the cosine of the features. Up to 50,000 images a search compares all; of more, it follows a graph
    of neighbours (Malkov and Yashunin 2018, arXiv:1603.09320), whose answers are nearly always, not always, the nearest.

    Args:
        features: NAME.npz or NAME.parquet of `extract`, or the folder of `extract_shards`.
        out: the folder; an index that is there is replaced. It is to be trusted as a program is: read those alone that you or
            people you trust have built.

    Raises:
        ValueError: if another program wrote `features`, or there are none in it; if `out` is there and is no index.
        FileNotFoundError: if there is no such file.
        ImportError: without faiss.
    """
    faiss, out = _faiss(), Path(out)
    if out.is_file() or {file.name for file in out.glob("*")} - {_GRAPH, _NAMES}:
        raise ValueError(f"{display(out)} is there already, and is no index: choose another name.")
    found, origin = rows.load_all(Path(features))
    known = {name: row.features for name, row in found.items() if row.features is not None}
    if not known:
        raise ValueError(f"{display(features)} holds no features: none of its images could be read.")
    stamps = [found[name].stamp for name in known]
    names, vectors = list(known), unit_rows(np.stack(list(known.values())))
    if len(names) <= EXACT:
        graph = faiss.IndexFlatIP(vectors.shape[1])
    else:
        graph = faiss.IndexHNSWFlat(vectors.shape[1], _LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction, graph.hnsw.efSearch = _BUILD, _SEARCH
    with tqdm(total=len(names), unit="image", desc=display(out.name)) as bar:
        for start in range(0, len(names), 10_000):
            graph.add(vectors[start : start + 10_000])
            bar.update(min(10_000, len(names) - start))
    with files.replaced_folder(out) as folder:
        files.write_bytes(folder / _GRAPH, faiss.serialize_index(graph).tobytes())
        files.write_json(folder / _NAMES, {**origin._asdict(), "files": names, "stamps": stamps})
    return Collection(graph, names, origin, stamps)


def load(path: str | os.PathLike) -> Collection:
    """Reads an index that `index` wrote.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if its parts are damaged, or do not belong together.
        ImportError: without faiss.
    """
    faiss, path = _faiss(), Path(path)
    if not (path / _NAMES).is_file():
        raise FileNotFoundError(f"{display(path)} holds no index: make one with `keras-sslhsic index`.")
    stored = files.read_json(path / _NAMES, _LARGEST)
    try:
        graph = faiss.deserialize_index(np.frombuffer(files.read_regular(path / _GRAPH, _LARGEST), np.uint8))
        names, stamps = stored.pop("files"), [(size, changed) for size, changed in stored.pop("stamps", [])]
        origin = rows.Origin(**stored)
    except (KeyError, TypeError, ValueError, FileNotFoundError, RuntimeError) as error:
        raise ValueError(f"{display(path)} holds a damaged index: build it again.") from error
    if not origin.is_current:
        raise ValueError(
            f"{display(path)} is of an earlier version, which resized images otherwise: extract the features, and build it "
            "again."
        )
    if graph.ntotal != len(names) or len(stamps) not in (0, len(names)):
        raise ValueError(
            f"{display(path)} has {graph.ntotal} images in its graph, {len(names)} names and {len(stamps)} times of change: "
            "build it again."
        )
    return Collection(graph, names, origin, stamps)


def search(
    collection: Collection, image: str | os.PathLike, encoder: Encoder | None = None, count: int = 10
) -> list[Found]:
    """The images of a collection that are nearest to an image, the nearest first; an image of the collection finds others.

    Files that have changed since their features were made are named in a warning.

    Args:
        collection: of `index` or `load`.
        image: a file; one of the collection needs no encoder, unless it has changed.
        encoder: that made the features of the collection.
        count: how many, of those that there are.

    Raises:
        ValueError: for an image that is none, one that is not of the collection without an encoder, or another encoder.
        FileNotFoundError: if the image is missing.
    """
    checks.integer("count", count, 1)
    name = os.path.relpath(os.path.realpath(image), collection.origin.folder)
    own = collection.names.index(name) if name in collection.names else None
    changed = own is not None and collection.is_changed(own)
    if changed and encoder is None:
        warn(
            f"{display(image)} has changed since it was indexed, and these are the neighbours of what it was: give the encoder "
            "for those of what it is."
        )
    if own is not None and not (changed and encoder):
        vector = collection.graph.reconstruct(own)
    elif encoder is None:
        raise ValueError(
            f"{display(image)} is not among the images of the index: give the encoder that made its features."
        )
    else:
        if encoder_hash(encoder) != collection.origin.encoder:
            raise ValueError("The index was made with the features of another encoder: give that one.")
        size = int(collection.origin.image_size) if collection.origin.image_size else None
        [vector] = unit_rows(features_of(encoder, image, size)[np.newaxis])
    similarity, places = collection.graph.search(vector[None], min(count + 1, len(collection.names)))
    both = zip(places[0].tolist(), similarity[0].tolist(), strict=True)
    found = [(place, similar) for place, similar in both if place not in (own, -1)][:count]
    if others := [collection.names[place] for place, _ in found if collection.is_changed(place)]:
        warn(
            f"{', '.join(map(display, others))}: changed since the index was built, which knows what they were; extract the "
            "features, and build it again."
        )
    return [Found(collection.names[place], similar) for place, similar in found]


def draw(collection: Collection, image: str | os.PathLike, found: Sequence[Found], path: str | Path) -> None:
    """Writes a picture of an image and its neighbours, their similarities above them; those that are gone stay white.

    Raises:
        ValueError: as `data.inspect.check_sheet`, of the folder of the collection.
        OSError: if it cannot be written.
    """
    check_sheet(collection.origin.folder, path)
    shown = [(Path(image), "image"), *((Path(collection.origin.folder, f), f"{s:.3f} {f}") for f, s in found)]
    images = [_thumbnail(file) for file, _ in shown]
    plots.sheet(
        images,
        [caption if len(caption) < 30 else f"{caption[:6]}...{caption[-20:]}" for _, caption in shown],
        path,
    )


def _thumbnail(file: Path) -> np.ndarray:
    try:
        with files.open_regular(file, decode.MAX_BYTES) as stream:
            return decode.square(decode.decode(stream, 3, _TILE), _TILE)
    except (decode.DecodeError, OSError):
        return np.full((_TILE, _TILE, 3), 255, np.uint8)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError("An index needs faiss: pip install 'keras_sslhsic[search]'.") from error
    return faiss
