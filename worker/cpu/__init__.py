"""The CPU engine: VERL's actor and trainer with a policy server of our own in place of vLLM."""
