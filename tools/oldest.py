"""Prints the lowest versions that setup.py allows, with those of the extra tfds, as pip's constraints."""

import re
from importlib.metadata import requires

for requirement in requires("keras_sslhsic") or []:
    bounds, _, marker = requirement.partition(";")
    found = re.match(r"([\w-]+).*?(?:>=|==)([\d.]+)", bounds)
    if found and ("extra" not in marker or "tfds" in marker):
        name, version = found.groups()
        print(f"{name}~={version}.0" if version.count(".") < 2 else f"{name}=={version}")
