"""τ² is prepared before a test module imports it: alone it would log, and ask the network."""

import worker.rollouts  # noqa: F401
