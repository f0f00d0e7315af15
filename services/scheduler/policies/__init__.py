"""Policies, of which `registry.py` has the names; `policy.py` lists the decisions of each."""
