"""Planning: the two-stage ILP and the decision whether to accept its plan."""
