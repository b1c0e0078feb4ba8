"""Writes image folders as a TensorFlow Datasets data set, on one machine or on a cluster through Apache Beam.

    python -m keras_sslhsic.data.prepare --name=my_photos --data_dir=gs://my-bucket/tfds \
        --split train=photos/train --split validation=photos/val \
        --beam_options="runner=DataflowRunner,project=my-project,region=us-central1,temp_location=gs://my-bucket/tmp"

`from_tfds("my_photos", "train", data_dir=...)` reads it, without this module. Needs Apache Beam: pip install
'keras_sslhsic[beam]'.
"""

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from keras_sslhsic import files
from keras_sslhsic.data import decode
from keras_sslhsic.data.broken import reason
from keras_sslhsic.data.folder import class_labels, list_images


def _example(item: tuple[int, str, str, int]) -> list[tuple[str, dict[str, Any]]]:
    """The example of a file, its bytes as they are; none if it is broken. Runs on the workers."""
    number, name, file, label = item
    try:
        content = files.read_regular(file, decode.MAX_BYTES)
        decode.decode(content)
    except (OSError, decode.DecodeError) as error:
        logging.warning("Left out the broken file %s: %s", files.display(file), reason(error, file))
        return []
    return [(f"{number:012}", {"image": content, "file_name": name, "label": label})]


def prepare_folders(
    name: str,
    folders: Mapping[str, str | Path],
    data_dir: str | Path,
    num_shards: int | None = None,
    beam_runner: str | None = "DirectRunner",
    beam_options: Any = None,
) -> Any:
    """Writes the images of folders as the splits of a TFDS data set, with Apache Beam; returns the TFDS builder.

    The files go in as they are (WebP, GIF and BMP too, which `from_tfds` reads); broken ones are left out,
    with a warning in the log. The folders must be visible from the workers.

    Args:
        name: name of the data set, in snake case.
        folders: folder of each split; all must have the same classes, or none.
        data_dir: where the data set is written; local or gs://.
        num_shards: files in a split; None: chosen by TFDS.
        beam_runner: "DirectRunner" runs on this machine; None takes the runner of the options.
        beam_options: `apache_beam.options.pipeline_options.PipelineOptions`.

    Raises:
        FileNotFoundError: no such folder, or no images in it.
        ValueError: the folders have different classes.
        ImportError: without Apache Beam.
    """
    beam = _beam()
    images = {split: list_images(folder) for split, folder in folders.items()}
    labels = {split: class_labels(folder, images[split]) for split, folder in folders.items()}
    classes = {split: found and found[1] for split, found in labels.items()}
    names = next(iter(classes.values()))
    if any(found != names for found in classes.values()):
        raise ValueError(f"All splits must have the same class folders, found {classes}.")

    def _info(self: Any) -> tfds.core.DatasetInfo:
        label = tfds.features.ClassLabel(names=names or ["unlabelled"])
        features = {"image": tfds.features.Image(), "file_name": tfds.features.Text(), "label": label}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self: Any, dl_manager: Any) -> dict[str, Any]:
        def items(split: str) -> list[tuple[int, str, str, int]]:
            found, files = labels[split], images[split]
            numbers = found[0].tolist() if found else [0] * len(files)
            names = [str(Path(file).relative_to(folders[split])) for file in files]
            return list(zip(range(len(files)), names, files, numbers, strict=True))

        reading = beam.FlatMap(_example)
        return {split: beam.Create(items(split)) | f"read {split}" >> reading for split in folders}

    members = {
        "name": name,
        "pkg_dir_path": Path(__file__).parent,
        "VERSION": tfds.core.Version("1.0.0"),
        "_info": _info,
        "_split_generators": _split_generators,
        "_generate_examples": lambda self: None,
    }
    maker = type(name, (tfds.core.GeneratorBasedBuilder,), members, skip_registration=True)
    builder = maker(data_dir=data_dir)
    options = beam_options or beam.options.pipeline_options.PipelineOptions()
    config = tfds.download.DownloadConfig(
        beam_runner=beam_runner, beam_options=options, num_shards=num_shards, try_download_gcs=False
    )
    builder.download_and_prepare(download_config=config)
    return builder


def _beam() -> Any:
    try:
        import apache_beam
    except ImportError as error:
        raise ImportError(
            "Preparing a data set needs Apache Beam: pip install 'keras_sslhsic[beam]'."
        ) from error
    return apache_beam


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--name", required=True, help="name of the data set, in snake case")
    parser.add_argument("--data_dir", required=True, help="where it is written; local or gs://")
    parser.add_argument("--split", action="append", required=True, help="NAME=FOLDER; once for each split")
    parser.add_argument("--num_shards", type=int, help="files in a split")
    parser.add_argument("--beam_options", default="runner=DirectRunner", help="key=value,key=value,...")
    args = parser.parse_args()
    options = _beam().options.pipeline_options.PipelineOptions(
        [f"--{option}" for option in args.beam_options.split(",")]
    )
    folders = dict(split.split("=", 1) for split in args.split)
    print(prepare_folders(args.name, folders, args.data_dir, args.num_shards, None, options).info)


if __name__ == "__main__":
    main()
