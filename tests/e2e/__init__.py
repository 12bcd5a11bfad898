"""Tests of real processes that really train."""
