"""The API keys of the active requests."""


class ActiveKeys:
    """An index for each key that has requests; indices are reused."""

    def __init__(self) -> None:
        self.names: list[str] = []  # by index
        self._requests: list[int] = []  # by index; 0: the index is free
        self._index_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._index_of)

    def add(self, name: str) -> int:
        """Count a request of the key. Returns: the key's index."""
        index = self._index_of.get(name)
        if index is None:
            if 0 not in self._requests:
                self.names.append("")
                self._requests.append(0)
            index = self._index_of[name] = self._requests.index(0)
            self.names[index] = name
        self._requests[index] += 1
        return index

    def remove(self, index: int) -> None:
        """Count a request less."""
        self._requests[index] -= 1
        if not self._requests[index]:
            del self._index_of[self.names[index]]
