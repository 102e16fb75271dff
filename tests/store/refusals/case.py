"""A case of a refusal makes a state, and returns the request that its method refuses in it."""

from collections.abc import Awaitable, Callable

from google.protobuf.message import Message

from tests.store.refusals.calls import ONE_OF, Scene
from tests.store.refusals.promised import Pair

Case = Callable[[Scene], Awaitable[Message]]


class Cases(dict[Pair, Case]):
    """Cases, by their method and its reason."""

    def case(self, method: str, reason: str) -> Callable[[Case], Case]:
        """Adds a case of a method, and of the method that takes several of what it takes one of."""

        def add(make: Case) -> Case:
            for one in (method, *(batch for batch, single in ONE_OF.items() if single == method)):
                assert (one, reason) not in self
                self[one, reason] = make
            return make

        return add
