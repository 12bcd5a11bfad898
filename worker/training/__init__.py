"""The assembly: agentlightning's Trainer and VERL, with what this service needs of them."""
