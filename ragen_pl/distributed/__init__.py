"""Many ranks: collectives, sharding (FSDP2), checkpoints, snapshots, batches assigned to ranks.

May not depend on what is trained: no models, algorithms or rollouts. A single process is the
special case of every function here.
"""

from ragen_pl.distributed.batch_sharding import optimizer_batches, regroup
from ragen_pl.distributed.checkpoint_io import AnyCheckpointIO
from ragen_pl.distributed.collectives import all_reduce_sum, gather_objects, rank, world_size
from ragen_pl.distributed.fsdp import FSDP2
from ragen_pl.distributed.sharding import full_state_dict, summon_full_params
from ragen_pl.distributed.snapshot import restore_snapshot, take_snapshot

__all__ = [
    "FSDP2",
    "AnyCheckpointIO",
    "all_reduce_sum",
    "full_state_dict",
    "gather_objects",
    "optimizer_batches",
    "rank",
    "regroup",
    "restore_snapshot",
    "summon_full_params",
    "take_snapshot",
    "world_size",
]
