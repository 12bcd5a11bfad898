"""Conversations of an assistant with a τ²-bench user, and their rewards.

Nothing in this package imports torch, agentlightning, verl or ray: the API's debug rollouts, the
training runners and the baselines all run these modules.
"""

from worker.rollouts.tau2_setup import prepare_tau2

# Every module of the package may import τ² freely, because this ran first.
prepare_tau2()
