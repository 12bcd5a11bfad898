"""The tracer of the runners: AgentFrameworkTracer, with nothing sent anywhere."""

from __future__ import annotations

from agent_framework.lab.lightning import AgentFrameworkTracer


class LocalTracer(AgentFrameworkTracer):
    """agent-framework-lab's tracer."""
