"""Who is here and who owns what: the contract, the shard map, and a world of one."""

from sparring.rendezvous.contract import Membership, Rendezvous
from sparring.rendezvous.shard_map import NUM_PARTITIONS, ShardMap
from sparring.rendezvous.single import SingleRendezvous

__all__ = ["NUM_PARTITIONS", "Membership", "Rendezvous", "ShardMap", "SingleRendezvous"]
