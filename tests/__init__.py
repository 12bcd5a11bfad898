"""Tests. A package, because a distribution in site-packages has one of this name too."""
