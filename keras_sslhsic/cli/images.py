"""extract, index, search, inspect: what is done with images."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from keras_sslhsic.cli import arguments
from keras_sslhsic.files import display
from keras_sslhsic.words import counted


def add(commands: Any) -> None:
    """Adds the commands to a parser."""
    extract = arguments.command(
        commands, "extract", _extract, "compute the features of every image under a folder"
    )
    extract.add_argument("--model", required=True, help="a name of the zoo, a .keras file, a run folder, ...")
    extract.add_argument("--data", required=True, help="a folder of images, at any depth")
    extract.add_argument(
        "--out",
        required=True,
        help="NAME.npz or NAME.parquet, with --runner a folder; stopped, the same command goes on",
    )
    arguments.image_size(extract, "of what the encoder sees of an image, its central square")
    extract.add_argument("--batch-size", type=int, default=64, help="images a step, at most (default: 64)")
    arguments.memory(extract)
    extract.add_argument(
        "--runner", help="of Apache Beam, for shards of features: DirectRunner, FlinkRunner, SparkRunner, ..."
    )
    extract.add_argument(
        "--beam-options", help="of the pipeline: key=value,key=value,... (direct_num_workers=2)"
    )
    extract.add_argument("--shards", type=int, help="files in the folder (default: one for 8,192 images)")

    index = arguments.command(commands, "index", _index, "make the features of many images searchable")
    index.add_argument(
        "--features", required=True, help="NAME.npz or NAME.parquet of `extract`, or its folder of shards"
    )
    index.add_argument("--out", required=True, help="the folder of the index; one that is there is replaced")

    search = arguments.command(
        commands, "search", _search, "find the images of an index that are nearest to an image"
    )
    search.add_argument("--index", required=True, help="a folder of `index`")
    search.add_argument("--image", required=True, help="a file, of the indexed images or another")
    search.add_argument(
        "--model",
        help="the encoder of the features, for an image that is not among them; as `extract` takes it",
    )
    search.add_argument("--count", type=int, default=10, help="neighbours to find (default: 10)")
    search.add_argument("--sheet", help="a picture of the image and its neighbours, NAME.png")

    inspect = arguments.command(
        commands, "inspect", _inspect, "look over a folder of images: counts, sizes, classes, broken files"
    )
    inspect.add_argument("path", help="a folder of images")
    inspect.add_argument(
        "--channels", type=int, choices=(1, 3, 4), default=3, help="for mean and std (default: 3)"
    )
    inspect.add_argument(
        "--sheet", default="contact_sheet.png", help="picture of some images (default: contact_sheet.png)"
    )
    inspect.add_argument("--json", help="write the report there as JSON too")
    arguments.memory(inspect)


def _extract(options: argparse.Namespace) -> None:
    settings = options.batch_size, options.memory_mb, options.image_size
    if options.runner:
        from keras_sslhsic.zoo.shards import extract_shards

        extracted = extract_shards(
            options.model,
            options.data,
            options.out,
            options.runner,
            [f"--{option}" for option in (options.beam_options or "").split(",") if option],
            options.shards,
            *settings,
        )
    elif options.beam_options or options.shards:
        raise ValueError("--beam-options and --shards go with --runner, such as --runner DirectRunner.")
    else:
        from keras_sslhsic.zoo.extract import extract, parts_of

        def saved() -> str:
            parts = parts_of(Path(options.out))
            return (
                f"What was computed is in {display(parts)}; the same command goes on."
                if parts.exists()
                else ""
            )

        with arguments.saying_what_is_saved(saved):
            extracted = extract(options.model, options.data, options.out, *settings)
    out, data = display(extracted.out), display(options.data)
    size = f", of images of {extracted.image_size} pixels" if extracted.image_size else ""
    print(f"{counted(extracted.rows, 'row')} in {out}, {extracted.computed} of them computed now{size}.")
    if extracted.gone:
        are = "image is" if extracted.gone == 1 else "images are"
        print(f"{extracted.gone} {are} no longer under {data}: their rows were left out.")
    if extracted.broken:
        named = f"{out}/*.broken.txt name" if options.runner else f"{out}.broken.txt names"
        them = "it" if len(extracted.broken) == 1 else "them"
        print(f"{counted(len(extracted.broken), 'image')} could not be read; {named} {them}.")


def _index(options: argparse.Namespace) -> None:
    from keras_sslhsic.zoo import nearest

    collection = nearest.index(options.features, options.out)
    out, count = display(options.out), counted(len(collection.names), "image")
    print(
        f"{out} holds {count}. keras-sslhsic search --index {shlex.quote(out)} --image FILE finds the nearest to one."
    )


def _search(options: argparse.Namespace) -> None:
    from keras_sslhsic.data.inspect import check_sheet
    from keras_sslhsic.zoo import nearest

    collection = nearest.load(options.index)
    if options.sheet:
        check_sheet(collection.origin.folder, options.sheet)
    encoder = arguments.load(options.model) if options.model else None
    found = nearest.search(collection, options.image, encoder, options.count)
    for file, similarity in found:
        print(f"{similarity:.4f}  {display(file)}")
    if not found:
        print("The index has no other image.")
    if options.sheet:
        nearest.draw(collection, options.image, found, options.sheet)
        print(f"A picture of them is in {display(options.sheet)}.")


def _inspect(options: argparse.Namespace) -> None:
    from keras_sslhsic.data import inspect_folder
    from keras_sslhsic.data.inspect import check_sheet
    from keras_sslhsic.files import write_json

    check_sheet(options.path, options.sheet)
    report = inspect_folder(
        options.path, channels=options.channels, verbose=True, memory_mb=options.memory_mb
    )
    print(report)
    report.save_contact_sheet(options.sheet)
    print(f"A contact sheet is in {display(options.sheet)}.")
    if options.json:
        write_json(options.json, report.to_dict())
