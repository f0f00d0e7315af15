"""Patterns: which tokens keep a canvas completable, in any order of its positions."""
