"""pretrain, config, reproduce: what trains, and what is set of it."""

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any

from keras_sslhsic.cli import arguments
from keras_sslhsic.files import check_appendable, display
from keras_sslhsic.words import counted

# The names of `runs.tables.TABLES`.
TABLES = (
    "linear", "fixed", "kernels", "regulariser", "features", "batch", "outputs", "widths", "widths_finetune",
    "centred", "finetune", "transfer", "dense", "detection",
)  # fmt: skip

_RECORDS = "experiments/reproduction.jsonl"


def add(commands: Any) -> None:
    """Adds the commands to a parser."""
    pretrain = arguments.command(commands, "pretrain", _pretrain, "train an encoder without labels")
    pretrain.add_argument(
        "--config", help="a Python file with get_config(), such as configs/fashion_small.py"
    )
    pretrain.add_argument(
        "--data",
        help="a folder of images (with train and test in it, those of train), or a data set of TensorFlow Datasets; without "
        "--config, all else is chosen for its images, said and saved",
    )
    pretrain.add_argument("--image-size", type=int, help="side of the views, in place of the one chosen")
    pretrain.add_argument("--method", help="which method trains (default: ssl_hsic)")
    pretrain.add_argument("--epochs", type=int, help="passes over the images")
    pretrain.add_argument(
        "--init",
        help="an encoder to start from: a run folder, a name of the zoo, or a file (default: a new network)",
    )
    pretrain.add_argument(
        "--config.FIELD=VALUE",
        action="store_true",
        help="change a field of the config, e.g. --config.epochs=5",
    )
    pretrain.add_argument("--workdir", required=True, help="the run folder; made if it is missing")
    pretrain.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run that the folder holds, as its config says where no other is given; with more --epochs, one "
        "that is finished too",
    )

    fields = arguments.command(
        commands, "config", _config, "print every field of a config: its type, its default and what it means"
    )
    fields.add_argument("--config", help="a config, whose values are printed beside its fields")
    fields.add_argument("--config.FIELD=VALUE", action="store_true", help="as `pretrain` takes it")

    reproduce = arguments.command(
        commands, "reproduce", _reproduce, "run a table of the paper: in a folder with the project's configs/"
    )
    reproduce.add_argument(
        "table",
        choices=(*TABLES, "claims"),
        help="what is run; claims: what the paper states of its estimators and losses",
    )
    reproduce.add_argument(
        "--scale",
        choices=("small", "paper"),
        help="small: on the bundled images, what the records lack is trained, and ours stands beside the paper's; paper: on "
        "ImageNet, the runs of the table and their cost are listed, and that of --row is made (default: small)",
    )
    reproduce.add_argument("--seeds", help="of the small runs (default: 1,2,3,4,5)")
    reproduce.add_argument(
        "--records",
        help=f"JSON lines of the small runs, to which new ones are added (default: {_RECORDS})",
    )
    reproduce.add_argument("--row", help="the run of the paper's scale to begin, or to go on with")
    reproduce.add_argument("--workdir", help="its run folder")
    reproduce.add_argument(
        "--config.FIELD=VALUE", action="store_true", help="change a field of its config, as `pretrain` does"
    )


def _few_threads_an_operation() -> None:
    # The networks of a step, online and target on each view, run beside each other on a CPU: that keeps small ones
    # busier than sharing every operation out among all cores.
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, (os.cpu_count() or 1) // 4)))


def _pretrain(options: argparse.Namespace) -> None:
    _few_threads_an_operation()
    from keras_sslhsic.files import is_leftover
    from keras_sslhsic.runs import folder, pretrain
    from keras_sslhsic.runs.evaluate import format_table

    settings = _run_config(options)
    finished = options.resume and folder.is_finished(options.workdir)
    before = folder.read_summary(options.workdir) if finished else None
    with arguments.saying_what_is_saved(lambda: _saved(options.workdir, "the same command with --resume")):
        summary = pretrain.run(settings, options.workdir, options.resume)
    if summary["results"]:
        print(format_table(summary["results"]))
        print(
            f"`keras-sslhsic report {shlex.quote(display(options.workdir))}` prints them with their 95 % intervals."
        )
    if summary == before:
        print("The run was finished before; nothing was changed.")
    files = (p for p in Path(options.workdir).iterdir() if p.is_file() and not is_leftover(p))
    print(f"The run is in {display(options.workdir)}: {', '.join(sorted(display(p.name) for p in files))}.")


def _saved(workdir: str, again: str) -> str:
    """What is saved of a training, and how to go on."""
    from keras_sslhsic.runs import folder
    from keras_sslhsic.training.checkpoint import Checkpoint

    saved = Checkpoint(Path(workdir) / folder.CHECKPOINTS).epoch
    said = f"Saved: {counted(saved, 'epoch')}" if saved else "No epoch is saved yet"
    return f"{said}; {again} {'goes on' if saved else 'begins anew'}."


def _run_config(options: argparse.Namespace) -> Any:
    """The config of a run that a command describes."""
    from keras_sslhsic.runs import config, defaults, folder

    going_on = options.resume and (Path(options.workdir) / folder.CONFIG).exists()
    before = folder.load_config(options.workdir) if going_on else None
    if not (options.config or options.data or before):
        there = (Path(options.workdir) / folder.CONFIG).exists()
        shown, found = display(options.workdir), ""
        if options.resume:
            found = f"{shown} holds no run to go on with: name the folder of one. To begin one, say"
        elif there:
            found = f"{shown} holds a run: add --resume to go on with it. To begin another, say"
        raise ValueError(
            f"{found or 'Say'} what to train on: --data with a folder of images or a data set of TensorFlow Datasets, or "
            "--config."
        )
    flags = {"method": options.method, "epochs": options.epochs, "init": options.init}
    overrides = [f"{name}={value!r}" for name, value in flags.items() if value is not None]
    if before and not options.config and not options.data:
        settings = before
    elif options.config:
        settings = config.read(options.config)
        if options.data:
            overrides += [
                f"data.{name}={value!r}" for name, value in defaults.of_data(options.data).data.items()
            ]
    else:
        settings = defaults.of_data(options.data)
        settings.name = Path(options.workdir).name
    if options.image_size:
        overrides.append(f"views.size={options.image_size}")

    def say(line: str) -> None:
        """A line of what was chosen, with what was given otherwise."""
        section = line.partition(":")[0].strip()
        own = [given for given in options.overrides if re.match(rf"{section}[.=]", given)]
        own = [given for given in own if not given.startswith("views.")]
        print(f"{line}, but {', '.join(own)}" if own else line)

    return config.overridden(
        settings, overrides + options.overrides, lambda settings: defaults.suited(settings, before, say)
    )


def _config(options: argparse.Namespace) -> None:
    from keras_sslhsic.runs import config, schema

    values = config.completed(config.load(options.config, options.overrides)) if options.config else None
    if values is not None:
        config.check(values)
    print("\n".join(schema.describe(values and values.to_dict())), end="")


def _check_all_have_an_effect(options: argparse.Namespace) -> None:
    """Raises ValueError for flags of `reproduce` that change nothing of what is asked for."""
    if options.table == "claims":
        run, taken = "claims", {"records"}
    elif options.scale != "paper":
        run, taken = "--scale small", {"scale", "seeds", "records"}
    elif options.row is None:
        run, taken = "--scale paper without --row", {"scale"}
    else:
        run, taken = "--scale paper with --row", {"scale", "row", "workdir", "config.FIELD"}
    given = {flag for flag in ("scale", "seeds", "records", "row", "workdir") if getattr(options, flag)}
    if idle := (given | ({"config.FIELD"} if options.overrides else set())) - taken:
        named = [", ".join(f"--{flag}" for flag in sorted(flags)) for flags in (idle, taken)]
        raise ValueError(f"reproduce {run} takes no {named[0]}; it takes {named[1]}.")


def _reproduce(options: argparse.Namespace) -> None:
    _few_threads_an_operation()
    from keras_sslhsic.runs import claims, reproduce, tables

    _check_all_have_an_effect(options)
    given = options.seeds or "1,2,3,4,5"
    if not re.fullmatch(r"\d+(,\d+)*", given):
        raise ValueError(f"--seeds are integers such as 1,2,3, found {given!r}.")
    records, seeds = Path(options.records or _RECORDS), [*dict.fromkeys(map(int, given.split(",")))]
    check_appendable(records)
    if options.table == "claims":
        print("\n".join(claims.lines(claims.recorded(records, run=True))))
        return
    of = tables.table(options.table)
    if options.scale != "paper":
        finished = f"The trainings that were finished are in {display(records)}; the same command goes on."
        with arguments.saying_what_is_saved(lambda: finished):
            reproduce.run_small(of, records, seeds)
        print("\n".join(reproduce.small_lines(of, records)))
    elif options.row is None:
        print("\n".join(reproduce.large_lines(of)))
    elif options.workdir is None:
        raise ValueError("--row wants the folder of its run: give --workdir.")
    else:
        with arguments.saying_what_is_saved(lambda: _saved(options.workdir, "the same command")):
            reproduce.run_large(of, options.row, Path(options.workdir), options.overrides)
        print(f"The run is in {display(options.workdir)}.")
