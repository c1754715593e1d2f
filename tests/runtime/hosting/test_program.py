"""Host programs: the text form, and what `verify` refuses."""

from __future__ import annotations

import pytest

from stagejit.errors import InternalError
from stagejit.graph.python_functions import TARGET
from stagejit.runtime.hosting.program import (
    HostProgram,
    Iterations,
    Launch,
    Parallel,
    Step,
    as_text,
    verify,
)
from stagejit.runtime.hosting.program_steps import Branch, BufferRef, Call, Copy, Loop, Store, While

ARG, RESULT, ARENA = BufferRef("arg"), BufferRef("result"), BufferRef("arena")
OF_THREADS, OF_TURNS = BufferRef("arena", 0, 0, (32,)), BufferRef("result", 0, 0, (0, 16))


def program(*steps: Step, arena_nbytes: int = 64) -> HostProgram:
    return HostProgram("p", steps, (64,), (64,), arena_nbytes)


def test_text() -> None:
    moving = BufferRef("result", 0, 8, (16,))
    steps = (
        Launch("k0", (ARG, ARENA), (1, 2), 10, 3, True, 100),
        Parallel((Launch("k1", (ARG, RESULT)), Launch("k2", (ARG,), (), 5))),
        Loop(3, (Copy(moving, ARENA, 8), While((), BufferRef("arena", 0, 4), (Loop(2, ()),)))),
        Branch(ARENA, 4, ((Launch("k0", ()),), ())),
        Iterations(4, 2, 3, (Store(OF_THREADS, 4, 7, -2), Copy(OF_TURNS, OF_THREADS, 16))),
        Store(ARENA, 2, 5),
    )
    tested = HostProgram("p", steps, (64,), (64,), 64, ((0, 0),))
    verify(tested)
    assert (
        as_text(tested)
        == """\
host @p  arena 64 B
  alias result0 = arg0
  k0(arg0, arena) params [1, 2] items 10 parallel grain 3
  parallel region of 2:
    k1(arg0, result0) params [] items 1 serial
    k2(arg0) params [] items 5 serial
  loop 3:
    copy result0+8+16*i0 <- arena 8 B
    while arena+4:
      condition:
      do:
        loop 2:
  branch arena:
    case 0:
      k0() params [] items 1 serial
    case 1:
  loop 4 on 2 threads grain 3:
    store arena+32*i0 <- 7 + -2*i 4 B
    copy result0+16*i1 <- arena+32*i0 16 B
  store arena <- 5 2 B
"""
    )
    assert tested.kernels() == ("k0", "k1", "k2")
    assert tested.scratch_nbytes() == 128


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Copy(RESULT, BufferRef("arg", 1), 8), "there are 1"),
        (Copy(RESULT, BufferRef("arg", 0, 60), 8), r"bytes \[60, 68\) of 64"),
        (Copy(RESULT, BufferRef("arg", 0, -8), 8), r"bytes \[-8, 0\)"),
        (Loop(4, (Copy(BufferRef("result", 0, 0, (24,)), ARG, 8),)), r"bytes \[0, 80\) of 64"),
        (Store(BufferRef("arena", 0, 62), 4, 1), r"bytes \[62, 66\) of 64"),
        (Store(ARENA, 4, 1, 1), "no loop is around it"),
        (Iterations(2, 3, 1, (Copy(OF_THREADS, ARG, 8),)), r"bytes \[0, 72\) of 64"),
        (Iterations(2, 0, 1, ()), "iterations on 0 threads"),
        (Iterations(2, 2, 0, ()), "grain 0"),
        (Iterations(2, 2, 1, (Launch("k", (), (), 4, 1, True),)), "a thread forks"),
        (Iterations(2, 2, 1, (Parallel(()),)), "a thread forks"),
        (Iterations(2, 2, 1, (Iterations(2, 2, 1, ()),)), "a thread forks"),
        (Iterations(2, 2, 1, (Call(TARGET, (), ()),)), "a Python function is called"),
        (Loop(4, (Copy(BufferRef("result", 0, 8, (-8,)), ARG, 8),)), r"bytes \[-16, 16\) of 64"),
        (Launch("k", (BufferRef("arg", 0, 0, (8,)),)), "0 enclosing loops"),
        (Launch("k", (), total=-1), "total -1"),
        (Launch("k", (), grain=0), "grain 0"),
        (Branch(ARENA, 3, ((),)), "index of 3 bytes"),
        (Branch(ARENA, 4, ()), "no branches"),
    ],
)
def test_verify_refuses(step: Step, message: str) -> None:
    with pytest.raises(InternalError, match=message) as caught:
        verify(program(step))
    assert caught.value.dump.startswith("host @p")


def test_verify_refuses_aliases_of_other_sizes() -> None:
    with pytest.raises(InternalError, match="sizes differ"):
        verify(HostProgram("p", (), (64,), (32,), aliases=((0, 0),)))
