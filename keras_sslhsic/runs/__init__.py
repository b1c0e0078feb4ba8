"""Runs: an experiment from its config to a folder with the encoder, its history and its results."""
