"""evaluate, report: what an encoder has learnt."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_sslhsic.cli import arguments
from keras_sslhsic.files import display


def add(commands: Any, settings_of: str | None) -> None:
    """Adds the commands to a parser; `settings_of` as `keras_sslhsic.cli` has it."""
    evaluate = arguments.command(
        commands, "evaluate", _evaluate, "measure what an encoder has learnt", bool(settings_of)
    )
    _evaluate_arguments(evaluate, settings_of)

    report = arguments.command(
        commands, "report", _report, "gather the results below a folder in one table and one chart"
    )
    report.add_argument("path", help="a folder with results.jsonl anywhere below, or one such file")
    report.add_argument("--out", help="where report.md and report.png go (default: that folder)")


def _evaluate_arguments(parser: argparse.ArgumentParser, settings_of: str | None) -> None:
    """What `evaluate` takes: of its own, and a flag for every setting of every protocol and of the images it needs."""
    protocol = parser.add_argument(
        "protocol",
        nargs="?",
        metavar="PROTOCOL",
        help="knn, linear, finetune or another; `keras-sslhsic evaluate knn --help` says what can be set of it, `evaluate all "
        "--help` of each",
    )
    parser.set_defaults(print_help=parser.print_help)
    parser.add_argument(
        "--run",
        dest="run_folder",
        help="a run folder: its encoder; without PROTOCOL or with `all`, beside the one it started from and raw pixels",
    )
    parser.add_argument("--encoder", help="a name of the zoo, a .keras file, or a folder of save_pretrained")
    parser.add_argument(
        "--data",
        help="`bundled`; a folder with the sub-folders train and test (where networks are trained, perhaps validation), a "
        "folder a class in each, or with a folder a class, which is split; or a data set of TensorFlow Datasets (transfer: one "
        "of the twelve sets); default: the images of the run, or bundled",
    )
    parser.add_argument(
        "--config",
        help="a Python file with get_config() that holds settings of the protocol, and may register protocols; settings given "
        "here come first",
    )
    parser.add_argument(
        "--out", help="file of JSON lines to add the result to (default: results.jsonl of the run, or here)"
    )
    if settings_of is None:
        return
    from keras_sslhsic.evaluation import PROTOCOLS

    protocols = ", ".join(PROTOCOLS)
    protocol.help = (
        f"one of {protocols}; `all`: a table of the bundled images; none, with --run: what its config names"
    )
    one = settings_of in PROTOCOLS
    shown = [settings_of] if one else [*PROTOCOLS]
    flags = parser.add_argument_group(
        f"settings of {settings_of if one else 'protocols'}, and of their images"
    )
    for name, uses in _settings().items():
        told = {protocol: setting for protocol, setting in uses.items() if protocol in shown}
        text = "; ".join(_help(told, len(shown))).replace("%", "%%")
        parse = next(iter(uses.values())).parse
        flags.add_argument(
            f"--{name.replace('_', '-')}", type=parse, help=text if told else argparse.SUPPRESS
        )


def _help(uses: dict[str, Any], of: int) -> Iterator[str]:
    """What a setting is to protocols, of so many, and its default with each."""
    for text in dict.fromkeys(setting.help for setting in uses.values()):
        own = {name: setting.default for name, setting in uses.items() if setting.help == text}
        defaults = {default: [name for name in own if own[name] == default] for default in own.values()}
        named = [f"{default} ({', '.join(names)})" for default, names in defaults.items() if default]
        shown = next(iter(defaults)) if len(defaults) == 1 else "; ".join(named)
        who = f" [{', '.join(own)}]" if len(own) < of else ""
        yield text + (f" (default: {shown})" if shown else "") + who


def _settings() -> dict[str, dict[str, Any]]:
    """Setting -> protocol -> the `Setting`, of every protocol and of the images it needs."""
    from keras_sslhsic.evaluation import PROTOCOLS

    found: dict[str, dict[str, Any]] = {}
    for protocol in PROTOCOLS.values():
        for name, setting in {**protocol.settings, **protocol.needs.settings}.items():
            found.setdefault(name, {})[protocol.name] = setting
    return found


def _evaluate(options: argparse.Namespace) -> None:
    from keras_sslhsic.evaluation import PROTOCOLS
    from keras_sslhsic.evaluation.compare import BUNDLED, raw_pixels
    from keras_sslhsic.evaluation.loading import FOR_FEATURES, FOR_TRAINING
    from keras_sslhsic.evaluation.reporting import table
    from keras_sslhsic.evaluation.settings import checked, flags, layered
    from keras_sslhsic.runs import config, evaluate

    if (options.run_folder is None) == (options.encoder is None):
        raise ValueError("Give either --run with a run folder, or --encoder with an encoder.")
    name = options.run_folder or options.encoder
    if options.run_folder and Path(name).is_file():
        raise NotADirectoryError(
            f"{display(name)} is a file: give --run the folder of a run, or --encoder a file."
        )
    out = options.out or Path(options.run_folder or ".") / "results.jsonl"
    given = {key: value for key in _settings() if (value := getattr(options, key)) is not None}
    if options.protocol in (None, "all"):
        if options.protocol is None and options.run_folder is None:
            raise ValueError(f"Give a protocol with --encoder: one of {', '.join(PROTOCOLS)}, all.")
        extra = {*given} | {key for key in ("data", "out") if getattr(options, key)}
        if options.protocol == "all":
            extra -= {"seed", "out"} | ({"data"} if options.data == "bundled" else set())
        if extra:
            goes = "goes" if len(extra) == 1 else "go"
            measured = (
                "`all` measures on the bundled images"
                if options.protocol
                else "the evaluations are the config's"
            )
            raise ValueError(
                f"{flags(extra)} {goes} with one protocol, as {measured}: name one of {', '.join(PROTOCOLS)}."
            )
    if options.protocol is None:
        rows = evaluate.evaluate_run(name, verbose=True)
        if not rows:
            raise ValueError(
                f"The config of {display(name)} names no evaluation: name a protocol and --data."
            )
        print(evaluate.format_table(rows))
        return
    if options.protocol == "all":
        encoders = (
            evaluate.encoders_of(name)
            if options.run_folder
            else {name: arguments.load(name), "raw pixels": raw_pixels}
        )
        if (channels := next(iter(encoders.values())).input_shape[-1]) != 1:
            raise ValueError(
                f"`all` measures on the bundled images, which have 1 channel, and {display(name)} reads {channels}: name a "
                "protocol and --data."
            )
        images, seed = FOR_FEATURES.load("bundled"), given.get("seed", 0)
        print(
            table(evaluate.measure(encoders, BUNDLED, images, out, data="bundled", seed=seed, verbose=True))
        )
        return
    protocol = PROTOCOLS[options.protocol]
    data, lie = (options.data, {}) if options.data else _own_data(options)
    given = layered(
        protocol.settings,
        config.load(options.config).to_dict() if options.config else {},
        dict(map(config.parse, options.overrides)),
        given,
    )
    of_images = {key for other in PROTOCOLS.values() for key in other.needs.settings} - {*protocol.settings}
    where = {key: value for key, value in lie.items() if key in protocol.needs.settings}
    where |= {key: value for key, value in given.items() if key in of_images}
    settings = {key: value for key, value in given.items() if key not in of_images}
    # Before anything is loaded.
    checked(protocol.name, {**protocol.settings, **protocol.needs.settings}, given)
    where = checked(protocol.name, protocol.needs.settings, where)
    protocol.arguments_of(settings)
    if not options.data and protocol.needs not in (FOR_FEATURES, FOR_TRAINING):
        raise ValueError(
            f"{protocol.name} needs images of another kind than a run has: name some by --data, as `keras-sslhsic evaluate "
            f"{protocol.name} --help` says."
        )
    encoder = arguments.load(name)
    if not (options.data or options.run_folder) and encoder.spec.channels != 1:
        raise ValueError(
            f"Without --data the bundled images are measured on, which have 1 channel, and {display(name)} reads "
            f"{encoder.spec.channels}: name others by --data."
        )
    height, width, _ = encoder.spec.shape
    if None not in (height, width) and height != width:
        raise ValueError(
            f"{display(name)} reads images of {height} x {width} pixels, and evaluations make squares of files: measure it in "
            "Python, on arrays of that size."
        )
    if "image_size" in protocol.needs.settings:
        size = encoder.spec.size_for(where.get("image_size"))
        where |= {"image_size": size} if size else {}
        if size and encoder.spec.short_side and "short_side" in protocol.needs.settings:
            # A classifier is seen on the squares that it was measured on, as `extract` sees it.
            where.setdefault("short_side", encoder.spec.short_side_for(size))
    splits = protocol.needs.load(data, channels=encoder.spec.channels, **where)
    evals = {protocol.name: settings}
    work_dir = settings.get("work_dir")
    again = f"The same command goes on from what is kept in {display(work_dir)}." if work_dir else ""
    with arguments.saying_what_is_saved(lambda: again):
        [result] = evaluate.measure({name: encoder}, evals, splits, out, data=data, verbose=True)
    at = f" at {side} pixels" if (side := result.recipe.get("image_size")) else ""
    for measure in result.measures():
        print(
            f"{protocol.name} on {display(data)}{at}: {measure.metric} {measure.text()}, the 95 % interval in brackets"
        )
    print(f"The result is in {display(out)}.")
    if settings.get("save_to"):
        print(f"The classifier is in {display(settings['save_to'])}.")


def _own_data(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The images that are measured on where none are named, and what has to be known to load them."""
    from keras_sslhsic.runs import evaluate, folder

    if not options.run_folder:
        return "bundled", {}
    config = folder.load_config(options.run_folder)
    # A folder with train and test is named by its evaluation.
    named = [given["data"] for given in config.evals.values() if given.get("data")]
    if named and config.data.source != "bundled":
        return named[0], evaluate.as_read(config)
    return evaluate.own_data(config)


def _report(options: argparse.Namespace) -> None:
    from keras_sslhsic import evaluation

    print(evaluation.report(options.path, options.out))
