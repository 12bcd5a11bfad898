"""``tautrain demo``: the main job from start to end on this machine, shown as it happens."""

from app.demo.run import run_demo

__all__ = ["run_demo"]
