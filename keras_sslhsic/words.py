"""Words for messages."""


def counted(number: int, noun: str) -> str:
    """ "1 image", "2,000 images"."""
    return f"{number:,} {noun}" + "s" * (number != 1)
