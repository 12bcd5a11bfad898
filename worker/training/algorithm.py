"""agentlightning's VERL algorithm, made to start with the releases that are pinned."""

from __future__ import annotations

from typing import Any

from agentlightning.algorithm.verl import VERL
from agentlightning.store.client_server import LightningStoreClient
from agentlightning.types import Dataset
from agentlightning.verl.entrypoint import run_ppo


class TautrainVERL(VERL):
    """Hands the Ray actor a store client instead of the store's server.

    agentlightning 0.3.0 pickles its ``LightningStoreServer``, which a current FastAPI forbids
    (``cannot pickle '_thread.lock'``). Ends with an agentlightning that passes a client.
    """

    def run(
        self,
        train_dataset: Dataset[Any] | None = None,
        val_dataset: Dataset[Any] | None = None,
    ) -> None:
        """Runs VERL's PPO loop in a Ray actor and returns when it has ended.

        Raises:
            ray.exceptions.RayTaskError: the loop raised; its cause is in the message.
        """
        store = self.get_store()
        run_ppo(
            self.config,
            train_dataset=train_dataset,
            val_dataset=val_dataset,
            store=LightningStoreClient(store.endpoint),
            llm_proxy=None,
            adapter=self.get_adapter(),
            trainer_cls=self.trainer_cls,
            daemon_cls=self.daemon_cls,
        )
