"""Who is here and who owns what: the contract, the shard map, and what a launcher says."""

from sparring.rendezvous.contract import Membership, Rendezvous
from sparring.rendezvous.environment import EnvironmentOptions, EnvironmentRendezvous
from sparring.rendezvous.shard_map import NUM_PARTITIONS, Shard, ShardMap
from sparring.rendezvous.single import SingleRendezvous

__all__ = [
    "NUM_PARTITIONS",
    "EnvironmentOptions",
    "EnvironmentRendezvous",
    "Membership",
    "Rendezvous",
    "Shard",
    "ShardMap",
    "SingleRendezvous",
]
