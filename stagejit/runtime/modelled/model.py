"""The model of a program, whatever it runs on.

Input: a schedule, its kernels, the machine; of a GPU the program. Output: `Model`. Invariant: the
numbers are those of the timeline, see `threads.py` and `streams.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stagejit.base.machine import Machine
from stagejit.base.records import record
from stagejit.base.threads.importing import importing
from stagejit.codegen.generate import Generated
from stagejit.codegen.target import Target
from stagejit.dispatch.regions import Region
from stagejit.runtime.modelled.kernels import Modelled, Path
from stagejit.runtime.modelled.threads import OnThreads
from stagejit.schedule.schedule import Schedule

if TYPE_CHECKING:
    from stagejit.runtime.cuda.programs.program import CudaProgram


@record
class Model:
    """whole: of a call. dispatches: of one run of each."""

    whole: Modelled
    dispatches: Mapping[Path, Modelled]

    def seconds(self, path: Path) -> float | None:
        """Of one run of a dispatch; None where nobody knows."""
        took = self.dispatches.get(path)
        return took.seconds if took is not None and took.is_known else None


def model_of(
    schedule: Schedule,
    kernels: Mapping[Region, Generated],
    target: Machine,
    program: CudaProgram | None = None,
) -> Model | None:
    """program: that of a GPU. None for a GPU without one."""
    if isinstance(target, Target):
        made = OnThreads(schedule, schedule.waves, kernels, target).run()
        return Model(made.whole, dict(made.paths()))
    if program is None:
        return None
    with importing:  # most processes never compile for a GPU
        from stagejit.runtime.modelled.streams import Costs, on_streams
    on_gpu = on_streams(program, Costs.of(kernels.values(), target))
    return Model(on_gpu.whole, dict(on_gpu.paths()))
