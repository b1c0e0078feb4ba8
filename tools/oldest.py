"""Prints the lowest versions that setup.py allows, as pip's constraints."""

import re
from importlib.metadata import requires

for requirement in requires("keras_sslhsic") or []:
    if found := re.match(r"([\w-]+).*?(?:>=|==)([\d.]+)[^;]*$", requirement):
        print(
            "{}~={}.0".format(*found.groups())
            if found[2].count(".") < 2
            else "{}=={}".format(*found.groups())
        )
