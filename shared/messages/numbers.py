"""Types of numbers in messages."""

from typing import Annotated

import msgspec

Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
Positive = Annotated[float, msgspec.Meta(gt=0, le=1e300)]
