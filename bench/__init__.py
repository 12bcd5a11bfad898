"""Programs that measure: ``make bench`` and ``make equality``."""

import worker.rollouts  # noqa: F401  prepares τ² before anything here imports it
