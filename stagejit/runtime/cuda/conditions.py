"""Loops and branches of graphs whose condition only the device knows: conditional nodes.

Input: a stream that is being captured, an address, what to queue. Output: a node of its graph, with
a graph inside. Invariant: whoever queues gets another stream for what is inside, which is captured
into the graph inside; the stream itself goes on behind the node.

Note [Deciding]: a node looks at its handle, which device code alone can set. So a kernel of one
thread reads what a program has computed and sets the handle, before the node and, in a loop, at the
end of each turn. `cudaGraphSetConditional` is a function of the driver's, which links it when it
loads PTX; a cubin cannot name it. Nodes of several bodies are newer than loops (CUDA 12.8 against
12.4), so a branch is a node for each of its cases: their handles are set before the first of them,
as a case may write over the index.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from stagejit.runtime.cuda.driver import Source, Stream
from stagejit.runtime.cuda.driver_api import DriverApi

OLDEST = 12, 4  # the driver that has them
_IS_NOT_ZERO = -1  # in the place of the number of a case

DECIDE = Source(
    "stagejit_decide",
    r"""
extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);

// Whether the integer of so many bytes is not 0; or, number being one of count cases, whether it is
// that one, clamped to them.
extern "C" __global__ void stagejit_decide(unsigned long long handle, const signed char* at,
                                           long long nbytes, long long number, long long count) {
  if (threadIdx.x) return;
  long long value = at[nbytes - 1];
  for (long long byte = nbytes - 2; byte >= 0; --byte)
    value = value * 256 + (long long)(unsigned char)at[byte];
  if (number >= 0) {
    value = value < 0 ? 0 : value >= count ? count - 1 : value;
    value = value == number;
  }
  cudaGraphSetConditional(handle, value != 0);
}
""",
    (32,),
)

Queue = Callable[[Stream], None]  # on a stream, which is being captured


class Conditions:
    """Makes nodes. launch: of the kernel, with packed arguments; number: that the driver knows a
    stream by."""

    def __init__(
        self,
        api: DriverApi,
        number: Callable[[Stream], int],
        launch: Callable[[Stream, bytes], None],
    ) -> None:
        self._api, self._number, self._launch = api, number, launch

    def repeat(self, stream: Stream, inner: Stream, predicate: int, queue: Queue) -> None:
        """While the byte at an address is not 0: `queue(inner)`."""
        handle = self._handle(stream)
        self._decide(stream, handle, predicate, 1)
        with self._inside(stream, inner, handle, loops=True):
            queue(inner)
            self._decide(inner, handle, predicate, 1)

    def choose(
        self, stream: Stream, inner: Stream, index: int, nbytes: int, queues: Sequence[Queue]
    ) -> None:
        """`queues[i](inner)` for the integer at an address, clamped to them."""
        handles = [self._handle(stream) for _ in queues]
        for number, handle in enumerate(handles):
            self._decide(stream, handle, index, nbytes, number, len(queues))
        for handle, queue in zip(handles, queues, strict=True):
            with self._inside(stream, inner, handle, loops=False):
                queue(inner)

    def _inside(
        self, stream: Stream, inner: Stream, handle: int, *, loops: bool
    ) -> AbstractContextManager[None]:
        return self._api.inside(self._number(stream), self._number(inner), handle, loops=loops)

    def _handle(self, stream: Stream) -> int:
        return self._api.conditional_handle(self._api.captured_graph(self._number(stream)))

    def _decide(
        self, stream: Stream, handle: int, at: int, nbytes: int, number: int = _IS_NOT_ZERO,
        count: int = 0,
    ) -> None:  # fmt: skip
        self._launch(stream, struct.pack("2Q3q", handle, at, nbytes, number, count))
