"""The streams that clients have open now, and what is measured of them."""

from __future__ import annotations

from everstep.observability import metric_names
from everstep.observability.measures import Measures
from everstep.observability.metric_names import Metric


class OpenStreams:
    """Counts them; of the server's event loop.

    Args:
        measures: What they are measured with.
    """

    def __init__(self, *measures: Measures) -> None:
        self._measures = [each for each in measures if each.is_on]
        self._open = 0

    def opened(self) -> None:
        """One more."""
        self._open += 1
        self.measure(metric_names.STREAMS, self._open)

    def closed(self) -> None:
        """One less."""
        self._open -= 1
        self.measure(metric_names.STREAMS, self._open)

    def measure(self, metric: Metric, value: float, *labels: str) -> None:
        """One observation.

        Args:
            metric: Of what.
            value: The value, in the metric's unit.
            labels: Values of its labels, in their order.
        """
        for each in self._measures:
            each.add(metric, value, *labels)
