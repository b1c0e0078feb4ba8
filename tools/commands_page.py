"""Prints docs/commands.md, from the parser of the command line.

python tools/commands_page.py > docs/commands.md
"""

import argparse
from collections.abc import Iterator

from keras_sslhsic import cli

_INTRODUCTION = """# Command line

`keras-sslhsic COMMAND --help` prints what is on this page, which is made from the same parser. A command ends with 0; with 2
and one sentence where its input cannot be used; with 130 after Ctrl-C. `keras-sslhsic --traceback COMMAND ...` shows where an
error comes from, `keras-sslhsic --version` the version. An encoder (`--model`, `--encoder`) is a name of the zoo, a run
folder, a folder of `save_pretrained`, a file, or `hf://OWNER/NAME`.
"""


def lines() -> Iterator[str]:
    """The lines of the page."""
    yield from _INTRODUCTION.splitlines()
    parser = cli._parser(settings_of="all")
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        yield from ("", f"## {name}", "", command.description or "")
        yield ""
        for group in command._action_groups:
            if group.title not in ("positional arguments", "options"):
                yield from ("", f"{(group.title or '').capitalize()}:", "")
            yield from (_item(action) for action in group._group_actions if action.dest != "help")


def _item(action: argparse.Action) -> str:
    names = action.option_strings or [action.metavar or action.dest]
    value = f" {action.metavar or action.dest.upper()}" if action.option_strings and action.nargs != 0 else ""
    if action.choices:
        value = f" {'|'.join(map(str, action.choices))}"
    said = (action.help or "").replace("%%", "%").replace("|", "\\|")
    return (
        f"- `{', '.join(map(str, names))}{value}`{' (required)' if action.required and value else ''}: {said}"
    )


if __name__ == "__main__":
    print("\n".join(lines()))
