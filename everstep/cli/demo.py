"""`everstep demo`."""

import click


@click.command()
def demo() -> None:
    """Tell the product's story on real input, and prove it."""
